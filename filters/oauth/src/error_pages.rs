//! Pages for requests that cannot be answered to their client.

use http::StatusCode;
use maud::html;
use tollgate_filter::{Reply, Request};
use tollgate_identity::oauth::AuthorizationError;
use tollgate_pages::{Failure, Look, failure};

use crate::authorize::Local;

impl Local {
    /// The reason, for the maker of the app.
    fn reason(self) -> &'static str {
        match self {
            Local::Encoding => "The query is not encoded as queries are.",
            Local::ClientMissing => "client_id has to stand in the address, once.",
            Local::RedirectMissing => "redirect_uri has to stand in the address, once.",
            Local::ClientUnknown => "No app is registered under this client_id. Register it again.",
            Local::ClientDocument => {
                "invalid_client: the document at client_id cannot be fetched, or does not describe a client."
            }
            Local::RedirectUnknown => "This redirect_uri is none that the app has registered.",
        }
    }
}

/// 400, for a person whom an app has sent here with a request that cannot be trusted. Nothing of the request is repeated.
pub(crate) fn cannot_be_trusted(look: &Look, request: &Request, why: Local) -> Reply {
    let told = Failure {
        status: StatusCode::BAD_REQUEST,
        heading: "This request cannot be trusted",
        text: html! {
            p { "The app that sent you here made a mistake, or is not what it says. Nothing was allowed." }
            p { "For its maker: " (why.reason()) }
        },
        way_on: None,
        request: request.id.to_string(),
    };
    failure(look, &told)
}

/// 400, for a person whom an app has sent here with a request that cannot be granted: why, and the way back, which leads to `host` and
/// tells the app.
pub(crate) fn sent_back(
    look: &Look,
    request: &Request,
    why: AuthorizationError,
    (host, address): (&str, &str),
) -> Reply {
    let (status, text) = match why {
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
    let told = Failure {
        status,
        heading: "The app could not be connected",
        text: html! {
            p { "An app at " b { (host) } " sent you here. " (text) " Nothing was allowed." }
            p { "For its maker: " code { (why.word()) } "." }
        },
        way_on: Some((address, &words)),
        request: request.id.to_string(),
    };
    failure(look, &told)
}

/// 503, for a person whom an app has sent here while the store does not answer.
pub(crate) fn catching_up(look: &Look, request: &Request) -> Reply {
    let told = Failure {
        status: StatusCode::SERVICE_UNAVAILABLE,
        heading: "We are catching up",
        text: html! { p { "Nothing was allowed. Go back to the app and try again in a minute." } },
        way_on: None,
        request: request.id.to_string(),
    };
    failure(look, &told)
}
