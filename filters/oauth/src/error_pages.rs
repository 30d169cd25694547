//! Error pages of the authorization endpoint.

use http::StatusCode;
use maud::html;
use tollgate_filter::{Reply, Request};
use tollgate_identity::oauth::AuthorizationError;
use tollgate_pages::{Failure, PageRenderer, failure};

use crate::authorize::LocalError;

impl LocalError {
    /// The reason, for the developer of the app.
    fn reason(self) -> &'static str {
        match self {
            LocalError::Encoding => "The query is not validly encoded.",
            LocalError::MissingClient => "client_id must occur exactly once in the query.",
            LocalError::MissingRedirect => "redirect_uri must occur exactly once in the query.",
            LocalError::UnknownClient => {
                "No app is registered under this client_id. Register it again."
            }
            LocalError::ClientDocument => {
                "invalid_client: the document at client_id cannot be fetched, or does not describe a client."
            }
            LocalError::UnknownRedirect => "This redirect_uri is not registered for the app.",
        }
    }
}

/// 400 for an authorization request whose client or redirect URI cannot be verified. No part of the request is repeated.
pub(crate) fn untrusted_request_page(
    renderer: &PageRenderer,
    request: &Request,
    error: LocalError,
) -> Reply {
    let details = Failure {
        status: StatusCode::BAD_REQUEST,
        heading: "This request cannot be trusted",
        text: html! {
            p { "The app that sent you here made an error, or is not what it claims to be. No access was granted." }
            p { "For its developer: " (error.reason()) }
        },
        link: None,
        request: request.id.to_string(),
    };
    failure(renderer, &details)
}

/// 400 or 503 for a failed authorization request: the reason, and a link back to `host` that reports the error to the app.
pub(crate) fn authorization_error_page(
    renderer: &PageRenderer,
    request: &Request,
    error: AuthorizationError,
    (host, address): (&str, &str),
) -> Reply {
    let (status, text) = match error {
        AuthorizationError::ServerError | AuthorizationError::TemporarilyUnavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            "This is a fault of this service, not of the app. Try again from there in a minute.",
        ),
        _ => (
            StatusCode::BAD_REQUEST,
            "Its request is invalid or cannot be granted.",
        ),
    };
    let words = format!("Go back to {host}");
    let details = Failure {
        status,
        heading: "The app could not be connected",
        text: html! {
            p { "An app at " b { (host) } " sent you here. " (text) " No access was granted." }
            p { "For its developer: " code { (error.word()) } ". " (error.description()) }
        },
        link: Some((address, &words)),
        request: request.id.to_string(),
    };
    failure(renderer, &details)
}

/// 503 for an authorization request while the store is unavailable.
pub(crate) fn unavailable_page(renderer: &PageRenderer, request: &Request) -> Reply {
    let details = Failure {
        status: StatusCode::SERVICE_UNAVAILABLE,
        heading: "The service is temporarily unavailable",
        text: html! { p { "No access was granted. Go back to the app and try again in a minute." } },
        link: None,
        request: request.id.to_string(),
    };
    failure(renderer, &details)
}
