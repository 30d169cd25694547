//! Client connections: protocol detection, and the loops that serve HTTP/1.1 requests in sequence and HTTP/2 streams concurrently.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use pingora_core::ErrorType;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server as h2;
use pingora_core::protocols::{ALPN, Digest, IO, Stream};
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, watch};
use tollgate_memory::{AddressMemory, CONNECTION_BYTES, OverBudget, REQUEST_BYTES, RequestMemory};

use super::connections::Connection;
use super::head::{self, Origin};
use super::head_reading::HeadFault;
use super::session::free_head;
use super::socket::{ClientSocket, CorkHandle, Corked};
use super::source::Source;
use super::trailers::{TrailerScan, Trailers};
use super::wake::{boxed, coalesce_wakes};
use super::worker::Worker;
use super::write_coalescing::coalesced;
use crate::config::ConnectionLimits;
use crate::upstream::{Elapsed, within};

/// The HTTP/2 connection preface without TLS (RFC 9113 section 3.4).
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Buffer for the first bytes of a head; most heads fit.
const HEAD_BYTES: usize = 4096;

/// The error code of a stream that was not processed and may be sent again (RFC 9113 section 8.7).
const REFUSED_STREAM: u32 = 7;

/// Refused streams on one connection before a graceful end, and as many more before the close: the library keeps a few bytes of each refusal
/// until the client has read the refusal.
const REFUSED_MAX: u32 = 1000;

/// Bytes of each stream's answer kept by the library until the client reads from its socket.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Between two tries of a connection of HTTP/2 to be counted.
const MEMORY_INTERVAL: Duration = Duration::from_millis(250);

/// Malformed requests refused by the session itself, on one connection, before the close.
const MALFORMED_MAX: u32 = 32;

/// Serves a connection without TLS.
pub(super) async fn plain(
    worker: Arc<Worker>,
    mut tcp: ClientSocket,
    source: Source,
    connection: Arc<Connection>,
    (http2, health): (bool, bool),
) {
    let origin = Origin {
        memory: worker.memory_of(&source),
        source,
        tls: false,
        old_tls: false,
        health,
    };
    if http2 {
        let limits = worker.limits();
        let mut draining = worker.draining();
        // The data after a PROXY protocol header may be buffered already.
        if tcp.read_ahead().is_empty() {
            let first = tokio::select! {
                biased;
                first = within(limits.idle, tcp.fill()) => first,
                _ = draining.wait_for(|draining| *draining) => return,
            };
            if !matches!(first, Ok(Ok(1..))) {
                return;
            }
        }
        match within(limits.head, tcp.begins_with(H2_PREFACE)).await {
            Ok(Ok(true)) => {
                // Boxed, here and wherever a branch is rare: a task is as large as its largest branch.
                return Box::pin(serve_h2(worker, tcp, origin, connection)).await;
            }
            Ok(Ok(false)) => {}
            Ok(Err(_)) | Err(Elapsed) => return,
        }
    }
    let draining = worker.draining();
    serve_h1(worker, tcp, origin, &connection, draining).await;
}

/// Serves a connection with one request, relayed by the predecessor.
pub(super) async fn relayed(
    worker: Arc<Worker>,
    tcp: ClientSocket,
    origin: Origin,
    connection: Arc<Connection>,
) {
    let stopped = worker.stopped();
    serve_h1(worker, tcp, origin, &connection, stopped).await;
}

/// Serves a connection whose TLS handshake is done.
pub(super) async fn tls<S: IO + 'static>(
    worker: Arc<Worker>,
    stream: S,
    source: Source,
    connection: Arc<Connection>,
    health: bool,
) {
    let version = stream.get_ssl_digest().map(|digest| digest.version.clone());
    let origin = Origin {
        memory: worker.memory_of(&source),
        source,
        tls: true,
        old_tls: version.is_none_or(|version| version != "TLSv1_3"),
        health,
    };
    match stream.selected_alpn_proto() {
        Some(ALPN::H2) => Box::pin(serve_h2(worker, stream, origin, connection)).await,
        // A validation by a certificate authority, which carries no data (RFC 8737 section 3).
        Some(ALPN::Custom(_)) => {}
        _ => {
            let draining = worker.draining();
            serve_h1(worker, stream, origin, &connection, draining).await;
        }
    }
}

/// Serves one request after the other, until `ends` becomes true while the connection is idle.
async fn serve_h1<S: IO + 'static>(
    worker: Arc<Worker>,
    stream: S,
    origin: Origin,
    connection: &Connection,
    mut ends: watch::Receiver<bool>,
) {
    let corked = Corked::new(stream);
    let cork = corked.handle();
    let mut next: Option<(Stream, Option<BytesMut>)> = Some((Box::new(corked), None));
    while let Some((stream, read_ahead)) = next.take() {
        next = one_h1(
            &worker,
            stream,
            read_ahead,
            &cork,
            (&origin, connection),
            &mut ends,
        )
        .await;
    }
}

