//! Reload: the settings file is read again, and its content takes effect as a whole or not at all.
//!
//! Every step that can fail comes first: the check of the file, the new settings of each module, the chains, and the prices. Prices are
//! durable before a request is charged by them. The remaining steps only store pointers. A request keeps the generation of its begin
//! (`proxy::generation`). State stays in the modules and providers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use secrecy::ExposeSecret;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tollgate_clock::Clock;
use tollgate_counters::Source;
use tollgate_filter::ErrorPage;
use tollgate_module::{BuildError, Declarations, Module, Reload, Services};
use tollgate_store::Store;

use super::certificates::ListenerCertificates;
use super::classes::warn_about_classes;
use super::error::StartError;
use super::prices::record_new_prices;
use super::routes::{self, NamedFilter};
use super::settings;
use super::upgrade::UpgradeState;
use crate::acme::Acme;
use crate::admin::{Access, ChangeError, ReloadedSettings, RunningSettings};
use crate::config::{Certificate, Difference, DifferenceKind, Report, Settings, is_in};
use crate::proxy::{Generation, Proxy, Routes};
use crate::telemetry::{self, PreparedTraces, Telemetry};
use crate::upstream::Providers;

/// The remedy when a setting needs another process.
const REMEDY: &str = "run `tollgate upgrade`, or restore the earlier value";

/// The remedy for a setting that an upgrade refuses too: an upgrade hands over an open database, and the node.
const REMEDY_OF_STORE: &str = "stop the gateway and start it again, or restore the earlier value";

/// The remedy for a changed path at which `tollgate upgrade` looks for the gateway.
const REMEDY_OF_SOCKET: &str =
    "send the signal SIGUSR2 to the gateway, or restore the earlier value";

/// The gateway's own settings that a reload changes, by the beginnings of their keys.
const RELOADED: [&str; 12] = [
    "admin.tls.",
    "admin.token[",
    "model[",
    "provider[",
    "upstream.",
    "route[",
    "route_change[",
    "server.environment_file",
    "service.default_model",
    "store.password_",
    "telemetry.log_level",
    "telemetry.otlp_",
];

/// Reloads the settings of one gateway.
pub(crate) struct Reloader {
    deps: ReloaderDeps,
    /// Read without a lock by periodic tasks and the admin address.
    in_force: ArcSwap<InForce>,
    state: Mutex<State>,
    counts: Arc<Counts>,
}

/// The parts that a reload changes, and the inputs of a reload.
pub(super) struct ReloaderDeps {
    pub(super) upgrade: UpgradeState,
    pub(super) modules: Vec<Box<dyn Module>>,
    pub(super) declarations: Declarations,
    pub(super) filters: Vec<NamedFilter>,
    pub(super) pages: ErrorPage,
    pub(super) proxy: Arc<Proxy>,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) telemetry: Telemetry,
    pub(super) runtime: Handle,
    pub(super) certificates: ListenerCertificates,
    pub(super) acme: Acme,
    /// Who may use the admin address.
    pub(super) access: Arc<Access>,
}

impl ReloaderDeps {
    /// Records for other nodes of the database the settings in force on this node.
    fn record(&self, settings: &Settings) {
        let root = self.store.root_secret();
        let digest = settings.source.cluster_digest(&root, &self.declarations);
        self.store.record_settings(&digest);
    }
}

/// The settings in force, and the modules' results for the settings.
struct InForce {
    settings: Arc<Settings>,
    services: Services,
}

/// Locked for the time of a reload. A reload waits for the database.
struct State {
    version: u64,
    /// The maintenance of the providers in force.
    maintenance: JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    version: AtomicU64,
    reloaded: AtomicU64,
    failed: AtomicU64,
}

/// Why new settings are not in force. The earlier settings stay.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// The file has errors.
    #[error(transparent)]
    Invalid(Report),
    /// A setting that is fixed at the start differs.
    #[error("{}", RestartNeeded(.0))]
    NeedsRestart(Vec<Difference>),
    /// A new process takes over and has read the settings already.
    #[error(
        "an upgrade is under way; reload the settings of the new process, or of this one if the upgrade fails"
    )]
    Upgrade,
    /// A module cannot serve its new settings.
    #[error(transparent)]
    Module(BuildError),
    /// A chain cannot be built, or the prices cannot be stored.
    #[error(transparent)]
    Start(#[from] StartError),
}

