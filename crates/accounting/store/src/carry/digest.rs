//! Digests of sets: sums of the hashes of their members, so that a member is added or removed without a read of the whole set.

use super::rows::OpeningRow;
use crate::entries::{DecodeError, Record};
use crate::journal::Packer;

/// The digest of the carried rows: the sum of the BLAKE3 hashes of all rows, as integers of 256 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowDigest([u64; 4]);

impl RowDigest {
    pub(crate) fn of(bytes: [u8; 32]) -> RowDigest {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            *word = u64::from_le_bytes(eight);
        }
        RowDigest(words)
    }

    pub(crate) fn bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn add(&mut self, row: &OpeningRow) {
        let mut carry = false;
        for (word, more) in self.0.iter_mut().zip(hash(row)) {
            let (sum, over) = word.overflowing_add(more);
            let (sum, over_again) = sum.overflowing_add(u64::from(carry));
            (*word, carry) = (sum, over || over_again);
        }
    }

    pub(crate) fn remove(&mut self, row: &OpeningRow) {
        let mut borrow = false;
        for (word, less) in self.0.iter_mut().zip(hash(row)) {
            let (rest, under) = word.overflowing_sub(less);
            let (rest, under_again) = rest.overflowing_sub(u64::from(borrow));
            (*word, borrow) = (rest, under || under_again);
        }
    }
}

/// The hash of a row: over a letter for the row's table and over the row's columns. Each number has 8 bytes, little-endian; each text or
/// byte string follows its length.
fn hash(row: &OpeningRow) -> [u64; 4] {
    let mut hasher = blake3::Hasher::new();
    let mut write = |tag: &[u8], numbers: &[i64], texts: &[&[u8]]| {
        hasher.update(tag);
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        for text in texts {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text);
        }
    };
    match row {
        OpeningRow::Node(row) => {
            let numbers = [row.node, row.id, row.commits as i64, row.at.as_micros()];
            write(b"n", &numbers, &[&row.hash]);
        }
        OpeningRow::Record {
            operation,
            id,
            body,
        } => write(b"r", &[*id], &[operation.as_bytes(), body]),
        OpeningRow::Sum(row) => {
            let numbers = [
                row.node,
                row.charged.get(),
                row.written_off.get(),
                row.allotted.get(),
            ];
            write(b"s", &numbers, &[row.account.as_bytes()]);
        }
        OpeningRow::Day(account, day) => {
            let numbers = [
                day.day_at.as_micros(),
                day.requests as i64,
                day.cache_hits as i64,
                day.incomplete as i64,
                day.prompt_tokens as i64,
                day.completion_tokens as i64,
                day.cost.get(),
                day.saved.get(),
                day.written_off.get(),
            ];
            let credential = day.credential.as_ref().map_or(&[][..], |id| id.as_bytes());
            let texts = [account.as_bytes(), day.model.as_bytes(), credential];
            write(b"d", &numbers, &texts);
        }
    }
    RowDigest::of(*hasher.finalize().as_bytes()).0
}

/// Number of records, and a sum over their contents: the order of equal records does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordDigest {
    pub(crate) records: i64,
    pub(crate) sum: i64,
}

impl RecordDigest {
    /// Adds a content `times` times; `times` may be negative.
    pub(crate) fn add(&mut self, text: &[u8], times: i64) {
        let mut first = [0; 8];
        first.copy_from_slice(&blake3::hash(text).as_bytes()[..8]);
        let sum = i64::from_le_bytes(first).wrapping_mul(times);
        self.records = self.records.wrapping_add(times);
        self.sum = self.sum.wrapping_add(sum);
    }

    /// Adds a record, packed alone, so that the packed record is equal in each body.
    pub(crate) fn add_record(
        &mut self,
        packer: &mut Packer,
        record: &Record<'_>,
        times: i64,
    ) -> Result<(), DecodeError> {
        packer.push(&record.part()?);
        self.add(&packer.finish(), times);
        Ok(())
    }
}
