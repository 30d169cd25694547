//! Counters of payment outcomes.

use tollgate_counters::labels;

labels! {
    /// An event of a payment by signed transfer.
    pub enum X402Event {
        /// Settled, with the plan activated.
        Settled = "settled",
        /// Refused; no money moved.
        Refused = "refused",
        /// An answer of the facilitator left open whether money had moved.
        Unclear = "unclear",
        /// Proved never to have moved money.
        Dead = "dead",
        /// Reconciliation had no result long after the expiry: an operator has to resolve the payment.
        Stuck = "stuck",
        /// The chain contradicts an answer of the facilitator.
        Contradicted = "contradicted",
        /// Refused after submission, without confirmation by a node.
        Unconfirmed = "unconfirmed",
        /// The block was reorganized out of the chain.
        Vanished = "vanished",
        /// Presented by another account than the first.
        Taken = "taken",
    }
}
