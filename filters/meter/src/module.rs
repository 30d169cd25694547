//! The module `meter`: the filter and its metrics.

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_counters::{Metric, metrics};
use tollgate_filter::{HitPrice, HoldLifetime};
use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, SectionType, Services, Snapshot, provided,
    reload_snapshot,
};
use tollgate_purchase::Credits;
use tollgate_store::Store;

use crate::config::RawMeter;
use crate::{Meter, MeterSettings, Spending};

provided! { "meter" => [MeterSettings]; }

metrics! {
    METER_EVENTS = "tollgate_meter_total", Counter, ["event"],
        "Exceptions in metering: requests clamped, requests refused, reported usage bounded.";
    WRITTEN_OFF = "tollgate_written_off_microcredits_total", Counter, [],
        "Micro-credits of usage written off, since the account could not pay for them.";
}

/// Holds and settlements of completions.
pub struct MeterModule;

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
        let (store, clock): (Arc<dyn Store>, Clock) = (build.get()?, build.get()?);
        let settings: MeterSettings = build.get()?;
        let spending = Spending::open(&*store, clock.now()).map_err(|error| {
            BuildError::caused_by(
                "cannot read what credentials have spent; restore a backup if the error persists",
                error,
            )
        })?;
        build.provide(HoldLifetime(settings.hold));
        let settings = Snapshot::from(settings);
        build.provide(settings.clone());
        let credits: Credits = build.get()?;
        let mut meter =
            Meter::new(settings, build.get()?, clock, &credits.topup_url).spending(spending);
        if let Some(HitPrice(ppm)) = build.find() {
            meter = meter.hit_price_ppm(ppm);
        }
        let counters = meter.counters();
        build.metrics(Box::new(move |samples| {
            samples.numbers(METER_EVENTS, counters.events.values());
            samples.number(WRITTEN_OFF, counters.written_off_micros());
        }));
        build.shared_filter("meter", Arc::new(meter));
        Ok(())
    }

    /// The estimate and the smallest cap change with the next request. The lifetime of a hold, what follows a client's disconnection, the
    /// number of counting threads and the limit of new accounts were copied at the start.
    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        reload_snapshot(
            self.name(),
            (running, settings),
            |old: &MeterSettings, new| {
                let changed = MeterSettings {
                    clamp_tokens_min: new.clamp_tokens_min,
                    bytes_per_token: new.bytes_per_token,
                    ..old.clone()
                };
                changed == *new
            },
        )
    }
}