/// Serves one request; returns the connection if reusable.
async fn one_h1(
    worker: &Arc<Worker>,
    stream: Stream,
    read_ahead: Option<BytesMut>,
    cork: &CorkHandle,
    (origin, connection): (&Origin, &Connection),
    ends: &mut watch::Receiver<bool>,
) -> Option<(Stream, Option<BytesMut>)> {
    let limits = *worker.limits();
    let mut stream = stream;
    let mut read_ahead = read_ahead.unwrap_or_default();
    if read_ahead.is_empty() {
        // A connection may be idle between requests; a head that has started has to arrive.
        read_ahead.reserve(HEAD_BYTES);
        let first = tokio::select! {
            biased;
            first = within(limits.idle, stream.read_buf(&mut read_ahead)) => first,
            _ = ends.wait_for(|ends| *ends) => return None,
        };
        if !matches!(first, Ok(Ok(1..))) {
            return None;
        }
    }
    let mut session = Box::new(ServerSession::new_http1(stream));
    // All time limits are set here: Pingora's limits apply between two reads, so an occasional byte would hold a connection forever.
    session.set_keepalive(Some(0));
    session.set_read_timeout(None);
    session.set_pipelining_enabled(true);
    let head = cork.head();
    head.begin(&origin.memory, read_ahead.len(), limits.head_bytes_max);
    session.set_pipelined_prefix(read_ahead);
    let read = within(limits.head, pin!(session.read_request())).await;
    let refused = head.end();
    let fault = match read {
        Ok(Ok(true)) => None,
        Ok(Ok(false)) => return None,
        Err(Elapsed) => Some(HeadFault::Slow),
        Ok(Err(_)) if refused.is_some() => refused,
        Ok(Err(error)) => match error.etype() {
            ErrorType::InvalidHTTPHeader if is_too_large(&error) => Some(HeadFault::TooLarge),
            ErrorType::InvalidHTTPHeader => Some(HeadFault::Malformed),
            // The client disconnected in the middle of the head.
            _ => return None,
        },
    };
    if !connection.begin() {
        return None;
    }
    let counted = match fault {
        Some(fault) => Err(fault),
        None => worker
            .count_soon(&session, origin)
            .await
            .map_err(|OverBudget| HeadFault::NoMemory),
    };
    let memory = match counted {
        Ok(memory) => memory,
        Err(fault) => {
            if matches!(fault, HeadFault::NoMemory) {
                origin.memory.count_refusal();
            }
            Box::pin(worker.refuse_head(session, cork.clone(), origin, fault)).await;
            return None;
        }
    };
    if worker.is_leaving() {
        session.set_keepalive(None);
    }
    let served = worker.serve(session, Some(cork.clone()), origin, memory);
    let (mut session, memory) = served.await?;
    if !session.is_body_done() {
        // The request is answered: its connection may be closed in favour of another one.
        connection.end();
        Box::pin(linger(&mut session, memory, limits.body, ends)).await;
        return None;
    }
    drop(memory);
    let reusable = session.finish().await.ok()??;
    connection.end();
    Some(reusable.into_parts())
}

/// Lingering close of a connection whose request was answered before the end of its body (RFC 9112 section 9.6).
///
/// Closing a socket with unread data resets the connection, and a client that sends the whole body before reading would lose the answer. So
/// only the sending side is closed, and the rest of the body is discarded, within the time limit of a body.
///
/// The session keeps the received bytes of the head, so they stay counted. The discarding ends early while the memory of the client's address
/// is short.
async fn linger(
    session: &mut ServerSession,
    mut memory: RequestMemory,
    limit: Duration,
    ends: &mut watch::Receiver<bool>,
) {
    if let ServerSession::H1(h1) = session {
        memory.set(REQUEST_BYTES + h1.get_headers_raw_bytes().len());
        // The length of the body is known to the session by now.
        free_head(h1.req_header_mut());
        let shutdown = pin!(h1.shutdown());
        tokio::select! {
            biased;
            _ = within(limit, shutdown) => {}
            () = memory.short() => return,
        }
    }
    let discard = pin!(async { while let Ok(Some(_)) = session.read_request_body().await {} });
    tokio::select! {
        biased;
        _ = within(limit, discard) => {}
        () = memory.short() => {}
        _ = ends.wait_for(|ends| *ends) => {}
    }
}

