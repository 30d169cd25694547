//! US dollars, in cents.

use std::fmt;
use std::str::FromStr;

use crate::decimal::{self, DecimalError};
use crate::micros::{MICROS_PER_CREDIT, Micros};

const DECIMALS: u32 = 2;

/// A signed amount of US dollars in whole cents.
///
/// Displays with both places (`199.00`), as payment providers write it, and reads any decimal number with at most two: the only conversion
/// between cents and text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Usd(i64);

impl Usd {
    /// Zero.
    pub const ZERO: Usd = Usd(0);

    /// An amount in cents.
    pub const fn from_cents(cents: i64) -> Usd {
        Usd(cents)
    }

    /// The cents.
    pub const fn cents(self) -> i64 {
        self.0
    }

    /// Whether the amount is above zero.
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// The credit that this amount buys at a rate in millionths of a dollar per credit, rounded down to the micro-credit; `None` beyond the
    /// range, and for a rate that is not positive.
    pub fn buys(self, micro_dollars_per_credit: i64) -> Option<Micros> {
        if micro_dollars_per_credit <= 0 {
            return None;
        }
        // A cent is ten thousand millionths of a dollar. 2^63 times 10^10 stays below 2^127.
        let micro_dollars = i128::from(self.0) * 10_000;
        let micros =
            micro_dollars * i128::from(MICROS_PER_CREDIT) / i128::from(micro_dollars_per_credit);
        i64::try_from(micros).ok().map(Micros::new)
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let cents = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:02}", cents / 100, cents % 100)
    }
}

impl FromStr for Usd {
    type Err = DecimalError;

    /// Reads a decimal number of dollars: `-?[0-9]+(\.[0-9]{1,2})?`; trailing zeros beyond the second place are accepted.
    fn from_str(text: &str) -> Result<Usd, DecimalError> {
        decimal::read(text, DECIMALS).map(Usd)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dollars_are_written_with_both_places() {
        //   cents   text
        check(0, "0.00");
        check(1, "0.01");
        check(19_900, "199.00");
        check(2_050, "20.50");
        check(-5, "-0.05");
        check(i64::MAX, "92233720368547758.07");
    }

    fn check(cents: i64, text: &str) {
        assert_eq!(Usd::from_cents(cents).to_string(), text);
        assert_eq!(
            text.parse(),
            Ok(Usd::from_cents(cents)),
            "{text} reads back"
        );
    }

    #[test]
    fn dollars_are_read_as_people_and_providers_write_them() {
        for (text, cents) in [("20", 2_000), ("20.5", 2_050), ("199.000", 19_900)] {
            assert_eq!(text.parse(), Ok(Usd::from_cents(cents)), "{text}");
        }
        for text in ["", "20.", ".50", "20.505", "1e2", "$20", "20,00", " 20"] {
            assert!(text.parse::<Usd>().is_err(), "{text:?} is no amount");
        }
    }

    #[test]
    fn dollars_convert_to_credits_exactly_rounded_down() {
        //    dollars  micro-dollars per credit  credits
        for (usd, rate, credits) in [
            ("20.00", 10_000, "2000"),
            ("0.01", 10_000, "1"),
            ("1.00", 3_000_000, "0.333333"),
            ("500.00", 1, "500000000"),
        ] {
            let usd: Usd = usd.parse().expect("an amount");
            let credits: Micros = credits.parse().expect("an amount");
            assert_eq!(usd.buys(rate), Some(credits), "{usd} at {rate}");
        }
        assert_eq!(
            Usd::from_cents(1).buys(0),
            None,
            "a credit that costs nothing"
        );
        assert_eq!(Usd::from_cents(i64::MAX).buys(1), None, "beyond the range");
    }

    proptest! {
        #[test]
        fn every_amount_reads_back(cents in any::<i64>()) {
            let usd = Usd::from_cents(cents);
            prop_assert_eq!(usd.to_string().parse(), Ok(usd));
        }
    }
}
