//! Errors as pages, where people and not programs read them.

use std::fmt;
use std::sync::Arc;

use crate::{ApiError, Reply};

/// Makes a page of an error. Left on the exchange of a request that a person has made; without it the error has the route's shape.
#[derive(Clone)]
pub struct ErrorPage(Arc<Draw>);

/// Makes a page of an error and of the request's id.
type Draw = dyn Fn(&ApiError, &str) -> Reply + Send + Sync;

impl ErrorPage {
    /// Pages drawn by this function.
    pub fn new(draw: impl Fn(&ApiError, &str) -> Reply + Send + Sync + 'static) -> ErrorPage {
        ErrorPage(Arc::new(draw))
    }

    /// The page of an error; its status stays the error's.
    pub fn draw(&self, error: &ApiError, request: &str) -> Reply {
        (self.0)(error, request)
    }
}

impl fmt::Debug for ErrorPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ErrorPage")
    }
}
