//! Reconciliation of one purchase: reads its order at the provider and carries out the decision of [`super::decide`].

use std::sync::Arc;

use tollgate_ledger::{Credit, CreditError};
use tollgate_money::{Micros, TopUpId, Usd};
use tollgate_store::{
    Admission, Refusal, TopUpPart, TopUpRow, TopUpState, TopUpSubject, UnitOfWork, commit, reading,
};

use super::counters::TopUpEvent;
use super::decide::{DECLINES_MAX, Decision, decide};
use super::error::ReconcileError;
use super::keys::{Step, key};
use super::orders::{FailureKind, Order, OrderError};
use super::processor::{Inner, part};
use super::schedule;

/// Steps of one reconciliation: read, capture, read again after an unknown outcome, credit, reverse. The bound breaks cycles.
const STEPS_MAX: usize = 6;

/// Attempts to reverse credit while it is being spent.
const DEBITS_MAX: usize = 5;

impl Inner {
    /// `is_notified`: the buyer has come back.
    pub(super) async fn reconcile(
        &self,
        id: TopUpId,
        is_notified: bool,
    ) -> Result<TopUpRow, ReconcileError> {
        let _lock = self.lock(id).await;
        let row = reading(&self.store, move |store| store.top_up(id));
        let mut row = row
            .await
            .map_err(ReconcileError::Read)?
            .ok_or(ReconcileError::Unknown(id))?;
        let is_notified = is_notified || row.notifications > row.acknowledged;
        let Some(order) = row.order.clone() else {
            row.acknowledged = row.notifications;
            return self.without_order(row).await;
        };
        let mut attempt = None;
        let mut unacknowledged = is_notified;
        for _ in 0..STEPS_MAX {
            let view = match self.orders.read(&order).await {
                Ok(view) => view,
                Err(error) => return self.unreadable(row, error, unacknowledged).await,
            };
            // Only after a successful read: a notification before a lost answer stays unacknowledged.
            if std::mem::take(&mut unacknowledged) {
                row.acknowledged = row.notifications;
            }
            let now = self.clock.now();
            match decide(&row, &view, is_notified, now) {
                Decision::Wait => {
                    row.attempts += 1;
                    row.next_attempt_at = schedule::next(&row, now);
                    return self.write(row).await;
                }
                Decision::Capture if attempt.is_none() => {
                    let (asked, answer) = self.capture(row, &order).await?;
                    row = asked;
                    match answer {
                        Attempt::Failed(error) if !may_have_been_done(error.kind) => {
                            self.retry_later(row).await?;
                            return Err(ReconcileError::Provider(error));
                        }
                        answer => attempt = Some(answer),
                    }
                }
                // The order was read after the capture, and there is no payment.
                Decision::Capture | Decision::Reapprove => {
                    return match attempt {
                        None => self.reopen(row).await,
                        Some(Attempt::Failed(error)) => self.refused(row, error.kind).await,
                        Some(Attempt::Answered) => self.retry_later(row).await,
                    };
                }
                Decision::Paid => {
                    row = self.credit(row, &view).await?;
                    if view.returned <= row.returned {
                        return Ok(row);
                    }
                }
                Decision::Pending => {
                    row.capture = payment(&view);
                    return self.set_state(row, TopUpState::Pending, None).await;
                }
                Decision::Over(why) => {
                    self.counters.inc(TopUpEvent::Failed);
                    tracing::info!(top_up = %row.id, why, "purchase ended without a payment");
                    return self.set_state(row, TopUpState::Failed, Some(why)).await;
                }
                Decision::Returned(total) => {
                    self.counters.inc(TopUpEvent::Returned);
                    return self.reverse_credit(row, total).await;
                }
                Decision::Owed => {
                    let total = row.returned;
                    return self.reverse_credit(row, total).await;
                }
                Decision::Stuck(why) => return self.mark_stuck(row, why).await,
            }
        }
        self.retry_later(row).await
    }

