//! Reconciliation of payments of unknown outcome: each is looked up on the chain, submitted again where that is safe, and closed only by
//! proof.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tollgate_evm::TxHash;
use tollgate_purchase::idempotency::Claim;
use tollgate_purchase::plan::{DAYS, PRICE, Paid, PayOutcome, Period, PlanError, Reversal};
use tollgate_store::{AuthorizationPart, AuthorizationRow, AuthorizationState, Refusal, Route};

use super::answer::Settled;
use super::chain_lookup::OnChainStatus;
use super::counters::X402Event;
use super::offer::Terms;
use super::payment_outcome::{ChainEvidence, PaymentOutcome, decide_outcome};
use super::processor::{Inner, PurchaseOutcome, StoreFailure, part, store_failure};
use super::rows::{self, FINAL, MINUTE};

/// Attempts to record a settled payment, before the next reconciliation retries it.
const WRITE_ATTEMPTS_MAX: u32 = 6;

/// The stored body of a facilitator call, and the terms that the payment is judged by.
pub(super) struct StoredCall {
    pub(super) body: Bytes,
    pub(super) terms: Terms,
}

/// Why a payment is reconciled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its buyer presented it again.
    Presented,
    /// It is due.
    Scheduled,
}

/// Whether reconciliation may submit a payment again. With a node, a payment that the facilitator refused is submitted again only when its
/// buyer presents it: the chain shows whether it has moved already.
fn may_submit(row: &AuthorizationRow, chain: ChainEvidence, cause: Cause) -> bool {
    chain == ChainEvidence::NoNode || cause == Cause::Presented || !rows::is_refused(row)
}

impl Inner {
    /// Reconciles a due payment.
    pub(super) async fn reconcile_row(self: Arc<Self>, due: AuthorizationRow) -> PurchaseOutcome {
        let reconciled = async {
            let key = due.key.clone();
            let (plan_state, row) = self.read(due.account, &key).await?;
            match row {
                Some(row) if rows::state(row.state).is_open() => {
                    self.reconcile(row, Cause::Scheduled, Vec::new()).await
                }
                Some(row) if row.state == AuthorizationState::RefusedAfterSubmit => {
                    self.look_up_refused(row).await
                }
                Some(row) if row.state == AuthorizationState::Settled => {
                    let answer = plan_state.subscription.as_ref().map(|subscription| {
                        PurchaseOutcome::Done(self.answer(
                            subscription,
                            row.receipt.as_deref(),
                            true,
                        ))
                    });
                    if row.next_attempt_at.is_some_and(|at| at <= self.now()) {
                        self.check_finality(row).await?;
                    }
                    Ok(answer.unwrap_or(PurchaseOutcome::Processing))
                }
                _ => Ok(PurchaseOutcome::Processing),
            }
        };
        reconciled
            .await
            .unwrap_or_else(|error| store_failure(&error))
    }

