//! Whether the facilitator would settle what is offered: an offer that cannot be settled is not shown.

use std::sync::Mutex;
use std::time::Duration;

use tollgate_filter::Clock;

/// How long a good answer counts.
pub(crate) const FRESH: Duration = Duration::from_secs(30);

/// What is known of the facilitator.
#[derive(Debug)]
pub(crate) struct Health {
    clock: Clock,
    /// When it last said that it settles our offers, as long as no call has failed since.
    good: Mutex<Option<Duration>>,
    /// What it said last, when it said anything.
    last: Mutex<Option<bool>>,
}

impl Health {
    /// Nothing is known yet.
    pub(crate) fn new(clock: Clock) -> Health {
        Health {
            clock,
            good: Mutex::default(),
            last: Mutex::default(),
        }
    }

    /// Notes what it said now, or that a call has failed.
    pub(crate) fn note(&self, good: bool) {
        *self.lock() = good.then(|| self.clock.elapsed());
        *self
            .last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(good);
    }

    /// What was noted last; nothing before the first word.
    pub(crate) fn was_good(&self) -> Option<bool> {
        *self
            .last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether offers may be shown.
    pub(crate) fn is_good(&self) -> bool {
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

    #[test]
    fn a_good_answer_counts_for_thirty_seconds_and_until_a_call_fails() {
        let (clock, manual) = Clock::manual(0);
        let health = Health::new(clock);
        assert!(!health.is_good(), "nothing is known yet");
        health.note(true);
        manual.advance(Duration::from_secs(30));
        assert!(health.is_good());
        manual.advance(Duration::from_secs(1));
        assert!(!health.is_good());
        health.note(true);
        health.note(false);
        assert!(!health.is_good());
    }
}
