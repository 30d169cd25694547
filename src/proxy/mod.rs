//! The Pingora side: sockets, sessions, and the requests on them.
//!
//! Pingora's HTTP sessions and TLS carry the bytes; its `ProxyHttp` phases are not used. They answer a malformed head with a bare 400, lose
//! the usage of an answer whose client has disconnected, and cost more than the call made here ([`crate::upstream`]). The sockets are
//! accepted here as well, so that every resource a client can hold open has a limit in one place.

mod connection;
mod cors;
mod forwarded;
mod gather;
mod head;
mod inside;
mod lifecycle;
mod listener;
mod proxy_protocol;
mod routes;
mod session;
mod source;
mod tls;

use std::future::{Future, poll_fn};
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use pingora_core::protocols::http::ServerSession;
use tokio::sync::{Notify, watch};
use tollgate_chain::run::Run;
use tollgate_chain::{Chain, Limits, Observer, Route, drive, refuse};
use tollgate_filter::{
    ApiError, Clock, Ending, Entropy, ErrorCode, ErrorPage, ErrorShape, Exchange, OldTls, Outcome,
    Reply, Request,
};

use self::head::Origin;
pub(crate) use self::inside::Door;
pub(crate) use self::lifecycle::Signs;
pub(crate) use self::listener::Bound;
pub(crate) use self::listener::ListenError;
use self::routes::Found;
pub(crate) use self::routes::{Gate, Routes};
use self::session::Client;
pub(crate) use self::tls::server_config;
use crate::config::{ConnectionLimits, RelayUpstream};
use crate::liveness::Liveness;
use crate::socket::CorkHandle;
use crate::telemetry::Telemetry;
use crate::upstream::{Caller, Providers, Relays, TextViaChat};
use crate::wake::Inbox;

/// State shared by all workers.
pub(crate) struct Proxy {
    pub(crate) routes: Routes,
    /// Renders error pages for addresses without a route.
    pub(crate) pages: ErrorPage,
    pub(crate) providers: Arc<Providers>,
    /// The upstreams that requests may be relayed to.
    pub(crate) relayed_to: Vec<Arc<RelayUpstream>>,
    pub(crate) telemetry: Telemetry,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    pub(crate) limits: ConnectionLimits,
    pub(crate) answer_limits: Limits,
    pub(crate) workers: NonZeroUsize,
    /// The fallback handler for a request without a route.
    nowhere: Route,
    state: State,
}

/// The lifecycle of the gateway between start and end.
struct State {
    draining: watch::Sender<bool>,
    stopped: watch::Sender<bool>,
    exchanges: AtomicUsize,
    /// The peak concurrency since the last report.
    crowd: AtomicUsize,
    /// Changes when the workers are to release unused memory.
    emptied: watch::Sender<()>,
    idle: Notify,
    connections: AtomicUsize,
    closed: Notify,
}

/// The parts of the proxy.
pub(crate) struct Parts {
    pub(crate) routes: Routes,
    /// Renders error pages for addresses without a route.
    pub(crate) pages: ErrorPage,
    pub(crate) providers: Arc<Providers>,
    /// The upstreams that requests may be relayed to.
    pub(crate) relayed_to: Vec<Arc<RelayUpstream>>,
    pub(crate) telemetry: Telemetry,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    pub(crate) limits: ConnectionLimits,
    pub(crate) answer_limits: Limits,
    pub(crate) workers: NonZeroUsize,
}

impl Proxy {
    pub(crate) fn new(parts: Parts) -> Proxy {
        let nowhere = Route {
            name: "none".into(),
            chain: Chain::new(Vec::new()),
            body_bytes_max: 0,
            errors: ErrorShape::Envelope,
        };
        let state = State {
            draining: watch::Sender::new(false),
            stopped: watch::Sender::new(false),
            exchanges: AtomicUsize::new(0),
            crowd: AtomicUsize::new(0),
            emptied: watch::Sender::new(()),
            idle: Notify::new(),
            connections: AtomicUsize::new(0),
            closed: Notify::new(),
        };
        let Parts {
            routes,
            pages,
            providers,
            relayed_to,
            telemetry,
            clock,
            entropy,
            limits,
            answer_limits,
            workers,
        } = parts;
        Proxy {
            routes,
            pages,
            providers,
            relayed_to,
            telemetry,
            clock,
            entropy,
            limits,
            answer_limits,
            workers,
            nowhere,
            state,
        }
    }