/// Keeps a stream whose request was answered before the end of its body, and discards the rest of the body, within the time limit of a
/// body. The library resets the stream with `NO_ERROR` afterwards (RFC 9113 section 8.1).
///
/// The reset is optional, and clients by nghttp2 (curl, Node) lose the answer if they read reset and answer together. So a reset has three
/// causes only: a body beyond the time limit, short memory of the client's address, and a draining gateway.
async fn linger_h2(
    session: &mut ServerSession,
    mut memory: RequestMemory,
    limit: Duration,
    mut ends: watch::Receiver<bool>,
) {
    // The memory is the client's, also behind a trusted proxy.
    memory.set(REQUEST_BYTES);
    free_head(session.req_header_mut());
    let discard = pin!(async { while let Ok(Some(_)) = session.read_request_body().await {} });
    tokio::select! {
        biased;
        _ = within(limit, discard) => {}
        () = memory.short() => {}
        _ = ends.wait_for(|ends| *ends) => {}
    }
}

/// The session's only messages for a head past the session's limits. Other messages may quote the head, the client's text.
fn is_too_large(error: &pingora_core::Error) -> bool {
    let says = |text: &str| text.starts_with("Request header larger than");
    let long = error
        .context
        .as_ref()
        .is_some_and(|text| says(text.as_str()));
    let cause = error.cause.as_ref().map(|cause| cause.to_string());
    long || cause.is_some_and(|cause| cause == "too many headers")
}

/// Counts an HTTP/2 connection in the memory of the client's address. While memory is short, the connection waits unread: a client closed
/// at once would connect again at once.
async fn h2_memory(address: &Arc<AddressMemory>) -> RequestMemory {
    loop {
        if let Ok(memory) = address.take(CONNECTION_BYTES) {
            return memory;
        }
        tokio::time::sleep(MEMORY_INTERVAL).await;
    }
}

async fn serve_h2<S: IO + 'static>(
    worker: Arc<Worker>,
    stream: S,
    origin: Origin,
    connection: Arc<Connection>,
) {
    let place = connection;
    let limits = *worker.limits();
    let Ok(_memory) = within(limits.head, h2_memory(&origin.memory)).await else {
        origin.memory.count_refusal();
        return;
    };
    let digest = Arc::new(Digest {
        ssl_digest: stream.get_ssl_digest(),
        timing_digest: Vec::new(),
        proxy_digest: None,
        socket_digest: None,
    });
    // Pingora's own bounds on header lists and streams are lost when options are created from defaults.
    let mut options = h2::default_h2_options();
    options.max_concurrent_streams(limits.h2_streams_max);
    options.max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX));
    options.max_send_buffer_size(SEND_BUFFER_BYTES);
    let (stream, coalescer) = coalesced(stream);
    let trailers = Trailers::new(origin.memory.clone(), limits.head_bytes_max);
    let stream = stream.with_scan(TrailerScan::new(trailers.clone()));
    let handshake = h2::handshake(Box::new(stream), Some(options));
    let Ok(Ok(mut connection)) = within(limits.head, handshake).await else {
        return;
    };
    coalescer.start_buffering();
    let open = Arc::new(OpenStreams {
        connection: place,
        count: AtomicUsize::new(0),
        heads: AtomicUsize::new(0),
        heads_max: heads_max(&origin, &limits),
        trailers,
        closed: Notify::new(),
    });
    let mut accepts_none = worker.accepts_none();
    let mut is_shutdown_sent = false;
    let mut malformed = 0;
    let mut refusals = Refusals::new(&origin);
    loop {
        let idle = async {
            open.none().await;
            tokio::time::sleep(limits.h2_idle).await;
        };
        let accepted = tokio::select! {
            biased;
            _ = accepts_none.wait_for(|none| *none), if !is_shutdown_sent => {
                is_shutdown_sent = true;
                connection.graceful_shutdown();
                continue;
            }
            accepted = coalescer.flush_when_pending(h2::HttpSession::from_h2_conn(&mut connection, digest.clone())) => accepted,
            () = idle => return,
        };
        match accepted {
            Ok(Ok(Some(h2::H2Accept::Session(mut session)))) => {
                let head = session.req_header();
                let head_bytes = head::memory_bytes(head, None);
                let memory = match open.has_room(head_bytes) {
                    true => worker.count(head, head_bytes, &origin),
                    false => Err(OverBudget),
                };
                let Ok(memory) = memory else {
                    origin.memory.count_refusal();
                    session.shutdown_with_reason(REFUSED_STREAM.into());
                    match refusals.add() {
                        AfterRefusal::Serve => {}
                        AfterRefusal::EndGracefully => {
                            is_shutdown_sent = true;
                            connection.graceful_shutdown();
                        }
                        AfterRefusal::Close => return coalescer.try_flush().await,
                    }
                    continue;
                };
                refusals.forget();
                let worker = worker.clone();
                let Some(guard) = open.enter(head_bytes) else {
                    return;
                };
                let (wake_queue, origin) = (worker.wake_queue().clone(), origin.clone());
                let stream = boxed(move || async move {
                    let _guard = guard;
                    let session = Box::new(ServerSession::new_http2(session));
                    let served = worker.serve(session, None, &origin, memory);
                    if let Some((mut session, memory)) = served.await {
                        if !session.is_body_done() {
                            let ends = worker.draining();
                            Box::pin(linger_h2(&mut session, memory, limits.body, ends)).await;
                        }
                        // A stream is not reused; the client has seen the effect of a failure here.
                        let _ = session.finish().await;
                    }
                });
                tokio::spawn(coalesce_wakes(wake_queue, stream));
            }
            Ok(Ok(Some(h2::H2Accept::Rejected))) => {
                malformed += 1;
                if malformed >= MALFORMED_MAX {
                    // Output of other streams.
                    return coalescer.try_flush().await;
                }
            }
            Ok(Ok(None) | Err(_)) | Err(_) => return,
        }
    }
}

