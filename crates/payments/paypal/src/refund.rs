//! Refunds in full (Payments v2, `captures.refund`). A charge of a subscription is refunded under its own id.

use reqwest::Method;
use serde_json::json;

use crate::client::{Call, Client};
use crate::error::Error;
use crate::wire::path_segment;

impl Client {
    /// Refunds a payment; idempotent by its key, and once per payment. Read the outcome from the payment.
    pub async fn refund(&self, payment: &str, key: &str, note: &str) -> Result<(), Error> {
        const WHAT: &str = "refund payment";
        let path = format!(
            "/v2/payments/captures/{}/refund",
            path_segment(payment, WHAT)?
        );
        // Without an amount the refund is full.
        let body = json!({ "note_to_payer": note });
        self.execute(Call {
            method: Method::POST,
            path: &path,
            what: WHAT,
            key: Some(key),
            body: Some(body.to_string().into_bytes()),
        })
        .await
    }
}
