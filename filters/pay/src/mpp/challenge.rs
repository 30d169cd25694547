//! The challenge: the amount that is requested, the approval URL, and the expiry.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};

use super::binding::{Binding, Secrets};
use super::{METHOD, OWN_FIELD};

/// The payment intent, as the scheme names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// A single charge, supported by every client.
    Charge,
    /// A monthly charge (draft-payment-intent-subscription-00).
    Subscription,
}

impl Intent {
    /// Its name on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Intent::Charge => "charge",
            Intent::Subscription => "subscription",
        }
    }

    /// The intent of a name.
    pub fn of(word: &str) -> Option<Intent> {
        [Intent::Charge, Intent::Subscription]
            .into_iter()
            .find(|intent| intent.word() == word)
    }
}

/// The PayPal subscription that awaits the buyer's approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Its id: `I-...`.
    pub id: String,
    /// The plan: `P-...`.
    pub plan: String,
    pub approval_url: String,
}

/// The content of a challenge for one buyer.
#[derive(Clone, Debug)]
pub struct Challenge<'a> {
    pub intent: Intent,
    /// The host of the service.
    pub realm: &'a str,
    /// The price in the smallest unit of the currency.
    pub amount: u64,
    /// The currency, in capitals.
    pub currency: &'a str,
    /// The PayPal subscription.
    pub subscription: &'a Subscription,
    /// The expiry: RFC 3339, whole seconds, `Z`.
    pub expires: &'a str,
    /// A short description of the product, not bound.
    pub description: &'a str,
    /// The public id of the buyer's account.
    pub owner: &'a str,
    /// The public id of the purchase.
    pub purchase: &'a str,
    /// Distinguishes challenges of one second; may be empty.
    pub nonce: &'a str,
    /// The digest of the request's body, if bound.
    pub digest: Option<&'a str>,
    /// Whether the challenge names `Payment-Authorization` as the field of its credential. The credential is accepted in `Authorization`
    /// too.
    pub own_field: bool,
}

impl Challenge<'_> {
    /// The value of `WWW-Authenticate`.
    pub fn header(&self, secrets: &Secrets) -> String {
        let request = self.request();
        let mut opaque = json!({"owner": self.owner, "purchase": self.purchase});
        if !self.nonce.is_empty() {
            opaque["nonce"] = Value::from(self.nonce);
        }
        let opaque = canonical(&opaque);
        let binding = Binding {
            realm: self.realm,
            method: METHOD,
            intent: self.intent.word(),
            request: &request,
            expires: self.expires,
            digest: self.digest.unwrap_or_default(),
            opaque: &opaque,
            header: if self.own_field { OWN_FIELD } else { "" },
        };
        let id = binding.id(secrets);
        let mut header = String::from("Payment");
        let mut separator = " ";
        for (name, value) in [
            ("id", &*id),
            ("realm", binding.realm),
            ("method", binding.method),
            ("intent", binding.intent),
            ("request", binding.request),
            ("expires", binding.expires),
            ("digest", binding.digest),
            ("description", self.description),
            ("opaque", binding.opaque),
            ("header", binding.header),
        ] {
            if value.is_empty() {
                continue;
            }
            header.push_str(separator);
            header.push_str(name);
            header.push('=');
            quote(value, &mut header);
            separator = ", ";
        }
        header
    }

    fn request(&self) -> String {
        let amount = self.amount.to_string();
        let subscription = self.subscription;
        canonical(&match self.intent {
            Intent::Charge => json!({
                "amount": amount,
                "currency": self.currency,
                "description": self.description,
                "externalId": self.purchase,
                "methodDetails": {
                    "approvalUrl": subscription.approval_url,
                    "periodCount": "1",
                    "periodUnit": "month",
                    "planId": subscription.plan,
                    "subscriptionId": subscription.id,
                },
            }),
            Intent::Subscription => json!({
                "amount": amount,
                "currency": self.currency,
                "periodCount": "1",
                "periodUnit": "month",
                "methodDetails": {
                    "approvalUrl": subscription.approval_url,
                    "planId": subscription.plan,
                    "subscriptionId": subscription.id,
                },
            }),
        })
    }
}

/// The digest of a body (RFC 9530 section 2): a dictionary of one member, whose value is a byte sequence.
pub(crate) fn digest(body: &[u8]) -> String {
    use sha2::Digest as _;
    format!("sha-256=:{}:", STANDARD.encode(sha2::Sha256::digest(body)))
}

/// Canonical JSON, members sorted and no spaces (RFC 8785, for strings alone), in base64url. Stock clients decode and encode the text
/// again. Any other order would change in transit and break the binding.
pub(crate) fn canonical(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(sorted(value).to_string())
}

/// Sorts members by name, whatever order the map of this build keeps.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut names: Vec<&String> = members.keys().collect();
            names.sort_unstable();
            let ordered: Map<String, Value> = names
                .into_iter()
                .map(|name| (name.clone(), sorted(&members[name])))
                .collect();
            Value::Object(ordered)
        }
        other => other.clone(),
    }
}

/// A quoted-string (RFC 9110 section 5.6.4). Characters that are not allowed in a field are dropped.
fn quote(value: &str, out: &mut String) {
    out.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            ' '..='~' => out.push(character),
            _ => {}
        }
    }
    out.push('"');
}
