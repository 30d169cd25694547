//! Values that other parts keep themselves, collected when the metrics are read.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tollgate_counters::{Metric, Samples, Source};
use tollgate_ledger::Ledger;
use tollgate_store::{Histogram, Store};

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

/// The providers: their health, their queues, and the retries after their failures.
pub(crate) fn providers(providers: Arc<Providers>) -> Source {
    type Number = (Metric, fn(&ProviderView) -> u64);
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

/// Writes a histogram of powers of two; `unit` of its values are one of the metric's.
fn powers(samples: &mut Samples, metric: Metric, histogram: &Histogram, unit: f64) {
    let counts = histogram.counts();
    let (above, below) = counts.split_last().expect("a histogram has buckets");
    let buckets = below
        .iter()
        .enumerate()
        .map(|(power, count)| ((1u64 << power) as f64 / unit, *count));
    samples.histogram(metric, buckets, *above, histogram.sum() as f64 / unit);
}
