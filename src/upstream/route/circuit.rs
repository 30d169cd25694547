//! A circuit breaker with three states.
//!
//! | State | Admission | Next state |
//! |---|---|---|
//! | closed | every call | open, after consecutive failures |
//! | open | none, for a cooldown | half-open |
//! | half-open | a bounded number of trial requests | closed or open, by their results |
//!
//! Times are microseconds of the monotonic clock. All workers share one [`Circuit`], made of atomics. Two workers with failures at one
//! moment may count one failure for both, without harm.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use Ordering::Relaxed;

/// Thresholds and durations of a circuit breaker.
#[derive(Clone, Copy, Debug)]
pub(super) struct CircuitSettings {
    /// Consecutive failures that open the circuit.
    pub(super) failures: u32,
    /// Window of the failures.
    pub(super) window: Duration,
    /// Cooldown from open to half-open.
    pub(super) cooldown: Duration,
    /// Concurrent trial requests.
    pub(super) trial_requests: u32,
}

impl CircuitSettings {
    pub(super) fn window_micros(&self) -> u64 {
        self.window.as_micros() as u64
    }
}

/// A circuit breaker.
#[derive(Debug, Default)]
pub(super) struct Circuit {
    /// Number of consecutive failures, and when the first occurred.
    failures: AtomicU64,
    since: AtomicU64,
    /// End of the cooldown; zero while the circuit is closed.
    open_until: AtomicU64,
    /// Trial requests under way.
    trials: AtomicU32,
}

/// The state of a circuit at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Every request is admitted.
    Closed,
    /// The cooldown is over: trial requests are admitted, also while some are under way.
    HalfOpen,
    /// No request is admitted before this time.
    Open(u64),
}

impl State {
    /// The name of the state for operators.
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Closed => "working",
            State::HalfOpen => "half_open",
            State::Open(_) => "resting",
        }
    }
}

impl Circuit {
    pub(super) fn state(&self, now: u64) -> State {
        match self.open_until.load(Relaxed) {
            0 => State::Closed,
            until if until <= now => State::HalfOpen,
            until => State::Open(until),
        }
    }

    /// Whether a request would be admitted.
    pub(super) fn admits(&self, now: u64, settings: &CircuitSettings) -> bool {
        match self.state(now) {
            State::Closed => true,
            State::HalfOpen => self.trials.load(Relaxed) < settings.trial_requests,
            State::Open(_) => false,
        }
    }

    /// Starts a call: always while the circuit is closed, otherwise as a trial request, if another is admitted. `Some(true)` for a trial
    /// request, which must call [`Circuit::end_trial`] in the end. The caller checks the cooldown.
    pub(super) fn start_call(&self, settings: &CircuitSettings) -> Option<bool> {
        if self.open_until.load(Relaxed) == 0 {
            return Some(false);
        }
        let more = |trials| (trials < settings.trial_requests).then_some(trials + 1);
        let entered = self.trials.fetch_update(Relaxed, Relaxed, more);
        entered.is_ok().then_some(true)
    }

    /// Ends a trial request, even without a result.
    pub(super) fn end_trial(&self) {
        self.trials.fetch_sub(1, Relaxed);
    }

    /// Records a successful call: the circuit closes. `true` unless already closed.
    pub(super) fn record_success(&self) -> bool {
        // Reading first keeps the cache lines of the counters shared between the workers.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
        self.open_until.load(Relaxed) != 0 && self.open_until.swap(0, Relaxed) != 0
    }

    /// Records a failed call. `true` when a closed circuit opens.
    pub(super) fn record_failure(
        &self,
        now: u64,
        is_trial: bool,
        settings: &CircuitSettings,
    ) -> bool {
        if self.open_until.load(Relaxed) != 0 {
            if is_trial {
                self.open(now, settings);
            }
            return false;
        }
        let since = self.since.load(Relaxed);
        let is_first = self.failures.load(Relaxed) == 0;
        let failures = if is_first || now.saturating_sub(since) > settings.window_micros() {
            self.since.store(now, Relaxed);
            self.failures.store(1, Relaxed);
            1
        } else {
            self.failures.fetch_add(1, Relaxed) + 1
        };
        failures >= u64::from(settings.failures) && self.open(now, settings)
    }

    /// Opens the circuit, or restarts the cooldown. `true` if closed before.
    pub(super) fn open(&self, now: u64, settings: &CircuitSettings) -> bool {
        let until = now
            .saturating_add(settings.cooldown.as_micros() as u64)
            .max(1);
        self.open_until.swap(until, Relaxed) == 0
    }

    /// Opens the circuit until `until`, unless open for longer.
    pub(super) fn keep_open(&self, until: u64) {
        self.open_until.fetch_max(until.max(1), Relaxed);
    }

