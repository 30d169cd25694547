//! Storage of theoretical arrival times: an atomic integer for each tracked partition.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use parking_lot::Mutex;
use tollgate_clock::RandomKeyHash;
use tollgate_filter::AddressPrefix;
use tollgate_money::AccountId;

use crate::quota::{Decision, Quota};

/// A sweep of a smaller table frees too little.
const SWEEP_AT_LEAST: usize = 1024;

/// The hot path takes read locks. The number of shards keeps writers that add entries out of the hot path's way.
const SHARDS: usize = 64;

/// The unit by which requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Partition {
    /// The owner.
    pub(crate) owner: Owner,
    /// The owner's counter: zero for the ordinary counter, and a number for each class that routes count separately.
    pub(crate) lane: u16,
}

/// The owner of a [`Partition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// An account, by any of its credentials: more credentials do not raise the account's quota.
    Account(AccountId),
    /// Every client of an address prefix.
    Address(AddressPrefix),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Account(account) => account.fmt(f),
            Owner::Address(prefix) => prefix.fmt(f),
        }
    }
}

/// A table by partition. A request reads three tables, and clients choose among addresses.
pub(crate) type ByPartition<T> = DashMap<Partition, T, RandomKeyHash>;

/// A table of partitions and their arrival times.
///
/// A partition whose arrival time has passed is equivalent to an unseen partition, and may be evicted at any time. Evictions happen
/// whenever the table has doubled since its last sweep. A full table of live partitions evicts the partitions with the earliest arrival
/// times, which returns a part of their quota. Under a flood of addresses memory stays bounded and no client is locked out.
#[derive(Debug)]
pub(crate) struct Partitions {
    arrivals: ByPartition<AtomicU64>,
    /// The number of entries, so that an insertion does not lock every shard.
    population: AtomicUsize,
    /// The number of entries at which the next sweep is due.
    sweep_due: AtomicUsize,
    sweeping: Mutex<()>,
    population_max: usize,
}

impl Partitions {
    /// An empty table that evicts partitions to stay within `population_max`.
    pub(crate) fn new(population_max: usize) -> Partitions {
        Partitions {
            arrivals: DashMap::with_hasher_and_shard_amount(RandomKeyHash::new(), SHARDS),
            population: AtomicUsize::new(0),
            sweep_due: AtomicUsize::new(SWEEP_AT_LEAST.min(population_max)),
            sweeping: Mutex::new(()),
            population_max,
        }
    }

    /// Counts a request of `partition`, at `now` nanoseconds.
    pub(crate) fn take(&self, partition: Partition, quota: &Quota, now: u64) -> Decision {
        if let Some(arrival) = self.arrivals.get(&partition) {
            return take(&arrival, quota, now);
        }
        let mut sweep_due = false;
        let decision = {
            let arrival = self.arrivals.entry(partition).or_insert_with(|| {
                // Counted under the entry's lock: the entry cannot be evicted before the count.
                let population = self.population.fetch_add(1, Ordering::Relaxed) + 1;
                sweep_due = population >= self.sweep_due.load(Ordering::Relaxed);
                AtomicU64::new(0)
            });
            take(&arrival, quota, now)
        };
        // After the entry's lock is released: a sweep takes every lock in turn.
        if sweep_due {
            self.sweep(now);
        }
        decision
    }

    /// The number of tracked partitions.
    pub(crate) fn population(&self) -> usize {
        self.population.load(Ordering::Relaxed)
    }

    /// Evicts expired entries, and live ones while the table is full.
    fn sweep(&self, now: u64) {
        // A single thread sweeps; other threads do not wait for the sweep.
        let Some(_sweeping) = self.sweeping.try_lock() else {
            return;
        };
        let before = self.population();
        self.forget_until(now);
        // Frees an eighth, so that a flood sweeps once in many insertions and not at every insertion.
        let target = self.population_max - self.population_max / 8;
        let excess = self.population().saturating_sub(target);
        if excess > 0 {
            let mut arrivals: Vec<u64> = self
                .arrivals
                .iter()
                .map(|entry| entry.load(Ordering::Relaxed))
                .collect();
            if !arrivals.is_empty() {
                let last = (excess - 1).min(arrivals.len() - 1);
                let (_, &mut until, _) = arrivals.select_nth_unstable(last);
                self.forget_until(until);
            }
        }
        if self.population() < before / 4 {
            self.arrivals.shrink_to_fit();
        }
        let due = (2 * self.population())
            .max(SWEEP_AT_LEAST)
            .min(self.population_max);
        self.sweep_due.store(due, Ordering::Relaxed);
    }

    fn forget_until(&self, until: u64) {
        let mut forgotten = 0;
        self.arrivals.retain(|_, arrival| {
            let keep = *arrival.get_mut() > until;
            forgotten += usize::from(!keep);
            keep
        });
        self.population.fetch_sub(forgotten, Ordering::Relaxed);
    }
}

fn take(arrival: &AtomicU64, quota: &Quota, now: u64) -> Decision {
    let mut seen = arrival.load(Ordering::Relaxed);
    loop {
        let (decision, next) = quota.take(seen, now);
        // A refusal writes only to correct an arrival time of other settings beyond the quota's range.
        if next == seen {
            return decision;
        }
        // No other memory access depends on the order of arrival times, so that relaxed ordering is enough.
        match arrival.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return decision,
            Err(changed) => seen = changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::thread;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn quota(limit: u32, window_secs: u32) -> Quota {
        let some = |value| NonZeroU32::new(value).expect("not zero");
        Quota::new(some(limit), some(window_secs), some(limit))
    }

    fn address(number: u64) -> Partition {
        Partition {
            owner: Owner::Address(AddressPrefix::V6(number)),
            lane: 0,
        }
    }

    #[test]
    fn requests_at_the_same_instant_from_many_threads_share_one_quota() {
        let table = Partitions::new(1000);
        let quota = quota(100_000, 3600);
        let admitted: usize = thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..50_000)
                            .filter(|_| table.take(address(1), &quota, SECOND).admitted)
                            .count()
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("no worker panics"))
                .sum()
        });
        assert_eq!(admitted, 100_000);
        assert_eq!(table.population(), 1);
    }

    #[test]
    fn expired_partitions_are_removed() {
        let table = Partitions::new(1_000_000);
        let quota = quota(60, 60);
        for number in 0..200_000 {
            // A thousand new addresses a second; an address is evicted a second after its only request.
            table.take(address(number), &quota, number * SECOND / 1000);
        }
        assert!(
            table.population() < 4 * SWEEP_AT_LEAST,
            "{} remembered",
            table.population()
        );
    }

    #[test]
    fn a_flood_of_addresses_stays_within_bounds_and_blocks_no_other_client() {
        let table = Partitions::new(2000);
        let quota = quota(10, 86_400);
        // A partition that used its quota up long before the flood, and a partition that has just started.
        for _ in 0..10 {
            table.take(address(1), &quota, SECOND);
        }
        for number in 100..50_000 {
            assert!(table.take(address(number), &quota, SECOND).admitted);
            assert!(table.population() <= 2000, "{}", table.population());
        }
        assert!(
            !table.take(address(1), &quota, SECOND).admitted,
            "who has used up most is forgotten last"
        );
    }
}
