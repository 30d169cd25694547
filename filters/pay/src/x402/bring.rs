//! Submission of a presented payment: from its stored state to the outcome.

use std::sync::Arc;

use bytes::Bytes;
use tollgate_evm::{Address, TxHash};
use tollgate_purchase::idempotency::{Claim, ClaimOutcome};
use tollgate_store::{
    Admission, AuthorizationKey, AuthorizationPart, AuthorizationRow, AuthorizationState,
    CommitError, Endpoint, Part, Refusal, UnitOfWork, commit,
};

use super::answer::{Settled, Verified, settled, verified};
use super::check::check;
use super::counters::X402Event;
use super::decide::{Act, decide};
use super::desk::{Broken, Inner, Told, asker, broken, part};
use super::facilitator::{Operation, question};
use super::flight::Mark;
use super::judge::{OnChain, Outcome};
use super::look::Sight;
use super::payment::Payment;
use super::rows::{self, GRACE, MINUTE};
use super::unclear::Cause;

/// The result of claiming a request's idempotency keys: all claims, or the outcome that answers the request.
enum Claimed {
    All(Vec<Claim>),
    Told(Told),
}

impl Inner {
    /// Carries a presented payment through verification, submission and confirmation. A single flight per payment.
    pub(super) async fn bring(
        self: Arc<Self>,
        mark: Mark,
        key: AuthorizationKey,
        payment: Payment,
        names: Vec<Arc<str>>,
    ) -> Told {
        let claims = match self.claim(mark, &names).await {
            Ok(Claimed::All(claims)) => claims,
            Ok(Claimed::Told(told)) => return told,
            Err(error) => return broken(&error),
        };
        let told = self.decide(mark, key, &payment, claims).await;
        told.unwrap_or_else(|error| broken(&error))
    }

    async fn claim(&self, mark: Mark, names: &[Arc<str>]) -> Result<Claimed, Broken> {
        let mut claims = Vec::with_capacity(names.len());
        for name in names {
            let once = &self.parts.once;
            match once
                .claim(mark.account, Endpoint::X402, name, mark.digest)
                .await?
            {
                ClaimOutcome::Claimed(claim) => claims.push(claim),
                ClaimOutcome::Answered(answer) => return Ok(Claimed::Told(Told::Done(answer))),
                ClaimOutcome::InProgress => return Ok(Claimed::Told(Told::UnderWay)),
                ClaimOutcome::OtherRequest => return Ok(Claimed::Told(Told::OtherRequest)),
            }
        }
        Ok(Claimed::All(claims))
    }

    async fn decide(
        &self,
        mark: Mark,
        key: AuthorizationKey,
        payment: &Payment,
        claims: Vec<Claim>,
    ) -> Result<Told, Broken> {
        let (standing, row) = self.read(mark.account, &key).await?;
        let known = row.as_ref().map(|row| rows::known(row, mark));
        match (decide(asker(&standing), Some(known)), row) {
            (Act::AlreadyActive, _) => Ok(self.already_active(&standing)),
            (Act::UsedByAnother, _) => Ok(Told::UsedByAnother),
            (Act::Refuse, Some(row))
                if row.state == AuthorizationState::Refused && row.digest == mark.digest =>
            {
                // Refused before our submission. Another holder may have submitted it since: the chain is read again.
                let terms = &self.parts.terms;
                let by_payer = payment.is_by_payer(terms);
                let why = row.note.as_deref().unwrap_or("invalid_payload").to_owned();
                let body = (question(payment, terms), by_payer);
                self.act_on_verify(row, body, Verified::Refused(why), claims)
                    .await
            }
            (Act::Refuse, row) => {
                let is_proven = row.as_ref().is_none_or(|row| has_moved_nothing(row.state));
                let note = row.and_then(|row| row.note);
                Ok(Told::Refused {
                    why: note.as_deref().unwrap_or("invalid_payload").to_owned(),
                    failure: None,
                    is_proven,
                })
            }
            (Act::Replay, Some(row)) => {
                let subscription = standing.subscription.as_ref();
                let Some(subscription) = subscription else {
                    // Both are written in one unit of work.
                    tracing::error!(account = %mark.account, "a settled payment without a subscription");
                    return Ok(Told::Broken);
                };
                let answer = self.answer(subscription, row.receipt.as_deref(), true);
                for claim in claims {
                    self.write(claim.answer_part(&answer)).await?;
                }
                Ok(Told::Done(answer))
            }
            (Act::Join | Act::Reconcile, Some(row)) => {
                // Reconciled a moment ago: another lookup would show nothing new.
                let since = self.now() - row.updated_at;
                match row.looks > 0 && (0..rows::SECOND).contains(&since) {
                    true => Ok(self.not_final(&row)),
                    false => self.find_out(row, Cause::Presented, claims).await,
                }
            }
            (Act::Recheck, Some(row)) => self.recheck(row, payment, claims).await,
            (Act::Pay, row) => self.pay(mark, key, payment, row, claims).await,
            (Act::Wait, _) => Ok(self.wait_for(&standing)),
            // An offer does not answer a payment.
            (Act::Offer | Act::Replay | Act::Join | Act::Reconcile | Act::Recheck, _) => {
                Ok(Told::Processing)
            }
        }
    }