    /// A purchase without a known order: the buyer never got an approval link, so nothing can have been paid.
    async fn without_order(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        let now = self.clock.now();
        let age = now.duration_since(row.created_at);
        if row.state == TopUpState::Created && age >= schedule::EXPIRES {
            self.counters.inc(TopUpEvent::Failed);
            return self
                .set_state(row, TopUpState::Failed, Some("no order"))
                .await;
        }
        row.next_attempt_at = schedule::next(&row, now);
        self.write(row).await
    }

    /// A failed read decides nothing, with one exception: an order that was never approved and no longer exists is over.
    async fn unreadable(
        &self,
        mut row: TopUpRow,
        error: OrderError,
        unacknowledged: bool,
    ) -> Result<TopUpRow, ReconcileError> {
        let now = self.clock.now();
        if error.kind == FailureKind::Gone {
            // In the states that decide on it, this read acknowledges the notification.
            let before = row.acknowledged;
            row.acknowledged = row.notifications;
            match row.state {
                TopUpState::Open | TopUpState::Created
                    if now.duration_since(row.created_at) >= schedule::EXPIRES =>
                {
                    self.counters.inc(TopUpEvent::Failed);
                    return self
                        .set_state(row, TopUpState::Failed, Some("expired"))
                        .await;
                }
                TopUpState::Captured if unacknowledged => {
                    return self
                        .mark_stuck(
                            row,
                            "a notification names a payment whose order no longer exists",
                        )
                        .await;
                }
                // A capture was requested, and its outcome can no longer be read.
                TopUpState::Capturing | TopUpState::Pending
                    if now.duration_since(row.created_at) >= schedule::EXPIRES =>
                {
                    return self
                        .mark_stuck(
                            row,
                            "a capture was requested, and its order no longer exists",
                        )
                        .await;
                }
                // What is owed is known without the order.
                TopUpState::Captured if row.owed.is_positive() => {
                    let total = row.returned;
                    return self.reverse_credit(row, total).await;
                }
                // The provider does not keep orders for ever, and this one is finished.
                TopUpState::Captured | TopUpState::Failed => {
                    row.next_attempt_at = schedule::next(&row, now);
                    return self.write(row).await;
                }
                _ => row.acknowledged = before,
            }
        }
        self.log_provider_error(&row, &error, "reading order failed");
        if unacknowledged {
            self.retry_with_notification(row).await?;
        } else {
            self.retry_later(row).await?;
        }
        Err(ReconcileError::Provider(error))
    }

    /// Captures the payment. The intent is stored before the call.
    async fn capture(
        &self,
        mut row: TopUpRow,
        order: &str,
    ) -> Result<(TopUpRow, Attempt), ReconcileError> {
        if row.state != TopUpState::Capturing {
            let step = Step::Capture(row.declines);
            let text = key(&self.environment, row.account, row.id, step);
            row.capture_key = Some(Arc::from(text));
            row = self.set_state(row, TopUpState::Capturing, None).await?;
        }
        let key = row
            .capture_key
            .clone()
            .expect("a purchase whose money is being taken has a key for it");
        match self.orders.capture(order, &key).await {
            Ok(()) => Ok((row, Attempt::Answered)),
            Err(error) => {
                let what = "capturing payment failed or its answer was lost";
                self.log_provider_error(&row, &error, what);
                match error.kind {
                    FailureKind::OutcomeUnknown | FailureKind::AlreadyDone => {
                        self.counters.inc(TopUpEvent::Unclear);
                        Ok((row, Attempt::Answered))
                    }
                    _ => Ok((row, Attempt::Failed(error))),
                }
            }
        }
    }

    /// The capture was refused, and the order shows no payment.
    async fn refused(
        &self,
        mut row: TopUpRow,
        kind: FailureKind,
    ) -> Result<TopUpRow, ReconcileError> {
        let why = match kind {
            FailureKind::Declined => {
                self.counters.inc(TopUpEvent::Declined);
                row.declines += 1;
                "declined"
            }
            FailureKind::Refused => "refused",
            // The buyer has not finished; nothing was captured.
            _ => return self.set_state(row, TopUpState::Open, None).await,
        };
        if kind == FailureKind::Refused || row.declines >= DECLINES_MAX {
            self.counters.inc(TopUpEvent::Failed);
            return self.set_state(row, TopUpState::Failed, Some(why)).await;
        }
        self.set_state(row, TopUpState::Open, Some(why)).await
    }

