//! What the client is told when a key is not free, or cannot be claimed.

use std::time::Duration;

use tollgate_filter::{ApiError, ErrorCode, FilterError};
use tollgate_store::{CommitError, ReadError};

/// Why the filter cannot decide.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("no {what} stands on the exchange; put `auth` and `completions` before `idempotency`")]
    Missing { what: &'static str },
    #[error("the key could not be claimed")]
    Claim(#[source] CommitError),
    #[error("the answer could not be kept")]
    Keep(#[source] CommitError),
    #[error("the answer could not be read")]
    Read(#[source] ReadError),
    #[error("the answer that was kept cannot be read; another version wrote it")]
    Unreadable,
    #[error("the thread that read the answer has ended")]
    Ended(#[source] tokio::task::JoinError),
}

impl From<KeyError> for FilterError {
    fn from(error: KeyError) -> FilterError {
        let answer = match error {
            KeyError::Claim(_) | KeyError::Keep(_) | KeyError::Read(_) => ApiError::new(
                ErrorCode::StoreUnavailable,
                "The gateway cannot look up the Idempotency-Key at the moment. Try again later.",
            ),
            _ => ApiError::new(
                ErrorCode::InternalError,
                "The Idempotency-Key could not be looked at. Try again later.",
            ),
        };
        FilterError::new(answer, error)
    }
}

/// The field is there and is no key.
pub(crate) fn bad_key() -> ApiError {
    ApiError::new(
        ErrorCode::InvalidHeader,
        "Idempotency-Key must stand once, with 1 to 255 visible ASCII characters; a UUID is best.",
    )
    .param("Idempotency-Key")
}

/// The key stands for a request with another body.
pub(crate) fn other_request() -> ApiError {
    ApiError::new(
        ErrorCode::IdempotencyConflict,
        "This Idempotency-Key was sent with another body. Use a new key for a new request.",
    )
    .param("Idempotency-Key")
}

/// The request was answered and charged, and its answer is not there any more.
pub(crate) fn not_kept() -> ApiError {
    ApiError::new(
        ErrorCode::IdempotencyConflict,
        "The request with this Idempotency-Key was answered and charged, but the answer was too large to be kept. Use a new key to \
         ask, and pay, again.",
    )
    .param("Idempotency-Key")
}

/// The same request is under way.
pub(crate) fn under_way() -> ApiError {
    ApiError::new(
        ErrorCode::InProgress,
        "The request with this Idempotency-Key is still under way. Send it again in a second to get its answer.",
    )
    .param("Idempotency-Key")
    .retry_after(Duration::from_secs(1))
}

/// Too much waits for the disk.
pub(crate) fn overloaded() -> ApiError {
    ApiError::new(
        ErrorCode::Overloaded,
        "The gateway has more work than it can write down. Try again in a second.",
    )
    .retry_after(Duration::from_secs(1))
}
