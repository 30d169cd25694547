//! Why a page cannot be shown, and what is shown instead.

use std::error::Error;

use http::{HeaderValue, StatusCode, header};
use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::signin::{SendCodeError, VerifyCodeError};
use tollgate_pages::{Failure, Look, failure};
use tollgate_store::{CommitError, ReadError, Refusal};

/// Why a page cannot be shown.
#[derive(Debug)]
pub(crate) enum PageError {
    /// There is no such page.
    NotFound,
    /// The page does not take this method; it takes these.
    MethodNotAllowed(String),
    /// The form was sent by a page of somebody else.
    CrossOrigin,
    /// The form's token is not that of the session.
    InvalidFormToken,
    /// The form is no form.
    NotAForm,
    /// Their session was ended while the request was under way.
    SignedOut,
    /// The store did not answer or did not write. Nothing was changed.
    Store(Box<dyn Error + Send + Sync>),
    /// A fault of ours.
    Internal(Box<dyn Error + Send + Sync>),
}

impl PageError {
    /// The page that tells of it; a fault of ours is told to the log too.
    pub(crate) fn page(&self, look: &Look, request: &str) -> Reply {
        let page = |status, heading, text: &str, way_on| {
            let details = Failure {
                status,
                heading,
                text: html! { p { (text) } },
                way_on,
                request: request.to_owned(),
            };
            failure(look, &details)
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
                    "This page cannot be used in this way",
                    "Open it from the page that leads to it.",
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
                "This page was open too long",
                "Open it again; nothing was changed.",
                HOME,
            ),
            PageError::NotAForm => page(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "This is not a form",
                "Pages take forms as browsers send them. Programs use the API.",
                Some(("/docs", "Read the docs")),
            ),
            PageError::SignedOut => look.see_other("/sign-in"),
            PageError::Store(source) => {
                tracing::error!(request, error = %chain(&**source), "a page could not be made: the store did not do its part");
                page(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "We are catching up",
                    "Your credits and keys are safe; try again in a minute.",
                    None,
                )
            }
            PageError::Internal(source) => {
                tracing::error!(request, error = %chain(&**source), "a page could not be made");
                page(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "Something failed on our side",
                    "Try again; if it stays, tell us the line below.",
                    HOME,
                )
            }
        }
    }
}

/// An error with its causes.
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
            CommitError::Refused(Refusal::SessionOver) => PageError::SignedOut,
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
