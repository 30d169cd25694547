//! Reconciliation of one mandate: reads the subscription and charges at the provider, and carries out the decision of [`super::decide`].

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::MandateId;
use tollgate_store::{
    MandateRow, MandateState, Part, PaymentStatus, Reader, Route, SubscriptionRow, reading,
};

use super::context::{AttachParts, MandateContext};
use super::counters::MandateEvent;
use super::current::is_own;
use super::decide::{Decision, Facts, PlanSource, Recorded, decide, is_past_due};
use super::error::{VerifyError, log_provider_error};
use super::keys;
use super::mandate::{GONE, Mandate};
use super::recurring::{Charge, ProviderSubscription, RecurringError, Status};
use super::schedule::{self, DAY, TRANSFER_GRACE, days};
use crate::conflict::{ATTEMPTS, WriteConflict as _};
use crate::plan::{Paid, PayOutcome, Period, PlanError, Renewal, Reversal};
use crate::topups::FailureKind;

/// Steps of one reconciliation: as many charges as were missed, and some calls. The bound breaks cycles.
const STEPS_MAX: usize = 64;

/// Age from which charges are no longer read.
const CHARGE_AGE_MAX: Duration = days(400);

/// How far before the mandate's creation the list of charges begins.
const LIST_LEAD: Duration = days(31);

/// Tolerated difference between the provider's clock and ours.
const CLOCK_SKEW_MAX: Duration = DAY;

/// Reasons shown to buyers and at the provider.
const CANCEL_REASON: &str = "Cancelled by the owner of the account";
const RESUME_REASON: &str = "Resumed by the owner of the account";
const DUPLICATE_REASON: &str = "The account has the plan by another payment";

/// Provider calls made in this reconciliation, each at most once.
#[derive(Default)]
struct ProviderCalls {
    cancel: bool,
    activate: bool,
    suspend: bool,
    /// Suspending or activating was refused for good.
    is_refused: bool,
    /// A second read after "not found".
    again: bool,
    refunds: Vec<String>,
    /// The first failed call.
    failed: Option<RecurringError>,
}

impl ProviderCalls {
    fn note_refusal(&mut self, done: &Result<(), RecurringError>) {
        let refused = |error: &RecurringError| error.kind == FailureKind::Refused;
        self.is_refused |= done.as_ref().is_err_and(refused);
    }
}

impl MandateContext {
    /// An attempt of the worker.
    pub(super) async fn attempt(&self, id: MandateId) -> Result<MandateRow, VerifyError> {
        self.reconcile(id, Mandate::stored, None).await
    }

    /// The buyer or an agent asks.
    pub(super) async fn ask(
        &self,
        id: MandateId,
        attach: Option<&AttachParts>,
    ) -> Result<MandateRow, VerifyError> {
        self.reconcile(id, Mandate::asked, attach).await
    }

    async fn reconcile(
        &self,
        id: MandateId,
        begin: fn(MandateRow) -> Mandate,
        attach: Option<&AttachParts>,
    ) -> Result<MandateRow, VerifyError> {
        let account = self.row(id).await?.account;
        let _lock = self.lock(account).await;
        // The row may have changed during the wait for the lock.
        let row = begin(self.row(id).await?);
        self.reconcile_noted(row, attach, &mut false).await
    }

    /// [`reconcile`](Self::reconcile) with the account's lock held.
    pub(super) async fn reconcile_locked(
        &self,
        row: MandateRow,
        attach: Option<&AttachParts>,
    ) -> Result<MandateRow, VerifyError> {
        self.reconcile_with(row, attach, &mut false).await
    }

    /// [`reconcile_locked`](Self::reconcile_locked); reports whether a charge is pending.
    pub(super) async fn reconcile_with(
        &self,
        row: MandateRow,
        attach: Option<&AttachParts>,
        is_pending: &mut bool,
    ) -> Result<MandateRow, VerifyError> {
        self.reconcile_noted(Mandate::stored(row), attach, is_pending)
            .await
    }

