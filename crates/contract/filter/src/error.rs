//! Client errors: codes, statuses and the error body.
//!
//! The table [`CODES`] holds every code with its status and type. Responses and the documentation are built from the table.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_money::Micros;

use crate::FilterCode;
use crate::settings::Words;

/// Above this wait the response says not to retry automatically: a client library that obeys `Retry-After` without a maximum would hang.
const RETRY_WAIT_MAX: Duration = Duration::from_secs(60);

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal, $status:literal, $kind:ident;)*) => {
        /// The machine-readable cause of an error (`error.code`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($(#[doc = $doc])* $name,)*
            /// A code of a filter of another program.
            OfFilter(&'static FilterCode),
        }

        /// Every code of the gateway, in the order of the documentation.
        pub const CODES: &[ErrorCode] = &[$(ErrorCode::$name,)*];

        impl ErrorCode {
            /// The name on the wire.
            pub fn word(self) -> &'static str {
                match self { $(ErrorCode::$name => $word,)* ErrorCode::OfFilter(code) => code.word }
            }

            /// The HTTP status of the code.
            pub fn status(self) -> StatusCode {
                let status: u16 = match self {
                    $(ErrorCode::$name => $status,)*
                    ErrorCode::OfFilter(code) => code.status,
                };
                StatusCode::from_u16(status).expect("the table holds statuses")
            }

            /// The code's meaning, as a sentence for the documentation.
            pub fn means(self) -> &'static str {
                let means = match self {
                    $(ErrorCode::$name => concat!($($doc),*),)*
                    ErrorCode::OfFilter(_) => "A filter of this installation refuses the request.",
                };
                means.trim_ascii()
            }

            /// The code's category (`error.type`).
            pub fn kind(self) -> ErrorType {
                match self {
                    $(ErrorCode::$name => ErrorType::$kind,)*
                    ErrorCode::OfFilter(code) => code.kind,
                }
            }
        }
    };
}

