//! The receipt of a payment: `Payment-Receipt`.

use serde_json::json;

use super::METHOD;
use super::challenge::canonical;

/// The content of a receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt<'a> {
    /// Activation time of the plan, RFC 3339; equal in each copy of the receipt.
    pub timestamp: &'a str,
    /// The id of the PayPal subscription.
    pub subscription: &'a str,
    /// The public id of the purchase.
    pub purchase: &'a str,
}

impl Receipt<'_> {
    /// The value of the field.
    pub fn header(&self) -> String {
        canonical(&json!({
            "externalId": self.purchase,
            "method": METHOD,
            "reference": self.subscription,
            "status": "success",
            "subscriptionId": self.subscription,
            "timestamp": self.timestamp,
        }))
    }
}
