//! The start of a gateway: sockets, store and ledger, modules, routes, proxy, workers, background tasks, and the admin interface last.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tollgate_cache::Cache;
use tollgate_chain::Limits;
use tollgate_clock::{Clock, Entropy};
use tollgate_identity::{Credentials, RefusedRequests};
use tollgate_ledger::Ledger;
use tollgate_memory::{MemoryBudget, Owner};
use tollgate_meter::MeterSettings;
use tollgate_module::{Built, GATEWAY, Sweep};
use tollgate_pages::{PageRenderer, error_page};
use tollgate_portal::InProcessApi;
use tollgate_purchase::PurchaseTasks;
use tollgate_store::{Failure, Store, sqlite};

use super::certificates::ListenerCertificates;
use super::classes::warn_about_classes;
use super::conditions::Conditions;
use super::prices::{ledger_error, record_new_prices};
use super::reload::{Reloader, ReloaderDeps};
use super::upgrade::{AdoptedAdmin, Followed, Predecessor, Record, UpgradeState, Upgrader};
use super::{
    Address, Gateway, GatewayBuilder, StartError, file_watch, health, maintenance, recovery,
    routes, service_manager, settings,
};
use crate::acme::{Acme, AcmeDeps};
use crate::admin::{self, Access, Admin, AdminService, Changes};
use crate::config::{Durability, ListenAddress, Settings};
use crate::database::{self, Opener};
use crate::proxy::{
    AcmeChallenges, Bound, Generation, InProcessClient, ListenSocket, Liveness, Proxy, ProxyDeps,
    SocketFile, report_accept_queue, spawn_workers,
};
use crate::telemetry::{self, Telemetry, sources};
use crate::upstream::{Providers, Resolver};

/// Maximum size of a provider's whole answer in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

