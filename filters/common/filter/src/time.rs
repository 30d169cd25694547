//! The cached time of an exchange: one clock reading shared by all phases until the next wait.

use std::time::Duration;

use crate::Clock;

/// A reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// [`Clock::elapsed`]
    pub elapsed: Duration,
    /// [`Clock::unix_micros`]
    pub unix_micros: i64,
}

/// After this long the wall clock is read again: it may have been set, or the machine may have been suspended.
const WALL_MAX_AGE: Duration = Duration::from_secs(1);

/// The time of the last clock reading.
///
/// Decisions without a wait take microseconds, and reading a clock is a large part of one. So the phases of an exchange share their
/// readings, until one of them has waited. The wall clock is read once a second at most, and extrapolated from there.
#[derive(Debug, Default)]
pub(crate) struct Time {
    /// `None` when the clock was not read since the last wait.
    elapsed: Option<Duration>,
    wall: Option<Moment>,
}

impl Time {
    pub(crate) fn at(moment: Moment) -> Time {
        Time {
            elapsed: Some(moment.elapsed),
            wall: Some(moment),
        }
    }

    pub(crate) fn elapsed(&mut self, clock: &Clock) -> Duration {
        *self.elapsed.get_or_insert_with(|| clock.elapsed())
    }

    pub(crate) fn unix_micros(&mut self, clock: &Clock) -> i64 {
        let elapsed = self.elapsed(clock);
        if let Some(unix_micros) = self.extrapolated(elapsed) {
            return unix_micros;
        }
        let unix_micros = clock.unix_micros();
        self.wall = Some(Moment {
            elapsed,
            unix_micros,
        });
        unix_micros
    }

    /// The wall clock at a reading of the monotonic one, if it was read shortly before.
    pub(crate) fn extrapolated(&self, elapsed: Duration) -> Option<i64> {
        let wall = self.wall?;
        let since = elapsed.checked_sub(wall.elapsed)?;
        (since < WALL_MAX_AGE).then(|| wall.unix_micros + since.as_micros() as i64)
    }

    pub(crate) fn invalidate(&mut self) {
        self.elapsed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 5_000_000;

    #[test]
    fn the_cached_time_is_unchanged_until_a_wait() {
        let (clock, manual) = Clock::manual(START);
        let mut time = Time::default();
        let first = (time.elapsed(&clock), time.unix_micros(&clock));
        assert_eq!(first, (clock.elapsed(), clock.unix_micros()));
        manual.advance(Duration::from_millis(3));
        let second = (time.elapsed(&clock), time.unix_micros(&clock));
        assert_eq!(second, first);
        time.invalidate();
        let third = (time.elapsed(&clock), time.unix_micros(&clock));
        assert_eq!(third, (clock.elapsed(), clock.unix_micros()));
        assert_eq!(third.1 - first.1, 3_000);
    }

    #[test]
    fn the_wall_clock_is_read_again_after_a_second() {
        //   waited ms, set to, expected
        check(999, 9_000_000, START as i64 + 999_000);
        check(1_000, 9_000_000, 9_000_000);
        check(1_000, 1, 1);
    }

    fn check(waited_ms: u64, set_to: u64, expected: i64) {
        let (clock, manual) = Clock::manual(START);
        let mut time = Time::at(clock.moment());
        manual.advance(Duration::from_millis(waited_ms));
        manual.jump_to(set_to);
        time.invalidate();
        assert_eq!(
            time.unix_micros(&clock),
            expected,
            "{waited_ms} ms, set to {set_to}"
        );
    }
}
