//! Error responses for store failures.

use std::time::Duration;

use tollgate_filter::{ApiError, ErrorCode, FilterError, Outcome};
use tollgate_store::{CommitError, ReadError};

/// `Retry-After` of these responses.
const RETRY: Duration = Duration::from_secs(1);

/// 503; no code or token was consumed.
pub(crate) fn unavailable() -> ApiError {
    ApiError::new(
        ErrorCode::StoreUnavailable,
        "The service cannot write at the moment. No code or token was consumed; try again in a second.",
    )
    .retry_after(RETRY)
}

pub(crate) fn read_failed(error: ReadError) -> FilterError {
    FilterError::new(unavailable(), error)
}

/// A failed commit: overload is a plain 503, other errors are logged too.
pub(crate) fn commit_failed(error: CommitError) -> Result<Outcome, FilterError> {
    match error {
        CommitError::Overloaded { .. } | CommitError::CutOff => Ok(Outcome::refuse(unavailable())),
        error => Err(FilterError::new(unavailable(), error)),
    }
}