    /// The capture of an earlier run failed and the buyer has to approve again: the next capture gets a key of its own.
    async fn reopen(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        row.declines += 1;
        self.set_state(row, TopUpState::Open, Some("declined"))
            .await
    }

    async fn retry_later(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        row.attempts += 1;
        row.next_attempt_at = schedule::retry(&row, self.clock.now());
        self.write(row).await
    }

    /// The same with an unacknowledged notification: a stored one stays, and a returning buyer is stored as one.
    async fn retry_with_notification(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        row.attempts += 1;
        row.next_attempt_at = schedule::retry(&row, self.clock.now());
        let mut parts = vec![self.changed(&mut row)];
        if row.notifications == row.acknowledged {
            row.notifications += 1;
            parts.push(part(TopUpPart::Notify(TopUpSubject::TopUp(row.id))));
        }
        let unit = UnitOfWork::of_all(parts, Admission::Normal);
        commit(&*self.store, unit)
            .await
            .map_err(ReconcileError::Store)?;
        Ok(row)
    }

    async fn mark_stuck(
        &self,
        mut row: TopUpRow,
        why: &'static str,
    ) -> Result<TopUpRow, ReconcileError> {
        self.counters.inc(TopUpEvent::Stuck);
        tracing::error!(top_up = %row.id, order = ?row.order, why,
            "purchase needs manual resolution: nothing is credited or reversed until its order is consistent");
        row.note = Some(Arc::from(why));
        row.attempts += 1;
        row.next_attempt_at = schedule::stuck(self.clock.now());
        self.write(row).await
    }

    /// Credits a payment: the credit and the purchase's state in one unit of work.
    async fn credit(&self, mut row: TopUpRow, view: &Order) -> Result<TopUpRow, ReconcileError> {
        row.capture = payment(view);
        let capture = row.capture.clone().expect("what is paid has a payment");
        let credit = Credit {
            operation: self.operation(),
            account: row.account,
            amount: row.credits,
            reference: reference(&capture),
            at: self.clock.now(),
        };
        let before = row.clone();
        row.state = TopUpState::Captured;
        row.note = None;
        row.attempts = 0;
        row.next_attempt_at = schedule::next(&row, self.clock.now());
        let attached = self.changed(&mut row);
        match self.ledger.top_up_with(credit, attached).await {
            Ok(credited) => {
                self.counters.inc(TopUpEvent::Captured);
                tracing::info!(top_up = %row.id, capture = %capture, price = %row.price, credits = %row.credits,
                    repeated = credited.repeated, "payment credited");
                Ok(row)
            }
            Err(error) => Err(self.retry_booking(before, error).await),
        }
    }

    /// Reverses credits for refunded money, as far as they are available. Held or spent credits are recorded as owed and taken by later
    /// reconciliations.
    async fn reverse_credit(
        &self,
        mut row: TopUpRow,
        total: Usd,
    ) -> Result<TopUpRow, ReconcileError> {
        let capture = row.capture.clone().expect("a paid purchase has a payment");
        let is_new = total > row.returned;
        let missing = (credits_for(&row, total) - row.taken_back).max(Micros::ZERO);
        let name = format!("{}/returned/{}", reference(&capture), total.cents());
        // Each step has a reference of its own: the amount taken before it grows with every step.
        let name: Arc<str> = match is_new {
            true => name.into(),
            false => format!("{name}/{}", row.taken_back.get()).into(),
        };
        let before = row.clone();
        for _ in 0..DEBITS_MAX {
            let available = self.ledger.available(row.account).unwrap_or_default();
            let taken = missing.min(available).max(Micros::ZERO);
            row = before.clone();
            row.returned = total;
            row.taken_back += taken;
            row.owed = missing - taken;
            let is_progress = is_new || taken.is_positive();
            row.attempts = if is_progress { 0 } else { row.attempts + 1 };
            row.next_attempt_at = schedule::next(&row, self.clock.now());
            if !taken.is_positive() {
                row = self.write(row).await?;
                if is_progress {
                    self.log_refund(&row, taken);
                }
                return Ok(row);
            }
            let credit = Credit {
                operation: self.operation(),
                account: row.account,
                amount: -taken,
                reference: name.clone(),
                at: self.clock.now(),
            };
            let attached = self.changed(&mut row);
            match self.ledger.correct_with(credit, vec![attached]).await {
                Ok(_) => {
                    self.log_refund(&row, taken);
                    return Ok(row);
                }
                // Spent concurrently; less is available now.
                Err(CreditError::InsufficientCredit { .. }) => {}
                Err(error) => return Err(self.retry_booking(before, error).await),
            }
        }
        self.retry_later(before).await
    }