    /// Starts the workers. They end after [`Proxy::stop`].
    pub(crate) fn start(
        self: &Arc<Self>,
        bound: Vec<Bound>,
    ) -> io::Result<(Vec<std::thread::JoinHandle<()>>, Liveness)> {
        listener::spawn_workers(self, bound)
    }

    /// Stops accepting and lets every connection close after its request under way.
    pub(crate) fn drain(&self) {
        self.state.draining.send_replace(true);
    }

    /// Whether [`Proxy::drain`] was called.
    pub(crate) fn is_draining(&self) -> bool {
        *self.state.draining.borrow()
    }

    /// Waits until no exchange is under way.
    pub(crate) async fn drained(&self) {
        loop {
            let idle = self.state.idle.notified();
            if self.state.exchanges.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Waits until no connection is open. The last write of an exchange may still be in its connection's buffer.
    pub(crate) async fn closed(&self) {
        loop {
            let closed = self.state.closed.notified();
            if self.state.connections.load(Ordering::Acquire) == 0 {
                return;
            }
            closed.await;
        }
    }

    /// Ends the workers, whatever is under way.
    pub(crate) fn stop(&self) {
        self.drain();
        self.state.stopped.send_replace(true);
    }

    /// Whether [`Proxy::stop`] was called.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.state.stopped.borrow()
    }

    /// The number of exchanges under way.
    pub(crate) fn open_exchanges(&self) -> usize {
        self.state.exchanges.load(Ordering::Acquire)
    }

    /// Makes every worker release unused memory.
    pub(crate) fn give_back(&self) {
        self.state.emptied.send_replace(());
    }

    /// The peak number of concurrent exchanges since the last call.
    pub(crate) fn take_crowd(&self) -> usize {
        self.state
            .crowd
            .swap(self.open_exchanges(), Ordering::Relaxed)
    }

    async fn stopped(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self
            .state
            .stopped
            .subscribe()
            .wait_for(|stopped| *stopped)
            .await;
    }
}

/// Counts an exchange from its head to its end, on every way out.
struct OpenExchange<'p>(&'p State);

