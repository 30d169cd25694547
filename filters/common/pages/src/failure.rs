//! Pages for what went wrong. They need neither session nor store.

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::Reply;

use crate::look::Look;
use crate::page::Page;

/// What a person is told when there is no page to show.
pub struct Failure<'a> {
    /// The status.
    pub status: StatusCode,
    /// What happened, as a sentence without a full stop at its end.
    pub heading: &'a str,
    /// What to do.
    pub text: Markup,
    /// One way on: address and words.
    pub way_on: Option<(&'a str, &'a str)>,
    /// The id of the request, for whoever is asked for help.
    pub request: String,
}

/// The page of a failure.
pub fn failure(look: &Look, failure: &Failure<'_>) -> Reply {
    let support = look.brand().support.as_deref();
    let inside = html! {
        p.status { (failure.status.as_str()) }
        h1 { (failure.heading) }
        div.prose { (failure.text) }
        @if let Some((address, words)) = failure.way_on {
            p.actions { a.button href=(address) { (words) } }
        }
        p.fine.rule {
            "Request " code { (failure.request) }
            @if let Some(support) = support {
                ". If this stays, send that line to " (support) "."
            }
        }
    };
    look.reply(failure.status, &Page::solo(failure.heading, inside))
}