struct RestartNeeded<'a>(&'a [Difference]);

impl fmt::Display for RestartNeeded<'_> {
    /// A line for each setting, as in the report of `tollgate check`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, difference) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            let remedy = match &*difference.key {
                "store.url" | "store.node" => REMEDY_OF_STORE,
                "admin.socket" => REMEDY_OF_SOCKET,
                _ => REMEDY,
            };
            write!(f, "{difference}; {remedy}")?;
        }
        Ok(())
    }
}

/// New settings, checked against the settings in force.
struct Checked {
    settings: Arc<Settings>,
    services: Services,
    differences: Vec<Difference>,
    apply: Vec<Box<dyn FnOnce() + Send>>,
}

/// Checked settings, with every object built for them.
struct Built {
    checked: Checked,
    routes: Routes,
    providers: Arc<Providers>,
    /// `None` where the export of traces stays unchanged.
    traces: Option<PreparedTraces>,
}

impl Reloader {
    /// The reloader of a gateway with these settings. The reloader maintains the providers from now on.
    pub(super) fn new(settings: Arc<Settings>, services: Services, deps: ReloaderDeps) -> Reloader {
        let generation = deps.proxy.generation();
        deps.record(&settings);
        let counts = Counts::default();
        counts.version.store(generation.version, Relaxed);
        Reloader {
            in_force: ArcSwap::from_pointee(InForce { settings, services }),
            state: Mutex::new(State {
                maintenance: maintain(&deps.runtime, &generation.providers),
                version: generation.version,
            }),
            counts: Arc::new(counts),
            deps,
        }
    }

    /// The version of the settings in force, and the reloads so far.
    pub(super) fn metrics(&self) -> Source {
        let counts = self.counts.clone();
        Box::new(move |samples| {
            samples.number(telemetry::SETTINGS_VERSION, counts.version.load(Relaxed));
            let results = [("ok", &counts.reloaded), ("failed", &counts.failed)];
            let results = results.map(|(result, count)| (result, count.load(Relaxed)));
            samples.numbers(telemetry::SETTINGS_RELOADS, results);
        })
    }

    /// Reads the settings again and puts every setting or no setting in force. Reopens the log files in any case. Blocks for the disk.
    ///
    /// # Errors
    ///
    /// Why the earlier settings stay in force.
    pub(crate) fn reload(&self) -> Result<ReloadedSettings, ReloadError> {
        let mut state = self.state();
        // A log rotation also asks for a reload.
        self.deps.telemetry.reopen_log();
        let built = match self.deps.upgrade.has_begun() {
            true => Err(ReloadError::Upgrade),
            false => self.check().and_then(|checked| self.build(checked)),
        };
        match built {
            Ok(built) => {
                let reloaded = self.apply(&mut state, built);
                self.counts.reloaded.fetch_add(1, Relaxed);
                tracing::info!(
                    version = reloaded.version,
                    digest = %reloaded.digest,
                    changes = reloaded.changes.len(),
                    "reloaded settings"
                );
                Ok(reloaded)
            }
            Err(error) => {
                self.counts.failed.fetch_add(1, Relaxed);
                let cause = telemetry::chain(&error);
                tracing::error!(%cause, "reloading settings failed, the earlier ones stay in force");
                Err(error)
            }
        }
    }

