//! The hash chain over commits (BLAKE3): a seal covers a commit's body and the previous seal.

use tollgate_clock::Timestamp;
use tollgate_money::Micros;

use crate::entries::{Entry, LedgerPart, Seal};
use crate::journal::{Body, DecodeError};

/// Sums the entries of a commit, for its seal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) entries: i64,
    pub(crate) available: i64,
    pub(crate) held: i64,
    pub(crate) at: Timestamp,
}

impl Sums {
    /// Any part, with or without an entry.
    pub(crate) fn see(&mut self, part: &LedgerPart) {
        self.at = self.at.max(part.at());
    }

    pub(crate) fn add(&mut self, entry: &Entry) {
        self.entries += 1;
        // The sums of a damaged file may be arbitrary; the sums are compared, not relied on.
        self.available = self.available.wrapping_add(entry.d_available.get());
        self.held = self.held.wrapping_add(entry.d_held.get());
    }
}

impl Seal {
    /// The seal over a body of the journal, as number `number` of its node and epoch.
    pub(crate) fn over(
        (node, epoch, number): (i64, i64, i64),
        previous: [u8; 32],
        sums: &Sums,
        body: &[u8],
    ) -> Seal {
        let mut head = [0; 32 + 7 * 8];
        head[..32].copy_from_slice(&previous);
        let numbers = [
            node,
            epoch,
            number,
            sums.entries,
            sums.available,
            sums.held,
            sums.at.as_micros(),
        ];
        for (place, number) in head[32..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&head);
        hasher.update(body);
        Seal {
            node,
            epoch,
            number,
            entries: sums.entries,
            sum_available: Micros::new(sums.available),
            sum_held: Micros::new(sums.held),
            previous,
            hash: *hasher.finalize().as_bytes(),
            at: sums.at,
        }
    }

    /// Whether this is the seal of the bytes of `body`. Does not decode the bytes.
    pub fn covers(&self, body: &[u8]) -> bool {
        let sums = Sums {
            entries: self.entries,
            available: self.sum_available.get(),
            held: self.sum_held.get(),
            at: self.at,
        };
        let key = (self.node, self.epoch, self.number);
        Seal::over(key, self.previous, &sums, body).hash == self.hash
    }

    /// Recomputes the seal at its position for `body`: equal to the old seal in an unedited journal.
    pub fn reseal(&self, body: &[u8]) -> Result<Seal, DecodeError> {
        Seal::of(((self.node, self.epoch, self.number), self.previous), body)
    }

    /// The seal for the content of a body, following `previous`.
    pub(crate) fn of(
        (key, previous): ((i64, i64, i64), [u8; 32]),
        body: &[u8],
    ) -> Result<Seal, DecodeError> {
        let mut sums = Sums::default();
        for record in Body::read(body)?.records() {
            let part = record?.part()?;
            sums.see(&part);
            if let Some(entry) = Entry::of(&part) {
                sums.add(&entry);
            }
        }
        Ok(Seal::over(key, previous, &sums, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_depends_on_every_number_and_every_byte() {
        let sums = Sums {
            entries: 1,
            available: 2,
            held: 3,
            at: Timestamp::from_micros(4),
        };
        let made =
            |key, previous, sums: &Sums, body: &[u8]| Seal::over(key, previous, sums, body).hash;
        let first = made((1, 2, 3), [0; 32], &sums, b"body");
        for other in [
            made((2, 2, 3), [0; 32], &sums, b"body"),
            made((1, 3, 3), [0; 32], &sums, b"body"),
            made((1, 2, 4), [0; 32], &sums, b"body"),
            made((1, 2, 3), [1; 32], &sums, b"body"),
            made((1, 2, 3), [0; 32], &Sums { entries: 2, ..sums }, b"body"),
            made(
                (1, 2, 3),
                [0; 32],
                &Sums {
                    available: 3,
                    ..sums
                },
                b"body",
            ),
            made((1, 2, 3), [0; 32], &Sums { held: 4, ..sums }, b"body"),
            made(
                (1, 2, 3),
                [0; 32],
                &Sums {
                    at: Timestamp::from_micros(5),
                    ..sums
                },
                b"body",
            ),
            made((1, 2, 3), [0; 32], &sums, b"bodY"),
        ] {
            assert_ne!(first, other);
        }
    }
}
