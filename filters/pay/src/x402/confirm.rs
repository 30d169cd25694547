//! Confirmation of a submission by a chain lookup: with a node no answer of the facilitator is final before the chain was read.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use tollgate_clock::Timestamp;
use tollgate_evm::{Address, Nonce, TxHash};
use tollgate_store::AuthorizationRow;

use super::answer::Settled;
use super::chain_lookup::{AuthorizationLookup, OnChainStatus, look_up};
use super::counters::X402Event;
use super::payment_outcome::{ChainEvidence, PaymentOutcome, decide_outcome};
use super::processor::Inner;
use super::rows::{self, GRACE, unix_seconds};

/// How long the facilitator has to answer before the chain is polled concurrently.
const SLOW: Duration = Duration::from_secs(3);

/// Interval of chain lookups during a slow `/settle` call, and the longest one after a reported success.
const POLL: Duration = Duration::from_secs(2);

/// Delay after the first chain lookup that does not confirm a success; it doubles.
const FIRST_POLL: Duration = Duration::from_millis(250);

/// The longest time that a payment can have been used before it was presented here: the validity that authorizations are signed for, and an
/// hour.
const USED_BEFORE: Duration = Duration::from_mins(75);

impl Inner {
    /// Submits a payment and waits for the facilitator's answer or proof on the chain, whichever is first; an answer is confirmed by a
    /// chain lookup. `first`: the payment was never submitted before, or was refused when it was.
    pub(super) async fn submit_and_confirm(
        &self,
        row: &AuthorizationRow,
        body: Bytes,
        first: bool,
    ) -> PaymentOutcome {
        if self.deps.node.is_none() {
            return decide_outcome(
                &self.call_settle(row, body, first).await,
                ChainEvidence::NoNode,
            );
        }
        let answer = tokio::select! {
            answer = self.call_settle(row, body, first) => answer,
            outcome = self.outcome_on_chain(row) => return outcome,
        };
        let chain = self.confirm(row, &answer).await;
        let outcome = decide_outcome(&answer, chain);
        if chain != ChainEvidence::Unreadable && contradict(&answer, &outcome) {
            self.counters.inc(X402Event::Contradicted);
            tracing::error!(account = %row.account, payment = %rows::reference(&row.key), ?answer, ?outcome,
                "facilitator answer contradicts the chain");
        }
        outcome
    }

    /// Waits until the chain alone proves the outcome.
    async fn outcome_on_chain(&self, row: &AuthorizationRow) -> PaymentOutcome {
        sleep(SLOW).await;
        loop {
            if let Some(outcome) = self.read_chain(row, None).await.outcome() {
                return outcome;
            }
            sleep(POLL).await;
        }
    }

    /// Reads the chain after an answer. After a success it is read repeatedly for a while: nodes are a block or two behind one another.
    async fn confirm(&self, row: &AuthorizationRow, answer: &Settled) -> ChainEvidence {
        let (hint, is_success) = match answer {
            Settled::Done { transaction, .. } => (Some(*transaction), true),
            Settled::Unknown { transaction, .. } => (*transaction, false),
            Settled::Refused(_) => (None, false),
        };
        let first = self.read_chain(row, hint).await;
        if first.outcome().is_some() || !is_success {
            return first;
        }
        let polled = async {
            let mut pause = FIRST_POLL;
            loop {
                sleep(pause).await;
                let chain = self.read_chain(row, hint).await;
                if chain.outcome().is_some() {
                    return chain;
                }
                pause = (2 * pause).min(POLL);
            }
        };
        timeout(self.deps.confirm, polled).await.unwrap_or(first)
    }

    /// One chain lookup. `hint`: a transaction that may contain the transfer; the stored one is tried if there is no hint.
    pub(super) async fn read_chain(
        &self,
        row: &AuthorizationRow,
        hint: Option<TxHash>,
    ) -> ChainEvidence {
        let Some(node) = self.deps.node.as_deref() else {
            return ChainEvidence::NoNode;
        };
        let sent = self.unseal(row);
        let terms = sent.as_ref().map_or(&self.deps.terms, |sent| &sent.terms);
        let lookup = AuthorizationLookup {
            terms,
            from: Address(row.key.payer),
            nonce: Nonce(row.key.nonce),
            hint: hint.or(row.transaction.map(TxHash)),
            between: (
                unix_seconds(row.created_at.min(row.valid_before) - USED_BEFORE),
                unix_seconds(row.valid_before),
            ),
        };
        match look_up(node, &lookup).await {
            Ok(status) => ChainEvidence::Read {
                status,
                is_expired: matches!(status, OnChainStatus::Unspent { until } if self.is_expired(row, until)),
            },
            Err(error) => {
                tracing::warn!(payment = %rows::reference(&row.key), %error, "chain lookup failed");
                ChainEvidence::Unreadable
            }
        }
    }

    /// Whether the chain no longer accepts a payment: by its own clock, and by ours, which may lag.
    fn is_expired(&self, row: &AuthorizationRow, until: u64) -> bool {
        let until = Timestamp::from_secs(i64::try_from(until).unwrap_or(i64::MAX));
        until >= row.valid_before && self.now() > row.valid_before + GRACE
    }
}

/// Whether an answer of the facilitator and the chain contradict each other. A lagging node looks the same for a while.
fn contradict(answer: &Settled, outcome: &PaymentOutcome) -> bool {
    match (answer, outcome) {
        (
            Settled::Done {
                transaction: reported,
                ..
            },
            PaymentOutcome::Paid { transaction, .. },
        ) => reported != transaction,
        (Settled::Done { .. }, _) | (Settled::Refused(_), PaymentOutcome::Paid { .. }) => true,
        _ => false,
    }
}
