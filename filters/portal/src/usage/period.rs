//! Periods of whole days (UTC).

use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use tollgate_clock::Timestamp;
use tollgate_pages::format;
use tollgate_pages::parts::Problem;

const DAY_SECS: i64 = 86_400;

pub(crate) const DAY: Duration = Duration::from_secs(DAY_SECS.unsigned_abs());

/// Maximum days of a period: the chart has one bar per day.
const DAYS_MAX: i64 = 92;

/// Consecutive days, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    /// First day, in days since 1970-01-01.
    first: i64,
    days: i64,
}

impl Period {
    /// The last `days` including today.
    pub(crate) fn last(days: i64, now: Timestamp) -> Period {
        let today = day_of(now);
        Period {
            first: today - (days - 1),
            days,
        }
    }

    /// Parses the form fields `from` and `to`. Empty fields default to the last 30 days.
    pub(crate) fn read(from: &str, to: &str, now: Timestamp) -> Result<Period, Vec<Problem>> {
        let mut problems = Vec::new();
        let usual = Period::last(30, now);
        let mut day = |name: &str, text: &str, usual: i64| match text.trim() {
            "" => usual,
            text => read_day(text).unwrap_or_else(|| {
                let example = format::day(now);
                problems.push(Problem::new(name, format!("Write the day like {example}.")));
                usual
            }),
        };
        let last = day("to", to, usual.first + usual.days - 1);
        let first = day("from", from, usual.first.min(last));
        if problems.is_empty() && last < first {
            problems.push(Problem::new("to", "The end is before the start."));
        }
        if problems.is_empty() && last - first >= DAYS_MAX {
            let text = format!("Choose {DAYS_MAX} days at most.");
            problems.push(Problem::new("from", text));
        }
        // In form order.
        problems.reverse();
        match problems.is_empty() {
            true => Ok(Period {
                first,
                days: last - first + 1,
            }),
            false => Err(problems),
        }
    }

    /// The preceding period of equal length.
    pub(crate) fn before(self) -> Period {
        Period {
            first: self.first - self.days,
            days: self.days,
        }
    }

    /// Start.
    pub(crate) fn from(self) -> Timestamp {
        start_of(self.first)
    }

    /// End (exclusive).
    pub(crate) fn to(self) -> Timestamp {
        start_of(self.first + self.days)
    }

    /// Start of each day, oldest first.
    pub(crate) fn starts(self) -> impl Iterator<Item = Timestamp> {
        (self.first..self.first + self.days).map(start_of)
    }

    /// Whether a time lies in the period.
    pub(crate) fn has(self, at: Timestamp) -> bool {
        (self.from()..self.to()).contains(&at)
    }

    /// First day in the format of forms and URLs: `2026-11-01`.
    pub(crate) fn first_day(self) -> String {
        format::day(self.from())
    }

    pub(crate) fn last_day(self) -> String {
        format::day(self.to() - DAY)
    }

    /// As text within a sentence: `from 1 to 7 November`, `on 7 November`.
    pub(crate) fn words(self, now: Timestamp) -> String {
        let (first, last) = (self.from(), self.to() - DAY);
        let end = format::date(last, now);
        if self.days == 1 {
            return format!("on {end}");
        }
        let begin = format::date(first, now);
        match (begin.split_once(' '), end.split_once(' ')) {
            (Some((day, month)), Some((_, same))) if month == same => {
                format!("from {day} to {end}")
            }
            _ => format!("from {begin} to {end}"),
        }
    }
}

fn read_day(text: &str) -> Option<i64> {
    let date: Date = text.parse().ok()?;
    let start = date.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Some(day_of(start.into()))
}

/// The start of the month of a time.
pub(crate) fn start_of_month(at: Timestamp) -> Timestamp {
    let text = at.rfc3339();
    let first = text
        .get(..8)
        .and_then(|month| read_day(&format!("{month}01")));
    first.map_or(at.start_of_day(), start_of)
}

/// The day of a time, in days since 1970-01-01.
fn day_of(at: Timestamp) -> i64 {
    at.as_secs().div_euclid(DAY_SECS)
}

/// The start of a day, given in days since 1970-01-01.
fn start_of(day: i64) -> Timestamp {
    Timestamp::from_secs(day * DAY_SECS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-21T14:02:11Z
    const NOW: Timestamp = Timestamp::from_secs(1_795_269_731);

    #[test]
    fn a_period_form_is_parsed_or_its_problem_reported() {
        // from          to              expected
        let cases = [
            ("", "", Ok("from 23 October to 21 November")),
            ("2026-11-01", "2026-11-07", Ok("from 1 to 7 November")),
            ("2026-11-07", "2026-11-07", Ok("on 7 November")),
            (
                "2025-12-30",
                "2026-01-02",
                Ok("from 30 December 2025 to 2 January"),
            ),
            ("2026-08-22", "", Ok("from 22 August to 21 November")),
            ("", "2026-01-05", Ok("on 5 January")),
            (
                "2026-11-07",
                "2026-11-06",
                Err(("to", "The end is before the start.")),
            ),
            ("2026-08-21", "", Err(("from", "Choose 92 days at most."))),
            (
                "yesterday",
                "",
                Err(("from", "Write the day like 2026-11-21.")),
            ),
            (
                "",
                "2026-02-30",
                Err(("to", "Write the day like 2026-11-21.")),
            ),
            (
                "-262143-01-01",
                "9999-12-31",
                Err(("from", "Write the day like 2026-11-21.")),
            ),
        ];
        for (from, to, expected) in cases {
            let read = Period::read(from, to, NOW);
            let seen = read
                .as_ref()
                .map(|period| period.words(NOW))
                .map_err(|problems| {
                    let problem = &problems[0];
                    (problem.field.clone(), problem.text.clone())
                });
            let expected = expected
                .map(str::to_owned)
                .map_err(|(field, text)| (field.to_owned(), text.to_owned()));
            assert_eq!(seen, expected, "{from:?} to {to:?}");
        }
    }

    #[test]
    fn a_month_starts_on_its_first_day() {
        assert_eq!(start_of_month(NOW).rfc3339(), "2026-11-01T00:00:00Z");
        let first = start_of_month(NOW);
        assert_eq!(start_of_month(first), first);
    }

    #[test]
    fn the_preceding_period_has_equal_length_and_is_adjacent() {
        let period = Period::last(7, NOW);
        assert_eq!(period.before().to(), period.from());
        assert_eq!(period.starts().count(), 7);
        assert!(period.has(NOW));
        assert!(!period.before().has(NOW));
    }

    proptest! {
        #[test]
        fn a_period_round_trips_through_its_form(days in 1i64..=DAYS_MAX, at in 0i64..3_000_000_000_000_000) {
            let period = Period::last(days, Timestamp::from_micros(at));
            prop_assert_eq!(Period::read(&period.first_day(), &period.last_day(), NOW), Ok(period));
        }

        #[test]
        fn no_input_panics(from in ".{0,20}", to in ".{0,20}") {
            let _ = Period::read(&from, &to, NOW);
        }
    }
}
