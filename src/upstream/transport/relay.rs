//! Relayed requests: both bodies are streamed on arrival.
//!
//! The connect is tried at several addresses. Once any part of a request has been sent, the effect is unknown, and the request is not sent
//! again. Exception: a request that meets the close of an idle connection, by the rule for model providers ([`STALE_DETECTED_WITHIN`]).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use pingora_core::connectors::{ConnectorOptions, TransportConnector};
use pingora_core::protocols::ALPN;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{WrappedX509, parse_x509};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tollgate_chain::{BodyLength, RelayEvent, RelayStream, RelayedHead, UpstreamError};
use tollgate_clock::Clock;
use tollgate_filter::{Exchange, Relay, RelayUpstream, UpstreamFault};

use super::addresses::{ATTEMPT_DELAY, Addresses};
use super::h1::{self, Connection, RequestFraming, Step, Streamed};
use super::pool::{Pool, STALE_DETECTED_WITHIN};
use crate::telemetry::Telemetry;
use crate::upstream::wait::within;

/// How long a connection may be idle between two calls. Common servers close theirs after 5 s, and few calls should meet the close.
const IDLE_MAX: Duration = Duration::from_secs(3);

/// The longest body on a reused connection, kept for a repetition. A longer body, or a body of unknown length, has a new connection. The
/// memory budget counts more for each open request.
const KEPT_BYTES_MAX: u64 = 16 * 1024;

/// A byte stream in both directions.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

type Socket = Box<dyn Io>;

/// The upstreams of the settings, and one worker's connections.
pub(crate) struct Relays {
    /// Each with the number of its connections in the pool. A server with other settings has another number.
    upstreams: HashMap<Arc<str>, (usize, Arc<RelayUpstream>)>,
    /// The first unused number.
    unused: usize,
    idle: Arc<Pool<Connection<Socket>, usize>>,
    /// Created on an upstream's first need: the connector loads the system's roots.
    tls: Arc<OnceLock<TransportConnector>>,
    addresses: Arc<Addresses>,
    clock: Clock,
    telemetry: Telemetry,
    draining: watch::Receiver<bool>,
}

impl Relays {
    pub(crate) fn new(
        upstreams: &[Arc<RelayUpstream>],
        addresses: Arc<Addresses>,
        clock: Clock,
        telemetry: Telemetry,
        draining: watch::Receiver<bool>,
    ) -> Relays {
        let none = Relays {
            upstreams: HashMap::new(),
            unused: 0,
            idle: Arc::new(Pool::with_idle_time(IDLE_MAX)),
            tls: Arc::default(),
            addresses,
            clock,
            telemetry,
            draining,
        };
        none.successor(upstreams)
    }

    /// The upstreams of other settings, with the connections of unchanged upstreams.
    pub(in crate::upstream) fn successor(&self, upstreams: &[Arc<RelayUpstream>]) -> Relays {
        if upstreams.iter().any(|one| one.url.tls) {
            self.connector();
        }
        let mut unused = self.unused;
        let numbered = upstreams.iter().map(|one| {
            let number = match self.upstreams.get(&one.name) {
                Some((number, earlier)) if earlier == one => *number,
                _ => {
                    unused += 1;
                    unused - 1
                }
            };
            (one.name.clone(), (number, one.clone()))
        });
        Relays {
            upstreams: numbered.collect(),
            unused,
            idle: self.idle.clone(),
            tls: self.tls.clone(),
            addresses: self.addresses.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
            draining: self.draining.clone(),
        }
    }

    fn connector(&self) -> &TransportConnector {
        let new = || TransportConnector::new(Some(ConnectorOptions::new(1)));
        self.tls.get_or_init(new)
    }

