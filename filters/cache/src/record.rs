//! The form in which an entry is stored at the shared server: a seal, fixed fields, and the answer, compressed above 4 KiB.
//!
//! The seal is a BLAKE3 digest over the epoch, the key and the rest, keyed with a secret derived from the store's random bytes. A record is
//! not replayed if another program wrote the record, a fault changed the record, or the record was given the name of a later epoch.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_filter::{CacheEntryId, Tokens};
use tollgate_openai::Family;

use crate::entry::{Answer, Entry};
use crate::key::Key;

/// Raised whenever this form changes, or answers stored by earlier releases are not to be replayed (version 1 joined answers from streams
/// by other rules). The version is part of the name of each entry too, so that a node does not read entries of another version.
pub(crate) const VERSION: u8 = 2;

const COMPRESSED_FROM: usize = 4096;

/// Fast: some milliseconds for the largest answers.
const LEVEL: i32 = 1;

const SEAL_BYTES: usize = 16;

/// Version, flags, id, end in microseconds since 1970, tokens of prompt and completion.
const FIXED_BYTES: usize = 1 + 1 + 16 + 8 + 8 + 8;

const COMPRESSED: u8 = 1;
/// A bit: the number of a family up to 1. A third cacheable family needs another form, and a higher [`VERSION`].
const FAMILY: u8 = 2;
const FAMILY_SHIFT: u32 = FAMILY.trailing_zeros();
const TOKENS: u8 = 4;

/// The key for the seals of every node's entries.
pub(crate) struct Seal([u8; 32]);

/// The name of an entry: the epoch, and the key.
pub(crate) type Name<'a> = (i64, &'a Key);

/// The reader's expectations of an entry.
pub(crate) struct Expected<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) model: Arc<str>,
    /// The largest answer.
    pub(crate) bytes_max: usize,
    /// The longest time for which an answer is replayed.
    pub(crate) ttl: Duration,
    pub(crate) now: Timestamp,
    pub(crate) elapsed: Duration,
}

impl Seal {
    pub(crate) fn new(root: &[u8; 32]) -> Seal {
        Seal(blake3::derive_key(
            "tollgate 2026-11-23 shared cache entries",
            root,
        ))
    }

    fn over(&self, (epoch, key): Name<'_>, rest: &[u8]) -> [u8; SEAL_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&epoch.to_le_bytes());
        hasher.update(&key.0).update(rest);
        let mut seal = [0; SEAL_BYTES];
        seal.copy_from_slice(&hasher.finalize().as_bytes()[..SEAL_BYTES]);
        seal
    }

    /// The record of an entry with this text. The entry ends at `expires`.
    pub(crate) fn write(
        &self,
        name: Name<'_>,
        entry: &Entry,
        text: &[u8],
        expires: Timestamp,
    ) -> Vec<u8> {
        let smaller = match text.len() > COMPRESSED_FROM {
            true => zstd::bulk::compress(text, LEVEL).ok(),
            false => None,
        };
        let smaller = smaller.filter(|smaller| smaller.len() < text.len());
        let mut flags = 0;
        if smaller.is_some() {
            flags |= COMPRESSED;
        }
        flags |= entry.family.cache_code << FAMILY_SHIFT;
        let tokens = entry.tokens.inspect(|_| flags |= TOKENS);
        let tokens = tokens.map_or([0, 0], |tokens| [tokens.prompt, tokens.completion]);
        let body = smaller.as_deref().unwrap_or(text);
        let mut out = Vec::with_capacity(SEAL_BYTES + FIXED_BYTES + body.len());
        out.extend([0; SEAL_BYTES]);
        out.extend([VERSION, flags]);
        out.extend(entry.id.0);
        out.extend(expires.as_micros().to_le_bytes());
        out.extend(tokens.map(u64::to_le_bytes).concat());
        out.extend_from_slice(body);
        let seal = self.over(name, &out[SEAL_BYTES..]);
        out[..SEAL_BYTES].copy_from_slice(&seal);
        out
    }

    /// A record with this content.
    pub(crate) fn sealed(&self, name: Name<'_>, rest: &[u8]) -> Vec<u8> {
        [&self.over(name, rest)[..], rest].concat()
    }