    async fn pay(
        &self,
        mark: Mark,
        key: AuthorizationKey,
        payment: &Payment,
        row: Option<AuthorizationRow>,
        claims: Vec<Claim>,
    ) -> Result<Told, Broken> {
        let terms = &self.parts.terms;
        let now = self.now();
        let secs = u64::try_from(now / rows::SECOND).unwrap_or(0);
        if let Err(doubt) = check(payment, terms, secs) {
            self.counters.inc(X402Event::Refused);
            return Ok(refused(&doubt.to_string()));
        }
        let by_payer = payment.is_by_payer(terms);
        if !by_payer && let Err(wait) = self.patience.take(mark.account, self.parts.clock.elapsed())
        {
            return Ok(Told::TooMany(wait));
        }
        let row = match row {
            Some(row) => row,
            None => self.see(mark, key, payment, now).await?,
        };
        let body = question(payment, terms);
        let Ok(said) = self.facilitator(Operation::Verify, body.clone()).await else {
            return Ok(Told::Unavailable);
        };
        let verified = verified(said.status, &said.body);
        self.act_on_verify(row, (body, by_payer), verified, claims)
            .await
    }

    async fn act_on_verify(
        &self,
        row: AuthorizationRow,
        (body, by_payer): (Bytes, bool),
        verified: Verified,
        claims: Vec<Claim>,
    ) -> Result<Told, Broken> {
        match self.confirm_refusal(&row, verified, by_payer).await {
            Verified::Good => self.send(row, body, claims).await,
            Verified::Refused(why) => {
                // It may have been refused before, and was looked up again.
                if row.state != AuthorizationState::Refused {
                    self.refuse(row, &why).await?;
                }
                Ok(refused(&why))
            }
            // It was submitted already. The chain proves whether it paid us, and the signature whether it is this buyer's: nonce and wallet
            // are public on the chain.
            Verified::NonceSpent if !by_payer => {
                tracing::warn!(account = %row.account, payment = %rows::reference(&row.key),
                    "a payment that was sent by somebody else is brought without a signature that says whose it is");
                Ok(Told::Unavailable)
            }
            Verified::NonceSpent => {
                let sent = self
                    .note_sent(row, &body, AuthorizationState::Unknown)
                    .await?;
                match sent {
                    Ok(row) => self.find_out(row, Cause::Presented, claims).await,
                    Err(told) => Ok(told),
                }
            }
            Verified::Fault(why) => {
                tracing::warn!(%why, "the facilitator could not say whether a payment is good");
                Ok(Told::Unavailable)
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
            OnChain::NoNode
            | OnChain::Read {
                sight: Sight::Unspent { .. },
                ..
            } => Verified::Refused(why),
            OnChain::Unreadable => Verified::Fault(format!("{why}, and the chain cannot be read")),
            OnChain::Read { .. } => Verified::NonceSpent,
        }
    }

    /// Looks up a payment again that was refused after submission. The chain may prove its outcome by now; otherwise it is submitted again,
    /// unless the account may not pay for anything now.
    async fn recheck(
        &self,
        row: AuthorizationRow,
        payment: &Payment,
        claims: Vec<Claim>,
    ) -> Result<Told, Broken> {
        if let Some(outcome) = self.read_chain(&row, None).await.outcome() {
            return self.finish(row, outcome, claims).await;
        }
        let body = match self.open(&row) {
            Some(sent) => sent.body,
            None => question(payment, &self.parts.terms),
        };
        self.send(row, body, claims).await
    }

    /// Stores a payment that has passed the local checks.
    async fn see(
        &self,
        mark: Mark,
        key: AuthorizationKey,
        payment: &Payment,
        now: i64,
    ) -> Result<AuthorizationRow, Broken> {
        let ends = payment
            .authorization
            .valid_before
            .to_u64()
            .unwrap_or(u64::MAX);
        let row = AuthorizationRow {
            key,
            account: mark.account,
            state: AuthorizationState::Seen,
            version: 0,
            digest: mark.digest,
            sealed: None,
            valid_before: i64::try_from(ends)
                .unwrap_or(i64::MAX)
                .saturating_mul(rows::SECOND),
            transaction: None,
            receipt: None,
            note: None,
            looks: 0,
            look_at: None,
            created_at: now,
            updated_at: now,
        };
        self.write(part(AuthorizationPart::Begin(row.clone())))
            .await?;
        Ok(row)
    }

    /// Submits a payment. Where the facilitator gives no usable answer, the identical call is repeated once at once.
    async fn send(
        &self,
        row: AuthorizationRow,
        body: Bytes,
        claims: Vec<Claim>,
    ) -> Result<Told, Broken> {
        let row = match self
            .note_sent(row, &body, AuthorizationState::Settling)
            .await?
        {
            Ok(row) => row,
            Err(told) => return Ok(told),
        };
        match self.submit_and_confirm(&row, body.clone(), true).await {
            Outcome::Open {
                transaction,
                why,
                may_resubmit: true,
            } => {
                let row = self.note_unclear(row, transaction, &why).await?;
                let outcome = self.submit_and_confirm(&row, body, false).await;
                self.finish(row, outcome, claims).await
            }
            outcome => self.finish(row, outcome, claims).await,
        }
    }

    /// Stores the outcome of a payment and returns the outcome for its buyer.
    pub(super) async fn finish(
        &self,
        row: AuthorizationRow,
        outcome: Outcome,
        claims: Vec<Claim>,
    ) -> Result<Told, Broken> {
        match outcome {
            Outcome::Paid {
                transaction,
                is_proven,
            } => {
                self.settle_books(row, (transaction, is_proven), claims)
                    .await
            }
            Outcome::Void(why) => self.bury(row, why).await,
            Outcome::VoidAtLatest { why, reported } => {
                match reported.or(row.transaction.map(TxHash)) {
                    None => self.bury(row, why).await,
                    Some(reported) => self.bury_when_final(row, reported, why).await,
                }
            }
            Outcome::Refused(why) => self.note_refused_after_submit(row, why).await,
            Outcome::Open {
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
    ) -> Result<Told, Broken> {
        let row = self.note_unclear(row, transaction, why).await?;
        if self.now() > row.valid_before + GRACE {
            self.call_for_help(&row);
        }
        Ok(self.not_final(&row))
    }

    /// Calls `/settle`, for the first time or again.
    pub(super) async fn settle(&self, row: &AuthorizationRow, body: Bytes, first: bool) -> Settled {
        let payer = Address(row.key.payer);
        match self.facilitator(Operation::Settle, body).await {
            Ok(said) => settled(said.status, &said.body, &row.key.network, payer, first),
            Err(silence) => Settled::Unclear {
                transaction: None,
                why: silence.to_string(),
            },
        }
    }

    /// Records a submission before it is made (write ahead); returns the outcome for the buyer where another payment came first.
    async fn note_sent(
        &self,
        row: AuthorizationRow,
        body: &[u8],
        state: AuthorizationState,
    ) -> Result<Result<AuthorizationRow, Told>, Broken> {
        let standing = self.parts.plans.state(row.account).await?;
        let asker = asker(&standing);
        match decide(asker, Some(None)) {
            Act::Pay => {}
            Act::AlreadyActive => return Ok(Err(self.already_active(&standing))),
            _ => return Ok(Err(self.wait_for(&standing))),
        }
        // One that is stored as submitted is looked at whatever else there is: it adds no row.
        let is_new = state == AuthorizationState::Settling
            && row.state != AuthorizationState::RefusedAfterSubmit;
        if is_new && let Some(wait) = self.refused_wait(row.account).await? {
            tracing::warn!(account = %row.account, payment = %rows::reference(&row.key),
                "rejected payment before submission: too many of the account were refused after submission; see `tollgate payment list`");
            return Ok(Err(Told::TooManyRefused(wait)));
        }
        let now = self.now();
        let name = rows::reference(&row.key);
        let sealed = self.sealer.seal(name.as_bytes(), &row.digest, body);
        let row = AuthorizationRow {
            state,
            version: row.version + 1,
            sealed: Some(sealed.into()),
            // After a crash of this process the next one reconciles at once; while it runs, the submitting task knows the state.
            look_at: Some(now + 2 * MINUTE),
            updated_at: now,
            ..row
        };
        let send = AuthorizationPart::Send {
            row: row.clone(),
            subscription: standing.subscription.as_ref().map(|row| row.version),
        };
        match self.write(part(send)).await {
            Ok(()) => Ok(Ok(row)),
            Err(CommitError::Refused(Refusal::AuthorizationOpen)) => Ok(Err(Told::Processing)),
            Err(error) => Err(error.into()),
        }
    }

    /// Records that a payment is refused. No money moved.
    async fn refuse(&self, row: AuthorizationRow, why: &str) -> Result<(), Broken> {
        self.counters.inc(X402Event::Refused);
        let row = AuthorizationRow {
            state: AuthorizationState::Refused,
            version: row.version + 1,
            sealed: None,
            note: Some(Arc::from(why)),
            look_at: None,
            updated_at: self.now(),
            ..row
        };
        tracing::info!(account = %row.account, payment = %rows::reference(&row.key), %why, "a payment was refused");
        Ok(self.write(part(AuthorizationPart::Change(row))).await?)
    }

    /// Records that the facilitator refused a payment after submission, where no node confirms that. The submitted body is kept: the
    /// payment is checked again when it is presented again.
    async fn note_refused_after_submit(
        &self,
        row: AuthorizationRow,
        why: String,
    ) -> Result<Told, Broken> {
        self.counters.inc(X402Event::Unconfirmed);
        let row = AuthorizationRow {
            state: AuthorizationState::RefusedAfterSubmit,
            version: row.version + 1,
            note: Some(Arc::from(&*why)),
            looks: 0,
            look_at: None,
            updated_at: self.now(),
            ..row
        };
        tracing::warn!(account = %row.account, payment = %rows::reference(&row.key), %why,
            "payment refused after submission, not confirmed: `payments.x402.rpc_url` is missing; see `tollgate payment list`");
        let failure = rows::failure(&row.key, &why);
        self.write(part(AuthorizationPart::Change(row))).await?;
        Ok(Told::Refused {
            why,
            failure: Some(failure),
            is_proven: false,
        })
    }

    /// Records that the outcome of a payment is not known yet.
    pub(super) async fn note_unclear(
        &self,
        row: AuthorizationRow,
        transaction: Option<TxHash>,
        why: &str,
    ) -> Result<AuthorizationRow, Broken> {
        let now = self.now();
        let mut row = AuthorizationRow {
            state: AuthorizationState::Unknown,
            version: row.version + 1,
            transaction: transaction.map(|hash| hash.0).or(row.transaction),
            note: Some(Arc::from(why)),
            looks: row.looks + 1,
            updated_at: now,
            ..row
        };
        row.look_at = Some(rows::next_look(&row, now));
        if row.looks == 1 {
            self.counters.inc(X402Event::Unclear);
        }
        tracing::warn!(account = %row.account, payment = %rows::reference(&row.key), looks = row.looks, %why,
            "payment outcome not known yet");
        self.write(part(AuthorizationPart::Change(row.clone())))
            .await?;
        Ok(row)
    }

    pub(super) async fn write(&self, part: Part) -> Result<(), CommitError> {
        // A started operation is never rejected by admission control: money may have moved.
        let unit = UnitOfWork::of(part, Admission::Always);
        commit(&*self.parts.store, unit).await.map(|_| ())
    }
}

/// Whether a payment in this state was never submitted here, or is proved to have moved nothing. What is true of the stored payment is true
/// of every other signature for its nonce: the chain takes one of them.
fn has_moved_nothing(state: AuthorizationState) -> bool {
    use AuthorizationState::{Dead, Refused, Seen};
    matches!(state, Seen | Refused | Dead)
}

fn refused(why: &str) -> Told {
    Told::Refused {
        why: why.to_owned(),
        failure: None,
        is_proven: true,
    }
}
