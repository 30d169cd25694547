//! `Retry-After`: parses both forms, delay-seconds and HTTP-date (RFC 9110 section 10.2.3).

use std::time::Duration;

use tollgate_clock::Timestamp;

/// A provider's `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryAfter {
    /// After this many seconds.
    Secs(u64),
    /// At this time.
    At(Timestamp),
}

impl RetryAfter {
    /// Reads the value of the field; `None` for anything that is neither a number of seconds nor a date.
    pub(super) fn read(value: &str) -> Option<RetryAfter> {
        let value = value.trim();
        if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            // More digits than fit mean forever.
            return Some(RetryAfter::Secs(value.parse().unwrap_or(u64::MAX)));
        }
        let date = jiff::fmt::rfc2822::parse(value).ok()?;
        Some(RetryAfter::At(date.timestamp().into()))
    }

    /// The wait from the given wall clock time; none for a date in the past.
    pub(super) fn wait_from(self, now: Timestamp) -> Duration {
        match self {
            RetryAfter::Secs(secs) => Duration::from_secs(secs),
            RetryAfter::At(time) => time.duration_since(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_10_2_3_both_forms_are_parsed_and_no_other() {
        /// 2026-10-21 07:28:00.
        const THEN: Timestamp = Timestamp::from_secs(1_792_567_680);
        //    value                              wait in seconds, half a minute before
        check("2", Some(2));
        check(" 0 ", Some(0));
        check("99999999999999999999999", Some(u64::MAX));
        check("Wed, 21 Oct 2026 07:28:00 GMT", Some(30));
        check("Wed, 21 Oct 2026 07:27:00 GMT", Some(0));
        check("", None);
        check("-1", None);
        check("1.5", None);
        check("soon", None);

        fn check(value: &str, secs: Option<u64>) {
            let before = THEN - Duration::from_secs(30);
            let wait = RetryAfter::read(value).map(|wait| wait.wait_from(before));
            assert_eq!(wait, secs.map(Duration::from_secs), "{value}");
        }
    }
}