    /// Reads certificates with changed files again, and uses the certificates from the next handshake on. Every other setting stays
    /// unchanged. An unusable certificate leaves the earlier certificate in use. Returns the reasons for unusable certificates. Blocks for
    /// the disk.
    pub(super) fn reload_certificates(&self) -> Vec<String> {
        let _state = self.state();
        let in_force = self.in_force.load_full();
        let mut settings = Settings::clone(&in_force.settings);
        let (mut read, mut failed) = (Vec::new(), Vec::new());
        for certificate in settings.certificates_mut().filter(|one| one.has_changed()) {
            match certificate.read_again() {
                Ok(new) => {
                    *certificate = new.clone();
                    read.push(new);
                }
                Err(error) => failed.push(telemetry::chain(&error)),
            }
        }
        if !read.is_empty() {
            let deps = &self.deps;
            let files = read.iter().flat_map(Certificate::files);
            let files: Vec<PathBuf> = files.map(Path::to_owned).collect();
            let source = &mut settings.source;
            source.record_certificates(&files, &deps.declarations);
            deps.certificates.configure(&settings);
            deps.access.replace(&settings.admin);
            self.in_force.store(Arc::new(InForce {
                settings: Arc::new(settings),
                services: in_force.services.clone(),
            }));
        }
        for one in read {
            let expires_at = one.expires_at.rfc3339();
            tracing::info!(certificate = one.label(), %expires_at, "reloaded certificate");
        }
        // A pair of several listeners.
        failed.dedup();
        failed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Reads and checks the file, and asks each module for its opinion of the settings.
    fn check(&self) -> Result<Checked, ReloadError> {
        let in_force = self.in_force.load_full();
        let ReloaderDeps {
            modules,
            declarations,
            ..
        } = &self.deps;
        let new = in_force.settings.source.read(declarations);
        let new = Arc::new(new.map_err(ReloadError::Invalid)?);
        let mut services = in_force.services.clone();
        services.extend(&settings::services(&new));
        let mut apply = Vec::new();
        let mut fixed: Vec<String> = Vec::new();
        let mut differing: Vec<String> = Vec::new();
        for module in modules {
            let mut sections = module.sections();
            let reload = module.reload(&in_force.services, &services);
            match reload.map_err(ReloadError::Module)? {
                Reload::Ready(call) => apply.push(call),
                Reload::NeedsRestart(keys) => {
                    let first = sections.first().map_or("", |section| section.name());
                    differing.extend(keys.iter().map(|key| {
                        let mut names = sections.iter().map(|section| section.name());
                        match names.any(|name| is_in(key, name)) {
                            true => (*key).to_owned(),
                            false => format!("{first}.{key}"),
                        }
                    }));
                }
                Reload::Fixed => fixed.extend(sections.drain(..).map(|one| one.name().to_owned())),
            }
        }
        differing.extend(restarted(&in_force.settings, &new));
        fixed.extend(differing.iter().cloned());
        let needs_restart = |key: &str| {
            let of_module = declarations
                .sections
                .iter()
                .any(|one| is_in(key, one.name()));
            fixed.iter().any(|prefix| is_in(key, prefix)) || !(of_module || is_reloaded(key))
        };
        let (old, source) = (&in_force.settings.source, &new.source);
        let mut differences = old.differences(source, declarations, needs_restart);
        for key in differing {
            // The value of this setting follows from another setting.
            if !differences.iter().any(|one| is_in(&one.key, &key)) {
                differences.push(source.difference(&key, DifferenceKind::Changed));
            }
        }
        Ok(Checked {
            settings: new,
            services,
            differences,
            apply,
        })
    }

    /// Builds every object whose construction can fail, and stores the prices.
    fn build(&self, checked: Checked) -> Result<Built, ReloadError> {
        let refused = checked.differences.iter().filter(|one| one.needs_restart);
        let refused: Vec<Difference> = refused.cloned().collect();
        if !refused.is_empty() {
            return Err(ReloadError::NeedsRestart(refused));
        }
        let deps = &self.deps;
        let filters = (&*deps.filters, &checked.services);
        let (new, telemetry) = (&checked.settings, &deps.telemetry);
        let routes = routes::routes(new, filters, &deps.pages, telemetry)?;
        let providers = deps
            .proxy
            .generation()
            .providers
            .successor(&checked.settings);
        let mut changed = checked.differences.iter().map(|one| &*one.key);
        let traces = match changed.any(|key| key.starts_with("telemetry.otlp_")) {
            true => Some(
                telemetry
                    .prepare_traces(new)
                    .map_err(StartError::Telemetry)?,
            ),
            false => None,
        };
        // First, because the database of the prices may refuse the earlier password by now.
        self.use_password(new);
        let recorded = record_new_prices(new, &*deps.store, deps.clock.now());
        recorded.inspect_err(|_| self.use_password(&self.in_force.load().settings))?;
        Ok(Built {
            traces,
            routes,
            providers: Arc::new(providers),
            checked,
        })
    }

    /// Logs in to the database with the password of these settings from now on. Open connections stay.
    fn use_password(&self, settings: &Settings) {
        let password = settings.store.password.as_ref();
        let password = password.map(|password| password.expose_secret().as_bytes());
        self.deps.store.replace_password(password);
    }

    /// Puts the built settings in force. No step can fail here.
    fn apply(&self, state: &mut State, built: Built) -> ReloadedSettings {
        let Built {
            checked,
            routes,
            providers,
            traces,
        } = built;
        let (deps, new) = (&self.deps, &checked.settings);
        for warning in new.warnings() {
            tracing::warn!(key = %warning.key, "risky setting: {}", warning.message);
        }
        warn_about_classes(&deps.store, new);
        deps.telemetry.add_names(new);
        for call in checked.apply {
            call();
        }
        deps.certificates.configure(new);
        deps.acme.configure(new.acme_orders().cloned().collect());
        deps.access.replace(&new.admin);
        telemetry::set_level(new.telemetry.log_level);
        if let Some(traces) = traces {
            deps.telemetry.replace_traces(traces);
        }
        deps.record(new);
        state.version += 1;
        deps.proxy.replace_generation(Generation {
            version: state.version,
            routes,
            providers: providers.clone(),
            relayed_to: new.sections.find().unwrap_or_default(),
        });
        state.maintenance.abort();
        state.maintenance = maintain(&deps.runtime, &providers);
        let digest = checked.settings.source.digest();
        self.in_force.store(Arc::new(InForce {
            settings: checked.settings,
            services: checked.services,
        }));
        self.counts.version.store(state.version, Relaxed);
        ReloadedSettings {
            version: state.version,
            digest,
            changes: checked.differences,
        }
    }
}

impl RunningSettings for Reloader {
    fn reload(&self) -> Result<ReloadedSettings, ChangeError> {
        Reloader::reload(self).map_err(|error| {
            let message = telemetry::chain(&error);
            match error {
                // The caller repeats the call unchanged.
                ReloadError::Start(StartError::Books(_)) | ReloadError::Upgrade => {
                    ChangeError::unavailable(message)
                }
                _ => ChangeError::conflict(message),
            }
        })
    }

