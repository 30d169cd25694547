//! Pages for requests that cannot be answered to their client.

use http::StatusCode;
use maud::html;
use tollgate_filter::{Reply, Request};
use tollgate_identity::oauth::AuthorizationError;
use tollgate_pages::{Failure, PageRenderer, failure};

use crate::authorize::LocalError;

impl LocalError {
    /// The reason, for the maker of the app.
    fn reason(self) -> &'static str {
        match self {
            LocalError::Encoding => "The query is not encoded as queries are.",
            LocalError::MissingClient => "client_id has to stand in the address, once.",
            LocalError::MissingRedirect => "redirect_uri has to stand in the address, once.",
            LocalError::UnknownClient => {
                "No app is registered under this client_id. Register it again."
            }
            LocalError::ClientDocument => {
                "invalid_client: the document at client_id cannot be fetched, or does not describe a client."
            }
            LocalError::UnknownRedirect => "This redirect_uri is none that the app has registered.",
        }
    }
}

/// 400, for a person whom an app has sent here with a request that cannot be trusted. Nothing of the request is repeated.
pub(crate) fn untrusted_request_page(
    renderer: &PageRenderer,
    request: &Request,
    error: LocalError,
) -> Reply {
    let details = Failure {
        status: StatusCode::BAD_REQUEST,
        heading: "This request cannot be trusted",
        text: html! {
            p { "The app that sent you here made a mistake, or is not what it says. Nothing was allowed." }
            p { "For its maker: " (error.reason()) }
        },
        link: None,
        request: request.id.to_string(),
    };
    failure(renderer, &details)
}

/// 400, for a person whom an app has sent here with a request that cannot be granted: why, and the way back, which leads to `host` and
/// tells the app.
pub(crate) fn authorization_error_page(
    renderer: &PageRenderer,
    request: &Request,
    error: AuthorizationError,
    (host, address): (&str, &str),
) -> Reply {
    let (status, text) = match error {
        AuthorizationError::ServerError | AuthorizationError::TemporarilyUnavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            "This is not its fault. Try again from there in a minute.",
        ),
        _ => (
            StatusCode::BAD_REQUEST,
            "It asked for something that cannot be given, or not in this way.",
        ),
    };
    let words = format!("Go back to {host}");
    let details = Failure {
        status,
        heading: "The app could not be connected",
        text: html! {
            p { "An app at " b { (host) } " sent you here. " (text) " Nothing was allowed." }
            p { "For its maker: " code { (error.word()) } "." }
        },
        link: Some((address, &words)),
        request: request.id.to_string(),
    };
    failure(renderer, &details)
}

/// 503, for a person whom an app has sent here while the store does not answer.
pub(crate) fn unavailable_page(renderer: &PageRenderer, request: &Request) -> Reply {
    let details = Failure {
        status: StatusCode::SERVICE_UNAVAILABLE,
        heading: "The service is temporarily unavailable",
        text: html! { p { "Nothing was allowed. Go back to the app and try again in a minute." } },
        link: None,
        request: request.id.to_string(),
    };
    failure(renderer, &details)
}
