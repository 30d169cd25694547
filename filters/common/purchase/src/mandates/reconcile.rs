//! One look at a mandate: read its subscription and its charges, and do what is to be done.

use std::sync::Arc;

use tollgate_money::MandateId;
use tollgate_store::{
    MandateRow, MandateState, Part, PaymentStatus, Read, Route, SubscriptionRow, reading,
};

use super::counters::MandateCounters;
use super::decide::{Decision, Facts, PAST_DUE, Recorded, decide, is_past_due};
use super::error::VerifyError;
use super::keys;
use super::processor::{AttachParts, Inner, is_own};
use super::recurring::{Charge, ProviderSubscription, RecurringError, Status};
use super::schedule::{self, DAY, OFFERED};
use crate::plan::{Paid, PayOutcome, Period, PlanError, Renewal, Reversal};
use crate::topups::FailureKind;

/// Steps of one look: as many charges as were missed, and some calls. More would be a circle.
const STEPS_MAX: usize = 64;

/// Charges older than this are not calls for: nothing comes of them any more.
const CHARGES_BACK: i64 = 400 * DAY;

/// How far back a list begins before the mandate.
const BEFORE: i64 = 31 * DAY;

/// How far the provider's clock may be from ours.
const CLOCKS: i64 = DAY;

/// How long after a signed transfer is worth nothing any more a charge waits for it to be seen. One that has moved all the same adds its
/// days.
const TRANSFER_SEEN: i64 = 600 * 1_000_000;

/// What [`MandateRow::note`] says of a mandate that the provider did not know when it was last calls.
pub(super) const GONE: &str = "gone";

/// How long after that it is asked again.
const GONE_APART: i64 = DAY / 8;

/// What buyers and the provider read as the reason.
const LEFT: &str = "Ended by the owner of the account";
const UNWANTED: &str = "The account has the plan by another way";

/// What was asked of the provider in this look, so that it is asked once.
#[derive(Default)]
struct ProviderCalls {
    cancel: bool,
    activate: bool,
    /// To show what it says is not there.
    again: bool,
    refunds: Vec<String>,
    /// The first that went wrong.
    failed: Option<RecurringError>,
}

impl Inner {
    pub(super) async fn reconcile(
        &self,
        id: MandateId,
        attach: Option<&AttachParts>,
    ) -> Result<MandateRow, VerifyError> {
        let account = self.row(id).await?.account;
        let _lock = self.lock(account).await;
        // Whoever had the lock may have changed it.
        let row = self.row(id).await?;
        self.reconcile_locked(row, attach).await
    }

    /// The same, by whoever has the account's lock.
    pub(super) async fn reconcile_locked(
        &self,
        row: MandateRow,
        attach: Option<&AttachParts>,
    ) -> Result<MandateRow, VerifyError> {
        self.reconcile_observed(row, attach, &mut false).await
    }

