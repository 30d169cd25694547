//! Step 3 of a payment, settle: the facilitator submits it to the chain, and a chain lookup confirms that. With a node no answer of the
//! facilitator is final before the chain was read.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use tollgate_clock::{Backoff, Jitter, Timestamp};
use tollgate_evm::{Address, Nonce, TxHash};

use super::answer::{Settled, settled};
use super::chain_lookup::{AuthorizationLookup, OnChainStatus, look_up};
use super::context::X402;
use super::counters::X402Event;
use super::facilitator::Operation;
use super::payment_outcome::{ChainEvidence, PaymentOutcome, decide_outcome};
use super::purchase::Stop;
use super::record::{Paid, Recorded, Verified};
use super::rows::{self, GRACE, unix_seconds};
use super::transfer::Transfer;

/// How long the facilitator has to answer before the chain is polled concurrently.
const SLOW: Duration = Duration::from_secs(3);

/// Interval of chain lookups during a slow `/settle` call.
const POLL: Duration = Duration::from_secs(2);

/// Waits between chain lookups that do not confirm a reported success.
const CONFIRMATION: Backoff = Backoff {
    base: Duration::from_millis(250),
    max: POLL,
    jitter: Jitter::None,
};

/// The longest time between use and presentation of a payment: the signed validity of authorizations, and an hour.
const USED_BEFORE: Duration = Duration::from_mins(75);

/// Why a payment is settled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The buyer presented the payment again.
    Presented,
    /// It is due.
    Scheduled,
}

/// Whether a payment may be submitted again. With a node, a payment refused by the facilitator is submitted again only on presentation by
/// the buyer: the chain shows whether money has moved already.
fn may_submit(row: &Transfer, chain: ChainEvidence, cause: Cause) -> bool {
    chain == ChainEvidence::NoNode || cause == Cause::Presented || !rows::is_refused(row)
}

impl X402 {
    /// Submits a payment. Where the facilitator gives no usable answer, the identical call is repeated once at once.
    pub(super) async fn settle(&self, recorded: Recorded) -> Result<Paid, Stop> {
        let Recorded(Verified {
            row,
            body,
            is_spent,
        }) = recorded;
        if is_spent {
            return self.settle_again(row, Cause::Presented).await;
        }
        match self.call_and_confirm(&row, body.clone(), true).await {
            PaymentOutcome::Open {
                transaction,
                why,
                may_resubmit: true,
            } => {
                let row = self.record_unknown(row, transaction, &why).await?;
                let outcome = self.call_and_confirm(&row, body, false).await;
                self.record_outcome(row, outcome).await
            }
            outcome => self.record_outcome(row, outcome).await,
        }
    }

    /// Settles a payment submitted before. The chain is read first; without a decision, an identical call is submitted again. A facilitator
    /// with a submitted transfer waits for its transaction, and the token executes the transfer once.
    pub(super) async fn settle_again(&self, mut row: Transfer, cause: Cause) -> Result<Paid, Stop> {
        let last = Settled::Unknown {
            transaction: row.transaction.map(TxHash),
            why: row.note.as_deref().unwrap_or_default().to_owned(),
        };
        let chain = self.read_chain(&row, None).await;
        let mut outcome = decide_outcome(&last, chain);
        if may_submit(&row, chain, cause)
            && matches!(
                outcome,
                PaymentOutcome::Open {
                    may_resubmit: true,
                    ..
                }
            )
            && let Some(sent) = self.unseal(&row)
        {
            row = self.record_repeated(row).await?;
            outcome = self.call_and_confirm(&row, sent.body, false).await;
        }
        self.record_outcome(row, outcome).await
    }

    /// Submits a payment and waits for the facilitator's answer or proof on the chain, whichever is first; an answer is confirmed by a
    /// chain lookup. `first`: the payment was never submitted before, or was refused when it was.
    async fn call_and_confirm(&self, row: &Transfer, body: Bytes, first: bool) -> PaymentOutcome {
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
            tracing::error!(account = %row.account, payment = %row, ?answer, ?outcome,
                "facilitator answer contradicts the chain");
        }
        outcome
    }

    /// Waits until the chain alone proves the outcome.
    async fn outcome_on_chain(&self, row: &Transfer) -> PaymentOutcome {
        sleep(SLOW).await;
        loop {
            if let Some(outcome) = self.read_chain(row, None).await.outcome() {
                return outcome;
            }
            sleep(POLL).await;
        }
    }

    /// Reads the chain after an answer. After a success, reads repeat for a while: nodes are a block or two behind one another.
    async fn confirm(&self, row: &Transfer, answer: &Settled) -> ChainEvidence {
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
            let mut lookups = 0;
            loop {
                sleep(CONFIRMATION.exact(lookups)).await;
                let chain = self.read_chain(row, hint).await;
                if chain.outcome().is_some() {
                    return chain;
                }
                lookups += 1;
            }
        };
        timeout(self.deps.confirm, polled).await.unwrap_or(first)
    }

    /// Calls `/settle`, for the first time or again.
    pub(super) async fn call_settle(&self, row: &Transfer, body: Bytes, first: bool) -> Settled {
        let payer = Address(row.key.payer);
        match self.facilitator.call(Operation::Settle, body).await {
            Ok(response) => settled(
                response.status,
                &response.body,
                &row.key.network,
                payer,
                first,
            ),
            Err(error) => Settled::Unknown {
                transaction: None,
                why: error.to_string(),
            },
        }
    }

    /// One chain lookup. `hint`: a transaction that may contain the transfer; without a hint the stored transaction is tried.
    pub(super) async fn read_chain(&self, row: &Transfer, hint: Option<TxHash>) -> ChainEvidence {
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
                tracing::warn!(payment = %row, %error, "chain lookup failed");
                ChainEvidence::Unreadable
            }
        }
    }

    /// Whether the chain no longer accepts a payment, by the chain's clock and by ours, which may lag.
    fn is_expired(&self, row: &Transfer, until: u64) -> bool {
        let until = Timestamp::from_secs(i64::try_from(until).unwrap_or(i64::MAX));
        until >= row.valid_before && self.now() > row.valid_before + GRACE
    }
}

/// Whether an answer of the facilitator and the chain contradict each other. A lagging node looks alike for a while.
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
