//! The terms of credits: their price, and the limits of purchases.

use tollgate_money::{Micros, UsdPerCredit};

use crate::Offer;

/// The value of a credit, and where to buy more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credits {
    /// US dollars for one credit; `None`: the model list names no prices in dollars.
    pub usd_per_credit: Option<UsdPerCredit>,
    /// URL of the page for clients with too few credits.
    pub topup_url: String,
    /// What can be bought; nothing without a rate.
    pub offer: Option<Offer>,
    /// The signup grant of a new account; zero for none.
    pub signup_grant: Micros,
}
