//! What became of purchases, in numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the process began.
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

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Purchases begun.
    pub begun: u64,
    /// Payments credited.
    pub captured: u64,
    /// Purchases that ended without a payment.
    pub failed: u64,
    /// Choices that the provider could not take the money from.
    pub declined: u64,
    /// Answers that were lost or could not be understood.
    pub unclear: u64,
    /// Looks that found what only a person can put right.
    pub stuck: u64,
    /// Times that money was found to have gone back.
    pub returned: u64,
    /// Notices stored.
    pub notices: u64,
    /// Notices that had come in before.
    pub notices_known: u64,
}

impl Counters {
    pub(super) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    /// The counters now.
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
