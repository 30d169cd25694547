//! The HTTP server: sockets, Pingora's sessions, routing, and the exchanges on them.
//!
//! Pingora's HTTP sessions and TLS carry the bytes; its `ProxyHttp` phases are not used. They answer a malformed head with a bare 400, lose
//! the usage of an answer whose client has disconnected, and cost more than the call made here ([`crate::upstream`]). The sockets are
//! accepted here as well, so that every resource a client can hold open has a limit in one place.

mod connection;
mod cors;
mod forwarded;
mod head;
mod in_process;
mod lifecycle;
mod listener;
mod proxy_protocol;
mod routes;
mod session;
mod source;
mod tls;
mod write_coalescing;

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
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{
    ApiError, Ending, ErrorCode, ErrorPage, ErrorShape, Exchange, OldTls, Outcome, Reply, Request,
};
use tollgate_money::OperationId;

use self::head::Origin;
pub(crate) use self::in_process::InProcessClient;
pub(crate) use self::lifecycle::LifecycleHeaders;
pub(crate) use self::listener::Bound;
pub(crate) use self::listener::ListenError;
use self::routes::Found;
pub(crate) use self::routes::{RouteEntry, Routes};
use self::session::DownstreamSession;
pub(crate) use self::tls::server_config;
use crate::config::{ConnectionLimits, RelayUpstream};
use crate::liveness::Liveness;
use crate::socket::CorkHandle;
use crate::telemetry::Telemetry;
use crate::upstream::{Caller, Providers, Relays, TextViaChat};
use crate::wake::WakeQueue;

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
    /// Answers requests without a route.
    unrouted: Route,
    state: State,
}

/// The lifecycle of the gateway between start and end.
struct State {
    draining: watch::Sender<bool>,
    stopped: watch::Sender<bool>,
    exchanges: AtomicUsize,
    /// The peak number of concurrent exchanges since the last report.
    peak: AtomicUsize,
    /// Signals the workers to release unused memory.
    memory_release: watch::Sender<()>,
    idle: Notify,
    connections: AtomicUsize,
    closed: Notify,
}

