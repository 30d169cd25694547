//! Formatting of amounts and times for display.

use std::time::Duration;

use jiff::tz::TimeZone;
use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_money::Micros;

const MICROS: u64 = 1_000_000;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// An amount in totals: two decimals, rounded down, so that no more than the balance is shown.
pub fn credits_2(amount: Micros) -> String {
    credits(amount, 2)
}

/// Cost of several requests: two decimals, rounded up. Balances are rounded down, so spending and balance make up the whole. Never zero for
/// a positive amount.
pub fn costs_2(amount: Micros) -> String {
    if amount > Micros::ZERO && amount.get() < 10_000 {
        return "< 0.01".into();
    }
    credits_up(amount, 2)
}

/// An upper bound in two decimals, rounded up.
pub fn credits_up_2(amount: Micros) -> String {
    credits_up(amount, 2)
}

/// Cost of one request: four decimals, rounded up, never zero for a positive amount.
pub fn credits_4(amount: Micros) -> String {
    if amount > Micros::ZERO && amount.get() < 100 {
        return "< 0.0001".into();
    }
    credits_up(amount, 4)
}

/// An amount with six decimals, as in the ledger.
pub fn credits_6(amount: Micros) -> String {
    credits(amount, 6)
}

/// A signed amount with six decimals.
pub fn signed_credits_6(amount: Micros) -> String {
    let sign = if amount > Micros::ZERO { "+" } else { "" };
    format!("{sign}{}", credits(amount, 6))
}

/// A price with as many decimals as needed.
pub fn price(amount: Micros) -> String {
    let exact = credits(amount, 6);
    let shown = exact.trim_end_matches('0').trim_end_matches('.');
    shown.to_owned()
}

/// An integer with thousands separators.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// An amount with a number of decimals, six at most, rounded up.
fn credits_up(amount: Micros, places: u32) -> String {
    let unit = 10i64.pow(6 - places);
    let up = (unit - amount.get().rem_euclid(unit)) % unit;
    credits(amount.saturating_add(Micros::new(up)), places)
}

/// An amount with a number of decimals, six at most. Rounds towards minus infinity, so that a debt is never shown too small.
pub(crate) fn credits(amount: Micros, places: u32) -> String {
    let unit = 10i64.pow(6 - places);
    let shown = amount.get().div_euclid(unit);
    let sign = if shown < 0 { "\u{2212}" } else { "" };
    let micros = shown.unsigned_abs() * unit.unsigned_abs();
    let (date_time, fraction) = (micros / MICROS, micros % MICROS);
    let fraction = &format!("{fraction:06}")[..places as usize];
    let point = if places > 0 { "." } else { "" };
    format!("{sign}{}{point}{fraction}", count(date_time))
}

