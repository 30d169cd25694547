//! Counters of requests with an idempotency key.

use tollgate_counters::labels;

labels! {
    /// What happened to a request with a key.
    pub enum KeyEvent {
        /// It was the first of its key.
        Claimed = "claimed",
        /// It was answered from the record.
        Replayed = "replayed",
        /// It was refused because the same request was under way.
        UnderWay = "under_way",
        /// It was refused because its key belongs to another request.
        Conflict = "conflict",
        /// It was refused because its account has as many keys, or bytes of recorded answers, as it may.
        Limited = "limited",
        /// Its answer was too large to be kept.
        TooLarge = "too_large",
    }
}
