//! The search that reading strings comes down to.

/// Offset of the first quote, backslash or control character at or after `from`, or the length of the text.
///
/// Most strings are short, and looked at eight bytes at a time; what goes on is left to wider registers.
#[inline]
pub(crate) fn special(text: &[u8], from: usize) -> usize {
    let (words, rest) = text[from..].as_chunks::<8>();
    for (number, word) in words.iter().take(NEAR_WORDS).enumerate() {
        let marks = marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return from + 8 * number + marks.trailing_zeros() as usize / 8;
        }
    }
    if words.len() > NEAR_WORDS {
        far(text, from + 8 * NEAR_WORDS)
    } else {
        last(text, text.len() - rest.len())
    }
}

/// How many words are looked at before the long way round begins.
const NEAR_WORDS: usize = 4;

/// The same for a string that goes on for long.
#[inline(never)]
fn far(text: &[u8], from: usize) -> usize {
    let rest = &text[from..];
    let end = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
    // All of them, without a way out, so that the compiler can take many at once: text hardly ever has one.
    let controls = rest[..end]
        .iter()
        .fold(false, |any, &byte| any | (byte < 0x20));
    if controls {
        return last(text, from);
    }
    from + end
}

/// The same byte by byte, for the last few of a text.
#[cold]
#[inline(never)]
fn last(text: &[u8], from: usize) -> usize {
    let is_special = |&byte: &u8| byte == b'"' || byte == b'\\' || byte < 0x20;
    let found = text[from..].iter().position(is_special);
    found.map_or(text.len(), |found| from + found)
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
