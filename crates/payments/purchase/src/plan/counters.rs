//! Counters of payments for the plan.

use tollgate_counters::labels;

labels! {
    /// Result of a payment for the plan.
    pub enum PlanEvent {
        /// Recorded from x402.
        X402 = "x402",
        /// Recorded from PayPal.
        PayPal = "paypal",
        /// It was recorded before.
        Repeated = "repeated",
        /// Charged for a plan already active by another payment.
        Duplicate = "surplus",
        /// Refunded or reversed.
        Returned = "returned",
    }
}
