//! The module `pay`: the payment protocols of the plan, their sections and metrics, and the reconciliation of signed transfers.

mod mpp;
mod paypal;
mod purchase;
mod x402;

use std::sync::Arc;

use tollgate_counters::{Counters, Metric, metrics};
use tollgate_filter::PaymentPaths;
use tollgate_module::{Build, BuildError, FilterType, Module, SectionType};
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::{Plan, PlanProtocols};
use tollgate_store::Store;

use crate::settings::{RawMpp, RawX402, X402Settings};
use crate::x402::Processor;
use crate::{Pay, PaymentProtocols};

pub use paypal::PayPalModule;
pub use purchase::{PurchaseModule, plans};

metrics! {
    X402_PAYMENTS = "tollgate_x402_payments_total", Counter, ["event"],
        "Signed transfers: settled, refused, unclear for a time, dead (never moved money), stuck (needs an operator), contradicted (the chain differs from what the facilitator answered), unconfirmed (refused after submission, and no node confirms it), vanished from the chain, taken (presented first by another account).";
    X402_OPEN = "tollgate_x402_open", Gauge, [],
        "Signed transfers that may still move money.";
    X402_UP = "tollgate_x402_up", Gauge, [],
        "Whether the facilitator settles what is offered: 1 or 0.";
}

/// Sale of the plan over x402 and MPP.
pub struct PayModule;

impl Module for PayModule {
    fn name(&self) -> &'static str {
        "pay"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("pay").needs(&["auth"])]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawMpp>(), SectionType::of::<RawX402>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let plan: Plan = build.get()?;
        let configured = configured(build)?;
        build.provide(configured);
        let mpp = mpp::processor(build)?;
        let x402 = x402::processor(build)?;
        build.metrics(source(x402.clone(), build.get()?));
        if let Some(processor) = x402.clone() {
            let checked = processor.clone();
            build.background(async move { checked.run_checks().await });
            build.duty(move || {
                let processor = processor.clone();
                async move { processor.run().await }
            });
        }
        let protocols = PaymentProtocols::new(plan.slug, mpp, x402);
        build.provide(PaymentPaths(Pay::shares_authorization));
        build.filter("pay", move |route| {
            let filter = Pay::new(&protocols, route.path);
            Ok(Arc::new(filter.map_err(BuildError::of)?))
        });
        Ok(())
    }
}

/// The protocols that are configured: with a monthly plan at PayPal, checkouts and, with a secret for its challenges, MPP.
fn configured(build: &mut Build<'_>) -> Result<PlanProtocols, BuildError> {
    let x402: Option<X402Settings> = build.get()?;
    let mpp: Option<crate::mpp::Settings> = build.get()?;
    let mandates: Option<Mandates> = build.find();
    let paypal = mandates.is_some_and(|mandates| mandates.has_plan());
    Ok(PlanProtocols {
        x402: x402.is_some(),
        mpp: mpp.is_some() && paypal,
        paypal,
    })
}

/// The results of signed transfers; all zero where none are accepted.
fn source(processor: Option<Processor>, store: Arc<dyn Store>) -> tollgate_counters::Source {
    let zero = Counters::default();
    Box::new(move |samples| {
        let counters = processor.as_ref().map_or(&zero, Processor::counters);
        samples.numbers(X402_PAYMENTS, counters.values());
        samples.number(X402_OPEN, store.authorizations_moving().unwrap_or_default());
        let is_up = processor.as_ref().is_some_and(Processor::is_available);
        samples.number(X402_UP, i128::from(is_up));
    })
}