/// Bytes of the decoded heads of a connection's open streams. A trusted proxy's connection carries many clients, each with its own share of
/// memory: a bound of all together would let one of them refuse the others.
fn heads_max(origin: &Origin, limits: &ConnectionLimits) -> usize {
    match origin.source.is_trusted() {
        true => usize::MAX,
        false => limits.head_bytes_max * limits.h2_streams_max.div_ceil(2) as usize,
    }
}

/// The refused streams of a connection.
struct Refusals {
    count: u32,
    /// Whether a served stream makes earlier refusals irrelevant: a trusted proxy reads its answers, and one of its clients must not end the
    /// connection of the others.
    forgets: bool,
}

/// The effect of a refusal on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterRefusal {
    Serve,
    /// New streams go to another connection, and open ones are served to their end.
    EndGracefully,
    Close,
}

impl Refusals {
    fn new(origin: &Origin) -> Refusals {
        Refusals {
            count: 0,
            forgets: origin.source.is_trusted(),
        }
    }

    fn add(&mut self) -> AfterRefusal {
        self.count += 1;
        match self.count {
            REFUSED_MAX => AfterRefusal::EndGracefully,
            count if count >= 2 * REFUSED_MAX => AfterRefusal::Close,
            _ => AfterRefusal::Serve,
        }
    }

    /// A stream is served.
    fn forget(&mut self) {
        if self.forgets {
            self.count = 0;
        }
    }
}

/// The open streams of an HTTP/2 connection.
struct OpenStreams {
    connection: Arc<Connection>,
    count: AtomicUsize,
    /// Bytes of their decoded heads.
    heads: AtomicUsize,
    heads_max: usize,
    trailers: Arc<Trailers>,
    closed: Notify,
}

struct OpenStream {
    streams: Arc<OpenStreams>,
    head_bytes: usize,
}

impl OpenStreams {
    /// Whether the connection may have another head of this size.
    fn has_room(&self, head_bytes: usize) -> bool {
        let heads = self.heads.load(Ordering::Relaxed);
        heads.saturating_add(head_bytes) <= self.heads_max || heads == 0
    }

    /// Counts a stream. `None` for a closing connection.
    fn enter(self: &Arc<Self>, head_bytes: usize) -> Option<OpenStream> {
        // All streams of a connection are on one thread.
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 && !self.connection.begin() {
            return None;
        }
        self.heads.fetch_add(head_bytes, Ordering::Relaxed);
        Some(OpenStream {
            streams: self.clone(),
            head_bytes,
        })
    }

    async fn none(&self) {
        while self.count.load(Ordering::Relaxed) > 0 {
            self.closed.notified().await;
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let streams = &*self.streams;
        streams.heads.fetch_sub(self.head_bytes, Ordering::Relaxed);
        let open = streams.count.fetch_sub(1, Ordering::Relaxed) - 1;
        streams.trailers.stream_ended(open);
        if open == 0 {
            streams.connection.end();
            streams.closed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(forgets: bool, is_served: bool) -> Vec<AfterRefusal> {
        let mut refusals = Refusals { count: 0, forgets };
        let effect = |_| {
            if is_served {
                refusals.forget();
            }
            refusals.add()
        };
        let effects = (0..2 * REFUSED_MAX).map(effect);
        effects.filter(|one| *one != AfterRefusal::Serve).collect()
    }

    #[test]
    fn refusals_end_a_connection_gracefully_before_they_close_it() {
        let ended = [AfterRefusal::EndGracefully, AfterRefusal::Close];
        assert_eq!(effects(false, true), ended);
        assert_eq!(effects(true, false), ended);
    }

    #[test]
    fn refusals_of_one_client_do_not_end_a_trusted_proxys_connection_that_serves_others() {
        assert!(effects(true, true).is_empty());
    }
}
