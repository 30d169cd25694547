//! Fifth phase: upgrades, the admin address and the control socket.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tollgate_cache::Cache;

use super::background::record;
use super::inputs::Inputs;
use super::serving::Serving;
use crate::admin::{self, Admin, AdminService, Changes};
use crate::database;
use crate::gateway::upgrade::{AdoptedAdmin, Followed, Upgrader};
use crate::gateway::{Gateway, StartError, file_watch, health};
use crate::proxy::SocketFile;

/// Opens the admin address and the control socket of a gateway that serves, and reports to the predecessor.
pub(super) fn open(inputs: &Inputs, mut serving: Serving) -> Result<Gateway, StartError> {
    let (successor, handed_over) = watch::channel(None);
    let followed = Arc::new(Followed::new(
        serving.storage.store.clone(),
        serving.storage.ledger.clone(),
        serving.workers.proxy.clone(),
        inputs.clock.clone(),
    ));
    let upgrader = upgrader(inputs, &mut serving, successor, &followed);
    let changes = changes(inputs, &serving, &upgrader);
    if inputs.settings.server.watch_settings {
        let watch = file_watch::watch_settings(
            serving.reloader.clone(),
            changes.clone(),
            serving.conditions.clone(),
        );
        upgrader.add_task(serving.runtime.spawn(watch).abort_handle());
    }
    let adopted = serving.storage.sockets.adopted_admin()?;
    let admin = match Admin::start(options(inputs, &serving, &changes, adopted)) {
        Ok(mut admin) => {
            upgrader.set_admin(admin.take_sockets());
            admin
        }
        Err(error) => {
            serving.abort();
            return Err(error.into());
        }
    };
    let workers = serving.workers.take_threads();
    let failure = serving.storage.failure();
    let earlier = serving.storage.sockets.report_serving()?;
    followed.serve(earlier).map_err(StartError::Threads)?;
    Ok(Gateway {
        settings: inputs.settings.clone(),
        upgrader,
        handed_over,
        proxy: serving.workers.proxy,
        store: serving.storage.store,
        ledger: serving.storage.ledger,
        telemetry: inputs.telemetry.clone(),
        admin,
        runtime: serving.runtime,
        purchase_tasks: serving.purchase_tasks,
        last_work: serving.built.last_work,
        changes,
        workers,
        addresses: serving.workers.addresses,
        failure,
    })
}

fn upgrader(
    inputs: &Inputs,
    serving: &mut Serving,
    successor: watch::Sender<Option<u32>>,
    followed: &Arc<Followed>,
) -> Arc<Upgrader> {
    let (settings, storage) = (&inputs.settings, &serving.storage);
    let listeners = settings.listeners.iter();
    let files = listeners.filter_map(|listener| SocketFile::of(&listener.address));
    Arc::new(Upgrader {
        proxy: serving.workers.proxy.clone(),
        store: storage.store.clone(),
        database: database::name(&settings.store),
        node: settings.store.node.clone().unwrap_or_default(),
        ledger: storage.ledger.clone(),
        purchase_tasks: serving.purchase_tasks.clone(),
        runtime: serving.runtime.handle().clone(),
        entropy: inputs.entropy.clone(),
        files: files.collect(),
        record: record(storage, &inputs.clock),
        listeners: Mutex::new(std::mem::take(&mut serving.workers.sockets)),
        admin: Mutex::default(),
        tasks: Mutex::new(serving.take_tasks()),
        successor,
        state: serving.upgrade_state.clone(),
        stop: Mutex::default(),
        program: std::env::current_exe(),
        followed: followed.clone(),
    })
}

fn changes(inputs: &Inputs, serving: &Serving, upgrader: &Arc<Upgrader>) -> Arc<dyn Changes> {
    let mut service = AdminService::new(
        &inputs.settings,
        serving.storage.store.clone(),
        serving.storage.ledger.clone(),
        inputs.clock.clone(),
        inputs.entropy.clone(),
    )
    .with_settings(serving.reloader.clone())
    .with_upgrade(upgrader.clone())
    .with_providers(health::providers(&serving.workers.proxy));
    if let Some(cache) = serving.built.services.find::<Arc<Cache>>() {
        service = service.with_cache(cache);
    }
    let upkeep = service.upkeep();
    inputs
        .telemetry
        .metrics()
        .add_source(upkeep.clone().source());
    let read_upkeep = upkeep.follow(serving.storage.store.clone());
    upgrader.add_task(serving.runtime.spawn(read_upkeep).abort_handle());
    Arc::new(service)
}

fn options(
    inputs: &Inputs,
    serving: &Serving,
    changes: &Arc<dyn Changes>,
    adopted: Option<AdoptedAdmin>,
) -> admin::Options {
    let (settings, store) = (&inputs.settings, &serving.storage.store);
    let (proxy, conditions) = (&serving.workers.proxy, serving.conditions.clone());
    admin::Options {
        address: settings.admin.address,
        socket: database::control_socket(&settings.store),
        telemetry: inputs.telemetry.clone(),
        liveness: health::liveness(proxy, serving.workers.liveness.clone()),
        readiness: health::readiness(settings, proxy, store, conditions),
        providers: health::providers(proxy),
        service: changes.clone(),
        access: serving.access.clone(),
        api: Some(admin::ApiDeps {
            store: store.clone(),
            settings: serving.reloader.clone(),
            clock: inputs.clock.clone(),
            entropy: inputs.entropy.clone(),
        }),
        adopted,
    }
}