/// Untrusted text on a single line: bidirectional controls, line breaks and other control characters are removed.
pub fn single_line(text: &str) -> String {
    let kept = text.chars().map(|character| match character {
        '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
        other => other,
    });
    kept.filter(|&character| {
        !character.is_control()
            && !matches!(character, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    })
    .collect()
}

/// A time: relative if less than a day away, else the date; the `time` element contains the full value.
pub fn relative_time(at: Timestamp, now: Timestamp) -> Markup {
    let apart = now.abs_diff(at);
    let words = if at > now && apart <= DAY {
        "in ".to_owned() + &duration(apart)
    } else if apart >= DAY {
        date(at, now)
    } else if apart >= HOUR {
        plural(whole(apart, HOUR), "hour") + " ago"
    } else if apart >= MINUTE {
        plural(whole(apart, MINUTE), "minute") + " ago"
    } else {
        "just now".to_owned()
    };
    html! { time datetime=(at.rfc3339()) title=(date_time(at)) { (words) } }
}

/// A date, with the year unless current: `3 August`, `3 August 2025`.
pub fn date(at: Timestamp, now: Timestamp) -> String {
    let form = if year(at) == year(now) {
        "%-d %B"
    } else {
        "%-d %B %Y"
    };
    formatted(at, form)
}

/// A date as in forms: `2026-11-21`.
pub fn day(at: Timestamp) -> String {
    formatted(at, "%Y-%m-%d")
}

/// A date for an axis: `23 Oct`.
pub fn day_short(at: Timestamp) -> String {
    formatted(at, "%-d %b")
}

/// A time of day with its zone: `14:02:11 UTC`.
pub fn time_of_day(at: Timestamp) -> String {
    formatted(at, "%H:%M:%S UTC")
}

/// Date and time with time zone: `21 November 2026, 14:02:11 UTC`.
pub fn date_time(at: Timestamp) -> String {
    formatted(at, "%-d %B %Y, %H:%M:%S UTC")
}

/// A duration as text, rounded up from whole microseconds: `38 seconds`, `4 minutes`. At least a second.
pub fn duration(duration: Duration) -> String {
    let micros = duration.as_micros().max(1);
    let up = |unit: Duration| {
        let units = micros.div_ceil(unit.as_micros());
        i64::try_from(units).unwrap_or(i64::MAX)
    };
    match micros {
        _ if up(SECOND) < 60 => plural(up(SECOND), "second"),
        _ if up(MINUTE) < 60 => plural(up(MINUTE), "minute"),
        _ => plural(up(HOUR), "hour"),
    }
}

/// How many whole units a duration of at most a day has.
fn whole(duration: Duration, unit: Duration) -> i64 {
    (duration.as_secs() / unit.as_secs()) as i64
}

/// `1 minute`, `2 minutes`.
pub fn plural(number: i64, word: &str) -> String {
    match number {
        1 => format!("1 {word}"),
        _ => format!("{number} {word}s"),
    }
}

fn year(at: Timestamp) -> String {
    formatted(at, "%Y")
}

fn formatted(at: Timestamp, form: &str) -> String {
    // A time outside of the calendar range is not a meaningful value.
    let time = jiff::Timestamp::from_microsecond(at.as_micros());
    time.unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_zoned(TimeZone::UTC)
        .strftime(form)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_positive_cost_is_never_shown_as_zero() {
        for (micros, shown) in [
            (0, "0.00"),
            (1, "< 0.01"),
            (9_999, "< 0.01"),
            (10_000, "0.01"),
            (1_999_999, "2.00"),
        ] {
            assert_eq!(costs_2(Micros::new(micros)), shown);
        }
    }

    #[test]
    fn amounts_are_grouped_and_rounded_down_and_costs_up() {
        let amounts = [
            // micros           totals           requests      ledger
            (0, "0.00", "0.0000", "0.000000"),
            (1, "0.00", "< 0.0001", "0.000001"),
            (99, "0.00", "< 0.0001", "0.000099"),
            (9_999_999, "9.99", "10.0000", "9.999999"),
            (9_999_900, "9.99", "9.9999", "9.999900"),
            (412_080_000, "412.08", "412.0800", "412.080000"),
            (
                1_234_567_890_123,
                "1,234,567.89",
                "1,234,567.8902",
                "1,234,567.890123",
            ),
            (-1, "\u{2212}0.01", "0.0000", "\u{2212}0.000001"),
        ];
        for (micros, sums, requests, ledger) in amounts {
            let amount = Micros::new(micros);
            assert_eq!(credits_2(amount), sums);
            assert_eq!(credits_4(amount), requests);
            assert_eq!(credits_6(amount), ledger);
        }
        assert_eq!(credits_2(Micros::new(i64::MAX)), "9,223,372,036,854.77");
        assert_eq!(signed_credits_6(Micros::new(5)), "+0.000005");
        let prices =
            [0, 10_000, 150_000_000, 50_000_000_000].map(|amount| price(Micros::new(amount)));
        assert_eq!(prices, ["0", "0.01", "150", "50,000"]);
        let promised = [0, 1, 10_000, 10_001].map(|amount| credits_up_2(Micros::new(amount)));
        assert_eq!(promised, ["0.00", "0.01", "0.01", "0.02"]);
        // Of 100 credits, those that are shown as spent and as left.
        for spent in [1, 9_999, 10_000, 33_333_333, 99_999_999] {
            let left = credits_2(Micros::new(100_000_000 - spent));
            let cents = |text: &str| {
                text.replace(['.', '<', ' '], "")
                    .parse::<i64>()
                    .expect("digits")
            };
            let sum = cents(&costs_2(Micros::new(spent))) + cents(&left);
            assert_eq!(sum, 10_000, "{spent}");
        }
    }

    #[test]
    fn untrusted_text_stays_on_its_line_and_in_its_direction() {
        assert_eq!(single_line("a\u{202e}b\nc\u{7}"), "ab c");
        assert_eq!(single_line("Ünï – ok"), "Ünï – ok");
    }

    #[test]
    fn times_are_relative_below_a_day_and_dates_beyond() {
        const NOW: Timestamp = Timestamp::from_secs(1_795_269_731); // 2026-11-21T14:02:11Z
        let shown = |at: Timestamp| {
            let text = relative_time(at, NOW).into_string();
            let text = text.split_once('>').expect("an element").1.to_owned();
            text.trim_end_matches("</time>").to_owned()
        };
        assert_eq!(date_time(NOW), "21 November 2026, 14:02:11 UTC");
        assert_eq!(shown(NOW), "just now");
        assert_eq!(shown(NOW - MINUTE), "1 minute ago");
        assert_eq!(shown(NOW - 59 * MINUTE), "59 minutes ago");
        assert_eq!(shown(NOW - 23 * HOUR), "23 hours ago");
        assert_eq!(shown(NOW - DAY), "20 November");
        assert_eq!(shown(NOW - 400 * DAY), "17 October 2025");
        assert_eq!(shown(NOW + 2 * HOUR), "in 2 hours");
        assert_eq!(shown(NOW + DAY), "in 24 hours");
        assert_eq!(shown(NOW + DAY + SECOND), "22 November");
        assert_eq!(duration(Duration::from_micros(1)), "1 second");
        assert_eq!(duration(38 * SECOND), "38 seconds");
        assert_eq!(duration(3 * MINUTE + Duration::from_micros(1)), "4 minutes");
    }
}
