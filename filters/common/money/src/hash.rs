//! Hashing of ids that are random already.

use std::hash::Hasher;

/// Mixes the two halves of an id. Ids are made here and are random in their lower half, so nobody can choose them to collide.
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
