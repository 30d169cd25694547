//! The module `meter`: the filter and its metrics.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_counters::{Metric, metrics};
use tollgate_filter::{HitPrice, HoldLifetime};
use tollgate_ledger::Ledger;
use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, Reloadable, SectionType, Services, Snapshot,
    provided, reload_snapshot,
};
use tollgate_purchase::Credits;

use crate::config::RawMeter;
use crate::{Meter, MeterSettings};

provided! { "meter" => [MeterSettings]; }

metrics! {
    METER_EVENTS = "tollgate_meter_total", Counter, ["event"],
        "Exceptions in metering: requests clamped, requests refused, reported usage bounded.";
    ABANDONED_WORK = "tollgate_abandoned_work_total", Counter, [],
        "Tokens of the providers' work for clients that disconnected before any output, which was not charged: prompts, and 100 for each second.";
    WRITTEN_OFF = "tollgate_written_off_microcredits_total", Counter, [],
        "Micro-credits of usage written off, since the account could not pay for them.";
}

/// How long a key's spending stays in memory without use. Longer than a request waits before its hold: for its body, and for an equal
/// request under way.
const KEPT_IDLE: Duration = Duration::from_secs(1800);

/// Holds and settlements of completions.
pub struct MeterModule;

impl Reloadable for MeterSettings {
    /// The lifetime of a hold, the handling of a client's disconnection, the number of counting threads and the limit of new accounts were
    /// copied at the start.
    fn fixed(&self, new: &MeterSettings) -> Vec<(&'static str, bool)> {
        vec![
            ("credit_limit", self.credit_limit != new.credit_limit),
            ("drain_secs", self.drain != new.drain),
            ("after_leaving", self.after_leaving != new.after_leaving),
            ("hold_secs", self.hold != new.hold),
            (
                "estimate.parallel",
                self.count_parallel != new.count_parallel,
            ),
        ]
    }
}

impl Module for MeterModule {
    fn name(&self) -> &'static str {
        "meter"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![FilterType::named("meter").needs(&["auth", "completions"])]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawMeter>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let clock: Clock = build.get()?;
        let settings: MeterSettings = build.get()?;
        let ledger: Ledger = build.get()?;
        let (idle, today) = (ledger.clone(), clock.clone());
        build.sweep(move || idle.evict_spending(today.now(), KEPT_IDLE));
        build.provide(HoldLifetime(settings.hold));
        let settings = Snapshot::from(settings);
        build.provide(settings.clone());
        let credits: Credits = build.get()?;
        let mut meter = Meter::new(settings, ledger, clock, &credits.topup_url);
        if let Some(HitPrice(ppm)) = build.find() {
            meter = meter.hit_price_ppm(ppm);
        }
        let counters = meter.counters();
        build.metrics(Box::new(move |samples| {
            samples.numbers(METER_EVENTS, counters.events.values());
            samples.number(WRITTEN_OFF, counters.written_off_micros());
        }));
        let meter = Arc::new(meter);
        let counted = meter.clone();
        build.metrics(Box::new(move |samples| {
            samples.number(ABANDONED_WORK, counted.abandoned_tokens());
        }));
        build.shared_filter("meter", meter);
        Ok(())
    }

    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        reload_snapshot::<MeterSettings>(self.name(), (running, settings))
    }
}

#[cfg(test)]
mod tests {
    use tollgate_module::check_reload;

    use super::*;

    #[test]
    fn a_reload_changes_what_is_not_fixed_at_the_start() {
        let fixed = [
            "credit_limit = '1'",
            "drain_secs = 1",
            "after_leaving = 'stop'",
            "hold_secs = 60",
            "estimate.parallel = 1",
        ];
        check_reload::<RawMeter>(
            &MeterModule,
            &fixed,
            "clamp_tokens_min = 1\nestimate.bytes_per_token = 1\nabandoned_tokens_max = 5",
        );
    }
}
