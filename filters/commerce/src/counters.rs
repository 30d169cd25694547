//! What became of notices.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the process began.
#[derive(Debug, Default)]
pub struct WebhookCounters {
    pub(crate) stored: AtomicU64,
    pub(crate) known: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) undecided: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebhookCounts {
    /// Notices stored.
    pub stored: u64,
    /// Notices that had come in before.
    pub known: u64,
    /// Notices that nobody believes.
    pub refused: u64,
    /// Notices that could not be checked or stored, and have to come again.
    pub undecided: u64,
}

impl WebhookCounters {
    pub(crate) fn increment(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    /// The counters now.
    pub fn counts(&self) -> WebhookCounts {
        WebhookCounts {
            stored: self.stored.load(Relaxed),
            known: self.known.load(Relaxed),
            refused: self.refused.load(Relaxed),
            undecided: self.undecided.load(Relaxed),
        }
    }
}
