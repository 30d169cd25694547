//! Values that other parts keep themselves, collected when the metrics are read.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tollgate_cache::Cache;
use tollgate_commerce::WebhookResult;
use tollgate_counters::Counters;
use tollgate_idempotency::KeyEvent;
use tollgate_ledger::Ledger;
use tollgate_meter::MeterCounters;
use tollgate_pay::x402::Processor;
use tollgate_purchase::TopUps;
use tollgate_purchase::mandates::Mandates;
use tollgate_purchase::plan::Plans;
use tollgate_store::{Histogram, Store};

use super::collector::{Samples, Source};
use super::names;
use crate::upstream::{ProviderView, Providers};

const MICROS_PER_SECOND: f64 = 1e6;

/// The writer of the store: its queue, commits and entries.
pub fn store(store: Arc<dyn Store>) -> Source {
    Box::new(move |samples| {
        let gauges = store.gauges();
        samples.number(names::COMMIT_QUEUE, gauges.queue_depth.load(Relaxed));
        samples.number(names::COMMIT_OVERLOADS, gauges.overloads.load(Relaxed));
        powers(samples, names::COMMIT_UNITS, &gauges.batch_size, 1.0);
        powers(
            samples,
            names::COMMIT_SECONDS,
            &gauges.commit_us,
            MICROS_PER_SECOND,
        );
        powers(
            samples,
            names::POSTING_SECONDS,
            &gauges.posting_us,
            MICROS_PER_SECOND,
        );
        powers(
            samples,
            names::CHECKPOINT_SECONDS,
            &gauges.checkpoint_us,
            MICROS_PER_SECOND,
        );
        samples.number(names::LEDGER_ENTRIES, gauges.entries.load(Relaxed));
        samples.number(names::LEDGER_FOLDED, gauges.folded.load(Relaxed));
        samples.number(names::WAL_BYTES, gauges.wal_bytes.load(Relaxed));
    })
}

/// The open holds.
pub fn ledger(ledger: Ledger) -> Source {
    Box::new(move |samples| {
        let totals = ledger.totals();
        samples.number(names::OPEN_HOLDS, totals.open_holds);
        samples.number(names::HELD, totals.held.get());
    })
}

/// The counters of the meter.
pub fn meter(counters: Arc<MeterCounters>) -> Source {
    Box::new(move |samples| {
        samples.numbers(names::METER_EVENTS, counters.events.values());
        samples.number(names::WRITTEN_OFF, counters.written_off_micros());
    })
}

/// The providers: their health, their queues, and the retries after their failures.
pub(crate) fn providers(providers: Arc<Providers>) -> Source {
    type Number = (names::Metric, fn(&ProviderView) -> u64);
    const NUMBERS: &[Number] = &[
        (names::PROVIDER_STATE, |one| match one.state.as_str() {
            "working" => 0,
            "half_open" => 1,
            _ => 2,
        }),
        (names::PROVIDER_ACCOUNT_CIRCUITS, |one| {
            one.models
                .iter()
                .map(|model| model.accounts_open as u64)
                .sum()
        }),
        (names::PROVIDER_CALLS, |one| one.calls.into()),
        (names::PROVIDER_QUEUE, |one| one.waiting.into()),
        (names::PROVIDER_WAITED, |one| one.waited),
        (names::PROVIDER_WAIT, |one| one.waited_us),
        (names::PROVIDER_FULL, |one| one.rejected),
        (names::FAILOVERS, |one| one.followed),
        (names::RETRIES_REFUSED, |one| one.not_followed),
        (names::HEDGES_WON, |one| one.hedges_won),
        (names::HEDGES_LOST, |one| one.hedges_lost),
    ];
    Box::new(move |samples| {
        let view = providers.view();
        for (metric, number) in NUMBERS {
            let values = view.iter().map(|one| (&*one.name, number(one)));
            samples.numbers(*metric, values);
        }
    })
}

/// The contents and counters of the cache.
pub fn cache(cache: Arc<Cache>) -> Source {
    let counters = cache.counters();
    Box::new(move |samples| {
        samples.numbers(names::CACHE_LOOKUPS, counters.lookups.values());
        samples.numbers(names::CACHE_STORES, counters.stores.values());
        samples.numbers(names::CACHE_REMOVED, counters.removals.values());
        samples.numbers(names::CACHE_FOLLOWERS, counters.followers.values());
        let totals = cache.totals();
        samples.number(names::CACHE_WAITING, totals.waiting);
        samples.number(names::CACHE_ENTRIES, totals.entries);
        samples.number(names::CACHE_BYTES, totals.bytes);
    })
}

/// The results of requests with an idempotency key.
pub fn idempotency(counters: Arc<Counters<KeyEvent>>) -> Source {
    Box::new(move |samples| samples.numbers(names::IDEMPOTENCY_EVENTS, counters.values()))
}

/// The results of a payment provider's notifications.
pub fn notices(counters: Arc<Counters<WebhookResult>>) -> Source {
    Box::new(move |samples| samples.numbers(names::PAYMENT_NOTICES, counters.values()))
}

/// The results of purchases of credits; all zero where nothing can be bought.
pub fn purchases(top_ups: Option<TopUps>) -> Source {
    let zero = Counters::default();
    Box::new(move |samples| {
        let counters = top_ups.as_ref().map_or(&zero, TopUps::counters);
        samples.numbers(names::PURCHASES, counters.values());
    })
}

/// The results of payments for the plan.
pub fn plan(plans: Plans) -> Source {
    Box::new(move |samples| samples.numbers(names::PLAN_PAYMENTS, plans.counters().values()))
}

/// The results of signed transfers; all zero where none are accepted.
pub fn x402(processor: Option<Processor>, store: Arc<dyn Store>) -> Source {
    let zero = Counters::default();
    Box::new(move |samples| {
        let counters = processor.as_ref().map_or(&zero, Processor::counters);
        samples.numbers(names::X402_PAYMENTS, counters.values());
        let open = store.authorizations_moving().unwrap_or_default();
        samples.number(names::X402_OPEN, open);
        let up = processor
            .as_ref()
            .is_some_and(|processor| processor.is_available());
        samples.number(names::X402_UP, i128::from(up));
    })
}

/// The results of mandates for the monthly charge of the plan; all zero where the plan is not sold in this way.
pub fn mandates(mandates: Option<Mandates>) -> Source {
    let zero = Counters::default();
    Box::new(move |samples| {
        let counters = mandates.as_ref().map_or(&zero, Mandates::counters);
        samples.numbers(names::MANDATES, counters.values());
    })
}

/// Writes a histogram of powers of two; `unit` of its values are one of the metric's.
fn powers(samples: &mut Samples, metric: names::Metric, histogram: &Histogram, unit: f64) {
    let counts = histogram.counts();
    let (above, below) = counts.split_last().expect("a histogram has buckets");
    let buckets = below
        .iter()
        .enumerate()
        .map(|(power, count)| ((1u64 << power) as f64 / unit, *count));
    samples.histogram(metric, buckets, *above, histogram.sum() as f64 / unit);
}
