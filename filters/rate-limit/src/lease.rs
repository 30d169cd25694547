//! Leases of cells and a cache of refusals: this node's decisions about a shared quota without a call to the server.
//!
//! A lease is a number of requests that the shared state has counted already. The requests are admitted here within [`LEASE`], or for at
//! most [`FEW`] requests within [`LEASE_OF_FEW`]. Afterwards the rest of the lease is lost: a lease admits nothing beyond the quota. A
//! refusal is remembered until the time at which the shared state admits the next request; no other node can make this time earlier.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::gcra::Arrival;
use crate::partitions::{ByPartition, Partition};
use crate::quota::{Decision, Quota};

/// Nanoseconds for which a lease may be used.
const LEASE: u64 = 100_000_000;

/// A lease of at most this number of cells may be used for longer. The cells are a negligible error of the count, and save a call per
/// request for an account with occasional requests.
const FEW: u32 = 8;

/// Nanoseconds for which a lease of few cells may be used.
const LEASE_OF_FEW: u64 = 10_000_000_000;

/// The longest duration of a call in nanoseconds. During a call, further calls ask for a single cell.
const CALL: u64 = 20_000_000;

/// Insertions between two sweeps.
const SWEEP_EVERY: usize = 4_096;

/// Beyond this number every entry is removed: the rest of leases is lost, and refusals are asked for again.
const ENTRIES_MAX: usize = 1 << 18;

/// The local state of a partition of a shared quota.
#[derive(Clone, Copy, Debug)]
struct Lease {
    /// The quota of the last answer. The state does not count under another quota.
    quota: Quota,
    /// Remaining leased cells.
    cells: u32,
    /// The cells of the lease so far.
    granted: u32,
    /// The begin of the lease.
    began: u64,
    /// The end of the lease.
    expires: u64,
    /// How far the shared arrival time was ahead of now at the last answer.
    ahead: u64,
    /// The time of the last answer.
    at: u64,
    /// The last answer was a refusal.
    refused: bool,
    /// Until this time a call for several cells may be under way.
    asked_until: u64,
}

/// The local part of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Decided without a call.
    Decided(Decision),
    /// The server has to be asked for this number of cells.
    Ask(u32),
}

impl Lease {
    fn new(quota: Quota) -> Lease {
        Lease {
            quota,
            cells: 0,
            granted: 0,
            began: 0,
            expires: 0,
            ahead: 0,
            at: 0,
            refused: false,
            asked_until: 0,
        }
    }

    /// How far the shared arrival time is ahead of `now`, as far as this node knows.
    fn ahead(&self, now: u64) -> u64 {
        self.ahead.saturating_sub(now.saturating_sub(self.at))
    }

    /// Whether the shared state still refuses.
    fn refuses(&self, now: u64) -> bool {
        self.refused && self.quota.remaining(self.ahead(now)) == 0
    }

    fn is_idle(&self, now: u64) -> bool {
        now >= self.expires && now >= self.asked_until && !self.refuses(now)
    }

    fn lookup(&mut self, nodes: u32, now: u64) -> Lookup {
        if self.refuses(now) {
            return Lookup::Decided(self.quota.decision(false, self.ahead(now)));
        }
        if self.cells > 0 && now < self.expires {
            self.cells -= 1;
            return Lookup::Decided(self.admitted(now));
        }
        let cells = self.size(nodes, now);
        self.cells = 0;
        if now >= self.asked_until {
            self.asked_until = now + CALL;
        }
        Lookup::Ask(cells)
    }

    /// The number of cells to ask for. For a used-up lease, twice the lease's cells; at most [`FEW`] where the lease lasted for [`LEASE`].
    /// For an expired lease, the used cells. Never more than a quarter of the remaining quota per node, so that leases lock no cells up
    /// near the end of a quota.
    fn size(&self, nodes: u32, now: u64) -> u32 {
        if now < self.asked_until {
            return 1;
        }
        let wanted = if self.is_young(now) {
            self.granted.saturating_mul(2)
        } else if now < self.expires {
            self.granted.saturating_mul(2).min(FEW)
        } else if now < self.expires.saturating_add(life_of(self.granted)) {
            self.granted - self.cells
        } else {
            1
        };
        let remaining = self.quota.remaining(self.ahead(now));
        let most = remaining / nodes.max(1).saturating_mul(4);
        wanted.min(most).max(1)
    }

    fn grant(&mut self, cells: u32, ahead: u64, now: u64) -> Decision {
        if now >= self.expires {
            self.cells = 0;
        }
        if !self.is_young(now) {
            (self.granted, self.began) = (self.cells, now);
        }
        self.granted = self.granted.saturating_add(cells);
        self.cells = self.cells.saturating_add(cells - 1);
        self.expires = self.began + life_of(self.granted);
        (self.ahead, self.at, self.refused) = (ahead, now, false);
        self.admitted(now)
    }

