//! The challenge: what is asked for, where the buyer agrees to it, and until when.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};

use super::binding::{Binding, Secrets};
use super::{INTENT, METHOD};

/// The recurring payment that waits for the buyer, as PayPal knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Its id: `I-...`.
    pub id: String,
    /// The plan: `P-...`.
    pub plan: String,
    /// The page where the buyer agrees.
    pub approval_url: String,
}

/// What one buyer is asked for.
#[derive(Clone, Debug)]
pub struct Challenge<'a> {
    /// The host of the service.
    pub realm: &'a str,
    /// The price in the smallest unit of the currency.
    pub amount: u64,
    /// The currency, in capitals.
    pub currency: &'a str,
    /// The recurring payment.
    pub subscription: &'a Subscription,
    /// When the challenge ends: RFC 3339, whole seconds, `Z`.
    pub expires: &'a str,
    /// In a few words what is sold. Nothing binds it.
    pub description: &'a str,
    /// The public id of the account that asks.
    pub owner: &'a str,
    /// The public id of the purchase.
    pub purchase: &'a str,
}

impl Challenge<'_> {
    /// The value of `WWW-Authenticate`.
    pub fn header(&self, secrets: &Secrets) -> String {
        let request = self.request();
        let opaque = canonical(&json!({"owner": self.owner, "purchase": self.purchase}));
        let id = Binding {
            realm: self.realm,
            method: METHOD,
            intent: INTENT,
            request: &request,
            expires: self.expires,
            digest: "",
            opaque: &opaque,
        }
        .id(secrets);
        let mut header = String::from("Payment ");
        for (at, (name, value)) in [
            ("id", &*id),
            ("realm", self.realm),
            ("method", METHOD),
            ("intent", INTENT),
            ("request", &request),
            ("expires", self.expires),
            ("description", self.description),
            ("opaque", &opaque),
        ]
        .into_iter()
        .enumerate()
        {
            if at > 0 {
                header.push_str(", ");
            }
            header.push_str(name);
            header.push('=');
            quote(value, &mut header);
        }
        header
    }

    fn request(&self) -> String {
        canonical(&json!({
            "amount": self.amount.to_string(),
            "currency": self.currency,
            "description": self.description,
            "externalId": self.purchase,
            "methodDetails": {
                "approvalUrl": self.subscription.approval_url,
                "periodCount": "1",
                "periodUnit": "month",
                "planId": self.subscription.plan,
                "subscriptionId": self.subscription.id,
            },
        }))
    }
}

/// JSON with its members in order and no spaces (RFC 8785, for texts alone), in base64url. Stock clients decode it and write it anew, so
/// any other order would come back changed and the binding would not hold.
pub(crate) fn canonical(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(sorted(value).to_string())
}

/// Members in the order of their names, whatever the map of this build keeps.
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

/// A quoted-string (RFC 9110 section 5.6.4). What cannot stand in a field is left out.
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
