//! Counters of credit purchases.

use tollgate_counters::labels;

labels! {
    /// An event of a purchase.
    pub enum TopUpEvent {
        /// Created.
        Begun = "begun",
        /// The payment was credited.
        Captured = "captured",
        /// Ended without a payment.
        Failed = "failed",
        /// The capture was declined.
        Declined = "declined",
        /// A provider call had an unknown outcome: a lost or unreadable answer.
        Unclear = "unclear",
        /// Reconciliation found a state that needs manual resolution.
        Stuck = "stuck",
        /// A refund or reversal was found.
        Returned = "returned",
    }
}
