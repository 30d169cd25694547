//! Calendar months, UTC.

use crate::Timestamp;

const DAY_SECS: i64 = 86_400;

/// A month, as a count from January of year 0 in the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Month(i64);

impl Month {
    /// The month with the count.
    pub const fn from_number(number: i64) -> Month {
        Month(number)
    }

    /// The count: twelve times the year, and 0 to 11.
    pub const fn number(self) -> i64 {
        self.0
    }

    /// The month of an instant.
    pub fn of(at: Timestamp) -> Month {
        let day = at.as_secs().div_euclid(DAY_SECS);
        // The first estimate is never late, as no month is longer than 31 days; the loop adds single months.
        let mut month = Month(1970 * 12 + day.div_euclid(31).min(day.div_euclid(28)));
        while month.next().first_day() <= day {
            month = month.next();
        }
        month
    }

    /// The next month.
    pub fn next(self) -> Month {
        Month(self.0 + 1)
    }

    /// The month's first instant.
    pub fn start(self) -> Timestamp {
        Timestamp::from_secs(self.first_day().saturating_mul(DAY_SECS))
    }

    /// The month's first day, counted from 1970-01-01.
    fn first_day(self) -> i64 {
        const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        /// Days from the first day of year 0 to the first day of 1970.
        const EPOCH: i64 = 719_528;
        let (year, month) = (self.0.div_euclid(12), self.0.rem_euclid(12));
        let leaps =
            |years: i64| years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400);
        // Year 0 is a leap year, and its day counts for every later year.
        let days = 365 * year + leaps(year - 1) + 1;
        let is_leap = leaps(year) > leaps(year - 1);
        let leap_day = i64::from(is_leap && month > 1);
        days + BEFORE[month as usize] + leap_day - EPOCH
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn months_start_at_calendar_boundaries() {
        //    Unix seconds of the first instant, and of the month after it
        for (start, next) in [
            (0, 2_678_400),
            (1_704_067_200, 1_706_745_600),           // January 2024
            (1_706_745_600, 1_709_251_200),           // February 2024, 29 days
            (1_738_368_000, 1_740_787_200),           // February 2025
            (1_764_547_200, 1_767_225_600),           // December 2025
            (951_782_400 - 28 * 86_400, 951_868_800), // February 2000, 29 days
            (4_107_542_400 - 28 * 86_400, 4_107_542_400), // February 2100, 28 days
        ] {
            let (first, end) = (Timestamp::from_secs(start), Timestamp::from_secs(next));
            let month = Month::of(first);
            assert_eq!(month.start(), first, "{start}");
            assert_eq!(month.next().start(), end, "{start}");
            assert_eq!(Month::of(end - Duration::from_micros(1)), month, "{start}");
            assert_eq!(Month::of(end), month.next(), "{start}");
        }
        let december = Month::of(Timestamp::from_secs(1_764_547_200));
        assert_eq!(december, Month::from_number(2025 * 12 + 11));
        assert_eq!(december.number(), 2025 * 12 + 11);
    }
}
