//! The processor of `Payment` challenges for the plan, built from `[payments.mpp]`.

use tollgate_filter::ServiceIdentity;
use tollgate_module::{Build, BuildError};
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::Plan;
use tollgate_purchase::wire::Product;

use crate::mpp::{MppDeps, Processor, Settings};

/// The processor; `None` where there is no secret to bind challenges with, or no provider for the monthly charge.
pub(super) fn processor(build: &mut Build<'_>) -> Result<Option<Processor>, BuildError> {
    let settings: Option<Settings> = build.get()?;
    let mandates = build.find().filter(Mandates::has_plan);
    let (Some(settings), Some(mandates)) = (settings, mandates) else {
        return Ok(None);
    };
    let (plan, service): (Plan, ServiceIdentity) = (build.get()?, build.get()?);
    Ok(Some(Processor::new(MppDeps {
        product: Product::new(&plan, &service.base_url, build.get()?),
        plans: build.get()?,
        mandates,
        idempotency_keys: build.get()?,
        settings,
        clock: build.get()?,
        entropy: build.get()?,
        runtime: build.get()?,
    })))
}
