//! Write coalescing: the output of all streams of an HTTP/2 connection in one write.
//!
//! A commit completes the exchanges of a whole batch at once, and one read may bring a provider's answers for several. The HTTP/2 library
//! nevertheless flushes after every DATA frame, and over TLS each flush is a record and a system call. Here writes are buffered while the
//! connection is polled, and sent together before the connection's task waits: no write is delayed.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::socket::{CorkHandle, Corked};
use super::trailers::TrailerScan;

/// The stream a connection reads from and writes to.
pub(super) struct CoalescedStream<S> {
    stream: Arc<Mutex<Corked<S>>>,
    /// Inspects the read bytes.
    scan: Option<TrailerScan>,
}

/// Sends the output of a [`CoalescedStream`] stream. Only the connection's task uses both, so the lock is never contended.
pub(super) struct WriteCoalescer<S> {
    stream: Arc<Mutex<Corked<S>>>,
    cork: CorkHandle,
}

/// Buffers writes to `inner` once [`WriteCoalescer::start_buffering`] was called. More than a buffer of it is sent at once.
pub(super) fn coalesced<S>(inner: S) -> (CoalescedStream<S>, WriteCoalescer<S>) {
    let corked = Corked::new(inner);
    let cork = corked.handle();
    let stream = Arc::new(Mutex::new(corked));
    let coalescer = WriteCoalescer {
        stream: stream.clone(),
        cork,
    };
    let stream = CoalescedStream { stream, scan: None };
    (stream, coalescer)
}

impl<S> CoalescedStream<S> {
    /// Counts the trailers read, from the first byte on.
    pub(super) fn with_scan(self, scan: TrailerScan) -> CoalescedStream<S> {
        CoalescedStream {
            scan: Some(scan),
            ..self
        }
    }
}

fn lock<S>(stream: &Mutex<Corked<S>>) -> MutexGuard<'_, Corked<S>> {
    stream.lock()
}

impl<S: AsyncRead + AsyncWrite + Unpin> WriteCoalescer<S> {
    /// From now on a flush sends no bytes.
    pub(super) fn start_buffering(&self) {
        self.cork.set(true);
    }

    /// Awaits `future`, and sends buffered writes at each pending poll.
    pub(super) async fn flush_when_pending<F: Future>(&self, future: F) -> io::Result<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            match self.poll_send(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                // A full socket wakes the task once writable.
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Sends as much as possible without waiting, before the drop of a connection.
    pub(super) async fn try_flush(&self) {
        poll_fn(|cx| Poll::Ready(self.poll_send(cx).is_ready())).await;
    }

    fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.stream).poll_send(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        let read = Pin::new(&mut *lock(&self.stream)).poll_read(cx, out);
        if let (Poll::Ready(Ok(())), Some(scan)) = (&read, &mut self.scan) {
            scan.read(&out.filled()[before..])?;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.stream)).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.stream)).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.stream)).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.stream)).poll_shutdown(cx)
    }
}

impl<S> fmt::Debug for CoalescedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoalescedStream").finish_non_exhaustive()
    }
}

// Requirements of Pingora's sessions besides reading and writing.

#[async_trait]
impl<S: AsyncWrite + Unpin + Send> Shutdown for CoalescedStream<S> {
    async fn shutdown(&mut self) {
        // A socket that cannot be shut down is closed by the drop.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl<S: UniqueID> UniqueID for CoalescedStream<S> {
    fn id(&self) -> UniqueIDType {
        lock(&self.stream).id()
    }
}

impl<S: Ssl> Ssl for CoalescedStream<S> {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        lock(&self.stream).get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        lock(&self.stream).selected_alpn_proto()
    }
}

#[async_trait]
impl<S: Send> Peek for CoalescedStream<S> {}

impl<S> GetTimingDigest for CoalescedStream<S> {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl<S> GetProxyDigest for CoalescedStream<S> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl<S> GetSocketDigest for CoalescedStream<S> {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use pingora_core::listeners::tls::Acceptor;
    use pingora_core::protocols::IO;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpSocket};
    use tollgate_testing::{Certificate, RawClient};

    use super::*;
    use crate::proxy::socket::ClientSocket;
    use crate::proxy::socket::tests::{Scripted, Turn, pattern};

    /// The bytes available for reading.
    async fn arrived(far: &mut tokio::io::DuplexStream) -> Vec<u8> {
        let mut seen = [0; 64];
        tokio::select! {
            biased;
            read = far.read(&mut seen) => seen[..read.expect("readable")].to_vec(),
            () = std::future::ready(()) => Vec::new(),
        }
    }

