//! The gateway as a whole: built from settings and a registry, started, drained, stopped.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use http::Method;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tollgate_auth::Auths;
use tollgate_cache::Cache;
use tollgate_chain::{Chain, Limits, Route};
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_commerce::CommerceServices;
use tollgate_filter::{ErrorPage, ErrorShape, Filter};
use tollgate_idempotency::Idempotency;
use tollgate_identity::{Credentials, Signin};
use tollgate_ledger::{Ledger, record_prices};
use tollgate_meter::{Meter, Spending};
use tollgate_onboarding::{Documents, ExpiresError};
use tollgate_pages::{PageRenderer, error_page};
use tollgate_pay::PaymentProtocols;
use tollgate_purchase::PurchaseTasks;
use tollgate_rate_limit::{Counters, RateLimits};
use tollgate_store::{Failure, OpenError, PriceRow, RootSecret, Store, sqlite};

use crate::access;
use crate::admin::{self, Admin, AdminError, AdminService};
use crate::config::{Durability, Settings, StoreUrl};
use crate::drain::{FINAL_RESPONSES, drained};
use crate::health;
use crate::maintenance::{
    PeriodicTask, book_pending_grants, record_credential_uses, run_maintenance, signin_sweep,
};
use crate::onboarding::installation;
use crate::paypal::PayPal;
use crate::portal;
use crate::proxy::{
    Bound, InProcessClient, LifecycleHeaders, ListenError, Proxy, ProxyDeps, RouteEntry, Routes,
    server_config,
};
use crate::registry::{BuildError, Context, Registry, Services};
use crate::telemetry::{self, Telemetry, sources};
use crate::upstream::Providers;

/// Maximum size of a provider's whole answer in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Maximum size of one event of a stream in bytes.
const EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Builds a gateway, with custom filters besides the built-in ones.
pub struct GatewayBuilder {
    registry: Registry,
    clock: Clock,
    entropy: Entropy,
}

impl GatewayBuilder {
    /// A gateway with the built-in filters.
    pub(crate) fn new() -> GatewayBuilder {
        GatewayBuilder {
            registry: Registry::standard(),
            clock: Clock::system(),
            entropy: Entropy::system(),
        }
    }

