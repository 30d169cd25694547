//! Byte scanning, the hot loop of parsing strings.

/// Offset of the first quote, backslash or control character at or after `from`, or the length of the text.
///
/// Most strings are names and short values, and end within two words; longer strings are scanned with wider registers.
#[inline]
pub(crate) fn special(text: &[u8], from: usize) -> usize {
    let Some(near) = text.get(from..).and_then(|rest| rest.first_chunk::<16>()) else {
        return last(text, from);
    };
    let (words, _) = near.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let marks = marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return from + 8 * number + place(marks);
        }
    }
    far(text, from + 16)
}

/// As [`special`], for a text without control characters.
#[inline]
pub(crate) fn special_but_controls(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    if let Some(near) = rest.first_chunk() {
        let word = u64::from_le_bytes(*near);
        let marks = marks_of(b'"', word) | marks_of(b'\\', word);
        if marks != 0 {
            return from + place(marks);
        }
    }
    let found = memchr::memchr2(b'"', b'\\', rest);
    from + found.unwrap_or(rest.len())
}

/// Properties of a whole text, found in a single scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// Every byte is ASCII, and the text is therefore UTF-8.
    pub(crate) ascii: bool,
    /// Some byte is a control character.
    pub(crate) controls: bool,
}

impl Bytes {
    pub(crate) fn of(text: &[u8]) -> Bytes {
        // Whole blocks without an early exit, so that the compiler vectorises the loop.
        let look = |(any, least): (u8, u8), &byte: &u8| (any | byte, least.min(byte));
        let (blocks, rest) = text.as_chunks::<64>();
        let mut seen = ([0u8; 64], [u8::MAX; 64]);
        for block in blocks {
            for (at, byte) in block.iter().enumerate() {
                seen.0[at] |= byte;
                seen.1[at] = seen.1[at].min(*byte);
            }
        }
        let any = seen.0.iter().fold(0, |any, &byte| any | byte);
        let least = seen.1.iter().fold(u8::MAX, |least, &byte| least.min(byte));
        let (any, least) = rest.iter().fold((any, least), look);
        Bytes {
            ascii: any.is_ascii(),
            controls: least < b' ',
        }
    }
}

/// The number of decimal digits at the start of a word, the first byte lowest.
#[inline]
pub(crate) fn digits(word: u64) -> usize {
    let ten = word ^ (ONES * b'0' as u64);
    // A byte of ten and more sets the top bit of its byte. Without the top bit, no carry leaves a byte.
    let marks = (((ten & !TOPS) + ONES * (0x80 - 10)) | ten) & TOPS;
    if marks == 0 { 8 } else { place(marks) }
}

/// As [`special`], for a longer string.
#[inline(never)]
fn far(text: &[u8], from: usize) -> usize {
    let (blocks, rest) = text[from..].as_chunks::<32>();
    for (number, block) in blocks.iter().enumerate() {
        // All bytes without an early exit, so that the compiler vectorises the loop.
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

/// As [`special`], near the end of the string or of the text.
#[inline(never)]
fn last(text: &[u8], from: usize) -> usize {
    let (words, rest) = text[from..].as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let marks = marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return from + 8 * number + place(marks);
        }
    }
    let found = rest.iter().position(|&byte| is_special(byte));
    found.map_or(text.len(), |found| text.len() - rest.len() + found)
}

/// The top bit of the lowest special byte of a word, or zero.
///
/// A byte is special when the subtraction borrows into its top bit. Borrows can mark only bytes above a true match, and only the lowest
/// mark is used.
#[inline]
fn marks(word: u64) -> u64 {
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    marks_of(b'"', word) | marks_of(b'\\', word) | (controls & TOPS)
}

/// Marks bytes equal to `byte`.
#[inline]
pub(crate) fn marks_of(byte: u8, word: u64) -> u64 {
    let other = word ^ (ONES * u64::from(byte));
    other.wrapping_sub(ONES) & !other & TOPS
}

/// The number of bytes before the lowest mark.
#[inline]
pub(crate) fn place(marks: u64) -> usize {
    marks.trailing_zeros() as usize / 8
}

/// Every bit of the bytes before the lowest mark. A mark must exist.
#[inline]
pub(crate) fn below(marks: u64) -> u64 {
    (marks ^ marks.wrapping_sub(1)) >> 8
}

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

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
                            if special_byte > 0x1f {
                                assert_eq!(special_but_controls(&text, from), at);
                            }
                        }
                    }
                }
            }
            assert_eq!(special(&vec![b'x'; length], 0), length);
            assert_eq!(special_but_controls(&vec![b'x'; length], 0), length);
        }
        assert_eq!(special_but_controls(b"x", 2), 2);
    }

    #[test]
    fn every_byte_of_a_text_is_scanned() {
        for length in 0..140 {
            for at in 0..length {
                for byte in [0, 0x1f, b' ', b'~', 0x7f, 0x80, 0xff] {
                    let mut text = vec![b'x'; length];
                    text[at] = byte;
                    let seen = Bytes {
                        ascii: byte < 0x80,
                        controls: byte < b' ',
                    };
                    assert_eq!(Bytes::of(&text), seen, "{byte:#x} at {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn digits_are_counted_up_to_the_first_byte_that_is_none() {
        for at in 0..8 {
            for byte in 0..=u8::MAX {
                for behind in [0, b'0', b'9', b':', 0xff] {
                    let mut word = [behind; 8];
                    word[..at].copy_from_slice(&b"90817263"[..at]);
                    word[at] = byte;
                    let first = word.iter().position(|byte| !byte.is_ascii_digit());
                    assert_eq!(digits(u64::from_le_bytes(word)), first.unwrap_or(8));
                }
            }
        }
    }
}
