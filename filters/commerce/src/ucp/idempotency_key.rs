//! `Idempotency-Key`: parsing of the header.

use http::HeaderMap;
use sfv::{BareItem, Item, Parser};

/// Maximum length of a key, in characters.
const CHARS_MAX: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidKey;

/// The idempotency key of a request, if any: bare, or as a structured-field string; both spellings denote one key.
pub(crate) fn read(headers: &HeaderMap) -> Result<Option<String>, InvalidKey> {
    let mut values = headers.get_all("idempotency-key").iter();
    let text = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value.to_str().map_err(|_| InvalidKey)?,
        (Some(_), Some(_)) => return Err(InvalidKey),
    };
    let text = text.trim_ascii();
    let key = match Parser::new(text).parse::<Item>() {
        Ok(Item {
            bare_item: BareItem::String(text),
            params,
        }) if params.is_empty() => text.as_str().to_owned(),
        _ => text.to_owned(),
    };
    let is_printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    let is_valid = (1..=CHARS_MAX).contains(&key.len()) && key.bytes().all(is_printable);
    is_valid.then_some(Some(key)).ok_or(InvalidKey)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn an_idempotency_key_has_1_to_255_visible_characters_and_spaces_with_or_without_quotes() {
        let long = "k".repeat(255);
        let key = |key: &str| Ok(Some(key.to_owned()));
        check(&[], Ok(None));
        check(
            &["8e03978e-40d5-43dd-bc93-6894a57f9324"],
            key("8e03978e-40d5-43dd-bc93-6894a57f9324"),
        );
        check(&["\"8e03978e\""], key("8e03978e"));
        check(&["two words"], key("two words"));
        check(&["\"two words\""], key("two words"));
        check(&["a;b=1"], key("a;b=1"));
        check(&[&long], key(&long));
        check(&[&format!("\"{long}\"")], key(&long));
        for bad in [
            vec![""],
            vec!["two\twords"],
            vec!["  "],
            vec!["\"\""],
            vec!["a", "b"],
            vec!["a", "a"],
        ] {
            check(&bad, Err(InvalidKey));
        }
        check(&[&format!("{long}k")], Err(InvalidKey));
        let mut binary = HeaderMap::new();
        binary.insert(
            "idempotency-key",
            HeaderValue::from_bytes(b"k\xe9").expect("a value"),
        );
        assert_eq!(read(&binary), Err(InvalidKey));
    }

    fn check(values: &[&str], expected: Result<Option<String>, InvalidKey>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(
                "idempotency-key",
                HeaderValue::from_str(value).expect("a value"),
            );
        }
        assert_eq!(read(&headers), expected, "{values:?}");
    }
}
