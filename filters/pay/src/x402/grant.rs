//! Step 4 of a payment, grant: one unit of work records the payment as settled and gives the account the plan.

use std::time::Duration;

use tollgate_evm::TxHash;
use tollgate_purchase::idempotency::Claim;
use tollgate_purchase::plan::{PayOutcome, PlanError};
use tollgate_store::{AuthorizationState, Refusal};

use super::context::X402;
use super::counters::X402Event;
use super::purchase::{PurchaseOutcome, Stop};
use super::record::Paid;
use super::rows::FINAL;
use super::transfer::{Evidence, IllegalTransition, Settlement, Transfer};

/// Attempts to record a settled payment, before the next reconciliation retries it.
const WRITE_ATTEMPTS_MAX: u32 = 6;

impl X402 {
    /// Settles a payment in the books after the money has moved, together with the paid plan.
    pub(super) async fn grant(
        &self,
        paid: Paid,
        claims: &[Claim],
    ) -> Result<PurchaseOutcome, Stop> {
        let Paid {
            row: mut open,
            transaction,
            is_proven,
        } = paid;
        let mut wait = Duration::from_millis(100);
        for attempt in 1.. {
            let settlement = self.settlement(&open, transaction, is_proven)?;
            let receipt = settlement.receipt();
            let books = (&*self.deps.store, &self.deps.plans);
            let outcome = settlement.grant(books, |subscription| {
                let answer = self.answer(subscription, Some(receipt), false);
                let parts = claims.iter().map(|claim| claim.answer_part(&answer));
                parts.collect()
            });
            match outcome.await {
                Ok(PayOutcome::New(subscription)) => {
                    self.counters.inc(X402Event::Settled);
                    return Ok(PurchaseOutcome::Done(self.answer(
                        &subscription,
                        Some(receipt),
                        false,
                    )));
                }
                // The plan was activated before, and the payment was not marked as settled. The mark is set now.
                Ok(PayOutcome::Repeated(subscription) | PayOutcome::Duplicate(subscription)) => {
                    tracing::error!(payment = %open, "recorded settlement: the payment had activated the plan before");
                    return Ok(PurchaseOutcome::Done(self.answer(
                        &subscription,
                        Some(receipt),
                        true,
                    )));
                }
                Err(PlanError::AttachedPart(Refusal::TransactionUsed)) => {
                    tracing::error!(account = %open.account, payment = %open, %transaction,
                        "rejected settlement: the facilitator names a transaction that has paid for another payment");
                    let why =
                        "the facilitator names a transaction that has paid for another payment";
                    return Ok(self.leave_open(open, None, why).await?);
                }
                // Another node has changed the row meanwhile. The evidence is unchanged, and possibly known to this node alone.
                Err(PlanError::AttachedPart(Refusal::AuthorizationConflict))
                    if attempt < WRITE_ATTEMPTS_MAX =>
                {
                    match self.read(open.account, &open.key).await {
                        Ok((plan_state, Some(row))) if row.state == AuthorizationState::Settled => {
                            return self.replay(&row, &plan_state, claims).await;
                        }
                        Ok((_, Some(row))) => open = row,
                        Ok((_, None)) | Err(_) => {
                            tokio::time::sleep(wait).await;
                            wait *= 2;
                        }
                    }
                }
                Err(error @ PlanError::AttachedPart(_)) => {
                    tracing::error!(account = %open.account, payment = %open, %transaction, %error,
                        "recording settlement failed: the payment has moved the money");
                    return Err(error.into());
                }
                Err(error) if attempt >= WRITE_ATTEMPTS_MAX => {
                    tracing::error!(account = %open.account, payment = %open, %transaction, %error,
                        "recording settlement failed, left to reconciliation");
                    return Err(Stop::Outcome(PurchaseOutcome::StoreUnavailable));
                }
                Err(_) => {
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
            }
        }
        unreachable!("the loop ends with an answer or an error")
    }

    /// The transition to settled of an open payment.
    fn settlement(
        &self,
        open: &Transfer,
        transaction: TxHash,
        is_proven: bool,
    ) -> Result<Settlement, IllegalTransition> {
        if open.state == AuthorizationState::RefusedAfterSubmit {
            tracing::error!(account = %open.account, payment = %open, %transaction,
                "payment settled although the facilitator had refused it: the account may have paid twice, and is granted both periods");
        }
        let now = self.now();
        let evidence = Evidence {
            transaction,
            is_proven,
            note: None,
            // Another lookup when the block is final; possible only with a node.
            final_at: self.deps.node.as_ref().map(|_| now + FINAL),
        };
        let settlement = open.settled(evidence, now);
        settlement.inspect_err(|error| {
            tracing::error!(account = %open.account, payment = %open, %transaction, %error,
                "recording settlement failed: the payment has moved the money");
        })
    }
}
