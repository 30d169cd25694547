//! The tasks of the background runtime.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::{AbortHandle, JoinHandle};
use tollgate_clock::Clock;
use tollgate_module::{Built, Sweep};

use super::inputs::Inputs;
use super::storage::Storage;
use super::workers::Workers;
use crate::database;
use crate::gateway::upgrade::Record;
use crate::gateway::{health, maintenance, service_manager};
use crate::telemetry;

/// Starts every task. Returns the tasks that an upgrade ends before the hand-over of the store.
pub(super) fn spawn_tasks(
    inputs: &Inputs,
    runtime: &Runtime,
    workers: &Workers,
    storage: &Storage,
    built: &mut Built,
) -> Vec<AbortHandle> {
    let (settings, clock) = (&inputs.settings, &inputs.clock);
    spawn_maintenance(runtime, workers, storage, clock, built);
    let uses = spawn_uses(runtime, storage, clock);
    let refusals = spawn_refusals(runtime, storage, clock);
    if let Some(limit) = service_manager::watchdog_limit() {
        let liveness = health::liveness(&workers.proxy, workers.liveness.clone());
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
    let leader_jobs = maintenance::run_leader_jobs(
        storage.store.clone(),
        std::mem::take(&mut built.leader_jobs),
    );
    let leader_jobs = runtime.spawn(leader_jobs);
    if storage.store.has_allotments() {
        spawn_allotment_tasks(runtime, storage, clock);
    }
    // Every observer of the store exists by now.
    storage.store.follow_changes();
    let tasks = built.tasks.drain(..).map(|task| runtime.spawn(task));
    tasks
        .chain([uses, refusals, leader_jobs])
        .map(|task| task.abort_handle())
        .collect()
}

fn spawn_maintenance(
    runtime: &Runtime,
    workers: &Workers,
    storage: &Storage,
    clock: &Clock,
    built: &mut Built,
) {
    let mut sweeps = std::mem::take(&mut built.sweeps);
    let (credentials, today) = (storage.credentials.clone(), clock.clone());
    sweeps.push(Box::new(move || {
        credentials.forget_expired(today.now());
    }));
    sweeps.push(Box::new(telemetry::report_suppressed));
    let (proxy, ledger, time) = (workers.proxy.clone(), storage.ledger.clone(), clock.clone());
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
}

fn spawn_uses(runtime: &Runtime, storage: &Storage, clock: &Clock) -> JoinHandle<()> {
    let (credentials, store, time) = (
        storage.credentials.clone(),
        storage.store.clone(),
        clock.clone(),
    );
    runtime.spawn(maintenance::restarting("uses of credentials", move || {
        let (credentials, store) = (credentials.clone(), store.clone());
        Box::pin(maintenance::record_credential_uses(
            credentials,
            store,
            time.clone(),
        ))
    }))
}

fn spawn_refusals(runtime: &Runtime, storage: &Storage, clock: &Clock) -> JoinHandle<()> {
    let (refused, store, time) = (
        storage.refused.clone(),
        storage.store.clone(),
        clock.clone(),
    );
    runtime.spawn(maintenance::restarting("refused requests", move || {
        let (refused, store) = (refused.clone(), store.clone());
        Box::pin(maintenance::record_refused_requests(
            refused,
            store,
            time.clone(),
        ))
    }))
}

fn spawn_allotment_tasks(runtime: &Runtime, storage: &Storage, clock: &Clock) {
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

/// Records uses and refusals from memory before the store is handed over.
pub(super) fn record(storage: &Storage, clock: &Clock) -> Record {
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