    /// Replaces the machine's clock, for programs that control time.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> GatewayBuilder {
        self.clock = clock;
        self
    }

    /// Adds a filter that chains can name. A built-in filter of the same name is replaced.
    #[must_use]
    pub fn filter(
        mut self,
        name: &'static str,
        build: impl Fn(&Context<'_>) -> Result<Arc<dyn Filter>, BuildError> + Send + Sync + 'static,
    ) -> GatewayBuilder {
        self.registry.add(name, build);
        self
    }

    /// The names that chains may use, for [`crate::config::load`].
    pub fn filter_names(&self) -> Vec<&'static str> {
        self.registry.names()
    }

    /// Opens the store, recovers it, binds every socket and starts to serve.
    ///
    /// # Errors
    ///
    /// Any error that keeps the gateway from serving, with its remedy. Nothing runs then.
    pub fn start(self, settings: Settings) -> Result<Gateway, StartError> {
        let GatewayBuilder {
            registry,
            clock,
            entropy,
        } = self;
        let telemetry = Telemetry::new(&settings, clock.clone()).map_err(StartError::AccessLog)?;
        // Sockets first: a port in use is the most common mistake, and is found before the store is touched.
        let bound = settings
            .listeners
            .iter()
            .map(|listener| Bound::open(listener, server_config(listener)))
            .collect::<Result<Vec<_>, _>>()?;

        let (fail, failure) = watch::channel(None);
        let store = open_store(&settings, &clock, &entropy, fail)?;
        let now = clock.now();
        let (ledger, recovered) = Ledger::start(store.clone(), now)
            .map_err(|error| StartError::Books(Box::new(error)))?;
        if recovered.orphans > 0 {
            tracing::warn!(
                holds = recovered.orphans,
                "released holds of requests interrupted by an earlier stop"
            );
        }
        let in_force = settings.catalog.models().iter().map(|model| PriceRow {
            version: model.price_version,
            model: model.id.clone(),
            price: model.price,
            valid_from: now,
        });
        let new_prices =
            record_prices(&*store, in_force).map_err(|error| StartError::Books(Box::new(error)))?;
        if new_prices > 0 {
            tracing::info!(versions = new_prices, "recorded new price versions");
        }
        let credentials =
            Credentials::open(&*store, now).map_err(|error| StartError::Books(Box::new(error)))?;

        let spending =
            Spending::open(&*store, now).map_err(|error| StartError::Books(Box::new(error)))?;

        for class in credentials.classes() {
            if settings.limits.class(&class).is_none() {
                tracing::warn!(%class, "rate class of accounts is not configured, using `free`");
            }
        }
        let documents = documents(&settings, now)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("background")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        let plans = crate::plan::plans(&settings, (&store, &ledger), (&clock, &entropy));
        let idempotency_keys = crate::plan::idempotency_keys(&store, &clock);
        let purchase_tasks = PurchaseTasks::new(runtime.handle().clone());
        let paypal = PayPal::new(
            &settings,
            (&store, &ledger, &plans),
            (&clock, &entropy),
            purchase_tasks.clone(),
        )
        .map_err(StartError::PayPal)?;
        for warning in settings.warnings() {
            tracing::warn!(key = %warning.key, "risky setting: {}", warning.message);
        }
        let x402 = crate::x402::processor(
            &settings,
            &store,
            (&plans, &idempotency_keys),
            &clock,
            purchase_tasks.clone(),
        )
        .map_err(StartError::X402)?;
        let top_ups = paypal.as_ref().and_then(|paypal| paypal.top_ups.clone());
        let mandates = paypal.as_ref().map(|paypal| paypal.mandates.clone());
        let checkouts = crate::plan::checkouts(
            &settings,
            (&store, &plans),
            mandates.clone(),
            (&clock, &entropy),
        );
        let signin = Signin::new(store.clone(), crate::messages::rules(&settings));
        let outbox = crate::messages::outbox(&settings, &signin, &*store, &clock, &entropy)?;
        let counters = Arc::new(Counters::default());
        let api = Arc::new(InProcessClient::default());
        let renderer = Arc::new(PageRenderer::new(settings.brand.clone()));
        let authorization = access::authorization(&settings, &store, &clock, &entropy);
        let services = Services {
            ledger: ledger.clone(),
            auths: Auths::new(
                settings.service.identity(),
                credentials.clone(),
                clock.clone(),
            ),
            rate_limits: RateLimits::new(
                settings.limits.clone(),
                counters.clone(),
                clock.clone(),
                entropy.clone(),
            ),
            idempotency: Arc::new(Idempotency::new(
                settings.idempotency,
                settings.meter.hold,
                store.clone(),
                clock.clone(),
            )),
            meter: Arc::new(
                Meter::new(
                    settings.meter.clone(),
                    ledger.clone(),
                    clock.clone(),
                    settings.credits.topup_url.as_str(),
                )
                .hit_price_ppm(settings.cache.hit_price_ppm)
                .spending(spending),
            ),
            cache: Arc::new(Cache::new(tollgate_cache::CacheDeps {
                settings: settings.cache.clone(),
                service: &settings.service.name,
                root: &store.root_secret().0,
                uncached: settings.uncached.clone(),
                clock: clock.clone(),
                entropy: entropy.clone(),
            })),
            portal: Arc::new(portal::portal(&portal::Deps {
                settings: &settings,
                renderer: &renderer,
                signin: &signin,
                authorization: &authorization,
                store: &store,
                ledger: &ledger,
                credentials: &credentials,
                api: &api,
                top_ups: top_ups.as_ref(),
                mandates: mandates.as_ref(),
                checkouts: &checkouts,
                plans: &plans,
                clock: &clock,
                entropy: &entropy,
            })),
            documents: Arc::new(documents),
            commerce: CommerceServices::new(tollgate_commerce::CommerceDeps {
                base_url: settings.service.base_url.as_str(),
                root_url: settings.service.root_url.as_str(),
                plan: plans.plan(),
                ucp: settings.ucp.clone(),
                checkouts: checkouts.clone(),
                idempotency: idempotency_keys.clone(),
                clock: clock.clone(),
                terms_url: settings.brand.terms_url.clone(),
                privacy_url: settings.brand.privacy_url.clone(),
                paypal: paypal.as_ref().map(|paypal| tollgate_commerce::PayPal {
                    client: paypal.client.clone(),
                    top_ups: paypal.top_ups.clone(),
                    mandates: paypal.mandates.clone(),
                }),
            })
            .map_err(StartError::Profiles)?,
            payment_protocols: PaymentProtocols::new(
                settings.plan.slug.clone(),
                crate::mpp::processor(
                    &settings,
                    (&plans, mandates.as_ref(), &idempotency_keys),
                    (&clock, &entropy),
                    purchase_tasks.clone(),
                ),
                x402.clone(),
            ),
            oauth: access::endpoints(&settings, &authorization, &renderer, &clock)
                .map_err(StartError::ClientDocuments)?,
        };
        let pages = error_page(renderer.clone());
        let routes = routes(&registry, &settings, (&clock, &entropy), &services, &pages)?;
        let providers = Arc::new(Providers::new(
            &settings.providers,
            settings.upstream,
            settings.catalog.clone(),
            clock.clone(),
        ));
        let proxy = Arc::new(Proxy::new(ProxyDeps {
            routes,
            pages,
            providers: providers.clone(),
            relayed_to: settings.mcp.upstreams().cloned().collect(),
            telemetry: telemetry.clone(),
            clock: clock.clone(),
            entropy: entropy.clone(),
            limits: settings.server.limits,
            answer_limits: Limits {
                answer_bytes_max: ANSWER_BYTES_MAX,
                event_bytes_max: EVENT_BYTES_MAX,
                drain: settings.meter.drain,
                after_leaving: settings.meter.after_leaving,
                keep_alive: settings.server.comment,
            },
            workers: settings.server.workers,
        }));
        let addresses = bound
            .iter()
            .map(|bound| Address {
                address: bound.address(),
                tls: bound.is_tls(),
            })
            .collect();
        api.connect(&proxy, runtime.handle().clone());
        let (workers, liveness) = proxy.start(bound).map_err(StartError::Threads)?;
        let refreshed = providers.clone();
        runtime.spawn(async move { refreshed.run_maintenance().await });
        let (cache, idempotency) = (services.cache.clone(), services.idempotency.clone());
        let (live, today) = (credentials.clone(), clock.clone());
        let tasks: Vec<PeriodicTask> = vec![
            Box::new(move || {
                cache.sweep();
            }),
            Box::new(move || idempotency.forget()),
            Box::new(move || authorization.forget()),
            Box::new(move || checkouts.forget()),
            Box::new(move || live.forget_expired(today.now())),
            signin_sweep(&signin, &clock),
            Box::new(telemetry::report_suppressed),
        ];
        runtime.spawn(run_maintenance(
            proxy.clone(),
            ledger.clone(),
            clock.clone(),
            tasks,
        ));
        if let Some(paypal) = paypal {
            runtime.spawn(paypal.run());
        }
        let signed = x402.clone();
        if let Some(processor) = x402 {
            runtime.spawn(async move { processor.run().await });
        }
        runtime.spawn(async move { outbox.run().await });
        runtime.spawn(book_pending_grants(
            signin,
            ledger.clone(),
            clock.clone(),
            entropy.clone(),
        ));
        runtime.spawn(record_credential_uses(credentials, store.clone()));
        for source in [
            sources::store(store.clone()),
            sources::ledger(ledger.clone()),
            sources::meter(services.meter.counters()),
            sources::providers(providers.clone()),
            sources::cache(services.cache.clone()),
            sources::idempotency(services.idempotency.counters()),
            sources::notices(services.commerce.counters()),
            sources::plan(plans.clone()),
            sources::x402(signed, store.clone()),
            sources::purchases(top_ups),
            sources::mandates(mandates),
        ] {
            telemetry.metrics().add_source(source);
        }
        let StoreUrl::Sqlite(database) = &settings.store.url;
        let admin_service = AdminService::new(
            &settings,
            store.clone(),
            ledger.clone(),
            clock.clone(),
            entropy,
        )
        .with_cache(services.cache.clone())
        .with_providers(health::providers(&providers));
        // Last, so that a client that gets an answer from it finds a gateway that serves.
        let admin = Admin::start(admin::Options {
            address: settings.admin.address,
            socket: admin::control::path(&sqlite::resolve(database)),
            telemetry: telemetry.clone(),
            liveness: health::liveness(&proxy, liveness),
            readiness: health::readiness(&settings, &proxy, &store, &providers),
            providers: health::providers(&providers),
            service: Arc::new(admin_service),
        });
        let admin = match admin {
            Ok(admin) => admin,
            Err(error) => {
                proxy.stop();
                for worker in workers {
                    // A worker that panicked has ended too, which is the intent here.
                    let _ = worker.join();
                }
                store.close();
                return Err(error.into());
            }
        };
        Ok(Gateway {
            settings: Arc::new(settings),
            proxy,
            store,
            ledger,
            telemetry,
            admin,
            runtime,
            purchase_tasks,
            workers,
            addresses,
            failure,
        })
    }
}

