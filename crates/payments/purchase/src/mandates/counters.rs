//! Counters of mandate events.

use tollgate_counters::labels;

labels! {
    /// An event of a mandate.
    pub enum MandateEvent {
        /// Created.
        Begun = "begun",
        /// The first payment was verified.
        Activated = "activated",
        /// A charge bought a period, including the first of the mandate.
        Paid = "paid",
        /// A provisional day was granted for a payment that was reported but not listed yet.
        Advanced = "advanced",
        /// A charge failed, and the provider retries it.
        PastDue = "past_due",
        /// Ended after at least one payment.
        Ended = "ended",
        /// Cancelled as a duplicate.
        Duplicate = "surplus",
        /// A charge was refunded.
        Refunded = "refunded",
        /// A charge was refunded or reversed by another party.
        Returned = "returned",
        /// A provider call had an unknown outcome: a lost or unreadable answer.
        Unclear = "unclear",
        /// Agreed to and unpaid; ended because the provider no longer knows the subscription.
        Vanished = "vanished",
        /// Reconciliation found a state that needs manual resolution.
        Stuck = "stuck",
    }
}
