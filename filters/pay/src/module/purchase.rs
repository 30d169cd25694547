//! The module `purchase`: the plan, idempotency keys of purchases, and the sections `[credits]` and `[plan]`.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_counters::{Metric, metrics};
use tollgate_ledger::Ledger;
use tollgate_module::{Build, BuildError, Module, SectionType};
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::plan::{OwedCredits, Plan, PlanDeps, Plans};
use tollgate_store::Store;

use crate::settings::{RawCredits, RawPlan};

metrics! {
    PLAN_PAYMENTS = "tollgate_plan_payments_total", Counter, ["event"],
        "Payments for the plan: recorded by route (x402, paypal), repeated, surplus (charged while another subscription was active), returned.";
}

/// Shared parts of the payment routes.
pub struct PurchaseModule;

impl Module for PurchaseModule {
    fn name(&self) -> &'static str {
        "purchase"
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![
            SectionType::of::<RawCredits>(),
            SectionType::of::<RawPlan>(),
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let store: Arc<dyn Store> = build.get()?;
        let (clock, entropy): (Clock, Entropy) = (build.get()?, build.get()?);
        let ledger: Ledger = build.get()?;
        let plans = plans(build.get()?, (&store, &ledger), (&clock, &entropy));
        // Before the first request: a key that is being used must be known from the start.
        build.provide(IdempotencyKeys::new(store, clock));
        let counted = plans.clone();
        build.metrics(Box::new(move |samples| {
            samples.numbers(PLAN_PAYMENTS, counted.counters().values());
        }));
        let owed = Arc::new(OwedCredits::worker(&plans, build.get()?));
        build.leader_job(move || {
            let owed = owed.clone();
            async move { owed.run().await }
        });
        build.provide(plans);
        Ok(())
    }
}

/// The processor by which every payment route records payments for the plan.
pub fn plans(
    plan: Plan,
    (store, ledger): (&Arc<dyn Store>, &Ledger),
    (clock, entropy): (&Clock, &Entropy),
) -> Plans {
    let entropy = entropy.clone();
    Plans::new(PlanDeps {
        store: store.clone(),
        ledger: ledger.clone(),
        plan,
        clock: clock.clone(),
        draw: Box::new(move |out| entropy.fill(out)),
    })
}