    /// [`reconcile_with`](Self::reconcile_with) for another rail: no attempt of the schedule, and no alert.
    pub(super) async fn reconcile_asked(
        &self,
        row: MandateRow,
        is_pending: &mut bool,
    ) -> Result<MandateRow, VerifyError> {
        self.reconcile_noted(Mandate::asked(row), None, is_pending)
            .await
    }

    /// Repeated with the stored row after a concurrent change by another node: the owner's last request counts.
    async fn reconcile_noted(
        &self,
        mut row: Mandate,
        attach: Option<&AttachParts>,
        is_pending: &mut bool,
    ) -> Result<MandateRow, VerifyError> {
        let (id, is_asked) = (row.id, row.is_asked());
        let mut attempts = 1..ATTEMPTS;
        let row = loop {
            // Each reconciliation reads the whole state and so covers every notification so far. A failed read is retried soon.
            let row_read = row.acknowledged(self.clock.now());
            match self.reconcile_row(row_read, attach, is_pending).await {
                Err(error) if error.is_conflict() && attempts.next().is_some() => {}
                done => break done?.into_row(),
            }
            row = match (self.row(id).await?, is_asked) {
                (stored, true) => Mandate::asked(stored),
                (stored, false) => Mandate::stored(stored),
            };
        };
        let elapsed = self.clock.elapsed();
        self.recent_reads.note(&row, *is_pending, elapsed);
        Ok(row)
    }

    async fn reconcile_row(
        &self,
        mut row: Mandate,
        attach: Option<&AttachParts>,
        is_pending: &mut bool,
    ) -> Result<Mandate, VerifyError> {
        let Some(subscription) = row.provider_ref.clone() else {
            return self.without_subscription(row).await;
        };
        // The key identifies the provider environment. Another environment does not know this subscription.
        if *row.create_key != keys::create(&self.environment, row.account, row.id) {
            return self.other_environment(row).await;
        }
        let mut calls = ProviderCalls::default();
        let mut read: Option<(ProviderSubscription, Vec<Charge>)> = None;
        for _ in 0..STEPS_MAX {
            let (seen, charges) = match read.take() {
                Some(read) => read,
                None => match self.read(&row, &subscription).await {
                    Ok(read) => read,
                    // The provider is eventually consistent: a new subscription may not be readable yet.
                    Err(error) if error.kind == FailureKind::Gone && !calls.again => {
                        calls.again = true;
                        continue;
                    }
                    Err(error) => return self.unreadable(row, error).await,
                },
            };
            if row.note.as_deref() == Some(GONE) {
                row = row.found(self.clock.now());
            }
            let charges = self.recorded(charges).await?;
            let state = self.plans.state(row.account).await;
            let state = state.map_err(VerifyError::Plan)?;
            let now = self.clock.now();
            let runs = match state.active() {
                None => PlanSource::Inactive,
                Some(active) if is_own(active, &row) => PlanSource::Own,
                Some(_) => PlanSource::Other,
            };
            let facts = Facts {
                row: &row,
                seen: &seen,
                charges: &charges,
                runs,
                has_cancelled: calls.cancel,
                has_activated: calls.activate,
                has_suspended: calls.suspend,
                is_refused: calls.is_refused,
                refunds: &calls.refunds,
                has_transfer: state
                    .authorization
                    .as_ref()
                    .is_some_and(|transfer| now < transfer.valid_before + TRANSFER_GRACE),
                now,
            };
            *is_pending = facts.is_pending();
            let decision = decide(&facts);
            if calls.is_refused {
                // The decision deals with it.
                calls.failed = None;
            }
            match decision {
                Decision::Wait => return self.wait(row, calls.failed.take()).await,
                Decision::AwaitTransfer => return self.wait_for_transfer(row).await,
                Decision::Stuck(why) => return self.mark_stuck(row, why).await,
                Decision::Cancel | Decision::Activate | Decision::Suspend | Decision::Refund(_) => {
                    self.call(&row, &subscription, decision, &mut calls).await;
                }
                decision => {
                    row = self.apply(row, &seen, decision, attach).await?;
                    // The read stays valid: only our own rows have changed.
                    let charges = charges.into_iter().map(|(charge, _)| charge);
                    read = Some((seen, charges.collect()));
                }
            }
        }
        self.retry_later(row).await
    }

