//! The cached time of an exchange.

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
const WALL_HOLDS: Duration = Duration::from_secs(1);

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
        if let Some(unix_micros) = self.counted_on(elapsed) {
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
    pub(crate) fn counted_on(&self, elapsed: Duration) -> Option<i64> {
        let wall = self.wall?;
        let since = elapsed.checked_sub(wall.elapsed)?;
        (since < WALL_HOLDS).then(|| wall.unix_micros + since.as_micros() as i64)
    }

    pub(crate) fn passes(&mut self) {
        self.elapsed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 5_000_000;

    #[test]
    fn time_stands_still_until_something_has_been_waited_for() {
        let (clock, hand) = Clock::manual(START);
        let mut time = Time::default();
        let first = (time.elapsed(&clock), time.unix_micros(&clock));
        assert_eq!(first, (clock.elapsed(), clock.unix_micros()));
        hand.advance(Duration::from_millis(3));
        let second = (time.elapsed(&clock), time.unix_micros(&clock));
        assert_eq!(second, first);
        time.passes();
        let third = (time.elapsed(&clock), time.unix_micros(&clock));
        assert_eq!(third, (clock.elapsed(), clock.unix_micros()));
        assert_eq!(third.1 - first.1, 3_000);
    }

    #[test]
    fn the_wall_clock_is_read_again_after_a_second() {
        //   waited ms, set to, told
        check(999, 9_000_000, START as i64 + 999_000);
        check(1_000, 9_000_000, 9_000_000);
        check(1_000, 1, 1);
    }

    fn check(waited_ms: u64, set_to: u64, told: i64) {
        let (clock, hand) = Clock::manual(START);
        let mut time = Time::at(clock.moment());
        hand.advance(Duration::from_millis(waited_ms));
        hand.jump_to(set_to);
        time.passes();
        assert_eq!(
            time.unix_micros(&clock),
            told,
            "{waited_ms} ms, set to {set_to}"
        );
    }
}
