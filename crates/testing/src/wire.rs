//! One side of an HTTP/1.1 connection, read in whole heads, bodies and chunks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{client, server};

use crate::head::{Framing, Head, find};

/// Any byte stream: a TCP connection, with or without TLS.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {
    /// Makes the connection end with a reset (RST) when it is dropped, instead of an orderly close.
    fn reset_on_close(&self);
}

impl Io for TcpStream {
    fn reset_on_close(&self) {
        // Fails on a connection that is broken already, which is the intended state.
        let _ = self.set_zero_linger();
    }
}

impl Io for UnixStream {
    fn reset_on_close(&self) {
        // Such a connection has no reset.
    }
}

impl Io for server::TlsStream<TcpStream> {
    fn reset_on_close(&self) {
        self.get_ref().0.reset_on_close();
    }
}

impl Io for client::TlsStream<TcpStream> {
    fn reset_on_close(&self) {
        self.get_ref().0.reset_on_close();
    }
}

/// A connection whose first write is preceded by a header.
pub(crate) struct Behind {
    pub(crate) socket: TcpStream,
    /// The unsent remainder of it.
    pub(crate) header: Vec<u8>,
}

impl AsyncRead for Behind {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, out)
    }
}

impl AsyncWrite for Behind {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            if this.header.is_empty() {
                return Pin::new(&mut this.socket).poll_write(cx, bytes);
            }
            let joined = [&this.header, bytes].concat();
            let written = ready!(Pin::new(&mut this.socket).poll_write(cx, &joined))?;
            let of_header = written.min(this.header.len());
            this.header.drain(..of_header);
            if written > of_header {
                return Poll::Ready(Ok(written - of_header));
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl Io for client::TlsStream<Behind> {
    fn reset_on_close(&self) {
        self.get_ref().0.socket.reset_on_close();
    }
}

/// Read-ahead data is limited to this while there is no reader.
const READ_AHEAD_MAX: usize = 64 * 1024;

/// A connection and its received data.
pub(crate) struct Wire {
    pub(crate) io: Box<dyn Io>,
    pub(crate) inbox: BytesMut,
}

impl Wire {
    pub(crate) fn new(io: Box<dyn Io>) -> Self {
        Self {
            io,
            inbox: BytesMut::with_capacity(8 * 1024),
        }
    }

    /// Reads once; 0 when the peer has closed its side.
    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        self.inbox.reserve(4 * 1024);
        self.io.read_buf(&mut self.inbox).await
    }

    async fn more(&mut self, of_what: &str) -> io::Result<()> {
        match self.fill().await? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("connection closed in the middle of {of_what}"),
            )),
            _ => Ok(()),
        }
    }

    /// The next head; `None` when the peer closed between two messages.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(head) = Head::take(&mut self.inbox).map_err(invalid)? {
                return Ok(Some(head));
            }
            match self.fill().await? {
                0 if self.inbox.is_empty() => return Ok(None),
                0 => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "connection closed in a head",
                    ));
                }
                _ => {}
            }
        }
    }

    /// Exactly `len` bytes.
    pub(crate) async fn exactly(&mut self, len: usize) -> io::Result<Bytes> {
        while self.inbox.len() < len {
            self.more("a body").await?;
        }
        Ok(self.inbox.split_to(len).freeze())
    }

    /// The data of the next chunk (RFC 9112 section 7.1); `None` after the last one, whose trailer is read and dropped.
    pub(crate) async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        let line = self.line().await?;
        let size = std::str::from_utf8(&line)
            .ok()
            .and_then(|line| line.split(';').next())
            .and_then(|size| usize::from_str_radix(size, 16).ok())
            .ok_or_else(|| invalid(format!("chunk size {line:?}")))?;
        if size == 0 {
            while !self.line().await?.is_empty() {}
            return Ok(None);
        }
        let data = self.exactly(size).await?;
        match self.line().await? {
            end if end.is_empty() => Ok(Some(data)),
            end => Err(invalid(format!("{end:?} after the data of a chunk"))),
        }
    }

    /// A whole body.
    pub(crate) async fn body(&mut self, framing: Framing) -> io::Result<Bytes> {
        match framing {
            Framing::Length(len) => self.exactly(len).await,
            Framing::Chunked => {
                let mut body = BytesMut::new();
                while let Some(data) = self.chunk().await? {
                    body.extend_from_slice(&data);
                }
                Ok(body.freeze())
            }
            Framing::UntilClose => {
                while self.fill().await? > 0 {}
                Ok(self.inbox.split().freeze())
            }
        }
    }

    /// Returns when the peer has closed its side or the connection has broken; what it sends until then is kept.
    pub(crate) async fn gone(&mut self) {
        while self.inbox.len() < READ_AHEAD_MAX {
            match self.fill().await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        std::future::pending().await
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.io.write_all(bytes).await?;
        self.io.flush().await
    }

    async fn line(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(end) = find(&self.inbox, b"\r\n") {
                let line = self.inbox.split_to(end).freeze();
                let _ = self.inbox.split_to(2);
                return Ok(line);
            }
            self.more("a line").await?;
        }
    }
}

/// Read-ahead data is returned first, so that a connection can be passed on after its first bytes were inspected.
impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.inbox.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, out);
        }
        let len = self.inbox.len().min(out.remaining());
        out.put_slice(&self.inbox.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

pub(crate) fn invalid(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}
