//! What comes back: `Authorization: Payment`, with all that the challenge said and the id of the payment.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use tollgate_filter::ErrorCode;

use super::binding::{Binding, Secrets};
use super::{INTENT, METHOD};
use crate::json::Unambiguous;

/// The most bytes of a credential.
const BYTES_MAX: usize = 16 * 1024;

/// A credential whose challenge was made here, has not ended, and was made for this account.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The challenge's id, to be used once.
    pub id: String,
    /// The public id of the purchase.
    pub purchase: String,
    /// The id of the recurring payment.
    pub subscription: String,
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
    /// Reads what stands behind `Payment` and a space, for the account `owner` at `now` (Unix seconds). The checks come in the order of
    /// the scheme: form, method, binding, time, owner, payload.
    pub fn read(
        token: &str,
        secrets: &Secrets,
        owner: &str,
        now: i64,
    ) -> Result<Credential, CredentialError> {
        let malformed = |detail| CredentialError {
            code: ErrorCode::MalformedCredential,
            detail,
        };
        let invalid = |detail| CredentialError {
            code: ErrorCode::InvalidChallenge,
            detail,
        };
        if token.len() > BYTES_MAX {
            return Err(malformed("The credential is larger than 16 KiB."));
        }
        let json = URL_SAFE_NO_PAD
            .decode(token)
            .map_err(|_| malformed("The credential is not base64url without padding."))?;
        let Ok(Unambiguous(Value::Object(whole))) = serde_json::from_slice(&json) else {
            return Err(malformed(
                "The credential is not a JSON object in which every member stands once.",
            ));
        };
        let (Some(challenge), Some(payload)) =
            (object(&whole, "challenge"), object(&whole, "payload"))
        else {
            return Err(malformed("The credential lacks `challenge` or `payload`."));
        };
        let Some(said) = Said::read(challenge) else {
            return Err(malformed("A parameter of the challenge is not a text."));
        };
        if said.binding.method != METHOD || said.binding.intent != INTENT {
            return Err(CredentialError {
                code: ErrorCode::MethodUnsupported,
                detail: "Only the method paypal with the intent charge is taken here.",
            });
        }
        if !said.binding.holds(said.id, secrets) {
            return Err(invalid("The challenge was not made here, or was changed."));
        }
        let ends = said.binding.expires.parse::<jiff::Timestamp>();
        if ends.is_ok_and(|ends| ends.as_second() <= now) {
            return Err(CredentialError {
                code: ErrorCode::PaymentExpired,
                detail: "The challenge has ended. Use the one of this answer.",
            });
        }
        let (Some(for_owner), Some(purchase)) = said.opaque() else {
            return Err(invalid("The challenge was not made here, or was changed."));
        };
        if for_owner != owner {
            return Err(invalid("The challenge was made for another account."));
        }
        let subscription = payload.get("subscriptionId").and_then(Value::as_str);
        let asked = said.subscription();
        match (payload.get("type").and_then(Value::as_str), subscription) {
            (Some("subscription"), Some(id)) if asked.as_deref() == Some(id) => Ok(Credential {
                id: said.id.to_owned(),
                purchase,
                subscription: id.to_owned(),
            }),
            _ => Err(CredentialError {
                code: ErrorCode::InvalidPayload,
                detail: "`payload` is {\"type\":\"subscription\",\"subscriptionId\":...} with the id of the challenge.",
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

/// What the challenge said, as it came back.
struct Said<'v> {
    id: &'v str,
    binding: Binding<'v>,
}

impl<'v> Said<'v> {
    fn read(challenge: &'v Map<String, Value>) -> Option<Said<'v>> {
        let text = |name: &str| match challenge.get(name) {
            None | Some(Value::Null) => Some(""),
            Some(Value::String(text)) => Some(&**text),
            Some(_) => None,
        };
        Some(Said {
            id: text("id")?,
            binding: Binding {
                realm: text("realm")?,
                method: text("method")?,
                intent: text("intent")?,
                request: text("request")?,
                expires: text("expires")?,
                digest: text("digest")?,
                opaque: text("opaque")?,
            },
        })
    }

    /// The account and the purchase that the challenge was made for. The binding holds, so this is what was written here.
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
