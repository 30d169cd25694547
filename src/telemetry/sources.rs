//! Values that other parts keep themselves, collected when the metrics are read.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tollgate_cache::{Cache, Following, Lookup, Removal, Storing};
use tollgate_ledger::Ledger;
use tollgate_meter::Counters;
use tollgate_store::{Histogram, Store};

use super::metrics::{Page, Source};
use super::names;
use crate::upstream::{ProviderView, Providers};

const MICROS_PER_SECOND: f64 = 1e6;

/// The writer of the store: its queue, commits and entries.
pub fn store(store: Arc<dyn Store>) -> Source {
    Box::new(move |page| {
        let gauges = store.gauges();
        page.number(names::COMMIT_QUEUE, gauges.queue_depth.load(Relaxed).into());
        page.number(
            names::COMMIT_OVERLOADS,
            gauges.overloads.load(Relaxed).into(),
        );
        powers(page, names::COMMIT_UNITS, &gauges.batch_size, 1.0);
        powers(
            page,
            names::COMMIT_SECONDS,
            &gauges.commit_us,
            MICROS_PER_SECOND,
        );
        powers(
            page,
            names::POSTING_SECONDS,
            &gauges.posting_us,
            MICROS_PER_SECOND,
        );
        powers(
            page,
            names::CHECKPOINT_SECONDS,
            &gauges.checkpoint_us,
            MICROS_PER_SECOND,
        );
        page.number(names::LEDGER_ENTRIES, gauges.entries.load(Relaxed).into());
        page.number(names::LEDGER_FOLDED, gauges.folded.load(Relaxed).into());
        page.number(names::WAL_BYTES, gauges.wal_bytes.load(Relaxed).into());
    })
}

/// The open holds.
pub fn ledger(ledger: Ledger) -> Source {
    Box::new(move |page| {
        let totals = ledger.totals();
        page.number(names::OPEN_HOLDS, totals.open_holds.into());
        page.number(names::HELD, totals.held.get().into());
    })
}

/// The counters of the meter.
pub fn meter(counters: Arc<Counters>) -> Source {
    Box::new(move |page| {
        let counted = counters.read();
        page.numbers(
            names::METER_EVENTS,
            &[
                ("bounded", counted.bounded.into()),
                ("clamped", counted.clamped.into()),
                ("refused", counted.refused.into()),
            ],
        );
        page.number(names::WRITTEN_OFF, counted.written_off_micros.into());
    })
}

/// The providers: their health, their queues, and the retries after their failures.
pub(crate) fn providers(providers: Arc<Providers>) -> Source {
    type Number = (names::Metric, fn(&ProviderView) -> i128);
    const NUMBERS: &[Number] = &[
        (names::PROVIDER_STATE, |one| match one.state.as_str() {
            "working" => 0,
            "half_open" => 1,
            _ => 2,
        }),
        (names::PROVIDER_ACCOUNT_CIRCUITS, |one| {
            one.models
                .iter()
                .map(|model| model.accounts_open as i128)
                .sum()
        }),
        (names::PROVIDER_CALLS, |one| one.calls.into()),
        (names::PROVIDER_QUEUE, |one| one.waiting.into()),
        (names::PROVIDER_WAITED, |one| one.waited.into()),
        (names::PROVIDER_WAIT, |one| one.waited_us.into()),
        (names::PROVIDER_FULL, |one| one.turned_away.into()),
        (names::FAILOVERS, |one| one.followed.into()),
        (names::RETRIES_REFUSED, |one| one.not_followed.into()),
        (names::HEDGES_WON, |one| one.hedges_won.into()),
        (names::HEDGES_LOST, |one| one.hedges_lost.into()),
    ];
    Box::new(move |page| {
        let view = providers.view();
        for (metric, number) in NUMBERS {
            let values: Vec<(&str, i128)> =
                view.iter().map(|one| (&*one.name, number(one))).collect();
            page.numbers(*metric, &values);
        }
    })
}

/// The contents and counters of the cache.
pub fn cache(cache: Arc<Cache>) -> Source {
    let counters = cache.counters();
    Box::new(move |page| {
        let lookups: Vec<_> = Lookup::LABELS
            .iter()
            .map(|(of, word)| (*word, counters.lookups(*of).into()))
            .collect();
        page.numbers(names::CACHE_LOOKUPS, &lookups);
        let stores: Vec<_> = Storing::LABELS
            .iter()
            .map(|(of, word)| (*word, counters.stores(*of).into()))
            .collect();
        page.numbers(names::CACHE_STORES, &stores);
        let removed: Vec<_> = Removal::LABELS
            .iter()
            .map(|(of, word)| (*word, counters.removals(*of).into()))
            .collect();
        page.numbers(names::CACHE_REMOVED, &removed);
        let flights: Vec<_> = Following::LABELS
            .iter()
            .map(|(of, word)| (*word, counters.following(*of).into()))
            .collect();
        page.numbers(names::CACHE_FOLLOWERS, &flights);
        let totals = cache.totals();
        page.number(names::CACHE_WAITING, totals.waiting.into());
        page.number(names::CACHE_ENTRIES, totals.entries.into());
        page.number(names::CACHE_BYTES, totals.bytes.into());
    })
}

