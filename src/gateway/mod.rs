//! The gateway as a whole: built from settings and modules (`start`), run, drained and stopped (`stop`).

mod address;
mod certificates;
mod classes;
mod conditions;
mod error;
mod file_watch;
mod health;
mod maintenance;
mod prices;
mod recovery;
mod reload;
mod routes;
pub(crate) mod service_manager;
mod settings;
mod start;
mod stop;
mod upgrade;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use futures_util::FutureExt as _;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::Filter;
use tollgate_ledger::Ledger;
use tollgate_module::{
    BuildError, Declarations, FilterType, LastWork, Module, RouteChange, RouteContext,
};
use tollgate_purchase::PurchaseTasks;
use tollgate_store::{Failure, Store};

use crate::admin::{Admin, Changes};
use crate::config::Settings;
use crate::proxy::Proxy;
use crate::registry::{self, FilterModule};
use crate::telemetry::Telemetry;
use crate::upstream::Resolver;
use upgrade::Upgrader;

pub use address::Address;
pub use error::StartError;
pub(crate) use settings::services;
pub use upgrade::PredecessorError;
pub(crate) use upgrade::{Predecessor, is_started_by_predecessor};

/// Builds a gateway, with modules and filters of other programs besides the built-in ones.
pub struct GatewayBuilder {
    modules: Vec<Box<dyn Module>>,
    routes: Vec<RouteChange>,
    clock: Clock,
    entropy: Entropy,
    resolver: Resolver,
}

impl GatewayBuilder {
    /// A gateway with the built-in modules.
    pub(crate) fn new() -> GatewayBuilder {
        GatewayBuilder {
            modules: registry::modules(),
            routes: Vec::new(),
            clock: Clock::system(),
            entropy: Entropy::system(),
            resolver: Resolver::system(),
        }
    }

    /// Replaces the machine's clock, for programs that control time.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> GatewayBuilder {
        self.clock = clock;
        self
    }

    /// Replaces the system's resolver of the names of model providers and MCP servers.
    #[must_use]
    pub fn resolver(mut self, resolver: Resolver) -> GatewayBuilder {
        self.resolver = resolver;
        self
    }

    /// Adds a module. Modules are built in the order of these calls. A filter of a later module replaces an earlier filter with an equal
    /// name.
    #[must_use]
    pub fn module(mut self, module: impl Module + 'static) -> GatewayBuilder {
        self.modules.push(Box::new(module));
        self
    }

    /// Adds a filter that chains can name, given by its name or with order constraints: a module with a single filter. A built-in filter
    /// with an equal name is replaced.
    #[must_use]
    pub fn filter(
        self,
        filter: impl Into<FilterType>,
        build: impl Fn(&RouteContext<'_>) -> Result<Arc<dyn Filter>, BuildError> + Send + Sync + 'static,
    ) -> GatewayBuilder {
        self.module(FilterModule::new(filter.into(), build))
    }

    /// Adds a route to the route table, or changes a route of the table. The settings file takes precedence: a `[[route]]` with an equal
    /// path stays unchanged, and a `[[route_change]]` is applied after this change.
    #[must_use]
    pub fn route(mut self, change: RouteChange) -> GatewayBuilder {
        self.routes.push(change);
        self
    }

    /// The declarations of the modules and the program, for [`crate::config::load`].
    pub fn declarations(&self) -> Declarations {
        Declarations {
            routes: self.routes.clone(),
            ..registry::declarations(&self.modules)
        }
    }

    /// Opens the store, recovers it, binds every socket and starts to serve.
    ///
    /// # Errors
    ///
    /// Any error that keeps the gateway from serving, with its remedy. After an error no part of the gateway runs.
    pub fn start(self, settings: Settings) -> Result<Gateway, StartError> {
        start::start(self, settings, None)
    }

    /// Starts the gateway in place of the predecessor, the process that started this process.
    pub(crate) fn start_after(
        self,
        predecessor: Option<Predecessor>,
        settings: Settings,
    ) -> Result<Gateway, StartError> {
        start::start(self, settings, predecessor)
    }
}

/// A gateway that serves.
pub struct Gateway {
    settings: Arc<Settings>,
    proxy: Arc<Proxy>,
    store: Arc<dyn Store>,
    ledger: Ledger,
    telemetry: Telemetry,
    admin: Admin,
    runtime: Runtime,
    purchase_tasks: PurchaseTasks,
    /// Work that modules end before the store closes.
    last_work: Vec<LastWork>,
    /// Makes operators' changes.
    changes: Arc<dyn Changes>,
    upgrader: Arc<Upgrader>,
    /// The new process that serves.
    handed_over: watch::Receiver<Option<u32>>,
    workers: Vec<JoinHandle<()>>,
    addresses: Vec<Address>,
    failure: watch::Receiver<Option<Failure>>,
}

/// Why a gateway ends.
enum End {
    /// On request.
    Stop,
    /// A new process serves.
    HandedOver,
    /// The store has failed.
    Failed(Failure),
}

/// The store and the ledger of a serving gateway: a change here is visible to the next request.
#[derive(Clone)]
pub struct Books {
    /// Accounts, keys, usage: the durable state.
    pub store: Arc<dyn Store>,
    /// Balances and holds.
    pub ledger: Ledger,
}

impl Gateway {
    /// A builder, to which custom filters can be added.
    pub fn builder() -> GatewayBuilder {
        GatewayBuilder::new()
    }

    /// The addresses of the listeners, in the order of the settings.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The admin address, with the port as assigned by the system.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// The store and the ledger, for a program that creates accounts, keys and credits. They stay readable after the gateway has stopped.
    pub fn books(&self) -> Books {
        Books {
            store: self.store.clone(),
            ledger: self.ledger.clone(),
        }
    }

    /// The handler of operators' changes, and the runtime on which a caller waits for a change.
    pub(crate) fn changes(&self) -> (Handle, Arc<dyn Changes>) {
        (self.runtime.handle().clone(), self.changes.clone())
    }

    /// The store.
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The accounts in memory.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Runs a future to completion on the gateway's runtime; blocks.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Serves until `stop` completes or the store fails, then drains and stops.
    ///
    /// # Errors
    ///
    /// When the store has failed: an answer that was not durable was not delivered, and a restart recovers.
    pub fn run(self, stop: impl Future<Output = ()>) -> Result<(), Failure> {
        self.run_until(stop, std::future::pending())
    }

    /// As [`Gateway::run`], and drains without the delay of the settings when `at_once` completes.
    pub(crate) fn run_until(
        mut self,
        stop: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        let mut stop = pin!(stop.fuse());
        let end = self.runtime.block_on(async {
            let failed = self.failure.wait_for(Option::is_some);
            let handed_over = self.handed_over.wait_for(Option::is_some);
            tokio::select! {
                biased;
                () = &mut stop => End::Stop,
                _ = handed_over => End::HandedOver,
                failed = failed => match failed.ok().and_then(|failed| failed.clone()) {
                    Some(failure) => End::Failed(failure),
                    None => End::Stop,
                },
            }
        });
        self.shut_down(end, stop, at_once)
    }
}
