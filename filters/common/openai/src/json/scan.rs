//! The search that reading strings comes down to.

/// Offset of the first quote, backslash or control character at or after `from`, or the length of the text.
///
/// Eight bytes at a time: a byte is special when subtracting borrows into its top bit. Borrows can mark bytes
/// above a true match only, and the lowest mark is the one that is used.
pub(super) fn special(text: &[u8], from: usize) -> usize {
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
        for length in 0..40 {
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