    /// Whether the lease is new: an account that has used up a new lease is busy.
    fn is_young(&self, now: u64) -> bool {
        now < self.began + LEASE && now < self.expires
    }

    fn refuse(&mut self, ahead: u64, now: u64) -> Decision {
        (self.ahead, self.at, self.refused) = (ahead, now, true);
        self.quota.decision(false, ahead)
    }

    /// The fields of an admitted request: leased cells remain, like the other cells of the quota.
    fn admitted(&self, now: u64) -> Decision {
        let (interval, _) = self.quota.interval_and_capacity();
        let leased = u64::from(self.cells) * interval;
        let ahead = self.ahead(now).saturating_sub(leased);
        self.quota.decision(true, ahead)
    }
}

/// For how long a lease of this number of cells may be used.
fn life_of(cells: u32) -> u64 {
    match cells <= FEW {
        true => LEASE_OF_FEW,
        false => LEASE,
    }
}

/// The leases and refusals of all partitions.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_partition: ByPartition<Lease>,
    added: AtomicUsize,
}

impl Leases {
    /// Decides a request of `partition` at `now` nanoseconds, or says for how many cells to ask.
    pub(crate) fn lookup(
        &self,
        partition: Partition,
        quota: &Quota,
        nodes: u32,
        now: u64,
    ) -> Lookup {
        self.with(partition, quota, now, |lease| lease.lookup(nodes, now))
    }

    /// The decision on a request by the server's answer.
    pub(crate) fn answer(
        &self,
        partition: Partition,
        quota: &Quota,
        taken: Arrival,
        now: u64,
    ) -> Decision {
        self.with(partition, quota, now, |lease| match taken.cells {
            0 => lease.refuse(taken.ahead, now),
            cells => lease.grant(cells, taken.ahead, now),
        })
    }

