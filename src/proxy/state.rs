//! The state shared by all workers: routes, providers, limits, and the lifecycle from the start through the drain to the stop.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, SetOnce, watch};
use tollgate_chain::{Chain, Limits, Route};
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{ErrorPage, ErrorShape};

use super::acme::AcmeChallenges;
use super::generation::{CurrentGeneration, Generation};
use super::handed_over::Target;
use super::health::HealthChecks;
use crate::config::ConnectionLimits;
use crate::telemetry::Telemetry;

/// State shared by all workers.
pub(crate) struct Proxy {
    pub(super) generation: ArcSwap<Generation>,
    /// The generation of requests made by the pages. Stored here: a generation owns the pages, so the pages must not own a generation.
    pub(super) in_process: OnceLock<CurrentGeneration>,
    /// Challenges of certificate authorities, answered before the routes.
    pub(super) challenges: Arc<AcmeChallenges>,
    /// Set when the gateway is built.
    pub(super) health: SetOnce<HealthChecks>,
    /// The version of the current generation.
    pub(super) version: AtomicU64,
    /// Renders error pages for addresses without a route.
    pub(crate) pages: ErrorPage,
    pub(crate) telemetry: Telemetry,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    pub(crate) limits: ConnectionLimits,
    pub(crate) answer_limits: Limits,
    pub(crate) workers: NonZeroUsize,
    /// Answers requests without a route.
    pub(super) unrouted: Route,
    pub(super) state: State,
}

/// The lifecycle of the gateway between start and end.
pub(super) struct State {
    /// Whether connections end after their next request, and `/ready` is 503. Read by each request.
    is_leaving: AtomicBool,
    /// Whether connections without a request are closed.
    pub(super) draining: watch::Sender<bool>,
    /// Whether connections are accepted by another process, or by none.
    pub(super) accepts_none: watch::Sender<bool>,
    pub(super) stopped: watch::Sender<bool>,
    /// The exchanges under way; in the upper half, the exchanges undecided by the filters.
    exchanges: AtomicU64,
    /// Treatment of new requests.
    pub(super) gate: watch::Sender<Gate>,
    /// Whether the gate is anything but open. Read by each request.
    is_gated: AtomicBool,
    /// Whether connections of the predecessor's requests are accepted.
    pub(super) has_predecessor: watch::Sender<bool>,
    /// The peak number of concurrent exchanges since the last report.
    peak: AtomicUsize,
    /// Signals the workers to release unused memory.
    pub(super) memory_release: watch::Sender<()>,
    idle: Notify,
    connections: AtomicUsize,
    closed: Notify,
}

/// Treatment of new requests.
#[derive(Clone, Debug)]
pub(super) enum Gate {
    /// They are served.
    Open,
    /// They wait.
    Closed,
    /// Relayed to the successor.
    Relayed(Arc<Target>),
}

/// One undecided exchange in the count of exchanges.
const UNDECIDED: u64 = 1 << 32;

