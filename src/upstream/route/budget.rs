//! The retry budget: a token bucket that bounds further attempts, so that a failure does not become a retry storm.
//!
//! Each model has a bucket. Every request adds a share of an attempt, time adds a few as well, every further attempt takes a whole attempt.
//! Without failures the bucket is full and costs one read.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use Ordering::Relaxed;

use crate::config::RetryBudget;

/// Thousandths of an attempt in one attempt.
const MILLIS_PER_ATTEMPT: i64 = 1000;
const MICROS_PER_SECOND: u64 = 1_000_000;

/// The bucket of one model. Shared by all workers.
#[derive(Debug)]
pub(in crate::upstream) struct Budget {
    /// Thousandths of an attempt.
    level: AtomicI64,
    /// The last refill by time, in microseconds of the monotonic clock.
    refilled_at: AtomicU64,
    capacity: i64,
    per_call: i64,
    per_sec: u64,
}

impl Budget {
    /// A full bucket.
    pub(super) fn new(settings: RetryBudget) -> Budget {
        let capacity = i64::from(settings.burst) * MILLIS_PER_ATTEMPT;
        Budget {
            level: AtomicI64::new(capacity),
            refilled_at: AtomicU64::new(0),
            capacity,
            per_call: i64::from(settings.percent) * MILLIS_PER_ATTEMPT / 100,
            per_sec: u64::from(settings.per_sec),
        }
    }

    /// Records a request.
    pub(in crate::upstream) fn record_request(&self) {
        if self.level.load(Relaxed) < self.capacity {
            self.add(self.per_call);
        }
    }

    /// Takes a further attempt, if one is available.
    pub(in crate::upstream) fn take(&self, now: u64) -> bool {
        self.refill(now);
        let taken = self.level.fetch_update(Relaxed, Relaxed, |level| {
            (level >= MILLIS_PER_ATTEMPT).then_some(level - MILLIS_PER_ATTEMPT)
        });
        taken.is_ok()
    }

    fn add(&self, amount: i64) {
        // The closure never returns `None`.
        let _ = self.level.fetch_update(Relaxed, Relaxed, |level| {
            Some(level.saturating_add(amount).min(self.capacity))
        });
    }

    /// The refill by time.
    fn refill(&self, now: u64) {
        let refilled_at = self.refilled_at.load(Relaxed);
        let past = now.saturating_sub(refilled_at);
        // More than a minute fills the bucket.
        let amount = past.min(60 * MICROS_PER_SECOND) * self.per_sec / (MICROS_PER_SECOND / 1000);
        if amount == 0 {
            return;
        }
        let is_ours = self
            .refilled_at
            .compare_exchange(refilled_at, now, Relaxed, Relaxed)
            .is_ok();
        if is_ours {
            self.add(amount as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: RetryBudget = RetryBudget {
        percent: 20,
        per_sec: 2,
        burst: 10,
    };

    fn taken(budget: &Budget, tries: u32, now: u64) -> usize {
        (0..tries).filter(|_| budget.take(now)).count()
    }

    #[test]
    fn further_attempts_come_from_the_burst_from_requests_and_from_time() {
        let budget = Budget::new(SETTINGS);
        assert_eq!(taken(&budget, 100, 0), 10, "the burst");
        for _ in 0..25 {
            budget.record_request();
        }
        assert_eq!(taken(&budget, 100, 0), 5, "a fifth of the requests");
        assert_eq!(
            taken(&budget, 100, 2 * MICROS_PER_SECOND),
            4,
            "two a second"
        );
        assert_eq!(
            taken(&budget, 100, u64::MAX / 2),
            10,
            "no more than the burst"
        );
    }

    #[test]
    fn a_budget_with_a_burst_alone_is_spent_once() {
        let budget = Budget::new(RetryBudget {
            percent: 0,
            per_sec: 0,
            burst: 1,
        });
        budget.record_request();
        assert_eq!(taken(&budget, 5, 0), 1);
        budget.record_request();
        assert_eq!(taken(&budget, 5, u64::MAX / 2), 0);
    }

    proptest! {
        /// No sequence of requests, attempts and time yields more than burst + share of the requests + rate by time.
        #[test]
        fn never_more_than_the_settings_allow(steps in prop::collection::vec((any::<bool>(), 0u64..500_000), 1..400)) {
            let budget = Budget::new(SETTINGS);
            let (mut now, mut requests, mut taken) = (0u64, 0u64, 0u64);
            for (request, past) in steps {
                now += past;
                if request {
                    budget.record_request();
                    requests += 1;
                } else if budget.take(now) {
                    taken += 1;
                }
                let allowed = 10 * 1000 + requests * 200 + now * 2 / 1000;
                prop_assert!(taken * 1000 <= allowed, "{taken} of {allowed}");
            }
        }
    }
}