    fn with<T>(
        &self,
        partition: Partition,
        quota: &Quota,
        now: u64,
        work: impl FnOnce(&mut Lease) -> T,
    ) -> T {
        let mut added = false;
        let result = {
            let mut lease = self.by_partition.entry(partition).or_insert_with(|| {
                added = true;
                Lease::new(*quota)
            });
            if lease.quota != *quota {
                *lease = Lease::new(*quota);
            }
            work(&mut lease)
        };
        // After the entry's lock is released: a sweep takes every lock in turn.
        if added && (self.added.fetch_add(1, Relaxed) + 1).is_multiple_of(SWEEP_EVERY) {
            self.by_partition.retain(|_, lease| !lease.is_idle(now));
            if self.by_partition.len() > ENTRIES_MAX {
                self.by_partition.clear();
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tollgate_filter::AddressPrefix;

    use super::*;
    use crate::partitions::Owner;

    const MILLI: u64 = 1_000_000;
    const HOUR: u64 = 3_600_000 * MILLI;

    fn quota(limit: u32) -> Quota {
        let some = |number| NonZeroU32::new(number).expect("not zero");
        Quota::new(some(limit), some(3_600), some(limit))
    }

    fn partition(number: u64) -> Partition {
        Partition {
            owner: Owner::Address(AddressPrefix::V6(number)),
            lane: 0,
        }
    }

    fn taken(cells: u32, ahead: u64) -> Arrival {
        Arrival { cells, ahead }
    }

    fn asked(lookup: Lookup) -> u32 {
        match lookup {
            Lookup::Ask(cells) => cells,
            Lookup::Decided(decision) => panic!("decided: {decision:?}"),
        }
    }

    #[test]
    fn leases_grow_while_they_are_used_up_and_shrink_when_they_expire() {
        let (leases, quota, one) = (Leases::default(), quota(1_000), partition(1));
        let (interval, _) = quota.interval_and_capacity();
        let mut now = HOUR;
        let (mut counted, mut sizes) = (0, Vec::new());
        for _ in 0..40 {
            // Answered immediately, so that no call is under way at the next request.
            if let Lookup::Ask(cells) = leases.lookup(one, &quota, 2, now) {
                sizes.push(cells);
                counted += cells;
                let decision = leases.answer(
                    one,
                    &quota,
                    taken(cells, u64::from(counted) * interval),
                    now,
                );
                assert!(decision.admitted);
            }
            now += 2 * MILLI;
            leases.by_partition.alter_all(|_, lease| Lease {
                asked_until: 0,
                ..lease
            });
        }
        assert_eq!(sizes[..4], [1, 2, 6, 18], "twice what was granted so far");
        // The rest of the lease has expired, and few cells were used.
        now += LEASE - 90 * MILLI;
        let next = asked(leases.lookup(one, &quota, 2, now + LEASE / 2));
        assert!((1..=40).contains(&next), "{next}");
        let later = asked(leases.lookup(one, &quota, 2, now + 10 * LEASE));
        assert_eq!(later, 1, "after a pause one at a time");
    }

    #[test]
    fn an_account_with_a_request_now_and_then_keeps_a_few_cells_for_longer() {
        let (leases, quota, one) = (Leases::default(), quota(1_000), partition(1));
        let (interval, _) = quota.interval_and_capacity();
        let mut now = HOUR;
        let (mut counted, mut sizes) = (0, Vec::new());
        for _ in 0..60 {
            if let Lookup::Ask(cells) = leases.lookup(one, &quota, 2, now) {
                sizes.push(cells);
                counted += cells;
                let ahead = u64::from(counted) * interval;
                leases.answer(one, &quota, taken(cells, ahead), now);
            }
            now += 1_500 * MILLI;
        }
        assert_eq!(sizes[..4], [1, 2, 4, 8]);
        assert!(sizes.iter().all(|cells| *cells <= FEW), "{sizes:?}");
        assert!(sizes.len() <= 12, "{sizes:?}");
        assert!(counted <= 70, "{counted} for 60");
        // The rest of the few cells is lost in the end.
        let next = asked(leases.lookup(one, &quota, 2, now + LEASE_OF_FEW));
        assert!(next <= FEW, "{next}");
        let later = asked(leases.lookup(one, &quota, 2, now + 3 * LEASE_OF_FEW));
        assert_eq!(later, 1, "after a pause one at a time");
    }

    #[test]
    fn no_lease_is_more_than_a_quarter_of_what_remains_for_each_node() {
        let (leases, quota, one) = (Leases::default(), quota(100), partition(1));
        let (interval, _) = quota.interval_and_capacity();
        asked(leases.lookup(one, &quota, 3, HOUR));
        leases.answer(one, &quota, taken(50, 50 * interval), HOUR);
        let mut now = HOUR + CALL;
        for _ in 0..49 {
            assert!(matches!(
                leases.lookup(one, &quota, 3, now),
                Lookup::Decided(_)
            ));
        }
        assert_eq!(asked(leases.lookup(one, &quota, 3, now)), 4, "50 / 12");
        assert_eq!(
            asked(leases.lookup(one, &quota, 3, now)),
            1,
            "a call for several is under way"
        );
        now += CALL;
        leases.answer(one, &quota, taken(1, 95 * interval), now);
        assert_eq!(asked(leases.lookup(one, &quota, 3, now)), 1, "near the end");
    }

    #[test]
    fn a_refusal_lasts_until_the_shared_state_admits_again() {
        let (leases, quota, one) = (Leases::default(), quota(3_600), partition(1));
        let (interval, capacity) = quota.interval_and_capacity();
        asked(leases.lookup(one, &quota, 1, HOUR));
        let ahead = capacity - interval / 2;
        let refused = leases.answer(one, &quota, taken(0, ahead), HOUR);
        assert_eq!((refused.admitted, refused.reset_secs), (false, 1));
        let wait = interval / 2;
        let before = leases.lookup(one, &quota, 1, HOUR + wait - 1);
        assert!(matches!(before, Lookup::Decided(decision) if !decision.admitted));
        assert_eq!(asked(leases.lookup(one, &quota, 1, HOUR + wait)), 1);
        // Another quota, after a reload, is asked for at once.
        leases.answer(one, &quota, taken(0, capacity), HOUR);
        let larger = self::quota(7_200);
        assert_eq!(asked(leases.lookup(one, &larger, 1, HOUR)), 1);
    }

    #[test]
    fn a_flood_of_partitions_stays_within_bounds() {
        let (leases, quota) = (Leases::default(), quota(10));
        let (_, capacity) = quota.interval_and_capacity();
        for number in 0..2 * ENTRIES_MAX as u64 {
            asked(leases.lookup(partition(number), &quota, 1, HOUR));
            leases.answer(partition(number), &quota, taken(0, capacity), HOUR);
        }
        assert!(leases.by_partition.len() <= ENTRIES_MAX + SWEEP_EVERY);
        for number in 0..2 * SWEEP_EVERY as u64 {
            leases.lookup(partition(number), &quota, 1, 3 * HOUR);
        }
        assert!(leases.by_partition.len() <= 3 * SWEEP_EVERY);
    }
}
