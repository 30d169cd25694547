//! The module `idempotency`: the filter and its counters, and the removal of expired records.

use std::sync::Arc;

use tollgate_counters::{Metric, metrics};
use tollgate_filter::HoldLifetime;
use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, Reloadable, SectionType, Services, Snapshot,
    provided, reload_snapshot,
};

use crate::config::RawIdempotency;
use crate::{Idempotency, IdempotencySettings};

provided! { "idempotency" => [IdempotencySettings]; }

metrics! {
    IDEMPOTENCY_EVENTS = "tollgate_idempotency_total", Counter, ["event"],
        "Requests with an Idempotency-Key: the first of their key, answered from the record, refused; and answers too large to be kept.";
}

/// Repeats of requests with an `Idempotency-Key`.
pub struct IdempotencyModule;

impl Reloadable for IdempotencySettings {
    fn fixed(&self, _: &IdempotencySettings) -> Vec<(&'static str, bool)> {
        Vec::new()
    }
}

impl Module for IdempotencyModule {
    fn name(&self) -> &'static str {
        "idempotency"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![
            FilterType::named("idempotency")
                .needs(&["auth", "completions"])
                .before(&["meter"]),
        ]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawIdempotency>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let HoldLifetime(hold) = build.get()?;
        let settings: IdempotencySettings = build.get()?;
        let settings = Snapshot::from(settings);
        build.provide(settings.clone());
        let filter = Idempotency::new(settings, hold, build.get()?, build.get()?);
        let filter = Arc::new(filter);
        let counters = filter.counters();
        build.metrics(Box::new(move |samples| {
            samples.numbers(IDEMPOTENCY_EVENTS, counters.values());
        }));
        let swept = filter.clone();
        build.sweep(move || swept.forget());
        build.shared_filter("idempotency", filter);
        Ok(())
    }

    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        reload_snapshot::<IdempotencySettings>(self.name(), (running, settings))
    }
}

#[cfg(test)]
mod tests {
    use tollgate_module::check_reload;

    use super::*;

    #[test]
    fn a_reload_changes_every_setting() {
        check_reload::<RawIdempotency>(
            &IdempotencyModule,
            &[],
            "keep_secs = 60\nanswer_bytes_max = 1024",
        );
    }
}
