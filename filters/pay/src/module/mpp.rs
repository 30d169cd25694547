//! The processor of `Payment` challenges for the plan, built from `[payments.mpp]`.

use tollgate_module::{Build, BuildError, Services, Snapshot};
use tollgate_purchase::mandates::Mandates;

use super::NAME;
use crate::mpp::{MppDeps, Processor, Settings};

/// The processor; `None` without a secret for challenges, or without a provider of the monthly charge.
pub(super) fn processor(build: &mut Build<'_>) -> Result<Option<Processor>, BuildError> {
    let settings: Option<Settings> = build.get()?;
    let mandates = build.find().filter(Mandates::has_plan);
    let (Some(settings), Some(mandates)) = (settings, mandates) else {
        return Ok(None);
    };
    let settings = Snapshot::from(settings);
    build.provide(settings.clone());
    Ok(Some(Processor::new(MppDeps {
        product: build.get()?,
        plans: build.get()?,
        mandates,
        idempotency_keys: build.get()?,
        settings,
        clock: build.get()?,
        entropy: build.get()?,
        runtime: build.get()?,
    })))
}

/// Effect of a reload on the challenges.
pub(super) struct Reloaded {
    /// Whether the reload begins or ends the offer of challenges.
    pub(super) is_switched: bool,
    /// Puts the new settings in force.
    pub(super) apply: Box<dyn FnOnce() + Send>,
}

/// Prepares other secrets and forms of challenges. The presence of challenges is fixed, since documents and pages depend on their presence.
pub(super) fn reload(running: &Services, settings: &Services) -> Result<Reloaded, BuildError> {
    let (old, new): (Option<Settings>, Option<Settings>) =
        (running.get(NAME)?, settings.get(NAME)?);
    let in_force: Option<Snapshot<Settings>> = running.find();
    Ok(Reloaded {
        is_switched: old.is_some() != new.is_some(),
        apply: Box::new(move || {
            if let (Some(in_force), Some(new)) = (in_force, new) {
                in_force.replace(new);
            }
        }),
    })
}
