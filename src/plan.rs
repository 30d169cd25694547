//! Construction of the plan's processor, of checkouts and of idempotency keys from the settings.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_ledger::Ledger;
use tollgate_purchase::checkouts::{self, Checkouts};
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::{PlanDeps, Plans};
use tollgate_store::Store;

use crate::config::Settings;

/// The processor by which every payment route records payments for the plan.
pub(crate) fn plans(
    settings: &Settings,
    (store, ledger): (&Arc<dyn Store>, &Ledger),
    (clock, entropy): (&Clock, &Entropy),
) -> Plans {
    let entropy = entropy.clone();
    Plans::new(PlanDeps {
        store: store.clone(),
        ledger: ledger.clone(),
        plan: settings.plan.clone(),
        clock: clock.clone(),
        draw: Box::new(move |out| entropy.fill(out)),
    })
}

/// The store of checkouts; without mandates none is started.
pub(crate) fn checkouts(
    settings: &Settings,
    (store, plans): (&Arc<dyn Store>, &Plans),
    mandates: Option<Mandates>,
    (clock, entropy): (&Clock, &Entropy),
) -> Checkouts {
    let entropy = entropy.clone();
    Checkouts::new(checkouts::CheckoutDeps {
        store: store.clone(),
        plans: plans.clone(),
        mandates,
        lifetime: settings.ucp.session,
        clock: clock.clone(),
        draw: Box::new(move |out| entropy.fill(out)),
    })
}

/// Idempotency keys of purchases, for every route. Must be created before the first request is accepted.
pub(crate) fn idempotency_keys(store: &Arc<dyn Store>, clock: &Clock) -> IdempotencyKeys {
    IdempotencyKeys::new(store.clone(), clock.clone())
}
