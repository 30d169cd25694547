//! The versions of the prices in the settings, stored before a request is charged by them.

use tollgate_clock::Timestamp;
use tollgate_ledger::record_prices;
use tollgate_store::{PriceRow, Store};

use super::error::StartError;
use crate::config::Settings;

/// Stores the prices whose versions are new.
pub(super) fn record_new_prices(
    settings: &Settings,
    store: &dyn Store,
    now: Timestamp,
) -> Result<(), StartError> {
    let in_force = settings.catalog.models().iter().map(|model| PriceRow {
        version: model.price_version,
        model: model.id.clone(),
        price: model.price,
        valid_from: now,
    });
    let versions = record_prices(store, in_force).map_err(ledger_error)?;
    if versions > 0 {
        tracing::info!(versions, "recorded new price versions");
    }
    Ok(())
}

pub(super) fn ledger_error(error: impl std::error::Error + Send + Sync + 'static) -> StartError {
    StartError::Books(Box::new(error))
}
