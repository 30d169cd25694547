//! A fast hash for keys that clients do not choose.

use std::hash::Hasher;

/// Mixes the words of a key, in a few instructions each.
///
/// For ids, which are generated here and are random in their lower half, and for tables of names from the settings. Lookups may use any
/// key, but the keys in the table are trusted. For a table with client-chosen keys this hash is unsuitable (collision attacks).
#[derive(Clone, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for half in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..half.len()].copy_from_slice(half);
            self.0 = (self.0.rotate_left(29) ^ u64::from_le_bytes(word))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