fn documents(settings: &Settings, now: Timestamp) -> Result<Documents, ExpiresError> {
    Documents::new(&settings.onboarding, &installation(settings), now)
}

fn open_store(
    settings: &Settings,
    clock: &Clock,
    entropy: &Entropy,
    fail: watch::Sender<Option<Failure>>,
) -> Result<Arc<dyn Store>, StartError> {
    let StoreUrl::Sqlite(path) = &settings.store.url;
    let mut options = sqlite::Options::new(clock.now(), RootSecret(entropy.bytes()));
    options.durability = match settings.store.durability {
        Durability::Power => sqlite::Durability::Power,
        Durability::Process => {
            tracing::warn!("`store.durability` is `process`: a power failure may lose charges");
            sqlite::Durability::Process
        }
    };
    let measured = clock.clone();
    options.monotonic_us = Box::new(move || measured.elapsed().as_micros() as u64);
    options.on_failure = Box::new(move |failure| {
        tracing::error!(kind = ?failure.kind, message = %failure.message, "store failed");
        fail.send_replace(Some(failure.clone()));
    });
    Ok(sqlite::open(path, options)?)
}

fn routes(
    registry: &Registry,
    settings: &Settings,
    (clock, entropy): (&Clock, &Entropy),
    services: &Services,
    pages: &ErrorPage,
) -> Result<Routes, StartError> {
    let mut entries = Vec::with_capacity(settings.routes.len());
    for (index, route) in settings.routes.iter().enumerate() {
        let context = Context {
            settings,
            route,
            clock,
            entropy,
            services,
        };
        let filters = route
            .chain
            .iter()
            .map(|name| registry.build(name, &context))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| StartError::Filter {
                route: route.path.to_string(),
                source,
            })?;
        let mut methods = route.methods.clone();
        if methods.contains(&Method::GET) && !methods.contains(&Method::HEAD) {
            methods.push(Method::HEAD);
        }
        entries.push(RouteEntry {
            index,
            route: Route {
                name: route.path.as_str().into(),
                chain: Chain::new(filters),
                body_bytes_max: route.body_bytes_max,
                errors: route.errors,
            },
            path: route.path.clone(),
            methods,
            cors: route.cors,
            lifecycle: route
                .lifecycle
                .as_ref()
                .map(|end| Arc::new(LifecycleHeaders::of(end))),
            pages: (route.errors == ErrorShape::Page).then(|| pages.clone()),
        });
    }
    Ok(Routes::new(entries))
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
    workers: Vec<JoinHandle<()>>,
    addresses: Vec<Address>,
    failure: watch::Receiver<Option<Failure>>,
}