codes! {
    /// The body is not a JSON object, or is ambiguous.
    InvalidJson = "invalid_json", 400, InvalidRequest;
    /// A required member is missing.
    MissingField = "missing_field", 400, InvalidRequest;
    /// A member has the wrong type.
    InvalidType = "invalid_type", 400, InvalidRequest;
    /// A member's value is outside its range.
    OutOfRange = "out_of_range", 400, InvalidRequest;
    /// A member that the body must not have: in a closed body, one that is not listed.
    UnknownField = "unknown_field", 400, InvalidRequest;
    /// The model is unknown, or this credential may not use it.
    ModelNotSupported = "model_not_supported", 400, InvalidRequest;
    /// A header field cannot be understood.
    InvalidHeader = "invalid_header", 400, InvalidRequest;
    /// The request's framing or head is broken.
    InvalidRequest = "invalid_request", 400, InvalidRequest;
    /// The payment method is not the offered one.
    MethodUnsupported = "method-unsupported", 400, InvalidRequest;
    /// The model provider refused the request's content.
    UpstreamRejected = "upstream_rejected", 400, InvalidRequest;
    /// The request is longer than the model's context.
    ContextLengthExceeded = "context_length_exceeded", 400, InvalidRequest;
    /// The model provider's filter refused the content.
    ContentFilter = "content_filter", 400, InvalidRequest;
    /// The model does not support a member of the request.
    UnsupportedParameter = "unsupported_parameter", 400, InvalidRequest;
    /// The model does not support a member's value.
    UnsupportedValue = "unsupported_value", 400, InvalidRequest;
    /// `UCP-Agent` is missing, or does not name the profile of a platform.
    InvalidProfileUrl = "invalid_profile_url", 400, InvalidRequest;
    /// `Content-Digest` is not that of the body.
    DigestMismatch = "digest_mismatch", 400, InvalidRequest;
    /// The signature algorithm of the request is not supported.
    AlgorithmUnsupported = "algorithm_unsupported", 400, InvalidRequest;
    /// The authorization code or refresh token is invalid, expired or revoked (RFC 6749 section 5.2).
    InvalidGrant = "invalid_grant", 400, InvalidRequest;
    /// The resource is unknown, or not the one that was granted (RFC 8707 section 2).
    InvalidTarget = "invalid_target", 400, InvalidRequest;
    /// The scope exceeds the granted one (RFC 6749 section 5.2).
    InvalidScope = "invalid_scope", 400, InvalidRequest;
    /// The grant type is not supported (RFC 6749 section 5.2).
    UnsupportedGrantType = "unsupported_grant_type", 400, InvalidRequest;
    /// A redirect URI cannot be registered (RFC 7591 section 3.2.2).
    InvalidRedirectUri = "invalid_redirect_uri", 400, InvalidRequest;
    /// Other client metadata cannot be registered (RFC 7591 section 3.2.2).
    InvalidClientMetadata = "invalid_client_metadata", 400, InvalidRequest;
    /// The OAuth client is not registered, or uses an unsupported authentication method (RFC 6749 section 5.2).
    InvalidClient = "invalid_client", 401, Authentication;
    /// The request requires a signature and has none.
    SignatureMissing = "signature_missing", 401, Authentication;
    /// The signature does not match the request.
    SignatureInvalid = "signature_invalid", 401, Authentication;
    /// The key of the request's signature is unknown.
    KeyNotFound = "key_not_found", 401, Authentication;
    /// No credential was sent.
    MissingCredential = "missing_credential", 401, Authentication;
    /// The credential is malformed, unknown, expired or revoked.
    InvalidCredential = "invalid_credential", 401, Authentication;
    /// The credential belongs to another resource.
    WrongResource = "wrong_resource", 401, Authentication;
    /// The account cannot pay for the request.
    InsufficientCredits = "insufficient_credits", 402, InsufficientCredits;
    /// Payment is required; the response contains the offer.
    PaymentRequired = "payment-required", 402, PaymentRequired;
    /// The payment credential cannot be parsed.
    MalformedCredential = "malformed-credential", 402, PaymentRequired;
    /// The challenge was not issued here, was issued for another account, or was used.
    InvalidChallenge = "invalid-challenge", 402, PaymentRequired;
    /// The payment does not match the offer.
    InvalidPayload = "invalid-payload", 402, PaymentRequired;
    /// The challenge has expired.
    PaymentExpired = "payment-expired", 402, PaymentRequired;
    /// The payment requires an action of the account's owner, or is not complete yet.
    PaymentActionRequired = "payment-action-required", 402, PaymentRequired;
    /// The payment was verified and is invalid.
    VerificationFailed = "verification-failed", 402, PaymentRequired;
    /// The token lacks a scope.
    InsufficientScope = "insufficient_scope", 403, Permission;
    /// The key is not permitted to do this.
    KeyNotPermitted = "key_not_permitted", 403, Permission;
    /// The spending cap of the key is reached, independent of the account's balance.
    KeySpendingCap = "key_spending_cap", 403, Permission;
    /// The platform is not trusted by this service.
    ProfileNotTrusted = "profile_not_trusted", 403, Permission;
    /// The connection does not have the required transport security.
    InsecureConnection = "insecure_connection", 403, Permission;
    /// Pages of this origin may not call this address.
    OriginNotAllowed = "origin_not_allowed", 403, Permission;
    /// The account is suspended.
    AccountSuspended = "account_suspended", 403, Permission;
    /// The session, of a checkout or at an MCP server, has ended, or belongs to another account.
    SessionGone = "session_gone", 404, InvalidRequest;
    /// No route matches this address.
    NotFound = "not_found", 404, InvalidRequest;
    /// The address does not support this method.
    MethodNotAllowed = "method_not_allowed", 405, InvalidRequest;
    /// The request took too long to arrive.
    RequestTimeout = "request_timeout", 408, InvalidRequest;
    /// The idempotency key was used with another body.
    IdempotencyConflict = "idempotency_conflict", 409, InvalidRequest;
    /// The object has reached a final state and cannot be changed.
    NotModifiable = "not_modifiable", 409, InvalidRequest;
    /// A request with the same key is still in progress.
    InProgress = "in_progress", 409, InvalidRequest;
    /// The payment was used by another account.
    PaymentAlreadyUsed = "payment_already_used", 409, InvalidRequest;
    /// The body is larger than the address accepts.
    BodyTooLarge = "body_too_large", 413, InvalidRequest;
    /// The target is longer than the gateway accepts.
    UriTooLong = "uri_too_long", 414, InvalidRequest;
    /// The body's media type or encoding is not accepted.
    UnsupportedMediaType = "unsupported_media_type", 415, InvalidRequest;
    /// An `Expect` other than `100-continue`.
    ExpectationFailed = "expectation_failed", 417, InvalidRequest;
    /// The platform's profile is malformed.
    ProfileMalformed = "profile_malformed", 422, InvalidRequest;
    /// The protocol version is not supported.
    VersionUnsupported = "version_unsupported", 422, InvalidRequest;
    /// The platform's profile could not be fetched.
    ProfileUnreachable = "profile_unreachable", 424, InvalidRequest;
    /// The head has too many fields or bytes.
    HeadTooLarge = "head_too_large", 431, InvalidRequest;
    /// A quota is exhausted.
    RateLimitExceeded = "rate_limit_exceeded", 429, RateLimit;
    /// Too many concurrent requests.
    ConcurrencyExceeded = "concurrency_exceeded", 429, RateLimit;
    /// An internal error of the gateway.
    InternalError = "internal_error", 500, Server;
    /// No address supports this method.
    NotImplemented = "not_implemented", 501, Server;
    /// The model provider, or the server behind the address, cannot be reached.
    UpstreamUnreachable = "upstream_unreachable", 502, Upstream;
    /// The model provider, or the server behind the address, failed.
    UpstreamError = "upstream_error", 502, Upstream;
    /// The model provider's response is not a completion, or the response of the server behind the address is not HTTP.
    UpstreamInvalid = "upstream_invalid", 502, Upstream;
    /// The model provider, or the server behind the address, took too long.
    UpstreamTimeout = "upstream_timeout", 504, Upstream;
    /// No MCP server is configured for this address.
    McpUnavailable = "mcp_unavailable", 503, Unavailable;
    /// Payment by this route is currently unavailable, or the outcome of an earlier payment is not yet known.
    PaymentRouteUnavailable = "payment_route_unavailable", 503, Unavailable;
    /// The gateway cannot write to its store.
    StoreUnavailable = "store_unavailable", 503, Unavailable;
    /// The account's credit is spread over several nodes of the gateway, and one of them has not answered yet.
    CreditUnavailable = "credit_unavailable", 503, Unavailable;
    /// The gateway is overloaded.
    Overloaded = "overloaded", 503, Unavailable;
    /// The gateway is shutting down.
    Draining = "draining", 503, Unavailable;
}

