//! Counters of webhook notifications by result.

use tollgate_counters::labels;

labels! {
    /// What became of a webhook notification.
    pub enum WebhookResult {
        /// Stored.
        Stored = "stored",
        /// A duplicate.
        Known = "known",
        /// It failed verification.
        Refused = "refused",
        /// It could not be verified or stored, and has to be redelivered.
        Undecided = "undecided",
    }
}
