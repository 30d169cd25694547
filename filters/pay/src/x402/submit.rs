//! Submission of a presented payment: decision, verification, write ahead, `/settle` and the record of its outcome.

use std::sync::Arc;

use bytes::Bytes;
use tollgate_clock::Timestamp;
use tollgate_evm::{Address, TxHash};
use tollgate_purchase::idempotency::{Claim, ClaimOutcome};
use tollgate_store::{
    Admission, AuthorizationKey, AuthorizationPart, AuthorizationRow, AuthorizationState,
    CommitError, Endpoint, Part, Refusal, UnitOfWork, commit,
};

use super::answer::{Settled, Verified, settled, verified};
use super::chain_lookup::OnChainStatus;
use super::check::check;
use super::counters::X402Event;
use super::decide::{Decision, decide};
use super::facilitator::{Operation, request_body};
use super::payment::Payment;
use super::payment_outcome::{ChainEvidence, PaymentOutcome};
use super::processor::{Inner, PurchaseOutcome, StoreFailure, buyer_state, part, store_failure};
use super::reconcile::Cause;
use super::rows::{self, GRACE, MINUTE};
use super::single_flight::FlightKey;

/// The result of claiming a request's idempotency keys: all claims, or the outcome that answers the request.
enum Claimed {
    All(Vec<Claim>),
    Outcome(PurchaseOutcome),
}

impl Inner {
    /// Carries a presented payment through verification, submission and confirmation. A single flight per payment.
    pub(super) async fn process(
        self: Arc<Self>,
        flight_key: FlightKey,
        key: AuthorizationKey,
        payment: Payment,
        idempotency_keys: Vec<Arc<str>>,
    ) -> PurchaseOutcome {
        let claims = match self.claim(flight_key, &idempotency_keys).await {
            Ok(Claimed::All(claims)) => claims,
            Ok(Claimed::Outcome(outcome)) => return outcome,
            Err(error) => return store_failure(&error),
        };
        let outcome = self.decide(flight_key, key, &payment, claims).await;
        outcome.unwrap_or_else(|error| store_failure(&error))
    }

    async fn claim(
        &self,
        flight_key: FlightKey,
        idempotency_keys: &[Arc<str>],
    ) -> Result<Claimed, StoreFailure> {
        let mut claims = Vec::with_capacity(idempotency_keys.len());
        for key in idempotency_keys {
            let store = &self.deps.idempotency_keys;
            match store
                .claim(flight_key.account, Endpoint::X402, key, flight_key.digest)
                .await?
            {
                ClaimOutcome::Claimed(claim) => claims.push(claim),
                ClaimOutcome::Answered(answer) => {
                    return Ok(Claimed::Outcome(PurchaseOutcome::Done(answer)));
                }
                ClaimOutcome::InProgress => {
                    return Ok(Claimed::Outcome(PurchaseOutcome::InProgress));
                }
                ClaimOutcome::OtherRequest => {
                    return Ok(Claimed::Outcome(PurchaseOutcome::OtherRequest));
                }
            }
        }
        Ok(Claimed::All(claims))
    }

    async fn decide(
        &self,
        flight_key: FlightKey,
        key: AuthorizationKey,
        payment: &Payment,
        claims: Vec<Claim>,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        let (plan_state, row) = self.read(flight_key.account, &key).await?;
        let stored = row
            .as_ref()
            .map(|row| rows::stored_payment(row, flight_key));
        match (decide(buyer_state(&plan_state), Some(stored)), row) {
            (Decision::AlreadyActive, _) => Ok(self.already_active(&plan_state)),
            (Decision::UsedByAnother, _) => Ok(PurchaseOutcome::UsedByAnother),
            (Decision::Refuse, Some(row))
                if row.state == AuthorizationState::Refused && row.digest == flight_key.digest =>
            {
                // Refused before our submission. Another holder may have submitted it since: the chain is read again.
                let terms = &self.deps.terms;
                let by_payer = payment.is_by_payer(terms);
                let why = row.note.as_deref().unwrap_or("invalid_payload").to_owned();
                let body = (request_body(payment, terms), by_payer);
                self.apply_verification(row, body, Verified::Refused(why), claims)
                    .await
            }
            (Decision::Refuse, row) => {
                let is_proven = row.as_ref().is_none_or(|row| has_moved_nothing(row.state));
                let note = row.and_then(|row| row.note);
                Ok(PurchaseOutcome::Refused {
                    why: note.as_deref().unwrap_or("invalid_payload").to_owned(),
                    failure: None,
                    is_proven,
                })
            }
            (Decision::Replay, Some(row)) => {
                let subscription = plan_state.subscription.as_ref();
                let Some(subscription) = subscription else {
                    // Both are written in one unit of work.
                    tracing::error!(account = %flight_key.account, "settled payment has no subscription");
                    return Ok(PurchaseOutcome::StoreUnavailable);
                };
                let answer = self.answer(subscription, row.receipt.as_deref(), true);
                for claim in claims {
                    self.write(claim.answer_part(&answer)).await?;
                }
                Ok(PurchaseOutcome::Done(answer))
            }
            (Decision::Join | Decision::Reconcile, Some(row)) => {
                // Reconciled a moment ago: another lookup would show nothing new.
                let fresh = row.updated_at..row.updated_at + rows::SECOND;
                match row.attempts > 0 && fresh.contains(&self.now()) {
                    true => Ok(self.open_outcome(&row)),
                    false => self.reconcile(row, Cause::Presented, claims).await,
                }
            }
            (Decision::Recheck, Some(row)) => self.recheck(row, payment, claims).await,
            (Decision::Pay, row) => self.pay(flight_key, key, payment, row, claims).await,
            (Decision::Wait, _) => Ok(self.outcome_while_open(&plan_state)),
            // An offer does not answer a payment.
            (
                Decision::Offer
                | Decision::Replay
                | Decision::Join
                | Decision::Reconcile
                | Decision::Recheck,
                _,
            ) => Ok(PurchaseOutcome::Processing),
        }
    }

