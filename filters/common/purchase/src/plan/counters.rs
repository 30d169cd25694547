//! Counters of payments for the plan.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the process started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) x402: AtomicU64,
    pub(super) paypal: AtomicU64,
    pub(super) repeated: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) returned: AtomicU64,
}

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Payments recorded from x402.
    pub x402: u64,
    /// Payments recorded from PayPal.
    pub paypal: u64,
    /// Payments that were recorded before.
    pub repeated: u64,
    /// Charges for a plan that was already active by another payment.
    pub duplicates: u64,
    /// Refunded and reversed payments.
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
