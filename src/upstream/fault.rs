//! What a provider's failure means for the client and for the operator.

use std::time::Duration;

use http::StatusCode;
use tollgate_chain::UpstreamError;
use tollgate_filter::UpstreamFault;
use tollgate_openai::provider_error::ProviderError;

/// The wait told to a client when a provider that limits us names none, and the longest one passed on.
const BUSY_WAIT: Duration = Duration::from_secs(5);
const BUSY_WAIT_MAX: Duration = Duration::from_secs(60);

/// An answer other than 200.
pub(super) fn of_status(
    status: StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
) -> UpstreamError {
    let said = ProviderError::read(body).message.unwrap_or_default();
    let detail = format!("answered {status}: {said}");
    let (fault, message) = match status.as_u16() {
        // About the request itself: the provider's words help the client.
        400 | 413 | 422 => (UpstreamFault::BadRequest, said),
        // Our key or our name of the model is wrong, which the client can do nothing about.
        401 | 403 | 404 => {
            return UpstreamError::new(
                UpstreamFault::Error,
                "",
                format!("{detail}; check the provider's key, address and model name"),
            );
        }
        408 | 504 => (UpstreamFault::Timeout, String::new()),
        429 => {
            let mut error = UpstreamError::new(UpstreamFault::RateLimited, "", detail);
            let wait = retry_after.unwrap_or(BUSY_WAIT).min(BUSY_WAIT_MAX);
            error.answer.retry_after = Some(wait.max(Duration::from_secs(1)));
            return error;
        }
        500..=599 => (UpstreamFault::Error, String::new()),
        _ => (UpstreamFault::Invalid, String::new()),
    };
    UpstreamError::new(fault, message, detail)
}

/// No connection.
pub(super) fn unreachable(detail: impl std::fmt::Display) -> UpstreamError {
    UpstreamError::new(
        UpstreamFault::Unreachable,
        "",
        format!("cannot connect: {detail}"),
    )
}

/// A time limit passed.
pub(super) fn timeout(waiting_for: &str, limit: Duration) -> UpstreamError {
    let detail = format!("waited {limit:?} for {waiting_for}");
    UpstreamError::new(UpstreamFault::Timeout, "", detail)
}

/// The connection broke.
pub(super) fn cut(detail: impl std::fmt::Display) -> UpstreamError {
    UpstreamError::new(
        UpstreamFault::Cut,
        "",
        format!("connection broke: {detail}"),
    )
}

/// An event that is called an error.
pub(super) fn reported_by_name() -> UpstreamError {
    let detail = "the provider sent an event named `error`";
    UpstreamError::new(UpstreamFault::Error, "", detail)
}

/// The answer is no HTTP or no completion.
pub(super) fn invalid(detail: impl Into<String>) -> UpstreamError {
    UpstreamError::new(UpstreamFault::Invalid, "", detail)
}