    fn log_refund(&self, row: &TopUpRow, taken: Micros) {
        if row.owed.is_positive() {
            tracing::warn!(top_up = %row.id, account = %row.account, returned = %row.returned, taken = %taken, owed = %row.owed,
                "payment refunded, its credits are held or spent: recovering the rest from later credits");
        } else {
            tracing::info!(top_up = %row.id, returned = %row.returned, taken = %taken, "payment refunded, credits reversed");
        }
    }

    /// Booking failed. The row stays unchanged and is retried; the unique reference makes the retry safe.
    async fn retry_booking(&self, mut row: TopUpRow, error: CreditError) -> ReconcileError {
        if !matches!(error, CreditError::Conflict(Refusal::TopUpConflict(_))) {
            tracing::error!(top_up = %row.id, %error, "booking purchase failed, retrying");
            row.attempts += 1;
            row.next_attempt_at = schedule::retry(&row, self.clock.now());
            if let Err(error) = self.change(&mut row).await {
                tracing::error!(top_up = %row.id, %error, "writing purchase failed");
            }
        }
        ReconcileError::Credit(error)
    }

    /// Writes a purchase in a new state.
    async fn set_state(
        &self,
        mut row: TopUpRow,
        state: TopUpState,
        note: Option<&str>,
    ) -> Result<TopUpRow, ReconcileError> {
        row.state = state;
        row.note = note.map(Arc::from);
        row.attempts = 0;
        row.next_attempt_at = schedule::next(&row, self.clock.now());
        self.write(row).await
    }

    async fn write(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        self.change(&mut row).await.map_err(ReconcileError::Store)?;
        Ok(row)
    }

    fn log_provider_error(&self, row: &TopUpRow, error: &OrderError, what: &'static str) {
        match error.kind {
            FailureKind::Misconfigured => {
                tracing::error!(top_up = %row.id, cause = %error, "{what}: check the settings and the merchant account at the provider");
            }
            kind => tracing::warn!(top_up = %row.id, ?kind, cause = %error, "{what}"),
        }
    }
}

/// A capture call.
enum Attempt {
    /// Answered, or the answer was lost: the order has the outcome.
    Answered,
    /// The provider refused.
    Failed(OrderError),
}

/// Whether the order has to be read before a failure is conclusive.
fn may_have_been_done(kind: FailureKind) -> bool {
    !matches!(
        kind,
        FailureKind::Unavailable | FailureKind::Misconfigured | FailureKind::Gone
    )
}

fn payment(view: &Order) -> Option<Arc<str>> {
    view.capture.as_ref().map(|capture| Arc::from(&*capture.id))
}

/// The ledger's reference of a payment.
fn reference(capture: &str) -> Arc<str> {
    Arc::from(format!("paypal/{capture}"))
}

/// The credits for a part of the purchase's price, rounded down except for the whole.
fn credits_for(row: &TopUpRow, money: Usd) -> Micros {
    let credits =
        i128::from(row.credits.get()) * i128::from(money.cents()) / i128::from(row.price.cents());
    Micros::new(i64::try_from(credits).expect("a part of an i64 fits an i64"))
}