    /// Makes the call of a decision at the provider.
    async fn call(
        &self,
        row: &Mandate,
        subscription: &str,
        decision: Decision,
        calls: &mut ProviderCalls,
    ) {
        match decision {
            Decision::Cancel => {
                calls.cancel = true;
                let why = match row.state {
                    MandateState::Duplicate => DUPLICATE_REASON,
                    _ => CANCEL_REASON,
                };
                let done = self.recurring.cancel(subscription, why).await;
                self.note_result(row, done, "cancel subscription", calls);
            }
            Decision::Activate => {
                calls.activate = true;
                let why = match row.state {
                    MandateState::Resuming => RESUME_REASON,
                    _ => "Agreed to",
                };
                let done = self.recurring.activate(subscription, why).await;
                calls.note_refusal(&done);
                self.note_result(row, done, "activate subscription", calls);
            }
            Decision::Suspend => {
                calls.suspend = true;
                let done = self.recurring.suspend(subscription, CANCEL_REASON).await;
                calls.note_refusal(&done);
                self.note_result(row, done, "suspend subscription", calls);
            }
            Decision::Refund(charge) => {
                self.refund(row, &charge, calls).await;
                calls.refunds.push(charge.id);
            }
            _ => {}
        }
    }

    async fn read(
        &self,
        row: &MandateRow,
        subscription: &str,
    ) -> Result<(ProviderSubscription, Vec<Charge>), RecurringError> {
        // The subscription before the charges: a charge made after the first read is in the list, never the other way round.
        let seen = self.recurring.read(subscription).await?;
        let now = self.clock.now();
        // Begins well before the creation: the list holds only this subscription's charges, and a wrong clock must not hide a charge.
        let from = (row.created_at.min(now) - LIST_LEAD).max(now - CHARGE_AGE_MAX);
        let mut charges = match seen.status {
            // No charge precedes the buyer's consent. A contradicting list is used once the status has caught up.
            Status::Waiting if row.agreed_at.is_none() => Vec::new(),
            _ => {
                let charges = self
                    .recurring
                    .charges(subscription, from, now + CLOCK_SKEW_MAX);
                charges.await?
            }
        };
        charges.sort_by(|one, other| (one.at, &one.id).cmp(&(other.at, &other.id)));
        Ok((seen, charges))
    }

    /// Looks up the records of charges.
    async fn recorded(&self, charges: Vec<Charge>) -> Result<Vec<(Charge, Recorded)>, VerifyError> {
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        let look_up = move |store: &Reader| {
            let noted = charges.into_iter().map(|charge| {
                let payment = store.payment(Route::PayPal, &charge.id)?;
                let noted = match payment.map(|payment| payment.status) {
                    None => Recorded::New,
                    Some(PaymentStatus::Paid) => Recorded::Kept,
                    Some(_) => Recorded::Reversed,
                };
                Ok((charge, noted))
            });
            noted.collect()
        };
        reading(&self.store, look_up)
            .await
            .map_err(VerifyError::Read)
    }

