//! Why the cache cannot decide. The exchange goes on without it.

use tollgate_filter::{ApiError, ErrorCode, FilterError};
use tollgate_openai::KeepError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheError {
    #[error("no {what} stands on the exchange; put `auth` and `completions` before `cache`")]
    Missing { what: &'static str },
    #[error("an entry cannot be told as a stream")]
    Entry(#[source] KeepError),
}

impl From<CacheError> for FilterError {
    fn from(error: CacheError) -> FilterError {
        // Nobody is told: the request goes on to the provider.
        let answer = ApiError::new(
            ErrorCode::InternalError,
            "The cache could not be asked. Try again.",
        );
        FilterError::new(answer, error)
    }
}
