//! JSON numbers as integers, exactly: no floating point, and `1.0` and `1e3` are whole numbers too.

/// A JSON number where an unsigned integer is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    /// A whole number of at least zero; a number beyond 64 bits is `u64::MAX`.
    Value(u64),
    /// Below zero, whole or not.
    Negative,
    /// Not a whole number.
    Fraction,
}

/// Parses a number that the reader has validated.
pub(crate) fn whole(number: &[u8]) -> Whole {
    // The common form: only digits, and few enough that they always fit.
    if number.len() <= 19 && number.iter().all(u8::is_ascii_digit) {
        let digits = number.iter().map(|digit| u64::from(digit - b'0'));
        return Whole::Value(digits.fold(0, |value, digit| 10 * value + digit));
    }
    exactly(number)
}

/// As [`whole`], for any number.
fn exactly(number: &[u8]) -> Whole {
    let (negative, digits) = match number.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, number),
    };
    let (mantissa, exponent) = match digits.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&digits[..at], exponent(&digits[at + 1..])),
        None => (digits, 0),
    };
    let point = mantissa.iter().position(|&byte| byte == b'.');
    let places = point.map_or(0, |at| mantissa.len() - at - 1);
    let significant = |byte: &&u8| byte.is_ascii_digit();
    let Some(last) = mantissa
        .iter()
        .rposition(|byte| matches!(byte, b'1'..=b'9'))
    else {
        return Whole::Value(0);
    };
    if negative {
        return Whole::Negative;
    }
    // The value is `digits up to the last nonzero one` times ten to the power of `shift`.
    let dropped = mantissa[last + 1..].iter().filter(significant).count();
    let shift = exponent + dropped as i64 - places as i64;
    if shift < 0 {
        return Whole::Fraction;
    }
    let mut value = 0u64;
    for digit in mantissa[..=last].iter().filter(significant) {
        value = value
            .saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'));
    }
    let power = u32::try_from(shift)
        .ok()
        .and_then(|shift| 10u64.checked_pow(shift));
    Whole::Value(power.map_or(u64::MAX, |power| value.saturating_mul(power)))
}

/// Whether a number is below zero; `-0.0` is not.
pub(crate) fn negative(number: &[u8]) -> bool {
    number.starts_with(b"-") && exactly(number) == Whole::Negative
}

/// The exponent, saturated where no text that fits in memory makes a difference.
fn exponent(text: &[u8]) -> i64 {
    const BOUND: i64 = 1 << 40;
    let digits = text
        .strip_prefix(b"-")
        .or(text.strip_prefix(b"+"))
        .unwrap_or(text);
    let mut value = 0i64;
    for digit in digits {
        value = (value * 10 + i64::from(digit - b'0')).min(BOUND);
    }
    if text.first() == Some(&b'-') {
        -value
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_exactly_in_every_notation() {
        use Whole::{Fraction, Negative, Value};
        for (text, expected) in [
            ("0", Value(0)),
            ("-0", Value(0)),
            ("-0.0e5", Value(0)),
            ("0e999999999999999999999", Value(0)),
            ("7", Value(7)),
            ("1.0", Value(1)),
            ("1.500", Fraction),
            ("1.5e1", Value(15)),
            ("1e3", Value(1000)),
            ("1E+3", Value(1000)),
            ("1000e-3", Value(1)),
            ("1005e-3", Fraction),
            ("100e-3", Fraction),
            ("0.001e3", Value(1)),
            ("10.20e1", Value(102)),
            ("9007199254740993", Value(9_007_199_254_740_993)),
            ("9999999999999999999", Value(9_999_999_999_999_999_999)),
            ("18446744073709551615", Value(u64::MAX)),
            ("18446744073709551616", Value(u64::MAX)),
            ("1e400", Value(u64::MAX)),
            ("1e99999999999999999999999", Value(u64::MAX)),
            ("1e-99999999999999999999999", Fraction),
            ("-1", Negative),
            ("-0.5", Negative),
        ] {
            assert_eq!(whole(text.as_bytes()), expected, "{text}");
            assert_eq!(exactly(text.as_bytes()), expected, "{text}, the long way");
        }
    }
}