    /// Carries out decisions that change only our own rows.
    async fn apply(
        &self,
        row: Mandate,
        seen: &ProviderSubscription,
        decision: Decision,
        attach: Option<&AttachParts>,
    ) -> Result<Mandate, VerifyError> {
        match decision {
            Decision::Pay { charge, until } => self.pay(row, seen, (&charge, until), attach).await,
            Decision::Advance(time) => self.advance(row, time).await,
            Decision::Returned(charge) => self.charge_returned(row, &charge).await,
            Decision::Agreed => self.mark_agreed(row).await,
            Decision::Duplicate(why) => self.mark_duplicate(row, why).await,
            Decision::Resumed => {
                tracing::info!(mandate = %row.id, "suspended subscription resumed");
                let after = row.clone().resumed(self.clock.now());
                self.set_renewal(row, after, Renewal::Runs).await
            }
            Decision::Reactivate => {
                tracing::warn!(mandate = %row.id, "subscription suspended after its owner had resumed it: activating it again");
                let after = row.clone().resumed_meanwhile(self.clock.now());
                self.set_renewal(row, after, Renewal::Runs).await
            }
            Decision::ResumeFailed => {
                tracing::warn!(mandate = %row.id, account = %row.account, until = row.paid_until.map(Timestamp::as_micros),
                    "cannot resume mandate: the payment provider has not activated its subscription; it ends with its paid period");
                let after = row.clone().resume_failed(self.clock.now());
                self.set_renewal(row, after, Renewal::Ends).await
            }
            Decision::PastDue => {
                self.counters.inc(MandateEvent::PastDue);
                tracing::warn!(mandate = %row.id, account = %row.account, why = ?seen.failed_why,
                    "charge for the plan failed, the payment provider retries it");
                let after = row.clone().past_due(self.clock.now());
                self.set_renewal(row, after, Renewal::PastDue).await
            }
            Decision::Ended(why) => {
                self.counters.inc(MandateEvent::Ended);
                tracing::info!(mandate = %row.id, account = %row.account, why,
                    until = row.paid_until.map(Timestamp::as_micros), "mandate ended, its paid period stays");
                let after = row.clone().ended(why, self.clock.now());
                self.set_renewal(row, after, Renewal::Ends).await
            }
            Decision::Dropped => self.save(row.dropped(self.clock.now())).await,
            Decision::Over(why) => self.save(row.over(why, self.clock.now())).await,
            // Handled before: no change of our rows.
            Decision::Wait
            | Decision::AwaitTransfer
            | Decision::Stuck(_)
            | Decision::Cancel
            | Decision::Activate
            | Decision::Suspend
            | Decision::Refund(_) => Ok(row),
        }
    }

    /// Records a charge with a bought period: payment, subscription and mandate in one unit of work.
    async fn pay(
        &self,
        row: Mandate,
        seen: &ProviderSubscription,
        (charge, until): (&Charge, Timestamp),
        attach: Option<&AttachParts>,
    ) -> Result<Mandate, VerifyError> {
        let now = self.clock.now();
        let is_first = row.payment.is_none();
        let after = row.clone().paid(charge, until, seen.status, now);
        let mut parts = self.superseded(&after).await?;
        parts.push(after.part());
        let paid = Paid {
            account: row.account,
            route: Route::PayPal,
            payment: Arc::from(&*charge.id),
            reference: row
                .provider_ref
                .clone()
                .expect("a charged mandate has a subscription"),
            amount: row.price,
            period: Period::Until(until),
            renews: matches!(after.state, MandateState::Active | MandateState::Resuming),
            receipt: None,
            // The provider's clock may be ahead of ours; the paid period must not start later for it.
            at: charge.at.min(now),
        };
        let attached = |subscription: &SubscriptionRow| {
            let extra = attach.map(|attach| attach(subscription, &after));
            parts.iter().cloned().chain(extra.into_iter().flatten())
        };
        let noted = self
            .plans
            .pay(paid, |subscription| attached(subscription).collect());
        match noted.await {
            Ok(PayOutcome::New(_)) => {
                self.counters.inc(MandateEvent::Paid);
                if is_first {
                    self.counters.inc(MandateEvent::Activated);
                }
                Ok(after.written())
            }
            // Recorded concurrently: the next step reads it.
            Ok(PayOutcome::Repeated(_)) => Ok(row),
            Ok(PayOutcome::Duplicate(_)) => {
                self.mark_duplicate(row, "the plan is active by another route")
                    .await
            }
            Err(error) => self.retry_after_failure(row, error).await,
        }
    }

    /// Grants one day for a payment reported but not listed. The listed charge is recorded later.
    async fn advance(&self, row: Mandate, time: Timestamp) -> Result<Mandate, VerifyError> {
        let now = self.clock.now();
        let after = row.clone().advanced(time, now);
        let mut parts = self.superseded(&after).await?;
        parts.push(after.part());
        let reference = row.provider_ref.clone().unwrap_or_default();
        let own = (Route::PayPal, &*reference);
        match self.plans.advance(row.account, own, now + DAY, parts).await {
            Ok(Some(_)) => {
                self.counters.inc(MandateEvent::Advanced);
                tracing::warn!(mandate = %row.id, account = %row.account,
                    "provider reports a payment that it does not list yet: granted one day, retrying");
                Ok(after.written())
            }
            Ok(None) => {
                self.mark_duplicate(row, "the plan is active by another route")
                    .await
            }
            Err(error) => self.retry_after_failure(row, error).await,
        }
    }

