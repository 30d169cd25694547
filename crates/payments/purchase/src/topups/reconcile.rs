//! Reconciliation of one purchase: reads the order at the provider and carries out the decision of [`super::decide`].

use std::sync::Arc;

use tollgate_ledger::{Credit, CreditError};
use tollgate_money::{Micros, TopUpId, Usd};
use tollgate_store::{
    Admission, TopUpPart, TopUpRow, TopUpState, TopUpSubject, UnitOfWork, commit, reading,
};

use super::counters::TopUpEvent;
use super::decide::{Decision, decide, decide_gone};
use super::error::ReconcileError;
use super::keys::{Step, key};
use super::orders::{FailureKind, Order, OrderError};
use super::processor::{TopUpContext, part};
use super::schedule;
use super::top_up::TopUp;
use crate::conflict::{WriteConflict as _, repeated};

/// Steps of one reconciliation: read, capture, read again after an unknown outcome, credit, reverse. The bound breaks cycles.
const STEPS_MAX: usize = 6;

/// Attempts to reverse credit under concurrent spending.
const DEBITS_MAX: usize = 5;

impl TopUpContext {
    /// An attempt of the worker.
    pub(super) async fn attempt(&self, id: TopUpId) -> Result<TopUpRow, ReconcileError> {
        self.reconcile(id, TopUp::stored, false).await
    }

    /// The buyer asks. `is_notified`: the buyer has come back from the provider.
    pub(super) async fn ask(
        &self,
        id: TopUpId,
        is_notified: bool,
    ) -> Result<TopUpRow, ReconcileError> {
        self.reconcile(id, TopUp::asked, is_notified).await
    }

    async fn reconcile(
        &self,
        id: TopUpId,
        begin: fn(TopUpRow) -> TopUp,
        is_notified: bool,
    ) -> Result<TopUpRow, ReconcileError> {
        let _lock = self.lock(id).await;
        let reconciled = repeated(|| async {
            let row = reading(&self.store, move |store| store.top_up(id));
            let row = row
                .await
                .map_err(ReconcileError::Read)?
                .ok_or(ReconcileError::Unknown(id))?;
            self.reconcile_row(begin(row), is_notified).await
        });
        let row = reconciled.await.map(TopUp::into_row)?;
        self.owing.note(&row);
        Ok(row)
    }

