//! Failures of the cache (fail open): the exchange continues without the cache.

use tollgate_filter::{ApiError, ErrorCode, FilterError};
use tollgate_openai::StoredError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheError {
    #[error("no {what} on the exchange; put `auth` and `completions` before `cache` in the chain")]
    Missing { what: &'static str },
    #[error("replaying a stored answer failed")]
    Entry(#[source] StoredError),
}

impl From<CacheError> for FilterError {
    fn from(error: CacheError) -> FilterError {
        // Never sent: the request continues to the provider.
        let answer = ApiError::new(
            ErrorCode::InternalError,
            "The completion cache failed. Try again.",
        );
        FilterError::new(answer, error)
    }
}
