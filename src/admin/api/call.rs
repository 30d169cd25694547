//! A request of the admin API, and the forms of answers and errors.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate_filter::{ApiError, ErrorCode, ErrorType, FilterCode};
use tollgate_money::AccountId;

use super::route::Route;
use crate::admin::changes::{Caller, ChangeError, ChangeErrorKind};

/// Maximum size of a body in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Time for a body to arrive.
const BODY: Duration = Duration::from_secs(10);

/// Elements of a page by default, and at most.
const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// The parameter for the number of elements of a page.
pub(in crate::admin) const LIMIT: (&str, &str) = (
    "limit",
    "Maximum number of elements, 1 to 1000; 100 by default.",
);

static INVALID: FilterCode = FilterCode::new("admin.invalid", 400, ErrorType::InvalidRequest);
static UNKNOWN: FilterCode = FilterCode::new("admin.not_found", 404, ErrorType::InvalidRequest);
static CONFLICT: FilterCode = FilterCode::new("admin.conflict", 409, ErrorType::InvalidRequest);
static UNAVAILABLE: FilterCode = FilterCode::new("admin.unavailable", 503, ErrorType::Unavailable);
pub(super) static ROLE: FilterCode = FilterCode::new("admin.role", 403, ErrorType::Permission);

/// An authorized request.
pub(in crate::admin) struct Call<'r> {
    /// The values of the path's names.
    pub(super) names: Vec<&'r str>,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: &'r HeaderMap,
    pub(super) body: Bytes,
    pub(super) caller: Caller,
}

/// The parameters of a query. Unknown and repeated parameters are refused.
pub(super) fn query(route: &Route, text: &str) -> Result<Vec<(String, String)>, ApiError> {
    let mut query: Vec<(String, String)> = Vec::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        let is_known = route.query.iter().any(|(known, _)| *known == name);
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

pub(super) async fn read_body(headers: &HeaderMap, body: Incoming) -> Result<Bytes, ApiError> {
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

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
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

pub(in crate::admin) fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::OfFilter(&INVALID), message.into())
}

/// The error of a request with an unknown subject.
pub(in crate::admin) fn unknown(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::OfFilter(&UNKNOWN), message.into())
}

pub(in crate::admin) fn no_account(id: AccountId) -> ApiError {
    unknown(format!("There is no account `{id}`."))
}

/// The error of an invalid cursor.
pub(in crate::admin) fn cursor(name: &'static str) -> ApiError {
    invalid(format!("`{name}` is not the `next` of a page.")).param(name)
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
    pub(in crate::admin) fn message<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let message = format!("The body is not what this address takes: {error}.");
            ApiError::new(ErrorCode::InvalidJson, message)
        })
    }

    /// A parameter of the query.
    pub(in crate::admin) fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The number of elements of a page.
    pub(in crate::admin) fn limit(&self) -> Result<usize, ApiError> {
        let Some(text) = self.parameter("limit") else {
            return Ok(LIMIT_DEFAULT);
        };
        let limit = text.parse().ok();
        let limit = limit.filter(|limit| (1..=LIMIT_MAX).contains(limit));
        limit.ok_or_else(|| invalid(format!("`limit` is 1 to {LIMIT_MAX}.")).param("limit"))
    }

    /// The only name of the path.
    pub(in crate::admin) fn name(&self) -> &str {
        self.names.first().copied().unwrap_or_default()
    }

    /// The `Idempotency-Key`: 1 to 255 visible ASCII characters and spaces.
    pub(in crate::admin) fn idempotency_key(&self) -> Result<String, ApiError> {
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
