//! Fixed-point decimals: text to scaled integers and back, without floating point.

use std::fmt;

/// Why a text is no valid amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecimalError {
    /// Contains something other than digits and one point.
    #[error("`{text}` is not a decimal number; write it like `12` or `0.25`")]
    Malformed {
        /// The given text.
        text: String,
    },
    /// More decimal places than the unit has.
    #[error("`{text}` has more than {places} decimal places; round it")]
    TooPrecise {
        /// The given text.
        text: String,
        /// The decimal places of the unit.
        places: u32,
    },
    /// Out of range of a signed 64-bit integer of the smallest unit.
    #[error("`{text}` is too large")]
    TooLarge {
        /// The given text.
        text: String,
    },
}

/// Reads `-?[0-9]+(\.[0-9]+)?` as an integer of the unit `10^-places`.
pub(crate) fn read(text: &str, places: u32) -> Result<i64, DecimalError> {
    let malformed = || DecimalError::Malformed {
        text: text.to_owned(),
    };
    let too_large = || DecimalError::TooLarge {
        text: text.to_owned(),
    };
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) {
        return Err(malformed());
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > places as usize {
        return Err(DecimalError::TooPrecise {
            text: text.to_owned(),
            places,
        });
    }
    let padding = places as usize - fraction.len();
    let mut value: i128 = 0;
    for digit in whole
        .bytes()
        .chain(fraction.bytes())
        .chain(std::iter::repeat_n(b'0', padding))
    {
        value = value * 10 + i128::from(digit - b'0');
        if value > i128::from(i64::MAX) + 1 {
            return Err(too_large());
        }
    }
    i64::try_from(if negative { -value } else { value }).map_err(|_| too_large())
}

/// The text of an amount, without an allocation.
#[derive(Clone, Copy)]
pub struct DecimalText {
    /// Sign, digits, a point, and digits of a fraction.
    bytes: [u8; 48],
    length: u8,
}

impl DecimalText {
    /// The text.
    pub fn as_str(&self) -> &str {
        let text = std::str::from_utf8(self.as_bytes());
        text.expect("a sign, digits and a point are ASCII")
    }

    /// The same as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn push(&mut self, text: &[u8]) {
        let end = usize::from(self.length) + text.len();
        self.bytes[usize::from(self.length)..end].copy_from_slice(text);
        self.length = end as u8;
    }
}

impl fmt::Display for DecimalText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An integer of the unit `10^-places`, at most 18 of them, displayed with no more decimal places than necessary.
#[inline]
pub(crate) fn text(value: i64, places: u32) -> DecimalText {
    let one = 10u64.pow(places);
    let (whole, fraction) = (value.unsigned_abs() / one, value.unsigned_abs() % one);
    let mut text = DecimalText {
        bytes: [0; 48],
        length: 0,
    };
    let mut digits = itoa::Buffer::new();
    if value < 0 {
        text.push(b"-");
    }
    text.push(digits.format(whole).as_bytes());
    if fraction != 0 {
        text.push(b".");
        // A leading one preserves leading zeros.
        let mut fraction = &digits.format(one + fraction).as_bytes()[1..];
        while let [before @ .., b'0'] = fraction {
            fraction = before;
        }
        text.push(fraction);
    }
    text
}