    /// The entry of a record; `None` for a record that has ended, or was not written by a node with this secret.
    pub(crate) fn read(&self, record: &[u8], expected: Expected<'_>) -> Option<Entry> {
        let (seal, rest) = record.split_at_checked(SEAL_BYTES)?;
        if self.over(expected.name, rest) != *seal {
            return None;
        }
        let (fixed, body) = rest.split_at_checked(FIXED_BYTES)?;
        let (flags, fixed) = match fixed {
            [VERSION, flags, fixed @ ..] => (*flags, fixed),
            _ => return None,
        };
        let (id, numbers) = fixed.split_first_chunk()?;
        let number =
            |at: usize| -> Option<[u8; 8]> { numbers.get(8 * at..)?.first_chunk().copied() };
        let expires = Timestamp::from_micros(i64::from_le_bytes(number(0)?));
        let left = expires.as_micros().saturating_sub(expected.now.as_micros());
        let left = Duration::from_micros(u64::try_from(left).ok().filter(|left| *left > 0)?);
        let tokens = Tokens {
            prompt: u64::from_le_bytes(number(1)?),
            completion: u64::from_le_bytes(number(2)?),
        };
        let family = Family::cached_as((flags & FAMILY) >> FAMILY_SHIFT)?;
        let answer = match flags & COMPRESSED {
            0 => Answer::as_sent(body),
            _ => Answer::as_sent(&zstd::bulk::decompress(body, expected.bytes_max).ok()?),
        };
        Some(Entry {
            id: CacheEntryId(*id),
            model: expected.model,
            tokens: (flags & TOKENS != 0).then_some(tokens),
            expires: expected.elapsed.saturating_add(left.min(expected.ttl)),
            family,
            answer,
            events: [None, None],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key([3; 32]);

    const EPOCH: i64 = 1_700_000_000_000_000;

    fn expected(key: &Key, now: i64) -> Expected<'_> {
        Expected {
            name: (EPOCH, key),
            model: "m".into(),
            bytes_max: 1 << 20,
            ttl: Duration::from_secs(60),
            now: Timestamp::from_secs(now),
            elapsed: Duration::from_secs(5),
        }
    }

    fn entry(text: &str, tokens: Option<Tokens>) -> Entry {
        Entry {
            id: CacheEntryId([7; 16]),
            model: "m".into(),
            tokens,
            expires: Duration::MAX,
            family: Family::TEXT,
            answer: Answer::as_sent(text.as_bytes()),
            events: [None, None],
        }
    }

    /// The flag is one bit.
    #[test]
    fn the_number_of_each_cacheable_family_fits_into_a_record() {
        for family in Family::ALL.into_iter().filter(|family| family.cacheable) {
            assert!(
                family.cache_code << FAMILY_SHIFT & !FAMILY == 0,
                "{family:?}"
            );
        }
    }

    #[test]
    fn an_entry_survives_its_record_compressed_or_not() {
        let seal = Seal::new(&[1; 32]);
        let tokens = Tokens {
            prompt: 3,
            completion: u64::MAX,
        };
        for (text, tokens) in [
            ("short".to_owned(), None),
            ("long ".repeat(10_000), Some(tokens)),
        ] {
            let ends = Timestamp::from_secs(110);
            let record = seal.write((EPOCH, &KEY), &entry(&text, tokens), text.as_bytes(), ends);
            assert!(record.len() < 5_000, "{}", record.len());
            let read = seal.read(&record, expected(&KEY, 100)).expect("an entry");
            assert_eq!(read.text("x_svc").expect("a text"), text.as_bytes());
            assert_eq!((read.id.0, read.tokens), ([7; 16], tokens));
            assert_eq!(read.family, Family::TEXT);
            assert_eq!(
                read.expires,
                Duration::from_secs(15),
                "ten seconds are left"
            );
            assert!(seal.read(&record, expected(&KEY, 110)).is_none(), "ended");
            let early = seal
                .read(&record, expected(&KEY, -1_000))
                .expect("an entry");
            assert_eq!(
                early.expires,
                Duration::from_secs(65),
                "never more than the ttl"
            );
        }
    }

    #[test]
    fn a_record_that_was_changed_moved_or_sealed_by_others_is_not_read() {
        let seal = Seal::new(&[1; 32]);
        let text = "x".repeat(5_000);
        let ends = Timestamp::from_secs(110);
        let record = seal.write((EPOCH, &KEY), &entry(&text, None), text.as_bytes(), ends);
        for at in 0..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 1;
            assert!(
                seal.read(&changed, expected(&KEY, 100)).is_none(),
                "byte {at}"
            );
            assert!(seal.read(&record[..at], expected(&KEY, 100)).is_none());
        }
        assert!(seal.read(&record, expected(&Key([4; 32]), 100)).is_none());
        let mut later = expected(&KEY, 100);
        later.name.0 += 1;
        assert!(seal.read(&record, later).is_none(), "of another epoch");
        let other = Seal::new(&[2; 32]);
        assert!(other.read(&record, expected(&KEY, 100)).is_none());
        let mut small = expected(&KEY, 100);
        small.bytes_max = 4_999;
        assert!(
            seal.read(&record, small).is_none(),
            "too large for this node"
        );
    }
}
