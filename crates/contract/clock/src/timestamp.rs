//! Wall-clock timestamps: microseconds since 1970.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

const MICROS_PER_SEC: i64 = 1_000_000;
const MICROS_PER_MILLI: i64 = 1_000;
const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SEC;

/// A point of wall-clock time: microseconds since 1970-01-01T00:00:00Z.
///
/// For recorded times. A lifetime within the process ends at a [`crate::Deadline`], which does not move when the wall clock is set.
/// Arithmetic saturates: a time beyond the range means "never" or "always", and must not wrap to its opposite.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const UNIX_EPOCH: Timestamp = Timestamp(0);

    /// The earliest time.
    pub const MIN: Timestamp = Timestamp(i64::MIN);

    /// The latest time.
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// A time from microseconds since 1970, as stored.
    pub const fn from_micros(micros: i64) -> Timestamp {
        Timestamp(micros)
    }

    /// A time from seconds since 1970, as written by protocols.
    pub const fn from_secs(secs: i64) -> Timestamp {
        Timestamp(secs.saturating_mul(MICROS_PER_SEC))
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since 1970, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(MICROS_PER_MILLI)
    }

    /// Whole seconds since 1970, rounded down.
    pub const fn as_secs(self) -> i64 {
        self.0.div_euclid(MICROS_PER_SEC)
    }

    /// The time since `earlier`; zero when `earlier` is later.
    pub const fn duration_since(self, earlier: Timestamp) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(if micros > 0 { micros.unsigned_abs() } else { 0 })
    }

    /// The time between two timestamps, in either order.
    pub const fn abs_diff(self, other: Timestamp) -> Duration {
        Duration::from_micros(self.0.abs_diff(other.0))
    }

    /// Midnight of the day, UTC.
    pub const fn start_of_day(self) -> Timestamp {
        let day = self.0.div_euclid(MICROS_PER_DAY);
        Timestamp(day.saturating_mul(MICROS_PER_DAY))
    }

    /// The later time by a duration; `None` beyond the range.
    pub fn checked_add(self, duration: Duration) -> Option<Timestamp> {
        let micros = i64::try_from(duration.as_micros()).ok()?;
        self.0.checked_add(micros).map(Timestamp)
    }

    /// Reads RFC 3339 text.
    pub fn from_rfc3339(text: &str) -> Option<Timestamp> {
        let time: jiff::Timestamp = text.parse().ok()?;
        Some(time.into())
    }

    /// RFC 3339 text in UTC, in whole seconds: `2026-01-31T23:59:59Z`. A time outside of the calendar is written as the calendar's first or
    /// last time.
    pub fn rfc3339(self) -> String {
        let range = jiff::Timestamp::MIN.as_second()..=jiff::Timestamp::MAX.as_second();
        let secs = self.as_secs().clamp(*range.start(), *range.end());
        let time = jiff::Timestamp::from_second(secs);
        time.expect("within the range of the calendar").to_string()
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// Saturating.
impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(duration)))
    }
}

/// Saturating.
impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros(duration)))
    }
}

impl AddAssign<Duration> for Timestamp {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl SubAssign<Duration> for Timestamp {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl From<jiff::Timestamp> for Timestamp {
    fn from(time: jiff::Timestamp) -> Timestamp {
        Timestamp(time.as_microsecond())
    }
}

/// For calendar arithmetic. A time outside of the calendar becomes the calendar's first or last time.
impl From<Timestamp> for jiff::Timestamp {
    fn from(time: Timestamp) -> jiff::Timestamp {
        let limit = match time.0 < 0 {
            true => jiff::Timestamp::MIN,
            false => jiff::Timestamp::MAX,
        };
        jiff::Timestamp::from_microsecond(time.0).unwrap_or(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_down_and_written_as_rfc_3339() {
        //   micros, seconds, text
        check(0, 0, "1970-01-01T00:00:00Z");
        check(-1, -1, "1969-12-31T23:59:59Z");
        check(1_800_000_300_999_999, 1_800_000_300, "2027-01-15T08:05:00Z");
        assert_eq!(Timestamp::MAX.rfc3339(), "9999-12-30T22:00:00Z");
        assert_eq!(Timestamp::from_secs(i64::MAX), Timestamp::MAX);
    }

    fn check(micros: i64, secs: i64, text: &str) {
        let time = Timestamp::from_micros(micros);
        assert_eq!(time.as_secs(), secs);
        assert_eq!(time.rfc3339(), text);
        let read = Timestamp::from_rfc3339(text);
        assert_eq!(read, Some(Timestamp::from_secs(secs)));
    }

    #[test]
    fn a_day_starts_at_midnight() {
        let day = 86_400_000_000;
        //   micros, midnight
        for (micros, midnight) in [
            (-day - 1, -2 * day),
            (-day, -day),
            (-1, -day),
            (0, 0),
            (day - 1, 0),
            (day, day),
            (i64::MIN, i64::MIN),
        ] {
            let start = Timestamp::from_micros(micros).start_of_day();
            assert_eq!(start, Timestamp::from_micros(midnight), "{micros}");
        }
    }

    #[test]
    fn arithmetic_saturates() {
        let (early, late) = (Timestamp::from_secs(5), Timestamp::from_secs(7));
        assert_eq!(late.duration_since(early), Duration::from_secs(2));
        assert_eq!(early.duration_since(late), Duration::ZERO);
        assert_eq!(early.abs_diff(late), Duration::from_secs(2));
        assert_eq!(early + Duration::from_secs(2), late);
        assert_eq!(late - Duration::from_secs(2), early);
        assert_eq!(late + Duration::MAX, Timestamp::MAX);
        assert_eq!(late.checked_add(Duration::MAX), None);
    }
}
