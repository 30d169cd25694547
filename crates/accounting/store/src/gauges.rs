//! Metrics of the writer: plain counters, readable at any time without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

/// Counts of values by powers of two. Bucket `i` counts values `v` with `2^(i-1) < v <= 2^i`. The first bucket counts 0 and 1, the last
/// bucket every greater value.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; Histogram::BUCKETS],
    sum: AtomicU64,
}

impl Histogram {
    /// Number of buckets; the last upper bound is `2^(BUCKETS - 2)`.
    pub const BUCKETS: usize = 24;

    /// Counts a value.
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
    /// The queue depth at which new units are refused.
    pub queue_admits: AtomicU64,
    /// Units refused because the queue was full (load shedding).
    pub overloads: AtomicU64,
    /// Whether the engine's wait for another program's lock on the database has timed out, and the wait is repeated. Set within a second of
    /// the waiting commit.
    pub is_locked: AtomicBool,
    /// Whether the file system has less free space than new work needs: set by the owner of the store, refuses new units.
    pub is_disk_low: AtomicBool,
    /// The damage found by the inspection of a file at the start.
    pub damage: OnceLock<String>,
    /// The time up to which the changes of other nodes are known here, in microseconds of the monotonic clock; 0 before the first read of
    /// the feed.
    pub feed_read_us: AtomicU64,
    /// When the last good renewal of the node's lease began, in microseconds of the monotonic clock; 0 without a lease.
    pub lease_renewed_us: AtomicU64,
    /// Bytes of charges in the spool.
    pub spool_bytes: AtomicU64,
    /// Units in the spool that are not known to be durable in the database.
    pub spool_units: AtomicU64,
    /// Whether the last attempt to write the spool has failed.
    pub is_spool_failing: AtomicBool,
    /// Spooled charges that were booked late, after another node's recovery of this node.
    pub late_charges: AtomicU64,
    /// Micro-credits of spooled charges beyond the account's credit.
    pub late_written_off: AtomicU64,
    /// Begin of the commit under way, in microseconds of the monotonic clock; 0 without a commit.
    pub commit_began_us: AtomicU64,
    /// Units per commit.
    pub batch_size: Histogram,
    /// Microseconds per commit, from the first statement to the completed sync.
    pub commit_us: Histogram,
    /// Microseconds of a commit's last statement alone, which waits for the disk, or for the database's server; included in
    /// [`Gauges::commit_us`].
    pub sync_us: Histogram,
    /// Microseconds of a posting of balances, holds and records, with its commit. With a file the posting is part of a commit of units, and
    /// of [`Gauges::commit_us`]; with a server the posting is a separate transaction.
    pub posting_us: Histogram,
    /// Microseconds of the writer's own checkpoints of the log into the main file, between two commits.
    pub checkpoint_us: Histogram,
    /// Holds coalesced with their settlement into one entry of one commit.
    pub coalesced: AtomicU64,
    /// Ledger entries written.
    pub entries: AtomicU64,
    /// Bytes of the database and free bytes for new rows, as last read by the owner of the store; 0 before the first read.
    pub database_bytes: AtomicU64,
    /// See [`Gauges::database_bytes`]; always 0 on a server, since a server does not report free bytes.
    pub database_free_bytes: AtomicU64,
    /// Seconds plus 1 for which the journal has had commits due for removal, as last read by the owner of the store; 0 before the first
    /// read, and where nothing is removed.
    pub retention_overdue_secs: AtomicU64,
    /// Micro-credits of all accounts, as last read by the owner of the store, and whether a read was made.
    pub owed: AtomicI64,
    /// See [`Gauges::owed`]; only on the leader.
    pub is_owed_known: AtomicBool,
    /// Nodes whose lease and grace have ended and whose last recovery by this node has failed; 0 on a node that is not the leader.
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
