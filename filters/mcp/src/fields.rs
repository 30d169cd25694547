//! What an MCP server is told of a request.
//!
//! It believes the fields that begin with the service's own name, so nothing that a client sends may be taken for one of them, by whatever
//! program reads them. Many turn names into variables (`HTTP_X_SVC_OWNER`), by which `X-Svc-Owner`, `x_svc_owner` and, with some,
//! `X.Svc.Owner` are one: names are compared with everything but letters and digits taken for a hyphen.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use tollgate_filter::{Principal, Request, end_to_end};

/// Fields of a client that are not passed on, whatever their spelling: credentials, what only the gateway may say of where a request came
/// from, and what was for the gateway's own eyes.
const KEPT_BACK: [&str; 20] = [
    "authorization",
    "client-ip",
    "content-length",
    "cookie",
    "cookie2",
    "expect",
    "forwarded",
    "host",
    "idempotency-key",
    "origin",
    "payment-authorization",
    "payment-signature",
    "proxy-authorization",
    "referer",
    "signature",
    "signature-input",
    "true-client-ip",
    "x-api-key",
    "x-payment",
    "x-request-id",
];

/// Beginnings of such names.
const KEPT_BACK_BEGINNINGS: [&str; 4] = ["sec-fetch-", "x-forwarded-", "x-original-", "x-real-"];

/// The names of the fields that are the gateway's own.
pub(crate) struct Names {
    /// `x-svc-`, which no name that is passed on begins with.
    own: Box<str>,
    /// `x-svc-owner`
    pub(crate) owner: HeaderName,
    /// `x-svc-scopes`
    pub(crate) scopes: HeaderName,
}

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

impl Names {
    /// `service` is the service's own word: small letters and digits.
    pub(crate) fn new(service: &str) -> Names {
        let name = |word: &str| {
            HeaderName::try_from(format!("x-{service}-{word}"))
                .expect("a service is named with letters and digits")
        };
        Names {
            own: format!("x-{service}-").into(),
            owner: name("owner"),
            scopes: name("scopes"),
        }
    }

    /// Whether a field of this name is passed on.
    fn passes(&self, name: &HeaderName) -> bool {
        let plain: String = name
            .as_str()
            .chars()
            .map(|letter| {
                if letter.is_ascii_alphanumeric() {
                    letter
                } else {
                    '-'
                }
            })
            .collect();
        let own = plain.starts_with(&*self.own) || plain == self.own.trim_end_matches('-');
        !own && !KEPT_BACK.contains(&plain.as_str())
            && !KEPT_BACK_BEGINNINGS
                .iter()
                .any(|start| plain.starts_with(start))
    }

    /// The fields for the server: those of the client that may pass, then the gateway's own.
    pub(crate) fn told(&self, request: &Request, principal: &Principal) -> HeaderMap {
        // First what belongs to the connection goes, and what the client names as such, so that it can name none of what is added.
        let mut fields = end_to_end(&request.headers);
        let names: Vec<HeaderName> = fields.keys().cloned().collect();
        for name in names {
            if !self.passes(&name) {
                fields.remove(name);
            }
        }
        let text = |text: String| HeaderValue::try_from(text).expect("ids and scopes are ASCII");
        fields.insert(self.owner.clone(), text(principal.account.to_string()));
        fields.insert(self.scopes.clone(), text(principal.scopes.to_string()));
        fields.insert(REQUEST_ID, text(request.id.to_string()));
        fields
    }
}