    /// The same; says whether money of a charge is on its way.
    pub(super) async fn reconcile_observed(
        &self,
        mut row: MandateRow,
        attach: Option<&AttachParts>,
        is_pending: &mut bool,
    ) -> Result<MandateRow, VerifyError> {
        // Every look reads all there is, so whatever somebody rang for is seen by it; what cannot be read is due again soon.
        row.acknowledged = row.notifications;
        let Some(subscription) = row.provider_ref.clone() else {
            return self.without_subscription(row).await;
        };
        // Its key tells where it was made. What another one says about it is about nothing of ours.
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
                    // What was made a moment ago may not be there for a read yet.
                    Err(error) if error.kind == FailureKind::Gone && !calls.again => {
                        calls.again = true;
                        continue;
                    }
                    Err(error) => return self.unreadable(row, error).await,
                },
            };
            if row.note.as_deref() == Some(GONE) {
                row.note = None;
            }
            let charges = self.recorded(charges).await?;
            let state = self.plans.state(row.account).await;
            let state = state.map_err(VerifyError::Plan)?;
            let now = (self.now)();
            let runs = match state.active() {
                None => super::decide::PlanSource::Inactive,
                Some(active) if is_own(active, &row) => super::decide::PlanSource::Own,
                Some(_) => super::decide::PlanSource::Other,
            };
            let facts = Facts {
                row: &row,
                seen: &seen,
                charges: &charges,
                runs,
                has_cancelled: calls.cancel,
                has_activated: calls.activate,
                refunds: &calls.refunds,
                has_transfer: state.authorization.as_ref().is_some_and(|transfer| {
                    now < transfer.valid_before.saturating_add(TRANSFER_SEEN)
                }),
                now,
            };
            *is_pending = facts.is_pending();
            let decision = decide(&facts);
            let asks = matches!(
                decision,
                Decision::Activate | Decision::Cancel | Decision::Refund(_)
            );
            match decision {
                Decision::Wait => return self.wait(row, calls).await,
                Decision::Held => return self.wait_for_transfer(row).await,
                Decision::Stuck(why) => return self.mark_stuck(row, why).await,
                Decision::Cancel => {
                    calls.cancel = true;
                    let why = match row.state {
                        MandateState::Duplicate => UNWANTED,
                        _ => LEFT,
                    };
                    let done = self.recurring.cancel(&subscription, why).await;
                    self.note_result(&row, done, "end a subscription", &mut calls);
                }
                Decision::Activate => {
                    calls.activate = true;
                    let done = self.recurring.activate(&subscription, "Agreed to").await;
                    self.note_result(&row, done, "start a subscription", &mut calls);
                }
                Decision::Refund(charge) => {
                    self.refund(&row, &charge, &mut calls).await;
                    calls.refunds.push(charge.id);
                }
                decision => {
                    row = self.apply(row, &seen, decision, attach).await?;
                }
            }
            if !asks {
                // What was read is still as good as new: only our own books have changed.
                let charges = charges.into_iter().map(|(charge, _)| charge);
                read = Some((seen, charges.collect()));
            }
        }
        self.retry_later(row).await
    }

    async fn read(
        &self,
        row: &MandateRow,
        subscription: &str,
    ) -> Result<(ProviderSubscription, Vec<Charge>), RecurringError> {
        // The subscription first: what is charged after it was read is in the list, and never the other way.
        let seen = self.recurring.read(subscription).await?;
        let now = (self.now)();
        // From well before it was made: nothing of another's is in the list, and a clock that was wrong must not hide a charge.
        let from = (row.created_at.min(now) - BEFORE).max(now - CHARGES_BACK);
        let mut charges = match seen.status {
            // Nothing is charged before the buyer has agreed. A list that says otherwise is believed when the status has caught up.
            Status::Waiting if row.agreed_at.is_none() => Vec::new(),
            _ => {
                let charges = self.recurring.charges(subscription, from, now + CLOCKS);
                charges.await?
            }
        };
        charges.sort_by(|one, other| (one.at, &one.id).cmp(&(other.at, &other.id)));
        Ok((seen, charges))
    }

    /// What the books have of each charge.
    async fn recorded(&self, charges: Vec<Charge>) -> Result<Vec<(Charge, Recorded)>, VerifyError> {
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        let look_up = move |store: &dyn Read| {
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

    /// Does what changes our own books.
    async fn apply(
        &self,
        row: MandateRow,
        seen: &ProviderSubscription,
        decision: Decision,
        attach: Option<&AttachParts>,
    ) -> Result<MandateRow, VerifyError> {
        match decision {
            Decision::Pay { charge, until } => self.pay(row, seen, (&charge, until), attach).await,
            Decision::Advance(time) => self.advance(row, time).await,
            Decision::Returned(charge) => self.charge_returned(row, &charge).await,
            Decision::Agreed => self.mark_agreed(row).await,
            Decision::Duplicate(why) => self.mark_duplicate(row, why).await,
            Decision::Resumed => {
                tracing::info!(mandate = %row.id, "a subscription that had stopped is charged again");
                self.set_state_and_renewal(row, MandateState::Active, None, Renewal::Runs)
                    .await
            }
            Decision::PastDue => {
                MandateCounters::one(&self.counters.past_due);
                tracing::warn!(mandate = %row.id, account = %row.account, why = ?seen.failed_why,
                    "a charge for the plan failed; the payment provider tries it again");
                let state = row.state;
                self.set_state_and_renewal(row, state, Some(PAST_DUE), Renewal::PastDue)
                    .await
            }
            Decision::Ended(why) => {
                MandateCounters::one(&self.counters.ended);
                tracing::info!(mandate = %row.id, account = %row.account, why, until = row.paid_until,
                    "a mandate has ended; what it has paid for stays");
                self.set_state_and_renewal(row, MandateState::Ended, Some(why), Renewal::Ends)
                    .await
            }
            Decision::Dropped => self.set_state(row, MandateState::Dropped, None).await,
            Decision::Over(why) => self.set_state(row, MandateState::Over, Some(why)).await,
            // Not about our books; dealt with before.
            Decision::Wait
            | Decision::Held
            | Decision::Stuck(_)
            | Decision::Cancel
            | Decision::Activate
            | Decision::Refund(_) => Ok(row),
        }
    }

    /// Notes a charge that bought a period: the payment, the plan and the mandate in one unit.
    async fn pay(
        &self,
        row: MandateRow,
        seen: &ProviderSubscription,
        (charge, until): (&Charge, i64),
        attach: Option<&AttachParts>,
    ) -> Result<MandateRow, VerifyError> {
        let now = (self.now)();
        let mut after = row.clone();
        let is_first = row.payment.is_none();
        after.state = match (row.state, seen.status) {
            (MandateState::CancelPending, _) => MandateState::CancelPending,
            (_, Status::Active | Status::Approved | Status::Waiting) => MandateState::Active,
            _ => MandateState::Ended,
        };
        after.agreed_at.get_or_insert(now);
        after.activated_at.get_or_insert(now);
        if row.paid_at.is_none_or(|paid| charge.at >= paid) {
            after.payment = Some(Arc::from(&*charge.id));
            after.paid_at = Some(charge.at);
        }
        after.paid_until = row.paid_until.max(Some(until));
        after.advanced_for = None;
        after.note = None;
        after.attempts = 0;
        after.next_attempt_at = schedule::next(&after, now);
        let mut parts = self.superseded(&after).await?;
        parts.push(self.changed(&mut after));
        let paid = Paid {
            account: row.account,
            route: Route::PayPal,
            payment: Arc::from(&*charge.id),
            reference: row
                .provider_ref
                .clone()
                .expect("what is charged has a name"),
            amount: row.price,
            period: Period::Until(until),
            renews: after.state == MandateState::Active,
            receipt: None,
            // The provider's clock may be ahead of ours; what is paid for does not begin later for it.
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
                MandateCounters::one(&self.counters.paid);
                if is_first {
                    MandateCounters::one(&self.counters.activated);
                }
                Ok(after)
            }
            // Somebody else's doing, a moment ago: what is noted is seen in the next step.
            Ok(PayOutcome::Repeated(_)) => Ok(row),
            Ok(PayOutcome::Duplicate(_)) => {
                self.mark_duplicate(row, "the plan runs by another way")
                    .await
            }
            Err(error) => self.retry_after_failure(row, error).await,
        }
    }

    /// Gives a day for a payment that is told and not listed yet. The charge itself is noted when it is listed.
    async fn advance(&self, row: MandateRow, time: i64) -> Result<MandateRow, VerifyError> {
        let now = (self.now)();
        let mut after = row.clone();
        if row.state != MandateState::CancelPending {
            after.state = MandateState::Active;
        }
        after.agreed_at.get_or_insert(now);
        after.activated_at.get_or_insert(now);
        after.advanced_for = Some(time);
        after.attempts = 0;
        after.next_attempt_at = schedule::next(&after, now);
        let mut parts = self.superseded(&after).await?;
        parts.push(self.changed(&mut after));
        let reference = row.provider_ref.clone().unwrap_or_default();
        let own = (Route::PayPal, &*reference);
        match self.plans.advance(row.account, own, now + DAY, parts).await {
            Ok(Some(_)) => {
                MandateCounters::one(&self.counters.advanced);
                tracing::warn!(mandate = %row.id, account = %row.account,
                    "a payment is told and not listed yet; the plan is given for a day, and looked at again");
                Ok(after)
            }
            Ok(None) => {
                self.mark_duplicate(row, "the plan runs by another way")
                    .await
            }
            Err(error) => self.retry_after_failure(row, error).await,
        }
    }

    /// Money of a charge went back without our doing: what it bought is taken away, and nothing more is charged.
    async fn charge_returned(
        &self,
        row: MandateRow,
        charge: &Charge,
    ) -> Result<MandateRow, VerifyError> {
        let now = (self.now)();
        let mut after = row.clone();
        if row.payment.as_deref() == Some(&*charge.id) {
            after.paid_until = row.paid_until.map(|until| until.min(now));
            if row.state == MandateState::Active {
                after.state = MandateState::CancelPending;
                after.note = Some(Arc::from("returned"));
            }
        }
        after.attempts = 0;
        after.next_attempt_at = schedule::next(&after, now);
        let parts = vec![self.changed(&mut after)];
        let taken = self.plans.reverse_payment(Route::PayPal, &charge.id, parts);
        match taken.await {
            Ok(Reversal::New { .. }) => {
                MandateCounters::one(&self.counters.returned);
                tracing::error!(mandate = %row.id, account = %row.account, payment = charge.id,
                    "the money of a charge for the plan went back: its period has ended, and nothing more is charged");
                Ok(after)
            }
            Ok(Reversal::Nothing) => Ok(row),
            Err(error) => self.retry_after_failure(row, error).await,
        }
    }

    async fn mark_agreed(&self, row: MandateRow) -> Result<MandateRow, VerifyError> {
        let others = self.of(row.account).await?;
        let another = others.iter().any(|other| {
            other.id != row.id && other.state == MandateState::Agreed && !is_past_due(other)
        });
        if another {
            return self
                .mark_duplicate(row, "the buyer has agreed to another one")
                .await;
        }
        let mut after = row;
        after.state = MandateState::Agreed;
        after.agreed_at.get_or_insert((self.now)());
        after.note = None;
        after.attempts = 0;
        after.next_attempt_at = schedule::next(&after, (self.now)());
        let mut parts = self.superseded(&after).await?;
        parts.push(self.changed(&mut after));
        self.write(parts).await.map_err(VerifyError::Store)?;
        Ok(after)
    }

    async fn mark_duplicate(
        &self,
        row: MandateRow,
        why: &'static str,
    ) -> Result<MandateRow, VerifyError> {
        MandateCounters::one(&self.counters.duplicates);
        tracing::warn!(mandate = %row.id, account = %row.account, why,
            "a mandate is not wanted: it is ended at the payment provider, and what it took for nothing is given back");
        self.set_state_and_renewal(row, MandateState::Duplicate, Some(why), Renewal::Ends)
            .await
    }

    /// What becomes of the other mandates of an account when one of them is agreed to or paid: written before it.
    async fn superseded(&self, row: &MandateRow) -> Result<Vec<Part>, VerifyError> {
        use MandateState::{Active, Agreed, Created, Dropped, Duplicate, Open, Over};
        if !matches!(row.state, Agreed | Active) {
            return Ok(Vec::new());
        }
        let mut parts = Vec::new();
        for mut other in self.of(row.account).await? {
            if other.id == row.id {
                continue;
            }
            other.state = match other.state {
                Created => Over,
                Open => Dropped,
                Agreed | Active => Duplicate,
                _ => continue,
            };
            other.note = Some(Arc::from("another took its place"));
            other.attempts = 0;
            other.next_attempt_at = match other.state {
                Duplicate => Some((self.now)()),
                _ => schedule::next(&other, (self.now)()),
            };
            parts.push(self.changed(&mut other));
        }
        Ok(parts)
    }

    async fn refund(&self, row: &MandateRow, charge: &Charge, calls: &mut ProviderCalls) {
        let key = keys::refund(&self.environment, row.id, &charge.id);
        let done = self.recurring.refund(&charge.id, &key, UNWANTED).await;
        if done.is_ok() {
            MandateCounters::one(&self.counters.refunded);
            tracing::info!(mandate = %row.id, payment = charge.id, "a charge that bought nothing was given back");
        }
        self.note_result(row, done, "give a charge back", calls);
    }

    /// What was asked of the provider was answered, or not. The subscription and its charges say what has happened.
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
            MandateCounters::one(&self.counters.unclear);
        }
        self.log_provider_error(row, &error, what);
        calls.failed.get_or_insert(error);
    }

    /// Nothing is left to do now. What was asked for and did not happen is asked for again later.
    async fn wait(
        &self,
        mut row: MandateRow,
        calls: ProviderCalls,
    ) -> Result<MandateRow, VerifyError> {
        row.attempts += 1;
        let now = (self.now)();
        row.next_attempt_at = match calls.failed {
            None => schedule::next(&row, now),
            Some(_) => schedule::retry(&row, now),
        };
        let refused = |error: &RecurringError| {
            matches!(
                error.kind,
                FailureKind::Refused | FailureKind::Misconfigured | FailureKind::Gone
            )
        };
        if calls.failed.as_ref().is_some_and(refused) {
            MandateCounters::one(&self.counters.stuck);
            tracing::error!(mandate = %row.id, subscription = ?row.provider_ref,
                "the payment provider refuses to end or to give back what is not wanted; a person has to look");
        }
        let row = self.save(row).await?;
        let undone = matches!(
            row.state,
            MandateState::CancelPending | MandateState::Duplicate
        );
        match calls.failed {
            Some(error) if undone => Err(VerifyError::Provider(error)),
            _ => Ok(row),
        }
    }

    /// Money is here, and a transfer may have bought the same first: looked at again until that is clear.
    async fn wait_for_transfer(&self, mut row: MandateRow) -> Result<MandateRow, VerifyError> {
        row.next_attempt_at = Some((self.now)() + schedule::HELD);
        self.save(row).await
    }

    /// A mandate whose subscription nobody knows: the buyer never got a link, so nothing can have been paid.
    async fn without_subscription(&self, mut row: MandateRow) -> Result<MandateRow, VerifyError> {
        let now = (self.now)();
        if row.state == MandateState::Created && now - row.created_at >= OFFERED {
            return self
                .set_state(row, MandateState::Over, Some("no subscription"))
                .await;
        }
        row.next_attempt_at = schedule::next(&row, now);
        self.save(row).await
    }

    /// Nothing is concluded from a subscription that cannot be read, but for one: what was never agreed to and is gone is over.
    async fn unreadable(
        &self,
        mut row: MandateRow,
        error: RecurringError,
    ) -> Result<MandateRow, VerifyError> {
        use MandateState::{Created, Dropped, Ended, Open, Over};
        if error.kind == FailureKind::Gone {
            match row.state {
                Created | Open | Dropped => return self.subscription_gone(row).await,
                // It is not kept for ever, and has done what it was for.
                Ended | Over => {
                    row.attempts += 1;
                    row.next_attempt_at = schedule::next(&row, (self.now)());
                    return self.save(row).await;
                }
                _ => {
                    return self
                        .mark_stuck(
                            row,
                            "the subscription of a mandate is gone at the payment provider",
                        )
                        .await;
                }
            }
        }
        if error.kind == FailureKind::OutcomeUnknown {
            MandateCounters::one(&self.counters.unclear);
        }
        self.log_provider_error(&row, &error, "read a subscription");
        self.retry_later(row).await?;
        Err(VerifyError::Provider(error))
    }

    /// Nobody agreed to it, and the provider does not know it. That is believed when it says so again after a while: settings that were wrong
    /// for an hour must not have somebody's agreement forgotten.
    async fn subscription_gone(&self, mut row: MandateRow) -> Result<MandateRow, VerifyError> {
        let now = (self.now)();
        if row.note.as_deref() != Some(GONE) {
            row.state = MandateState::Dropped;
            row.note = Some(Arc::from(GONE));
            row.attempts = 0;
            row.next_attempt_at = Some(now + GONE_APART);
            return self.save(row).await;
        }
        // Asked between the two it says nothing new.
        if row.next_attempt_at.is_some_and(|at| now < at) {
            return self.save(row).await;
        }
        self.set_state(row, MandateState::Over, Some(GONE)).await
    }

    /// Writes a mandate that has come to another state.
    async fn set_state(
        &self,
        mut row: MandateRow,
        state: MandateState,
        note: Option<&str>,
    ) -> Result<MandateRow, VerifyError> {
        row.state = state;
        row.note = note.map(Arc::from);
        row.attempts = 0;
        row.next_attempt_at = schedule::next(&row, (self.now)());
        self.save(row).await
    }

    /// The same, together with what it means for the plan that may run by it.
    async fn set_state_and_renewal(
        &self,
        row: MandateRow,
        state: MandateState,
        note: Option<&str>,
        renewal: Renewal,
    ) -> Result<MandateRow, VerifyError> {
        let mut after = row.clone();
        after.state = state;
        after.note = note.map(Arc::from);
        after.attempts = 0;
        after.next_attempt_at = schedule::next(&after, (self.now)());
        let mut parts = match row.state == state {
            true => Vec::new(),
            false => self.superseded(&after).await?,
        };
        parts.push(self.changed(&mut after));
        let reference = row.provider_ref.clone().unwrap_or_default();
        let own = (Route::PayPal, &*reference);
        let set = self.plans.set_renewal(row.account, own, renewal, parts);
        match set.await {
            Ok(_) => Ok(after),
            Err(error) => self.retry_after_failure(row, error).await,
        }
    }

    async fn retry_later(&self, mut row: MandateRow) -> Result<MandateRow, VerifyError> {
        row.attempts += 1;
        row.next_attempt_at = schedule::retry(&row, (self.now)());
        self.save(row).await
    }

    /// What is known of it stays as it is, until the settings lead there again.
    async fn other_environment(&self, mut row: MandateRow) -> Result<MandateRow, VerifyError> {
        MandateCounters::one(&self.counters.stuck);
        tracing::error!(mandate = %row.id, subscription = ?row.provider_ref,
            "a mandate was made at another address of the payment provider's than the settings have: nothing is seen of it");
        row.next_attempt_at = schedule::stuck((self.now)());
        self.save(row).await
    }

    async fn mark_stuck(
        &self,
        mut row: MandateRow,
        why: &'static str,
    ) -> Result<MandateRow, VerifyError> {
        MandateCounters::one(&self.counters.stuck);
        tracing::error!(mandate = %row.id, subscription = ?row.provider_ref, why,
            "a mandate needs a person: nothing is given or ended for it until its subscription fits");
        row.note = Some(Arc::from(why));
        row.attempts += 1;
        row.next_attempt_at = schedule::stuck((self.now)());
        self.save(row).await
    }

    /// The books did not take it. The row stays as it was and is looked at again; a charge counts once however often it is noted.
    async fn retry_after_failure(
        &self,
        row: MandateRow,
        error: PlanError,
    ) -> Result<MandateRow, VerifyError> {
        tracing::error!(mandate = %row.id, %error, "what has become of a mandate could not be noted; it is tried again");
        if let Err(error) = self.retry_later(row).await {
            tracing::error!(%error, "could not write a mandate");
        }
        Err(VerifyError::Plan(error))
    }

    async fn save(&self, mut row: MandateRow) -> Result<MandateRow, VerifyError> {
        let changed = self.changed(&mut row);
        self.write(vec![changed])
            .await
            .map_err(VerifyError::Store)?;
        Ok(row)
    }

    fn log_provider_error(&self, row: &MandateRow, error: &RecurringError, what: &'static str) {
        match error.kind {
            FailureKind::Misconfigured => {
                tracing::error!(mandate = %row.id, what, cause = %error,
                    "the payment provider says no: the settings or the standing with it are wrong");
            }
            kind => {
                tracing::warn!(mandate = %row.id, what, ?kind, cause = %error, "the payment provider did not do it");
            }
        }
    }
}
