//! Amounts of a token in its smallest unit.

use std::fmt;
use std::str::FromStr;

/// Decimal digits of the largest 256-bit integer.
const DIGITS_MAX: usize = 78;

/// The largest 256-bit integer.
const MAX: &str = "115792089237316195423570985008687907853269984665640564039457584007913129639935";

/// An amount of a token in its smallest unit, or a time in seconds: an unsigned integer of at most 256 bits.
///
/// It is compared and never calculated with, so its decimal digits are stored; without leading zeros, two values are equal when their texts
/// are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Amount(String);

/// A text is not a 256-bit integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a whole number in decimal digits, below 2^256")]
pub struct AmountError;

impl Amount {
    /// The value, if it fits.
    pub fn to_u64(&self) -> Option<u64> {
        self.0.parse().ok()
    }
}

impl From<u64> for Amount {
    fn from(number: u64) -> Amount {
        Amount(number.to_string())
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Amount, AmountError> {
        if text.is_empty() || text.len() > DIGITS_MAX || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(AmountError);
        }
        let digits = match text.trim_start_matches('0') {
            "" => "0",
            digits => digits,
        };
        // Texts of equal length compare as their values do.
        if digits.len() == DIGITS_MAX && digits > MAX {
            return Err(AmountError);
        }
        Ok(Amount(digits.to_owned()))
    }
}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Amount) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Amount) -> std::cmp::Ordering {
        (self.0.len(), &self.0).cmp(&(other.0.len(), &other.0))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_of_256_bits_are_read_and_no_larger_ones() {
        for (text, read) in [
            ("0", Some("0")),
            ("000", Some("0")),
            ("199000000", Some("199000000")),
            ("0199000000", Some("199000000")),
            (MAX, Some(MAX)),
            (
                "115792089237316195423570985008687907853269984665640564039457584007913129639936",
                None,
            ),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.0", None),
            ("1e9", None),
            ("0x1", None),
            (" 1", None),
            ("１", None),
        ] {
            let found = text.parse::<Amount>().ok().map(|amount| amount.to_string());
            assert_eq!(found.as_deref(), read, "{text}");
        }
        assert!("0".repeat(79).parse::<Amount>().is_err());
    }

    proptest! {
        #[test]
        fn amounts_are_ordered_as_their_numbers(a: u64, b: u64, zeros in 0_usize..5) {
            let written = format!("{}{b}", "0".repeat(zeros));
            let (x, y) = (Amount::from(a), written.parse::<Amount>().expect("a number"));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(y.to_u64(), Some(b));
        }
    }
}
