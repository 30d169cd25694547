//! The search that reading strings comes down to.

/// Offset of the first quote, backslash or control character at or after `from`, or the length of the text.
///
/// Most strings are names and short values, and end within two words; what goes on is left to wider registers.
#[inline]
pub(crate) fn special(text: &[u8], from: usize) -> usize {
    let Some(near) = text.get(from..).and_then(|rest| rest.first_chunk::<16>()) else {
        return last(text, from);
    };
    let (words, _) = near.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let marks = marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return from + 8 * number + marks.trailing_zeros() as usize / 8;
        }
    }
    far(text, from + 16)
}

/// The same for a string that goes on for longer.
#[inline(never)]
fn far(text: &[u8], from: usize) -> usize {
    let (blocks, rest) = text[from..].as_chunks::<32>();
    for (number, block) in blocks.iter().enumerate() {
        // All of them, without a way out, so that the compiler takes many at once.
        let any = block
            .iter()
            .fold(0, |any, &byte| any | u8::from(is_special(byte)));
        if any != 0 {
            return last(text, from + 32 * number);
        }
    }
    last(text, text.len() - rest.len())
}

#[inline]
fn is_special(byte: u8) -> bool {
    (byte == b'"') | (byte == b'\\') | (byte < 0x20)
}

/// The same for where the end is near, in the text or of it.
#[inline(never)]
fn last(text: &[u8], from: usize) -> usize {
    let (words, rest) = text[from..].as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let marks = marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return from + 8 * number + marks.trailing_zeros() as usize / 8;
        }
    }
    let found = rest.iter().position(|&byte| is_special(byte));
    found.map_or(text.len(), |found| text.len() - rest.len() + found)
}

/// A bit in the top of the lowest byte of a word that is special, or none.
///
/// A byte is special when subtracting borrows into its top bit. Borrows can mark bytes above a true match only, and the lowest mark is
/// the one that is used.
#[inline]
fn marks(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let marks = (quote.wrapping_sub(ONES) & !quote)
        | (backslash.wrapping_sub(ONES) & !backslash)
        | (word.wrapping_sub(ONES * 0x20) & !word);
    marks & TOPS
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
                        for from in [0, at / 3, at] {
                            let found = special(&text, from);
                            assert_eq!(found, at, "{special_byte:#x} in {filler:#x}");
                        }
                    }
                }
            }
            assert_eq!(special(&vec![b'x'; length], 0), length);
        }
    }
}
