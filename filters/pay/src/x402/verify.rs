//! Step 1 of a payment, verify: the offered terms, the limit of locally unverifiable signatures, and the facilitator's `/verify`. A chain
//! lookup confirms a refusal.

use bytes::Bytes;
use tollgate_store::AuthorizationState;

use super::answer::{Verified as Answer, verified};
use super::chain_lookup::OnChainStatus;
use super::check::check;
use super::context::X402;
use super::counters::X402Event;
use super::facilitator::{Operation, request_body};
use super::payment_outcome::ChainEvidence;
use super::purchase::{PurchaseOutcome, Stop};
use super::record::{Presented, Verified};
use super::transfer::Transfer;

impl X402 {
    /// Verifies a payment, new or presented before without submission.
    pub(super) async fn verify(
        &self,
        presented: &Presented,
        row: Option<Transfer>,
    ) -> Result<Verified, Stop> {
        let (terms, payment) = (&self.deps.terms, &presented.payment);
        let now = self.now();
        self.require_token()?;
        if let Err(error) = check(payment, terms, now) {
            self.counters.inc(X402Event::Refused);
            return Err(Stop::Outcome(PurchaseOutcome::refused(&error.to_string())));
        }
        let by_payer = payment.is_by_payer(terms);
        if !by_payer
            && let Err(wait) = self
                .signature_limit
                .take(presented.flight_key.account, self.deps.clock.elapsed())
        {
            return Err(Stop::Outcome(PurchaseOutcome::TooManyUnverified(wait)));
        }
        let row = match row {
            Some(row) => row,
            None => self.record_seen(presented, now).await?,
        };
        let body = request_body(payment, terms);
        let response = self.facilitator.call(Operation::Verify, body.clone()).await;
        let Ok(response) = response else {
            return Err(Stop::Outcome(PurchaseOutcome::Unavailable));
        };
        let answer = verified(response.status, &response.body);
        self.decide_verified(row, (body, by_payer), answer).await
    }

    /// Verifies a payment refused before submission again. Another holder may have submitted the payment since, so the chain is read.
    pub(super) async fn verify_refused(
        &self,
        presented: &Presented,
        row: Transfer,
    ) -> Result<Verified, Stop> {
        self.require_token()?;
        let terms = &self.deps.terms;
        let by_payer = presented.payment.is_by_payer(terms);
        let why = row.note.as_deref().unwrap_or("invalid_payload").to_owned();
        let body = request_body(&presented.payment, terms);
        self.decide_verified(row, (body, by_payer), Answer::Refused(why))
            .await
    }

    /// Stops a payment without earlier submission while the token is not verified: the amount may be worth another price.
    fn require_token(&self) -> Result<(), Stop> {
        match self.deps.token.is_verified() {
            true => Ok(()),
            false => Err(Stop::Outcome(PurchaseOutcome::Unavailable)),
        }
    }

    async fn decide_verified(
        &self,
        row: Transfer,
        (body, by_payer): (Bytes, bool),
        answer: Answer,
    ) -> Result<Verified, Stop> {
        let is_spent = match self.confirm_refusal(&row, answer, by_payer).await {
            Answer::Good => false,
            // Already submitted. The chain proves whether the payment reached us, and the signature whether the buyer is the payer: nonce
            // and wallet are public on the chain.
            Answer::NonceSpent if by_payer => true,
            Answer::NonceSpent => {
                tracing::warn!(account = %row.account, payment = %row,
                    "rejected payment: its nonce is used, and its signature is not the payer's");
                return Err(Stop::Outcome(PurchaseOutcome::Unavailable));
            }
            Answer::Refused(why) => {
                // Possibly refused before, and looked up again.
                if row.state != AuthorizationState::Refused {
                    self.record_refused(row, &why).await?;
                }
                return Err(Stop::Outcome(PurchaseOutcome::refused(&why)));
            }
            Answer::Fault(why) => {
                tracing::warn!(%why, "payment verification failed");
                return Err(Stop::Outcome(PurchaseOutcome::Unavailable));
            }
        };
        Ok(Verified {
            row,
            body,
            is_spent,
        })
    }

    /// Confirms a refusal of `/verify` against the chain: a refusal of a used authorization does not count, and while the chain cannot be
    /// read no refusal is final. The chain's result is attributed to this buyer only if the signature is the payer's.
    async fn confirm_refusal(&self, row: &Transfer, answer: Answer, by_payer: bool) -> Answer {
        let Answer::Refused(why) = answer else {
            return answer;
        };
        if !by_payer {
            return Answer::Refused(why);
        }
        match self.read_chain(row, None).await {
            ChainEvidence::NoNode
            | ChainEvidence::Read {
                status: OnChainStatus::Unspent { .. },
                ..
            } => Answer::Refused(why),
            ChainEvidence::Unreadable => {
                Answer::Fault(format!("{why}, and the chain cannot be read"))
            }
            ChainEvidence::Read { .. } => Answer::NonceSpent,
        }
    }
}
