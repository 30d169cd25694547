//! Time stamps of log lines.

/// Appends `unix_micros` as RFC 3339 in UTC with microseconds: `2026-01-31T23:59:59.000001Z`.
pub(super) fn stamp(out: &mut Vec<u8>, unix_micros: i64) {
    let (seconds, micros) = (
        unix_micros.div_euclid(1_000_000),
        unix_micros.rem_euclid(1_000_000),
    );
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    digits(&mut text[0..4], year);
    digits(&mut text[5..7], month);
    digits(&mut text[8..10], day);
    digits(&mut text[11..13], second / 3600);
    digits(&mut text[14..16], second / 60 % 60);
    digits(&mut text[17..19], second % 60);
    digits(&mut text[20..26], micros);
    out.extend_from_slice(&text);
}

/// Writes a number into a whole field, with leading zeros.
fn digits(field: &mut [u8], number: i64) {
    let mut rest = number.unsigned_abs() as u32;
    for place in field.iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Year, month and day of a number of days since 1970-01-01 in the Gregorian calendar.
///
/// Counted in years that start on 1 March, so that the leap day is the last day of a year.
fn date(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    // 1 March of the year 0 lies this many days before 1970.
    let since = days + 719_468;
    let (era, day) = (
        since.div_euclid(DAYS_OF_400_YEARS),
        since.rem_euclid(DAYS_OF_400_YEARS),
    );
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year + i64::from(month <= 2);
    (year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_what_the_calendar_says() {
        check(0, "1970-01-01T00:00:00.000000Z");
        check(951_782_399_999_999, "2000-02-28T23:59:59.999999Z");
        check(951_782_400_000_000, "2000-02-29T00:00:00.000000Z");
        check(1_709_251_200_000_001, "2024-03-01T00:00:00.000001Z");
        check(1_798_761_600_000_000, "2027-01-01T00:00:00.000000Z");
        check(4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z");
    }

    fn check(unix_micros: i64, text: &str) {
        let mut out = Vec::new();
        stamp(&mut out, unix_micros);
        assert_eq!(String::from_utf8(out).expect("ASCII"), text);
    }
}
