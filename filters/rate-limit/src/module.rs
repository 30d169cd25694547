//! The module `rate-limit`: the filters `address-limit` and `rate-limit`, with shared counters.

use std::sync::Arc;

use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, SectionType, Services, provided,
};

use crate::builder::RateLimits;
use crate::config::Limits;
use crate::config::RawLimits;
use crate::counters::Counters;

/// The name of the module.
const NAME: &str = "rate-limit";

provided! { NAME => [Limits]; }

/// Limits of requests, tokens and concurrency by rate class.
pub struct RateLimitModule;

impl Module for RateLimitModule {
    fn name(&self) -> &'static str {
        NAME
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
        let limits: Limits = build.get()?;
        let limits = RateLimits::new(&limits, counters, build.get()?, build.get()?);
        let limits = limits.sharing(build.find());
        if let Some(renewal) = limits.renewal() {
            build.background(renewal);
        }
        let of_addresses = limits.clone();
        build.filter("address-limit", move |route| {
            let limits: Limits = route.services.get(NAME)?;
            Ok(Arc::new(of_addresses.with_limits(&limits).address_limit()))
        });
        build.filter("rate-limit", move |route| {
            let new: Limits = route.services.get(NAME)?;
            let filter = limits.with_limits(&new).rate_limit(route.class);
            Ok(Arc::new(filter.map_err(BuildError::of)?))
        });
        Ok(())
    }

    /// The filters of every route are built again, with the limits of the new settings. Counts continue.
    fn reload(&self, _: &Services, _: &Services) -> Result<Reload, BuildError> {
        Ok(Reload::ready(|| {}))
    }
}
