//! Failures of the cache. The exchange goes on without it.

use tollgate_filter::{ApiError, ErrorCode, FilterError};
use tollgate_openai::KeepError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheError {
    #[error("no {what} on the exchange; put `auth` and `completions` before `cache` in the chain")]
    Missing { what: &'static str },
    #[error("replaying a stored answer failed")]
    Entry(#[source] KeepError),
}

impl From<CacheError> for FilterError {
    fn from(error: CacheError) -> FilterError {
        // Never sent: the request goes on to the provider.
        let answer = ApiError::new(
            ErrorCode::InternalError,
            "The completion cache failed. Try again.",
        );
        FilterError::new(answer, error)
    }
}