/// The results of requests with an idempotency key.
pub fn idempotency(counters: Arc<tollgate_idempotency::Counters>) -> Source {
    Box::new(move |page| {
        let counted = counters.read();
        page.numbers(
            names::IDEMPOTENCY_EVENTS,
            &[
                ("claimed", counted.claimed.into()),
                ("replayed", counted.replayed.into()),
                ("under_way", counted.under_way.into()),
                ("conflict", counted.conflicts.into()),
                ("too_large", counted.too_large.into()),
            ],
        );
    })
}

/// The results of a payment provider's notifications.
pub fn notices(counters: Arc<tollgate_commerce::WebhookCounters>) -> Source {
    Box::new(move |page| {
        let counts = counters.counts();
        page.numbers(
            names::PAYMENT_NOTICES,
            &[
                ("stored", counts.stored.into()),
                ("known", counts.known.into()),
                ("refused", counts.refused.into()),
                ("undecided", counts.undecided.into()),
            ],
        );
    })
}

/// The results of purchases of credits; all zero where nothing can be bought.
pub fn purchases(top_ups: Option<tollgate_purchase::TopUps>) -> Source {
    Box::new(move |page| {
        let counts = top_ups.as_ref().map(|top_ups| top_ups.counters().counts());
        let counts = counts.unwrap_or_default();
        page.numbers(
            names::PURCHASES,
            &[
                ("begun", counts.begun.into()),
                ("captured", counts.captured.into()),
                ("failed", counts.failed.into()),
                ("declined", counts.declined.into()),
                ("unclear", counts.unclear.into()),
                ("stuck", counts.stuck.into()),
                ("returned", counts.returned.into()),
            ],
        );
    })
}

/// The results of payments for the plan.
pub fn plan(plans: tollgate_purchase::plan::Plans) -> Source {
    Box::new(move |page| {
        let counts = plans.counts();
        page.numbers(
            names::PLAN_PAYMENTS,
            &[
                ("x402", counts.x402.into()),
                ("paypal", counts.paypal.into()),
                ("repeated", counts.repeated.into()),
                ("surplus", counts.duplicates.into()),
                ("returned", counts.returned.into()),
            ],
        );
    })
}

/// The results of signed transfers; all zero where none are accepted.
pub fn x402(desk: Option<tollgate_pay::x402::Desk>, store: Arc<dyn Store>) -> Source {
    Box::new(move |page| {
        let counts = desk.as_ref().map(|desk| desk.counters().counts());
        let counts = counts.unwrap_or_default();
        page.numbers(
            names::X402_PAYMENTS,
            &[
                ("settled", counts.settled.into()),
                ("refused", counts.refused.into()),
                ("unclear", counts.unclear.into()),
                ("dead", counts.dead.into()),
                ("stuck", counts.stuck.into()),
                ("contradicted", counts.contradicted.into()),
                ("unconfirmed", counts.unconfirmed.into()),
                ("vanished", counts.vanished.into()),
                ("taken", counts.taken.into()),
            ],
        );
        let open = store.authorizations_moving().unwrap_or_default();
        page.number(names::X402_OPEN, open.into());
        let up = desk.as_ref().is_some_and(|desk| desk.is_open());
        page.number(names::X402_UP, i128::from(up));
    })
}

/// The results of mandates for the monthly charge of the plan; all zero where the plan is not sold in this way.
pub fn mandates(mandates: Option<tollgate_purchase::mandates::Mandates>) -> Source {
    Box::new(move |page| {
        let counts = mandates.as_ref().map(|desk| desk.counters().counts());
        let counts = counts.unwrap_or_default();
        page.numbers(
            names::MANDATES,
            &[
                ("begun", counts.begun.into()),
                ("activated", counts.activated.into()),
                ("paid", counts.paid.into()),
                ("advanced", counts.advanced.into()),
                ("past_due", counts.past_due.into()),
                ("ended", counts.ended.into()),
                ("surplus", counts.duplicates.into()),
                ("refunded", counts.refunded.into()),
                ("returned", counts.returned.into()),
                ("unclear", counts.unclear.into()),
                ("stuck", counts.stuck.into()),
            ],
        );
    })
}

/// Writes a histogram of powers of two; `unit` of its values are one of the metric's.
fn powers(page: &mut Page, metric: names::Metric, histogram: &Histogram, unit: f64) {
    let counts = histogram.counts();
    let (above, below) = counts.split_last().expect("a histogram has buckets");
    let buckets = below
        .iter()
        .enumerate()
        .map(|(power, count)| ((1u64 << power) as f64 / unit, *count));
    page.histogram(metric, buckets, *above, histogram.sum() as f64 / unit);
}
