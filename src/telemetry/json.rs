//! JSON text, written by hand into a buffer that is used again.

/// Appends a string with its quotes. Bytes outside visible ASCII are escaped, so that a line is a line whatever is in it.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    // Nearly every text is plain, and then one copy does.
    let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
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
pub(super) fn hex(out: &mut Vec<u8>, bytes: &[u8; 16]) {
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 0xf)];
    }
    out.extend_from_slice(&digits);
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