    /// Opens a connection to the upstream of an exchange and starts the request on it.
    pub(in crate::upstream) async fn open(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        body: BodyLength,
    ) -> Result<Box<dyn RelayStream>, UpstreamError> {
        let Some(relay) = exchange.get::<Relay>() else {
            return Err(unreachable("the exchange has no request to relay"));
        };
        let Some((index, upstream)) = self.upstreams.get(&relay.upstream) else {
            return Err(unreachable("no upstream of this name is configured"));
        };
        let method = exchange.request.method.clone();
        let (framed, framing) = framing(&method, body);
        let head = head(&method, relay, upstream, &framing);
        exchange.record.provider = Some(upstream.name.clone());
        exchange.record.upstream_calls += 1;
        let may_reuse = match body {
            BodyLength::Nothing => true,
            BodyLength::Bytes(length) => length <= KEPT_BYTES_MAX,
            BodyLength::Unknown => false,
        };
        let idle = || self.idle.take(*index, self.clock.elapsed());
        let idle = may_reuse.then(idle).flatten();
        let reused = idle.is_some();
        let connection = match idle {
            Some(connection) => connection,
            None => match self.connect(upstream).await {
                Ok(connection) => connection,
                Err(error) => {
                    self.telemetry
                        .upstream_call(&upstream.name, Err(error.fault));
                    return Err(error);
                }
            },
        };
        let mut draining = self.draining.clone();
        // A GET waits for events, and would delay a graceful shutdown for as long as no event comes. A client repeats the GET elsewhere.
        let stop = (method == Method::GET).then(|| {
            let stop: Stop = Box::pin(async move {
                let _ = draining.wait_for(|draining| *draining).await;
            });
            stop
        });
        Ok(Box::new(RelayCall {
            streamed: Some(Streamed::begin(connection, head, framed, reused)),
            stale_until: reused.then(|| Box::pin(tokio::time::sleep(STALE_DETECTED_WITHIN))),
            reconnecting: None,
            index: *index,
            relays: self.clone(),
            stage: Stage::AwaitingHead,
            timer: Box::pin(tokio::time::sleep(upstream.first_byte)),
            ends_at: Box::pin(tokio::time::sleep(upstream.total)),
            upstream: upstream.clone(),
            stop,
        }))
    }

    /// A new connection.
    async fn connect(&self, upstream: &RelayUpstream) -> Result<Connection<Socket>, UpstreamError> {
        match within(upstream.connect, self.open_socket(upstream)).await {
            Ok(Ok(socket)) => Ok(Connection::new(socket)),
            Ok(Err(error)) => Err(unreachable(error)),
            Err(_) => Err(timeout("a connection", upstream.connect)),
        }
    }

    /// By the rule for the addresses of providers, but without turns: a session belongs to one server. The name is resolved each time, so a
    /// moved server is found.
    async fn open_socket(&self, upstream: &RelayUpstream) -> Result<Socket, String> {
        let url = &upstream.url;
        let addresses = self.addresses.resolve(&url.host, url.port).await;
        let addresses = addresses.map_err(|error| error.to_string())?;
        if addresses.is_empty() {
            return Err("the name has no address".to_owned());
        }
        let order = (&addresses[..], self.addresses.choose(&addresses, 0));
        let name = &upstream.name;
        match url.tls {
            true => {
                let open = |at: usize| secure(self.connector(), upstream, addresses[at]);
                let delay = 2 * ATTEMPT_DELAY;
                self.addresses.open(name, order, delay, open).await
            }
            false => {
                let open = |at: usize| plain(addresses[at]);
                self.addresses.open(name, order, ATTEMPT_DELAY, open).await
            }
        }
    }
}

async fn plain(address: SocketAddr) -> Result<Socket, String> {
    let socket = TcpStream::connect(address).await;
    let socket = socket.map_err(|error| error.to_string())?;
    // Chunks are sent on arrival.
    let _ = socket.set_nodelay(true);
    Ok(Box::new(socket))
}

async fn secure(
    connector: &TransportConnector,
    upstream: &RelayUpstream,
    address: SocketAddr,
) -> Result<Socket, String> {
    let mut peer = HttpPeer::new(address, true, upstream.url.host.clone());
    peer.options.alpn = ALPN::H1;
    if let Some(roots) = &upstream.roots {
        let roots = roots
            .iter()
            .map(|root| WrappedX509::new(root.to_vec(), parse_x509));
        peer.options.ca = Some(roots.collect());
    }
    match connector.new_stream(&peer).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(error.to_string()),
    }
}

/// The framing of the request's body, and the header field for the framing.
fn framing(method: &Method, body: BodyLength) -> (RequestFraming, String) {
    match body {
        BodyLength::Bytes(length) => (
            RequestFraming::Length(length),
            format!("content-length: {length}\r\n"),
        ),
        BodyLength::Unknown => (
            RequestFraming::Chunks,
            "transfer-encoding: chunked\r\n".to_owned(),
        ),
        // A method with a usual body declares the absence of a body (RFC 9110 section 8.6).
        BodyLength::Nothing if method == Method::POST => {
            (RequestFraming::Nothing, "content-length: 0\r\n".to_owned())
        }
        BodyLength::Nothing => (RequestFraming::Nothing, String::new()),
    }
}

