//! Days (UTC) as texts.

use jiff::ToSpan as _;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use tollgate_clock::Timestamp;

/// The day of a time: `2026-01-31`.
pub(crate) fn day(time: Timestamp) -> String {
    let mut text = time.rfc3339();
    text.truncate(10);
    text
}

/// The first and the last moment (exclusive) of a day.
pub(crate) fn read_day(text: &str) -> Option<(Timestamp, Timestamp)> {
    let date: Date = text.parse().ok()?;
    let start = |date: Date| -> Option<Timestamp> {
        let midnight = date.to_zoned(TimeZone::UTC).ok()?;
        Some(midnight.timestamp().into())
    };
    let next = date.checked_add(1.day()).ok()?;
    Some((start(date)?, start(next)?))
}