    #[tokio::test]
    async fn flushed_pieces_are_sent_together_when_the_connection_is_pending() {
        let (inner, mut far) = tokio::io::duplex(1024);
        let (mut stream, coalescer) = coalesced(inner);
        stream.write_all(b"greeting ").await.expect("taken");
        stream.flush().await.expect("sent");
        assert_eq!(arrived(&mut far).await, b"greeting ", "not buffered yet");
        coalescer.start_buffering();
        let work = coalescer.flush_when_pending(async {
            stream.write_all(b"one ").await.expect("taken");
            stream.flush().await.expect("held");
            assert_eq!(arrived(&mut far).await, b"", "a flush sends nothing");
            stream.write_all(b"two ").await.expect("taken");
            stream.flush().await.expect("held");
            std::future::pending::<()>().await;
        });
        tokio::select! {
            biased;
            _ = work => unreachable!("it never ends"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(arrived(&mut far).await, b"one two ", "both in one write");
    }

    #[tokio::test]
    async fn shutting_down_a_stream_sends_its_buffer() {
        let (inner, mut far) = tokio::io::duplex(1024);
        let (mut stream, coalescer) = coalesced(inner);
        coalescer.start_buffering();
        stream.write_all(b"the last ").await.expect("taken");
        AsyncWriteExt::shutdown(&mut stream).await.expect("sent");
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.expect("readable");
        assert_eq!(all, b"the last ");
    }

    #[tokio::test]
    async fn a_socket_that_breaks_ends_the_wait() {
        let (inner, far) = tokio::io::duplex(1024);
        let (mut stream, coalescer) = coalesced(inner);
        coalescer.start_buffering();
        drop(far);
        stream.write_all(b"not received").await.expect("taken");
        let waited = coalescer
            .flush_when_pending(std::future::pending::<()>())
            .await;
        assert!(waited.is_err(), "a broken pipe");
    }

    /// Writes like the HTTP/2 library, frame by frame with a flush after every frame, and finally waits forever.
    async fn answers<S: AsyncRead + AsyncWrite + Unpin>(
        coalescer: WriteCoalescer<S>,
        mut stream: CoalescedStream<S>,
        bytes: Vec<u8>,
    ) -> io::Result<()> {
        let answer = async {
            for frame in bytes.chunks(16_393) {
                stream.write_all(frame).await?;
                stream.flush().await?;
            }
            std::future::pending::<io::Result<()>>().await
        };
        coalescer.flush_when_pending(answer).await?
    }

    #[tokio::test]
    async fn a_socket_with_partial_writes_receives_every_byte_once() {
        let bytes = pattern(40_000);
        let little = [Turn::Takes(700), Turn::Waits, Turn::Takes(9000)].repeat(40);
        let (inner, sent) = Scripted::new(&[little, vec![Turn::Takes(1)]].concat());
        let (stream, coalescer) = coalesced(inner);
        coalescer.start_buffering();
        let mut work = pin!(answers(coalescer, stream, bytes.clone()));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        // The task is woken whenever the socket is writable.
        for _ in 0..200 {
            assert!(work.as_mut().poll(&mut cx).is_pending());
        }
        assert!(
            sent.bytes() == bytes,
            "{} bytes were sent",
            sent.bytes().len()
        );
    }

    #[tokio::test]
    async fn a_socket_that_breaks_in_the_middle_ends_the_wait_with_a_prefix_sent() {
        let bytes = pattern(40_000);
        for before in 0..30 {
            let turns = [vec![Turn::Takes(900); before], vec![Turn::Breaks]].concat();
            let (inner, sent) = Scripted::new(&turns);
            let (stream, coalescer) = coalesced(inner);
            coalescer.start_buffering();
            let ended = answers(coalescer, stream, bytes.clone()).await;
            let error = ended.expect_err("the socket is broken");
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{before}");
            assert!(bytes.starts_with(&sent.bytes()), "{before}");
        }
    }

    /// The connection has no further output, so no later write would send the bytes refused by the socket.
    #[tokio::test]
    async fn the_end_of_an_answer_reaches_a_client_that_is_slower_than_the_gateway() {
        let bytes = pattern(1 << 19);
        let certificate = Certificate::for_localhost();
        let listener = narrow();
        let address = listener.local_addr().expect("it is bound");
        for tls in [false, true] {
            let accepted = async {
                let (socket, _) = listener.accept().await.expect("a client");
                let tcp = ClientSocket::new(socket);
                let acceptor = Acceptor::from_server_config(certificate.server_config(&["h2"]));
                let stream: Box<dyn IO> = match tls {
                    false => Box::new(tcp),
                    true => Box::new(acceptor.tls_handshake(tcp).await.expect("a handshake")),
                };
                stream
            };
            let trust = tls.then_some((&*certificate.ca_pem, "h2"));
            let connected = RawClient::connect_narrow(address, trust);
            let (stream, client) = tokio::join!(accepted, connected);
            let mut client = client.expect("a connection");
            let (stream, coalescer) = coalesced(stream);
            coalescer.start_buffering();
            let work = tokio::spawn(answers(coalescer, stream, bytes.clone()));
            let mut seen = Vec::new();
            while seen.len() < bytes.len() {
                let more = client.try_read_some().await.expect("an open connection");
                assert!(!more.is_empty(), "it ends after {} bytes", seen.len());
                seen.extend_from_slice(&more);
            }
            assert!(
                seen == bytes,
                "the received bytes differ from those written"
            );
            work.abort();
        }
    }

    /// A listener for connections with the smallest send buffer of the system.
    fn narrow() -> TcpListener {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_send_buffer_size(1).expect("a small buffer");
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        socket.bind(any).expect("a port");
        socket.listen(2).expect("it listens")
    }
}