impl<'p> OpenExchange<'p> {
    fn enter(state: &'p State) -> OpenExchange<'p> {
        let open = state.exchanges.fetch_add(1, Ordering::AcqRel) + 1;
        if open > state.crowd.load(Ordering::Relaxed) {
            // Two threads may overwrite each other by one; no decision depends on it.
            state.crowd.store(open, Ordering::Relaxed);
        }
        OpenExchange(state)
    }
}

impl Drop for OpenExchange<'_> {
    fn drop(&mut self) {
        if self.0.exchanges.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// Counts a connection from its first byte to its close.
struct OpenConnection(Arc<Proxy>);

impl OpenConnection {
    fn enter(proxy: Arc<Proxy>) -> OpenConnection {
        proxy.state.connections.fetch_add(1, Ordering::AcqRel);
        OpenConnection(proxy)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let state = &self.0.state;
        if state.connections.fetch_sub(1, Ordering::AcqRel) == 1 {
            state.closed.notify_waiters();
        }
    }
}

/// Why a head could not be parsed.
#[derive(Clone, Copy, Debug)]
enum HeadFault {
    Malformed,
    TooLarge,
    /// It has started and was not complete in time.
    Slow,
}

/// Creates the callers of one thread.
fn new_calls(proxy: &Proxy) -> TextViaChat<Caller> {
    let relays = Relays::new(
        &proxy.relayed_to,
        proxy.clock.clone(),
        proxy.telemetry.clone(),
        proxy.state.draining.subscribe(),
    );
    let caller = Caller::new(
        proxy.providers.clone(),
        proxy.clock.clone(),
        proxy.entropy.clone(),
        proxy.telemetry.clone(),
        relays,
    );
    TextViaChat::new(caller, proxy.answer_limits)
}

/// The state of one thread: its own connection pool to the providers.
struct Worker {
    proxy: Arc<Proxy>,
    calls: TextViaChat<Caller>,
    inbox: Arc<Inbox>,
}

impl Worker {
    /// The worker of the current thread.
    fn new(proxy: Arc<Proxy>) -> Worker {
        Worker {
            calls: new_calls(&proxy),
            proxy,
            inbox: Inbox::of_this_thread(),
        }
    }

    fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    fn limits(&self) -> &ConnectionLimits {
        &self.proxy.limits
    }

    fn emptied(&self) -> watch::Receiver<()> {
        self.proxy.state.emptied.subscribe()
    }

    fn draining(&self) -> watch::Receiver<bool> {
        self.proxy.state.draining.subscribe()
    }

    fn is_draining(&self) -> bool {
        self.proxy.is_draining()
    }

    /// Serves the request whose head a session has read. Returns the session if its connection can be reused.
    async fn serve(
        &self,
        session: ServerSession,
        cork: Option<CorkHandle>,
        origin: &Origin,
    ) -> Option<ServerSession> {
        let proxy = &*self.proxy;
        let _open = OpenExchange::enter(&proxy.state);
        let now = proxy.clock.moment();
        let id = proxy.entropy.operation_id_at(now.unix_micros);
        let (request, known) = head::request(id, session.req_header(), origin);
        let raw = session.as_http1().map(|h1| h1.get_headers_raw_bytes());
        let checked = head::check(&request, raw.as_deref(), &proxy.limits).and(known);
        let found = proxy.routes.find(&request.method, &request.path);
        let answer = match (checked, found) {
            (Err(error), _) => Direct::Error(None, error),
            (Ok(()), Found::Gate(gate)) => Direct::Drive(gate),
            (Ok(()), Found::OtherMethods { allow, first }) => options(&request, allow, first),
            (Ok(()), Found::Nothing) => Direct::Error(None, routes::not_found()),
        };
        let mut client = Client::new(session, cork, proxy.limits, &request);
        let mut exchange = Exchange::beginning(request, now);
        if origin.old_tls {
            exchange.put(OldTls);
        }
        match answer {
            Direct::Drive(gate) => {
                cors::mark(&mut exchange, gate.cors);
                client.tells(gate.signs.clone());
                if let Some(pages) = &gate.pages {
                    exchange.put(pages.clone());
                }
                self.drive(gate, exchange, &mut client).await;
            }
            Direct::Error(gate, error) => {
                if let Some(gate) = gate {
                    cors::mark(&mut exchange, gate.cors);
                }
                let pages = match gate {
                    Some(gate) => gate.pages.as_ref(),
                    // A browser at an unknown address receives a page.
                    None => Some(&proxy.pages).filter(|_| reads_pages(&exchange.request)),
                };
                if let Some(pages) = pages {
                    exchange.put(pages.clone());
                }
                Box::pin(self.answer(gate, exchange, &mut client, Outcome::refuse(error))).await;
            }
            Direct::Preflight(gate, reply) => {
                let outcome = Outcome::reply(reply);
                Box::pin(self.answer(Some(gate), exchange, &mut client, outcome)).await;
            }
        }
        client.into_finished()
    }

    /// Answers a head that could not be parsed.
    async fn refuse_head(
        &self,
        session: ServerSession,
        cork: CorkHandle,
        origin: &Origin,
        fault: HeadFault,
    ) {
        let proxy = &*self.proxy;
        let _open = OpenExchange::enter(&proxy.state);
        let now = proxy.clock.moment();
        let id = proxy.entropy.operation_id_at(now.unix_micros);
        let error = match fault {
            HeadFault::Malformed => ApiError::new(
                ErrorCode::InvalidRequest,
                "The request's head is not HTTP. Check the request line, the fields and the lengths.",
            ),
            HeadFault::TooLarge => ApiError::new(
                ErrorCode::HeadTooLarge,
                "The request's head is too large. Send fewer or shorter fields.",
            ),
            HeadFault::Slow => ApiError::new(
                ErrorCode::RequestTimeout,
                "The request's head did not arrive in time. Send it again.",
            ),
        };
        let request = head::unparsed(id, origin);
        let mut client = Client::new(session, Some(cork), proxy.limits, &request);
        let exchange = Exchange::beginning(request, now);
        let outcome = Outcome::refuse(error.closing());
        self.answer(None, exchange, &mut client, outcome).await;
    }

    async fn drive(&self, gate: &Gate, exchange: Exchange, client: &mut Client) {
        let proxy = &*self.proxy;
        let id = exchange.request.id;
        let observer = RouteObserver {
            proxy,
            route: Some(gate.index),
        };
        let panicked = {
            let mut run = Run::new(exchange, &gate.route.chain, &observer);
            let limits = &proxy.answer_limits;
            let exchange = drive(
                &gate.route,
                &mut run,
                client,
                &self.calls,
                &proxy.clock,
                limits,
            );
            caught(pin!(exchange)).await.is_err()
        };
        if panicked {
            tracing::error!(request_id = %id, "a panic ended this request; see the message before");
            if !client.has_begun() {
                let error = ApiError::new(
                    ErrorCode::InternalError,
                    "The gateway failed on this request. Tell the operator the request id.",
                );
                let error = error.closing();
                // The exchange is complete and counted; an error here affects the client alone.
                let _ = tollgate_chain::send_bare(client, gate.route.errors, &error).await;
            }
        }
    }

    /// Sends an answer that no filter has seen.
    async fn answer(
        &self,
        gate: Option<&Gate>,
        exchange: Exchange,
        client: &mut Client,
        outcome: Outcome,
    ) {
        let route = gate.map_or(&self.proxy.nowhere, |gate| &gate.route);
        let observer = RouteObserver {
            proxy: &self.proxy,
            route: gate.map(|gate| gate.index),
        };
        let mut run = Run::new(exchange, &self.proxy.nowhere.chain, &observer);
        refuse(route, &mut run, client, &self.proxy.clock, outcome).await;
    }
}

/// Whether the sender of a request prefers HTML to JSON, as browsers declare.
fn reads_pages(request: &Request) -> bool {
    let accept = request.headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.starts_with("text/html"))
}

/// The result of routing a request.
enum Direct<'p> {
    Drive(&'p Gate),
    Error(Option<&'p Gate>, ApiError),
    Preflight(&'p Gate, Reply),
}

fn options<'p>(request: &Request, allow: HeaderValue, first: &'p Gate) -> Direct<'p> {
    let preflight = cors::is_preflight(&request.method, &request.headers);
    if request.method == Method::OPTIONS {
        let cors = if preflight {
            first.cors
        } else {
            crate::config::Cors::None
        };
        let (status, headers) = cors::preflight(cors, allow, &request.headers);
        let mut reply = Reply::of(status, "text/plain", Bytes::new());
        reply.headers = headers;
        debug_assert_eq!(status, StatusCode::NO_CONTENT);
        return Direct::Preflight(first, reply);
    }
    Direct::Error(Some(first), routes::refuse_method(&request.method, allow))
}

/// Reports the end of an exchange on a route to telemetry.
struct RouteObserver<'p> {
    proxy: &'p Proxy,
    /// Its index in the settings.
    route: Option<usize>,
}

impl Observer for RouteObserver<'_> {
    fn ended(&self, exchange: &Exchange, ending: Ending) {
        self.proxy.telemetry.record(exchange, self.route, ending);
    }

    fn redact(&self, exchange: &Exchange, said: String) -> String {
        let provider = exchange.record.provider.as_deref();
        self.proxy.providers.redact(provider, said)
    }

    fn filter_failed(&self, filter: &'static str) {
        self.proxy.telemetry.filter_failed(filter);
    }
}

/// The payload of a panic is printed by the panic hook; only the fact matters here.
struct Panicked;

/// Runs a future and turns a panic in it into an error. It must not be polled again then; its guards run when it is dropped.
async fn caught<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output, Panicked> {
    poll_fn(
        move |cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(_) => Poll::Ready(Err(Panicked)),
        },
    )
    .await
}
