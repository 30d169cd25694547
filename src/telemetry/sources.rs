//! Values that other modules keep, collected when the metrics are read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_clock::Clock;
use tollgate_counters::{Metric, Samples, Source};
use tollgate_identity::Credentials;
use tollgate_ledger::Ledger;
use tollgate_memory::MemoryBudget;
use tollgate_module::Snapshot;
use tollgate_money::Micros;
use tollgate_store::{Histogram, Outage, Store};

use super::names;
use crate::config::Certificate;
use crate::upstream::{CandidateView, ProviderView};

const MICROS_PER_SECOND: f64 = 1e6;

/// The writer of the store: its queue, commits and entries.
pub fn store(store: Arc<dyn Store>) -> Source {
    Box::new(move |samples| {
        let gauges = store.gauges();
        samples.number(names::COMMIT_QUEUE, gauges.queue_depth.load(Relaxed));
        samples.number(names::COMMIT_OVERLOADS, gauges.overloads.load(Relaxed));
        let is_locked = gauges.is_locked.load(Relaxed);
        samples.number(names::STORE_LOCKED, i128::from(is_locked));
        let is_cut_off = store.outage().is_some_and(Outage::is_cut_off);
        samples.number(names::STORE_CUT_OFF, i128::from(is_cut_off));
        samples.number(names::SPOOL_BYTES, gauges.spool_bytes.load(Relaxed));
        samples.number(names::SPOOL_UNITS, gauges.spool_units.load(Relaxed));
        let is_failing = gauges.is_spool_failing.load(Relaxed);
        samples.number(names::SPOOL_FAILING, i128::from(is_failing));
        samples.number(names::LATE_CHARGES, gauges.late_charges.load(Relaxed));
        samples.number(
            names::LATE_WRITTEN_OFF,
            gauges.late_written_off.load(Relaxed),
        );
        powers(samples, names::COMMIT_UNITS, &gauges.batch_size, 1.0);
        powers(
            samples,
            names::COMMIT_SECONDS,
            &gauges.commit_us,
            MICROS_PER_SECOND,
        );
        powers(
            samples,
            names::SYNC_SECONDS,
            &gauges.sync_us,
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
        samples.number(names::LEDGER_FOLDED, gauges.coalesced.load(Relaxed));
        samples.number(names::WAL_BYTES, gauges.wal_bytes.load(Relaxed));
        // Without a value no sample is written: a zero would look like an empty database.
        let bytes = gauges.database_bytes.load(Relaxed);
        if bytes > 0 {
            samples.number(names::STORE_BYTES, bytes);
            let free = gauges.database_free_bytes.load(Relaxed);
            samples.number(names::STORE_FREE, free);
        }
    })
}

/// A node of several: its allotments, its lease, and its knowledge of the other nodes. A single node has only a lease, with a server.
pub fn node(store: Arc<dyn Store>, ledger: Ledger, clock: Clock) -> Source {
    let allotted = Mutex::new(None);
    Box::new(move |samples| {
        let now = clock.elapsed();
        let sum = kept(&allotted, now, || ledger.allotted());
        samples.number(names::ALLOTTED, sum.get());
        let counters = ledger.allotment_counters();
        let moves = [
            ("taken", counters.takes.load(Relaxed)),
            ("returned", counters.returns.load(Relaxed)),
        ];
        samples.numbers(names::ALLOTMENT_MOVES, moves);
        let moved = [
            ("taken", counters.taken.load(Relaxed)),
            ("returned", counters.returned.load(Relaxed)),
        ];
        samples.numbers(names::ALLOTMENT_MOVED, moved);
        samples.number(names::TAKES_WAITING, counters.waiting.load(Relaxed));
        powers(
            samples,
            names::RECALL_SECONDS,
            &counters.recall_us,
            MICROS_PER_SECOND,
        );
        samples.number(
            names::CREDIT_UNAVAILABLE,
            counters.unavailable.load(Relaxed),
        );
        let gauges = store.gauges();
        let mut age = |metric, at: &AtomicU64, is_kept: bool| {
            let at = Duration::from_micros(at.load(Relaxed));
            let age = match is_kept && at != Duration::ZERO {
                true => now.saturating_sub(at),
                false => Duration::ZERO,
            };
            samples.seconds(metric, age);
        };
        age(names::LEASE_AGE, &gauges.lease_renewed_us, true);
        let is_kept = store.has_allotments();
        age(names::FEED_AGE, &gauges.feed_read_us, is_kept);
        samples.number(names::NODE_DUTIES, i128::from(store.is_leader()));
        let unrecovered = gauges.unrecovered_nodes.load(Relaxed);
        samples.number(names::UNRECOVERED_NODES, unrecovered);
        samples.number(names::OTHER_SETTINGS, store.other_settings().len() as i128);
    })
}

/// The memory of bodies, buffers and open requests.
pub fn memory(budget: MemoryBudget) -> Source {
    Box::new(move |samples| {
        samples.number(names::MEMORY_BUDGET, budget.bytes_in_all() as u64);
        samples.number(names::MEMORY_TAKEN, budget.bytes_taken() as u64);
        samples.number(names::MEMORY_REFUSED, budget.refused());
    })
}

/// The credentials in memory.
pub fn credentials(credentials: Arc<Credentials>) -> Source {
    Box::new(move |samples| {
        samples.number(names::CREDENTIALS, credentials.len() as u64);
        let look_ups = credentials.look_ups();
        let results = [
            ("found", look_ups.found),
            ("unknown", look_ups.unknown),
            ("failed", look_ups.failed),
        ];
        samples.numbers(names::CREDENTIAL_LOOK_UPS, results);
    })
}

/// How long a sum over the accounts in memory is kept.
const SUM_KEPT: Duration = Duration::from_secs(60);

/// The open holds, the accounts in memory, and the credit of every account.
pub fn ledger(ledger: Ledger, store: Arc<dyn Store>) -> Source {
    Box::new(move |samples| {
        let totals = ledger.totals();
        samples.number(names::OPEN_HOLDS, totals.open_holds);
        samples.number(names::HELD, totals.held.get());
        samples.number(names::ACCOUNTS, ledger.resident_accounts() as u64);
        let (found, unknown) = ledger.account_loads();
        samples.numbers(
            names::ACCOUNT_LOADS,
            [("found", found), ("unknown", unknown)],
        );
        let gauges = store.gauges();
        if gauges.is_owed_known.load(Relaxed) {
            samples.number(names::OWED, gauges.owed.load(Relaxed));
        }
    })
}

/// A sum over the accounts in memory, summed again after [`SUM_KEPT`].
fn kept(
    last: &Mutex<Option<(Duration, Micros)>>,
    now: Duration,
    sum: impl FnOnce() -> Micros,
) -> Micros {
    let mut last = last.lock();
    match *last {
        Some((at, sum)) if now.saturating_sub(at) < SUM_KEPT => sum,
        _ => last.insert((now, sum())).1,
    }
}

/// The free space of the database's file system for users other than root.
pub(crate) fn disk(database: &Path) -> Source {
    let folder = database.parent().unwrap_or(Path::new(".")).to_owned();
    Box::new(move |samples| {
        // Without a value no sample is written: a zero would look like a full disk.
        if let Ok(found) = rustix::fs::statvfs(&folder) {
            samples.number(names::DISK_FREE, found.f_bavail * found.f_frsize);
        }
    })
}

/// The certificates of the listeners.
pub(crate) fn certificates(certificates: Snapshot<Vec<Certificate>>) -> Source {
    Box::new(move |samples| {
        let certificates = certificates.load();
        let expiries: BTreeMap<String, i64> = certificates
            .iter()
            .map(|one| (one.label(), one.expires_at.as_secs()))
            .collect();
        let values = expiries.iter().map(|(label, at)| (label.as_str(), *at));
        samples.numbers(names::CERTIFICATE_EXPIRY, values);
    })
}

/// Age of the oldest commits in the journal that `tollgate retention` is to remove: no sample before the first read, and 0 where the
/// command removes no commit.
pub(crate) fn retention(store: Arc<dyn Store>, is_set: bool) -> Source {
    Box::new(move |samples| {
        let overdue = store.gauges().retention_overdue_secs.load(Relaxed);
        let overdue = match is_set {
            true => overdue.checked_sub(1),
            false => Some(0),
        };
        if let Some(secs) = overdue {
            samples.seconds(names::RETENTION_OVERDUE, Duration::from_secs(secs));
        }
    })
}

/// The providers: their health, their queues, and the retries after their failures.
pub(crate) fn providers(view: impl Fn() -> Vec<ProviderView> + Send + Sync + 'static) -> Source {
    type Number = (Metric, fn(&ProviderView) -> u64);
    const NUMBERS: &[Number] = &[
        (names::PROVIDER_STATE, |one| state_number(&one.state)),
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
        let view = view();
        for (metric, number) in NUMBERS {
            let values = view.iter().map(|one| (&*one.name, number(one)));
            samples.numbers(*metric, values);
        }
        // A provider may serve a model under several names; the best state counts.
        let mut states: BTreeMap<[&str; 2], u64> = BTreeMap::new();
        for provider in &view {
            for model in &provider.models {
                let state = state_of(provider, model);
                let best = states
                    .entry([&provider.name, &model.model])
                    .or_insert(state);
                *best = state.min(*best);
            }
        }
        samples.labelled(names::MODEL_STATE, states);
    })
}

/// The state of a circuit as a number.
fn state_number(state: &str) -> u64 {
    match state {
        "working" => 0,
        "half_open" => 1,
        _ => 2,
    }
}

/// The state of a model at a provider: the worse state of the two circuits, or the state of an open circuit during a pause.
fn state_of(provider: &ProviderView, model: &CandidateView) -> u64 {
    if model.deferred_ms > 0 {
        return 2;
    }
    state_number(&provider.state).max(state_number(&model.state))
}

/// Writes every other bucket of a histogram of powers of two, including the samples of the bucket below: a scrape transfers every bucket.
/// `unit` of the histogram's values make a unit of the metric.
fn powers(samples: &mut Samples, metric: Metric, histogram: &Histogram, unit: f64) {
    let counts = histogram.counts();
    let (above, below) = counts.split_last().expect("a histogram has buckets");
    let (first, pairs) = below.split_first().expect("a histogram has buckets");
    let pairs = pairs.chunks(2).zip(1..);
    let pairs = pairs.map(|(pair, power)| ((4u64.pow(power)) as f64 / unit, pair.iter().sum()));
    let buckets = std::iter::once((1.0 / unit, *first)).chain(pairs);
    samples.histogram(metric, buckets, *above, histogram.sum() as f64 / unit);
}
