//! The hash chain over commits.

use tollgate_money::Micros;

use crate::books::{Entry, Seal};

/// Gathers the entries of one commit and seals them.
///
/// The order in which entries are added does not matter: they are hashed in the order of their keys, so that whoever recomputes a
/// seal needs nothing but the rows.
#[derive(Debug, Default)]
pub struct Sealer {
    text: Vec<u8>,
    /// Key of each entry, and where its text stands.
    lines: Vec<([u8; 17], usize, usize)>,
    sum_available: i64,
    sum_held: i64,
    at: i64,
}

/// A place in a [`Sealer`] to come back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    lines: usize,
    text: usize,
    sum_available: i64,
    sum_held: i64,
    at: i64,
}

impl Sealer {
    /// Adds one entry.
    pub fn add(&mut self, entry: &Entry) {
        let start = self.text.len();
        let mut key = [0; 17];
        key[..16].copy_from_slice(entry.operation.as_bytes());
        key[16] = entry.phase() as u8;
        self.text.extend_from_slice(&key);
        self.text.push(entry.kind.code() as u8);
        self.text.push(entry.contra.code() as u8);
        self.text.extend_from_slice(entry.account.as_bytes());
        for number in [entry.d_available.get(), entry.d_held.get(), entry.at] {
            self.text.extend_from_slice(&number.to_le_bytes());
        }
        // Optional values carry their presence, so that no two entries have the same text.
        self.text.push(u8::from(entry.price_version.is_some()));
        let version = entry.price_version.unwrap_or(0);
        self.text.extend_from_slice(&version.to_le_bytes());
        self.text.push(u8::from(entry.reference.is_some()));
        let reference = entry.reference.as_deref().unwrap_or("");
        self.text
            .extend_from_slice(&(reference.len() as u64).to_le_bytes());
        self.text.extend_from_slice(reference.as_bytes());
        self.lines.push((key, start, self.text.len()));
        // The sums of a damaged file may be anything; they are compared, not relied on.
        self.sum_available = self.sum_available.wrapping_add(entry.d_available.get());
        self.sum_held = self.sum_held.wrapping_add(entry.d_held.get());
        self.at = self.at.max(entry.at);
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none; such a commit has no seal.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Where the entries end now, for [`Sealer::rewind`].
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            lines: self.lines.len(),
            text: self.text.len(),
            sum_available: self.sum_available,
            sum_held: self.sum_held,
            at: self.at,
        }
    }

    /// Forgets the entries added since `mark`: those of a unit that was taken back.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        self.lines.truncate(mark.lines);
        self.text.truncate(mark.text);
        (self.sum_available, self.sum_held, self.at) = (mark.sum_available, mark.sum_held, mark.at);
    }

    /// Forgets every entry.
    pub fn clear(&mut self) {
        self.text.clear();
        self.lines.clear();
        (self.sum_available, self.sum_held, self.at) = (0, 0, 0);
    }

    /// The seal over the entries, as number `number` of its node and epoch.
    pub fn seal(&mut self, node: i64, epoch: i64, number: i64, previous: [u8; 32]) -> Seal {
        self.lines.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&previous);
        let entries = self.lines.len() as i64;
        for value in [
            node,
            epoch,
            number,
            entries,
            self.sum_available,
            self.sum_held,
            self.at,
        ] {
            hasher.update(&value.to_le_bytes());
        }
        let mut sorted = Vec::with_capacity(self.text.len());
        for (_, start, end) in &self.lines {
            sorted.extend_from_slice(&self.text[*start..*end]);
        }
        hasher.update(&sorted);
        Seal {
            node,
            epoch,
            number,
            entries,
            sum_available: Micros::new(self.sum_available),
            sum_held: Micros::new(self.sum_held),
            previous,
            hash: *hasher.finalize().as_bytes(),
            at: self.at,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_money::{AccountId, OperationId};

    use super::*;
    use crate::codes::EntryKind;

    #[test]
    fn a_seal_depends_on_every_field_and_not_on_the_order_of_adding() {
        let entry = entry(1);
        let other = Entry {
            operation: OperationId::from_bytes([2; 16]),
            ..entry.clone()
        };
        assert_eq!(
            hash(&[&entry, &other]),
            hash(&[&other, &entry]),
            "the order of the keys is the order of the text"
        );
        let changes: [fn(&mut Entry); 8] = [
            |entry| entry.kind = EntryKind::Refund,
            |entry| entry.account = AccountId::from_bytes([9; 16]),
            |entry| entry.d_available = Micros::new(8),
            |entry| entry.d_held = Micros::new(8),
            |entry| entry.contra = crate::Contra::Revenue,
            |entry| entry.reference = None,
            |entry| entry.price_version = Some(0),
            |entry| entry.at += 1,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut edited = entry.clone();
            change(&mut edited);
            assert_ne!(hash(&[&entry]), hash(&[&edited]), "change {index} shows");
        }
    }

    #[test]
    fn what_was_taken_back_leaves_no_trace() {
        let mut sealer = Sealer::default();
        sealer.add(&entry(1));
        let mark = sealer.mark();
        sealer.add(&entry(2));
        sealer.rewind(mark);
        assert_eq!(sealer.seal(1, 2, 3, [0; 32]).hash, hash(&[&entry(1)]));
    }

    fn hash(entries: &[&Entry]) -> [u8; 32] {
        let mut sealer = Sealer::default();
        entries.iter().for_each(|entry| sealer.add(entry));
        sealer.seal(1, 2, 3, [0; 32]).hash
    }

    fn entry(operation: u8) -> Entry {
        Entry {
            operation: OperationId::from_bytes([operation; 16]),
            kind: EntryKind::Grant,
            account: AccountId::from_bytes([3; 16]),
            d_available: Micros::new(7),
            d_held: Micros::ZERO,
            contra: crate::Contra::Granted,
            reference: Some(Arc::from("welcome")),
            price_version: None,
            node: 1,
            epoch: 2,
            batch: 3,
            at: 4,
        }
    }
}
