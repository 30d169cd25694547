//! The bearer credential of a request (RFC 6750 section 2.1).

use http::{HeaderMap, header};

/// The longest credential that is parsed; ours have 53 bytes.
const BYTES_MAX: usize = 512;

/// The content of `Authorization`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presented<'a> {
    /// No credential, or one of another scheme, or the scheme without a credential.
    Nothing,
    /// A syntactically valid credential.
    Text(&'a [u8]),
    /// A malformed credential.
    Unreadable(Unreadable),
}

/// Why a field is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The field occurs more than once. A choice would be a guess, and an intermediary may choose differently.
    Twice,
    /// Characters outside the syntax, or too many.
    Malformed,
}

impl<'a> Presented<'a> {
    /// Parses the field: `Bearer` in any case, white space, and a `b64token`.
    pub(crate) fn read(headers: &'a HeaderMap) -> Presented<'a> {
        let mut fields = headers.get_all(header::AUTHORIZATION).iter();
        let Some(field) = fields.next() else {
            return Presented::Nothing;
        };
        if fields.next().is_some() {
            return Presented::Unreadable(Unreadable::Twice);
        }
        Presented::of(field.as_bytes())
    }

    /// Parses the value of a field.
    pub(crate) fn of(field: &'a [u8]) -> Presented<'a> {
        let (scheme, rest) = scheme(field);
        if !scheme.eq_ignore_ascii_case(b"Bearer") {
            return Presented::Nothing;
        }
        let text = rest.trim_ascii();
        if text.is_empty() {
            Presented::Nothing
        } else if text.len() <= BYTES_MAX && is_b64token(text) {
            Presented::Text(text)
        } else {
            Presented::Unreadable(Unreadable::Malformed)
        }
    }
}

/// The scheme of a credential, and the rest of the field (RFC 9110 section 11.4); a tab separates them as a space does.
pub(crate) fn scheme(field: &[u8]) -> (&[u8], &[u8]) {
    match field.iter().position(|&byte| matches!(byte, b' ' | b'\t')) {
        Some(space) => field.split_at(space),
        None => (field, &field[field.len()..]),
    }
}

/// `1*( ALPHA / DIGIT / "-" / "." / "_" / "~" / "+" / "/" ) *"="`
fn is_b64token(text: &[u8]) -> bool {
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    let body = &text[..text.len() - padding];
    // Every byte without an early exit: nearly every input is valid.
    let right = |so_far, &byte: &u8| so_far & IN_B64TOKEN[usize::from(byte)];
    !body.is_empty() && body.iter().fold(true, right)
}

/// The bytes of a `b64token` before its padding.
const IN_B64TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = matches!(byte as u8, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'+' | b'/');
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    /// The credential in brackets, or a word for any other result.
    fn read(fields: &[&[u8]]) -> String {
        let mut headers = HeaderMap::new();
        for field in fields {
            let value = HeaderValue::from_bytes(field).expect("no control characters");
            headers.append(header::AUTHORIZATION, value);
        }
        match Presented::read(&headers) {
            Presented::Nothing => String::from("nothing"),
            Presented::Text(text) => format!("<{}>", String::from_utf8_lossy(text)),
            Presented::Unreadable(Unreadable::Twice) => String::from("twice"),
            Presented::Unreadable(Unreadable::Malformed) => String::from("malformed"),
        }
    }

    #[test]
    fn rfc6750_2_1_the_scheme_may_be_in_capitals_and_the_credential_is_a_b64token() {
        let long = [b"Bearer ".as_slice(), &[b'a'; 513]].concat();
        let cases: [(&[&[u8]], &str); 21] = [
            (&[], "nothing"),
            (&[b""], "nothing"),
            (&[b"Basic dXNlcjpwYXNz"], "nothing"),
            (&[b"Bearer"], "nothing"),
            (&[b"Bearer   "], "nothing"),
            (&[b"Bearerabc"], "nothing"),
            (&[b"sk-svc-abc"], "nothing"),
            (&[b"Bearer abc"], "<abc>"),
            (&[b"bEARER   a-._~+/9=="], "<a-._~+/9==>"),
            (&[b"BEARER abc "], "<abc>"),
            (&[b"Bearer\tabc"], "<abc>"),
            (&[b"Bearer \t abc"], "<abc>"),
            (&[b"Bearer a b"], "malformed"),
            (&[b"Bearer abc, Basic def"], "malformed"),
            (&[b"Bearer \"abc\""], "malformed"),
            (&[b"Bearer ="], "malformed"),
            (&[b"Bearer a=b"], "malformed"),
            (&[b"Bearer caf\xc3\xa9"], "malformed"),
            (&[&long], "malformed"),
            (&[b"Bearer abc", b"Bearer abc"], "twice"),
            (&[b"Basic abc", b"Bearer abc"], "twice"),
        ];
        for (fields, found) in cases {
            let shown: Vec<_> = fields
                .iter()
                .map(|field| field.escape_ascii().to_string())
                .collect();
            assert_eq!(read(fields), found, "{shown:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_client_bodies_are_parsed_without_a_panic(bytes in prop::collection::vec(0x20u8.., 0..600)) {
            let bytes: Vec<u8> = bytes.into_iter().filter(|&byte| byte != 0x7f).collect();
            read(&[&bytes]);
            read(&[&[b"Bearer ".as_slice(), &bytes].concat()]);
        }
    }
}
