//! The filter: who is asking, where it goes, and what the server is told.

use std::sync::Arc;

use http::Method;
use http::header::{self, HeaderValue};
use tollgate_filter::{
    ApiError, Body, Clock, Contract, ErrorCode, Exchange, FailureMode, Filter, FilterError,
    Outcome, Phase, Principal, Relay, Request, Step,
};

use crate::fields::{Names, add_via};
use crate::signature::{Signed, SigningSecret, sign};

/// The methods of the transport.
const METHODS: [Method; 3] = [Method::POST, Method::GET, Method::DELETE];

/// Hands requests on to the server behind one MCP resource.
pub struct Mcp {
    service: Arc<str>,
    names: Names,
    /// How the credentials of the service begin, which must not stand in an address.
    credentials: [Box<str>; 2],
    behind: Option<Behind>,
    origins: Option<Vec<String>>,
    clock: Clock,
}

/// What a filter is made of.
pub struct Parts<'a> {
    /// The service's own word.
    pub service: &'a str,
    /// The server, if there is one.
    pub behind: Option<Behind>,
    /// The origins whose pages may call, as browsers write them; `None` for every one.
    pub origins: Option<Vec<String>>,
    /// Time, for signatures.
    pub clock: Clock,
}

/// The server behind a resource.
pub struct Behind {
    /// Its name in the settings, which is also that of the secret.
    pub name: Arc<str>,
    /// The path of its endpoint.
    pub path: String,
    /// What the gateway's own fields are signed with, if they are.
    pub secret: Option<SigningSecret>,
}

impl Mcp {
    /// A filter for one resource.
    pub fn new(parts: Parts<'_>) -> Mcp {
        let service = parts.service;
        Mcp {
            service: service.into(),
            names: Names::new(service),
            credentials: [
                format!("sk-{service}-").into(),
                format!("{service}_at_").into(),
            ],
            behind: parts.behind,
            origins: parts.origins,
            clock: parts.clock,
        }
    }

    /// What keeps a request from being handed on.
    fn refusal(&self, request: &Request) -> Option<ApiError> {
        if !METHODS.contains(&request.method) {
            // `HEAD` among them: a stream of events cannot be asked for without its events.
            let message = "This address answers POST, GET and DELETE.";
            let allow = HeaderValue::from_static("POST, GET, DELETE, OPTIONS");
            let error = ApiError::new(ErrorCode::MethodNotAllowed, message);
            return Some(error.header(header::ALLOW, allow));
        }
        if !self.is_allowed_origin(request) {
            return Some(ApiError::new(
                ErrorCode::OriginNotAllowed,
                "Pages of this origin may not call this address. Ask the operator of this service to allow it.",
            ));
        }
        if let Some(query) = &request.query
            && holds_credential(query, &self.credentials)
        {
            return Some(ApiError::new(
                ErrorCode::InvalidRequest,
                "There is a credential in the address. Addresses end up in logs: revoke it, and leave it out of the address.",
            ));
        }
        None
    }

    /// Whether the request comes from no page, or from a page that may call. More than one `Origin` comes from no browser.
    fn is_allowed_origin(&self, request: &Request) -> bool {
        let Some(allowed) = &self.origins else {
            return true;
        };
        let mut origins = request.headers.get_all(header::ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => true,
            (Some(origin), None) => allowed
                .iter()
                .any(|one| one.as_bytes() == origin.as_bytes()),
            (Some(_), Some(_)) => false,
        }
    }

    fn relay(&self, behind: &Behind, request: &Request, principal: &Principal) -> Relay {
        let target = match &request.query {
            Some(query) => format!("{}?{query}", behind.path),
            None => behind.path.clone(),
        };
        let mut headers = self.names.told(request, principal);
        add_via(&mut headers, request.protocol.word(), &self.service);
        if let Some(secret) = &behind.secret {
            let signed = Signed {
                method: &request.method,
                target: &target,
                created: self.clock.unix_micros() / 1_000_000,
                key_id: &behind.name,
            };
            sign(secret, &self.service, &self.names, &signed, &mut headers);
        }
        Relay {
            upstream: behind.name.clone(),
            target: target.into(),
            headers,
            pseudonym: self.service.clone(),
        }
    }
}

/// Whether a text that begins as our credentials do stands in a query, percent-encoded or not.
fn holds_credential(query: &str, beginnings: &[Box<str>]) -> bool {
    let plain = decoded(query.as_bytes());
    beginnings.iter().any(|start| {
        let start = start.as_bytes();
        plain.windows(start.len()).any(|window| window == start)
    })
}

/// A query with its percent-encoded bytes decoded (RFC 3986 section 2.1); what is no such byte stays.
fn decoded(query: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let mut plain = Vec::with_capacity(query.len());
    let mut at = 0;
    while let Some(&byte) = query.get(at) {
        let pair = (digit(query.get(at + 1)), digit(query.get(at + 2)));
        match (byte, pair) {
            (b'%', (Some(high), Some(low))) => {
                plain.push((high << 4 | low) as u8);
                at += 3;
            }
            _ => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    plain
}

impl Filter for Mcp {
    fn name(&self) -> &'static str {
        "mcp"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        if let Some(error) = self.refusal(&exchange.request) {
            return Step::now(Outcome::refuse(error));
        }
        let Some(principal) = exchange.get::<Principal>() else {
            let answer = ApiError::new(
                ErrorCode::InternalError,
                "The gateway could not tell who is asking. Tell the operator the request id.",
            );
            let cause = "no principal stands on the exchange; put `auth` before `mcp`";
            return Step::failed(FilterError::new(answer, cause));
        };
        let Some(behind) = &self.behind else {
            return Step::now(Outcome::refuse(ApiError::new(
                ErrorCode::McpUnavailable,
                "No MCP server stands behind this address at the moment. Try again later.",
            )));
        };
        let relay = self.relay(behind, &exchange.request, principal);
        exchange.put(relay);
        Step::now(Outcome::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_in_an_address_is_found_however_it_is_spelled() {
        let beginnings: [Box<str>; 2] = ["sk-svc-".into(), "svc_at_".into()];
        for (query, found) in [
            ("access_token=svc_at_7Hq2", true),
            ("access_token=svc%5Fat%5f7Hq2", true),
            ("%73k-svc-x", true),
            ("a=1&b=svc", false),
            ("a=%", false),
            ("a=%5", false),
            ("a=%zz", false),
        ] {
            assert_eq!(holds_credential(query, &beginnings), found, "{query}");
        }
    }
}
