//! Counters of credit purchases.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the process started.
#[derive(Debug, Default)]
pub struct Counters {
    pub(super) begun: AtomicU64,
    pub(super) captured: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) declined: AtomicU64,
    pub(super) unclear: AtomicU64,
    pub(super) stuck: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) notices: AtomicU64,
    pub(super) notices_known: AtomicU64,
}

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Purchases created.
    pub begun: u64,
    /// Payments credited.
    pub captured: u64,
    /// Purchases that ended without a payment.
    pub failed: u64,
    /// Captures that were declined.
    pub declined: u64,
    /// Provider calls with an unknown outcome: lost or unreadable answers.
    pub unclear: u64,
    /// Reconciliations that found a state that needs manual resolution.
    pub stuck: u64,
    /// Refunds and reversals found.
    pub returned: u64,
    /// Notifications stored.
    pub notices: u64,
    /// Duplicate notifications.
    pub notices_known: u64,
}

impl Counters {
    pub(super) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    /// The current values.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        Counts {
            begun: read(&self.begun),
            captured: read(&self.captured),
            failed: read(&self.failed),
            declined: read(&self.declined),
            unclear: read(&self.unclear),
            stuck: read(&self.stuck),
            returned: read(&self.returned),
            notices: read(&self.notices),
            notices_known: read(&self.notices_known),
        }
    }
}
