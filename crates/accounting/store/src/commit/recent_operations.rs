//! Recently started operations, for duplicate detection: each operation starts once.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::ControlFlow;

use tollgate_money::OperationId;

use crate::engine::{RowError, Sql};
use crate::entries::Body;
use crate::tables;

/// Minimum number of operations remembered; the maximum is twice as many.
pub(crate) const RECENT_MIN: usize = 1 << 17;

/// The most recently started or finished operations, in two generations: the older generation is dropped when the younger is full.
#[derive(Default)]
pub(crate) struct RecentOperations {
    younger: HashSet<OperationId, BuildHasherDefault<TimeHasher>>,
    older: HashSet<OperationId, BuildHasherDefault<TimeHasher>>,
}

/// A hash that keeps operations of one moment adjacent in a table of several megabytes. Current operations are searched and inserted next
/// to the previous operations, in memory that is in the processor's cache.
///
/// An id starts with its time, and the rest is random (RFC 9562, section 5.7). Ids of one period of 16 ms share 4096 slots, and ids of
/// the next 16 ms have the following slots. With more operations, or a stopped clock, a table probes further, and is slower but still
/// correct.
#[derive(Clone, Copy, Default)]
struct TimeHasher(u64);

impl Hasher for TimeHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut half = [0; 8];
        let (time, random) = bytes.split_at(bytes.len().min(8));
        half[..time.len()].copy_from_slice(time);
        // 48 bits of milliseconds, without the lowest 4.
        let time = u64::from_be_bytes(half) >> 20;
        half = [0; 8];
        half[..random.len().min(8)].copy_from_slice(&random[..random.len().min(8)]);
        // A table uses the lowest bits for the slot, and distinguishes entries of a slot by the highest 7.
        let random = u64::from_be_bytes(half).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (random & 0xfe00_0000_0000_0fff) | (time << 12 & 0x01ff_ffff_ffff_f000);
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

impl RecentOperations {
    pub(crate) fn load(sql: &dyn Sql, node: i64) -> Result<RecentOperations, RowError> {
        let mut recent = RecentOperations::default();
        tables::journal::newest_bodies(sql, node, &mut |body| {
            if recent.older.len() >= RECENT_MIN {
                return ControlFlow::Break(());
            }
            // An unreadable body is skipped here; the audit reports the body.
            if let Ok(body) = Body::read(body) {
                let operations = body.records().flatten().map(|record| record.operation());
                recent.older.extend(operations);
            }
            ControlFlow::Continue(())
        })?;
        Ok(recent)
    }

    /// Remembers an operation; `false` when the operation was known.
    pub(crate) fn insert(&mut self, operation: OperationId) -> bool {
        let is_known = self.older.contains(&operation);
        let is_new = self.younger.insert(operation) && !is_known;
        if self.younger.len() == RECENT_MIN {
            // Cleared and refilled, not reallocated: a growing table is copied each time.
            std::mem::swap(&mut self.older, &mut self.younger);
            self.younger.clear();
        }
        is_new
    }

    pub(crate) fn forget(&mut self, operation: OperationId) {
        if !self.younger.remove(&operation) {
            self.older.remove(&operation);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn operations_of_one_moment_share_a_range_of_slots() {
        let hash = |ms: u64, random: u64| {
            let mut bytes = [0; 10];
            bytes[2..].copy_from_slice(&random.to_be_bytes());
            BuildHasherDefault::<TimeHasher>::default().hash_one(OperationId::from_parts(ms, bytes))
        };
        const NOW: u64 = 1_700_000_000_000;
        let slot = |hash: u64| hash & 0x01ff_ffff_ffff_ffff;
        let first = slot(hash(NOW, 0)) & !0xfff;
        let mut slots = HashSet::new();
        let mut tags = HashSet::new();
        for number in 0..1000 {
            for ms in [NOW, NOW + 15] {
                let hash = hash(ms, number);
                assert_eq!(slot(hash) & !0xfff, first, "within 4096 slots");
                slots.insert(slot(hash));
                tags.insert(hash >> 57);
            }
            let next = slot(hash(NOW + 16, number));
            assert_eq!(next & !0xfff, first + 0x1000, "the next slots");
        }
        assert!(slots.len() > 700, "{} slots of 4096", slots.len());
        assert_eq!(tags.len(), 128, "the tags within a slot differ");
    }

    #[test]
    fn operations_are_known_with_a_stopped_clock() {
        let mut recent = RecentOperations::default();
        let id = |number: u64| {
            let mut random = [0; 10];
            random[2..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            OperationId::from_parts(1_700_000_000_000, random)
        };
        for number in 0..50_000 {
            assert!(recent.insert(id(number)), "{number} is new");
        }
        for number in 0..50_000 {
            assert!(!recent.insert(id(number)), "{number} is known");
        }
    }
}
