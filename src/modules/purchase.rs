//! The module `purchase`: plan, checkouts, idempotency keys of purchases, and what is paid with PayPal.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_commerce::UcpSettings;
use tollgate_counters::{Counters, Metric, metrics};
use tollgate_ledger::Ledger;
use tollgate_module::{Build, BuildError, Module};
use tollgate_purchase::checkouts::{CheckoutDeps, Checkouts};
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::{OwedCredits, Plan, PlanDeps, Plans};
use tollgate_purchase::{PurchaseTasks, TopUps};
use tollgate_store::Store;

use super::paypal::PayPal;
use crate::config::Settings;

metrics! {
    PURCHASES = "tollgate_purchases_total", Counter, ["event"],
        "Purchases of credits: begun, captured, failed, declined, unclear (an answer was lost), stuck (needs an operator), returned.";
    PLAN_PAYMENTS = "tollgate_plan_payments_total", Counter, ["event"],
        "Payments for the plan: recorded by route (x402, paypal), repeated, surplus (charged while another subscription was active), returned.";
    MANDATES = "tollgate_mandates_total", Counter, ["event"],
        "Mandates, the permission to charge for the plan each month: begun, activated (first paid), charges paid, advanced (a day for a payment not listed yet), past_due, ended, surplus (not wanted), refunded, returned, unclear (an answer was lost), stuck (needs an operator).";
}

/// What all routes of payment share.
pub(crate) struct PurchaseModule;

impl Module for PurchaseModule {
    fn name(&self) -> &'static str {
        "purchase"
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let settings: Arc<Settings> = build.get()?;
        let store: Arc<dyn Store> = build.get()?;
        let (clock, entropy): (Clock, Entropy) = (build.get()?, build.get()?);
        let ledger: Ledger = build.get()?;
        let tasks: PurchaseTasks = build.get()?;
        let plans = plans(build.get()?, (&store, &ledger), (&clock, &entropy));
        let paypal = PayPal::new(
            &settings,
            (&store, &ledger, &plans),
            (&clock, &entropy),
            tasks.clone(),
        )
        .map_err(BuildError::of)?;
        let top_ups = paypal.as_ref().and_then(|paypal| paypal.top_ups.clone());
        let mandates = paypal.as_ref().map(|paypal| paypal.mandates.clone());
        let checkouts = checkouts(
            &settings,
            (&store, &plans),
            mandates.clone(),
            (&clock, &entropy),
        );
        let swept = checkouts.clone();
        build.sweep(move || swept.forget());
        build.provide(checkouts);
        // Before the first request: a key that is being used must be known from the start.
        build.provide(IdempotencyKeys::new(store.clone(), clock.clone()));
        build.metrics(source(plans.clone(), top_ups.clone(), mandates.clone()));
        let owed = OwedCredits::worker(&plans, tasks);
        build.background(async move { owed.run().await });
        build.provide(plans);
        if let Some(top_ups) = top_ups {
            build.provide(top_ups);
        }
        if let Some(mandates) = mandates {
            build.provide(mandates);
        }
        if let Some(paypal) = paypal {
            build.provide(paypal.client.clone());
            build.background(paypal.run());
        }
        Ok(())
    }
}

/// The results of purchases; all zero where nothing can be bought.
fn source(
    plans: Plans,
    top_ups: Option<TopUps>,
    mandates: Option<Mandates>,
) -> tollgate_counters::Source {
    let (no_top_ups, no_mandates) = (Counters::default(), Counters::default());
    Box::new(move |samples| {
        samples.numbers(PLAN_PAYMENTS, plans.counters().values());
        let counters = top_ups.as_ref().map_or(&no_top_ups, TopUps::counters);
        samples.numbers(PURCHASES, counters.values());
        let counters = mandates.as_ref().map_or(&no_mandates, Mandates::counters);
        samples.numbers(MANDATES, counters.values());
    })
}

/// The processor by which every payment route records payments for the plan.
pub(crate) fn plans(
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

/// The store of checkouts; without mandates none is started.
fn checkouts(
    settings: &Settings,
    (store, plans): (&Arc<dyn Store>, &Plans),
    mandates: Option<Mandates>,
    (clock, entropy): (&Clock, &Entropy),
) -> Checkouts {
    let ucp: UcpSettings = settings.sections.find().unwrap_or_default();
    let entropy = entropy.clone();
    Checkouts::new(CheckoutDeps {
        store: store.clone(),
        plans: plans.clone(),
        mandates,
        lifetime: ucp.session,
        clock: clock.clone(),
        draw: Box::new(move |out| entropy.fill(out)),
    })
}
