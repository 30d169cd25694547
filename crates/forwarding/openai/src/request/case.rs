//! Detection of member names that differ from known names in case alone.
//!
//! JSON names are case-sensitive, and so are the names here. Several decoders behind gateways are case-insensitive: for Go's
//! `encoding/json`, `MODEL` is `model`, and of `MODEL` and `model` in an object the last member counts. The gateway would price a request
//! other than the request that the provider answers.

use crate::string::Text;

use super::error::Path;
use super::{RequestError, RequestErrorCode};

/// Members of `stream_options`.
pub(super) const STREAM_OPTIONS: &[&str] = &["include_usage"];

/// Members of `reasoning`.
pub(super) const REASONING: &[&str] = &["effort", "max_tokens", "enabled", "exclude"];

/// Members of a message.
pub(super) const MESSAGE: &[&str] = &[
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "function_call",
];

/// Members of a part of a message: the type, and the content by type.
pub(super) const PART: &[&str] = &[
    "type",
    "text",
    "image_url",
    "input_image",
    "image",
    "input_audio",
    "audio",
    "audio_url",
    "file",
    "input_file",
];

/// Refuses a member whose name equals a name of `known` except for case. `path` builds the member's path from the name.
///
/// Known names have only lower-case ASCII letters: a name of only lower-case letters, digits and signs is not compared.
#[inline]
pub(super) fn check(
    name: Text<'_>,
    known: &[&str],
    path: impl for<'p> FnOnce(&'p str) -> Path<'p>,
) -> Result<(), RequestError> {
    let plain = |byte: &u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    if !name.escaped && name.raw.iter().all(plain) {
        return Ok(());
    }
    check_closely(name, known, path)
}

#[cold]
fn check_closely(
    name: Text<'_>,
    known: &[&str],
    path: impl for<'p> FnOnce(&'p str) -> Path<'p>,
) -> Result<(), RequestError> {
    let Some(name) = name.decode() else {
        // Half a surrogate pair is not a letter.
        return Ok(());
    };
    match known.iter().find(|known| is_same(&name, known)) {
        Some(known) if **known != *name => Err(RequestError::at(
            RequestErrorCode::UnknownField,
            path(&name),
            &format!("differs from `{known}` in case alone; write `{known}`"),
        )),
        _ => Ok(()),
    }
}

/// Whether a case-insensitive decoder may confuse the names.
pub fn is_same(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.chars().map(fold), other.chars().map(fold));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (one, other) if one != other => return false,
            _ => {}
        }
    }
}

/// Case folding of a character, as in any of the usual decoders.
///
/// Besides the ASCII letters four characters fold to ASCII letters: the long s and the Kelvin sign, by Unicode's simple folding (Go's
/// `strings.EqualFold`), and the two of the Turkish i, by mapping to capitals and back (Java's `equalsIgnoreCase`).
fn fold(character: char) -> char {
    match character {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        '\u{130}' | '\u{131}' => 'i',
        _ => character.to_ascii_lowercase(),
    }
}
