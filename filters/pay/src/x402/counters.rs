//! Counters of payment outcomes.

use tollgate_counters::labels;

labels! {
    /// An event of a payment by signed transfer.
    pub enum X402Event {
        /// It was settled and activated the plan.
        Settled = "settled",
        /// It was refused; no money moved.
        Refused = "refused",
        /// An answer of the facilitator left open whether money had moved.
        Unclear = "unclear",
        /// It is proved never to have moved money.
        Dead = "dead",
        /// Reconciliation had no result long after it had expired: an operator has to resolve it.
        Stuck = "stuck",
        /// The chain contradicts an answer of the facilitator.
        Contradicted = "contradicted",
        /// It was refused after submission, where no node confirms that.
        Unconfirmed = "unconfirmed",
        /// Its block was reorganized out of the chain.
        Vanished = "vanished",
        /// It was presented by another account than the one that presented it first.
        Taken = "taken",
    }
}
