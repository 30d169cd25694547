//! Interfaces of the facilitator and of the chain's node, independent of vendor and transport.

use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::offer::{Requirements, SCHEME, Terms, VERSION};
use super::payment::Payment;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// List the supported schemes and networks.
    Supported,
    /// Check whether a payment would succeed now. No money moves.
    Verify,
    /// Submit the transfer to the chain.
    Settle,
}

impl Operation {
    /// The last segment of the path; the name in logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Operation::Supported => "supported",
            Operation::Verify => "verify",
            Operation::Settle => "settle",
        }
    }
}

/// A service that verifies signed transfers and submits them to the chain.
#[async_trait]
pub trait Facilitator: Send + Sync {
    /// Calls the facilitator. The JSON body can move the money: a secret.
    async fn call(&self, operation: Operation, body: Bytes) -> Result<Response, CallError>;
}

/// A node of the chain.
#[async_trait]
pub trait Node: Send + Sync {
    /// One JSON-RPC call.
    async fn call(&self, request: &Value) -> Result<Value, CallError>;
}

/// A complete HTTP response with any status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub body: Bytes,
}

/// No response, or an incomplete one. The operation may have been carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CallError(pub String);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FacilitatorRequest<'a> {
    x402_version: u64,
    payment_payload: &'a Value,
    payment_requirements: Requirements<'a>,
}

/// The body of `/verify` and of `/settle`.
///
/// The terms are ours, never the buyer's: the facilitator judges a payment against these terms.
pub fn request_body(payment: &Payment, terms: &Terms) -> Bytes {
    let request_body = FacilitatorRequest {
        x402_version: VERSION,
        payment_payload: payment.whole(),
        payment_requirements: terms.requirements(),
    };
    Bytes::from(serde_json::to_vec(&request_body).expect("JSON that was read is written"))
}

/// Whether an answer to `/supported` lists our scheme on this network.
pub fn supports(response: &Response, network: &str) -> bool {
    if !(200..300).contains(&response.status) {
        return false;
    }
    let Ok(answer) = serde_json::from_slice::<Value>(&response.body) else {
        return false;
    };
    let kinds = answer.get("kinds").and_then(Value::as_array);
    let text = |kind: &Value, name: &str, wanted: &str| {
        kind.get(name).and_then(Value::as_str) == Some(wanted)
    };
    kinds.is_some_and(|kinds| {
        kinds.iter().any(|kind| {
            kind.get("x402Version").and_then(Value::as_u64) == Some(VERSION)
                && text(kind, "scheme", SCHEME)
                && text(kind, "network", network)
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_facilitator_is_good_when_it_names_version_scheme_and_network() {
        let ours = json!({"x402Version": 2, "scheme": "exact", "network": "eip155:8453"});
        let with = |name: &str, value: Value| {
            let mut kind = ours.clone();
            kind[name] = value;
            json!({"kinds": [kind], "extensions": [], "signers": {}})
        };
        for (status, body, good) in [
            (200, json!({"kinds": [ours]}), true),
            (200, json!({"kinds": [{"x402Version": 1}, ours]}), true),
            (500, json!({"kinds": [ours]}), false),
            (200, with("x402Version", json!(1)), false),
            (200, with("x402Version", json!("2")), false),
            (200, with("scheme", json!("upto")), false),
            (200, with("network", json!("base")), false),
            (200, json!({"kinds": null}), false),
            (200, json!([]), false),
        ] {
            let response = Response {
                status,
                body: body.to_string().into(),
            };
            assert_eq!(supports(&response, "eip155:8453"), good, "{status} {body}");
        }
    }
}
