//! Refusals for a key in use, and failures to claim a key.

use std::time::Duration;

use tollgate_filter::{ApiError, ErrorCode, FilterError};
use tollgate_store::{CommitError, KeyQuota, ReadError};

use crate::IdempotencySettings;

/// Retry delay of a request whose account has too many keys: under a steady load some keys expire in any minute.
const LIMIT_WAIT: Duration = Duration::from_secs(60);

/// Why the filter cannot decide.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error(
        "no {what} on the exchange; put `auth` and `completions` before `idempotency` in the chain"
    )]
    Missing { what: &'static str },
    #[error("claiming the idempotency key failed")]
    Claim(#[source] CommitError),
    #[error("storing the answer failed")]
    Keep(#[source] CommitError),
    #[error("reading the stored answer failed")]
    Read(#[source] ReadError),
    #[error("the stored answer has an unknown format; another version wrote it")]
    Unreadable,
}

impl From<KeyError> for FilterError {
    fn from(error: KeyError) -> FilterError {
        let answer = match error {
            KeyError::Claim(_) | KeyError::Keep(_) | KeyError::Read(_) => ApiError::new(
                ErrorCode::StoreUnavailable,
                "The Idempotency-Key cannot be looked up: the store is unavailable. Try again later.",
            ),
            _ => ApiError::new(
                ErrorCode::InternalError,
                "Looking up the Idempotency-Key failed. Try again later.",
            ),
        };
        FilterError::new(answer, error)
    }
}

/// The header field is malformed.
pub(crate) fn bad_key() -> ApiError {
    ApiError::new(
        ErrorCode::InvalidHeader,
        "Send Idempotency-Key once, with 1 to 255 visible ASCII characters and spaces; a UUID is recommended.",
    )
    .param("Idempotency-Key")
}

/// The key was used with another body.
pub(crate) fn other_request() -> ApiError {
    ApiError::new(
        ErrorCode::IdempotencyConflict,
        "This Idempotency-Key was sent with another body. Use a new key for a new request.",
    )
    .param("Idempotency-Key")
}

/// The request was answered and charged, but the answer was too large to be stored.
pub(crate) fn not_kept() -> ApiError {
    ApiError::new(
        ErrorCode::IdempotencyConflict,
        "The request with this Idempotency-Key was answered and charged, but the answer was too large to be stored. Use a new key \
         to request, and pay for, it again.",
    )
    .param("Idempotency-Key")
}

/// An equal request is under way.
pub(crate) fn under_way() -> ApiError {
    ApiError::new(
        ErrorCode::InProgress,
        "The request with this Idempotency-Key is in progress. Send it again in a second to get its answer.",
    )
    .param("Idempotency-Key")
    .retry_after(Duration::from_secs(1))
}

/// The account has the maximum of keys, or of bytes of recorded answers.
pub(crate) fn too_many_keys(quota: KeyQuota, settings: &IdempotencySettings) -> ApiError {
    let limit = match quota {
        KeyQuota::Keys => format!("{} idempotency keys", settings.limits.keys),
        KeyQuota::Bytes => format!("{} bytes of recorded answers", settings.limits.bytes),
    };
    let hours = settings.keep.as_secs().div_ceil(3600);
    let message = format!(
        "The account has {limit}, which is as much as it may have. Each is kept for {hours} hours: wait for the oldest to expire, or send the \
         request without Idempotency-Key."
    );
    ApiError::new(ErrorCode::RateLimitExceeded, message)
        .param("Idempotency-Key")
        .retry_after(LIMIT_WAIT)
}

/// The database does not answer.
pub(crate) fn cut_off() -> ApiError {
    ApiError::new(
        ErrorCode::StoreUnavailable,
        "The gateway accepts no new requests at the moment: its database does not answer. Try again in a few seconds.",
    )
    .retry_after(Duration::from_secs(5))
}

/// The commit queue is full.
pub(crate) fn overloaded() -> ApiError {
    ApiError::new(
        ErrorCode::Overloaded,
        "The gateway accepts no new requests at the moment: its commit queue is full, or its disk is nearly full. Try again in a second.",
    )
    .retry_after(Duration::from_secs(1))
}
