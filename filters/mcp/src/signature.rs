//! HTTP message signatures (RFC 9421), by which a server verifies that a request came through the gateway.
//!
//! A signature covers owner, scopes, request id, method and target; not the body, which is unknown when the head is sent.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::Method;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;
use tollgate_clock::Timestamp;
use zeroize::Zeroizing;

use crate::fields::{Names, REQUEST_ID};

const SIGNATURE: HeaderName = HeaderName::from_static("signature");
const SIGNATURE_INPUT: HeaderName = HeaderName::from_static("signature-input");

/// The secret shared by the gateway and a server. Prints as `[redacted]`, and is wiped on drop.
#[derive(Clone)]
pub struct SigningSecret(Zeroizing<Vec<u8>>);

impl SigningSecret {
    /// A secret of this text.
    pub fn new(text: &str) -> SigningSecret {
        SigningSecret(Zeroizing::new(text.as_bytes().to_vec()))
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// The signed components besides header fields.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a Method,
    /// Path and query as the server sees them.
    pub(crate) target: &'a str,
    /// The time of signing; written in seconds.
    pub(crate) created: Timestamp,
    /// `keyid`: the name of the section in the settings.
    pub(crate) key_id: &'a str,
}

/// Adds `Signature-Input` and `Signature`, labelled with `service.name`.
pub(crate) fn sign(
    secret: &SigningSecret,
    label: &str,
    names: &Names,
    signed: &Signed<'_>,
    fields: &mut HeaderMap,
) {
    let (path, query) = match signed.target.split_once('?') {
        Some((path, query)) => (path, query),
        None => (signed.target, ""),
    };
    let own = [&names.owner, &names.scopes, &REQUEST_ID];
    let mut base = format!(
        "\"@method\": {}\n\"@path\": {path}\n\"@query\": ?{query}\n",
        signed.method
    );
    let mut covered = String::from("(\"@method\" \"@path\" \"@query\"");
    for name in own {
        let value = fields.get(name).and_then(|value| value.to_str().ok());
        let value = value.unwrap_or_default();
        base.push_str(&format!("\"{name}\": {value}\n"));
        covered.push_str(&format!(" \"{name}\""));
    }
    let parameters = format!(
        "{covered});created={};keyid=\"{}\";alg=\"hmac-sha256\"",
        signed.created.as_secs(),
        signed.key_id
    );
    base.push_str(&format!("\"@signature-params\": {parameters}"));
    let mut mac =
        Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes keys of every length");
    mac.update(base.as_bytes());
    let signature = STANDARD.encode(mac.finalize().into_bytes());
    let text = |text: String| HeaderValue::try_from(text).expect("all of it is visible ASCII");
    fields.insert(SIGNATURE_INPUT, text(format!("{label}={parameters}")));
    fields.insert(SIGNATURE, text(format!("{label}=:{signature}:")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("x-svc-owner", "acct_1"),
            ("x-svc-scopes", "mcp:chat"),
            ("x-request-id", "req_1"),
        ] {
            let name = HeaderName::from_static(name);
            fields.insert(name, HeaderValue::from_static(value));
        }
        fields
    }

    fn signed(target: &str, fields: &mut HeaderMap) {
        let secret = SigningSecret::new("doc-example-secret-of-32-letters");
        let signed = Signed {
            method: &Method::POST,
            target,
            created: Timestamp::from_secs(1_800_000_000),
            key_id: "mcp.general",
        };
        sign(&secret, "svc", &Names::new("svc"), &signed, fields);
    }

    #[test]
    fn rfc9421_the_signature_is_over_the_base_that_its_input_describes() {
        let mut fields = fields();
        signed("/mcp", &mut fields);
        assert_eq!(
            fields["signature-input"],
            "svc=(\"@method\" \"@path\" \"@query\" \"x-svc-owner\" \"x-svc-scopes\" \"x-request-id\")\
             ;created=1800000000;keyid=\"mcp.general\";alg=\"hmac-sha256\""
        );
        assert_eq!(
            fields["signature"],
            "svc=:kBWgarOmGexWmdVxjV5Mwg7Y6+vJBQE9aHvK5AkBkFI=:"
        );
    }

    #[test]
    fn another_owner_scope_request_or_target_is_another_signature() {
        let mut all = Vec::new();
        let mut note = |target: &str, change: Option<(&'static str, &'static str)>| {
            let mut fields = fields();
            if let Some((name, value)) = change {
                fields.insert(name, HeaderValue::from_static(value));
            }
            signed(target, &mut fields);
            all.push(fields["signature"].clone());
        };
        note("/mcp", None);
        note("/mcp?a=1", None);
        note("/mcp/", None);
        note("/mcp", Some(("x-svc-owner", "acct_2")));
        note("/mcp", Some(("x-svc-scopes", "mcp:chat mcp:devices")));
        note("/mcp", Some(("x-request-id", "req_2")));
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
