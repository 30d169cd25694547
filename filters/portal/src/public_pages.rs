//! Conditional requests and compression of pages that any cache may keep: the documentation for readers who are signed out.

use std::collections::HashMap;

use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use tollgate_filter::{Document, Reply, ReplyBody, Request};

/// The mark of a public page's reply; every other page is `no-store`.
const CACHE_CONTROL: &str = "public, max-age=300";

/// The last version of each page by path, compressed once.
///
/// Only pages of fixed paths are marked, which bounds their number.
#[derive(Debug, Default)]
pub(crate) struct PublicPages(Mutex<HashMap<String, Document>>);

/// Marks a reply without anything of a session as cacheable. A browser that signs in has another cookie, and asks again.
pub(crate) fn make_public(mut reply: Reply) -> Reply {
    for (name, value) in [
        (header::CACHE_CONTROL, CACHE_CONTROL),
        (header::VARY, "cookie"),
    ] {
        reply.headers.insert(name, HeaderValue::from_static(value));
    }
    reply
}

impl PublicPages {
    /// The reply to this request; an unmarked reply stays unchanged.
    pub(crate) fn reply(&self, reply: Reply, request: &Request) -> Reply {
        let is_public = reply.status == StatusCode::OK
            && reply.headers.get(header::CACHE_CONTROL)
                == Some(&HeaderValue::from_static(CACHE_CONTROL));
        let ReplyBody::Whole(body) = &reply.body else {
            return reply;
        };
        if !is_public || reply.headers.contains_key(header::SET_COOKIE) {
            return reply;
        }
        let page = Document::with_headers(reply.headers.clone(), body.clone());
        let mut pages = self.0.lock();
        let kept = pages
            .entry(request.path.to_string())
            .or_insert_with(|| page.clone());
        if kept.etag() != page.etag() {
            *kept = page;
        }
        let page = kept.clone();
        drop(pages);
        page.reply(request)
    }
}