    /// A charge was refunded or reversed by another party: its period is taken away, and the mandate is cancelled.
    async fn charge_returned(&self, row: Mandate, charge: &Charge) -> Result<Mandate, VerifyError> {
        let after = row.clone().charge_returned(charge, self.clock.now());
        let parts = vec![after.part()];
        let taken = self.plans.reverse_payment(Route::PayPal, &charge.id, parts);
        match taken.await {
            Ok(Reversal::New { .. }) => {
                self.counters.inc(MandateEvent::Returned);
                tracing::error!(mandate = %row.id, account = %row.account, payment = charge.id,
                    "charge for the plan was refunded or reversed: its period ended, cancelling the mandate");
                Ok(after.written())
            }
            Ok(Reversal::Nothing) => Ok(row),
            Err(error) => self.retry_after_failure(row, error).await,
        }
    }

    async fn mark_agreed(&self, row: Mandate) -> Result<Mandate, VerifyError> {
        let others = self.of(row.account).await?;
        let another = others.iter().any(|other| {
            other.id != row.id && other.state == MandateState::Agreed && !is_past_due(other)
        });
        if another {
            return self
                .mark_duplicate(row, "the buyer has agreed to another one")
                .await;
        }
        let after = row.agreed(self.clock.now());
        let mut parts = self.superseded(&after).await?;
        parts.push(after.part());
        self.write(parts).await.map_err(VerifyError::Store)?;
        Ok(after.written())
    }

    async fn mark_duplicate(
        &self,
        row: Mandate,
        why: &'static str,
    ) -> Result<Mandate, VerifyError> {
        self.counters.inc(MandateEvent::Duplicate);
        tracing::warn!(mandate = %row.id, account = %row.account, why,
            "cancelling duplicate mandate and refunding its charges");
        let after = row.clone().duplicate(why, self.clock.now());
        self.set_renewal(row, after, Renewal::Ends).await
    }

    /// Changes of the account's other mandates once one is agreed to or paid, for that unit of work.
    async fn superseded(&self, row: &MandateRow) -> Result<Vec<Part>, VerifyError> {
        if !matches!(row.state, MandateState::Agreed | MandateState::Active) {
            return Ok(Vec::new());
        }
        let now = self.clock.now();
        let others = self.of(row.account).await?.into_iter();
        let others = others.filter(|other| other.id != row.id);
        let superseded = others.filter_map(|other| Mandate::stored(other).superseded(now));
        Ok(superseded.map(|other| other.part()).collect())
    }

    async fn refund(&self, row: &MandateRow, charge: &Charge, calls: &mut ProviderCalls) {
        let key = keys::refund(&self.environment, row.id, &charge.id);
        let done = self
            .recurring
            .refund(&charge.id, &key, DUPLICATE_REASON)
            .await;
        if done.is_ok() {
            self.counters.inc(MandateEvent::Refunded);
            tracing::info!(mandate = %row.id, payment = charge.id, "refunded charge without a period");
        }
        self.note_result(row, done, "refund charge", calls);
    }

    /// Notes the result of a provider call. The state is taken from the subscription and charges, not from this result.
    fn note_result(
        &self,
        row: &MandateRow,
        done: Result<(), RecurringError>,
        what: &'static str,
        calls: &mut ProviderCalls,
    ) {
        let Err(error) = done else {
            return;
        };
        if matches!(
            error.kind,
            FailureKind::OutcomeUnknown | FailureKind::AlreadyDone
        ) {
            self.counters.inc(MandateEvent::Unclear);
        }
        log_provider_error(row.id, &error, what);
        calls.failed.get_or_insert(error);
    }