pub(super) fn start(
    builder: GatewayBuilder,
    settings: Settings,
    mut predecessor: Option<Predecessor>,
) -> Result<Gateway, StartError> {
    let declarations = builder.declarations();
    let GatewayBuilder {
        modules,
        clock,
        routes: _,
        entropy,
        resolver,
    } = builder;
    let settings = Arc::new(settings);
    let telemetry = Telemetry::new(&settings, clock.clone()).map_err(StartError::Telemetry)?;
    // Sockets first: a port in use is the most common mistake, and is found before the store is touched.
    let accept_queue = settings.server.limits.accept_queue;
    report_accept_queue(accept_queue);
    let challenges = Arc::new(AcmeChallenges::default());
    let bound = settings
        .listeners
        .iter()
        .map(|listener| {
            let sockets = predecessor
                .as_mut()
                .map(|predecessor| &mut predecessor.sockets);
            let adopted = sockets.and_then(|sockets| sockets.take_listener(&listener.address));
            Bound::open(listener, accept_queue, &challenges, adopted)
        })
        .collect::<Result<Vec<_>, _>>()?;
    if predecessor.is_none() {
        let control = database::control_socket(&settings.store);
        admin::control::Socket::check(&control).map_err(admin::AdminError::from)?;
    }
    let mut handed = None;
    let mut relayed = Vec::new();
    if let Some(predecessor) = &mut predecessor {
        let opener = Opener {
            name: "successor",
            clock: &clock,
            entropy: &entropy,
        };
        predecessor.prepare(&settings, &opener)?;
        handed = Some(predecessor.take_store()?);
        let sockets = predecessor.relays().map_err(StartError::Threads)?;
        let sockets = sockets.into_iter();
        relayed = sockets
            .map(|(socket, token)| Bound::relayed(socket, accept_queue, token))
            .collect::<Result<_, _>>()
            .map_err(StartError::Threads)?;
    }
    let storage = Storage::open(&settings, &clock, &entropy, handed)?;
    let certificates = ListenerCertificates::new(&bound, &settings);
    let install = certificates.clone();
    let acme = Acme::new(
        AcmeDeps {
            store: storage.store.clone(),
            clock: clock.clone(),
            entropy: entropy.clone(),
            challenges: challenges.clone(),
            install: Box::new(move |id, certificate| install.install(id, certificate)),
        },
        settings.acme_orders().cloned().collect(),
    );
    for warning in settings.warnings() {
        tracing::warn!(key = %warning.key, "risky setting: {}", warning.message);
    }
    let runtime = background_runtime()?;
    let purchase_tasks = PurchaseTasks::new(runtime.handle().clone());
    let api = Arc::new(InProcessClient::default());

    let mut built = Built::default();
    built.services = settings::services(&settings);
    built.services.provide(clock.clone());
    built.services.provide(entropy.clone());
    built.services.provide(storage.store.clone());
    built.services.provide(storage.ledger.clone());
    built.services.provide(storage.credentials.clone());
    built.services.provide(storage.refused.clone());
    built.services.provide(purchase_tasks.clone());
    built.services.provide(api.clone() as Arc<dyn InProcessApi>);
    for module in &modules {
        built.module(&**module).map_err(StartError::Module)?;
    }
    let renderer: Arc<PageRenderer> = built.services.get(GATEWAY).map_err(StartError::Module)?;

    let pages = error_page(renderer);
    let mut running = Running::start(
        &settings,
        &mut built,
        RunningDeps {
            bound,
            relayed,
            challenges,
            pages: pages.clone(),
            telemetry: &telemetry,
            clock: &clock,
            entropy: &entropy,
            resolver,
        },
    )?;
    api.connect(&running.proxy, runtime.handle().clone());
    let conditions = Arc::new(Conditions::new(
        certificates.all(),
        acme.status(),
        storage.store.clone(),
        clock.clone(),
    ));
    conditions.log_changes();
    let logged = conditions.clone();
    built.sweeps.push(Box::new(move || logged.log_changes()));
    let mut tasks = spawn_tasks(&settings, &runtime, &running, &storage, &clock, &mut built);
    add_metrics(
        &settings, &telemetry, &running, &storage, &clock, &mut built,
    );
    telemetry
        .metrics()
        .add_source(sources::certificates(certificates.all()));
    telemetry.metrics().add_source(acme.status().metrics());
    tasks.push(runtime.spawn(acme.clone().run()).abort_handle());
    let upgrade_state = UpgradeState::default();
    let deps = ReloaderDeps {
        upgrade: upgrade_state.clone(),
        modules,
        declarations,
        filters: std::mem::take(&mut built.filters),
        pages,
        proxy: running.proxy.clone(),
        store: storage.store.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        runtime: runtime.handle().clone(),
        certificates,
        acme,
        access: Arc::new(Access::new(&settings.admin, clock.clone())),
    };
    let access = deps.access.clone();
    let reloader = Arc::new(Reloader::new(
        settings.clone(),
        built.services.clone(),
        deps,
    ));
    telemetry.metrics().add_source(reloader.metrics());
    let watch = runtime.spawn(file_watch::watch_certificates(reloader.clone()));
    tasks.push(watch.abort_handle());
    if storage.store.has_allotments() {
        let store = storage.store.clone();
        let recover = recovery::recover_nodes(reloader.clone(), store, clock.clone());
        tasks.push(runtime.spawn(recover).abort_handle());
    }
    let readiness = health::readiness(
        &settings,
        &running.proxy,
        &storage.store,
        conditions.clone(),
    );
    let checks = health::for_listeners(running.liveness.clone(), readiness);
    running.proxy.set_health(checks);
    let (successor, handed_over) = watch::channel(None);
    let followed = Arc::new(Followed::new(
        storage.store.clone(),
        storage.ledger.clone(),
        running.proxy.clone(),
        clock.clone(),
    ));
    let upgrader = Arc::new(Upgrader {
        proxy: running.proxy.clone(),
        store: storage.store.clone(),
        database: database::name(&settings.store),
        node: settings.store.node.clone().unwrap_or_default(),
        ledger: storage.ledger.clone(),
        purchase_tasks: purchase_tasks.clone(),
        runtime: runtime.handle().clone(),
        entropy: entropy.clone(),
        files: settings
            .listeners
            .iter()
            .filter_map(|listener| SocketFile::of(&listener.address))
            .collect(),
        listeners: Mutex::new(std::mem::take(&mut running.sockets)),
        admin: Mutex::default(),
        tasks: Mutex::new(tasks),
        record: record(&storage, &clock),
        successor,
        state: upgrade_state,
        stop: Mutex::default(),
        program: std::env::current_exe(),
        followed: followed.clone(),
    });
    let mut service = AdminService::new(
        &settings,
        storage.store.clone(),
        storage.ledger.clone(),
        clock.clone(),
        entropy.clone(),
    )
    .with_settings(reloader.clone())
    .with_upgrade(upgrader.clone())
    .with_providers(health::providers(&running.proxy));
    if let Some(cache) = built.services.find::<Arc<Cache>>() {
        service = service.with_cache(cache);
    }
    let upkeep = service.upkeep();
    telemetry.metrics().add_source(upkeep.clone().source());
    let read_upkeep = upkeep.follow(storage.store.clone());
    upgrader.add_task(runtime.spawn(read_upkeep).abort_handle());
    let changes: Arc<dyn Changes> = Arc::new(service);
    if settings.server.watch_settings {
        let watch =
            file_watch::watch_settings(reloader.clone(), changes.clone(), conditions.clone());
        upgrader.add_task(runtime.spawn(watch).abort_handle());
    }
    let admin = start_admin(
        &settings,
        &telemetry,
        &running,
        &storage,
        (&clock, entropy),
        (changes.clone(), reloader, conditions, access),
        predecessor
            .as_ref()
            .map(Predecessor::admin_sockets)
            .transpose()?,
    );
    let admin = match admin {
        Ok(mut admin) => {
            upgrader.set_admin(admin.take_sockets());
            admin
        }
        Err(error) => {
            running.abort();
            storage.ledger.return_all();
            storage.store.close();
            return Err(error);
        }
    };
    let earlier = predecessor.map(Predecessor::serving).transpose()?;
    followed
        .serve(earlier.unwrap_or_default())
        .map_err(StartError::Threads)?;
    Ok(Gateway {
        settings,
        upgrader,
        handed_over,
        proxy: running.proxy,
        store: storage.store,
        ledger: storage.ledger,
        telemetry,
        admin,
        runtime,
        purchase_tasks,
        last_work: built.last_work,
        changes,
        workers: running.workers,
        addresses: running.addresses,
        failure: storage.failure,
    })
}