    async fn pay(
        &self,
        flight_key: FlightKey,
        key: AuthorizationKey,
        payment: &Payment,
        row: Option<AuthorizationRow>,
        claims: Vec<Claim>,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        let terms = &self.deps.terms;
        let now = self.now();
        if let Err(error) = check(payment, terms, now) {
            self.counters.inc(X402Event::Refused);
            return Ok(refused(&error.to_string()));
        }
        let by_payer = payment.is_by_payer(terms);
        if !by_payer
            && let Err(wait) = self
                .signature_limit
                .take(flight_key.account, self.deps.clock.elapsed())
        {
            return Ok(PurchaseOutcome::TooManyUnverified(wait));
        }
        let row = match row {
            Some(row) => row,
            None => self.record_seen(flight_key, key, payment, now).await?,
        };
        let body = request_body(payment, terms);
        let Ok(response) = self.call_facilitator(Operation::Verify, body.clone()).await else {
            return Ok(PurchaseOutcome::Unavailable);
        };
        let verified = verified(response.status, &response.body);
        self.apply_verification(row, (body, by_payer), verified, claims)
            .await
    }

    async fn apply_verification(
        &self,
        row: AuthorizationRow,
        (body, by_payer): (Bytes, bool),
        verified: Verified,
        claims: Vec<Claim>,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        match self.confirm_refusal(&row, verified, by_payer).await {
            Verified::Good => self.submit(row, body, claims).await,
            Verified::Refused(why) => {
                // It may have been refused before, and was looked up again.
                if row.state != AuthorizationState::Refused {
                    self.record_refused(row, &why).await?;
                }
                Ok(refused(&why))
            }
            // It was submitted already. The chain proves whether it paid us, and the signature whether it is this buyer's: nonce and wallet
            // are public on the chain.
            Verified::NonceSpent if !by_payer => {
                tracing::warn!(account = %row.account, payment = %rows::reference(&row.key),
                    "rejected payment: its nonce is used, and its signature is not the payer's");
                Ok(PurchaseOutcome::Unavailable)
            }
            Verified::NonceSpent => {
                let sent = self
                    .record_submission(row, &body, AuthorizationState::Unknown)
                    .await?;
                match sent {
                    Ok(row) => self.reconcile(row, Cause::Presented, claims).await,
                    Err(outcome) => Ok(outcome),
                }
            }
            Verified::Fault(why) => {
                tracing::warn!(%why, "payment verification failed");
                Ok(PurchaseOutcome::Unavailable)
            }
        }
    }

    /// Confirms a refusal of `/verify` against the chain: a refusal of a used authorization does not count, and while the chain cannot be
    /// read no refusal is final. The chain's result is attributed to this buyer only if the signature is the payer's.
    async fn confirm_refusal(
        &self,
        row: &AuthorizationRow,
        verified: Verified,
        by_payer: bool,
    ) -> Verified {
        let Verified::Refused(why) = verified else {
            return verified;
        };
        if !by_payer {
            return Verified::Refused(why);
        }
        match self.read_chain(row, None).await {
            ChainEvidence::NoNode
            | ChainEvidence::Read {
                status: OnChainStatus::Unspent { .. },
                ..
            } => Verified::Refused(why),
            ChainEvidence::Unreadable => {
                Verified::Fault(format!("{why}, and the chain cannot be read"))
            }
            ChainEvidence::Read { .. } => Verified::NonceSpent,
        }
    }

