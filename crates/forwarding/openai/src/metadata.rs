//! The metadata object that the gateway adds to answers: the price and the source of a completion.

use bytes::BytesMut;

/// Letters, digits, `_` and `-`: the gateway's ids and words, which need no escapes.
pub type Verbatim<'a> = &'a [u8];

/// The metadata of a completion.
///
/// Credits are the texts of JSON numbers, so that decimals stay exact: binary floats are not used.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    /// The answer was made for an earlier request.
    pub cache_hit: bool,
    /// The cache's entry that was read or written.
    pub cache_entry_id: Option<Verbatim<'a>>,
    /// The cache's result: `hit`, `stored`, `bypass`, `uncacheable`, `external`, `incomplete`, `empty`, `too_large`, `error`.
    pub cache_store_status: Option<Verbatim<'a>>,
    /// The price of this completion, at least 0.
    pub credits_used: &'a [u8],
    /// The remaining balance.
    pub credits_remaining: &'a [u8],
    /// The account that pays.
    pub owner: Verbatim<'a>,
    /// Another account the request was resolved to.
    pub resolved_owner: Option<Verbatim<'a>>,
    /// The gateway counted the tokens, because the provider reported no tokens.
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
        word_or_null(self.cache_entry_id, out);
        out.extend_from_slice(br#","cache_store_status":"#);
        word_or_null(self.cache_store_status, out);
        out.extend_from_slice(br#","credits_used":"#);
        number(self.credits_used, out);
        out.extend_from_slice(br#","credits_remaining":"#);
        number(self.credits_remaining, out);
        out.extend_from_slice(br#","owner":"#);
        word(self.owner, out);
        out.extend_from_slice(br#","resolved_owner":"#);
        word_or_null(self.resolved_owner, out);
        out.extend_from_slice(br#","usage_estimated":"#);
        out.extend_from_slice(bool(self.usage_estimated));
        out.extend_from_slice(b"}");
    }
}

fn word_or_null(text: Option<Verbatim<'_>>, out: &mut BytesMut) {
    match text {
        Some(text) => word(text, out),
        None => out.extend_from_slice(b"null"),
    }
}

fn word(text: Verbatim<'_>, out: &mut BytesMut) {
    debug_assert!(
        text.iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(byte)),
        "an id or a word must stand in JSON as it is, not {}",
        text.escape_ascii()
    );
    out.extend_from_slice(b"\"");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\"");
}

fn number(amount: &[u8], out: &mut BytesMut) {
    debug_assert!(
        crate::json::is_number(amount),
        "credits must be a JSON number, not {}",
        amount.escape_ascii()
    );
    out.extend_from_slice(amount);
}