/// The durable state and what is kept of it in memory.
struct Storage {
    store: Arc<dyn Store>,
    ledger: Ledger,
    credentials: Arc<Credentials>,
    refused: Arc<RefusedRequests>,
    failure: watch::Receiver<Option<Failure>>,
}

impl Storage {
    /// Opens the store, recovers the ledger, and records prices that are new.
    fn open(
        settings: &Settings,
        clock: &Clock,
        entropy: &Entropy,
        predecessor: Option<database::Predecessor>,
    ) -> Result<Storage, StartError> {
        let (fail, failure) = watch::channel(None);
        let store = open_store(settings, clock, entropy, fail, predecessor)?;
        let now = clock.now();
        let (ledger, recovered) = Ledger::start(store.clone(), now).map_err(ledger_error)?;
        if recovered.spooled > 0 {
            tracing::warn!(
                units = recovered.spooled,
                late = recovered.late,
                "committed what an earlier run had left in its spool"
            );
        }
        if recovered.orphans > 0 {
            tracing::warn!(
                holds = recovered.orphans,
                "released holds of requests interrupted by an earlier stop"
            );
        }
        record_new_prices(settings, &*store, now)?;
        let credentials = Credentials::open(&store);
        credentials.follow(&store, clock);
        warn_about_classes(&store, settings);
        Ok(Storage {
            store,
            ledger,
            credentials,
            refused: Arc::default(),
            failure,
        })
    }
}

fn open_store(
    settings: &Settings,
    clock: &Clock,
    entropy: &Entropy,
    fail: watch::Sender<Option<Failure>>,
    predecessor: Option<database::Predecessor>,
) -> Result<Arc<dyn Store>, StartError> {
    if !sqlite::has_compile_options() {
        tracing::warn!(
            "SQLite was built without the options of tollgate, so that commits wait longer; copy `.cargo/config.toml` of tollgate into the program's folder and build again"
        );
    }
    if settings.store.durability == Durability::Process {
        tracing::warn!("`store.durability` is `process`: a power failure may lose charges");
    }
    let opener = Opener {
        name: "gateway",
        clock,
        entropy,
    };
    let on_failure = Box::new(move |failure: &Failure| {
        tracing::error!(kind = ?failure.kind, cause = %failure.message, "store failed");
        fail.send_replace(Some(failure.clone()));
    });
    Ok(database::open(
        &settings.store,
        &opener,
        on_failure,
        predecessor,
    )?)
}

/// The runtime of background tasks, purchases and the in-process API calls of the pages.
fn background_runtime() -> Result<Runtime, StartError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("background")
        .enable_all()
        .build()
        .map_err(StartError::Threads)
}

/// The memory for bodies and buffers of all requests.
fn memory_budget(settings: &Settings) -> MemoryBudget {
    let memory = settings.server.memory;
    let budget = MemoryBudget::new(memory.budget());
    tracing::info!(
        limit_bytes = memory.bytes_max,
        source = memory.source,
        budget_bytes = budget.bytes_max(),
        account_bytes_max = budget.share_max(Owner::Account([0; 16])),
        "sized memory budget of bodies and buffers"
    );
    budget
}

/// What serves requests.
struct Running {
    proxy: Arc<Proxy>,
    workers: Vec<JoinHandle<()>>,
    liveness: Liveness,
    addresses: Vec<Address>,
    /// Of the listeners, with their addresses in the settings.
    sockets: Vec<(ListenAddress, ListenSocket)>,
}