/// Adds this gateway to the programs that a message has passed (RFC 9110 section 7.6.3).
pub(crate) fn add_via(fields: &mut HeaderMap, protocol: &str, pseudonym: &str) {
    let via = HeaderValue::try_from(format!("{protocol} {pseudonym}"));
    fields.append(header::VIA, via.expect("a service is named with letters"));
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use bytes::Bytes;
    use http::Method;
    use proptest::prelude::*;
    use tollgate_filter::{
        CacheSharing, CredentialId, CredentialKind, ModelAccess, Protocol, Scope, Scopes,
    };
    use tollgate_money::{AccountId, OperationId};

    use super::*;

    fn principal() -> Principal {
        Principal {
            account: AccountId::from_bytes([7; 16]),
            credential: CredentialId([8; 16]),
            kind: CredentialKind::AccessToken,
            scopes: Scopes::NONE.with(Scope::McpChat).with(Scope::McpDevices),
            class: Arc::from("free"),
            models: ModelAccess::All,
            sharing: CacheSharing::Shared,
            spending_cap: None,
        }
    }

    fn told(headers: HeaderMap) -> HeaderMap {
        let request = Request {
            id: OperationId::from_parts(1, [0; 10]),
            method: Method::POST,
            path: "/mcp".into(),
            query: None,
            headers,
            body: Bytes::new(),
            client: IpAddr::from([192, 0, 2, 1]),
            tls: false,
            protocol: Protocol::Http11,
        };
        Names::new("svc").told(&request, &principal())
    }

    #[test]
    fn nothing_a_client_sends_is_taken_for_what_the_gateway_says() {
        let own = told(HeaderMap::new());
        assert_eq!(
            own["x-svc-owner"],
            AccountId::from_bytes([7; 16]).to_string()
        );
        assert_eq!(own["x-svc-scopes"], "mcp:chat mcp:devices");
        for name in [
            "x-svc-owner",
            "x-svc-scopes",
            "x-svc-anything",
            "x_svc_owner",
            "x-svc_owner",
            "x.svc.owner",
            "x-svc~owner",
            "x-svc",
            "x-svc-authorization",
            "x-request-id",
            "x_request_id",
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
            "x_api_key",
            "payment-signature",
            "x-payment",
            "forwarded",
            "x-forwarded-for",
            "x_forwarded_for",
            "x-real-ip",
            "x-original-url",
            "signature",
            "signature-input",
            "origin",
            "host",
            "transfer-encoding",
        ] {
            let mut headers = HeaderMap::new();
            let name = HeaderName::from_static(name);
            for value in ["acct_forged", "forged"] {
                headers.append(name.clone(), HeaderValue::from_static(value));
            }
            assert_eq!(told(headers), own, "{name}");
        }
    }

    #[test]
    fn a_client_cannot_name_the_gateways_fields_away() {
        let mut headers = HeaderMap::new();
        for value in ["x-svc-owner, x-request-id", "X-Svc-Scopes"] {
            headers.append(header::CONNECTION, HeaderValue::from_static(value));
        }
        assert_eq!(told(headers), told(HeaderMap::new()));
    }

    #[test]
    fn what_the_protocol_needs_passes_as_it_is() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("accept", "application/json, text/event-stream"),
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
            ("mcp-session-id", "s1"),
            ("mcp-protocol-version", "2025-11-25"),
            ("mcp-method", "tools/call"),
            ("mcp-param-region", "eu"),
            ("last-event-id", "7"),
            ("user-agent", "client/1"),
            ("traceparent", "00-0-0-01"),
            ("x-svcs", "another name"),
        ] {
            let name = HeaderName::from_static(name);
            headers.append(name, HeaderValue::from_static(value));
        }
        let told = told(headers.clone());
        for (name, value) in &headers {
            assert_eq!(told.get(name), Some(value), "{name}");
        }
        assert_eq!(told.len(), headers.len() + 3);
    }

    proptest! {
        #[test]
        fn no_name_that_a_program_could_take_for_ours_passes(
            name in "[xX][-_.~|+*'`^!#$%&][sS][vV][cC]([-_.~|+*'`^!#$%&][a-zA-Z0-9]{0,12})?"
        ) {
            let Ok(name) = HeaderName::try_from(name) else { return Ok(()) };
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static("forged"));
            prop_assert_eq!(told(headers), told(HeaderMap::new()));
        }
    }
}
