//! The cached time of an exchange: a clock reading shared by all phases until the next wait.

use std::time::Duration;

use tollgate_clock::{Clock, Reading, Timestamp};

/// After this time the wall clock is read again: the clock may have been set, or the machine may have been suspended.
const WALL_MAX_AGE: Duration = Duration::from_secs(1);

/// The time of the last clock reading.
///
/// A decision without a wait takes microseconds, and a clock reading is a large part of a decision. The phases of an exchange therefore
/// share their readings, until a phase has waited. The wall clock is read once a second at most, and extrapolated.
#[derive(Debug, Default)]
pub(crate) struct Time {
    /// `None` when the clock was not read since the last wait.
    elapsed: Option<Duration>,
    wall: Option<Reading>,
}

impl Time {
    pub(crate) fn at(reading: Reading) -> Time {
        Time {
            elapsed: Some(reading.elapsed),
            wall: Some(reading),
        }
    }

    pub(crate) fn elapsed(&mut self, clock: &Clock) -> Duration {
        *self.elapsed.get_or_insert_with(|| clock.elapsed())
    }

    pub(crate) fn now(&mut self, clock: &Clock) -> Timestamp {
        let elapsed = self.elapsed(clock);
        if let Some(now) = self.extrapolated(elapsed) {
            return now;
        }
        let now = clock.now();
        self.wall = Some(Reading { elapsed, now });
        now
    }

    /// The wall clock at a reading of the monotonic clock, if the wall clock was read shortly before.
    pub(crate) fn extrapolated(&self, elapsed: Duration) -> Option<Timestamp> {
        let wall = self.wall?;
        let since = elapsed.checked_sub(wall.elapsed)?;
        (since < WALL_MAX_AGE).then(|| wall.now + since)
    }

    pub(crate) fn invalidate(&mut self) {
        self.elapsed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(5);

    #[test]
    fn the_cached_time_is_unchanged_until_a_wait() {
        let (clock, manual) = Clock::manual(START);
        let mut time = Time::default();
        let first = (time.elapsed(&clock), time.now(&clock));
        assert_eq!(first, (clock.elapsed(), clock.now()));
        manual.advance(Duration::from_millis(3));
        let second = (time.elapsed(&clock), time.now(&clock));
        assert_eq!(second, first);
        time.invalidate();
        let third = (time.elapsed(&clock), time.now(&clock));
        assert_eq!(third, (clock.elapsed(), clock.now()));
        assert_eq!(third.1 - Duration::from_millis(3), first.1);
    }

    #[test]
    fn the_wall_clock_is_read_again_after_a_second() {
        //   waited ms, set to, expected
        let (later, earlier) = (Timestamp::from_secs(9), Timestamp::from_micros(1));
        check(999, later, START + Duration::from_millis(999));
        check(1_000, later, later);
        check(1_000, earlier, earlier);
    }

    fn check(waited_ms: u64, set_to: Timestamp, expected: Timestamp) {
        let (clock, manual) = Clock::manual(START);
        let mut time = Time::at(clock.reading());
        manual.advance(Duration::from_millis(waited_ms));
        manual.jump_to(set_to);
        time.invalidate();
        assert_eq!(
            time.now(&clock),
            expected,
            "{waited_ms} ms, set to {set_to:?}"
        );
    }
}
