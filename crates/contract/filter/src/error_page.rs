//! The error page renderer of an exchange, for requests from browsers.

use std::fmt;
use std::sync::Arc;

use crate::{ApiError, Reply};

/// Renders an error as a page. Left on the exchange of a browser request; without an `ErrorPage` the error has the route's format.
#[derive(Clone)]
pub struct ErrorPage(Arc<Draw>);

/// Renders an error with the request's id.
type Draw = dyn Fn(&ApiError, &str) -> Reply + Send + Sync;

impl ErrorPage {
    /// A renderer that calls a function.
    pub fn new(draw: impl Fn(&ApiError, &str) -> Reply + Send + Sync + 'static) -> ErrorPage {
        ErrorPage(Arc::new(draw))
    }

    /// The page of an error; the status remains the error's.
    pub fn draw(&self, error: &ApiError, request: &str) -> Reply {
        (self.0)(error, request)
    }
}

impl fmt::Debug for ErrorPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ErrorPage")
    }
}