/// The category of an error (`error.type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorType {
    /// 400 and similar: change the request.
    InvalidRequest,
    /// 401: change the credential.
    Authentication,
    /// 402: add credits.
    InsufficientCredits,
    /// 402 where something is sold: pay as the response says.
    PaymentRequired,
    /// 403: request the permission.
    Permission,
    /// 429: wait.
    RateLimit,
    /// 500: contact the operator.
    Server,
    /// 502, 504: a failure of the model provider.
    Upstream,
    /// 503: retry later.
    Unavailable,
}

impl ErrorType {
    /// The name on the wire.
    pub fn word(self) -> &'static str {
        match self {
            ErrorType::InvalidRequest => "invalid_request_error",
            ErrorType::Authentication => "authentication_error",
            ErrorType::InsufficientCredits => "insufficient_credits_error",
            ErrorType::PaymentRequired => "payment_required_error",
            ErrorType::Permission => "permission_error",
            ErrorType::RateLimit => "rate_limit_error",
            ErrorType::Server => "server_error",
            ErrorType::Upstream => "upstream_error",
            ErrorType::Unavailable => "unavailable_error",
        }
    }
}

/// The error format of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorShape {
    /// `{"error":{"message","type","param","code"}}`
    #[default]
    Envelope,
    /// `{"error","error_description"}` (RFC 6749 section 5.2)
    OAuth,
    /// The envelope, with additional `code` and `content`, and with `messages` where a credential is required. Read by platforms of the
    /// Universal Commerce Protocol (version 2026-04-08, Overview, "Error Handling").
    Ucp,
    /// A page, rendered by the [`crate::ErrorPage`] on the exchange; the envelope without an `ErrorPage`.
    Page,
}

impl Words for ErrorShape {
    const WORDS: &'static [(&'static str, ErrorShape)] = &[
        ("envelope", ErrorShape::Envelope),
        ("oauth", ErrorShape::OAuth),
        ("page", ErrorShape::Page),
        ("ucp", ErrorShape::Ucp),
    ];
}

