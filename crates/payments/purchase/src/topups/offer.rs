//! Prices and limits of credit purchases.

use tollgate_money::{DecimalError, Micros, Usd};

/// The offer: credits at one rate, between two amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The price of one credit in millionths of a dollar; above zero.
    pub micro_dollars_per_credit: i64,
    /// Suggested amounts, in order.
    pub amounts: Vec<Usd>,
    /// Minimum of one purchase.
    pub min: Usd,
    /// Maximum of one purchase.
    pub max: Usd,
}

/// Why an amount was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// Not an amount in dollars.
    #[error(transparent)]
    Malformed(#[from] DecimalError),
    /// Below the minimum or above the maximum.
    #[error("{price} is not between {min} and {max}")]
    OutOfRange {
        /// The amount.
        price: Usd,
        /// The minimum.
        min: Usd,
        /// The maximum.
        max: Usd,
    },
}

impl Offer {
    /// Parses and checks an amount entered by a person.
    pub fn price(&self, text: &str) -> Result<Usd, PriceError> {
        let price: Usd = text.trim().parse()?;
        self.check(price)?;
        Ok(price)
    }

    /// The credits for an amount.
    pub fn credits(&self, price: Usd) -> Micros {
        price
            .buys(self.micro_dollars_per_credit)
            .unwrap_or_default()
    }

    pub(super) fn check(&self, price: Usd) -> Result<(), PriceError> {
        if (self.min..=self.max).contains(&price) && self.credits(price).is_positive() {
            return Ok(());
        }
        Err(PriceError::OutOfRange {
            price,
            min: self.min,
            max: self.max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_within_the_limits_are_accepted() {
        let offer = Offer {
            micro_dollars_per_credit: 10_000,
            amounts: Vec::new(),
            min: Usd::from_cents(500),
            max: Usd::from_cents(50_000),
        };
        for (text, cents) in [
            ("5", 500),
            ("5.00", 500),
            (" 20.5 ", 2_050),
            ("500", 50_000),
        ] {
            assert_eq!(offer.price(text), Ok(Usd::from_cents(cents)), "{text}");
        }
        for text in ["4.99", "500.01", "0", "-20", "20.005", "", "twenty", "1e3"] {
            assert!(offer.price(text).is_err(), "{text}");
        }
        assert_eq!(
            offer.credits(Usd::from_cents(2_000)),
            Micros::new(2_000_000_000)
        );
    }
}
