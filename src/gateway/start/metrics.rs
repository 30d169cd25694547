//! The sources of the metrics.

use std::sync::Arc;

use tollgate_module::Built;

use super::inputs::Inputs;
use super::storage::Storage;
use super::workers::Workers;
use crate::database;
use crate::telemetry::sources;

pub(super) fn add_metrics(
    inputs: &Inputs,
    workers: &Workers,
    storage: &Storage,
    built: &mut Built,
) {
    let (settings, clock) = (&inputs.settings, &inputs.clock);
    let metrics = inputs.telemetry.metrics();
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
    let proxy = Arc::downgrade(&workers.proxy);
    metrics.add_source(sources::providers(move || {
        let proxy = proxy.upgrade();
        proxy.map_or_else(Vec::new, |proxy| proxy.generation().providers.view())
    }));
    if let Some(database) = database::file(&settings.store) {
        metrics.add_source(sources::disk(&database));
    }
    metrics.add_source(sources::memory(workers.proxy.answer_limits.memory.clone()));
    for source in built.metrics.drain(..) {
        metrics.add_source(source);
    }
}
