//! What the cache counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one cache, for the metrics. All only grow.
#[derive(Debug, Default)]
pub struct Counters {
    lookups: [AtomicU64; 3],
    stores: [AtomicU64; 4],
    removed: [AtomicU64; 3],
    flights: [AtomicU64; 3],
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $one:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $one,)*
        }

        impl $name {
            /// Every one with its word in the metrics.
            pub const WORDS: &[($name, &str)] = &[$(($name::$one, $word)),*];
        }
    };
}

words! {
    /// What became of a request.
    Lookup {
        /// It was answered from the cache.
        Hit = "hit",
        /// Nothing was stored for it.
        Miss = "miss",
        /// It asked for no cache, or is none that can be looked up.
        Bypass = "bypass",
    }
}

words! {
    /// What became of the answer to a miss.
    Storing {
        /// It was stored.
        Stored = "stored",
        /// It is larger than an entry may be.
        TooLarge = "too_large",
        /// It is not whole, or of a kind that is never stored.
        Uncacheable = "uncacheable",
        /// It could not be read back as what it was.
        Error = "error",
    }
}

words! {
    /// Why an entry went.
    Removal {
        /// Others needed its room.
        Evicted = "evicted",
        /// Its time was over.
        Expired = "expired",
        /// An operator removed it.
        Purged = "purged",
    }
}

words! {
    /// What requests for an answer in the making did.
    Flight {
        /// It waited and was given the answer.
        Followed = "followed",
        /// The one it waited for failed, and it took its place.
        TookOver = "took_over",
        /// It waited too long and went by itself.
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

    pub(crate) fn flight(&self, what: Flight) {
        self.flights[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests by what became of them.
    pub fn lookups(&self, what: Lookup) -> u64 {
        self.lookups[what as usize].load(Ordering::Relaxed)
    }

    /// Answers to misses by what became of them.
    pub fn stores(&self, what: Storing) -> u64 {
        self.stores[what as usize].load(Ordering::Relaxed)
    }

    /// Entries that went, by why.
    pub fn removals(&self, why: Removal) -> u64 {
        self.removed[why as usize].load(Ordering::Relaxed)
    }

    /// Requests that found their answer in the making, by what they did.
    pub fn flights(&self, what: Flight) -> u64 {
        self.flights[what as usize].load(Ordering::Relaxed)
    }
}
