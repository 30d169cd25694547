//! The metadata object that the gateway adds to answers: what a completion cost and where it came from.

use std::fmt::{self, Write as _};

use bytes::BytesMut;

use crate::json::scan::special;
use crate::string;

/// The metadata of one completion.
///
/// Credits are given as anything that displays as a JSON number, so that exact decimals stay exact: a type with
/// a binary float behind it has no place here.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    /// The answer was made for an earlier request.
    pub cache_hit: bool,
    /// The cache's entry that was read or written.
    pub cache_entry_id: Option<&'a str>,
    /// What the cache did: `hit`, `stored`, `bypass`, `uncacheable`, `too_large`, `error`.
    pub cache_store_status: Option<&'a str>,
    /// The price of this completion, at least 0.
    pub credits_used: &'a dyn fmt::Display,
    /// What is left.
    pub credits_remaining: &'a dyn fmt::Display,
    /// The account that pays: a text or a number.
    pub owner: &'a dyn fmt::Display,
    /// Another account the request was resolved to.
    pub resolved_owner: Option<&'a str>,
    /// The tokens were counted by us, since the provider did not say.
    pub usage_estimated: bool,
}

impl Metadata<'_> {
    /// Appends the object.
    pub fn write(&self, out: &mut BytesMut) {
        out.reserve(288);
        let bool = |value| if value { &b"true"[..] } else { b"false" };
        out.extend_from_slice(br#"{"cache_hit":"#);
        out.extend_from_slice(bool(self.cache_hit));
        out.extend_from_slice(br#","cache_entry_id":"#);
        text_or_null(self.cache_entry_id, out);
        out.extend_from_slice(br#","cache_store_status":"#);
        text_or_null(self.cache_store_status, out);
        out.extend_from_slice(br#","credits_used":"#);
        number(self.credits_used, out);
        out.extend_from_slice(br#","credits_remaining":"#);
        number(self.credits_remaining, out);
        out.extend_from_slice(br#","owner":"#);
        displayed(self.owner, out);
        out.extend_from_slice(br#","resolved_owner":"#);
        text_or_null(self.resolved_owner, out);
        out.extend_from_slice(br#","usage_estimated":"#);
        out.extend_from_slice(bool(self.usage_estimated));
        out.extend_from_slice(b"}");
    }
}

fn text_or_null(text: Option<&str>, out: &mut BytesMut) {
    match text {
        Some(text) => string::write(text, out),
        None => out.extend_from_slice(b"null"),
    }
}

/// Writes what a value displays as a string.
fn displayed(value: &dyn fmt::Display, out: &mut BytesMut) {
    let start = out.len();
    // Writing to a growing buffer fails only if the value's own `Display` does.
    let written = write!(out, "\"{value}\"");
    debug_assert!(written.is_ok(), "what is written displays");
    // Ids have nothing to escape, so where the first quote stands is seen at once.
    if special(out, start + 1) + 1 != out.len() {
        let plain = out.split_off(start);
        let plain = &plain[1..plain.len().max(2) - 1];
        string::write(&String::from_utf8_lossy(plain), out);
    }
}

fn number(amount: &dyn fmt::Display, out: &mut BytesMut) {
    let start = out.len();
    // Writing to a growing buffer fails only if the amount's own `Display` does.
    let written = write!(out, "{amount}");
    debug_assert!(
        written.is_ok() && crate::json::is_number(&out[start..]),
        "credits must display as a JSON number, not as {:?}",
        &out[start..]
    );
}
