//! The module `mpp`: the processor of `Payment` challenges for the plan, built from `[payments.mpp]`.

use std::sync::Arc;

use secrecy::ExposeSecret;
use tollgate_clock::{Clock, Entropy};
use tollgate_module::{Build, BuildError, Module};
use tollgate_pay::mpp::{MppDeps, Processor, Secrets, Settings as Challenges};
use tollgate_purchase::PurchaseTasks;
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::mandates::{Mandates, Urls};
use tollgate_purchase::plan::Plans;
use tollgate_purchase::wire::Product;

use crate::config::{BaseUrl, Settings};

/// Sale of the plan by the `Payment` scheme.
pub(crate) struct MppModule;

impl Module for MppModule {
    fn name(&self) -> &'static str {
        "mpp"
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let settings: Arc<Settings> = build.get()?;
        let mandates: Option<Mandates> = build.find();
        let processor = processor(
            &settings,
            (&build.get()?, mandates.as_ref(), &build.get()?),
            (&build.get()?, &build.get()?),
            build.get()?,
        );
        if let Some(processor) = processor {
            build.provide(processor);
        }
        Ok(())
    }
}

/// The processor; `None` where there is no secret to bind challenges with, or no provider for the monthly charge.
fn processor(
    settings: &Settings,
    (plans, mandates, idempotency_keys): (&Plans, Option<&Mandates>, &IdempotencyKeys),
    (clock, entropy): (&Clock, &Entropy),
    runtime: PurchaseTasks,
) -> Option<Processor> {
    let mpp = settings.payments.mpp.as_ref()?;
    let Some(mandates) = mandates.filter(|mandates| mandates.has_plan()) else {
        tracing::warn!(
            "`payments.mpp` has no effect: the plan is charged by PayPal, and `payments.paypal` does not name a plan"
        );
        return None;
    };
    let service = &settings.service;
    let (base, root) = (service.base_url.as_str(), service.root_url.as_str());
    let secret = mpp.secret.expose_secret().as_bytes();
    let previous = mpp
        .previous
        .as_ref()
        .map(|one| one.expose_secret().as_bytes());
    let url: BaseUrl = base.parse().expect("it was checked");
    Some(Processor::new(MppDeps {
        product: Product::new(plans.plan(), base, root),
        plans: plans.clone(),
        mandates: mandates.clone(),
        idempotency_keys: idempotency_keys.clone(),
        settings: Challenges {
            secrets: Secrets::new(secret, previous).expect("their lengths were checked"),
            realm: url.host,
            digest: mpp.digest,
            own_field: mpp.own_field,
            urls: Urls {
                return_url: format!("{base}/plan/back/{{mandate}}"),
                cancel_url: format!("{base}/plan/back/{{mandate}}?from=cancel"),
            },
        },
        clock: clock.clone(),
        entropy: entropy.clone(),
        runtime,
    }))
}
