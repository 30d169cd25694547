//! Fixed-point amounts of credit in integer millionths, checked against overflow.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use crate::decimal::{self, DecimalError, DecimalText};

/// Micro-credits in one credit.
pub const MICROS_PER_CREDIT: i64 = 1_000_000;

const DECIMALS: u32 = 6;

/// A signed amount of micro-credits.
///
/// Displays and parses as a decimal number of credits with at most six places (`"41.498"`), which is also a JSON number, exact to the last
/// micro-credit. Arithmetic is checked: an overflow is a broken invariant, never a wrapped balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(i64);

impl Micros {
    /// Zero.
    pub const ZERO: Micros = Micros(0);
    /// The largest amount that can be represented.
    pub const MAX: Micros = Micros(i64::MAX);

    /// An amount in micro-credits.
    pub const fn new(micros: i64) -> Micros {
        Micros(micros)
    }

    /// An amount in whole credits; `None` beyond the range.
    pub const fn from_credits(credits: i64) -> Option<Micros> {
        match credits.checked_mul(MICROS_PER_CREDIT) {
            Some(micros) => Some(Micros(micros)),
            None => None,
        }
    }

    /// The micro-credits.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The display form of [`Micros`], for writers of bytes.
    pub fn text(self) -> DecimalText {
        decimal::text(self.0, DECIMALS)
    }

    /// Whether the amount is above zero.
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// The sum; `None` beyond the range.
    pub const fn checked_add(self, other: Micros) -> Option<Micros> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Micros(sum)),
            None => None,
        }
    }

    /// The difference; `None` beyond the range.
    pub const fn checked_sub(self, other: Micros) -> Option<Micros> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Micros(rest)),
            None => None,
        }
    }

    /// The saturating sum: for estimates and ceilings, never for balances.
    pub const fn saturating_add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl std::ops::Add for Micros {
    type Output = Micros;

    fn add(self, other: Micros) -> Micros {
        self.checked_add(other)
            .unwrap_or_else(|| panic!("{self} + {other} leaves the range of the ledger"))
    }
}

impl std::ops::Sub for Micros {
    type Output = Micros;

    fn sub(self, other: Micros) -> Micros {
        self.checked_sub(other)
            .unwrap_or_else(|| panic!("{self} - {other} leaves the range of the ledger"))
    }
}

impl std::ops::Neg for Micros {
    type Output = Micros;

    fn neg(self) -> Micros {
        Micros::ZERO - self
    }
}

impl std::ops::AddAssign for Micros {
    fn add_assign(&mut self, other: Micros) {
        *self = *self + other;
    }
}

impl std::ops::SubAssign for Micros {
    fn sub_assign(&mut self, other: Micros) {
        *self = *self - other;
    }
}

impl Sum for Micros {
    fn sum<I: Iterator<Item = Micros>>(amounts: I) -> Micros {
        amounts.fold(Micros::ZERO, |sum, amount| sum + amount)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().fmt(f)
    }
}

impl FromStr for Micros {
    type Err = DecimalError;

    /// Reads a decimal number of credits: `-?[0-9]+(\.[0-9]{1,6})?`.
    fn from_str(text: &str) -> Result<Micros, DecimalError> {
        decimal::read(text, DECIMALS).map(Micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_print_without_binary_rests_and_read_back() {
        //   micros         text
        check(0, "0");
        check(2_000, "0.002");
        check(41_498_000, "41.498");
        check(1, "0.000001");
        check(-1_500_000, "-1.5");
        check(i64::MAX, "9223372036854.775807");
        check(i64::MIN, "-9223372036854.775808");
    }

    fn check(micros: i64, text: &str) {
        assert_eq!(Micros::new(micros).to_string(), text);
        assert_eq!(text.parse(), Ok(Micros::new(micros)), "{text} reads back");
    }

    #[test]
    fn an_invalid_amount_is_refused() {
        for text in [
            "",
            "-",
            ".5",
            "1.",
            "1e3",
            "+1",
            " 1",
            "1.0000001",
            "9223372036854.775808",
            "1_000",
        ] {
            assert!(
                text.parse::<Micros>().is_err(),
                "{text:?} must not read as an amount"
            );
        }
    }
}
