//! Where arrival times are kept: one atomic integer for each partition that is being counted.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};

use dashmap::DashMap;
use tollgate_filter::AddressPrefix;
use tollgate_money::AccountId;

use crate::quota::{Quota, Verdict};

/// Sweeping a table smaller than this frees too little to be worth it.
const SWEEP_AT_LEAST: usize = 1024;

/// Locks are taken for reading on the hot path; this many keep those who add entries out of its way.
const SHARDS: usize = 64;

/// Whose requests are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Partition {
    /// Who.
    pub(crate) owner: Owner,
    /// Which of the owner's counts: zero for the ordinary one, and a number for each class that routes count by themselves.
    pub(crate) lane: u16,
}

/// Who owns a [`Partition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// An account, by whichever of its credentials: making more of them buys nothing.
    Account(AccountId),
    /// Whoever sits behind an address.
    Address(AddressPrefix),
}

/// A table of partitions and their arrival times.
///
/// A partition whose arrival time has passed is as good as one never seen, so it may be forgotten at any time. That happens whenever the
/// table has doubled since it was last swept. A table that is full of partitions still being counted forgets those that come next to
/// being forgotten, which gives a part of their quota back: under a flood of addresses memory stays bounded and nobody is locked out.
#[derive(Debug)]
pub(crate) struct Partitions {
    arrivals: DashMap<Partition, AtomicU64>,
    /// How many there are, so that adding one need not ask every shard.
    population: AtomicUsize,
    /// At how many the next sweep is due.
    sweep_due: AtomicUsize,
    sweeping: Mutex<()>,
    population_max: usize,
}

impl Partitions {
    /// An empty table that forgets partitions rather than keep more than `population_max`.
    pub(crate) fn new(population_max: usize) -> Partitions {
        Partitions {
            arrivals: DashMap::with_shard_amount(SHARDS),
            population: AtomicUsize::new(0),
            sweep_due: AtomicUsize::new(SWEEP_AT_LEAST.min(population_max)),
            sweeping: Mutex::new(()),
            population_max,
        }
    }

    /// Counts one request of `partition`, at `now` nanoseconds.
    pub(crate) fn take(&self, partition: Partition, quota: &Quota, now: u64) -> Verdict {
        if let Some(arrival) = self.arrivals.get(&partition) {
            return take(&arrival, quota, now);
        }
        let mut sweep_due = false;
        let verdict = {
            let arrival = self.arrivals.entry(partition).or_insert_with(|| {
                // Counted under the entry's lock: nobody can forget it before it is.
                let population = self.population.fetch_add(1, Ordering::Relaxed) + 1;
                sweep_due = population >= self.sweep_due.load(Ordering::Relaxed);
                AtomicU64::new(0)
            });
            take(&arrival, quota, now)
        };
        // After the entry's lock: sweeping takes every lock in turn.
        if sweep_due {
            self.sweep(now);
        }
        verdict
    }

    /// How many partitions are being remembered.
    pub(crate) fn population(&self) -> usize {
        self.population.load(Ordering::Relaxed)
    }

    /// Forgets what may be forgotten, and more while the table is full.
    fn sweep(&self, now: u64) {
        // One sweeps; the others need not wait for it.
        let _sweeping = match self.sweeping.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let before = self.population();
        self.forget_until(now);
        // Room for an eighth, so that a flood sweeps once in many additions and not at each.
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

fn take(arrival: &AtomicU64, quota: &Quota, now: u64) -> Verdict {
    let mut seen = arrival.load(Ordering::Relaxed);
    loop {
        let (verdict, next) = quota.take(seen, now);
        if !verdict.admitted {
            return verdict;
        }
        // Nothing else is read or written by the order of these, so none is asked for.
        match arrival.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return verdict,
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
    fn what_no_longer_counts_is_forgotten() {
        let table = Partitions::new(1_000_000);
        let quota = quota(60, 60);
        for number in 0..200_000 {
            // A thousand strangers a second; each is forgotten a second after its only request.
            table.take(address(number), &quota, number * SECOND / 1000);
        }
        assert!(
            table.population() < 4 * SWEEP_AT_LEAST,
            "{} remembered",
            table.population()
        );
    }

    #[test]
    fn a_flood_of_addresses_stays_within_bounds_and_locks_nobody_out() {
        let table = Partitions::new(2000);
        let quota = quota(10, 86_400);
        // One who has used up everything long before the flood, and one who has only begun.
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
