//! Counters of requests with an idempotency key.

use tollgate_counters::labels;

labels! {
    /// The result of a request with a key.
    pub enum KeyEvent {
        /// The request was the first with the key.
        Claimed = "claimed",
        /// The request was answered from the record.
        Replayed = "replayed",
        /// The request was refused because an equal request was under way.
        UnderWay = "under_way",
        /// The request was refused because the key belongs to another request.
        Conflict = "conflict",
        /// The request was refused because the account has the maximum of keys, or of bytes of recorded answers.
        Limited = "limited",
        /// The answer was too large to be kept.
        TooLarge = "too_large",
    }
}
