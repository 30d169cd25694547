//! JSON text, written by hand into a reused buffer.

/// Appends a string with its quotes. Bytes outside printable ASCII are escaped, so that every entry is one line.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    // Nearly every text needs no escape, and then one copy is enough.
    if text.bytes().all(is_plain) {
        out.extend_from_slice(text.as_bytes());
    } else {
        escaped(out, text);
    }
    out.push(b'"');
}

#[cold]
fn escaped(out: &mut Vec<u8>, text: &str) {
    for letter in text.chars() {
        match letter {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            ' '..='~' => out.push(letter as u8),
            _ => {
                let mut units = [0u16; 2];
                for unit in letter.encode_utf16(&mut units) {
                    out.extend_from_slice(b"\\u");
                    for shift in [12, 8, 4, 0] {
                        out.push(HEX[usize::from(*unit >> shift & 0xf)]);
                    }
                }
            }
        }
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends the 16 bytes of an id as lower-case hex digits.
pub(crate) fn hex(out: &mut Vec<u8>, bytes: &[u8; 16]) {
    let mut digits = [0; 32];
    base16ct::lower::encode(bytes, &mut digits).expect("two digits for each byte");
    out.extend_from_slice(&digits);
}

/// Appends a constant with its quotes: one that needs no escape.
pub(super) fn word(out: &mut Vec<u8>, word: &'static str) {
    debug_assert!(word.bytes().all(is_plain), "`{word}` needs escapes");
    out.push(b'"');
    out.extend_from_slice(word.as_bytes());
    out.push(b'"');
}

fn is_plain(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\'
}

/// Appends a whole number.
pub(super) fn number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_reads_back_from_one_line() {
        for text in ["", "plain", "\"quoted\\\"", "line\nbreak\u{7f}", "ключ 🔑"] {
            let mut out = Vec::new();
            string(&mut out, text);
            assert!(out.iter().all(|byte| (b' '..=b'~').contains(byte)));
            let back: String = serde_json::from_slice(&out).expect("JSON");
            assert_eq!(back, text);
        }
    }
}
