//! Whether a provider works, by how its calls end: a few failures in a row and it rests, then one request tries it.
//!
//! Times are microseconds of the monotonic clock. All workers share one [`Health`], so it is made of atomics; two of them that fail at
//! the same moment may count one failure for the other, which does no harm.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use Ordering::Relaxed;

/// Failures in a row, none of them older than the window, after which there is a rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) failures: u32,
    pub(super) window: Duration,
    pub(super) cooldown: Duration,
}

/// What is known of something that can fail.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// How many failures there were in a row, and since when.
    failures: AtomicU64,
    since: AtomicU64,
    /// End of the rest; zero while all is well.
    rest_until: AtomicU64,
    /// Whether the request that tries is under way.
    tried: AtomicBool,
}

/// How it is at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It works as far as is known.
    Working,
    /// The rest is over: one request may try it. Also while that request is under way.
    HalfOpen,
    /// It rests, until then.
    Resting(u64),
}

impl State {
    /// The word in the view for operators.
    pub(super) fn word(self) -> &'static str {
        match self {
            State::Working => "working",
            State::HalfOpen => "half_open",
            State::Resting(_) => "resting",
        }
    }
}

impl Health {
    pub(super) fn state(&self, now: u64) -> State {
        match self.rest_until.load(Relaxed) {
            0 => State::Working,
            until if until <= now => State::HalfOpen,
            until => State::Resting(until),
        }
    }

    /// Whether a call may begin: always while it works, otherwise when no other one tries it. `Some(true)` for the one that tries, who
    /// has to come to [`Health::leave`] in the end.
    pub(super) fn enter(&self) -> Option<bool> {
        if self.rest_until.load(Relaxed) == 0 {
            return Some(false);
        }
        (!self.tried.swap(true, Ordering::Acquire)).then_some(true)
    }

    /// Whether somebody tries it.
    pub(super) fn is_tried(&self) -> bool {
        self.tried.load(Relaxed)
    }

    /// The one that tried is done with it, however it ended.
    pub(super) fn leave(&self) {
        self.tried.store(false, Ordering::Release);
    }

    /// Notes a call that was answered. `true` when that is news.
    pub(super) fn succeeded(&self) -> bool {
        // Reading first leaves the lines of the counters shared between the workers.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
        self.rest_until.load(Relaxed) != 0 && self.rest_until.swap(0, Relaxed) != 0
    }

    /// Notes a call that failed; `tried` if it was the one that tried. `true` when a rest begins that is news.
    pub(super) fn failed(&self, now: u64, tried: bool, terms: &Terms) -> bool {
        if self.rest_until.load(Relaxed) != 0 {
            if tried {
                self.rest(now, terms);
            }
            return false;
        }
        let window = terms.window.as_micros() as u64;
        let since = self.since.load(Relaxed);
        let failures = if self.failures.load(Relaxed) == 0 || now.saturating_sub(since) > window {
            self.since.store(now, Relaxed);
            self.failures.store(1, Relaxed);
            1
        } else {
            self.failures.fetch_add(1, Relaxed) + 1
        };
        failures >= u64::from(terms.failures) && self.rest(now, terms)
    }

    /// Begins a rest at once, or begins it anew. `true` when that is news.
    pub(super) fn rest(&self, now: u64, terms: &Terms) -> bool {
        let until = now.saturating_add(terms.cooldown.as_micros() as u64).max(1);
        self.rest_until.swap(until, Relaxed) == 0
    }

    /// Ends a rest early: one request may try.
    pub(super) fn wake(&self, now: u64) {
        let until = self.rest_until.load(Relaxed);
        if until > now {
            // A rest that begins in between is the newer word.
            let _ = self
                .rest_until
                .compare_exchange(until, now.max(1), Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms {
        failures: 3,
        window: Duration::from_secs(30),
        cooldown: Duration::from_secs(10),
    };
    const SECOND: u64 = 1_000_000;

    #[test]
    fn failures_in_a_row_within_the_window_begin_a_rest() {
        //     failures and successes, by second                     rests
        check(&[(1, false), (2, false)], false);
        check(&[(1, false), (2, false), (3, false)], true);
        check(&[(1, false), (2, false), (2, true), (3, false)], false);
        check(&[(1, false), (2, false), (32, false)], false);
        check(&[(1, false), (2, false), (31, false)], true);
        check(&[(1, false), (40, false), (41, false), (42, false)], true);

        fn check(calls: &[(u64, bool)], rests: bool) {
            let health = Health::default();
            let mut last = 0;
            for &(at, good) in calls {
                last = at * SECOND;
                if good {
                    health.succeeded();
                } else {
                    health.failed(last, false, &TERMS);
                }
            }
            let rested = matches!(health.state(last), State::Resting(_));
            assert_eq!(rested, rests, "{calls:?}");
        }
    }

    #[test]
    fn after_a_rest_one_request_tries_and_decides() {
        for good in [true, false] {
            let health = Health::default();
            assert!(health.rest(SECOND, &TERMS), "it is news");
            assert_eq!(health.state(2 * SECOND), State::Resting(11 * SECOND));
            let now = 11 * SECOND;
            assert_eq!(health.state(now), State::HalfOpen);
            assert_eq!(health.enter(), Some(true));
            assert_eq!(health.enter(), None, "one at a time");
            if good {
                assert!(health.succeeded());
                health.leave();
                assert_eq!(health.state(now), State::Working);
                assert_eq!(health.enter(), Some(false));
            } else {
                assert!(!health.failed(now, true, &TERMS), "it rested before");
                health.leave();
                assert_eq!(health.state(now), State::Resting(now + 10 * SECOND));
            }
        }
    }

    #[test]
    fn a_call_from_before_the_rest_that_fails_does_not_make_it_longer() {
        let health = Health::default();
        health.rest(SECOND, &TERMS);
        health.failed(5 * SECOND, false, &TERMS);
        assert_eq!(health.state(5 * SECOND), State::Resting(11 * SECOND));
    }

    #[test]
    fn a_rest_that_ends_early_ends_in_a_try() {
        let health = Health::default();
        health.wake(SECOND);
        assert_eq!(health.state(SECOND), State::Working);
        health.rest(SECOND, &TERMS);
        health.wake(2 * SECOND);
        assert_eq!(health.state(2 * SECOND), State::HalfOpen);
    }

    proptest! {
        /// Whatever happens, at most one request tries at a time, and nothing rests without a reason or for ever.
        #[test]
        fn one_tries_at_a_time_and_no_rest_is_for_ever(steps in prop::collection::vec((0u8..4, 0u64..20), 1..200)) {
            let health = Health::default();
            let (mut now, mut trying, mut failed_in_row) = (SECOND, false, 0);
            for (step, seconds) in steps {
                now += seconds * SECOND;
                match step {
                    0 => if let Some(tries) = health.enter() {
                        prop_assert!(!(tries && trying), "two try");
                        trying |= tries;
                    },
                    1 => {
                        health.succeeded();
                        failed_in_row = 0;
                        prop_assert_eq!(health.state(now), State::Working);
                    }
                    2 => {
                        failed_in_row += 1;
                        health.failed(now, trying, &TERMS);
                        if failed_in_row < 3 && health.state(now) != State::Working {
                            prop_assert!(false, "rests after {} failures", failed_in_row);
                        }
                    }
                    _ => {
                        health.leave();
                        trying = false;
                    }
                }
                if let State::Resting(until) = health.state(now) {
                    prop_assert!(until <= now + 10 * SECOND);
                }
            }
        }
    }
}
