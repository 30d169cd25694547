//! JSON strings: decoding, without a copy for strings without escapes, and encoding.

use std::borrow::Cow;

use bytes::BytesMut;

use crate::json::scan::special;

/// A validated string of a text: the bytes between its quotes, as written.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub(crate) raw: &'a [u8],
    pub(crate) escaped: bool,
}

impl<'a> Text<'a> {
    /// Whether the string equals `word`. `word` has no character that JSON escapes.
    pub(crate) fn is(self, word: &str) -> bool {
        if self.escaped {
            self.decode().is_some_and(|text| text == word)
        } else {
            self.raw == word.as_bytes()
        }
    }

    /// The decoded string; `None` for half a surrogate pair, which no UTF-8 text can hold.
    pub(crate) fn decode(self) -> Option<Cow<'a, str>> {
        if !self.escaped {
            return std::str::from_utf8(self.raw).ok().map(Cow::Borrowed);
        }
        let mut text = String::with_capacity(self.raw.len());
        unescape(self.raw, &mut text).then_some(Cow::Owned(text))
    }

    /// The bytes of the decoded string, for comparisons; `None` for half a surrogate pair. The surrounding text is UTF-8.
    pub(crate) fn bytes(self) -> Option<Cow<'a, [u8]>> {
        if !self.escaped {
            return Some(Cow::Borrowed(self.raw));
        }
        Some(Cow::Owned(self.decode()?.into_owned().into_bytes()))
    }

    /// The string, with U+FFFD for every half of a surrogate pair and every byte that is not UTF-8.
    pub(crate) fn decode_lossy(self) -> Cow<'a, str> {
        if !self.escaped {
            return String::from_utf8_lossy(self.raw);
        }
        let mut text = String::with_capacity(self.raw.len());
        unescape(self.raw, &mut text);
        Cow::Owned(text)
    }
}

/// Appends the decoded bytes between two quotes, and returns whether no character was replaced by U+FFFD.
///
/// The reader has validated the escapes; an invalid escape is dropped.
pub(crate) fn unescape(raw: &[u8], out: &mut String) -> bool {
    let mut whole = true;
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        whole &= append_utf8(&rest[..at], out);
        let (character, length) = match rest.get(at + 1) {
            Some(b'b') => (Some('\u{8}'), 2),
            Some(b'f') => (Some('\u{c}'), 2),
            Some(b'n') => (Some('\n'), 2),
            Some(b'r') => (Some('\r'), 2),
            Some(b't') => (Some('\t'), 2),
            Some(b'u') => unicode(&rest[at..]),
            Some(&byte) => (Some(char::from(byte)), 2),
            None => (None, 1),
        };
        whole &= character.is_some();
        out.push(character.unwrap_or(char::REPLACEMENT_CHARACTER));
        rest = &rest[(at + length).min(rest.len())..];
    }
    append_utf8(rest, out) && whole
}

/// The character of `\uXXXX`, or of two escapes that make a surrogate pair, and its encoded length.
pub(crate) fn unicode(escape: &[u8]) -> (Option<char>, usize) {
    let Some(high) = code_unit(escape) else {
        return (None, 2);
    };
    if let Some(character) = char::from_u32(high) {
        return (Some(character), 6);
    }
    match code_unit(&escape[6..]) {
        Some(low @ 0xdc00..=0xdfff) if high < 0xdc00 => {
            let scalar = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
            (char::from_u32(scalar), 12)
        }
        _ => (None, 6),
    }
}

fn code_unit(escape: &[u8]) -> Option<u32> {
    let hex = escape.strip_prefix(b"\\u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}

fn append_utf8(bytes: &[u8], out: &mut String) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            out.push_str(text);
            true
        }
        Err(_) => {
            out.push_str(&String::from_utf8_lossy(bytes));
            false
        }
    }
}

/// Appends `text` as a JSON string with its quotes (RFC 8259 section 7).
pub(crate) fn write(text: &str, out: &mut BytesMut) {
    let text = text.as_bytes();
    out.extend_from_slice(b"\"");
    let mut plain = 0;
    loop {
        let at = special(text, plain);
        out.extend_from_slice(&text[plain..at]);
        let Some(&byte) = text.get(at) else { break };
        plain = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                let digit = |nibble: u8| HEX[usize::from(nibble & 15)];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte)]);
            }
        }
    }
    out.extend_from_slice(b"\"");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(raw: &str) -> Text<'_> {
        Text {
            raw: raw.as_bytes(),
            escaped: raw.contains('\\'),
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_no_text_and_shows_as_one_replacement() {
        for (raw, whole, lossy) in [
            (r"\ud83d\ude00", Some("😀"), "😀"),
            (r"\u00e9\n\/", Some("é\n/"), "é\n/"),
            (r"a\ud83d", None, "a\u{fffd}"),
            (r"\ud83dx", None, "\u{fffd}x"),
            (r"\ude00\ud83d", None, "\u{fffd}\u{fffd}"),
            (r"\ud83d\ud83d\ude00", None, "\u{fffd}😀"),
            (r"\ud83d\u0041", None, "\u{fffd}A"),
        ] {
            assert_eq!(text(raw).decode().as_deref(), whole, "{raw}");
            assert_eq!(text(raw).decode_lossy(), lossy, "{raw}");
        }
    }

    #[test]
    fn a_string_that_needs_no_copy_is_borrowed() {
        assert!(matches!(
            text("plain é").decode(),
            Some(Cow::Borrowed("plain é"))
        ));
    }

    proptest! {
        #[test]
        fn encoded_strings_are_decoded_by_us_and_by_another_parser(original in any::<String>()) {
            let mut out = BytesMut::new();
            write(&original, &mut out);
            let read: String = serde_json::from_slice(&out).expect("what we write is JSON");
            prop_assert_eq!(&read, &original);
            let raw = std::str::from_utf8(&out[1..out.len() - 1]).expect("what we write is UTF-8");
            let decoded = text(raw).decode();
            prop_assert_eq!(decoded.as_deref(), Some(original.as_str()));
        }
    }
}
