//! The MCP relay filter: checks method, origin and query, and prepares the request for the server.

use std::sync::Arc;

use http::Method;
use http::header::{self, HeaderValue};
use tollgate_clock::Clock;
use tollgate_filter::{
    ApiError, Body, Contract, ErrorCode, Exchange, FailureMode, Filter, FilterError, Outcome,
    Phase, Principal, Relay, Request, Step,
};

use crate::fields::{Names, add_via};
use crate::session::{BoundSessions, SESSION_ID, SessionError, SessionKey};
use crate::signature::{Signed, SigningSecret, sign};

/// The methods of the transport.
const METHODS: [Method; 3] = [Method::POST, Method::GET, Method::DELETE];

/// Relays requests to the server behind an MCP resource.
pub struct Mcp {
    service: Arc<str>,
    names: Names,
    /// Prefixes of the service's credentials, which must not appear in an address.
    credentials: [Box<str>; 2],
    server: Option<McpServer>,
    origins: Option<Vec<String>>,
    sessions: SessionKey,
    clock: Clock,
}

/// The dependencies of a filter.
pub struct McpDeps<'a> {
    /// The setting `service.name`.
    pub service: &'a str,
    /// The server, if any.
    pub server: Option<McpServer>,
    /// The origins whose pages may call, as browsers write origins; `None` for every origin.
    pub origins: Option<Vec<String>>,
    /// The key that binds session ids to accounts.
    pub sessions: SessionKey,
    /// Time, for signatures.
    pub clock: Clock,
}

/// The server behind a resource.
#[derive(Clone, Debug)]
pub struct McpServer {
    /// The resource's name in the settings, which is also the name of the secret.
    pub name: Arc<str>,
    /// The path of the server's endpoint.
    pub path: String,
    /// The secret that signs the gateway's fields, if the fields are signed.
    pub secret: Option<SigningSecret>,
}

impl Mcp {
    /// A filter for a resource.
    pub fn new(deps: McpDeps<'_>) -> Mcp {
        let service = deps.service;
        Mcp {
            service: service.into(),
            names: Names::new(service),
            credentials: [
                format!("sk-{service}-").into(),
                format!("{service}_at_").into(),
            ],
            server: deps.server,
            origins: deps.origins,
            sessions: deps.sessions,
            clock: deps.clock,
        }
    }

    /// Why a request is not relayed.
    fn refusal(&self, request: &Request) -> Option<ApiError> {
        if !METHODS.contains(&request.method) {
            // `HEAD` too: a stream of events has no head of its own.
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
                "The URL contains a credential, and URLs are logged. Revoke it, and send credentials in the Authorization header.",
            ));
        }
        None
    }

    /// Whether the request has no `Origin`, or an allowed `Origin`. No browser sends two origins.
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

    fn relay(
        &self,
        server: &McpServer,
        request: &Request,
        principal: &Principal,
    ) -> Result<Relay, SessionError> {
        let sessions = BoundSessions::of(&self.sessions, &server.name, principal.account);
        let session = sessions.of_request(request)?;
        let target = match &request.query {
            Some(query) => format!("{}?{query}", server.path),
            None => server.path.clone(),
        };
        let mut headers = self.names.for_server(request, principal);
        if let Some(session) = session {
            headers.insert(SESSION_ID, session);
        }
        add_via(&mut headers, request.protocol.word(), &self.service);
        if let Some(secret) = &server.secret {
            let signed = Signed {
                method: &request.method,
                target: &target,
                created: self.clock.now(),
                key_id: &server.name,
            };
            sign(secret, &self.service, &self.names, &signed, &mut headers);
        }
        Ok(Relay {
            upstream: server.name.clone(),
            target: target.into(),
            headers,
            pseudonym: self.service.clone(),
            head: Some(Arc::new(sessions)),
        })
    }
}

/// The refusal of a session id. A client starts a new session after 404 (MCP, Session Management).
fn session_refusal(error: SessionError) -> ApiError {
    match error {
        SessionError::Repeated => ApiError::new(
            ErrorCode::InvalidRequest,
            "The request has several Mcp-Session-Id fields. Send one.",
        ),
        SessionError::Unknown => ApiError::new(
            ErrorCode::SessionGone,
            "This account has no such MCP session. Start a new one: send `initialize` without Mcp-Session-Id.",
        ),
    }
}

/// Whether a query contains a credential of this service, percent-encoded or not.
pub(crate) fn holds_credential(query: &str, prefixes: &[Box<str>]) -> bool {
    let plain = decoded(query.as_bytes());
    prefixes.iter().any(|start| {
        let start = start.as_bytes();
        plain.windows(start.len()).any(|window| window == start)
    })
}

/// A query with its percent-encoded bytes decoded (RFC 3986 section 2.1); malformed escapes stay.
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
                "The request could not be authenticated. Report the request id to the operator.",
            );
            let cause = "no principal on the exchange; put `auth` before `mcp` in the chain";
            return Step::failed(FilterError::new(answer, cause));
        };
        let Some(server) = &self.server else {
            return Step::now(Outcome::refuse(ApiError::new(
                ErrorCode::McpUnavailable,
                "No MCP server is configured for this address. Try again later.",
            )));
        };
        match self.relay(server, &exchange.request, principal) {
            Ok(relay) => {
                exchange.put(relay);
                Step::now(Outcome::Continue)
            }
            Err(error) => Step::now(Outcome::refuse(session_refusal(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_in_a_query_is_found_in_every_encoding() {
        let prefixes: [Box<str>; 2] = ["sk-svc-".into(), "svc_at_".into()];
        for (query, found) in [
            ("access_token=svc_at_7Hq2", true),
            ("access_token=svc%5Fat%5f7Hq2", true),
            ("%73k-svc-x", true),
            ("a=1&b=svc", false),
            ("a=%", false),
            ("a=%5", false),
            ("a=%zz", false),
        ] {
            assert_eq!(holds_credential(query, &prefixes), found, "{query}");
        }
    }
}
