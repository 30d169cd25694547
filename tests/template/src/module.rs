//! The module `office-hours`: its settings, its filter and its counter.

use std::sync::Arc;

use tollgate_counters::{Counters, Metric, metrics};
use tollgate_module::{Build, BuildError, FilterType, Module, SectionType, provided};

use crate::config::{OfficeHoursSettings, RawOfficeHours};
use crate::filter::OfficeHours;

provided! { "office-hours" => [OfficeHoursSettings]; }

metrics! {
    OFFICE_HOURS = "tollgate_office_hours_total", Counter, ["decision"],
        "Requests to routes with office hours, by decision.";
}

/// Office hours.
pub struct OfficeHoursModule;

impl Module for OfficeHoursModule {
    fn name(&self) -> &'static str {
        "office-hours"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("office-hours")]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawOfficeHours>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let filter = Arc::new(OfficeHours {
            settings: build.get()?,
            counters: Counters::default(),
            clock: build.get()?,
        });
        let counted = filter.clone();
        build.metrics(Box::new(move |samples| {
            samples.numbers(OFFICE_HOURS, counted.counters.values());
        }));
        build.shared_filter("office-hours", filter);
        Ok(())
    }
}