struct RunningDeps<'a> {
    bound: Vec<Bound>,
    /// The sockets for requests that earlier processes relay.
    relayed: Vec<Bound>,
    challenges: Arc<AcmeChallenges>,
    pages: tollgate_filter::ErrorPage,
    telemetry: &'a Telemetry,
    clock: &'a Clock,
    entropy: &'a Entropy,
    resolver: Resolver,
}

impl Running {
    /// Builds the chains of all routes and starts the workers.
    fn start(
        settings: &Settings,
        built: &mut Built,
        deps: RunningDeps<'_>,
    ) -> Result<Running, StartError> {
        let filters = (&*built.filters, &built.services);
        let generation = Generation {
            version: 1,
            routes: routes::routes(settings, filters, &deps.pages, deps.telemetry)?,
            providers: Arc::new(Providers::new(settings, deps.clock.clone(), deps.resolver)),
            relayed_to: settings.sections.find().unwrap_or_default(),
        };
        let meter: MeterSettings = settings.sections.find().unwrap_or_default();
        let proxy = Arc::new(Proxy::new(ProxyDeps {
            generation,
            challenges: deps.challenges,
            pages: deps.pages,
            telemetry: deps.telemetry.clone(),
            clock: deps.clock.clone(),
            entropy: deps.entropy.clone(),
            limits: settings.server.limits,
            answer_limits: Limits {
                memory: memory_budget(settings),
                answer_bytes_max: ANSWER_BYTES_MAX,
                event_bytes_max: settings.server.event_bytes_max,
                drain: meter.drain,
                after_leaving: meter.after_leaving,
                keep_alive: settings.server.comment,
            },
            workers: settings.server.workers,
        }));
        let addresses = deps.bound.iter().map(|bound| Address {
            address: bound.address(),
            tls: bound.is_tls(),
        });
        let addresses = addresses.collect();
        let listeners = settings.listeners.iter().zip(&deps.bound);
        let sockets = listeners
            .map(|(listener, bound)| Ok((listener.address.clone(), bound.socket()?)))
            .collect::<io::Result<_>>()
            .map_err(StartError::Threads)?;
        let bound = deps.bound.into_iter().chain(deps.relayed).collect();
        let (workers, liveness) = spawn_workers(&proxy, bound).map_err(StartError::Threads)?;
        Ok(Running {
            proxy,
            workers,
            liveness,
            addresses,
            sockets,
        })
    }

    /// Stops the workers of a gateway whose start failed after theirs.
    fn abort(self) {
        self.proxy.stop();
        for worker in self.workers {
            // A worker that panicked has ended too, which is the intent here.
            let _ = worker.join();
        }
    }
}

fn spawn_tasks(
    settings: &Settings,
    runtime: &Runtime,
    running: &Running,
    storage: &Storage,
    clock: &Clock,
    built: &mut Built,
) -> Vec<AbortHandle> {
    let mut sweeps = std::mem::take(&mut built.sweeps);
    let (credentials, today) = (storage.credentials.clone(), clock.clone());
    sweeps.push(Box::new(move || {
        credentials.forget_expired(today.now());
    }));
    sweeps.push(Box::new(telemetry::report_suppressed));
    let (proxy, ledger, time) = (running.proxy.clone(), storage.ledger.clone(), clock.clone());
    let sweeps: Arc<[Sweep]> = Arc::from(sweeps);
    runtime.spawn(maintenance::restarting("maintenance", move || {
        let (proxy, ledger) = (proxy.clone(), ledger.clone());
        Box::pin(maintenance::run_maintenance(
            proxy,
            ledger,
            time.clone(),
            sweeps.clone(),
        ))
    }));
    let (credentials, store, time) = (
        storage.credentials.clone(),
        storage.store.clone(),
        clock.clone(),
    );
    let uses = runtime.spawn(maintenance::restarting("uses of credentials", move || {
        let (credentials, store) = (credentials.clone(), store.clone());
        Box::pin(maintenance::record_credential_uses(
            credentials,
            store,
            time.clone(),
        ))
    }));
    let (refused, store, time) = (
        storage.refused.clone(),
        storage.store.clone(),
        clock.clone(),
    );
    let refusals = runtime.spawn(maintenance::restarting("refused requests", move || {
        let (refused, store) = (refused.clone(), store.clone());
        Box::pin(maintenance::record_refused_requests(
            refused,
            store,
            time.clone(),
        ))
    }));
    if let Some(limit) = service_manager::watchdog_limit() {
        let liveness = health::liveness(&running.proxy, running.liveness.clone());
        runtime.spawn(service_manager::report_to_watchdog(limit, liveness));
    }
    if let Some(database) = database::file(&settings.store)
        && settings.store.free_bytes_min > 0
    {
        let folder = database.parent().unwrap_or(Path::new(".")).to_owned();
        runtime.spawn(maintenance::watch_disk(
            storage.store.clone(),
            folder,
            settings.store.free_bytes_min,
        ));
    }
    let (store, time) = (storage.store.clone(), clock.clone());
    let retention = settings.store.retention.clone();
    runtime.spawn(maintenance::restarting("gauges of the store", move || {
        let (store, retention) = (store.clone(), retention.clone());
        Box::pin(maintenance::look_after_store(
            store,
            retention,
            time.clone(),
        ))
    }));
    let duties = maintenance::run_duties(storage.store.clone(), std::mem::take(&mut built.duties));
    let duties = runtime.spawn(duties);
    if storage.store.has_allotments() {
        let (ledger, time) = (storage.ledger.clone(), clock.clone());
        runtime.spawn(maintenance::restarting("idle credit", move || {
            Box::pin(maintenance::return_idle_credit(
                ledger.clone(),
                time.clone(),
            ))
        }));
        let store = storage.store.clone();
        runtime.spawn(maintenance::restarting("feed of changes", move || {
            Box::pin(maintenance::prune_feed(store.clone()))
        }));
    }
    // Every observer of the store is there by now.
    storage.store.follow_changes();
    let tasks = built.tasks.drain(..).map(|task| runtime.spawn(task));
    tasks
        .chain([uses, refusals, duties])
        .map(|task| task.abort_handle())
        .collect()
}