    /// No work is left now. Failed calls are retried later.
    async fn wait(
        &self,
        row: Mandate,
        failed: Option<RecurringError>,
    ) -> Result<Mandate, VerifyError> {
        use MandateState::{CancelAtEnd, CancelPending, Duplicate, Resuming};
        let now = self.clock.now();
        let row = match failed {
            None => row.waits(now),
            Some(_) => row.retries(now),
        };
        let refused = |error: &RecurringError| {
            matches!(
                error.kind,
                FailureKind::Refused | FailureKind::Misconfigured | FailureKind::Gone
            )
        };
        if !row.is_asked() && failed.as_ref().is_some_and(refused) {
            self.counters.inc(MandateEvent::Stuck);
            tracing::error!(mandate = %row.id, subscription = ?row.provider_ref,
                "mandate needs manual resolution: the payment provider refuses the cancellation or the refund");
        }
        let row = self.save(row).await?;
        let undone = matches!(
            row.state,
            CancelAtEnd | CancelPending | Duplicate | Resuming
        );
        match failed {
            Some(error) if undone => Err(VerifyError::Provider(error)),
            _ => Ok(row),
        }
    }

    /// A completed charge waits while a signed transfer may have bought the same period.
    async fn wait_for_transfer(&self, row: Mandate) -> Result<Mandate, VerifyError> {
        let now = self.clock.now();
        let at = now + schedule::TRANSFER_WAIT;
        self.save(row.unchanged(Some(at), now)).await
    }

    /// Writes a mandate together with the renewal state of the paid subscription.
    async fn set_renewal(
        &self,
        row: Mandate,
        after: Mandate,
        renewal: Renewal,
    ) -> Result<Mandate, VerifyError> {
        let mut parts = match row.state == after.state {
            true => Vec::new(),
            false => self.superseded(&after).await?,
        };
        parts.push(after.part());
        let reference = row.provider_ref.clone().unwrap_or_default();
        let own = (Route::PayPal, &*reference);
        let set = self.plans.set_renewal(row.account, own, renewal, parts);
        match set.await {
            Ok(_) => Ok(after.written()),
            Err(error) => self.retry_after_failure(row, error).await,
        }
    }

    pub(super) async fn retry_later(&self, row: Mandate) -> Result<Mandate, VerifyError> {
        self.save(row.retries(self.clock.now())).await
    }

    /// The row stays unchanged until the settings name its environment again.
    async fn other_environment(&self, row: Mandate) -> Result<Mandate, VerifyError> {
        if !row.is_asked() {
            self.counters.inc(MandateEvent::Stuck);
            tracing::error!(mandate = %row.id, subscription = ?row.provider_ref,
                "mandate reconciliation failed: it was created in another provider environment than the settings name");
        }
        let now = self.clock.now();
        self.save(row.unchanged(schedule::stuck(now), now)).await
    }

    pub(super) async fn mark_stuck(
        &self,
        row: Mandate,
        why: &'static str,
    ) -> Result<Mandate, VerifyError> {
        if !row.is_asked() {
            self.counters.inc(MandateEvent::Stuck);
            tracing::error!(mandate = %row.id, subscription = ?row.provider_ref, why,
                "mandate needs manual resolution: it stays unchanged until its subscription is consistent");
        }
        self.save(row.stuck(why, self.clock.now())).await
    }

    /// Recording failed. The row stays unchanged and is retried; recording a charge is idempotent.
    async fn retry_after_failure(
        &self,
        row: Mandate,
        error: PlanError,
    ) -> Result<Mandate, VerifyError> {
        if !error.is_conflict() {
            tracing::error!(mandate = %row.id, %error, "mandate reconciliation failed, retrying");
            // A failure here has the cause of the first; the worker keeps the wait in memory.
            let _ = self.retry_later(row).await;
        }
        Err(VerifyError::Plan(error))
    }

    pub(super) async fn save(&self, row: Mandate) -> Result<Mandate, VerifyError> {
        let written = self.write(vec![row.part()]).await;
        written.map_err(VerifyError::Store)?;
        Ok(row.written())
    }
}
