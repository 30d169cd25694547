//! The search that reading strings comes down to.

/// Offset of the first quote, backslash or control character at or after `from`, or the length of the text.
///
/// Most strings are short, and looked at eight bytes at a time; what goes on is left to wider registers.
pub(super) fn special(text: &[u8], from: usize) -> usize {
    let near = text.len().min(from + NEAR_BYTES);
    let at = words(&text[..near], from);
    if at < near || near == text.len() {
        return at;
    }
    let rest = &text[near..];
    let end = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
    // All of them, without a way out, so that the compiler can take many at once: text hardly ever has one.
    let controls = rest[..end]
        .iter()
        .fold(false, |any, &byte| any | (byte < 0x20));
    if controls {
        return words(text, near);
    }
    near + end
}

/// Where the long way round begins.
const NEAR_BYTES: usize = 32;

/// Eight bytes at a time: a byte is special when subtracting borrows into its top bit. Borrows can mark bytes
/// above a true match only, and the lowest mark is the one that is used.
fn words(text: &[u8], from: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let mut at = from;
    while let Some(word) = text.get(at..at + 8) {
        let word = u64::from_le_bytes(word.try_into().expect("the slice is eight bytes long"));
        let quote = word ^ (ONES * u64::from(b'"'));
        let backslash = word ^ (ONES * u64::from(b'\\'));
        let marks = (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        if marks & TOPS != 0 {
            return at + (marks & TOPS).trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    text[at..]
        .iter()
        .position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20)
        .map_or(text.len(), |found| at + found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_special_byte_is_found_at_every_place_among_all_others() {
        for length in 0..120 {
            for at in 0..length {
                for special_byte in [b'"', b'\\', 0, 0x1f, b'\n'] {
                    for filler in [b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
                        let mut text = vec![filler; length];
                        text[at] = special_byte;
                        assert_eq!(special(&text, 0), at, "{special_byte:#x} in {filler:#x}");
                    }
                }
            }
            assert_eq!(special(&vec![b'x'; length], 0), length);
        }
    }
}