fn record(storage: &Storage, clock: &Clock) -> Record {
    let store = storage.store.clone();
    let (credentials, refused) = (storage.credentials.clone(), storage.refused.clone());
    let clock = clock.clone();
    Box::new(move || {
        let (store, clock) = (store.clone(), clock.clone());
        let (credentials, refused) = (credentials.clone(), refused.clone());
        Box::pin(async move {
            maintenance::record_uses(&credentials, &*store, Duration::ZERO).await;
            maintenance::record_refusals(&refused, &*store, &clock).await;
        })
    })
}

fn add_metrics(
    settings: &Settings,
    telemetry: &Telemetry,
    running: &Running,
    storage: &Storage,
    clock: &Clock,
    built: &mut Built,
) {
    let metrics = telemetry.metrics();
    metrics.add_source(sources::store(storage.store.clone()));
    metrics.add_source(sources::retention(
        storage.store.clone(),
        settings.store.retention.is_some(),
    ));
    metrics.add_source(sources::credentials(storage.credentials.clone()));
    metrics.add_source(sources::ledger(
        storage.ledger.clone(),
        storage.store.clone(),
    ));
    metrics.add_source(sources::node(
        storage.store.clone(),
        storage.ledger.clone(),
        clock.clone(),
    ));
    // The proxy owns the telemetry.
    let proxy = Arc::downgrade(&running.proxy);
    metrics.add_source(sources::providers(move || {
        let proxy = proxy.upgrade();
        proxy.map_or_else(Vec::new, |proxy| proxy.generation().providers.view())
    }));
    if let Some(database) = database::file(&settings.store) {
        metrics.add_source(sources::disk(&database));
    }
    metrics.add_source(sources::memory(running.proxy.answer_limits.memory.clone()));
    for source in built.metrics.drain(..) {
        metrics.add_source(source);
    }
}

/// Started last, so that a client that gets an answer from it finds a gateway that serves.
fn start_admin(
    settings: &Settings,
    telemetry: &Telemetry,
    running: &Running,
    storage: &Storage,
    (clock, entropy): (&Clock, Entropy),
    (changes, reloader, conditions, access): (
        Arc<dyn Changes>,
        Arc<Reloader>,
        Arc<Conditions>,
        Arc<Access>,
    ),
    adopted: Option<AdoptedAdmin>,
) -> Result<Admin, StartError> {
    Ok(Admin::start(admin::Options {
        address: settings.admin.address,
        socket: database::control_socket(&settings.store),
        telemetry: telemetry.clone(),
        liveness: health::liveness(&running.proxy, running.liveness.clone()),
        readiness: health::readiness(settings, &running.proxy, &storage.store, conditions),
        providers: health::providers(&running.proxy),
        service: changes,
        access,
        api: Some(admin::ApiDeps {
            store: storage.store.clone(),
            settings: reloader,
            clock: clock.clone(),
            entropy,
        }),
        adopted,
    })?)
}