    /// Reconciles a payment: the chain is read first, and if it does not decide, an identical call is submitted again. A facilitator that
    /// has submitted the transfer waits for the same transaction, and the token executes it once.
    pub(super) async fn reconcile(
        &self,
        row: AuthorizationRow,
        cause: Cause,
        claims: Vec<Claim>,
    ) -> Result<PurchaseOutcome, StoreFailure> {
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
            outcome = self.submit_and_confirm(&row, sent.body, false).await;
        }
        self.record_outcome(row, outcome, claims).await
    }

    /// Looks up a payment that was refused after submission, without submitting it again: an earlier run had no node, and this one may have
    /// one.
    async fn look_up_refused(
        &self,
        row: AuthorizationRow,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        let chain = self.read_chain(&row, None).await;
        if let Some(outcome) = chain.outcome() {
            return self.record_outcome(row, outcome, Vec::new()).await;
        }
        if chain != ChainEvidence::NoNode {
            let now = self.now();
            let mut row = AuthorizationRow {
                version: row.version + 1,
                attempts: row.attempts + 1,
                updated_at: now,
                ..row
            };
            row.next_attempt_at = Some(rows::next_attempt_at(&row, now));
            self.write(part(AuthorizationPart::Change(row))).await?;
        }
        Ok(PurchaseOutcome::Processing)
    }

    /// Settles a payment that has moved money in the books, together with the plan that it pays for.
    pub(super) async fn record_settlement(
        &self,
        open: AuthorizationRow,
        (transaction, is_proven): (TxHash, bool),
        claims: Vec<Claim>,
    ) -> Result<PurchaseOutcome, StoreFailure> {
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
        let mut wait = Duration::from_millis(100);
        for attempt in 1.. {
            let paid = Paid {
                account: row.account,
                route: Route::X402,
                payment: rows::reference(&row.key).into(),
                reference: transaction.to_string().into(),
                amount: PRICE,
                period: Period::Days(DAYS),
                renews: false,
                receipt: Some(receipt.clone()),
                at: now,
            };
            let outcome = self.deps.plans.pay(paid, |subscription| {
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
                    return self.leave_open(open, None, why).await;
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

    /// Records that a payment can never move money any more.
    pub(super) async fn mark_void(
        &self,
        row: AuthorizationRow,
        why: &str,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        self.counters.inc(X402Event::Dead);
        let row = AuthorizationRow {
            state: AuthorizationState::Dead,
            version: row.version + 1,
            sealed: None,
            note: Some(Arc::from(why)),
            next_attempt_at: None,
            updated_at: self.now(),
            ..row
        };
        tracing::warn!(account = %row.account, payment = %rows::reference(&row.key), why, "payment is void: no money has moved");
        let failure = rows::failure(&row.key, "authorization_over");
        self.write(part(AuthorizationPart::Change(row))).await?;
        Ok(PurchaseOutcome::Refused {
            why: why.to_owned(),
            failure: Some(failure),
            is_proven: true,
        })
    }

    /// Ends a payment that the facilitator has reported as settled and that the chain shows to be void, once two lookups have shown that,
    /// [`FINAL`] apart: the first block may be replaced by one that has the transfer. A lookup between them that shows anything else
    /// restarts the interval.
    pub(super) async fn mark_void_when_final(
        &self,
        row: AuthorizationRow,
        reported: TxHash,
        why: &str,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        match row
            .next_attempt_at
            .filter(|_| rows::is_void_at_latest(&row))
        {
            Some(at) if at <= self.now() => self.mark_void(row, why).await,
            Some(_) => Ok(self.open_outcome(&row)),
            None => {
                let row = self
                    .record_unknown(row, Some(reported), rows::VOID_AT_LATEST)
                    .await?;
                Ok(self.open_outcome(&row))
            }
        }
    }

    /// The second lookup of a settled payment, once its block is final: the transfer may have been reorganized out.
    async fn check_finality(&self, row: AuthorizationRow) -> Result<(), StoreFailure> {
        let now = self.now();
        let mut next = AuthorizationRow {
            version: row.version + 1,
            attempts: row.attempts + 1,
            updated_at: now,
            ..row.clone()
        };
        let chain = self.read_chain(&row, None).await;
        let status = match chain {
            ChainEvidence::Read { status, .. } => Some(status),
            ChainEvidence::NoNode | ChainEvidence::Unreadable => None,
        };
        match chain.outcome() {
            Some(PaymentOutcome::Paid { transaction, .. }) => {
                next.transaction = Some(transaction.0);
                (next.next_attempt_at, next.sealed) = (None, None);
                return Ok(self.write(part(AuthorizationPart::Change(next))).await?);
            }
            Some(PaymentOutcome::Void(why) | PaymentOutcome::VoidAtLatest { why, .. }) => {
                return self.revoke(next, why).await;
            }
            _ => {}
        }
        match status {
            Some(OnChainStatus::Spent) => {
                self.counters.inc(X402Event::Stuck);
                tracing::error!(account = %row.account, payment = %rows::reference(&row.key),
                    "settled payment not found on the chain: check its transaction, and the facilitator");
                next.next_attempt_at = Some(rows::next_attempt_at(&next, now + FINAL));
            }
            Some(_) => {
                tracing::error!(account = %row.account, payment = %rows::reference(&row.key),
                    "settled payment was reorganized out of the chain, submitting it again");
                if let Some(sent) = self.unseal(&row) {
                    self.call_settle(&row, sent.body, false).await;
                }
                next.next_attempt_at = Some(now + MINUTE);
            }
            None => next.next_attempt_at = Some(rows::next_attempt_at(&next, now + MINUTE)),
        }
        Ok(self.write(part(AuthorizationPart::Change(next))).await?)
    }

    /// Records that a settled payment has moved no money and never will, and revokes what it granted.
    async fn revoke(&self, mut row: AuthorizationRow, why: &str) -> Result<(), StoreFailure> {
        self.counters.inc(X402Event::Vanished);
        let name = rows::reference(&row.key);
        tracing::error!(account = %row.account, payment = %name, why,
            "revoking settled payment: it is not on the chain and can no longer be included");
        row.state = AuthorizationState::Dead;
        row.note = Some(Arc::from(why));
        (row.next_attempt_at, row.sealed) = (None, None);
        let change = part(AuthorizationPart::Change(row));
        let reversed = self
            .deps
            .plans
            .reverse_payment(Route::X402, &name, vec![change.clone()])
            .await?;
        match reversed {
            Reversal::Nothing => Ok(self.write(change).await?),
            _ => Ok(()),
        }
    }

    /// Logs that an operator has to resolve a payment, and counts it.
    pub(super) fn alert_stuck(&self, row: &AuthorizationRow) {
        self.counters.inc(X402Event::Stuck);
        let (payment, note) = (rows::reference(&row.key), row.note.as_deref());
        match self.deps.node {
            None => tracing::error!(account = %row.account, payment, note,
                "payment outcome unknown after expiry: set `payments.x402.rpc_url` to look it up on the chain, or look it up and use `tollgate payment close`"),
            Some(_) => tracing::error!(account = %row.account, payment, note,
                "payment outcome unknown after expiry: neither the facilitator nor the chain shows it; look it up and use `tollgate payment close`"),
        }
    }

    /// The facilitator call that was stored with a payment, decrypted.
    pub(super) fn unseal(&self, row: &AuthorizationRow) -> Option<StoredCall> {
        let name = rows::reference(&row.key);
        let body = self
            .sealer
            .open(name.as_bytes(), &row.digest, row.sealed.as_deref()?)?;
        let request: Value = serde_json::from_slice(&body).ok()?;
        Some(StoredCall {
            terms: Terms::read(request.get("paymentRequirements")?)?,
            body: body.into(),
        })
    }
}
