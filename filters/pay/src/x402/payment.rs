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

/// Members of the scheme's other transfer methods (`permit2`, `erc7710`). The facilitator gets the payment as sent by the buyer, and might
/// use these members instead of the checked members; so even an empty member is refused.
const OTHER_METHODS: &[&str] = &[
    "permit2Authorization",
    "delegationManager",
    "permissionContext",
    "delegator",
];

/// A payment as sent: parsed, and not yet compared with the terms.
///
/// A holder of the payment can submit the transfer to the chain, so the `Debug` output is redacted.
#[derive(Clone, PartialEq)]
pub struct Payment {
    /// The decoded object, sent unchanged to the facilitator: members unknown here may have a meaning there.
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
    #[error("it is not base64 with the standard alphabet (`+` and `/`) and padding (`=`)")]
    Encoding,
    /// Not JSON, or JSON with a duplicate member.
    #[error("its base64 does not decode to JSON without duplicate members")]
    Json,
    /// JSON, and not an object.
    #[error("its base64 decodes to JSON that is not an object")]
    NoObject,
    /// Another version of the protocol.
    #[error("`x402Version` is not the number 2")]
    Version,
    /// A member is missing or malformed.
    #[error("`{path}` is {fault}; send {wanted}")]
    Member {
        path: &'static str,
        /// The fault of the member.
        fault: MemberFault,
        /// The expected value.
        wanted: &'static str,
    },
    /// Readable as a transfer method other than the offered and checked method.
    #[error("`payload.{0}` belongs to a transfer method that was not offered")]
    OtherMethod(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberFault {
    /// Absent or `null`.
    Missing,
    /// Another JSON type.
    Type,
    /// A text in another form.
    Form,
}

impl fmt::Display for MemberFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemberFault::Missing => "missing",
            MemberFault::Type => "of another type",
            MemberFault::Form => "malformed",
        })
    }
}

/// An address as a payment has to write it.
const ADDRESS: &str = "a string of `0x` and 40 hex digits";

/// An amount or a time as a payment has to write it.
const INTEGER: &str = "a string of decimal digits without leading zeros";

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
            return Err(PaymentError::NoObject);
        };
        if members.get("x402Version").and_then(Value::as_u64) != Some(VERSION) {
            return Err(PaymentError::Version);
        }
        let accepted = object(members, "accepted", "accepted")?.clone();
        let payload = object(members, "payload", "payload")?;
        if let Some(other) = OTHER_METHODS
            .iter()
            .find(|name| payload.contains_key(**name))
        {
            return Err(PaymentError::OtherMethod(other));
        }
        let authorization =
            authorization(object(payload, "authorization", "payload.authorization")?)?;
        let wanted = "a string of `0x` and the hex digits of at least 65 bytes";
        let path = "payload.signature";
        let signature = text(payload, "signature", path, wanted)?;
        let signature = Signature::read(signature).ok_or(PaymentError::Member {
            path,
            fault: MemberFault::Form,
            wanted,
        })?;
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
        path: &'static str,
        wanted: &'static str,
    ) -> Result<T, PaymentError> {
        let name = path.rsplit('.').next().unwrap_or(path);
        let parsed = text(members, name, path, wanted)?.parse();
        parsed.map_err(|_| PaymentError::Member {
            path,
            fault: MemberFault::Form,
            wanted,
        })
    }
    const NONCE: &str = "a string of `0x` and 64 hex digits";
    Ok(Authorization {
        from: parsed(members, "payload.authorization.from", ADDRESS)?,
        to: parsed(members, "payload.authorization.to", ADDRESS)?,
        value: parsed(members, "payload.authorization.value", INTEGER)?,
        valid_after: parsed(members, "payload.authorization.validAfter", INTEGER)?,
        valid_before: parsed(members, "payload.authorization.validBefore", INTEGER)?,
        nonce: parsed(members, "payload.authorization.nonce", NONCE)?,
    })
}

fn object<'v>(
    members: &'v Map<String, Value>,
    name: &str,
    path: &'static str,
) -> Result<&'v Map<String, Value>, PaymentError> {
    let wanted = "an object";
    match members.get(name) {
        Some(Value::Object(object)) => Ok(object),
        other => Err(wrong_type(other, path, wanted)),
    }
}

fn text<'v>(
    members: &'v Map<String, Value>,
    name: &str,
    path: &'static str,
    wanted: &'static str,
) -> Result<&'v str, PaymentError> {
    match members.get(name) {
        Some(Value::String(text)) => Ok(text),
        other => Err(wrong_type(other, path, wanted)),
    }
}

fn wrong_type(found: Option<&Value>, path: &'static str, wanted: &'static str) -> PaymentError {
    let fault = match found {
        None | Some(Value::Null) => MemberFault::Missing,
        Some(_) => MemberFault::Type,
    };
    PaymentError::Member {
        path,
        fault,
        wanted,
    }
}