    async fn reconcile_row(
        &self,
        mut row: TopUp,
        is_notified: bool,
    ) -> Result<TopUp, ReconcileError> {
        let is_notified = is_notified || row.notifications > row.acknowledged;
        let Some(order) = row.order.clone() else {
            let row = row.acknowledged(self.clock.now());
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
            let now = self.clock.now();
            if std::mem::take(&mut unacknowledged) {
                row = row.acknowledged(now);
            }
            match decide(&row, &view, is_notified, now) {
                Decision::Wait => return self.write(row.waits(now)).await,
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
                // The order was read after the capture, and has no payment.
                Decision::Capture | Decision::Reapprove => {
                    return match attempt {
                        // The capture of an earlier run failed.
                        None => self.write(row.reopened(true, now)).await,
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
                    return self.write(row.pending(payment(&view), now)).await;
                }
                Decision::Over(why) => {
                    self.counters.inc(TopUpEvent::Failed);
                    tracing::info!(top_up = %row.id, why, "purchase ended without a payment");
                    return self.write(row.failed(why, false, now)).await;
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

    /// A purchase without a known order: the buyer never got an approval link, so no payment is possible.
    async fn without_order(&self, row: TopUp) -> Result<TopUp, ReconcileError> {
        let now = self.clock.now();
        let age = now.duration_since(row.created_at);
        if row.state == TopUpState::Created && age >= schedule::EXPIRES {
            self.counters.inc(TopUpEvent::Failed);
            return self.write(row.failed("no order", false, now)).await;
        }
        self.write(row.unchanged(now)).await
    }

    /// A failed read decides nothing. Exception: an order without approval that no longer exists is over.
    async fn unreadable(
        &self,
        row: TopUp,
        error: OrderError,
        unacknowledged: bool,
    ) -> Result<TopUp, ReconcileError> {
        let now = self.clock.now();
        if error.kind == FailureKind::Gone
            && let Some(decision) = decide_gone(&row, unacknowledged, now)
        {
            // A decision on the read acknowledges the notification.
            let read = row.clone().acknowledged(now);
            return match decision {
                Decision::Over(why) => {
                    self.counters.inc(TopUpEvent::Failed);
                    self.write(read.failed(why, false, now)).await
                }
                // The worker raises the alert, and may find only the notification.
                Decision::Stuck(why) if row.is_asked() => self.mark_stuck(row, why).await,
                Decision::Stuck(why) => self.mark_stuck(read, why).await,
                Decision::Owed => {
                    let total = read.returned;
                    self.reverse_credit(read, total).await
                }
                _ => self.write(read.unchanged(now)).await,
            };
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
        mut row: TopUp,
        order: &str,
    ) -> Result<(TopUp, Attempt), ReconcileError> {
        if row.state != TopUpState::Capturing {
            let step = Step::Capture(row.declines);
            let text = key(&self.environment, row.account, row.id, step);
            row = self.write(row.capturing(&text, self.clock.now())).await?;
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
    async fn refused(&self, row: TopUp, kind: FailureKind) -> Result<TopUp, ReconcileError> {
        if kind == FailureKind::Declined {
            self.counters.inc(TopUpEvent::Declined);
        }
        let row = row.capture_refused(kind, self.clock.now());
        if row.state == TopUpState::Failed {
            self.counters.inc(TopUpEvent::Failed);
        }
        self.write(row).await
    }

    async fn retry_later(&self, row: TopUp) -> Result<TopUp, ReconcileError> {
        self.write(row.retries(self.clock.now())).await
    }

    /// [`retry_later`](Self::retry_later) with an unacknowledged notification: a stored notification stays, and a buyer's return is stored
    /// as a notification.
    async fn retry_with_notification(&self, row: TopUp) -> Result<TopUp, ReconcileError> {
        let now = self.clock.now();
        let mut row = row.retries(now);
        let mut parts = vec![row.part()];
        if row.notifications == row.acknowledged {
            row = row.notified(now);
            parts.push(part(TopUpPart::Notify(TopUpSubject::TopUp(row.id))));
        }
        let unit = UnitOfWork::of_all(parts, Admission::Normal);
        commit(&*self.store, unit)
            .await
            .map_err(ReconcileError::Store)?;
        Ok(row)
    }

    async fn mark_stuck(&self, row: TopUp, why: &'static str) -> Result<TopUp, ReconcileError> {
        if !row.is_asked() {
            self.counters.inc(TopUpEvent::Stuck);
            tracing::error!(top_up = %row.id, order = ?row.order, why,
                "purchase needs manual resolution: nothing is credited or reversed until its order is consistent");
        }
        self.write(row.stuck(why, self.clock.now())).await
    }

    /// Credits a payment: the credit and the purchase's state in one unit of work.
    async fn credit(&self, row: TopUp, view: &Order) -> Result<TopUp, ReconcileError> {
        let capture = payment(view);
        let now = self.clock.now();
        let credit = Credit {
            operation: self.operation(),
            account: row.account,
            amount: row.credits,
            reference: reference(capture),
            at: now,
        };
        let before = row.clone();
        let row = row.captured(capture, now);
        let attached = row.part();
        match self.ledger.top_up_with(credit, attached).await {
            Ok(credited) => {
                self.counters.inc(TopUpEvent::Captured);
                tracing::info!(top_up = %row.id, capture = %capture, price = %row.price, credits = %row.credits,
                    repeated = credited.repeated, "payment credited");
                Ok(row.written())
            }
            Err(error) => Err(self.retry_booking(before, error).await),
        }
    }

    /// Reverses credits for refunded money, as far as they are available. Held or spent credits are recorded as owed and taken by later
    /// reconciliations.
    async fn reverse_credit(&self, before: TopUp, total: Usd) -> Result<TopUp, ReconcileError> {
        let capture = before
            .capture
            .clone()
            .expect("a paid purchase has a payment");
        let is_new = total > before.returned;
        let missing = before.missing(total);
        let name = format!("{}/returned/{}", reference(&capture), total.cents());
        // Each step has a unique reference: the amount already taken grows with every step.
        let name: Arc<str> = match is_new {
            true => name.into(),
            false => format!("{name}/{}", before.taken_back.get()).into(),
        };
        let mut is_recalled = false;
        for _ in 0..DEBITS_MAX {
            let available = match self.ledger.total_available(before.account).await {
                Ok(available) => available,
                Err(error) => {
                    tracing::debug!(%error, "reading the balance of a refunded payment's account failed");
                    return self.retry_later(before).await;
                }
            };
            if is_new && missing > available && !is_recalled {
                // Before the rest is owed: every other node has to return free credit beyond its holds.
                if let Err(error) = self.ledger.recall(before.account, self.clock.now()).await {
                    tracing::debug!(%error, "recalling the credit of a refunded payment's account failed");
                    return self.retry_later(before).await;
                }
                is_recalled = true;
                continue;
            }
            let taken = missing.min(available).max(Micros::ZERO);
            let is_early = before
                .next_attempt_at
                .is_some_and(|at| at > self.clock.now());
            if !is_new && is_early && !taken.is_positive() {
                // The free credit is held again.
                return Ok(before);
            }
            let row = before.clone().returned(total, taken, self.clock.now());
            if !taken.is_positive() {
                let row = self.write(row).await?;
                if is_new {
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
            match self.ledger.take_back(credit, vec![row.part()]).await {
                Ok(_) => {
                    self.log_refund(&row, taken);
                    return Ok(row.written());
                }
                // Spent concurrently; less is available now.
                Err(CreditError::InsufficientCredit { .. }) => {}
                Err(error) => return Err(self.retry_booking(before, error).await),
            }
        }
        self.retry_later(before).await
    }

    fn log_refund(&self, row: &TopUp, taken: Micros) {
        if row.owed.is_positive() {
            tracing::warn!(top_up = %row.id, account = %row.account, returned = %row.returned, taken = %taken, owed = %row.owed,
                "payment refunded, its credits are held or spent: recovering the rest from later credits");
        } else {
            tracing::info!(top_up = %row.id, returned = %row.returned, taken = %taken, "payment refunded, credits reversed");
        }
    }

    /// Booking failed. The row stays unchanged and is retried; the unique reference makes the retry safe.
    async fn retry_booking(&self, row: TopUp, error: CreditError) -> ReconcileError {
        let error = ReconcileError::Credit(error);
        if !error.is_conflict() {
            tracing::error!(top_up = %row.id, %error, "booking purchase failed, retrying");
            // A failure here has the cause of the first; the worker keeps the wait in memory.
            let _ = self.retry_later(row).await;
        }
        error
    }

    async fn write(&self, row: TopUp) -> Result<TopUp, ReconcileError> {
        self.change(row).await.map_err(ReconcileError::Store)
    }

    fn log_provider_error(&self, row: &TopUp, error: &OrderError, what: &'static str) {
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

/// The provider's id of the payment.
fn payment(view: &Order) -> &str {
    let capture = view.capture.as_ref();
    &capture.expect("what is paid or pending has a payment").id
}

/// The ledger's reference of a payment.
fn reference(capture: &str) -> Arc<str> {
    Arc::from(format!("paypal/{capture}"))
}
