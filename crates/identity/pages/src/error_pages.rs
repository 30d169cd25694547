//! Error pages, independent of session and store.

use std::sync::Arc;

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::{ApiError, ErrorPage, ErrorType, Reply};

use crate::format;
use crate::page::Page;
use crate::renderer::PageRenderer;

/// An error page.
pub struct Failure<'a> {
    pub status: StatusCode,
    /// The event, as a sentence without a full stop.
    pub heading: &'a str,
    /// What to do.
    pub text: Markup,
    /// A link to continue: URL and text.
    pub link: Option<(&'a str, &'a str)>,
    /// The request id, for support.
    pub request: String,
}

/// Renders an error page.
pub fn failure(renderer: &PageRenderer, failure: &Failure<'_>) -> Reply {
    let brand = renderer.brand();
    let support = brand.support.as_deref();
    let content = html! {
        p.status { (failure.status.as_str()) }
        h1 { (failure.heading) }
        div.prose { (failure.text) }
        @if let Some((address, text)) = failure.link {
            p.actions { a.button href=(address) { (text) } }
        }
        p.fine.rule {
            "Request " code { (failure.request) }
            @if let Some(support) = support {
                ". If the problem persists, send this line to " (support) "."
            }
        }
    };
    renderer.reply(failure.status, &Page::card(failure.heading, content))
}

/// Error pages for errors raised outside of page handlers: rate limit, body size, unknown path.
pub fn error_page(renderer: Arc<PageRenderer>) -> ErrorPage {
    ErrorPage::new(move |error, request| {
        let (heading, text) = text(error);
        let details = Failure {
            status: error.status(),
            heading,
            text: html! { p { (text) } },
            link: Some(("/", "Go to the overview")),
            request: request.to_owned(),
        };
        failure(&renderer, &details)
    })
}

fn text(error: &ApiError) -> (&'static str, String) {
    let wait = error
        .retry_after
        .map(|wait| format!("Try again in {}.", format::duration(wait)));
    match (error.code.kind(), error.status()) {
        (ErrorType::RateLimit, _) => (
            "Too many requests from your network",
            wait.unwrap_or_else(|| "Try again in a minute.".into()),
        ),
        (ErrorType::Unavailable, _) => (
            "The service is temporarily unavailable",
            "Your credits and keys are safe. Try again in a minute.".into(),
        ),
        (ErrorType::Server, _) => (
            "Something failed on our side",
            "Try again. If the problem persists, report the request id below.".into(),
        ),
        (_, StatusCode::NOT_FOUND) => (
            "This page does not exist",
            "The address may be wrong, or the page has moved.".into(),
        ),
        (_, StatusCode::METHOD_NOT_ALLOWED) => (
            "This page does not accept this method",
            "Open it from the page that links to it.".into(),
        ),
        (_, StatusCode::PAYLOAD_TOO_LARGE) => (
            "This form is too large",
            "Nothing was changed. Shorten the input, and send it again.".into(),
        ),
        _ => ("The request failed", error.message.clone().into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_filter::{ErrorCode, ReplyBody};

    use super::*;
    use crate::Brand;

    #[test]
    fn an_error_becomes_a_page_with_a_remedy() {
        let pages = error_page(Arc::new(PageRenderer::new(Brand::named("Tolls"))));
        let error = ApiError::new(ErrorCode::RateLimitExceeded, "Slow down.")
            .retry_after(Duration::from_secs(38));
        let reply = pages.draw(&error, "req_0190");
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        let ReplyBody::Whole(body) = &reply.body else {
            panic!("a page is whole");
        };
        let text = std::str::from_utf8(body).expect("text");
        for piece in [
            "Too many requests from your network",
            "Try again in 38 seconds.",
            "req_0190",
        ] {
            assert!(text.contains(piece), "{piece} in {text}");
        }
    }
}
