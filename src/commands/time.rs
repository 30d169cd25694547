//! Times in the operator's notation, in UTC.

use std::time::Duration;

use anyhow::Context as _;
use tollgate_clock::Timestamp;

use crate::admin::views;
pub(super) use crate::admin::views::day;

const DAY: Duration = Duration::from_hours(24);

/// The first and the last moment (exclusive) of a day.
pub(super) fn read_day(text: &str) -> anyhow::Result<(Timestamp, Timestamp)> {
    views::read_day(text)
        .with_context(|| format!("`{text}` is not a day; write it like 2026-01-31"))
}

/// A future time: a day (its first moment), an RFC 3339 time, or days from now (`90d`).
pub(super) fn read_end(text: &str, now: Timestamp) -> anyhow::Result<Timestamp> {
    if let Some(days) = text
        .strip_suffix('d')
        .and_then(|days| days.parse::<u32>().ok())
    {
        let end = now.checked_add(DAY * days);
        return end.with_context(|| format!("`{text}` is too far in the future"));
    }
    if let Some(time) = Timestamp::from_rfc3339(text) {
        return Ok(time);
    }
    let (start, _) = read_day(text).with_context(|| {
        format!("`{text}` is not a time; write a day (2027-01-31), a time (2027-01-31T12:00:00Z) or days from now (90d)")
    })?;
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_days_times_or_days_from_now() {
        let now = Timestamp::from_secs(1);
        check("1970-01-02", now, Some(Timestamp::UNIX_EPOCH + DAY));
        check("1970-01-01T00:00:05Z", now, Some(Timestamp::from_secs(5)));
        check("2d", now, Some(now + 2 * DAY));
        check("4294967295d", now, None);
        check("tomorrow", now, None);
        check("2026-02-30", now, None);
        check("-1d", now, None);
    }

    fn check(text: &str, now: Timestamp, end: Option<Timestamp>) {
        assert_eq!(read_end(text, now).ok(), end, "{text}");
    }

    #[test]
    fn a_day_ends_where_the_next_begins() {
        let (_, end) = read_day("2026-02-28").expect("a day");
        let (start, _) = read_day("2026-03-01").expect("a day");
        assert_eq!(end, start);
        assert_eq!(day(start), "2026-03-01");
        assert_eq!(start.rfc3339(), "2026-03-01T00:00:00Z");
    }
}
