//! The `Idempotency-Key` header field.

use http::{HeaderMap, HeaderName};
use std::sync::Arc;

/// The header field.
pub(crate) const FIELD: HeaderName = HeaderName::from_static("idempotency-key");

/// The most characters of a key.
const CHARS_MAX: usize = 255;

/// A malformed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadKey;

/// The key of a request with the field: 1 to 255 visible ASCII characters and spaces, once. Quotes are part of the key: a client that sends
/// the structured string of the draft, or a bare token, repeats its text.
pub(crate) fn key(headers: &HeaderMap) -> Result<Arc<str>, BadKey> {
    let mut values = headers.get_all(FIELD).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(BadKey);
    };
    let text = value.as_bytes().trim_ascii();
    let is_printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    if text.is_empty() || text.len() > CHARS_MAX || !text.iter().all(is_printable) {
        return Err(BadKey);
    }
    std::str::from_utf8(text).map(Arc::from).map_err(|_| BadKey)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_key_is_one_line_of_up_to_255_visible_characters_and_spaces() {
        let long = "k".repeat(256);
        check(&["8e03978e-40d5-43dd-bc93-6894a57f9324"], true);
        check(&["\"8e03978e\""], true);
        check(&["!#~"], true);
        check(&["two words"], true);
        check(&["two\twords"], false);
        check(&["  "], false);
        check(&[&long[..255]], true);
        check(&[&long], false);
        check(&[""], false);
        check(&["k\u{e9}"], false);
        check(&["one", "two"], false);
        check(&["one", "one"], false);
        check(&[], false);
    }

    fn check(values: &[&str], good: bool) {
        let mut headers = HeaderMap::new();
        for value in values {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header value");
            headers.append(FIELD, value);
        }
        let expected = if good {
            Ok(Arc::from(values[0]))
        } else {
            Err(BadKey)
        };
        assert_eq!(key(&headers), expected, "{values:?}");
    }
}
