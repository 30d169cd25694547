//! The module `rate-limit`: the filters `address-limit` and `rate-limit`, which share their counters.

use std::sync::Arc;

use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, SectionType, Services, Snapshot, provided,
};

use crate::builder::RateLimits;
use crate::config::Limits;
use crate::config::RawLimits;
use crate::counters::Counters;
use crate::in_force::InForce;

provided! { "rate-limit" => [Limits, InForce]; }

/// Limits of requests, tokens and concurrency by rate class.
pub struct RateLimitModule;

impl Module for RateLimitModule {
    fn name(&self) -> &'static str {
        "rate-limit"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![
            FilterType::named("address-limit").before(&["auth"]),
            FilterType::named("rate-limit").after(&["auth"]),
        ]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawLimits>()]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let counters = Arc::new(Counters::default());
        let limits = RateLimits::new(build.get()?, counters, build.get()?, build.get()?);
        let limits = limits.sharing(build.find());
        if let Some(renewal) = limits.renewal() {
            build.background(renewal);
        }
        build.provide(limits.in_force.clone());
        build.shared_filter("address-limit", Arc::new(limits.address_limit()));
        build.filter("rate-limit", move |route| {
            let filter = limits.rate_limit(route.class);
            Ok(Arc::new(filter.map_err(BuildError::of)?))
        });
        Ok(())
    }

    /// Counts go on under the new quotas. Another set of classes, and the first or last limit of tokens or of concurrent requests, need a
    /// restart.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        let in_force: Snapshot<InForce> = running.get(self.name())?;
        let limits: Limits = settings.get(self.name())?;
        let new = InForce::new(&limits);
        let refused = Reload::refused([("classes", !in_force.load().fits(&new))]);
        Ok(refused.unwrap_or_else(|| Reload::ready(move || in_force.replace(new))))
    }
}
