//! Page errors and their error pages.

use std::error::Error;

use http::{HeaderValue, StatusCode, header};
use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::signin::{SendCodeError, VerifyCodeError};
use tollgate_pages::{Failure, PageRenderer, failure};
use tollgate_store::{CommitError, ReadError, Refusal};

/// An error of a page handler.
#[derive(Debug)]
pub(crate) enum PageError {
    /// No such page.
    NotFound,
    /// Method not allowed; the value of `Allow`.
    MethodNotAllowed(String),
    /// The form was sent from another site.
    CrossOrigin,
    /// The CSRF token does not belong to the session.
    InvalidFormToken,
    /// The body is not a form.
    NotAForm,
    /// The session ended during the request.
    SignedOut,
    /// The store failed. Nothing was changed.
    Store(Box<dyn Error + Send + Sync>),
    /// An internal error.
    Internal(Box<dyn Error + Send + Sync>),
}

impl PageError {
    /// The error page; internal errors are logged too.
    pub(crate) fn page(&self, renderer: &PageRenderer, request: &str) -> Reply {
        let page = |status, heading, text: &str, link| {
            let details = Failure {
                status,
                heading,
                text: html! { p { (text) } },
                link,
                request: request.to_owned(),
            };
            failure(renderer, &details)
        };
        const HOME: Option<(&str, &str)> = Some(("/", "Go to the overview"));
        match self {
            PageError::NotFound => page(
                StatusCode::NOT_FOUND,
                "This page does not exist",
                "The address may be wrong, or the page has moved.",
                HOME,
            ),
            PageError::MethodNotAllowed(allow) => {
                let mut reply = page(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "This page does not accept this method",
                    "Open it from the page that links to it.",
                    HOME,
                );
                if let Ok(allow) = HeaderValue::from_str(allow) {
                    reply.headers.insert(header::ALLOW, allow);
                }
                reply
            }
            PageError::CrossOrigin => page(
                StatusCode::FORBIDDEN,
                "This form was not sent from our pages",
                "Nothing was changed. Open the page here and send it again.",
                HOME,
            ),
            PageError::InvalidFormToken => page(
                StatusCode::FORBIDDEN,
                "This form has expired",
                "Nothing was changed. Open the page again.",
                HOME,
            ),
            PageError::NotAForm => page(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "This is not a form",
                "Pages accept forms from browsers. Programs use the API.",
                Some(("/docs", "Read the docs")),
            ),
            PageError::SignedOut => renderer.see_other("/sign-in"),
            PageError::Store(source) => {
                tracing::error!(request, error = %chain(&**source), "rendering page failed: store error");
                page(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "The service is temporarily unavailable",
                    "Your credits and keys are safe. Try again in a minute.",
                    None,
                )
            }
            PageError::Internal(source) => {
                tracing::error!(request, error = %chain(&**source), "rendering page failed");
                page(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "Something failed on our side",
                    "Try again. If the problem persists, report the request id below.",
                    HOME,
                )
            }
        }
    }
}

/// An error message with its causes.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}

impl From<ReadError> for PageError {
    fn from(error: ReadError) -> PageError {
        PageError::Store(Box::new(error))
    }
}

impl From<CommitError> for PageError {
    fn from(error: CommitError) -> PageError {
        match error {
            CommitError::Refused(Refusal::SessionEnded) => PageError::SignedOut,
            error => PageError::Store(Box::new(error)),
        }
    }
}

impl From<VerifyCodeError> for PageError {
    fn from(error: VerifyCodeError) -> PageError {
        match error {
            VerifyCodeError::SignedOut => PageError::SignedOut,
            error => PageError::Store(Box::new(error)),
        }
    }
}

impl From<SendCodeError> for PageError {
    fn from(error: SendCodeError) -> PageError {
        PageError::Store(Box::new(error))
    }
}
