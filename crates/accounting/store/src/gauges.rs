//! Metrics of the writer: plain counters, readable at any time without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

/// Counts of values by powers of two: bucket `i` counts values `v` with `2^(i-1) < v <= 2^i`, the first one 0 and 1, the last one
/// everything beyond.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; Histogram::BUCKETS],
    sum: AtomicU64,
}

impl Histogram {
    /// Number of buckets; the last upper bound is `2^(BUCKETS - 2)`.
    pub const BUCKETS: usize = 24;

    /// Counts one value.
    pub fn record(&self, value: u64) {
        let bits = u64::BITS - value.saturating_sub(1).leading_zeros();
        let bucket = (bits as usize).min(Histogram::BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// The counts, smallest bucket first; not cumulative.
    pub fn counts(&self) -> [u64; Histogram::BUCKETS] {
        std::array::from_fn(|bucket| self.buckets[bucket].load(Relaxed))
    }

    /// Number of values counted.
    pub fn count(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// The sum of the values counted.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }
}

/// Metrics of the writer.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Units currently in the queue.
    pub queue_depth: AtomicU64,
    /// The depth from which on new units are refused.
    pub queue_admits: AtomicU64,
    /// Units refused because the queue was full (load shedding).
    pub overloads: AtomicU64,
    /// Whether another program's lock on the database has been waited for in vain, for the engine's time-out, and is waited for again.
    /// Set within a second of the commit that waits.
    pub is_locked: AtomicBool,
    /// Whether the file system has less free space than new work needs: set by the owner of the store, refuses new units.
    pub is_disk_low: AtomicBool,
    /// The damage that the inspection of a file at the start has found.
    pub damage: OnceLock<String>,
    /// Up to when the changes of other nodes are known here, in microseconds of the monotonic clock; 0 before the first read of the feed.
    pub feed_read_us: AtomicU64,
    /// When the last good renewal of the node's lease began, in microseconds of the monotonic clock; 0 without a lease.
    pub lease_renewed_us: AtomicU64,
    /// Bytes of charges in the spool.
    pub spool_bytes: AtomicU64,
    /// Units in the spool that are not known to be durable in the database.
    pub spool_units: AtomicU64,
    /// Whether the last attempt to write the spool has failed.
    pub is_spool_failing: AtomicBool,
    /// Spooled charges that were booked late: the node had been recovered by another one.
    pub late_charges: AtomicU64,
    /// Micro-credits of spooled charges that the account did not have any more.
    pub late_written_off: AtomicU64,
    /// When the commit under way began, in microseconds of the monotonic clock; 0 without one.
    pub commit_began_us: AtomicU64,
    /// Units per commit.
    pub batch_size: Histogram,
    /// Microseconds per commit, from the first statement to the completed sync.
    pub commit_us: Histogram,
    /// Microseconds of a commit's last statement alone, which waits for the disk, or for the server of the database; included in
    /// [`Gauges::commit_us`].
    pub sync_us: Histogram,
    /// Microseconds that a posting of balances, holds and records took, with its commit. With a file it is part of a commit of units, and of
    /// [`Gauges::commit_us`]; with a server it is a transaction of its own.
    pub posting_us: Histogram,
    /// Microseconds in which the writer itself checkpointed the log into the main file, between two commits.
    pub checkpoint_us: Histogram,
    /// Holds coalesced with their settlement in one commit into one entry.
    pub coalesced: AtomicU64,
    /// Ledger entries written.
    pub entries: AtomicU64,
    /// Bytes of the database, and those of them that are free for new rows, as the owner of the store has read them last; 0 before.
    pub database_bytes: AtomicU64,
    /// See [`Gauges::database_bytes`]; always 0 on a server, which does not say it.
    pub database_free_bytes: AtomicU64,
    /// One more than the seconds for which the journal has had commits that are to be removed, as the owner of the store has read it last; 0
    /// before, and where nothing is removed.
    pub retention_overdue_secs: AtomicU64,
    /// Micro-credits of all accounts, as the owner of the store has read them last, and whether it has.
    pub owed: AtomicI64,
    /// See [`Gauges::owed`]; not on nodes that are not the leader.
    pub is_owed_known: AtomicBool,
    /// Nodes whose lease and grace have ended and whose recovery has failed, as this node has tried it last; 0 that are not the leader.
    pub unrecovered_nodes: AtomicU64,
    /// Bytes of the log that are not yet in the main file, as of the last checkpoint.
    pub wal_bytes: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_bucket_of_the_next_power_of_two() {
        //  value  bucket
        check(0, 0);
        check(1, 0);
        check(2, 1);
        check(3, 2);
        check(4, 2);
        check(5, 3);
        check(1 << 22, 22);
        check(u64::MAX, Histogram::BUCKETS - 1);
    }

    fn check(value: u64, bucket: usize) {
        let histogram = Histogram::default();
        histogram.record(value);
        assert_eq!(histogram.counts()[bucket], 1, "{value} goes into {bucket}");
        assert_eq!(histogram.count(), 1);
    }
}
