//! The byte streams under a session: the socket of a client, and a cork that joins writes.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::head_reading::HeadReading;

/// Larger writes bypass the cork's buffer: copying them would cost more than a second system call.
const CORK_BYTES_MAX: usize = 16 * 1024;

/// Buffer for bytes that are read and discarded.
const SKIP_BYTES: usize = 1024;

/// An accepted socket, with the bytes that were read to detect the protocol.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    socket: Socket,
    read_ahead: BytesMut,
}

impl ClientSocket {
    /// A connection by TCP.
    pub(crate) fn new(socket: TcpStream) -> ClientSocket {
        ClientSocket {
            socket: Socket::Tcp(socket),
            read_ahead: BytesMut::new(),
        }
    }

    /// A connection on a Unix socket.
    pub(crate) fn of_unix(socket: UnixStream) -> ClientSocket {
        ClientSocket {
            socket: Socket::Unix(socket),
            read_ahead: BytesMut::new(),
        }
    }

    /// Reads the first bytes; the session reads them again. 0 when the client has closed.
    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        use tokio::io::AsyncReadExt;
        self.socket.read_buf(&mut self.read_ahead).await
    }

    /// Data that was read and not yet returned.
    pub(crate) fn read_ahead(&self) -> &[u8] {
        &self.read_ahead
    }

    /// Discards the next bytes: reads exactly the bytes not buffered yet.
    pub(crate) async fn skip(&mut self, bytes: usize) -> io::Result<()> {
        use tokio::io::AsyncReadExt;
        let seen = bytes.min(self.read_ahead.len());
        self.read_ahead.advance(seen);
        let mut left = (bytes - seen) as u64;
        while left > 0 {
            let mut rest = (&mut self.socket).take(left);
            self.read_ahead.reserve(SKIP_BYTES);
            let read = rest.read_buf(&mut self.read_ahead).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.read_ahead.clear();
            left -= read as u64;
        }
        Ok(())
    }

    /// Reads until the bytes differ from `preface` or are complete; the session reads them again.
    pub(crate) async fn begins_with(&mut self, preface: &[u8]) -> io::Result<bool> {
        loop {
            let seen = self.read_ahead.len().min(preface.len());
            if self.read_ahead[..seen] != preface[..seen] {
                return Ok(false);
            }
            if seen == preface.len() {
                return Ok(true);
            }
            if self.fill().await? == 0 {
                return Ok(false);
            }
        }
    }
}

/// The stream of a socket of either family.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Calls a method of the stream of either family.
macro_rules! of_either {
    ($socket:expr, $method:ident $(, $argument:expr)*) => {
        match $socket.get_mut() {
            Socket::Tcp(socket) => Pin::new(socket).$method($($argument),*),
            Socket::Unix(socket) => Pin::new(socket).$method($($argument),*),
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        of_either!(self, poll_read, cx, out)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        of_either!(self, poll_write, cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        of_either!(self, poll_write_vectored, cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_either!(self, poll_flush, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_either!(self, poll_shutdown, cx)
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read_ahead.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, out);
        }
        let taken = out.remaining().min(self.read_ahead.len());
        out.put_slice(&self.read_ahead[..taken]);
        self.read_ahead.advance(taken);
        if self.read_ahead.is_empty() {
            self.read_ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Buffers small writes until a flush, so that a head and its body are sent in one packet.
///
/// While the [`CorkHandle`] is set, flushes are suppressed too: the session flushes the head of a stream by itself, a moment before the
/// write of the first event.
pub(crate) struct Corked<S> {
    inner: S,
    buffer: BytesMut,
    /// Data was written to the inner stream since its last complete flush. TLS accepts more than its socket, and buffers the rest.
    unflushed: bool,
    handle: CorkHandle,
}

/// Suppresses or permits the flushes of one [`Corked`] stream, and bounds the heads read from the stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct CorkHandle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    is_corked: AtomicBool,
    head: HeadReading,
}

impl CorkHandle {
    pub(crate) fn set(&self, corked: bool) {
        self.0.is_corked.store(corked, Ordering::Relaxed);
    }

    /// The head that is being read.
    pub(super) fn head(&self) -> &HeadReading {
        &self.0.head
    }
}

impl<S> Corked<S> {
    pub(crate) fn new(inner: S) -> Corked<S> {
        Corked {
            inner,
            buffer: BytesMut::new(),
            unflushed: false,
            handle: CorkHandle::default(),
        }
    }

    pub(crate) fn handle(&self) -> CorkHandle {
        self.handle.clone()
    }
}

impl<S: AsyncWrite + Unpin> Corked<S> {
    /// Sends the buffered data, whether corked or not.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffer.is_empty() && !self.unflushed {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_drain(cx))?;
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.buffer.is_empty() {
            self.unflushed = true;
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.buffer))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.buffer.advance(written);
        }
        // Restart at the front of the allocation.
        self.buffer.clear();
        Poll::Ready(Ok(()))
    }
}

impl<S> fmt::Debug for Corked<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Corked")
            .field("held", &self.buffer.len())
            .finish_non_exhaustive()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Corked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.handle.head().is_incomplete() {
            return Pin::new(&mut self.inner).poll_read(cx, out);
        }
        self.handle.head().check()?;
        let before = out.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, out))?;
        self.handle.head().add(out.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Corked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.buffer.len() + bytes.len() > CORK_BYTES_MAX {
            ready!(this.poll_drain(cx))?;
            if bytes.len() > CORK_BYTES_MAX {
                this.unflushed = true;
                return Pin::new(&mut this.inner).poll_write(cx, bytes);
            }
        }
        this.buffer.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let length = pieces.iter().map(|piece| piece.len()).sum();
        if this.buffer.len() + length > CORK_BYTES_MAX {
            ready!(this.poll_drain(cx))?;
            if length > CORK_BYTES_MAX {
                this.unflushed = true;
                return Pin::new(&mut this.inner).poll_write_vectored(cx, pieces);
            }
        }
        this.buffer.reserve(length);
        for piece in pieces {
            this.buffer.extend_from_slice(piece);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.handle.0.is_corked.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_drain(cx))?;
        ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        this.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

// Requirements of Pingora's sessions besides reading and writing.

#[async_trait]
impl Shutdown for ClientSocket {
    async fn shutdown(&mut self) {
        // A socket that cannot be shut down is closed by the drop.
        let _ = AsyncWriteExt::shutdown(&mut self.socket).await;
    }
}

impl UniqueID for ClientSocket {
    fn id(&self) -> UniqueIDType {
        match &self.socket {
            Socket::Tcp(socket) => socket.as_raw_fd(),
            Socket::Unix(socket) => socket.as_raw_fd(),
        }
    }
}

impl Ssl for ClientSocket {}

#[async_trait]
impl Peek for ClientSocket {}

impl GetTimingDigest for ClientSocket {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for ClientSocket {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for ClientSocket {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

#[async_trait]
impl<S: AsyncWrite + Unpin + Send> Shutdown for Corked<S> {
    async fn shutdown(&mut self) {
        self.handle.set(false);
        // As above.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl<S: UniqueID> UniqueID for Corked<S> {
    fn id(&self) -> UniqueIDType {
        self.inner.id()
    }
}

impl<S: Ssl> Ssl for Corked<S> {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.inner.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.inner.selected_alpn_proto()
    }
}

#[async_trait]
impl<S: Send> Peek for Corked<S> {}

impl<S> GetTimingDigest for Corked<S> {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl<S> GetProxyDigest for Corked<S> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl<S> GetSocketDigest for Corked<S> {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

#[cfg(test)]
pub(crate) mod tests;