/// The bound address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Address and port, the port as assigned by the system.
    pub address: SocketAddr,
    /// Whether it uses TLS.
    pub tls: bool,
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

    /// The logs and metrics.
    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
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
    pub fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), Failure> {
        let failed = self.runtime.block_on(async {
            let failed = self.failure.wait_for(Option::is_some);
            tokio::select! {
                () = stop => None,
                failed = failed => failed.ok().and_then(|failed| failed.clone()),
            }
        });
        self.shut_down(failed.is_none());
        match failed {
            None => Ok(()),
            Some(failure) => Err(failure),
        }
    }

    /// Drains open exchanges if `finish`, then ends every thread.
    fn shut_down(self, finish: bool) {
        let grace = self.settings.server.grace;
        self.proxy.drain();
        self.purchase_tasks.close();
        if finish {
            let open = self.proxy.open_exchanges();
            tracing::info!(
                open,
                ?grace,
                "draining: refusing new connections, waiting for open requests"
            );
            let drained = self.runtime.block_on(async {
                let drained = drained(&self.proxy, &self.purchase_tasks);
                tokio::time::timeout(grace, drained).await.is_ok()
            });
            if !drained {
                let (open, purchases) =
                    (self.proxy.open_exchanges(), self.purchase_tasks.running());
                tracing::warn!(
                    open,
                    purchases,
                    "grace period expired, aborting open requests"
                );
            }
        }
        // After a failed store the only remaining work is the error responses; this is their time limit.
        self.runtime.block_on(async {
            // A client that does not read its response in time is disconnected.
            let _ = tokio::time::timeout(FINAL_RESPONSES, self.proxy.closed()).await;
        });
        self.proxy.stop();
        for worker in self.workers {
            if worker.join().is_err() {
                tracing::error!("worker thread panicked");
            }
        }
        drop(self.admin);
        // The last releases and settlements are in the queue by now.
        self.store.close();
        self.runtime.shutdown_background();
        self.telemetry.close();
        tracing::info!("stopped");
    }
}

