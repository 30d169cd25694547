//! Step 2 of a payment, record: the row is stored as submitted before the submission (write ahead). Also every other state without a grant:
//! seen, refused, unknown, dead.

use std::time::Duration;

use bytes::Bytes;
use tollgate_clock::Timestamp;
use tollgate_evm::TxHash;
use tollgate_money::AccountId;
use tollgate_purchase::plan::Question;
use tollgate_store::{AuthorizationKey, AuthorizationState, CommitError, Refusal, reading};

use super::context::{X402, buyer_state};
use super::counters::X402Event;
use super::decide::{BuyerState, Decision, decide};
use super::payment::Payment;
use super::payment_outcome::PaymentOutcome;
use super::purchase::{PurchaseOutcome, Stop, StoreFailure};
use super::rows::{self, GRACE};
use super::single_flight::FlightKey;
use super::transfer::Transfer;

/// Maximum of an account's payments refused after submission within [`REFUSED_WINDOW`] without a node. Each stays for the operator, and any
/// may have moved money.
const REFUSED_MAX: usize = 8;

/// See [`REFUSED_MAX`].
const REFUSED_WINDOW: Duration = Duration::from_hours(24);

/// A payment as presented by its request.
#[derive(Clone, Debug)]
pub(super) struct Presented {
    pub(super) flight_key: FlightKey,
    pub(super) key: AuthorizationKey,
    pub(super) payment: Payment,
}

/// A verified payment, ready for submission.
pub(super) struct Verified {
    pub(super) row: Transfer,
    /// The body of the facilitator call.
    pub(super) body: Bytes,
    /// Whether the nonce is used already: the chain shows the transfer.
    pub(super) is_spent: bool,
}

/// A payment that is stored as submitted.
pub(super) struct Recorded(pub(super) Verified);

/// A payment that has moved the money, and is not recorded as settled yet.
pub(super) struct Paid {
    pub(super) row: Transfer,
    pub(super) transaction: TxHash,
    /// Whether the chain proves the payment.
    pub(super) is_proven: bool,
}

