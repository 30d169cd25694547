//! Model prices, and the cost of a number of tokens.

use std::str::FromStr;

use crate::{DecimalError, Micros};

/// The number of tokens a token price is quoted for.
pub const TOKENS_PER_PRICE: u64 = 1_000_000;

/// Micro-credits per million tokens; never negative.
///
/// Written in the settings as decimal credits per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenPrice(Micros);

impl TokenPrice {
    /// A price from micro-credits per million tokens; `None` when it is negative.
    pub const fn new(per_million: Micros) -> Option<TokenPrice> {
        if per_million.get() < 0 {
            None
        } else {
            Some(TokenPrice(per_million))
        }
    }

    /// Micro-credits per million tokens.
    pub const fn per_million(self) -> Micros {
        self.0
    }
}

impl FromStr for TokenPrice {
    type Err = DecimalError;

    fn from_str(text: &str) -> Result<TokenPrice, DecimalError> {
        TokenPrice::new(text.parse()?).ok_or_else(|| DecimalError::Malformed {
            text: text.to_owned(),
        })
    }
}

/// The price of one model at one price version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// For input tokens.
    pub input: TokenPrice,
    /// For output tokens.
    pub output: TokenPrice,
    /// For each successful request, whatever its size.
    pub request: Micros,
}

impl Price {
    /// The maximum cost of this many tokens, rounded up: the size of a hold.
    pub fn quote(&self, input_tokens: u64, output_tokens: u64) -> Micros {
        self.cost(input_tokens, output_tokens, true)
    }

    /// The cost of this many tokens, rounded down: the size of a charge.
    pub fn charge(&self, input_tokens: u64, output_tokens: u64) -> Micros {
        self.cost(input_tokens, output_tokens, false)
    }

    /// How many output tokens `budget` pays for after the request price and the input; `None` when it does not cover even those, and
    /// `u64::MAX` when output is free.
    pub fn output_tokens_within(&self, budget: Micros, input_tokens: u64) -> Option<u64> {
        let fixed = i128::from(self.request.get()) * i128::from(TOKENS_PER_PRICE)
            + i128::from(self.input.0.get()) * i128::from(input_tokens);
        let rest = i128::from(budget.get()) * i128::from(TOKENS_PER_PRICE) - fixed;
        if rest < 0 {
            return None;
        }
        match i128::from(self.output.0.get()) {
            0 => Some(u64::MAX),
            each => Some(u64::try_from(rest / each).unwrap_or(u64::MAX)),
        }
    }

    fn cost(&self, input_tokens: u64, output_tokens: u64, up: bool) -> Micros {
        let scaled = i128::from(self.input.0.get()) * i128::from(input_tokens)
            + i128::from(self.output.0.get()) * i128::from(output_tokens);
        let per = i128::from(TOKENS_PER_PRICE);
        let tokens = if up {
            (scaled + per - 1) / per
        } else {
            scaled / per
        };
        // A provider that reports 2^60 tokens must not overflow the ledger: the ceiling is the largest amount, which no hold can cover.
        let total = i64::try_from(tokens + i128::from(self.request.get())).unwrap_or(i64::MAX);
        Micros::new(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_rounds_up_and_a_charge_rounds_down() {
        //    in  out   quote charge   (0.15 and 0.6 credits per million tokens)
        check(0, 0, 0, 0);
        check(1, 0, 1, 0);
        check(10, 0, 2, 1);
        check(5, 4, 4, 3);
        check(1_000_000, 1_000_000, 750_000, 750_000);
    }

    fn check(input: u64, output: u64, quote: i64, charge: i64) {
        let price = price();
        assert_eq!(
            price.quote(input, output),
            Micros::new(quote),
            "quote of {input} + {output}"
        );
        assert_eq!(
            price.charge(input, output),
            Micros::new(charge),
            "charge of {input} + {output}"
        );
    }

    fn price() -> Price {
        Price {
            input: "0.15".parse().expect("a price"),
            output: "0.6".parse().expect("a price"),
            request: Micros::ZERO,
        }
    }

    #[test]
    fn the_affordable_output_is_the_most_whose_quote_fits() {
        let price = Price {
            request: Micros::new(7),
            ..price()
        };
        for budget in 0..60 {
            let budget = Micros::new(budget);
            match price.output_tokens_within(budget, 13) {
                None => assert!(price.quote(13, 0) > budget, "{budget} pays for the input"),
                Some(tokens) => {
                    assert!(
                        price.quote(13, tokens) <= budget,
                        "{tokens} tokens fit into {budget}"
                    );
                    assert!(
                        price.quote(13, tokens + 1) > budget,
                        "one more does not fit into {budget}"
                    );
                }
            }
        }
    }

    #[test]
    fn absurd_usage_ends_at_the_largest_amount() {
        assert_eq!(price().charge(u64::MAX, u64::MAX), Micros::MAX);
    }
}
