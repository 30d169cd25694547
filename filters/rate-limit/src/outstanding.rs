//! The reservations of tokens that requests of this node hold at the shared server, by partition.
//!
//! At the server the reservations of a partition are a single arrival time. The arrival time drains a second per second, for any number of
//! reservations. A partition is therefore a single count here too. Time drains the used tokens first, then the reservations in their order.
//! The rest of a reservation is the part that its request may take back. The server counts at least this node's count, because this node
//! counts from before the call and drains no slower. A part taken back was therefore never used or drained by another request. Reservations
//! lost with the server's data are removed here too.

use std::collections::VecDeque;

use crate::partitions::{ByPartition, Partition};

/// The outstanding amounts of a partition, in nanoseconds of its quota.
#[derive(Clone, Debug, Default)]
struct Outstanding {
    /// Number of the server's data losses when the first of the amounts was counted.
    losses: u64,
    /// The time until which the partition has drained.
    drained_to: u64,
    /// Of ended requests.
    used: u64,
    /// Of running requests, by their number.
    reserved: VecDeque<(u64, u64)>,
    /// The number of the next reservation.
    next: u64,
}

impl Outstanding {
    /// Adds a reservation. The server has counted the reservation at `at` or later, after `losses` data losses. Returns the reservation's
    /// number.
    fn add(&mut self, cost: u64, (losses, at): (u64, u64)) -> u64 {
        self.note_losses(losses);
        self.drain(at);
        // Another call may have drained the count since the call began; the server may have drained this reservation meanwhile.
        let left = cost.saturating_sub(self.drained_to - at);
        let number = self.next;
        self.next += 1;
        // An answer may be older than the last loss.
        if losses == self.losses {
            self.reserved.push_back((number, left));
        }
        number
    }

    /// Replaces a reservation by the request's used tokens, within the capacity. Returns the rest of the reservation.
    fn replace(&mut self, number: u64, used: u64, capacity: u64, (losses, now): (u64, u64)) -> u64 {
        self.note_losses(losses);
        self.drain(now);
        let place = self.reserved.iter().position(|(other, _)| *other == number);
        let left = place.and_then(|place| self.reserved.remove(place));
        self.used = self.used.saturating_add(used).min(capacity);
        // The server counts no more than the capacity: use beyond a reservation takes the place of other reservations.
        let reserved: u64 = self.reserved.iter().map(|(_, left)| left).sum();
        self.drain_reserved((self.used + reserved).saturating_sub(capacity));
        left.map_or(0, |(_, left)| left)
    }

    fn note_losses(&mut self, losses: u64) {
        if losses > self.losses {
            (self.losses, self.used) = (losses, 0);
            self.reserved.clear();
        }
    }

    fn drain(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.drained_to);
        self.drained_to += elapsed;
        let used = elapsed.min(self.used);
        self.used -= used;
        self.drain_reserved(elapsed - used);
    }

    fn drain_reserved(&mut self, mut nanos: u64) {
        for (_, left) in &mut self.reserved {
            let drained = nanos.min(*left);
            *left -= drained;
            nanos -= drained;
            if nanos == 0 {
                break;
            }
        }
    }
}

/// The outstanding amounts of every partition. A partition without a running request is forgotten.
#[derive(Default)]
pub(crate) struct Reservations(ByPartition<Outstanding>);

impl Reservations {
    /// Adds a reservation of `cost` nanoseconds; returns the reservation's number. `begun`: the number of the server's data losses before
    /// the call, and the time, which is not after the time of the count.
    pub(crate) fn add(&self, partition: Partition, cost: u64, begun: (u64, u64)) -> u64 {
        self.0.entry(partition).or_default().add(cost, begun)
    }

