//! Counters of the cache.

use tollgate_counters::{Counters, labels};

/// Counters of one cache, for the metrics. Monotonic.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Requests by how their lookup ended.
    pub lookups: Counters<Lookup>,
    /// Answers of misses by what happened to them.
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
    /// What happened to the answer of a miss.
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
        /// Others needed its memory.
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
        /// It received the leader's answer.
        Followed = "followed",
        /// The leader failed, and it became the leader.
        TookOver = "took_over",
        /// It waited longer than `wait_secs` and called the provider itself.
        GaveUp = "gave_up",
    }
}

labels! {
    /// The result of a read or a write of an entry at the shared server.
    pub enum SharedResult {
        /// Read: an answer that this or another node has stored.
        Hit = "hit",
        /// Read: there is none.
        Miss = "miss",
        /// Read: no answer of the server in time, or an entry that this gateway cannot have written.
        Failed = "failed",
        /// Written.
        Stored = "stored",
        /// Not written: too many others were waiting, or the server did not take it.
        Dropped = "dropped",
    }
}
