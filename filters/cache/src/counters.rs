//! Counters of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one cache, for the metrics. Monotonic.
#[derive(Debug, Default)]
pub struct Counters {
    lookups: [AtomicU64; 3],
    stores: [AtomicU64; 4],
    removed: [AtomicU64; 3],
    following: [AtomicU64; 3],
}

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $one:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $one,)*
        }

        impl $name {
            /// Every variant with its label in the metrics.
            pub const LABELS: &[($name, &str)] = &[$(($name::$one, $label)),*];
        }
    };
}

labels! {
    /// How a lookup ended.
    Lookup {
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
    Storing {
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
    Removal {
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
    Following {
        /// It received the leader's answer.
        Followed = "followed",
        /// The leader failed, and it became the leader.
        TookOver = "took_over",
        /// It waited longer than `wait_secs` and called the provider itself.
        GaveUp = "gave_up",
    }
}

impl Counters {
    pub(crate) fn lookup(&self, what: Lookup) {
        self.lookups[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn storing(&self, what: Storing) {
        self.stores[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn removed(&self, why: Removal, count: u64) {
        self.removed[why as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn followed(&self, what: Following) {
        self.following[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests by how their lookup ended.
    pub fn lookups(&self, what: Lookup) -> u64 {
        self.lookups[what as usize].load(Ordering::Relaxed)
    }

    /// Answers of misses by what happened to them.
    pub fn stores(&self, what: Storing) -> u64 {
        self.stores[what as usize].load(Ordering::Relaxed)
    }

    /// Removed entries by reason.
    pub fn removals(&self, why: Removal) -> u64 {
        self.removed[why as usize].load(Ordering::Relaxed)
    }

    /// Followers by how their wait ended.
    pub fn following(&self, what: Following) -> u64 {
        self.following[what as usize].load(Ordering::Relaxed)
    }
}