    /// Ends the cooldown early: the circuit is half-open.
    pub(super) fn end_cooldown(&self, now: u64) {
        let until = self.open_until.load(Relaxed);
        if until > now {
            // A cooldown started in between is newer.
            let _ = self
                .open_until
                .compare_exchange(until, now.max(1), Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: CircuitSettings = CircuitSettings {
        failures: 3,
        window: Duration::from_secs(30),
        cooldown: Duration::from_secs(10),
        trial_requests: 2,
    };
    const SECOND: u64 = 1_000_000;

    #[test]
    fn consecutive_failures_within_the_window_open_the_circuit() {
        //     failures and successes, by second                     opens
        check(&[(1, false), (2, false)], false);
        check(&[(1, false), (2, false), (3, false)], true);
        check(&[(1, false), (2, false), (2, true), (3, false)], false);
        check(&[(1, false), (2, false), (32, false)], false);
        check(&[(1, false), (2, false), (31, false)], true);
        check(&[(1, false), (40, false), (41, false), (42, false)], true);

        fn check(calls: &[(u64, bool)], opens: bool) {
            let circuit = Circuit::default();
            let mut last = 0;
            for &(at, good) in calls {
                last = at * SECOND;
                if good {
                    circuit.record_success();
                } else {
                    circuit.record_failure(last, false, &SETTINGS);
                }
            }
            let opened = matches!(circuit.state(last), State::Open(_));
            assert_eq!(opened, opens, "{calls:?}");
        }
    }

    #[test]
    fn a_half_open_circuit_admits_trial_requests_which_decide() {
        for good in [true, false] {
            let circuit = Circuit::default();
            assert!(circuit.open(SECOND, &SETTINGS), "it was closed");
            assert_eq!(circuit.state(2 * SECOND), State::Open(11 * SECOND));
            assert!(!circuit.admits(2 * SECOND, &SETTINGS));
            let now = 11 * SECOND;
            assert_eq!(circuit.state(now), State::HalfOpen);
            for _ in 0..2 {
                assert!(circuit.admits(now, &SETTINGS));
                assert_eq!(circuit.start_call(&SETTINGS), Some(true));
            }
            assert!(!circuit.admits(now, &SETTINGS));
            assert_eq!(circuit.start_call(&SETTINGS), None, "two at a time");
            if good {
                assert!(circuit.record_success());
                circuit.end_trial();
                assert_eq!(circuit.state(now), State::Closed);
                assert_eq!(circuit.start_call(&SETTINGS), Some(false));
            } else {
                assert!(
                    !circuit.record_failure(now, true, &SETTINGS),
                    "it was open before"
                );
                circuit.end_trial();
                assert_eq!(circuit.state(now), State::Open(now + 10 * SECOND));
            }
        }
    }

    #[test]
    fn a_call_from_before_the_cooldown_that_fails_does_not_make_it_longer() {
        let circuit = Circuit::default();
        circuit.open(SECOND, &SETTINGS);
        circuit.record_failure(5 * SECOND, false, &SETTINGS);
        assert_eq!(circuit.state(5 * SECOND), State::Open(11 * SECOND));
    }

    #[test]
    fn a_cooldown_that_ends_early_leaves_the_circuit_half_open() {
        let circuit = Circuit::default();
        circuit.end_cooldown(SECOND);
        assert_eq!(circuit.state(SECOND), State::Closed);
        circuit.open(SECOND, &SETTINGS);
        circuit.end_cooldown(2 * SECOND);
        assert_eq!(circuit.state(2 * SECOND), State::HalfOpen);
    }

    proptest! {
        /// In every sequence, no more trial requests are under way than the settings allow, the circuit opens for no fewer than the
        /// configured failures, and every cooldown ends.
        #[test]
        fn trials_are_bounded_and_every_cooldown_ends(steps in prop::collection::vec((0u8..4, 0u64..20), 1..200)) {
            let circuit = Circuit::default();
            let (mut now, mut trials, mut failed_in_row) = (SECOND, 0, 0);
            for (step, seconds) in steps {
                now += seconds * SECOND;
                match step {
                    0 => {
                        let was_open = circuit.state(now) != State::Closed;
                        let entered = circuit.start_call(&SETTINGS);
                        prop_assert_eq!(entered, if !was_open { Some(false) } else if trials < 2 { Some(true) } else { None });
                        trials += u32::from(entered == Some(true));
                    }
                    1 => {
                        circuit.record_success();
                        failed_in_row = 0;
                        prop_assert_eq!(circuit.state(now), State::Closed);
                    }
                    2 => {
                        failed_in_row += 1;
                        circuit.record_failure(now, trials > 0, &SETTINGS);
                        if failed_in_row < 3 {
                            prop_assert_eq!(circuit.state(now), State::Closed);
                        }
                    }
                    _ => if trials > 0 {
                        circuit.end_trial();
                        trials -= 1;
                    },
                }
                if let State::Open(until) = circuit.state(now) {
                    prop_assert!(until <= now + 10 * SECOND);
                }
            }
        }
    }
}
