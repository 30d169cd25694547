//! Values that a filter shares with others when the gateway is built, so that no filter names another.

use std::time::Duration;

/// The price of a stored answer, in millionths of the normal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitPrice(pub u32);

/// The longest lifetime of a hold, and so of a request that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldLifetime(pub Duration);

/// Whether requests to a route of this path carry a payment credential in `Authorization`, so that the account's credential is in another
/// field.
#[derive(Clone, Copy, Debug)]
pub struct PaymentPaths(pub fn(&str) -> bool);
