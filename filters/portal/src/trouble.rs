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
pub(crate) enum Trouble {
    /// There is no such page.
    NotFound,
    /// The page does not take this method; it takes these.
    Method(String),
    /// The form was sent by a page of somebody else.
    Forged,
    /// The form's token is not that of the session.
    Stale,
    /// The form is no form.
    NoForm,
    /// Their session was ended while the request was under way.
    SignedOut,
    /// The store did not answer or did not write. Nothing was changed.
    Store(Box<dyn Error + Send + Sync>),
    /// A fault of ours.
    Internal(Box<dyn Error + Send + Sync>),
}

impl Trouble {
    /// The page that tells of it; a fault of ours is told to the log too.
    pub(crate) fn page(&self, look: &Look, request: &str) -> Reply {
        let page = |status, heading, text: &str, way_on| {
            let told = Failure {
                status,
                heading,
                text: html! { p { (text) } },
                way_on,
                request: request.to_owned(),
            };
            failure(look, &told)
        };
        const HOME: Option<(&str, &str)> = Some(("/", "Go to the overview"));
        match self {
            Trouble::NotFound => page(
                StatusCode::NOT_FOUND,
                "This page does not exist",
                "The address may be wrong, or the page has moved.",
                HOME,
            ),
            Trouble::Method(allow) => {
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
            Trouble::Forged => page(
                StatusCode::FORBIDDEN,
                "This form was not sent from our pages",
                "Nothing was changed. Open the page here and send it again.",
                HOME,
            ),
            Trouble::Stale => page(
                StatusCode::FORBIDDEN,
                "This page was open too long",
                "Open it again; nothing was changed.",
                HOME,
            ),
            Trouble::NoForm => page(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "This is not a form",
                "Pages take forms as browsers send them. Programs use the API.",
                Some(("/docs", "Read the docs")),
            ),
            Trouble::SignedOut => look.see_other("/sign-in"),
            Trouble::Store(source) => {
                tracing::error!(request, error = %chain(&**source), "a page could not be made: the store did not do its part");
                page(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "We are catching up",
                    "Your credits and keys are safe; try again in a minute.",
                    None,
                )
            }
            Trouble::Internal(source) => {
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

impl From<ReadError> for Trouble {
    fn from(error: ReadError) -> Trouble {
        Trouble::Store(Box::new(error))
    }
}

impl From<CommitError> for Trouble {
    fn from(error: CommitError) -> Trouble {
        match error {
            CommitError::Refused(Refusal::SessionOver) => Trouble::SignedOut,
            error => Trouble::Store(Box::new(error)),
        }
    }
}

impl From<VerifyCodeError> for Trouble {
    fn from(error: VerifyCodeError) -> Trouble {
        match error {
            VerifyCodeError::SignedOut => Trouble::SignedOut,
            error => Trouble::Store(Box::new(error)),
        }
    }
}

impl From<SendCodeError> for Trouble {
    fn from(error: SendCodeError) -> Trouble {
        Trouble::Store(Box::new(error))
    }
}
