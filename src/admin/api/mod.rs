//! The admin API: what the command line does, over HTTP with tokens of three roles, in JSON.
//!
//! Changes go through the service behind the control socket; reads use the store. `openapi` describes it.

mod endpoint;
mod messages;
mod openapi;
mod operations;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{ApiError, ErrorCode, ErrorShape, ErrorType, FilterCode};
use tollgate_money::OperationId;
use tollgate_store::Store;

use self::endpoint::{BASE, Endpoint, endpoints};
pub(crate) use self::openapi::openapi;
use super::access::Access;
use super::changes::{Actor, Caller, ChangeError, ChangeErrorKind, Changes};
use super::running::RunningSettings;

/// Maximum size of a body in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Time for a body to arrive.
const BODY: Duration = Duration::from_secs(10);

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

static INVALID: FilterCode = FilterCode::new("admin.invalid", 400, ErrorType::InvalidRequest);
static UNKNOWN: FilterCode = FilterCode::new("admin.not_found", 404, ErrorType::InvalidRequest);
static CONFLICT: FilterCode = FilterCode::new("admin.conflict", 409, ErrorType::InvalidRequest);
static UNAVAILABLE: FilterCode = FilterCode::new("admin.unavailable", 503, ErrorType::Unavailable);
static ROLE: FilterCode = FilterCode::new("admin.role", 403, ErrorType::Permission);

/// The inputs of the admin API.
pub struct ApiDeps {
    /// The store, for reads.
    pub store: Arc<dyn Store>,
    /// The settings in force. Their database is opened for reads that take long, and for what other gateways of it have.
    pub settings: Arc<dyn RunningSettings>,
    /// The clock.
    pub clock: Clock,
    /// For ids of requests.
    pub entropy: Entropy,
}

/// The admin API.
pub(super) struct Api {
    pub(super) deps: ApiDeps,
    pub(super) service: Arc<dyn Changes>,
    pub(super) access: Arc<Access>,
    endpoints: Vec<Endpoint>,
    /// One audit at a time.
    audits: Arc<Semaphore>,
    /// The checks of `doctor`, once at a time.
    doctors: Arc<Semaphore>,
}

/// A request whose token allows it.
struct Call<'r> {
    /// The values of the path's names.
    names: Vec<&'r str>,
    query: Vec<(String, String)>,
    headers: &'r HeaderMap,
    body: Bytes,
    caller: Caller,
}

impl Api {
    pub(super) fn new(deps: ApiDeps, service: Arc<dyn Changes>, access: Arc<Access>) -> Api {
        Api {
            deps,
            service,
            access,
            endpoints: endpoints(),
            audits: Arc::new(Semaphore::new(1)),
            doctors: Arc::new(Semaphore::new(1)),
        }
    }

    /// Whether a path is one of the admin API.
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
        let now = self.deps.clock.now();
        let id = OperationId::generate(now, &self.deps.entropy).to_string();
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
        let found: Vec<(&Endpoint, Vec<&str>)> = self
            .endpoints
            .iter()
            .filter_map(|endpoint| Some((endpoint, endpoint.matches(path)?)))
            .collect();
        if found.is_empty() {
            let message = format!("There is nothing at this address; see {BASE}/openapi.json.");
            return Err(ApiError::new(ErrorCode::NotFound, message));
        }
        let allowed: Vec<&str> = found.iter().map(|(one, _)| one.method.as_str()).collect();
        let allowed = allowed.join(", ");
        let Some((endpoint, names)) = found.into_iter().find(|(one, _)| one.method == method)
        else {
            let value = HeaderValue::try_from(&allowed).expect("methods are visible ASCII");
            let message = format!("This address allows {allowed}.");
            let error = ApiError::new(ErrorCode::MethodNotAllowed, message);
            return Err(error.header(header::ALLOW, value));
        };
        if token.role < endpoint.role {
            let (has, needs) = (token.role.word(), endpoint.role.word());
            let message = format!("The token has the role `{has}`, and this needs `{needs}`.");
            return Err(ApiError::new(ErrorCode::OfFilter(&ROLE), message));
        }
        let query = query(endpoint, parts.uri.query().unwrap_or_default())?;
        let body = match endpoint.body {
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
        self.operate(endpoint, call).await
    }
}

