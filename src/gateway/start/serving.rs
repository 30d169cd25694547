//! Fourth phase: the gateway serves requests.

use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tollgate_module::Built;
use tollgate_purchase::PurchaseTasks;

use super::background::spawn_tasks;
use super::inputs::Inputs;
use super::metrics::add_metrics;
use super::modules::Modules;
use super::storage::Storage;
use super::workers::Workers;
use crate::admin::Access;
use crate::gateway::conditions::Conditions;
use crate::gateway::reload::{Reloader, ReloaderDeps};
use crate::gateway::upgrade::UpgradeState;
use crate::gateway::{StartError, file_watch, health, recovery};
use crate::telemetry::sources;
use crate::upstream::Resolver;

/// A gateway that serves and has no admin address yet.
pub(super) struct Serving {
    pub(super) access: Arc<Access>,
    pub(super) reloader: Arc<Reloader>,
    pub(super) upgrade_state: UpgradeState,
    pub(super) conditions: Arc<Conditions>,
    /// The tasks that an upgrade ends.
    tasks: Vec<AbortHandle>,
    pub(super) workers: Workers,
    pub(super) built: Built,
    pub(super) purchase_tasks: PurchaseTasks,
    pub(super) runtime: Runtime,
    pub(super) storage: Storage,
}

impl Serving {
    /// Starts the workers, then the tasks that observe or maintain the workers.
    pub(super) fn start(
        inputs: &Inputs,
        mut modules: Modules,
        resolver: Resolver,
    ) -> Result<Serving, StartError> {
        let workers = Workers::start(inputs, &mut modules, resolver)?;
        modules.connect(&workers.proxy);
        let conditions = watch_conditions(inputs, &mut modules);
        let Modules {
            ref runtime,
            ref storage,
            ref mut built,
            ..
        } = modules;
        let mut tasks = spawn_tasks(inputs, runtime, &workers, storage, built);
        add_metrics(inputs, &workers, storage, built);
        let metrics = inputs.telemetry.metrics();
        metrics.add_source(sources::certificates(modules.certificates.all()));
        metrics.add_source(modules.acme.status().metrics());
        tasks.push(runtime.spawn(modules.acme.clone().run()).abort_handle());
        let upgrade_state = UpgradeState::default();
        let access = Arc::new(Access::new(&inputs.settings.admin, inputs.clock.clone()));
        let deps = ReloaderDeps {
            upgrade: upgrade_state.clone(),
            modules: modules.modules,
            declarations: modules.declarations,
            filters: std::mem::take(&mut built.filters),
            pages: modules.pages,
            proxy: workers.proxy.clone(),
            store: storage.store.clone(),
            clock: inputs.clock.clone(),
            telemetry: inputs.telemetry.clone(),
            runtime: runtime.handle().clone(),
            certificates: modules.certificates,
            acme: modules.acme,
            access: access.clone(),
        };
        let services = built.services.clone();
        let reloader = Arc::new(Reloader::new(inputs.settings.clone(), services, deps));
        metrics.add_source(reloader.metrics());
        let serving = Serving {
            access,
            reloader,
            upgrade_state,
            conditions,
            tasks,
            workers,
            built: modules.built,
            purchase_tasks: modules.purchase_tasks,
            runtime: modules.runtime,
            storage: modules.storage,
        };
        Ok(serving.observed(inputs))
    }

    /// Starts the watches that need the reloader, and answers checks of health.
    fn observed(mut self, inputs: &Inputs) -> Serving {
        let watch = file_watch::watch_certificates(self.reloader.clone());
        self.tasks.push(self.runtime.spawn(watch).abort_handle());
        if self.storage.store.has_allotments() {
            let (reloader, store) = (self.reloader.clone(), self.storage.store.clone());
            let recover = recovery::recover_nodes(reloader, store, inputs.clock.clone());
            self.tasks.push(self.runtime.spawn(recover).abort_handle());
        }
        let proxy = &self.workers.proxy;
        let readiness = health::readiness(
            &inputs.settings,
            proxy,
            &self.storage.store,
            self.conditions.clone(),
        );
        let checks = health::for_listeners(self.workers.liveness.clone(), readiness);
        proxy.set_health(checks);
        self
    }

    pub(super) fn take_tasks(&mut self) -> Vec<AbortHandle> {
        std::mem::take(&mut self.tasks)
    }

    /// Ends a gateway whose admin address could not be opened.
    pub(super) fn abort(self) {
        self.workers.abort();
        self.storage.ledger.return_all();
        self.storage.store.close();
    }
}

/// Logs conditions that need an operator, immediately and with every sweep.
fn watch_conditions(inputs: &Inputs, modules: &mut Modules) -> Arc<Conditions> {
    let conditions = Arc::new(Conditions::new(
        modules.certificates.all(),
        modules.acme.status(),
        modules.storage.store.clone(),
        inputs.clock.clone(),
    ));
    conditions.log_changes();
    let logged = conditions.clone();
    let sweeps = &mut modules.built.sweeps;
    sweeps.push(Box::new(move || logged.log_changes()));
    conditions
}