/// The settings and dependencies of the proxy.
pub(crate) struct ProxyDeps {
    /// The first generation.
    pub(crate) generation: Generation,
    /// Challenges of certificate authorities.
    pub(crate) challenges: Arc<AcmeChallenges>,
    /// Renders error pages for addresses without a route.
    pub(crate) pages: ErrorPage,
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
            is_leaving: AtomicBool::new(false),
            draining: watch::Sender::new(false),
            accepts_none: watch::Sender::new(false),
            stopped: watch::Sender::new(false),
            exchanges: AtomicU64::new(0),
            gate: watch::Sender::new(Gate::Open),
            is_gated: AtomicBool::new(false),
            has_predecessor: watch::Sender::new(true),
            peak: AtomicUsize::new(0),
            memory_release: watch::Sender::new(()),
            idle: Notify::new(),
            connections: AtomicUsize::new(0),
            closed: Notify::new(),
        };
        let ProxyDeps {
            generation,
            challenges,
            pages,
            telemetry,
            clock,
            entropy,
            limits,
            answer_limits,
            workers,
        } = deps;
        Proxy {
            health: SetOnce::new(),
            version: AtomicU64::new(generation.version),
            generation: ArcSwap::from_pointee(generation),
            in_process: OnceLock::new(),
            challenges,
            pages,
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

    /// Sets what the listeners with `health` answer.
    pub(crate) fn set_health(&self, checks: HealthChecks) {
        // The process has one gateway, so the value is set once.
        let _ = self.health.set(checks);
    }

    /// Announces the end of this process to clients and load balancers: requests are still served, and connections are closed after their
    /// next request.
    pub(crate) fn announce_end(&self) {
        self.state.is_leaving.store(true, Ordering::Relaxed);
    }

    /// Accepts the waiting connections, and then none. Open connections are closed after their next request.
    pub(crate) fn stop_accepting(&self) {
        self.announce_end();
        self.state.accepts_none.send_replace(true);
    }

    /// Stops accepting and lets every connection close after its request under way.
    pub(crate) fn drain(&self) {
        self.stop_accepting();
        self.state.draining.send_replace(true);
    }

    /// Whether connections are closed after their next request.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state.is_leaving.load(Ordering::Relaxed)
    }

    /// Whether another process has the listening sockets.
    pub(super) fn has_handed_over(&self) -> bool {
        matches!(*self.state.gate.borrow(), Gate::Relayed(_))
    }

    /// Lets requests that begin from now on wait.
    pub(crate) fn close_gate(&self) {
        self.state.is_gated.store(true, Ordering::SeqCst);
        self.state.gate.send_replace(Gate::Closed);
    }

    /// Whether new requests wait, or another process decides.
    pub(super) fn is_gated(&self) -> bool {
        self.state.is_gated.load(Ordering::SeqCst)
    }

    /// Serves requests again, including waiting requests.
    pub(crate) fn open_gate(&self) {
        self.state.is_gated.store(false, Ordering::SeqCst);
        self.state.gate.send_replace(Gate::Open);
    }

    /// Relays requests, including waiting requests, to the successor, and leaves new connections to the successor. Open connections may
    /// still send one request each.
    pub(crate) fn relay_to(&self, target: Target) {
        self.state
            .gate
            .send_replace(Gate::Relayed(Arc::new(target)));
        self.stop_accepting();
    }

    /// The number of exchanges undecided by the filters.
    pub(crate) fn undecided_exchanges(&self) -> u64 {
        self.state.exchanges.load(Ordering::SeqCst) / UNDECIDED
    }

    /// Accepts no more requests that the predecessor relays.
    pub(crate) fn predecessor_ended(&self) {
        self.state.has_predecessor.send_replace(false);
    }

    /// Waits for the end of the predecessor, whose requests end through this process.
    pub(crate) async fn without_predecessor(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self
            .state
            .has_predecessor
            .subscribe()
            .wait_for(|has| !*has)
            .await;
    }

    /// Waits until no exchange is under way.
    pub(crate) async fn drained(&self) {
        loop {
            let idle = self.state.idle.notified();
            if self.open_exchanges() == 0 {
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
        (self.state.exchanges.load(Ordering::Acquire) % UNDECIDED) as usize
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

    pub(super) async fn stopped(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self
            .state
            .stopped
            .subscribe()
            .wait_for(|stopped| *stopped)
            .await;
    }
}

/// Counts an exchange from the head to the end; a guard, so that no end is missed.
pub(super) struct OpenExchange<'p> {
    state: &'p State,
    is_decided: AtomicBool,
}

impl<'p> OpenExchange<'p> {
    /// Counts an exchange that is served here.
    pub(super) fn enter(state: &'p State) -> OpenExchange<'p> {
        let open = state.exchanges.fetch_add(UNDECIDED + 1, Ordering::SeqCst) % UNDECIDED + 1;
        if open as usize > state.peak.load(Ordering::Relaxed) {
            // Two threads may overwrite each other by one; no decision depends on the peak.
            state.peak.store(open as usize, Ordering::Relaxed);
        }
        OpenExchange {
            state,
            is_decided: AtomicBool::new(false),
        }
    }

    /// [`enter`](Self::enter) with an open gate: `None` if the request has to wait.
    pub(super) fn enter_open(state: &'p State) -> Option<OpenExchange<'p>> {
        let open = OpenExchange::enter(state);
        // After the count of the exchange: either the upgrade that has closed the gate reads the count, or the exchange reads the closed
        // gate.
        (!state.is_gated.load(Ordering::SeqCst)).then_some(open)
    }

    /// The cost limit is decided.
    pub(super) fn decided(&self) {
        // Only the exchange's task calls this.
        if !self.is_decided.load(Ordering::Relaxed) {
            self.is_decided.store(true, Ordering::Relaxed);
            self.state.exchanges.fetch_sub(UNDECIDED, Ordering::SeqCst);
        }
    }
}

impl Drop for OpenExchange<'_> {
    fn drop(&mut self) {
        let counted = match *self.is_decided.get_mut() {
            true => 1,
            false => UNDECIDED + 1,
        };
        let before = self.state.exchanges.fetch_sub(counted, Ordering::SeqCst);
        if before % UNDECIDED == 1 {
            self.state.idle.notify_waiters();
        }
    }
}

/// Counts a connection from the first byte to the close.
pub(super) struct OpenConnection(Arc<Proxy>);

impl OpenConnection {
    pub(super) fn enter(proxy: Arc<Proxy>) -> OpenConnection {
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