/// Retry delay of a request that finds no memory: most requests end within this delay.
const MEMORY_WAIT: Duration = Duration::from_secs(5);

/// A refusal or failure, before it is written in the route's format.
#[derive(Clone, Debug)]
pub struct ApiError {
    /// The cause.
    pub code: ErrorCode,
    /// How to correct the request. Never an internal message.
    pub message: Cow<'static, str>,
    /// The path of the invalid member: `messages[2].role`.
    pub param: Option<String>,
    /// How long to wait before a retry.
    pub retry_after: Option<Duration>,
    /// On a 402: the credits required and available.
    pub credits: Option<Box<Credits>>,
    /// Further fields, such as `WWW-Authenticate` and `Allow`.
    pub headers: Option<Box<HeaderMap>>,
    /// On a 429 of a limit other than the account's quotas: the limit's name in the rate limit fields.
    pub limit: Option<&'static str>,
    /// Whether the connection is closed after the response.
    pub close: bool,
}

/// The credits required and available, and where to add more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credits {
    /// The size of the hold; `None` where the price of the request is not known yet.
    pub required: Option<Micros>,
    /// The available balance.
    pub available: Micros,
    /// The URL for adding credits.
    pub topup_url: Arc<str>,
}

impl ApiError {
    /// An error with a message for the client's developer.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError {
            code,
            message: message.into(),
            param: None,
            retry_after: None,
            credits: None,
            headers: None,
            limit: None,
            close: false,
        }
    }

    /// A refusal for lack of memory. `what` is a sentence about the bytes that do not fit.
    pub fn no_memory(what: &str) -> ApiError {
        let remedy = "Send fewer requests at once, or shorter ones; try again in a few seconds.";
        ApiError::new(ErrorCode::Overloaded, format!("{what} {remedy}")).retry_after(MEMORY_WAIT)
    }

    /// Names the limit that refused the request. The limit's state replaces the account's quotas in the rate limit fields.
    #[must_use]
    pub fn limit(mut self, name: &'static str) -> ApiError {
        self.limit = Some(name);
        self
    }

    /// Names the invalid member.
    #[must_use]
    pub fn param(mut self, param: impl Into<String>) -> ApiError {
        self.param = Some(param.into());
        self
    }

    /// Sets how long to wait.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> ApiError {
        self.retry_after = Some(wait);
        self
    }

    /// Sets the credits required and available, and where to add more.
    #[must_use]
    pub fn credits(mut self, credits: Credits) -> ApiError {
        self.credits = Some(Box::new(credits));
        self
    }

    /// Adds a field to the response.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> ApiError {
        self.headers.get_or_insert_default().append(name, value);
        self
    }

    /// Closes the connection after the response, for a request whose remainder is not read.
    #[must_use]
    pub fn closing(mut self) -> ApiError {
        self.close = true;
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// Adds the error's fields to the response's fields.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(extra) = &self.headers {
            for (name, value) in extra.iter() {
                headers.append(name, value.clone());
            }
        }
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        let long = self.retry_after.is_some_and(|wait| wait > RETRY_WAIT_MAX);
        let stated = match self.code {
            _ if long => Some(false),
            ErrorCode::IdempotencyConflict | ErrorCode::InsufficientCredits => Some(false),
            ErrorCode::OfFilter(code) => code.should_retry,
            _ => None,
        };
        if let Some(should_retry) = stated {
            headers.insert(
                HeaderName::from_static("x-should-retry"),
                HeaderValue::from_static(if should_retry { "true" } else { "false" }),
            );
        }
    }

    /// Replaces the rate limit fields with the state of the refusing limit, if the refusing limit is not an account quota.
    ///
    /// Only the wait of such a limit is known: its policy reads as one request per wait.
    pub fn write_limit(&self, headers: &mut HeaderMap) {
        let Some(name) = self.limit else {
            return;
        };
        let wait = whole_seconds(self.retry_after.unwrap_or_default()).max(1);
        for (field, value) in [
            ("ratelimit-policy", format!("\"{name}\";q=1;w={wait}")),
            ("ratelimit", format!("\"{name}\";r=0;t={wait}")),
            ("ratelimit-limit", String::from("1")),
            ("ratelimit-remaining", String::from("0")),
            ("ratelimit-reset", wait.to_string()),
            ("retry-after", wait.to_string()),
        ] {
            let value = HeaderValue::try_from(value).expect("a word and numbers are visible ASCII");
            headers.insert(HeaderName::from_static(field), value);
        }
    }

    /// The body, in a route's error format.
    pub fn body(&self, shape: ErrorShape) -> Bytes {
        match shape {
            ErrorShape::Envelope | ErrorShape::Page => {
                let envelope = Envelope {
                    error: self.members(),
                };
                Bytes::from(serde_json::to_vec(&envelope).expect("strings and numbers serialise"))
            }
            ErrorShape::Ucp => {
                let body = UcpError {
                    error: self.members(),
                    code: self.code.word(),
                    content: &self.message,
                    messages: self.ucp_word().map(|code| {
                        [UcpMessage {
                            kind: "error",
                            code,
                            content: &self.message,
                            severity: "recoverable",
                        }]
                    }),
                };
                Bytes::from(serde_json::to_vec(&body).expect("strings and numbers serialise"))
            }
            ErrorShape::OAuth => {
                let error = OAuthError {
                    error: self.oauth_word(),
                    error_description: oauth_text(&self.message),
                };
                Bytes::from(serde_json::to_vec(&error).expect("strings serialise"))
            }
        }
    }

    /// The error code for OAuth clients, which know the codes of RFC 6749 section 5.2 and related RFCs.
    fn oauth_word(&self) -> &'static str {
        match self.code {
            ErrorCode::InvalidGrant
            | ErrorCode::InvalidTarget
            | ErrorCode::InvalidScope
            | ErrorCode::UnsupportedGrantType
            | ErrorCode::InvalidRedirectUri
            | ErrorCode::InvalidClientMetadata
            | ErrorCode::InvalidClient
            | ErrorCode::NotFound => self.code.word(),
            code => match code.kind() {
                ErrorType::RateLimit | ErrorType::Unavailable => "temporarily_unavailable",
                ErrorType::Server | ErrorType::Upstream => "server_error",
                _ => "invalid_request",
            },
        }
    }

    /// The error code for platforms where a credential is required (UCP 2026-04-08, Identity Linking).
    fn ucp_word(&self) -> Option<&'static str> {
        match self.code {
            ErrorCode::InsufficientScope | ErrorCode::KeyNotPermitted => Some("insufficient_scope"),
            ErrorCode::MissingCredential
            | ErrorCode::InvalidCredential
            | ErrorCode::WrongResource => Some("identity_required"),
            _ => None,
        }
    }

    fn members(&self) -> Members<'_> {
        let credits = self.credits.as_deref();
        Members {
            message: &self.message,
            kind: self.code.kind().word(),
            param: self.param.as_deref(),
            code: self.code.word(),
            required: credits.and_then(|credits| credits.required.map(number)),
            available: credits.map(|credits| number(credits.available)),
            topup_url: credits.map(|credits| &*credits.topup_url),
        }
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Members<'a>,
}

