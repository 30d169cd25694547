//! What clients are told when the store cannot answer.

use std::time::Duration;

use tollgate_filter::{ApiError, ErrorCode, FilterError, Outcome};
use tollgate_store::{CommitError, ReadError};

/// How long to wait before another try.
const RETRY: Duration = Duration::from_secs(1);

/// 503, and nothing was used up.
pub(crate) fn unavailable() -> ApiError {
    ApiError::new(
        ErrorCode::StoreUnavailable,
        "The service cannot write at the moment. Nothing was used up; try again in a second.",
    )
    .retry_after(RETRY)
}

/// A read that failed.
pub(crate) fn read_failed(error: ReadError) -> FilterError {
    FilterError::new(unavailable(), error)
}

/// A change that failed: an overload is an ordinary refusal, everything else goes to the log as well.
pub(crate) fn commit_failed(error: CommitError) -> Result<Outcome, FilterError> {
    match error {
        CommitError::Overloaded { .. } => Ok(Outcome::refuse(unavailable())),
        error => Err(FilterError::new(unavailable(), error)),
    }
}
