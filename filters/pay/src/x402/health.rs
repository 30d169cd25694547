//! Health of the facilitator: an offer that it would not settle is not shown.

use std::sync::Mutex;
use std::time::Duration;

use tollgate_clock::Clock;

/// How long a good result counts.
pub(crate) const FRESH: Duration = Duration::from_secs(30);

/// The results of health checks.
#[derive(Debug)]
pub(crate) struct Health {
    clock: Clock,
    /// The time of the last good result, as long as no call has failed since.
    good: Mutex<Option<Duration>>,
    /// The last result, if there is one.
    last: Mutex<Option<bool>>,
}

impl Health {
    /// Without a result.
    pub(crate) fn new(clock: Clock) -> Health {
        Health {
            clock,
            good: Mutex::default(),
            last: Mutex::default(),
        }
    }

    /// Records a result: `good`, or a failed call.
    pub(crate) fn record(&self, good: bool) {
        *self.lock() = good.then(|| self.clock.elapsed());
        *self
            .last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(good);
    }

    /// The last result; `None` before the first.
    pub(crate) fn last_result(&self) -> Option<bool> {
        *self
            .last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether offers may be shown.
    pub(crate) fn is_healthy(&self) -> bool {
        let now = self.clock.elapsed();
        self.lock()
            .is_some_and(|at| now.saturating_sub(at) <= FRESH)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Duration>> {
        self.good
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_clock::Timestamp;

    #[test]
    fn a_good_answer_counts_for_thirty_seconds_and_until_a_call_fails() {
        let (clock, manual) = Clock::manual(Timestamp::UNIX_EPOCH);
        let health = Health::new(clock);
        assert!(!health.is_healthy(), "nothing is known yet");
        health.record(true);
        manual.advance(Duration::from_secs(30));
        assert!(health.is_healthy());
        manual.advance(Duration::from_secs(1));
        assert!(!health.is_healthy());
        health.record(true);
        health.record(false);
        assert!(!health.is_healthy());
    }
}
