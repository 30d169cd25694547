//! An attempt to pay: the decision about a presented payment, and the four steps of a payment that may be made: verify, record, settle,
//! grant.

use std::sync::Arc;

use tollgate_purchase::idempotency::{Claim, ClaimOutcome};
use tollgate_purchase::plan::PlanState;
use tollgate_store::{AuthorizationState, Endpoint};

use super::context::{X402, buyer_state};
use super::decide::{Decision, decide};
use super::facilitator::request_body;
use super::purchase::{PurchaseOutcome, Stop};
use super::record::{Presented, Verified};
use super::rows;
use super::settle::Cause;
use super::transfer::Transfer;

impl X402 {
    /// Carries a presented payment to its outcome. A single flight per payment.
    pub(super) async fn submit(
        self: Arc<Self>,
        presented: Presented,
        idempotency_keys: Vec<Arc<str>>,
    ) -> PurchaseOutcome {
        let outcome = async {
            let claims = self.claim(&presented, &idempotency_keys).await?;
            self.pay(&presented, &claims).await
        };
        outcome.await.unwrap_or_else(Stop::into_outcome)
    }

    /// Claims the idempotency keys of a request, or returns the outcome as the answer.
    async fn claim(
        &self,
        presented: &Presented,
        idempotency_keys: &[Arc<str>],
    ) -> Result<Vec<Claim>, Stop> {
        let flight_key = presented.flight_key;
        let mut claims = Vec::with_capacity(idempotency_keys.len());
        for key in idempotency_keys {
            let keys = &self.deps.idempotency_keys;
            let claimed = keys.claim(flight_key.account, Endpoint::X402, key, flight_key.digest);
            match claimed.await? {
                ClaimOutcome::Claimed(claim) => claims.push(claim),
                ClaimOutcome::Answered(answer) => {
                    return Err(Stop::Outcome(PurchaseOutcome::Done(answer)));
                }
                ClaimOutcome::InProgress => {
                    return Err(Stop::Outcome(self.claimed_elsewhere(presented).await?));
                }
                ClaimOutcome::OtherRequest => {
                    return Err(Stop::Outcome(PurchaseOutcome::OtherRequest));
                }
            }
        }
        Ok(claims)
    }

    /// The outcome of a request whose key another request has claimed. The other request may have ended with its node; the key stays
    /// claimed until the node's recovery. A payment settled meanwhile is answered, without storing an answer under the key.
    async fn claimed_elsewhere(&self, presented: &Presented) -> Result<PurchaseOutcome, Stop> {
        let flight_key = presented.flight_key;
        let (plan_state, row) = self.read(flight_key.account, &presented.key).await?;
        let stored = row
            .as_ref()
            .map(|row| rows::stored_payment(row, flight_key));
        match (decide(buyer_state(&plan_state), Some(stored)), row) {
            (Decision::Replay, Some(row)) => self.replay(&row, &plan_state, &[]).await,
            _ => Ok(PurchaseOutcome::InProgress),
        }
    }

    /// The four steps of a payment. Each step may end the attempt with an outcome.
    async fn pay(&self, presented: &Presented, claims: &[Claim]) -> Result<PurchaseOutcome, Stop> {
        let verified = match self.admit(presented, claims).await? {
            Admitted::New(row) => self.verify(presented, row).await?,
            Admitted::Refused(row) => self.verify_refused(presented, row).await?,
            Admitted::RefusedAfterSubmit(row) => {
                // The chain may prove the outcome by now. Otherwise the payment is submitted again, if the account may pay now.
                if let Some(outcome) = self.read_chain(&row, None).await.outcome() {
                    let paid = self.record_outcome(row, outcome).await?;
                    return self.grant(paid, claims).await;
                }
                let sent = self.unseal(&row).map(|sent| sent.body);
                Verified {
                    body: sent
                        .unwrap_or_else(|| request_body(&presented.payment, &self.deps.terms)),
                    row,
                    is_spent: false,
                }
            }
            Admitted::Submitted(row) => {
                let paid = self.settle_again(row.asked(), Cause::Presented).await?;
                return self.grant(paid, claims).await;
            }
        };
        let recorded = self.record(verified).await?;
        let paid = self.settle(recorded).await?;
        self.grant(paid, claims).await
    }