/// The parameters of a query; unknown ones and repetitions are refused.
fn query(endpoint: &Endpoint, text: &str) -> Result<Vec<(String, String)>, ApiError> {
    let mut query: Vec<(String, String)> = Vec::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        let is_known = endpoint.query.iter().any(|(known, _)| *known == name);
        if !is_known || query.iter().any(|(before, _)| *before == name) {
            let message = match is_known {
                true => format!("The parameter `{name}` occurs twice."),
                false => format!("This address has no parameter `{name}`."),
            };
            return Err(invalid(message).param(name));
        }
        query.push((name.into_owned(), value.into_owned()));
    }
    Ok(query)
}

async fn read_body(headers: &HeaderMap, body: Incoming) -> Result<Bytes, ApiError> {
    let media_type = headers.get(header::CONTENT_TYPE);
    let media_type = media_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let essence = media_type.split(';').next().unwrap_or("").trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let message = "The body has to be JSON: send `Content-Type: application/json`.";
        return Err(ApiError::new(ErrorCode::UnsupportedMediaType, message));
    }
    let collected = Limited::new(body, BODY_BYTES_MAX).collect();
    match tokio::time::timeout(BODY, collected).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let message = format!("The body is larger than {BODY_BYTES_MAX} bytes.");
            Err(ApiError::new(ErrorCode::BodyTooLarge, message))
        }
        Ok(Err(_)) => {
            let message = "The body did not arrive whole.";
            Err(ApiError::new(ErrorCode::InvalidRequest, message))
        }
        Err(_) => {
            let message = "The body took too long to arrive.";
            Err(ApiError::new(ErrorCode::RequestTimeout, message).closing())
        }
    }
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    let mut text = serde_json::to_vec(value).expect("an answer is plain data");
    text.push(b'\n');
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::OfFilter(&INVALID), message.into())
}

impl From<ChangeError> for ApiError {
    fn from(error: ChangeError) -> ApiError {
        let code = match error.kind {
            ChangeErrorKind::Invalid => &INVALID,
            ChangeErrorKind::NotFound => &UNKNOWN,
            ChangeErrorKind::Conflict => &CONFLICT,
            ChangeErrorKind::Unavailable => &UNAVAILABLE,
        };
        ApiError::new(ErrorCode::OfFilter(code), error.message)
    }
}

impl Call<'_> {
    /// The body as a message.
    fn message<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let message = format!("The body is not what this address takes: {error}.");
            ApiError::new(ErrorCode::InvalidJson, message)
        })
    }

    /// A parameter of the query.
    fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The only name of the path.
    fn name(&self) -> &str {
        self.names.first().copied().unwrap_or_default()
    }

    /// The `Idempotency-Key`: 1 to 255 characters, with spaces between them.
    fn idempotency_key(&self) -> Result<String, ApiError> {
        let mut fields = self.headers.get_all("idempotency-key").iter();
        let (Some(field), None) = (fields.next(), fields.next()) else {
            let message = "Send one `Idempotency-Key`: the reference of the booking, such as an invoice number.";
            return Err(ApiError::new(ErrorCode::InvalidHeader, message));
        };
        let key = field.to_str().unwrap_or_default();
        let is_good = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        if key.is_empty() || key.len() > 255 || !key.bytes().all(is_good) {
            let message =
                "`Idempotency-Key` has to be 1 to 255 visible ASCII characters and spaces.";
            return Err(ApiError::new(ErrorCode::InvalidHeader, message));
        }
        Ok(key.to_owned())
    }
}
