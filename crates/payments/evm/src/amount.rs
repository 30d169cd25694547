//! Amounts of a token in its smallest unit.

use std::fmt;
use std::str::FromStr;

use crate::bytes::Word;

/// Decimal digits of the largest 256-bit integer.
const DIGITS_MAX: usize = 78;

/// An amount of a token in its smallest unit, or a time in seconds: an unsigned integer of at most 256 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(Word);

/// The text is not a 256-bit integer in canonical decimal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a whole number in decimal digits without leading zeros, below 2^256")]
pub struct AmountError;

impl Amount {
    /// The value, if it fits.
    pub fn to_u64(self) -> Option<u64> {
        self.to_string().parse().ok()
    }

    /// The value as an ABI word.
    pub fn word(self) -> Word {
        self.0
    }
}

impl From<u64> for Amount {
    fn from(number: u64) -> Amount {
        Amount(Word::padded(&number.to_be_bytes()))
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Amount, AmountError> {
        // Parties compare amounts as text: some would refuse a second form of the amount, after the signature.
        let is_padded = text.len() > 1 && text.starts_with('0');
        if text.is_empty() || is_padded || text.len() > DIGITS_MAX {
            return Err(AmountError);
        }
        let mut word = [0; 32];
        for character in text.chars() {
            let digit = character.to_digit(10).ok_or(AmountError)?;
            let carry = word.iter_mut().rev().fold(digit, |carry, byte| {
                let value = u32::from(*byte) * 10 + carry;
                *byte = (value & 0xff) as u8;
                value >> 8
            });
            if carry > 0 {
                return Err(AmountError);
            }
        }
        Ok(Amount(Word(word)))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Division by ten gives the digits from the last to the first.
        let (Word(mut rest), mut digits) = (self.0, String::new());
        loop {
            let digit = rest.iter_mut().fold(0, |carry, byte| {
                let value = carry << 8 | u32::from(*byte);
                *byte = (value / 10) as u8;
                value % 10
            });
            digits.insert_str(0, &digit.to_string());
            if rest == [0; 32] {
                return f.write_str(&digits);
            }
        }
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The largest 256-bit integer.
    const MAX: &str =
        "115792089237316195423570985008687907853269984665640564039457584007913129639935";

    #[test]
    fn numbers_of_256_bits_are_read_in_one_form_and_no_larger_ones() {
        for (text, read) in [
            ("0", Some("0")),
            ("199000000", Some("199000000")),
            ("00", None),
            ("0199000000", None),
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
        let word = |text: &str| text.parse::<Amount>().map(Amount::word);
        assert_eq!(word("256"), Ok(Word::padded(&[1, 0])));
        assert_eq!(word(MAX), Ok(Word([0xff; 32])));
    }

    proptest! {
        #[test]
        fn amounts_are_ordered_as_their_numbers(a: u64, b: u64) {
            let (x, y) = (Amount::from(a), b.to_string().parse::<Amount>().expect("a number"));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(y.to_u64(), Some(b));
        }
    }
}
