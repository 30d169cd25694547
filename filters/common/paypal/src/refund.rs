//! Giving a payment back, whole (Payments v2, `captures.refund`). A charge of a subscription is given back under its own id.

use reqwest::Method;
use serde_json::json;

use crate::client::{Call, Client};
use crate::error::Error;
use crate::wire::path_segment;

impl Client {
    /// Gives a payment back; once under one key, and once for a payment. Whether it has happened is said by the payment.
    pub async fn refund(&self, payment: &str, key: &str, note: &str) -> Result<(), Error> {
        const WHAT: &str = "give a payment back";
        let path = format!(
            "/v2/payments/captures/{}/refund",
            path_segment(payment, WHAT)?
        );
        // Without an amount it is all of it.
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
