//! Counters of the cache.

use tollgate_counters::{Counters, labels};

/// Counters of a cache, for the metrics. Monotonic.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Requests by how their lookup ended.
    pub lookups: Counters<Lookup>,
    /// Answers of misses by the result of storing.
    pub stores: Counters<Storing>,
    /// Removed entries by reason.
    pub removals: Counters<Removal>,
    /// Followers by how their wait ended.
    pub followers: Counters<Following>,
    /// Reads and writes of entries at the shared server by result.
    pub shared: Counters<SharedResult>,
}

labels! {
    /// How a lookup ended.
    pub enum Lookup {
        /// Answered from the cache.
        Hit = "hit",
        /// No entry for its key.
        Miss = "miss",
        /// The request asked for no cache, or has no key.
        Bypass = "bypass",
    }
}

labels! {
    /// The result of storing the answer of a miss.
    pub enum Storing {
        /// Stored.
        Stored = "stored",
        /// Larger than an entry may be.
        TooLarge = "too_large",
        /// Incomplete, or of a kind that is never stored.
        Uncacheable = "uncacheable",
        /// Could not be parsed.
        Error = "error",
    }
}

labels! {
    /// Why an entry was removed.
    pub enum Removal {
        /// The memory was needed for other entries.
        Evicted = "evicted",
        /// Older than `ttl_secs`.
        Expired = "expired",
        /// By an operator.
        Purged = "purged",
    }
}

labels! {
    /// How a follower's wait ended.
    pub enum Following {
        /// The follower received the leader's answer.
        Followed = "followed",
        /// The leader failed, and the follower became the leader.
        TookOver = "took_over",
        /// The follower waited longer than `wait_secs` and called the provider itself.
        GaveUp = "gave_up",
    }
}

labels! {
    /// The result of a read or a write of an entry at the shared server.
    pub enum SharedResult {
        /// Read: an answer stored by this node or another node.
        Hit = "hit",
        /// Read: no entry.
        Miss = "miss",
        /// Read: no answer of the server in time, or an entry that this gateway cannot have written.
        Failed = "failed",
        /// Written.
        Stored = "stored",
        /// Not written: the queue was full, or the server did not accept the entry.
        Dropped = "dropped",
    }
}
