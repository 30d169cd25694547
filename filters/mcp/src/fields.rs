//! The header fields that an MCP server receives.
//!
//! The server trusts the fields that begin with the service's name. No field of a client may be mistaken for a trusted field. Many programs
//! turn names into variables (`HTTP_X_SVC_OWNER`), which makes `X-Svc-Owner`, `x_svc_owner` and, in some programs, `X.Svc.Owner` equal.
//! Names are therefore compared with every character but letters and digits read as a hyphen. A name with an underscore is not forwarded at
//! all: the server may read the underscore as a hyphen, and trust the resulting name for another reason.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use tollgate_filter::{Principal, Request, Scopes, end_to_end};
use tollgate_money::{AccountId, OperationId};

/// Fields of a client that are removed, whatever their spelling: credentials, statements about a request's origin that only the gateway may
/// make, fields addressed to the gateway, another method than the authorized method, and the session's id. The id is passed on only after a
/// check.
const REMOVED: [&str; 24] = [
    "authorization",
    "client-ip",
    "content-length",
    "cookie",
    "cookie2",
    "expect",
    "forwarded",
    "host",
    "idempotency-key",
    "mcp-session-id",
    "origin",
    "payment-authorization",
    "payment-signature",
    "proxy-authorization",
    "referer",
    "signature",
    "signature-input",
    "true-client-ip",
    "x-api-key",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-payment",
    "x-request-id",
];

/// Prefixes of removed names.
const REMOVED_PREFIXES: [&str; 4] = ["sec-fetch-", "x-forwarded-", "x-original-", "x-real-"];

/// The names of the gateway's fields.
pub(crate) struct Names {
    /// `x-svc-`, a prefix that no forwarded name has.
    own: Box<str>,
    /// `x-svc-owner`
    pub(crate) owner: HeaderName,
    /// `x-svc-scopes`
    pub(crate) scopes: HeaderName,
}

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

impl Names {
    /// `service` is the setting `service.name`: lower-case letters and digits.
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

    /// Whether a field of this name is forwarded.
    fn passes(&self, name: &HeaderName) -> bool {
        if name.as_str().contains('_') {
            return false;
        }
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
        !own && !REMOVED.contains(&plain.as_str())
            && !REMOVED_PREFIXES
                .iter()
                .any(|start| plain.starts_with(start))
    }

    /// The fields for the server: the client's forwarded fields, then the gateway's fields.
    pub(crate) fn for_server(&self, request: &Request, principal: &Principal) -> HeaderMap {
        // Hop-by-hop fields and fields named in `Connection` are removed first, so that a client cannot name the gateway's fields.
        let mut fields = end_to_end(&request.headers);
        let names: Vec<HeaderName> = fields.keys().cloned().collect();
        for name in names {
            if !self.passes(&name) {
                fields.remove(name);
            }
        }
        self.insert_own(&mut fields, principal.account, principal.scopes, request.id);
        fields
    }

    /// Adds the gateway's own fields.
    pub(crate) fn insert_own(
        &self,
        fields: &mut HeaderMap,
        account: AccountId,
        scopes: Scopes,
        request: OperationId,
    ) {
        let text = |text: String| HeaderValue::try_from(text).expect("ids and scopes are ASCII");
        fields.insert(self.owner.clone(), text(account.to_string()));
        fields.insert(self.scopes.clone(), text(scopes.to_string()));
        fields.insert(REQUEST_ID, text(request.to_string()));
    }
}

/// Appends this gateway to `Via` (RFC 9110 section 7.6.3).
pub(crate) fn add_via(fields: &mut HeaderMap, protocol: &str, pseudonym: &str) {
    let via = HeaderValue::try_from(format!("{protocol} {pseudonym}"));
    fields.append(header::VIA, via.expect("a service is named with letters"));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http::Method;
    use proptest::prelude::*;
    use tollgate_filter::{
        CacheSharing, ClientAddress, CredentialKind, ModelAccess, Protocol, Scope, Scopes,
    };
    use tollgate_money::CredentialId;

    use super::*;

    fn principal() -> Principal {
        Principal {
            account: AccountId::from_bytes([7; 16]),
            credential: CredentialId::from_bytes([8; 16]),
            kind: CredentialKind::AccessToken,
            scopes: Scopes::NONE.with(Scope::McpChat).with(Scope::McpDevices),
            class: Arc::from("free"),
            models: ModelAccess::All,
            sharing: CacheSharing::Shared,
            spending_cap: None,
        }
    }

    fn for_server(headers: HeaderMap) -> HeaderMap {
        let request = Request {
            id: OperationId::from_parts(1, [0; 10]),
            method: Method::POST,
            path: "/mcp".into(),
            query: None,
            headers,
            body: Bytes::new(),
            client: ClientAddress::direct([192, 0, 2, 1].into()),
            tls: false,
            protocol: Protocol::Http11,
        };
        Names::new("svc").for_server(&request, &principal())
    }

    #[test]
    fn no_field_of_a_client_passes_as_one_of_the_gateway() {
        let own = for_server(HeaderMap::new());
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
            "x-http-method-override",
            "x-http-method",
            "x-method-override",
            "x.http.method.override",
            "content_type",
            "mcp_method",
            "x_tenant",
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
            assert_eq!(for_server(headers), own, "{name}");
        }
    }

    #[test]
    fn connection_cannot_remove_the_gateways_fields() {
        let mut headers = HeaderMap::new();
        for value in ["x-svc-owner, x-request-id", "X-Svc-Scopes"] {
            headers.append(header::CONNECTION, HeaderValue::from_static(value));
        }
        assert_eq!(for_server(headers), for_server(HeaderMap::new()));
    }

    #[test]
    fn fields_of_the_protocol_are_forwarded_unchanged() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("accept", "application/json, text/event-stream"),
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
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
        let for_server = for_server(headers.clone());
        for (name, value) in &headers {
            assert_eq!(for_server.get(name), Some(value), "{name}");
        }
        assert_eq!(for_server.len(), headers.len() + 3);
    }

    proptest! {
        #[test]
        fn no_name_that_a_program_could_read_as_ours_is_forwarded(
            name in "[xX][-_.~|+*'`^!#$%&][sS][vV][cC]([-_.~|+*'`^!#$%&][a-zA-Z0-9]{0,12})?"
        ) {
            let Ok(name) = HeaderName::try_from(name) else { return Ok(()) };
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static("forged"));
            prop_assert_eq!(for_server(headers), for_server(HeaderMap::new()));
        }
    }
}