/// The head of the request. The gateway sets the framing; framing fields of the relay are dropped.
fn head(method: &Method, relay: &Relay, upstream: &RelayUpstream, framing: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(relay.target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    out.extend_from_slice(upstream.url.authority.as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in &sendable(&relay.headers) {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(framing.as_bytes());
    out.extend_from_slice(b"\r\n");
    out
}

/// The fields except the fields written here.
fn sendable(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in [
        header::HOST,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::CONNECTION,
        header::EXPECT,
    ] {
        headers.remove(name);
    }
    headers
}

type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

type Reconnecting = Pin<Box<dyn Future<Output = Result<Connection<Socket>, UpstreamError>> + Send>>;

/// The stage of a call, which determines its time limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The request is being sent, or the head of its answer is awaited.
    AwaitingHead,
    /// A whole answer is being received.
    ReadingBody,
    /// A stream of events is being received, which may end at any boundary between events.
    Streaming,
}

/// A relayed call; a drop before the end closes the connection.
struct RelayCall {
    streamed: Option<Streamed<Socket>>,
    /// The time until which the close of a reused connection proves a close before the request.
    stale_until: Option<Pin<Box<Sleep>>>,
    /// The connection for the repetition of the request.
    reconnecting: Option<Reconnecting>,
    relays: Arc<Relays>,
    upstream: Arc<RelayUpstream>,
    index: usize,
    stage: Stage,
    /// The idle timeout.
    timer: Pin<Box<Sleep>>,
    /// The total timeout.
    ends_at: Pin<Box<Sleep>>,
    /// Completes when the gateway is about to stop.
    stop: Option<Stop>,
}

impl RelayCall {
    fn idle_timeout(&self) -> Duration {
        match self.stage {
            Stage::AwaitingHead => self.upstream.first_byte,
            Stage::ReadingBody | Stage::Streaming => self.upstream.idle,
        }
    }

    fn fail(&mut self, error: UpstreamError) -> UpstreamError {
        self.streamed = None;
        if self.stage == Stage::AwaitingHead {
            self.relays
                .telemetry
                .upstream_call(&self.upstream.name, Err(error.fault));
        }
        error
    }

    /// The event to report for a step.
    fn relay_event(&mut self, step: Step) -> RelayEvent {
        match step {
            Step::Writable => RelayEvent::Writable,
            Step::Head(head, headers, has_body) => {
                self.stage = match head.is_stream {
                    true => Stage::Streaming,
                    false => Stage::ReadingBody,
                };
                let telemetry = &self.relays.telemetry;
                telemetry.upstream_call(&self.upstream.name, Ok(()));
                RelayEvent::Head(RelayedHead {
                    status: head.status,
                    headers,
                    has_body,
                })
            }
            Step::Piece(piece) => RelayEvent::Piece(piece),
            Step::End => {
                if let Some(connection) = self.streamed.take().and_then(Streamed::keep) {
                    let now = self.relays.clock.elapsed();
                    let max = self.upstream.connections_idle_max;
                    self.relays.idle.put(self.index, connection, now, max);
                }
                RelayEvent::End
            }
        }
    }

    /// The total timeout, or the stop of the gateway. A stream of events ends in order, so that the client reconnects and is authorized
    /// again; any other call has failed.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<RelayEvent, UpstreamError>> {
        let timed_out = self.ends_at.as_mut().poll(cx).is_ready();
        let is_stream = self.stage == Stage::Streaming;
        let stopping = match &mut self.stop {
            Some(stop) if is_stream => stop.as_mut().poll(cx).is_ready(),
            _ => false,
        };
        if is_stream && (timed_out || stopping) {
            self.streamed = None;
            return Poll::Ready(Ok(RelayEvent::End));
        }
        if timed_out {
            let error = timeout("the end of the answer", self.upstream.total);
            return Poll::Ready(Err(self.fail(error)));
        }
        Poll::Pending
    }

    fn poll_idle_timeout(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RelayEvent, UpstreamError>> {
        ready!(self.timer.as_mut().poll(cx));
        // A listening stream may have no events for a long time: the stream ends in order, and the client reconnects.
        if self.stage == Stage::Streaming && self.stop.is_some() {
            self.streamed = None;
            return Poll::Ready(Ok(RelayEvent::End));
        }
        let what = match self.stage {
            Stage::AwaitingHead => "the answer",
            Stage::ReadingBody | Stage::Streaming => "the next piece of the answer",
        };
        let error = timeout(what, self.idle_timeout());
        Poll::Ready(Err(self.fail(error)))
    }

    /// Whether this error proves that the server had closed a kept connection before the request; the request is sent again in this case.
    fn begin_again(&mut self, error: &h1::Error) -> bool {
        let is_kept = self.streamed.as_ref().is_some_and(Streamed::is_kept);
        let is_stale = is_kept && matches!(error, h1::Error::Unanswered(_));
        if is_stale {
            let (relays, upstream) = (self.relays.clone(), self.upstream.clone());
            self.reconnecting = Some(Box::pin(async move { relays.connect(&upstream).await }));
            self.stale_until = None;
        }
        is_stale
    }

    /// Gives up the copy of the request once the connection has not shown to be stale.
    fn poll_stale(&mut self, cx: &mut Context<'_>) {
        let passed = |until: &mut Pin<Box<Sleep>>| until.as_mut().poll(cx).is_ready();
        if self.stale_until.as_mut().is_some_and(passed) {
            self.stale_until = None;
            if let Some(streamed) = &mut self.streamed {
                streamed.forget();
            }
        }
    }

    fn reset_idle_timer(&mut self) {
        let limit = self.idle_timeout();
        self.timer.as_mut().reset(Instant::now() + limit);
    }
}

impl RelayStream for RelayCall {
    fn send(&mut self, piece: Option<Bytes>) {
        if let Some(streamed) = &mut self.streamed {
            streamed.send(piece);
            self.reset_idle_timer();
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<RelayEvent, UpstreamError>> {
        // Polled first: an upstream that always has data would otherwise never be stopped.
        if let Poll::Ready(end) = self.poll_end(cx) {
            return Poll::Ready(end);
        }
        if let Some(reconnecting) = &mut self.reconnecting {
            let connected = ready!(reconnecting.as_mut().poll(cx));
            self.reconnecting = None;
            match (connected, &mut self.streamed) {
                (Ok(connection), Some(streamed)) => streamed.send_again(connection),
                (Ok(_), None) => {}
                (Err(error), _) => return Poll::Ready(Err(self.fail(error))),
            }
            self.reset_idle_timer();
        }
        let Some(streamed) = &mut self.streamed else {
            return Poll::Ready(Ok(RelayEvent::End));
        };
        match streamed.poll(cx) {
            Poll::Pending => {
                // The next chunk of the client's body is awaited, with a separate time limit.
                let awaits_body = self.stage == Stage::AwaitingHead && streamed.awaits_body();
                self.poll_stale(cx);
                match awaits_body {
                    true => Poll::Pending,
                    false => self.poll_idle_timeout(cx),
                }
            }
            Poll::Ready(Ok(step)) => {
                let event = self.relay_event(step);
                self.reset_idle_timer();
                Poll::Ready(Ok(event))
            }
            Poll::Ready(Err(error)) if self.begin_again(&error) => {
                Poll::Ready(Ok(RelayEvent::SentAgain))
            }
            Poll::Ready(Err(error)) => {
                let error = plain_error(&error);
                Poll::Ready(Err(self.fail(error)))
            }
        }
    }
}

fn plain_error(error: &h1::Error) -> UpstreamError {
    let (fault, detail) = match error {
        h1::Error::Unanswered(_) | h1::Error::Cut(_) => (UpstreamFault::Cut, "connection broke"),
        h1::Error::Invalid(_) => (UpstreamFault::Invalid, "the answer is not HTTP"),
    };
    UpstreamError::of_relay(fault, format!("{detail}: {error}"))
}

fn unreachable(detail: impl std::fmt::Display) -> UpstreamError {
    UpstreamError::of_relay(
        UpstreamFault::Unreachable,
        format!("cannot connect: {detail}"),
    )
}

fn timeout(waiting_for: &str, limit: Duration) -> UpstreamError {
    let detail = format!("waited {limit:?} for {waiting_for}");
    UpstreamError::of_relay(UpstreamFault::Timeout, detail)
}
