//! The admin API: the operations of the command line, over HTTP with tokens of three roles, in JSON.
//!
//! An endpoint is in the file of the operation. The folder `api` matches, authorizes and answers requests. `openapi` describes the
//! endpoints.

pub(super) mod call;
pub(super) mod endpoint;
mod openapi;
mod route;
pub(super) mod state;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tollgate_filter::{ApiError, ErrorCode, ErrorShape};
use tollgate_money::OperationId;

use self::call::{Call, ROLE, json, query, read_body};
use self::endpoint::ListedEndpoint;
pub(crate) use self::openapi::openapi;
use self::route::BASE;
pub use self::state::ApiDeps;
use self::state::ApiState;
use super::access::Access;
use super::changes::{Actor, Caller};
use super::operations::endpoints;
use super::operations::operation::Changes;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The admin API.
pub(super) struct Api {
    state: ApiState,
    access: Arc<Access>,
}

impl Api {
    pub(super) fn new(deps: ApiDeps, service: Arc<dyn Changes>, access: Arc<Access>) -> Api {
        let state = ApiState::new(deps, service);
        Api { state, access }
    }

    /// Whether a path belongs to the admin API.
    pub(super) fn has(path: &str) -> bool {
        path.strip_prefix(BASE)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Answers a request.
    pub(super) async fn respond(
        &self,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Response<Full<Bytes>> {
        let now = self.state.deps.clock.now();
        let id = OperationId::generate(now, &self.state.deps.entropy).to_string();
        let mut response = match self.call(request, peer, &id).await {
            Ok(response) => response,
            Err(error) => {
                let mut response = Response::new(Full::new(error.body(ErrorShape::Envelope)));
                *response.status_mut() = error.status();
                error.write_headers(response.headers_mut());
                response
            }
        };
        let id = HeaderValue::try_from(id).expect("an id is visible ASCII");
        response.headers_mut().insert(X_REQUEST_ID, id);
        response
    }

    async fn call(
        &self,
        request: Request<Incoming>,
        peer: SocketAddr,
        id: &str,
    ) -> Result<Response<Full<Bytes>>, ApiError> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().strip_prefix(BASE).unwrap_or_default();
        let method = match parts.method {
            Method::HEAD => Method::GET,
            method => method,
        };
        if (&method, path) == (&Method::GET, "/openapi.json") {
            return Ok(json(StatusCode::OK, &openapi()));
        }
        let token = self.access.token(&parts.headers, peer)?;
        let found: Vec<(&ListedEndpoint, Vec<&str>)> = endpoints()
            .filter_map(|endpoint| Some((endpoint, endpoint.route.matches(path)?)))
            .collect();
        if found.is_empty() {
            let message = format!("There is nothing at this address; see {BASE}/openapi.json.");
            return Err(ApiError::new(ErrorCode::NotFound, message));
        }
        let allowed: Vec<&str> = found
            .iter()
            .map(|(one, _)| one.route.method.as_str())
            .collect();
        let allowed = allowed.join(", ");
        let Some((endpoint, names)) = found
            .into_iter()
            .find(|(one, _)| one.route.method == method)
        else {
            let value = HeaderValue::try_from(&allowed).expect("methods are visible ASCII");
            let message = format!("This address allows {allowed}.");
            let error = ApiError::new(ErrorCode::MethodNotAllowed, message);
            return Err(error.header(header::ALLOW, value));
        };
        let route = &endpoint.route;
        if token.role < route.role {
            let (has, needs) = (token.role.word(), route.role.word());
            let message = format!("The token has the role `{has}`, and this needs `{needs}`.");
            return Err(ApiError::new(ErrorCode::OfFilter(&ROLE), message));
        }
        let query = query(route, parts.uri.query().unwrap_or_default())?;
        let body = match route.body {
            None => Bytes::new(),
            Some(_) => read_body(&parts.headers, body).await?,
        };
        let call = Call {
            names,
            query,
            headers: &parts.headers,
            body,
            caller: Caller {
                actor: Actor::Token(token.name.to_string()),
                request: Some(id.to_owned()),
            },
        };
        (endpoint.answer)(&self.state, &call).await
    }
}
