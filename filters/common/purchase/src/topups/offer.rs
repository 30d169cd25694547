//! What can be bought, and for how much.

use tollgate_money::{DecimalError, Micros, Usd};

/// What can be bought: credit at one rate, between two amounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What one credit costs, in millionths of a dollar; above zero.
    pub micro_dollars_per_credit: i64,
    /// The amounts that are proposed, in their order.
    pub amounts: Vec<Usd>,
    /// The least of one purchase.
    pub min: Usd,
    /// The most of one purchase.
    pub max: Usd,
}

/// Why an amount cannot be bought for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// It is no amount of dollars.
    #[error(transparent)]
    Malformed(#[from] DecimalError),
    /// It is too little or too much.
    #[error("{price} is not between {min} and {max}")]
    OutOfRange {
        /// The amount.
        price: Usd,
        /// The least.
        min: Usd,
        /// The most.
        max: Usd,
    },
}

impl Offer {
    /// An amount as a person writes it, checked.
    pub fn price(&self, text: &str) -> Result<Usd, PriceError> {
        let price: Usd = text.trim().parse()?;
        self.check(price)?;
        Ok(price)
    }

    /// What an amount buys.
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
    fn amounts_within_the_limits_can_be_bought_for() {
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