    /// Looks up a payment again that was refused after submission. The chain may prove its outcome by now; otherwise it is submitted again,
    /// unless the account may not pay for anything now.
    async fn recheck(
        &self,
        row: AuthorizationRow,
        payment: &Payment,
        claims: Vec<Claim>,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        if let Some(outcome) = self.read_chain(&row, None).await.outcome() {
            return self.record_outcome(row, outcome, claims).await;
        }
        let body = match self.unseal(&row) {
            Some(sent) => sent.body,
            None => request_body(payment, &self.deps.terms),
        };
        self.submit(row, body, claims).await
    }

    /// Stores a payment that has passed the local checks.
    async fn record_seen(
        &self,
        flight_key: FlightKey,
        key: AuthorizationKey,
        payment: &Payment,
        now: Timestamp,
    ) -> Result<AuthorizationRow, StoreFailure> {
        let ends = payment
            .authorization
            .valid_before
            .to_u64()
            .unwrap_or(u64::MAX);
        let row = AuthorizationRow {
            key,
            account: flight_key.account,
            state: AuthorizationState::Seen,
            version: 0,
            digest: flight_key.digest,
            sealed: None,
            valid_before: Timestamp::from_secs(i64::try_from(ends).unwrap_or(i64::MAX)),
            transaction: None,
            receipt: None,
            note: None,
            attempts: 0,
            next_attempt_at: None,
            created_at: now,
            updated_at: now,
        };
        self.write(part(AuthorizationPart::Begin(row.clone())))
            .await?;
        Ok(row)
    }

    /// Submits a payment. Where the facilitator gives no usable answer, the identical call is repeated once at once.
    async fn submit(
        &self,
        row: AuthorizationRow,
        body: Bytes,
        claims: Vec<Claim>,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        let row = match self
            .record_submission(row, &body, AuthorizationState::Settling)
            .await?
        {
            Ok(row) => row,
            Err(outcome) => return Ok(outcome),
        };
        match self.submit_and_confirm(&row, body.clone(), true).await {
            PaymentOutcome::Open {
                transaction,
                why,
                may_resubmit: true,
            } => {
                let row = self.record_unknown(row, transaction, &why).await?;
                let outcome = self.submit_and_confirm(&row, body, false).await;
                self.record_outcome(row, outcome, claims).await
            }
            outcome => self.record_outcome(row, outcome, claims).await,
        }
    }

    /// Stores the outcome of a payment and returns the outcome for its buyer.
    pub(super) async fn record_outcome(
        &self,
        row: AuthorizationRow,
        outcome: PaymentOutcome,
        claims: Vec<Claim>,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        match outcome {
            PaymentOutcome::Paid {
                transaction,
                is_proven,
            } => {
                self.record_settlement(row, (transaction, is_proven), claims)
                    .await
            }
            PaymentOutcome::Void(why) => self.mark_void(row, why).await,
            PaymentOutcome::VoidAtLatest { why, reported } => {
                match reported.or(row.transaction.map(TxHash)) {
                    None => self.mark_void(row, why).await,
                    Some(reported) => self.mark_void_when_final(row, reported, why).await,
                }
            }
            PaymentOutcome::Refused(why) => self.record_refused_after_submit(row, why).await,
            PaymentOutcome::Open {
                transaction, why, ..
            } => self.leave_open(row, transaction, &why).await,
        }
    }

    /// Leaves a payment open: it is reconciled later, and an alert is raised once its authorization should have expired.
    pub(super) async fn leave_open(
        &self,
        row: AuthorizationRow,
        transaction: Option<TxHash>,
        why: &str,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        let row = self.record_unknown(row, transaction, why).await?;
        if self.now() > row.valid_before + GRACE {
            self.alert_stuck(&row);
        }
        Ok(self.open_outcome(&row))
    }

