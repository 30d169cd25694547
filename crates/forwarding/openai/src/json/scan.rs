//! Byte scanning, the hot loop of parsing strings.

use wide::u8x16;

/// Bytes that are compared at once.
const BLOCK: usize = 16;

/// Offset of the first quote, backslash or control character at or after `from`, or the length of the text.
#[inline]
pub(crate) fn special(text: &[u8], from: usize) -> usize {
    match near(text, from) {
        Some(found) => found,
        None => Specials::of(text, from).next(from),
    }
}

/// As [`special`], for a byte among the next 16. Most strings are names and short values.
#[inline]
pub(crate) fn near(text: &[u8], from: usize) -> Option<usize> {
    let block = text.get(from..)?.first_chunk()?;
    let marks = marks(block);
    (marks != 0).then(|| from + marks.trailing_zeros() as usize)
}

/// As [`special`], for a text without control characters. For a longer string, or near the end of the text.
#[inline(never)]
pub(crate) fn far_but_controls(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    from + memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len())
}

/// The special bytes of a text, found block by block: texts with escapes have a special byte every few words.
pub(crate) struct Specials<'a> {
    text: &'a [u8],
    /// The position of the block.
    block: usize,
    /// A bit for each special byte of the block, the first byte lowest. The end of the text is marked too.
    marks: u32,
}

impl<'a> Specials<'a> {
    pub(crate) fn of(text: &'a [u8], from: usize) -> Specials<'a> {
        let (block, marks) = (from, block_marks(text, from));
        Specials { text, block, marks }
    }

    /// As [`special`]. `from` is at least the last result, and at most the length of the text.
    #[inline]
    pub(crate) fn next(&mut self, from: usize) -> usize {
        let passed = from - self.block;
        if passed < BLOCK {
            self.marks &= u32::MAX << passed;
        } else {
            (self.block, self.marks) = (from, block_marks(self.text, from));
        }
        while self.marks == 0 {
            self.block += BLOCK;
            self.marks = block_marks(self.text, self.block);
        }
        self.block + self.marks.trailing_zeros() as usize
    }
}

/// The marks of the block at `from`, with a mark for the end of the text.
#[inline]
fn block_marks(text: &[u8], from: usize) -> u32 {
    let rest = text.get(from..).unwrap_or_default();
    match rest.first_chunk() {
        Some(block) => marks(block),
        None => last_marks(rest),
    }
}

#[cold]
fn last_marks(rest: &[u8]) -> u32 {
    let mut block = [b' '; BLOCK];
    block[..rest.len()].copy_from_slice(rest);
    marks(&block) | 1 << rest.len()
}

/// A bit for each quote, backslash and control character of a block, the first byte lowest.
#[inline]
fn marks(block: &[u8; BLOCK]) -> u32 {
    let block = u8x16::new(*block);
    let is = |byte| block.simd_eq(u8x16::splat(byte));
    let is_control = block.simd_eq(block.min(u8x16::splat(0x1f)));
    (is(b'"') | is(b'\\') | is_control).to_bitmask()
}

/// Whether `byte` after a backslash is an escape of two bytes.
#[inline]
pub(crate) fn is_short_escape(byte: u8) -> bool {
    SHORT_ESCAPES[usize::from(byte)]
}

static SHORT_ESCAPES: [bool; 256] = {
    let mut table = [false; 256];
    let escapes = *b"\"\\/bfnrt";
    let mut at = 0;
    while at < escapes.len() {
        table[escapes[at] as usize] = true;
        at += 1;
    }
    table
};

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
                                assert_eq!(far_but_controls(&text, from), at);
                            }
                        }
                    }
                }
            }
            assert_eq!(special(&vec![b'x'; length], 0), length);
            assert_eq!(far_but_controls(&vec![b'x'; length], 0), length);
        }
        assert_eq!(far_but_controls(b"x", 2), 2);
    }

    #[test]
    fn every_special_byte_is_found_from_every_place() {
        let text: Vec<u8> = (0..=u8::MAX)
            .chain(*b"\"\\ab\"")
            .chain(b'a'..=b'z')
            .collect();
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
        for end in 0..=text.len() {
            let text = &text[..end];
            let expected = |from: usize| {
                let found = text[from..].iter().position(is_special);
                found.map_or(end, |after| from + after)
            };
            for first in 0..=end {
                let mut specials = Specials::of(text, first);
                let mut from = first;
                loop {
                    let found = specials.next(from);
                    assert_eq!(found, expected(from), "{from} of {end}");
                    if found == end {
                        break;
                    }
                    // As after an escape of one character.
                    from = (found + 2).min(end);
                }
            }
        }
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
