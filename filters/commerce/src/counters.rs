//! Counters of webhook notifications by result.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the start of the process.
#[derive(Debug, Default)]
pub struct WebhookCounters {
    pub(crate) stored: AtomicU64,
    pub(crate) known: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) undecided: AtomicU64,
}

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebhookCounts {
    /// Notifications stored.
    pub stored: u64,
    /// Duplicate notifications.
    pub known: u64,
    /// Notifications that failed verification.
    pub refused: u64,
    /// Notifications that could not be verified or stored, and have to be redelivered.
    pub undecided: u64,
}

impl WebhookCounters {
    pub(crate) fn increment(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    /// A snapshot of the counters.
    pub fn counts(&self) -> WebhookCounts {
        WebhookCounts {
            stored: self.stored.load(Relaxed),
            known: self.known.load(Relaxed),
            refused: self.refused.load(Relaxed),
            undecided: self.undecided.load(Relaxed),
        }
    }
}
