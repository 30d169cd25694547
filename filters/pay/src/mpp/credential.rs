//! The payment credential, `Authorization: Payment`: the challenge's parameters and the payment's id.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use tollgate_clock::Timestamp;
use tollgate_filter::{ErrorCode, PaymentField};

use super::METHOD;
use super::binding::{Binding, Secrets};
use super::challenge::{Intent, digest};
use crate::json::Unambiguous;

/// The most bytes of a credential.
const BYTES_MAX: usize = 16 * 1024;

/// A verified credential: the challenge was issued here, for this account, and has not expired.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The challenge's id, to be consumed once.
    pub id: [u8; 32],
    /// The expiry of the challenge.
    pub expires: Timestamp,
    /// The public id of the purchase.
    pub purchase: String,
    /// The id of the PayPal subscription.
    pub subscription: String,
}

/// Expected values for the verification of a credential.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The secrets that challenges are bound with.
    pub secrets: &'a Secrets,
    /// The public id of the account.
    pub owner: &'a str,
    /// The time.
    pub now: Timestamp,
    /// The field of the credential.
    pub field: PaymentField,
    /// The request's body, unparsed.
    pub body: &'a [u8],
}

/// Why a credential is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct CredentialError {
    /// The kind of problem.
    pub code: ErrorCode,
    /// What is wrong.
    pub detail: &'static str,
}

impl Credential {
    /// Parses and verifies the token that follows `Payment` and a space. The checks come in the order of the scheme: form, method, binding,
    /// expiry, owner, payload.
    pub fn read(token: &str, expected: &Expected<'_>) -> Result<Credential, CredentialError> {
        let whole = parse(token)?;
        let (Some(challenge), Some(payload)) =
            (object(&whole, "challenge"), object(&whole, "payload"))
        else {
            return Err(malformed("The credential lacks `challenge` or `payload`."));
        };
        let Some(returned) = ReturnedChallenge::read(challenge) else {
            return Err(malformed("A parameter of the challenge is not a string."));
        };
        returned.check_binding(expected)?;
        // The binding holds. An unreadable value from here on was not issued here.
        let not_issued = invalid("The challenge was not issued here, or was modified.");
        let expires = Timestamp::from_rfc3339(returned.binding.expires).ok_or(not_issued)?;
        if expires <= expected.now {
            return Err(CredentialError {
                code: ErrorCode::PaymentExpired,
                detail: "The challenge has expired. Answer the challenge of this response.",
            });
        }
        let (Some(owner), Some(purchase)) = returned.opaque() else {
            return Err(not_issued);
        };
        if owner != expected.owner {
            return Err(invalid("The challenge was issued for another account."));
        }
        let subscription = payload.get("subscriptionId").and_then(Value::as_str);
        let issued = returned.subscription();
        match (payload.get("type").and_then(Value::as_str), subscription) {
            (Some("subscription"), Some(id)) if issued.as_deref() == Some(id) => Ok(Credential {
                id: returned.id_bytes().ok_or(not_issued)?,
                expires,
                purchase,
                subscription: id.to_owned(),
            }),
            _ => Err(CredentialError {
                code: ErrorCode::InvalidPayload,
                detail: "`payload` must be {\"type\":\"subscription\",\"subscriptionId\":...} with the subscription id of the challenge.",
            }),
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("purchase", &self.purchase)
            .finish_non_exhaustive()
    }
}

/// The parameters of the challenge as they were returned.
struct ReturnedChallenge<'v> {
    id: &'v str,
    binding: Binding<'v>,
}

impl<'v> ReturnedChallenge<'v> {
    fn read(challenge: &'v Map<String, Value>) -> Option<ReturnedChallenge<'v>> {
        let text = |name: &str| match challenge.get(name) {
            None | Some(Value::Null) => Some(""),
            Some(Value::String(text)) => Some(&**text),
            Some(_) => None,
        };
        Some(ReturnedChallenge {
            id: text("id")?,
            binding: Binding {
                realm: text("realm")?,
                method: text("method")?,
                intent: text("intent")?,
                request: text("request")?,
                expires: text("expires")?,
                digest: text("digest")?,
                opaque: text("opaque")?,
                header: text("header")?,
            },
        })
    }

    /// Checks method, binding, field and body.
    fn check_binding(&self, expected: &Expected<'_>) -> Result<(), CredentialError> {
        let binding = &self.binding;
        if binding.method != METHOD || Intent::of(binding.intent).is_none() {
            return Err(CredentialError {
                code: ErrorCode::MethodUnsupported,
                detail: "Only the method `paypal` with the intent `charge` or `subscription` is supported.",
            });
        }
        if !binding.holds(self.id, expected.secrets) {
            return Err(invalid(
                "The challenge was not issued here, or was modified.",
            ));
        }
        // Some clients ignore the challenge's field and send the credential in `Authorization`, after the owner has paid.
        if binding.header.is_empty() && expected.field != PaymentField::Authorization {
            return Err(invalid(
                "Send the credential of this challenge in `Authorization`.",
            ));
        }
        if !binding.digest.is_empty() && binding.digest != digest(expected.body) {
            return Err(invalid(
                "The challenge was issued for a request with another body.",
            ));
        }
        Ok(())
    }

    fn id_bytes(&self) -> Option<[u8; 32]> {
        let id = URL_SAFE_NO_PAD.decode(self.id).ok()?;
        id.try_into().ok()
    }

    /// The account and the purchase of the challenge. The binding holds, so both values are the issued values.
    fn opaque(&self) -> (Option<String>, Option<String>) {
        let opaque = decoded(self.binding.opaque).unwrap_or_default();
        let text = |name: &str| {
            let found = opaque.get(name).and_then(Value::as_str);
            found.map(str::to_owned)
        };
        (text("owner"), text("purchase"))
    }

    fn subscription(&self) -> Option<String> {
        let request = decoded(self.binding.request)?;
        let id = request.get("methodDetails")?.get("subscriptionId")?;
        id.as_str().map(str::to_owned)
    }
}

/// The JSON object of a token.
fn parse(token: &str) -> Result<Map<String, Value>, CredentialError> {
    if token.len() > BYTES_MAX {
        return Err(malformed("The credential is larger than 16 KiB."));
    }
    let json = URL_SAFE_NO_PAD
        .decode(token)
        .map_err(|_| malformed("The credential is not base64url without padding."))?;
    let Ok(Unambiguous(Value::Object(whole))) = serde_json::from_slice(&json) else {
        return Err(malformed(
            "The credential is not a JSON object without duplicate members.",
        ));
    };
    Ok(whole)
}

fn malformed(detail: &'static str) -> CredentialError {
    CredentialError {
        code: ErrorCode::MalformedCredential,
        detail,
    }
}

fn invalid(detail: &'static str) -> CredentialError {
    CredentialError {
        code: ErrorCode::InvalidChallenge,
        detail,
    }
}

fn object<'v>(whole: &'v Map<String, Value>, name: &str) -> Option<&'v Map<String, Value>> {
    match whole.get(name) {
        Some(Value::Object(object)) => Some(object),
        _ => None,
    }
}

fn decoded(text: &str) -> Option<Map<String, Value>> {
    let json = URL_SAFE_NO_PAD.decode(text).ok()?;
    serde_json::from_slice(&json).ok()
}