    /// Replaces a reservation by the request's used tokens, within the capacity of the quota. Returns the rest of the reservation. `ended`:
    /// the number of the server's data losses, and the time.
    pub(crate) fn replace(
        &self,
        (partition, number): (Partition, u64),
        used: u64,
        capacity: u64,
        ended: (u64, u64),
    ) -> u64 {
        let Some(mut outstanding) = self.0.get_mut(&partition) else {
            return 0;
        };
        let left = outstanding.replace(number, used, capacity, ended);
        let is_last = outstanding.reserved.is_empty();
        drop(outstanding);
        if is_last {
            let is_over =
                |_: &Partition, outstanding: &Outstanding| outstanding.reserved.is_empty();
            self.0.remove_if(&partition, is_over);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const CAPACITY: u64 = 60 * SECOND;

    /// Reservations of `costs` nanoseconds at the start, replaced after `elapsed` by `used` each. `left`: the rest of each reservation.
    fn check(costs: &[u64], elapsed: u64, used: u64, left: &[u64]) {
        let mut outstanding = Outstanding::default();
        let numbers: Vec<_> = costs
            .iter()
            .map(|cost| outstanding.add(*cost, (0, 7)))
            .collect();
        let found: Vec<_> = numbers
            .iter()
            .map(|number| outstanding.replace(*number, used, CAPACITY, (0, 7 + elapsed)))
            .collect();
        assert_eq!(found, left, "{costs:?} after {elapsed}");
    }

    #[test]
    fn each_second_drains_one_second_of_all_reservations_together() {
        check(&[10], 3, 1, &[7]);
        check(&[10], 12, 1, &[0]);
        check(&[10, 10, 10], 3, 1, &[7, 10, 10]);
        check(&[10, 10, 10], 12, 1, &[0, 8, 10]);
        check(&[10, 10, 10], 30, 1, &[0, 0, 0]);
        // Ten requests that may use 9,000 tokens of 100,000 in a minute each, over after six seconds.
        let costs = [5_400_000_000; 10];
        let mut left = costs;
        (left[0], left[1]) = (0, 4_800_000_000);
        check(&costs, 6 * SECOND, 600_000_000, &left);
    }

    #[test]
    fn what_requests_have_used_drains_before_what_is_reserved() {
        let mut outstanding = Outstanding::default();
        let (first, second) = (outstanding.add(10, (0, 0)), outstanding.add(10, (0, 0)));
        assert_eq!(outstanding.replace(first, 4, CAPACITY, (0, 0)), 10);
        assert_eq!(
            outstanding.replace(second, 0, CAPACITY, (0, 6)),
            8,
            "four of them were used"
        );
        assert_eq!(outstanding.replace(second, 0, CAPACITY, (0, 6)), 0, "once");
    }

    #[test]
    fn what_a_request_uses_beyond_its_reservation_takes_the_place_of_others() {
        let mut outstanding = Outstanding::default();
        let (first, second) = (outstanding.add(30, (0, 0)), outstanding.add(30, (0, 0)));
        assert_eq!(outstanding.replace(first, 50, 60, (0, 0)), 30);
        assert_eq!(outstanding.replace(second, 0, 60, (0, 30)), 10);
    }

    #[test]
    fn a_reservation_whose_call_took_long_has_drained_meanwhile() {
        let mut outstanding = Outstanding::default();
        let first = outstanding.add(10, (0, 0));
        outstanding.replace(first, 0, CAPACITY, (0, 8));
        let second = outstanding.add(10, (0, 5));
        assert_eq!(outstanding.replace(second, 0, CAPACITY, (0, 8)), 7);
    }

    #[test]
    fn of_what_the_server_has_lost_nothing_is_left() {
        let mut outstanding = Outstanding::default();
        let ended = outstanding.add(10, (0, 0));
        outstanding.replace(ended, 10, CAPACITY, (0, 0));
        let lost = outstanding.add(10, (0, 0));
        let kept = outstanding.add(10, (1, 0));
        // The answer to a call of before the loss.
        let late = outstanding.add(10, (0, 0));
        for (number, left) in [(lost, 0), (late, 0), (kept, 8)] {
            assert_eq!(outstanding.replace(number, 0, CAPACITY, (1, 2)), left);
        }
    }

    #[test]
    fn a_partition_without_a_running_request_is_forgotten() {
        let reservations = Reservations::default();
        let partition = Partition {
            owner: crate::partitions::Owner::Address(tollgate_filter::AddressPrefix::V6(1)),
            lane: 0,
        };
        let (first, second) = (
            reservations.add(partition, 5, (0, 0)),
            reservations.add(partition, 5, (0, 0)),
        );
        assert_eq!(
            reservations.replace((partition, first), 0, CAPACITY, (0, 0)),
            5
        );
        assert_eq!(reservations.0.len(), 1);
        assert_eq!(
            reservations.replace((partition, second), 0, CAPACITY, (0, 0)),
            5
        );
        assert_eq!(reservations.0.len(), 0);
    }

    proptest! {
        #[test]
        fn no_more_is_taken_back_than_the_server_has(
            steps in prop::collection::vec((0..20_u32, 0..20_u64, 0..20_u64, any::<prop::sample::Index>()), 1..60),
        ) {
            let reservations = Reservations::default();
            let partition = Partition {
                owner: crate::partitions::Owner::Address(tollgate_filter::AddressPrefix::V6(1)),
                lane: 0,
            };
            let capacity = 50;
            let (mut now, mut ahead, mut losses, mut running) = (0, 0_u64, 0, Vec::new());
            for (what, elapsed, amount, which) in steps {
                if what == 0 {
                    // The server loses its data.
                    (ahead, losses) = (0, losses + 1);
                } else if what < 10 {
                    // The call takes this long, and is counted at its end.
                    let at = now;
                    now += elapsed;
                    ahead = ahead.saturating_sub(elapsed);
                    if ahead + amount > capacity {
                        continue;
                    }
                    ahead += amount;
                    running.push(reservations.add(partition, amount, (losses, at)));
                } else if !running.is_empty() {
                    now += elapsed;
                    ahead = ahead.saturating_sub(elapsed);
                    let number = running.swap_remove(which.index(running.len()));
                    let left = reservations.replace((partition, number), amount, capacity, (losses, now));
                    prop_assert!(left <= ahead, "{left} of {ahead}");
                    ahead = (ahead + amount - left).min(capacity);
                }
            }
        }
    }
}
