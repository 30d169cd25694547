//! What became of payments for the plan, in numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the process began.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) x402: AtomicU64,
    pub(super) paypal: AtomicU64,
    pub(super) repeated: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) returned: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Payments noted that came by x402.
    pub x402: u64,
    /// Payments noted that came by PayPal.
    pub paypal: u64,
    /// Payments that had been noted before.
    pub repeated: u64,
    /// Charges beside a plan that ran without them.
    pub duplicates: u64,
    /// Payments that went back to their buyers.
    pub returned: u64,
}

impl Counters {
    pub(super) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        Counts {
            x402: read(&self.x402),
            paypal: read(&self.paypal),
            repeated: read(&self.repeated),
            duplicates: read(&self.duplicates),
            returned: read(&self.returned),
        }
    }
}