/// The settings and dependencies of the proxy.
pub(crate) struct ProxyDeps {
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
    pub(crate) fn new(deps: ProxyDeps) -> Proxy {
        let unrouted = Route {
            name: "none".into(),
            chain: Chain::new(Vec::new()),
            body_bytes_max: 0,
            errors: ErrorShape::Envelope,
        };
        let state = State {
            draining: watch::Sender::new(false),
            stopped: watch::Sender::new(false),
            exchanges: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            memory_release: watch::Sender::new(()),
            idle: Notify::new(),
            connections: AtomicUsize::new(0),
            closed: Notify::new(),
        };
        let ProxyDeps {
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
        } = deps;
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
            unrouted,
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

    /// Ends the workers at once, exchanges under way included.
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
    pub(crate) fn release_memory(&self) {
        self.state.memory_release.send_replace(());
    }

    /// The peak number of concurrent exchanges since the last call.
    pub(crate) fn take_peak_concurrency(&self) -> usize {
        self.state
            .peak
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

/// Counts an exchange from its head to its end; a guard, so that no end is missed.
struct OpenExchange<'p>(&'p State);

impl<'p> OpenExchange<'p> {
    fn enter(state: &'p State) -> OpenExchange<'p> {
        let open = state.exchanges.fetch_add(1, Ordering::AcqRel) + 1;
        if open > state.peak.load(Ordering::Relaxed) {
            // Two threads may overwrite each other by one; no decision depends on it.
            state.peak.store(open, Ordering::Relaxed);
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

/// Creates the upstream of one thread.
fn new_upstream(proxy: &Proxy) -> TextViaChat<Caller> {
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
    wake_queue: Arc<WakeQueue>,
}

impl Worker {
    /// The worker of the current thread.
    fn new(proxy: Arc<Proxy>) -> Worker {
        Worker {
            calls: new_upstream(&proxy),
            proxy,
            wake_queue: WakeQueue::of_this_thread(),
        }
    }

    fn wake_queue(&self) -> &Arc<WakeQueue> {
        &self.wake_queue
    }

    fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    fn limits(&self) -> &ConnectionLimits {
        &self.proxy.limits
    }

    fn memory_release(&self) -> watch::Receiver<()> {
        self.proxy.state.memory_release.subscribe()
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
        let now = proxy.clock.reading();
        let id = OperationId::generate(now.now, &proxy.entropy);
        let (request, known) = head::request(id, session.req_header(), origin);
        let raw = session.as_http1().map(|h1| h1.get_headers_raw_bytes());
        let checked = head::check(&request, raw.as_deref(), &proxy.limits).and(known);
        let found = proxy.routes.find(&request.method, &request.path);
        let answer = match (checked, found) {
            (Err(error), _) => Dispatch::Error(None, error),
            (Ok(()), Found::Route(entry)) => Dispatch::Drive(entry),
            (Ok(()), Found::OtherMethods { allow, first }) => options(&request, allow, first),
            (Ok(()), Found::None) => Dispatch::Error(None, routes::not_found()),
        };
        let mut client = DownstreamSession::new(session, cork, proxy.limits, &request);
        let mut exchange = Exchange::beginning(request, now);
        if origin.old_tls {
            exchange.put(OldTls);
        }
        match answer {
            Dispatch::Drive(entry) => {
                cors::mark(&mut exchange, entry.cors);
                client.set_lifecycle(entry.lifecycle.clone());
                if let Some(pages) = &entry.pages {
                    exchange.put(pages.clone());
                }
                self.drive(entry, exchange, &mut client).await;
            }
            Dispatch::Error(entry, error) => {
                if let Some(entry) = entry {
                    cors::mark(&mut exchange, entry.cors);
                }
                let pages = match entry {
                    Some(entry) => entry.pages.as_ref(),
                    // A browser at an unknown address receives a page.
                    None => Some(&proxy.pages).filter(|_| prefers_html(&exchange.request)),
                };
                if let Some(pages) = pages {
                    exchange.put(pages.clone());
                }
                Box::pin(self.answer(entry, exchange, &mut client, Outcome::refuse(error))).await;
            }
            Dispatch::Preflight(entry, reply) => {
                let outcome = Outcome::reply(reply);
                Box::pin(self.answer(Some(entry), exchange, &mut client, outcome)).await;
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
        let now = proxy.clock.reading();
        let id = OperationId::generate(now.now, &proxy.entropy);
        let error = match fault {
            HeadFault::Malformed => ApiError::new(
                ErrorCode::InvalidRequest,
                "The request head is malformed HTTP. Check the request line, the header fields and the lengths.",
            ),
            HeadFault::TooLarge => ApiError::new(
                ErrorCode::HeadTooLarge,
                "The request head is too large. Send fewer or shorter header fields.",
            ),
            HeadFault::Slow => ApiError::new(
                ErrorCode::RequestTimeout,
                "The request head did not arrive in time. Retry the request.",
            ),
        };
        let request = head::unparsed(id, origin);
        let mut client = DownstreamSession::new(session, Some(cork), proxy.limits, &request);
        let exchange = Exchange::beginning(request, now);
        let outcome = Outcome::refuse(error.closing());
        self.answer(None, exchange, &mut client, outcome).await;
    }

    async fn drive(&self, entry: &RouteEntry, exchange: Exchange, client: &mut DownstreamSession) {
        let proxy = &*self.proxy;
        let id = exchange.request.id;
        let observer = RouteObserver {
            proxy,
            route: Some(entry.index),
        };
        let panicked = {
            let mut run = Run::new(exchange, &entry.route.chain, &observer);
            let limits = &proxy.answer_limits;
            let exchange = drive(
                &entry.route,
                &mut run,
                client,
                &self.calls,
                &proxy.clock,
                limits,
            );
            catch_panic(pin!(exchange)).await.is_err()
        };
        if panicked {
            tracing::error!(request_id = %id, "request aborted: panic, see the line before");
            if !client.has_started() {
                let error = ApiError::new(
                    ErrorCode::InternalError,
                    "The gateway failed on this request. Report the request id to the operator.",
                );
                let error = error.closing();
                // The exchange is complete and counted; an error here affects the client alone.
                let _ = tollgate_chain::send_bare(client, entry.route.errors, &error).await;
            }
        }
    }

    /// Sends an answer that no filter has seen.
    async fn answer(
        &self,
        entry: Option<&RouteEntry>,
        exchange: Exchange,
        client: &mut DownstreamSession,
        outcome: Outcome,
    ) {
        let route = entry.map_or(&self.proxy.unrouted, |entry| &entry.route);
        let observer = RouteObserver {
            proxy: &self.proxy,
            route: entry.map(|entry| entry.index),
        };
        let mut run = Run::new(exchange, &self.proxy.unrouted.chain, &observer);
        refuse(route, &mut run, client, &self.proxy.clock, outcome).await;
    }
}

/// Whether the sender of a request prefers HTML to JSON, as browsers declare.
fn prefers_html(request: &Request) -> bool {
    let accept = request.headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.starts_with("text/html"))
}

/// What routing decides about a request.
enum Dispatch<'p> {
    /// Through the chain of this route.
    Drive(&'p RouteEntry),
    Error(Option<&'p RouteEntry>, ApiError),
    Preflight(&'p RouteEntry, Reply),
}

fn options<'p>(request: &Request, allow: HeaderValue, first: &'p RouteEntry) -> Dispatch<'p> {
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
        return Dispatch::Preflight(first, reply);
    }
    Dispatch::Error(Some(first), routes::refuse_method(&request.method, allow))
}

/// Reports the end of an exchange on a route to telemetry.
struct RouteObserver<'p> {
    proxy: &'p Proxy,
    /// The index of the route in the settings.
    route: Option<usize>,
}

impl Observer for RouteObserver<'_> {
    fn ended(&self, exchange: &Exchange, ending: Ending) {
        self.proxy.telemetry.record(exchange, self.route, ending);
    }

    fn redact(&self, exchange: &Exchange, message: String) -> String {
        let provider = exchange.record.provider.as_deref();
        self.proxy.providers.redact(provider, message)
    }

    fn filter_failed(&self, filter: &'static str) {
        self.proxy.telemetry.filter_failed(filter);
    }
}

/// The payload of a panic is printed by the panic hook; only the fact matters here.
struct Panicked;

/// Runs a future and converts a panic in it to an error. It must not be polled again then; its guards run when it is dropped.
async fn catch_panic<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output, Panicked> {
    poll_fn(
        move |cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(_) => Poll::Ready(Err(Panicked)),
        },
    )
    .await
}
