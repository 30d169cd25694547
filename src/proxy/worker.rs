//! The worker of one thread: each request from the head to the end of the exchange, with the thread's connections to the providers.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use pingora_core::protocols::http::ServerSession;
use pingora_http::RequestHeader;
use tokio::sync::watch;
use tollgate_chain::run::Run;
use tollgate_chain::{Observer, drive, refuse};
use tollgate_filter::{ApiError, Ending, ErrorCode, Exchange, OldTls, Outcome, Reply, Request};
use tollgate_memory::{AddressMemory, OverBudget, RequestMemory};
use tollgate_money::OperationId;

use super::cors;
use super::generation::{CurrentGeneration, ThreadGeneration};
use super::handed_over::{self, Target};
use super::head::{self, Origin};
use super::head_reading::HeadFault;
use super::health::Probe;
use super::routes::{self, Found, RouteEntry, Routes};
use super::session::DownstreamSession;
use super::socket::CorkHandle;
use super::source::Source;
use super::state::{Gate, OpenExchange, Proxy};
use super::wake::WakeQueue;
use crate::config::ConnectionLimits;
use crate::upstream::Providers;

/// Attempts of a request of HTTP/1.1 to be counted before its refusal, and the interval: stalled requests are ended meanwhile.
const COUNT_TRIES: u32 = 10;
const COUNT_INTERVAL: Duration = Duration::from_millis(10);

/// The state of one thread, including a connection pool to the providers.
pub(super) struct Worker {
    proxy: Arc<Proxy>,
    generation: CurrentGeneration,
    wake_queue: Arc<WakeQueue>,
}

impl Worker {
    /// The worker of the current thread.
    pub(super) fn new(proxy: Arc<Proxy>) -> Worker {
        Worker {
            generation: CurrentGeneration::new(&proxy),
            proxy,
            wake_queue: WakeQueue::of_this_thread(),
        }
    }

    pub(super) fn wake_queue(&self) -> &Arc<WakeQueue> {
        &self.wake_queue
    }

