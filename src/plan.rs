//! The plan, and where payments for it are noted.

use std::sync::Arc;

use tollgate_filter::{Clock, Entropy};
use tollgate_ledger::Ledger;
use tollgate_purchase::checkouts::{self, Checkouts};
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::{PlanDeps, Plans};
use tollgate_store::Store;

use crate::config::Settings;

/// The desk that every route notes its payments at.
pub(crate) fn plans(
    settings: &Settings,
    (store, ledger): (&Arc<dyn Store>, &Ledger),
    (clock, entropy): (&Clock, &Entropy),
) -> Plans {
    let (clock, entropy) = (clock.clone(), entropy.clone());
    Plans::new(PlanDeps {
        store: store.clone(),
        ledger: ledger.clone(),
        plan: settings.plan.clone(),
        now: Box::new(move || clock.unix_micros()),
        draw: Box::new(move |out| entropy.fill(out)),
    })
}

/// Where checkouts are kept; without mandates none is begun.
pub(crate) fn checkouts(
    settings: &Settings,
    (store, plans): (&Arc<dyn Store>, &Plans),
    mandates: Option<Mandates>,
    (clock, entropy): (&Clock, &Entropy),
) -> Checkouts {
    let (clock, entropy) = (clock.clone(), entropy.clone());
    Checkouts::new(checkouts::CheckoutDeps {
        store: store.clone(),
        plans: plans.clone(),
        mandates,
        lifetime: i64::try_from(settings.ucp.session.as_micros()).unwrap_or(i64::MAX),
        now: Box::new(move || clock.unix_micros()),
        draw: Box::new(move |out| entropy.fill(out)),
    })
}

/// Names of requests to buy, for every route. To be made before the first request is let in.
pub(crate) fn once(store: &Arc<dyn Store>, clock: &Clock) -> IdempotencyKeys {
    let clock = clock.clone();
    IdempotencyKeys::new(store.clone(), Box::new(move || clock.unix_micros()))
}
