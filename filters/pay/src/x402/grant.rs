//! Step 4 of a payment, grant: one unit of work records it as settled and gives the account the plan.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_evm::TxHash;
use tollgate_purchase::idempotency::Claim;
use tollgate_purchase::plan::{self, DAYS, PRICE, PayOutcome, Period, PlanError};
use tollgate_store::{AuthorizationPart, AuthorizationRow, AuthorizationState, Refusal, Route};

use super::context::{Context, part};
use super::counters::X402Event;
use super::purchase::{PurchaseOutcome, Stop};
use super::record::Paid;
use super::rows::{self, FINAL};

/// Attempts to record a settled payment, before the next reconciliation retries it.
const WRITE_ATTEMPTS_MAX: u32 = 6;

impl Context {
    /// Settles a payment that has moved money in the books, together with the plan that it pays for.
    pub(super) async fn grant(
        &self,
        paid: Paid,
        claims: &[Claim],
    ) -> Result<PurchaseOutcome, Stop> {
        let Paid {
            row: open,
            transaction,
            is_proven,
        } = paid;
        if open.state == AuthorizationState::RefusedAfterSubmit {
            tracing::error!(account = %open.account, payment = %rows::reference(&open.key), %transaction,
                "payment settled although the facilitator had refused it: the account may have paid twice, and is granted both periods");
        }
        let receipt: Arc<str> = Arc::from(rows::receipt(&open.key, transaction));
        let now = self.now();
        let row = AuthorizationRow {
            state: AuthorizationState::Settled,
            version: open.version + 1,
            transaction: Some(transaction.0),
            receipt: Some(receipt.clone()),
            note: None,
            attempts: 0,
            // One more lookup when its block is final; only a node can do it.
            next_attempt_at: self.deps.node.as_ref().map(|_| now + FINAL),
            sealed: open.sealed.clone().filter(|_| self.deps.node.is_some()),
            updated_at: now,
            ..open.clone()
        };
        let settle = part(AuthorizationPart::Settle {
            row: row.clone(),
            is_proven,
        });
        let paid = plan_payment(&row, transaction, &receipt, now);
        let mut wait = Duration::from_millis(100);
        for attempt in 1.. {
            let outcome = self.deps.plans.pay(paid.clone(), |subscription| {
                let answer = self.answer(subscription, Some(&receipt), false);
                let mut parts = vec![settle.clone()];
                parts.extend(claims.iter().map(|claim| claim.answer_part(&answer)));
                parts
            });
            match outcome.await {
                Ok(PayOutcome::New(subscription)) => {
                    self.counters.inc(X402Event::Settled);
                    return Ok(PurchaseOutcome::Done(self.answer(
                        &subscription,
                        Some(&receipt),
                        false,
                    )));
                }
                // Activated before, and the payment not marked as settled: it is now.
                Ok(PayOutcome::Repeated(subscription) | PayOutcome::Duplicate(subscription)) => {
                    tracing::error!(payment = %rows::reference(&row.key), "recorded settlement: the payment had activated the plan before");
                    self.write(settle).await?;
                    return Ok(PurchaseOutcome::Done(self.answer(
                        &subscription,
                        Some(&receipt),
                        true,
                    )));
                }
                Err(PlanError::AttachedPart(Refusal::TransactionUsed)) => {
                    tracing::error!(account = %open.account, payment = %rows::reference(&open.key), %transaction,
                        "rejected settlement: the facilitator names a transaction that has paid for another payment");
                    let why =
                        "the facilitator names a transaction that has paid for another payment";
                    return Ok(self.leave_open(open, None, why).await?);
                }
                Err(error @ PlanError::AttachedPart(_)) => return Err(error.into()),
                Err(error) if attempt >= WRITE_ATTEMPTS_MAX => {
                    tracing::error!(account = %row.account, payment = %rows::reference(&row.key), %transaction, %error,
                        "recording settlement failed, left to reconciliation");
                    return Err(error.into());
                }
                Err(error) => {
                    tracing::warn!(%error, "recording settlement failed, retrying");
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
            }
        }
        unreachable!("the loop ends with an answer or an error")
    }
}

/// The payment for the plan that a settled transfer is.
pub(super) fn plan_payment(
    row: &AuthorizationRow,
    transaction: TxHash,
    receipt: &Arc<str>,
    at: Timestamp,
) -> plan::Paid {
    plan::Paid {
        account: row.account,
        route: Route::X402,
        payment: rows::reference(&row.key).into(),
        reference: transaction.to_string().into(),
        amount: PRICE,
        period: Period::Days(DAYS),
        renews: false,
        receipt: Some(receipt.clone()),
        at,
    }
}