    /// Decides about a presented payment by its stored row.
    async fn admit(&self, presented: &Presented, claims: &[Claim]) -> Result<Admitted, Stop> {
        let flight_key = presented.flight_key;
        let (plan_state, row) = self.read(flight_key.account, &presented.key).await?;
        let stored = row
            .as_ref()
            .map(|row| rows::stored_payment(row, flight_key));
        let outcome = match (decide(buyer_state(&plan_state), Some(stored)), row) {
            (Decision::Pay, row) => return Ok(Admitted::New(row)),
            (Decision::Recheck, Some(row)) => return Ok(Admitted::RefusedAfterSubmit(row)),
            (Decision::Join | Decision::Reconcile, Some(row)) => {
                match rows::is_fresh(&row, self.now()) || self.is_submitted_elsewhere(&row) {
                    true => self.open_outcome(&row),
                    false => return Ok(Admitted::Submitted(row)),
                }
            }
            (Decision::Refuse, Some(row))
                if row.state == AuthorizationState::Refused && row.digest == flight_key.digest =>
            {
                return Ok(Admitted::Refused(row));
            }
            (Decision::Refuse, row) => {
                let is_proven = row.as_ref().is_none_or(|row| has_moved_nothing(row.state));
                let note = row.and_then(|row| row.note.clone());
                PurchaseOutcome::Refused {
                    why: note.as_deref().unwrap_or("invalid_payload").to_owned(),
                    failure: None,
                    is_proven,
                }
            }
            (Decision::Replay, Some(row)) => self.replay(&row, &plan_state, claims).await?,
            (Decision::AlreadyActive, _) => self.already_active(&plan_state),
            (Decision::UsedByAnother, _) => PurchaseOutcome::UsedByAnother,
            (Decision::Wait, _) => self.outcome_while_open(&plan_state),
            // An offer does not answer a payment.
            (
                Decision::Offer
                | Decision::Replay
                | Decision::Join
                | Decision::Reconcile
                | Decision::Recheck,
                _,
            ) => PurchaseOutcome::Processing,
        };
        Err(Stop::Outcome(outcome))
    }

    /// The answer to a settled payment presented again, stored under the keys of this request.
    pub(super) async fn replay(
        &self,
        row: &Transfer,
        plan_state: &PlanState,
        claims: &[Claim],
    ) -> Result<PurchaseOutcome, Stop> {
        let Some(subscription) = &plan_state.subscription else {
            // Settlement and subscription are written in one unit of work.
            tracing::error!(account = %row.account, "settled payment has no subscription");
            return Ok(PurchaseOutcome::StoreUnavailable);
        };
        let answer = self.answer(subscription, row.receipt.as_deref(), true);
        for claim in claims {
            self.write(claim.answer_part(&answer)).await?;
        }
        Ok(PurchaseOutcome::Done(answer))
    }
}

/// A presented payment that may pay, by its stored state.
enum Admitted {
    /// No row, or seen only.
    New(Option<Transfer>),
    /// Refused before submission.
    Refused(Transfer),
    /// Refused after submission.
    RefusedAfterSubmit(Transfer),
    /// Submitted, with unknown outcome.
    Submitted(Transfer),
}

/// Whether a payment in this state was never submitted here, or is proved to have moved no money. This includes every other signature of
/// the nonce: the chain accepts only one signature.
fn has_moved_nothing(state: AuthorizationState) -> bool {
    use AuthorizationState::{Dead, Refused, Seen};
    matches!(state, Seen | Refused | Dead)
}