    pub(super) fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// The open requests of a connection's address.
    pub(super) fn memory_of(&self, source: &Source) -> Arc<AddressMemory> {
        head::memory_of(source.connection(), &self.proxy.answer_limits.memory)
    }

    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.proxy.limits
    }

    pub(super) fn memory_release(&self) -> watch::Receiver<()> {
        self.proxy.state.memory_release.subscribe()
    }

    pub(super) fn draining(&self) -> watch::Receiver<bool> {
        self.proxy.state.draining.subscribe()
    }

    /// The end of the connections for relayed requests: the predecessor may relay while this process drains.
    pub(super) fn stopped(&self) -> watch::Receiver<bool> {
        self.proxy.state.stopped.subscribe()
    }

    pub(super) fn accepts_none(&self) -> watch::Receiver<bool> {
        self.proxy.state.accepts_none.subscribe()
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.proxy.is_leaving()
    }

    /// Counts a request whose head was read in the memory of its client's address.
    pub(super) fn count(
        &self,
        head: &RequestHeader,
        head_bytes: usize,
        origin: &Origin,
    ) -> Result<RequestMemory, OverBudget> {
        if !origin.source.is_trusted() {
            return origin.memory.open(head_bytes);
        }
        let client = origin.source.request(&head.headers);
        let client = client.unwrap_or_else(|_| origin.source.connection());
        head::memory_of(client, &self.proxy.answer_limits.memory).open(head_bytes)
    }

    /// [`count`](Self::count) for HTTP/1.1: waits a moment for memory.
    pub(super) async fn count_soon(
        &self,
        session: &ServerSession,
        origin: &Origin,
    ) -> Result<RequestMemory, OverBudget> {
        let head = session.req_header();
        let raw = session.as_http1().map(|h1| h1.get_headers_raw_bytes());
        let bytes = head::memory_bytes(head, raw.as_ref().map(Bytes::len));
        match self.count(head, bytes, origin) {
            Err(OverBudget) => {}
            counted => return counted,
        }
        Box::pin(async {
            for _ in 0..COUNT_TRIES {
                tokio::time::sleep(COUNT_INTERVAL).await;
                let counted = self.count(head, bytes, origin);
                if counted.is_ok() {
                    return counted;
                }
            }
            Err(OverBudget)
        })
        .await
    }

    /// Serves the request whose head a session has read. Returns the session if the whole answer was sent, and the memory of its request.
    pub(super) async fn serve(
        &self,
        session: Box<ServerSession>,
        cork: Option<CorkHandle>,
        origin: &Origin,
        memory: RequestMemory,
    ) -> Option<(Box<ServerSession>, RequestMemory)> {
        let proxy = &*self.proxy;
        let open = match OpenExchange::enter_open(&proxy.state) {
            Some(open) => open,
            None => {
                let (open, target) = Box::pin(self.wait_at_gate(&session, origin)).await;
                if let Some(target) = target {
                    open.decided();
                    let relayed = handed_over::relay(&target, session, origin, &proxy.limits);
                    return Box::pin(relayed).await.map(|session| (session, memory));
                }
                open
            }
        };
        let now = proxy.clock.reading();
        let id = OperationId::generate(now.now, &proxy.entropy);
        let (request, known) = head::request(id, session.req_header(), origin);
        let raw = session.as_http1().map(|h1| h1.get_headers_raw_bytes());
        let checked = head::check(&request, raw.as_deref(), &proxy.limits).and(known);
        let current = self.generation.get(proxy);
        let routes = &current.generation.routes;
        let answer = dispatch(proxy, routes, &request, origin, checked);
        let mut client = DownstreamSession::new(session, cork, proxy.limits, memory, &request);
        let mut exchange = Exchange::beginning(request, now);
        proxy.telemetry.begin_trace(&mut exchange);
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
                self.drive(&current, entry, exchange, &mut client, &open)
                    .await;
            }
            Dispatch::Error(entry, error) => {
                if let Some(entry) = entry {
                    cors::mark(&mut exchange, entry.cors);
                }
                let pages = match entry {
                    Some(entry) => entry.pages.as_ref(),
                    // A browser at an unknown address receives a page, unless programs expect the envelope there.
                    None => Some(&proxy.pages).filter(|_| gets_page(&exchange.request)),
                };
                if let Some(pages) = pages {
                    exchange.put(pages.clone());
                }
                let outcome = Outcome::refuse(error);
                Box::pin(self.answer(&current, entry, exchange, &mut client, outcome)).await;
            }
            Dispatch::Probe(probe) => {
                let outcome = Outcome::reply(Box::pin(probe.reply(proxy)).await);
                Box::pin(self.answer(&current, None, exchange, &mut client, outcome)).await;
            }
            Dispatch::Challenge(reply) => {
                let outcome = Outcome::reply(reply);
                Box::pin(self.answer(&current, None, exchange, &mut client, outcome)).await;
            }
            Dispatch::Preflight(entry, reply) => {
                let outcome = Outcome::reply(reply);
                Box::pin(self.answer(&current, Some(entry), exchange, &mut client, outcome)).await;
            }
        }
        client.into_finished()
    }

    /// Waits until a request begun at a closed gate can be served, here or, with a returned target, by the successor.
    ///
    /// A probe does not wait, since its sender takes a gateway without a timely answer out. `/live` is about this process, and `/ready`
    /// about the process that decides on requests.
    async fn wait_at_gate(
        &self,
        session: &ServerSession,
        origin: &Origin,
    ) -> (OpenExchange<'_>, Option<Arc<Target>>) {
        let proxy = &*self.proxy;
        let head = session.req_header();
        let probe = Probe::of(&head.method, head.uri.path()).filter(|_| origin.health);
        let mut gate = proxy.state.gate.subscribe();
        let is_passed = |gate: &Gate| probe.is_some() || !matches!(gate, Gate::Closed);
        let gate = gate.wait_for(is_passed).await;
        let target = match gate.as_deref() {
            Ok(Gate::Relayed(target)) if probe != Some(Probe::Live) => Some(target.clone()),
            _ => None,
        };
        let open = OpenExchange::enter(&proxy.state);
        // The successor does not see the original bytes of the head. So a head that two programs could read differently is refused here.
        let id = OperationId::generate(proxy.clock.now(), &proxy.entropy);
        let (request, known) = head::request(id, head, origin);
        let raw = session.as_http1().map(|h1| h1.get_headers_raw_bytes());
        let checked = head::check(&request, raw.as_deref(), &proxy.limits).and(known);
        (open, target.filter(|_| checked.is_ok()))
    }

    /// Answers a request before it is served.
    pub(super) async fn refuse_head(
        &self,
        session: Box<ServerSession>,
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
            HeadFault::NoMemory => ApiError::no_memory(
                "The open requests of this client address take the memory that it may have.",
            ),
        };
        let request = head::unparsed(id, origin);
        // The memory belongs to the connection, which ends.
        let memory = RequestMemory::default();
        let mut client =
            DownstreamSession::new(session, Some(cork), proxy.limits, memory, &request);
        let exchange = Exchange::beginning(request, now);
        let outcome = Outcome::refuse(error.closing());
        let current = self.generation.get(proxy);
        self.answer(&current, None, exchange, &mut client, outcome)
            .await;
    }

    async fn drive(
        &self,
        current: &ThreadGeneration,
        entry: &RouteEntry,
        exchange: Exchange,
        client: &mut DownstreamSession,
        open: &OpenExchange<'_>,
    ) {
        let proxy = &*self.proxy;
        let id = exchange.request.id;
        let observer = RouteObserver {
            proxy,
            providers: &current.generation.providers,
            route: entry.index,
            open: Some(open),
        };
        let panicked = {
            let mut run = Run::new(exchange, &entry.route.chain, &observer);
            let limits = &proxy.answer_limits;
            let exchange = drive(
                &entry.route,
                &mut run,
                client,
                &current.calls,
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

    /// Sends an answer from outside the filters.
    async fn answer(
        &self,
        current: &ThreadGeneration,
        entry: Option<&RouteEntry>,
        exchange: Exchange,
        client: &mut DownstreamSession,
        outcome: Outcome,
    ) {
        let route = entry.map_or(&self.proxy.unrouted, |entry| &entry.route);
        let observer = RouteObserver {
            proxy: &self.proxy,
            providers: &current.generation.providers,
            route: entry.and_then(|entry| entry.index),
            open: None,
        };
        let mut run = Run::new(exchange, &self.proxy.unrouted.chain, &observer);
        refuse(route, &mut run, client, &self.proxy.clock, outcome).await;
    }
}

/// First segments of the paths of programs.
const API: [&str; 2] = ["v1", "ucp"];

/// Whether an unknown address is answered with a page: the sender prefers HTML to JSON, as browsers declare, and it is not below the API.
fn gets_page(request: &Request) -> bool {
    let first = request.path.split('/').nth(1).unwrap_or_default();
    if API.contains(&first) {
        return false;
    }
    let accept = request.headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.starts_with("text/html"))
}

/// Routing decision about a request.
enum Dispatch<'p> {
    /// Through the chain of this route.
    Drive(&'p RouteEntry),
    Error(Option<&'p RouteEntry>, ApiError),
    Preflight(&'p RouteEntry, Reply),
    /// The request of a certificate authority.
    Challenge(Reply),
    /// A load balancer's own request.
    Probe(Probe),
}

/// Routes a request. `checked`: the result of the validation of the head.
fn dispatch<'p>(
    proxy: &Proxy,
    routes: &'p Routes,
    request: &Request,
    origin: &Origin,
    checked: Result<(), ApiError>,
) -> Dispatch<'p> {
    let found = routes.find(&request.method, &request.path);
    let before_routes = match proxy.challenges.reply(request) {
        Some(reply) => Some(Dispatch::Challenge(reply)),
        None if origin.health => Probe::of(&request.method, &request.path).map(Dispatch::Probe),
        None => None,
    };
    match (checked, before_routes, found) {
        (Err(error), ..) => Dispatch::Error(None, error),
        (Ok(()), Some(dispatch), _) => dispatch,
        (Ok(()), None, Found::Route(entry)) => Dispatch::Drive(entry),
        (Ok(()), None, Found::OtherMethods { allow, first }) => options(request, allow, first),
        (Ok(()), None, Found::None) => Dispatch::Error(None, routes::not_found()),
    }
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
pub(super) struct RouteObserver<'p> {
    pub(super) proxy: &'p Proxy,
    pub(super) providers: &'p Providers,
    /// The index of the route in the settings.
    pub(super) route: Option<usize>,
    /// The count of the exchange.
    pub(super) open: Option<&'p OpenExchange<'p>>,
}

impl Observer for RouteObserver<'_> {
    fn ended(&self, exchange: &Exchange, ending: Ending) {
        self.proxy.telemetry.record(exchange, self.route, ending);
    }

    fn forwarded(&self) {
        if let Some(open) = self.open {
            open.decided();
        }
    }

    fn redact(&self, exchange: &Exchange, message: String) -> String {
        let provider = exchange.record.provider.as_deref();
        self.providers.redact(provider, message)
    }

    fn filter_failed(&self, filter: &'static str) {
        self.proxy.telemetry.filter_failed(filter);
    }
}

/// The payload of a panic is printed by the panic hook; only the fact matters here.
pub(super) struct Panicked;

/// Runs a future and converts a panic to an error. The future must not be polled again afterwards; guards run on drop.
pub(super) async fn catch_panic<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output, Panicked> {
    poll_fn(
        move |cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(_) => Poll::Ready(Err(Panicked)),
        },
    )
    .await
}