    fn differences(&self) -> Result<Vec<Difference>, String> {
        let checked = self.check();
        checked
            .map(|checked| checked.differences)
            .map_err(|error| telemetry::chain(&error))
    }

    fn settings(&self) -> Arc<Settings> {
        self.in_force.load().settings.clone()
    }
}

fn maintain(runtime: &Handle, providers: &Arc<Providers>) -> JoinHandle<()> {
    let providers = providers.clone();
    runtime.spawn(async move { providers.run_maintenance().await })
}

/// Settings of the gateway itself that differ and are fixed although their keys are reloaded: whether a listener or the admin address has
/// TLS.
fn restarted(old: &Settings, new: &Settings) -> Vec<String> {
    let mut keys = Vec::new();
    let addresses = old.listeners.iter().map(|one| &one.address);
    for (old, new) in old.listeners.iter().zip(new.listeners_at(addresses)) {
        if new.is_some_and(|new| old.tls.is_empty() != new.tls.is_empty()) {
            keys.push(format!("listener[{}].tls", old.address));
        }
    }
    if old.admin.tls.is_some() != new.admin.tls.is_some() {
        keys.push("admin.tls".to_owned());
    }
    keys
}

fn is_reloaded(key: &str) -> bool {
    let of_listener = key.starts_with("listener[");
    let is_tls = of_listener && (key.contains("].tls[") || key.ends_with("].client_ca"));
    is_tls || RELOADED.iter().any(|prefix| key.starts_with(prefix))
}