impl X402 {
    /// Records a payment as submitted before the submission, unless another payment of the account comes first.
    pub(super) async fn record(&self, verified: Verified) -> Result<Recorded, Stop> {
        let Verified {
            row,
            body,
            is_spent,
        } = verified;
        let plan_state = match is_spent {
            // The money has moved: no other purchase may prevent the record and the lookup of this payment.
            true => self.deps.plans.state(row.account).await?,
            false => self.plan_state(row.account, Question::Payment).await?,
        };
        let buyer = match is_spent {
            // Another authorization alone is waited for; a transfer adds its days to whatever was bought meanwhile.
            true => BuyerState {
                has_open: plan_state.authorization.is_some(),
                ..BuyerState::default()
            },
            false => buyer_state(&plan_state),
        };
        match decide(buyer, Some(None)) {
            Decision::Pay => {}
            Decision::AlreadyActive => return Err(Stop::Outcome(self.already_active(&plan_state))),
            _ => return Err(Stop::Outcome(self.outcome_while_open(&plan_state))),
        }
        // A payment stored as submitted adds no row, so the limit does not apply.
        let is_new = !is_spent && row.state != AuthorizationState::RefusedAfterSubmit;
        if is_new && let Some(wait) = self.refused_wait(row.account).await? {
            tracing::warn!(account = %row.account, payment = %row,
                "rejected payment before submission: too many of the account were refused after submission; see `tollgate payment list`");
            return Err(Stop::Outcome(PurchaseOutcome::TooManyRefused(wait)));
        }
        let now = self.now();
        let sealed = self.seal(&row, &body);
        let subscription = plan_state.subscription.as_ref().map(|row| row.version);
        let submission = match is_spent {
            true => row.sent_by_another(sealed, subscription, now)?,
            false => row.sent(sealed, subscription, now)?,
        };
        match self.store(submission).await {
            Ok(row) => Ok(Recorded(Verified {
                row,
                body,
                is_spent,
            })),
            Err(CommitError::Refused(Refusal::AuthorizationOpen)) => {
                Err(Stop::Outcome(PurchaseOutcome::Processing))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Stores a payment that has passed the local checks.
    pub(super) async fn record_seen(
        &self,
        presented: &Presented,
        now: Timestamp,
    ) -> Result<Transfer, StoreFailure> {
        let ends = presented
            .payment
            .authorization
            .valid_before
            .to_u64()
            .unwrap_or(u64::MAX);
        let valid_before = Timestamp::from_secs(i64::try_from(ends).unwrap_or(i64::MAX));
        let (key, flight_key) = (presented.key.clone(), presented.flight_key);
        let seen = Transfer::seen(key, flight_key, valid_before, now);
        Ok(self.store(seen).await?)
    }

    /// Records that a payment is refused. No money moved.
    pub(super) async fn record_refused(
        &self,
        row: Transfer,
        why: &str,
    ) -> Result<(), StoreFailure> {
        self.counters.inc(X402Event::Refused);
        tracing::info!(account = %row.account, payment = %row, %why, "payment refused before submission");
        self.store(row.refused(why, self.now())?).await?;
        Ok(())
    }

    /// Records the facilitator's refusal of a submitted payment without confirmation by a node. The submitted body is kept: a repeated
    /// presentation checks the payment again.
    async fn record_refused_after_submit(
        &self,
        row: Transfer,
        why: String,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        self.counters.inc(X402Event::Unconfirmed);
        tracing::warn!(account = %row.account, payment = %row, %why,
            "payment refused after submission, not confirmed: `payments.x402.rpc_url` is missing; see `tollgate payment list`");
        let failure = rows::failure(&row.key, &why);
        self.store(row.refused_after_submit(&why, self.now())?)
            .await?;
        Ok(PurchaseOutcome::Refused {
            why,
            failure: Some(failure),
            is_proven: false,
        })
    }

    /// Records that the outcome of a payment is not known yet.
    pub(super) async fn record_unknown(
        &self,
        row: Transfer,
        transaction: Option<TxHash>,
        why: &str,
    ) -> Result<Transfer, StoreFailure> {
        let is_asked = row.is_asked();
        let row = self
            .store(row.unknown(transaction, why, self.now())?)
            .await?;
        if row.attempts == 1 && !is_asked {
            self.counters.inc(X402Event::Unclear);
        }
        tracing::warn!(account = %row.account, payment = %row, attempts = row.attempts, %why, "payment outcome not known yet");
        Ok(row)
    }

    /// Records a repeated submission, before the call, if the row counts one call so far. The node of the first call may still wait for its
    /// answer: from now on a refusal of either call is not stored as a refusal.
    pub(super) async fn record_repeated(&self, row: Transfer) -> Result<Transfer, StoreFailure> {
        if row.state != AuthorizationState::Settling {
            return Ok(row);
        }
        let is_asked = row.is_asked();
        let why = row.note.as_deref().unwrap_or("the first answer is missing");
        // The schedule counts the outcome of the call.
        let repeated = row.clone().asked().unknown(None, why, self.now())?;
        let row = self.store(repeated).await?;
        Ok(match is_asked {
            true => row.asked(),
            false => row,
        })
    }

    /// Records the outcome of a submission where it is no payment, and returns a payment to be granted.
    pub(super) async fn record_outcome(
        &self,
        row: Transfer,
        outcome: PaymentOutcome,
    ) -> Result<Paid, Stop> {
        let outcome = match outcome {
            PaymentOutcome::Paid {
                transaction,
                is_proven,
            } => {
                return Ok(Paid {
                    row,
                    transaction,
                    is_proven,
                });
            }
            PaymentOutcome::Void(why) => self.mark_void(row, why).await?,
            PaymentOutcome::VoidAtLatest { why, reported } => {
                match reported.or(row.transaction.map(TxHash)) {
                    None => self.mark_void(row, why).await?,
                    Some(reported) => self.mark_void_when_final(row, reported, why).await?,
                }
            }
            PaymentOutcome::Refused(why) => self.record_refused_after_submit(row, why).await?,
            PaymentOutcome::Open {
                transaction, why, ..
            } => self.leave_open(row, transaction, &why).await?,
        };
        Err(Stop::Outcome(outcome))
    }

    /// Leaves a payment open: reconciliation follows, and an alert is raised once the authorization should have expired.
    pub(super) async fn leave_open(
        &self,
        row: Transfer,
        transaction: Option<TxHash>,
        why: &str,
    ) -> Result<PurchaseOutcome, StoreFailure> {
        let is_asked = row.is_asked();
        let row = self.record_unknown(row, transaction, why).await?;
        if self.now() > row.valid_before + GRACE && !is_asked {
            self.alert_stuck(&row);
        }
        Ok(self.open_outcome(&row))
    }

    /// Records that a payment can never move money any more.
    async fn mark_void(&self, row: Transfer, why: &str) -> Result<PurchaseOutcome, StoreFailure> {
        self.counters.inc(X402Event::Dead);
        tracing::warn!(account = %row.account, payment = %row, why, "payment is void: no money has moved");
        let failure = rows::failure(&row.key, "authorization_over");
        self.store(row.dead(why, self.now())?).await?;
        Ok(PurchaseOutcome::Refused {
            why: why.to_owned(),
            failure: Some(failure),
            is_proven: true,
        })
    }

    /// Ends a payment reported as settled by the facilitator and void on the chain. Two lookups, [`FINAL`] apart, have to show the payment
    /// void: the first block may be replaced by a block with the transfer. A lookup in between with another result restarts the interval.
    async fn mark_void_when_final(
        &self,
        row: Transfer,
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

    /// Wait of an account with too many payments refused after submission, until the next submission is permitted. Only this limit bounds
    /// the rows of an account: no row is deleted before the end of its retention, since a row may be the proof of a transfer.
    async fn refused_wait(&self, account: AccountId) -> Result<Option<Duration>, StoreFailure> {
        if self.deps.node.is_some() {
            return Ok(None);
        }
        let since = self.now() - REFUSED_WINDOW;
        let refused = reading(&self.deps.store, move |store| {
            store.authorizations_refused(account, since, REFUSED_MAX)
        })
        .await?;
        let oldest = refused.get(REFUSED_MAX - 1);
        Ok(oldest.map(|oldest| oldest.duration_since(since).max(rows::SECOND)))
    }

    /// Logs a payment for manual resolution by an operator, and counts the payment.
    pub(super) fn alert_stuck(&self, row: &Transfer) {
        self.counters.inc(X402Event::Stuck);
        let (payment, note) = (row.to_string(), row.note.as_deref());
        match self.deps.node {
            None => tracing::error!(account = %row.account, payment, note,
                "payment outcome unknown after expiry: set `payments.x402.rpc_url` to look it up on the chain, or look it up and use `tollgate payment close`"),
            Some(_) => tracing::error!(account = %row.account, payment, note,
                "payment outcome unknown after expiry: neither the facilitator nor the chain shows it; look it up and use `tollgate payment close`"),
        }
    }
}