#[derive(Serialize)]
struct UcpError<'a> {
    error: Members<'a>,
    code: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<[UcpMessage<'a>; 1]>,
}

#[derive(Serialize)]
struct UcpMessage<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    code: &'static str,
    content: &'a str,
    severity: &'static str,
}

#[derive(Serialize)]
struct OAuthError {
    error: &'static str,
    error_description: String,
}

/// A description as OAuth permits it: visible ASCII and spaces, without quotes and backslashes (RFC 6749 section 5.2).
fn oauth_text(message: &str) -> String {
    let permitted = |character: char| match character {
        '"' | '`' => '\'',
        '\\' => '/',
        ' '..='~' => character,
        _ => '?',
    };
    message.chars().map(permitted).collect()
}

#[derive(Serialize)]
struct Members<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    required: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topup_url: Option<&'a str>,
}

/// An amount as a JSON number of credits, exact: the decimal text itself, never a binary float.
fn number(amount: Micros) -> Box<RawValue> {
    RawValue::from_string(amount.to_string()).expect("a decimal text is a JSON number")
}

/// A wait in whole seconds, rounded up. Rounding down would invite a retry that is refused again (RFC 9110 section 10.2.3).
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_nanos()
        .div_ceil(1_000_000_000)
        .try_into()
        .unwrap_or(u64::MAX)
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.word(), self.message)
    }
}

#[cfg(test)]
mod tests;
