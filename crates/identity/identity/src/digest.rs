//! The digest for storage and look-up of a credential.

use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256 of a credential's text (FIPS 180-4).
///
/// The text has some 238 random bits and cannot be guessed; a slow password hash would not add security.
#[derive(Clone, Copy, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of a text.
    pub fn of(text: &[u8]) -> Digest {
        Digest(Sha256::digest(text).into())
    }

    /// A digest from its stored bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    /// The bytes to store.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for Digest {
    /// In constant time, so that timing does not reveal the stored digest.
    fn eq(&self, other: &Digest) -> bool {
        // Word by word; the differences are combined before the comparison.
        let words = self.0.as_chunks::<8>().0.iter();
        let pairs = words.zip(other.0.as_chunks::<8>().0);
        let differences = pairs.fold(0, |differences, (one, other)| {
            differences | (u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other))
        });
        differences.ct_eq(&0).into()
    }
}

impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest([redacted])")
    }
}

/// A hasher for keys that are already random (digests and ids): uses eight of their bytes unchanged.
#[derive(Default)]
pub(crate) struct RandomAlready(u64);

pub(crate) type BuildRandomAlready = BuildHasherDefault<RandomAlready>;

impl Hasher for RandomAlready {
    fn write(&mut self, bytes: &[u8]) {
        let last = bytes
            .last_chunk()
            .expect("digests and ids have 16 bytes at least");
        self.0 = u64::from_le_bytes(*last);
    }

    /// The length prefix, which is constant.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use tollgate_money::AccountId;

    use super::*;

    #[test]
    fn digests_are_equal_when_every_byte_is() {
        let one = Digest::of(b"one");
        assert!(one == Digest::from_bytes(*one.as_bytes()));
        for place in 0..32 {
            for bit in 0..8 {
                let mut bytes = *one.as_bytes();
                bytes[place] ^= 1 << bit;
                assert!(one != Digest::from_bytes(bytes), "{place}");
            }
        }
    }

    #[test]
    fn digests_and_ids_hash_to_their_own_random_bytes() {
        let hash = BuildRandomAlready::default();
        let digests: HashSet<u64> = (0..1000u16)
            .map(|number| hash.hash_one(Digest::of(&number.to_le_bytes())))
            .collect();
        assert_eq!(digests.len(), 1000);
        let ids: HashSet<u64> = (0..=255)
            .map(|number| hash.hash_one(AccountId::from_parts(1, [number; 10])))
            .collect();
        assert_eq!(ids.len(), 256);
    }
}
