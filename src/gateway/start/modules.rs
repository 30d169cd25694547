//! Third phase: certificates, the background runtime, and the modules with their services and filters.

use std::sync::Arc;

use tokio::runtime::Runtime;
use tollgate_filter::ErrorPage;
use tollgate_module::{Built, Declarations, GATEWAY, Module};
use tollgate_pages::{PageRenderer, error_page};
use tollgate_portal::InProcessApi;
use tollgate_purchase::PurchaseTasks;

use super::inputs::Inputs;
use super::storage::Storage;
use crate::acme::{Acme, AcmeDeps};
use crate::gateway::certificates::ListenerCertificates;
use crate::gateway::{StartError, settings};
use crate::proxy::{InProcessClient, Proxy};

/// The built modules. The fields end in this order where a later phase fails: the store last.
pub(super) struct Modules {
    pub(super) pages: ErrorPage,
    pub(super) built: Built,
    api: Arc<InProcessClient>,
    pub(super) purchase_tasks: PurchaseTasks,
    pub(super) runtime: Runtime,
    pub(super) acme: Acme,
    pub(super) certificates: ListenerCertificates,
    pub(super) modules: Vec<Box<dyn Module>>,
    pub(super) declarations: Declarations,
    pub(super) storage: Storage,
}

impl Modules {
    /// Builds the modules in their order, each with the services of the modules before.
    pub(super) fn build(
        inputs: &Inputs,
        storage: Storage,
        modules: Vec<Box<dyn Module>>,
        declarations: Declarations,
    ) -> Result<Modules, StartError> {
        let certificates = ListenerCertificates::new(storage.sockets.bound(), &inputs.settings);
        let acme = acme(inputs, &storage, &certificates);
        for warning in inputs.settings.warnings() {
            tracing::warn!(key = %warning.key, "risky setting: {}", warning.message);
        }
        let runtime = background_runtime()?;
        let purchase_tasks = PurchaseTasks::new(runtime.handle().clone());
        let api = Arc::new(InProcessClient::default());

        let mut built = Built::default();
        built.services = settings::services(&inputs.settings);
        built.services.provide(inputs.clock.clone());
        built.services.provide(inputs.entropy.clone());
        built.services.provide(storage.store.clone());
        built.services.provide(storage.ledger.clone());
        built.services.provide(storage.credentials.clone());
        built.services.provide(storage.refused.clone());
        built.services.provide(purchase_tasks.clone());
        built.services.provide(api.clone() as Arc<dyn InProcessApi>);
        for module in &modules {
            built.module(&**module).map_err(StartError::Module)?;
        }
        let renderer: Arc<PageRenderer> =
            built.services.get(GATEWAY).map_err(StartError::Module)?;
        Ok(Modules {
            pages: error_page(renderer),
            built,
            api,
            purchase_tasks,
            runtime,
            acme,
            certificates,
            modules,
            declarations,
            storage,
        })
    }

    /// Lets the pages call the API of this process.
    pub(super) fn connect(&self, proxy: &Arc<Proxy>) {
        self.api.connect(proxy, self.runtime.handle().clone());
    }
}

fn acme(inputs: &Inputs, storage: &Storage, certificates: &ListenerCertificates) -> Acme {
    let install = certificates.clone();
    Acme::new(
        AcmeDeps {
            store: storage.store.clone(),
            clock: inputs.clock.clone(),
            entropy: inputs.entropy.clone(),
            challenges: storage.sockets.challenges().clone(),
            install: Box::new(move |id, certificate| install.install(id, certificate)),
        },
        inputs.settings.acme_orders().cloned().collect(),
    )
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
