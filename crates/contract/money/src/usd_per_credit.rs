//! Exact conversion of credit prices to US dollars.

use std::fmt;

use crate::{Micros, Price, TokenPrice};

/// Decimals of a token price: a price per million tokens, in millionths of a credit, times a rate in millionths of a dollar.
const TOKEN_PLACES: usize = 18;

/// Decimals of a request price: millionths of a credit times millionths of a dollar.
const REQUEST_PLACES: usize = 12;

/// Price of one credit in US dollars; positive, exact to the millionth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsdPerCredit {
    micro_dollars: i64,
}

/// Dollar prices of one input token, one output token and one request, as decimal strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdPrice {
    /// One input token.
    pub prompt: String,
    /// One output token.
    pub completion: String,
    /// One request.
    pub request: String,
}

impl UsdPerCredit {
    /// A rate in millionths of a dollar; `None` if not positive.
    pub const fn from_micro_dollars(micro_dollars: i64) -> Option<UsdPerCredit> {
        if micro_dollars > 0 {
            Some(UsdPerCredit { micro_dollars })
        } else {
            None
        }
    }

    /// The rate in millionths of a dollar.
    pub const fn micro_dollars(self) -> i64 {
        self.micro_dollars
    }

    /// A price in dollars.
    pub fn of(self, price: &Price) -> UsdPrice {
        let token = |price: TokenPrice| self.times(price.per_million(), TOKEN_PLACES);
        UsdPrice {
            prompt: token(price.input),
            completion: token(price.output),
            request: self.times(price.request, REQUEST_PLACES),
        }
    }

    fn times(self, amount: Micros, places: usize) -> String {
        // Two factors below 2^63 stay below 2^126.
        let product = i128::from(amount.get()) * i128::from(self.micro_dollars);
        Decimal { product, places }.to_string()
    }
}

/// The price in dollars: `0.01`.
impl fmt::Display for UsdPerCredit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let product = i128::from(self.micro_dollars);
        Decimal { product, places: 6 }.fmt(f)
    }
}

/// A decimal without trailing zeros.
struct Decimal {
    product: i128,
    places: usize,
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.places + 1;
        let digits = format!("{:0width$}", self.product);
        let (whole, fraction) = digits.split_at(digits.len() - self.places);
        f.write_str(whole)?;
        let fraction = fraction.trim_end_matches('0');
        if !fraction.is_empty() {
            write!(f, ".{fraction}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dollars_for_one_token_are_exact_to_the_last_place() {
        //    credits per million, micro-dollars per credit, dollars per token
        check("0.15", 1_000_000, "0.00000015");
        check("2.5", 10_000, "0.000000025");
        check("10", 1, "0.00000000001");
        check("0.000001", 1, "0.000000000000000001");
        check("1000000", 2_000_000, "2");
        check("0", 1_000_000, "0");
    }

    fn check(per_million: &str, micro_dollars: i64, per_token: &str) {
        let price = Price {
            input: per_million.parse().expect("a price"),
            ..Price::default()
        };
        assert_eq!(rate(micro_dollars).of(&price).prompt, per_token);
    }

    #[test]
    fn a_request_price_is_dollars_for_one_request() {
        let price = Price {
            request: "0.5".parse().expect("an amount"),
            ..Price::default()
        };
        assert_eq!(rate(20_000).of(&price).request, "0.01");
    }

    #[test]
    fn a_rate_is_positive() {
        for micro_dollars in [0, -1] {
            assert_eq!(UsdPerCredit::from_micro_dollars(micro_dollars), None);
        }
    }

    fn rate(micro_dollars: i64) -> UsdPerCredit {
        UsdPerCredit::from_micro_dollars(micro_dollars).expect("a rate above zero")
    }

    proptest! {
        #[test]
        fn a_decimal_round_trips(product in 0..i128::MAX, places in 1..=18usize) {
            let text = Decimal { product, places }.to_string();
            let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
            prop_assert!(!fraction.ends_with('0'));
            let digits = format!("{whole}{fraction:0<places$}");
            prop_assert_eq!(digits.parse::<i128>().expect("digits"), product);
        }
    }
}
