//! Mandates read at the provider a moment ago, in memory: a repeated question causes no further read.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::Deadline;
use tollgate_money::MandateId;
use tollgate_store::MandateRow;

/// Age up to which a read counts.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// The reads within the last [`FRESH_FOR`].
#[derive(Debug, Default)]
pub(super) struct RecentReads(Mutex<HashMap<MandateId, RecentRead>>);

#[derive(Debug)]
struct RecentRead {
    /// The row version after the read: a later change needs a new read.
    version: i64,
    is_pending: bool,
    until: Deadline,
}

impl RecentReads {
    /// Records a successful read: the resulting row, and whether a charge was pending.
    pub(super) fn note(&self, row: &MandateRow, is_pending: bool, elapsed: Duration) {
        let mut reads = self.reads();
        reads.retain(|_, read| !read.until.has_passed(elapsed));
        let read = RecentRead {
            version: row.version,
            is_pending,
            until: Deadline::after(elapsed, FRESH_FOR),
        };
        reads.insert(row.id, read);
    }

    /// Whether a charge was pending, if this row is the result of a recent read.
    pub(super) fn find(&self, row: &MandateRow, elapsed: Duration) -> Option<bool> {
        let reads = self.reads();
        let read = reads.get(&row.id)?;
        // A notification leaves the version as it is.
        let is_notified = row.notifications > row.acknowledged;
        let is_fresh =
            read.version == row.version && !is_notified && !read.until.has_passed(elapsed);
        is_fresh.then_some(read.is_pending)
    }

    fn reads(&self) -> MutexGuard<'_, HashMap<MandateId, RecentRead>> {
        self.0.lock()
    }
}
