//! Counters of the filter, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Monotonic counters.
#[derive(Debug, Default)]
pub struct Counters {
    claimed: AtomicU64,
    replayed: AtomicU64,
    under_way: AtomicU64,
    conflicts: AtomicU64,
    too_large: AtomicU64,
}

/// The [`Counters`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests that were the first of their key.
    pub claimed: u64,
    /// Requests answered from the record.
    pub replayed: u64,
    /// Requests refused because the same request was under way.
    pub under_way: u64,
    /// Requests refused because their key belongs to another request.
    pub conflicts: u64,
    /// Answers that were too large to be kept.
    pub too_large: u64,
}

impl Counters {
    /// The numbers now.
    pub fn read(&self) -> Counted {
        Counted {
            claimed: self.claimed.load(Relaxed),
            replayed: self.replayed.load(Relaxed),
            under_way: self.under_way.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            too_large: self.too_large.load(Relaxed),
        }
    }

    pub(crate) fn claimed(&self) {
        self.claimed.fetch_add(1, Relaxed);
    }

    pub(crate) fn replayed(&self) {
        self.replayed.fetch_add(1, Relaxed);
    }

    pub(crate) fn under_way(&self) {
        self.under_way.fetch_add(1, Relaxed);
    }

    pub(crate) fn conflict(&self) {
        self.conflicts.fetch_add(1, Relaxed);
    }

    pub(crate) fn too_large(&self) {
        self.too_large.fetch_add(1, Relaxed);
    }
}
