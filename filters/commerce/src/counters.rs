//! Counters of webhook notifications by result.

use tollgate_counters::labels;

labels! {
    /// Result of a webhook notification.
    pub enum WebhookResult {
        Stored = "stored",
        /// A duplicate.
        Known = "known",
        /// It failed verification.
        Refused = "refused",
        /// Neither verified nor stored: redelivery is required.
        Undecided = "undecided",
    }
}
