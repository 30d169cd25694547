//! JSON strings: read without copying where there are no escapes, and written.

use std::borrow::Cow;

use bytes::BytesMut;

/// A string of a text that has been checked: the bytes between its quotes, as written.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub(crate) raw: &'a [u8],
    pub(crate) escaped: bool,
}

impl<'a> Text<'a> {
    /// Whether the string says `word`, which has no character that JSON escapes.
    pub(crate) fn is(self, word: &str) -> bool {
        if self.escaped {
            self.decode().is_some_and(|text| text == word)
        } else {
            self.raw == word.as_bytes()
        }
    }

    /// The string itself; none when it holds half a surrogate pair, which no UTF-8 text can.
    pub(crate) fn decode(self) -> Option<Cow<'a, str>> {
        if !self.escaped {
            return std::str::from_utf8(self.raw).ok().map(Cow::Borrowed);
        }
        let mut text = String::with_capacity(self.raw.len());
        unescape(self.raw, &mut text).then_some(Cow::Owned(text))
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

/// Appends what the bytes between two quotes say, and tells whether nothing had to be replaced by U+FFFD.
///
/// The escapes have been checked by the reader; one that is broken all the same is left out.
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

/// The character of `\uXXXX`, or of two of them that make a surrogate pair, and the bytes it takes.
fn unicode(escape: &[u8]) -> (Option<char>, usize) {
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
    out.extend_from_slice(b"\"");
    let mut plain = 0;
    for (at, &byte) in text.as_bytes().iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&text.as_bytes()[plain..at]);
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
    out.extend_from_slice(&text.as_bytes()[plain..]);
    out.extend_from_slice(b"\"");
}
