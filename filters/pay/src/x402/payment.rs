//! The payment of a request: `PAYMENT-SIGNATURE`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use tollgate_evm::{Authorization, Signature};

use super::offer::{Terms, VERSION};
use crate::json::Unambiguous;

/// The most bytes of the header: signatures of contract wallets take up to 6 kB.
pub(crate) const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Members of the scheme's other transfer methods (`permit2`, `erc7710`). The facilitator gets the payment as the buyer sent it, and might
/// use these instead of the members that were checked here; so not even an empty one is allowed.
const OTHER_METHODS: &[&str] = &[
    "permit2Authorization",
    "delegationManager",
    "permissionContext",
    "delegator",
];

/// A payment as it was sent: parsed, and not yet compared with the terms.
///
/// Its holder can submit the transfer to the chain, so its `Debug` output is redacted.
#[derive(Clone, PartialEq)]
pub struct Payment {
    /// The decoded object. It goes to the facilitator unchanged: members that are unknown here may have a meaning there.
    whole: Value,
    /// The option that the buyer names as chosen.
    pub(crate) accepted: Map<String, Value>,
    /// The signed authorization.
    pub authorization: Authorization,
    /// The wallet's signature.
    pub signature: Signature,
}

/// Why a header is not a valid payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaymentError {
    /// More than 16 kB of base64.
    #[error("the payment is larger than {HEADER_BYTES_MAX} bytes")]
    TooLarge,
    /// Not base64 with the standard alphabet and padding.
    #[error("the payment is not base64 (standard alphabet, with padding)")]
    Encoding,
    /// Not a JSON object, or one with a duplicate member.
    #[error("the payment is not a JSON object without duplicate members")]
    Json,
    /// Another version of the protocol.
    #[error("the payment is not of x402 version 2")]
    Version,
    /// A member is missing or malformed.
    #[error("`{0}` of the payment is missing or malformed")]
    Member(&'static str),
    /// It can be read as a transfer method other than the one that was offered and is checked here.
    #[error("`payload.{0}` belongs to a transfer method that was not offered")]
    OtherMethod(&'static str),
}

impl Payment {
    /// Parses the value of the header.
    pub fn read(header: &[u8]) -> Result<Payment, PaymentError> {
        if header.len() > HEADER_BYTES_MAX {
            return Err(PaymentError::TooLarge);
        }
        let json = STANDARD
            .decode(header)
            .map_err(|_| PaymentError::Encoding)?;
        let Unambiguous(whole) = serde_json::from_slice(&json).map_err(|_| PaymentError::Json)?;
        let Value::Object(members) = &whole else {
            return Err(PaymentError::Json);
        };
        if members.get("x402Version").and_then(Value::as_u64) != Some(VERSION) {
            return Err(PaymentError::Version);
        }
        let accepted = object(members, "accepted")?.clone();
        let payload = object(members, "payload")?;
        if let Some(other) = OTHER_METHODS
            .iter()
            .find(|name| payload.contains_key(**name))
        {
            return Err(PaymentError::OtherMethod(other));
        }
        let signature = text(payload, "signature", "payload.signature")?;
        let signature =
            Signature::read(signature).ok_or(PaymentError::Member("payload.signature"))?;
        let authorization = match payload.get("authorization") {
            Some(Value::Object(members)) => authorization(members)?,
            _ => return Err(PaymentError::Member("payload.authorization")),
        };
        Ok(Payment {
            accepted,
            authorization,
            signature,
            whole,
        })
    }

    /// Whether the signature is a plain one of the payer ([`Authorization::is_by_payer`]).
    pub(crate) fn is_by_payer(&self, terms: &Terms) -> bool {
        terms
            .domain()
            .is_some_and(|domain| self.authorization.is_by_payer(&domain, &self.signature))
    }

    /// The decoded object, for the facilitator.
    pub fn whole(&self) -> &Value {
        &self.whole
    }
}

impl fmt::Debug for Payment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payment")
            .field("from", &self.authorization.from)
            .field("nonce", &self.authorization.nonce)
            .finish_non_exhaustive()
    }
}

fn authorization(members: &Map<String, Value>) -> Result<Authorization, PaymentError> {
    fn parsed<T: std::str::FromStr>(
        members: &Map<String, Value>,
        name: &str,
        path: &'static str,
    ) -> Result<T, PaymentError> {
        text(members, name, path)?
            .parse()
            .map_err(|_| PaymentError::Member(path))
    }
    Ok(Authorization {
        from: parsed(members, "from", "authorization.from")?,
        to: parsed(members, "to", "authorization.to")?,
        value: parsed(members, "value", "authorization.value")?,
        valid_after: parsed(members, "validAfter", "authorization.validAfter")?,
        valid_before: parsed(members, "validBefore", "authorization.validBefore")?,
        nonce: parsed(members, "nonce", "authorization.nonce")?,
    })
}

fn object<'v>(
    members: &'v Map<String, Value>,
    name: &'static str,
) -> Result<&'v Map<String, Value>, PaymentError> {
    match members.get(name) {
        Some(Value::Object(object)) => Ok(object),
        _ => Err(PaymentError::Member(name)),
    }
}

fn text<'v>(
    members: &'v Map<String, Value>,
    name: &str,
    path: &'static str,
) -> Result<&'v str, PaymentError> {
    match members.get(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(PaymentError::Member(path)),
    }
}
