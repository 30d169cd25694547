//! `Retry-After` parser: seconds, also with a fraction, HTTP-date (RFC 9110 section 10.2.3), and milliseconds in `retry-after-ms`.

use std::time::Duration;

use tollgate_clock::Timestamp;

/// The wait that a provider asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryAfter {
    /// For this long.
    Wait(Duration),
    /// Until this time.
    At(Timestamp),
}

impl RetryAfter {
    /// Reads the values of `Retry-After` and of the more exact `retry-after-ms`, sent in addition by Azure and OpenAI. `None` if neither is
    /// a number or a date.
    pub(super) fn read(value: Option<&[u8]>, millis: Option<&[u8]>) -> Option<RetryAfter> {
        if let Some(millis) = millis.and_then(decimal) {
            return Some(RetryAfter::Wait(millis / 1000));
        }
        let value = value?;
        if let Some(secs) = decimal(value) {
            return Some(RetryAfter::Wait(secs));
        }
        let date = std::str::from_utf8(value).ok()?.trim();
        let date = jiff::fmt::rfc2822::parse(date).ok()?;
        Some(RetryAfter::At(date.timestamp().into()))
    }

    /// The wait from the given wall clock time; none for a date in the past.
    pub(super) fn wait_from(self, now: Timestamp) -> Duration {
        match self {
            RetryAfter::Wait(wait) => wait,
            RetryAfter::At(time) => time.duration_since(now),
        }
    }
}

/// A number of seconds without a sign, perhaps with a fraction, of which nine digits count.
fn decimal(value: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    let nanos = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = nanos.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    // More digits than fit mean forever.
    Some(Duration::new(whole.parse().unwrap_or(u64::MAX), nanos))
}

/// Entry point of fuzzing: both fields with one value.
pub(crate) fn fuzz(input: &[u8]) {
    for (value, millis) in [(Some(input), None), (None, Some(input))] {
        if let Some(wait) = RetryAfter::read(value, millis) {
            let _ = wait.wait_from(Timestamp::from_secs(1_800_000_000));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_10_2_3_a_wait_is_read_from_seconds_fractions_dates_and_milliseconds() {
        const HALF: u64 = 1_500;
        //    Retry-After, retry-after-ms          wait in milliseconds, half a minute before the date below
        check("2", "", Some(2_000));
        check(" 0 ", "", Some(0));
        check("1.5", "", Some(HALF));
        check("1.5000000009", "", Some(HALF));
        check("1.", "", Some(1_000));
        check("Wed, 21 Oct 2026 07:28:00 GMT", "", Some(30_000));
        check("Wed, 21 Oct 2026 07:27:00 GMT", "", Some(0));
        check("", "", None);
        check("-1", "", None);
        check(".5", "", None);
        check("1.5.5", "", None);
        check("1e3", "", None);
        check("soon", "", None);
        check("2", "1500", Some(HALF));
        check("", "1500.0", Some(HALF));
        check("2", "soon", Some(2_000));
        check("soon", "-1", None);

        let forever = RetryAfter::read(Some(b"99999999999999999999999"), None);
        let longest = Duration::from_secs(u64::MAX);
        assert_eq!(forever, Some(RetryAfter::Wait(longest)));
    }

    fn check(value: &str, millis: &str, wait: Option<u64>) {
        /// 2026-10-21 07:28:00, less half a minute.
        const BEFORE: Timestamp = Timestamp::from_secs(1_792_567_650);
        let [value_sent, millis_sent] =
            [value, millis].map(|text| (!text.is_empty()).then_some(text.as_bytes()));
        let read = RetryAfter::read(value_sent, millis_sent);
        let read = read.map(|read| read.wait_from(BEFORE));
        let wait = wait.map(Duration::from_millis);
        assert_eq!(read, wait, "{value} and {millis}");
    }
}