    /// Calls `/settle`, for the first time or again.
    pub(super) async fn call_settle(
        &self,
        row: &AuthorizationRow,
        body: Bytes,
        first: bool,
    ) -> Settled {
        let payer = Address(row.key.payer);
        match self.call_facilitator(Operation::Settle, body).await {
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

    /// Records a submission before it is made (write ahead); returns the outcome for the buyer where another payment precedes it.
    async fn record_submission(
        &self,
        row: AuthorizationRow,
        body: &[u8],
        state: AuthorizationState,
    ) -> Result<Result<AuthorizationRow, PurchaseOutcome>, StoreFailure> {
        let plan_state = self.deps.plans.state(row.account).await?;
        let buyer = buyer_state(&plan_state);
        match decide(buyer, Some(None)) {
            Decision::Pay => {}
            Decision::AlreadyActive => return Ok(Err(self.already_active(&plan_state))),
            _ => return Ok(Err(self.outcome_while_open(&plan_state))),
        }
        // A payment that is stored as submitted adds no row, so the limit does not apply.
        let is_new = state == AuthorizationState::Settling
            && row.state != AuthorizationState::RefusedAfterSubmit;
        if is_new && let Some(wait) = self.refused_wait(row.account).await? {
            tracing::warn!(account = %row.account, payment = %rows::reference(&row.key),
                "rejected payment before submission: too many of the account were refused after submission; see `tollgate payment list`");
            return Ok(Err(PurchaseOutcome::TooManyRefused(wait)));
        }
        let now = self.now();
        let name = rows::reference(&row.key);
        let sealed = self.sealer.seal(name.as_bytes(), &row.digest, body);
        let row = AuthorizationRow {
            state,
            version: row.version + 1,
            sealed: Some(sealed.into()),
            // After a crash of this process the next one reconciles at once; while it runs, the submitting task knows the state.
            next_attempt_at: Some(now + 2 * MINUTE),
            updated_at: now,
            ..row
        };
        let submission = AuthorizationPart::Send {
            row: row.clone(),
            subscription: plan_state.subscription.as_ref().map(|row| row.version),
        };
        match self.write(part(submission)).await {
            Ok(()) => Ok(Ok(row)),
            Err(CommitError::Refused(Refusal::AuthorizationOpen)) => {
                Ok(Err(PurchaseOutcome::Processing))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Records that a payment is refused. No money moved.
    async fn record_refused(&self, row: AuthorizationRow, why: &str) -> Result<(), StoreFailure> {
        self.counters.inc(X402Event::Refused);
        let row = AuthorizationRow {
            state: AuthorizationState::Refused,
            version: row.version + 1,
            sealed: None,
            note: Some(Arc::from(why)),
            next_attempt_at: None,
            updated_at: self.now(),
            ..row
        };
        tracing::info!(account = %row.account, payment = %rows::reference(&row.key), %why, "payment refused before submission");
        Ok(self.write(part(AuthorizationPart::Change(row))).await?)
    }

    /// Records that the facilitator refused a payment after submission, where no node confirms that. The submitted body is kept: the
    /// payment is checked again when it is presented again.
    async fn record_refused_after_submit(
        &self,
        row: AuthorizationRow,
        why: String,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        self.counters.inc(X402Event::Unconfirmed);
        let row = AuthorizationRow {
            state: AuthorizationState::RefusedAfterSubmit,
            version: row.version + 1,
            note: Some(Arc::from(&*why)),
            attempts: 0,
            next_attempt_at: None,
            updated_at: self.now(),
            ..row
        };
        tracing::warn!(account = %row.account, payment = %rows::reference(&row.key), %why,
            "payment refused after submission, not confirmed: `payments.x402.rpc_url` is missing; see `tollgate payment list`");
        let failure = rows::failure(&row.key, &why);
        self.write(part(AuthorizationPart::Change(row))).await?;
        Ok(PurchaseOutcome::Refused {
            why,
            failure: Some(failure),
            is_proven: false,
        })
    }

    /// Records that the outcome of a payment is not known yet.
    pub(super) async fn record_unknown(
        &self,
        row: AuthorizationRow,
        transaction: Option<TxHash>,
        why: &str,
    ) -> Result<AuthorizationRow, StoreFailure> {
        let now = self.now();
        let mut row = AuthorizationRow {
            state: AuthorizationState::Unknown,
            version: row.version + 1,
            transaction: transaction.map(|hash| hash.0).or(row.transaction),
            note: Some(Arc::from(why)),
            attempts: row.attempts + 1,
            updated_at: now,
            ..row
        };
        row.next_attempt_at = Some(rows::next_attempt_at(&row, now));
        if row.attempts == 1 {
            self.counters.inc(X402Event::Unclear);
        }
        tracing::warn!(account = %row.account, payment = %rows::reference(&row.key), attempts = row.attempts, %why,
            "payment outcome not known yet");
        self.write(part(AuthorizationPart::Change(row.clone())))
            .await?;
        Ok(row)
    }

    pub(super) async fn write(&self, part: Part) -> Result<(), CommitError> {
        // A started operation is never rejected by admission control: money may have moved.
        let unit = UnitOfWork::of(part, Admission::Always);
        commit(&*self.deps.store, unit).await.map(|_| ())
    }
}

/// Whether a payment in this state was never submitted here, or is proved to have moved nothing. This holds for every other signature of
/// its nonce as well: the chain accepts one of them.
fn has_moved_nothing(state: AuthorizationState) -> bool {
    use AuthorizationState::{Dead, Refused, Seen};
    matches!(state, Seen | Refused | Dead)
}

fn refused(why: &str) -> PurchaseOutcome {
    PurchaseOutcome::Refused {
        why: why.to_owned(),
        failure: None,
        is_proven: true,
    }
}