/// Why the gateway did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A socket could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The access log cannot be written.
    #[error("cannot open the access log; check the path and its permissions")]
    AccessLog(#[source] std::io::Error),
    /// The store could not be opened.
    #[error("cannot open the store")]
    Store(#[from] OpenError),
    /// The content of the store could not be read or recovered.
    #[error("cannot read the ledger; restore a backup if the error persists")]
    Books(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An onboarding document would be invalid from now on.
    #[error(transparent)]
    Document(#[from] ExpiresError),
    /// The fetcher of OAuth client metadata could not be created.
    #[error(
        "cannot set up `oauth.client_documents`; set it to `false`, or check the system's certificates"
    )]
    ClientDocuments(#[source] tollgate_fetch::SetupError),
    /// The fetcher of platform profiles could not be created.
    #[error(
        "cannot set up `ucp.profile_fetch`; set it to `never`, or check the system's certificates"
    )]
    Profiles(#[source] tollgate_fetch::SetupError),
    /// Mail or text messages cannot be sent with these settings.
    #[error("cannot set up message delivery")]
    Messages(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A filter could not be built.
    #[error("the chain of `{route}` cannot be built")]
    Filter {
        /// The route's path.
        route: String,
        /// The reason.
        #[source]
        source: BuildError,
    },
    /// TLS for PayPal could not be prepared.
    #[error(transparent)]
    PayPal(tollgate_paypal::ClientError),
    /// The client of the facilitator of signed transfers, or of the node of their chain, could not be created.
    #[error(transparent)]
    X402(tollgate_pay::x402::HttpClientError),
    /// Health, metrics or the control socket could not be served.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The operating system provided no thread or no event queue.
    #[error("cannot start threads; is the limit of processes or files too low?")]
    Threads(#[source] std::io::Error),
}
