//! One look at a purchase: read its order, and do what is to be done.

use std::sync::Arc;

use tollgate_ledger::{Credit, CreditError};
use tollgate_money::{Micros, TopUpId, Usd};
use tollgate_store::{
    Admission, Refusal, TopUpPart, TopUpRow, TopUpState, TopUpSubject, UnitOfWork, commit, reading,
};

use super::counters::Counters;
use super::decide::{DECLINES_MAX, Decision, decide};
use super::error::ReconcileError;
use super::keys::{Step, key};
use super::orders::{FailureKind, Order, OrderError};
use super::processor::{Inner, part};
use super::schedule;

/// Steps of one look: read, take, read again after an unclear answer, credit, take back. More would be a circle.
const STEPS_MAX: usize = 6;

/// Tries at taking credit back while it is being spent.
const DEBITS_MAX: usize = 5;

impl Inner {
    /// `news`: a buyer has come back.
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
            // Only now: news that came before an answer that was lost is news still.
            if std::mem::take(&mut unacknowledged) {
                row.acknowledged = row.notifications;
                self.clear_deferred(id);
            }
            let now = (self.now)();
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
                // The order has been read after the attempt, and there is no payment.
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
                    Counters::one(&self.counters.failed);
                    tracing::info!(top_up = %row.id, why, "a purchase ended without a payment");
                    return self.set_state(row, TopUpState::Failed, Some(why)).await;
                }
                Decision::Returned(total) => {
                    Counters::one(&self.counters.returned);
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

    /// A purchase whose order nobody knows: the buyer never got a link, so nothing can have been paid.
    async fn without_order(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        let now = (self.now)();
        if row.state == TopUpState::Created && now - row.created_at >= schedule::EXPIRES {
            Counters::one(&self.counters.failed);
            return self
                .set_state(row, TopUpState::Failed, Some("no order"))
                .await;
        }
        row.next_attempt_at = schedule::next(&row, now);
        self.write(row).await
    }

    /// Nothing is concluded from an order that cannot be read, but for one: an order that was never agreed to and is gone is over.
    async fn unreadable(
        &self,
        mut row: TopUpRow,
        error: OrderError,
        unacknowledged: bool,
    ) -> Result<TopUpRow, ReconcileError> {
        let now = (self.now)();
        if error.kind == FailureKind::Gone {
            // Where something follows from it, this was the answer.
            let heard = row.acknowledged;
            row.acknowledged = row.notifications;
            self.clear_deferred(row.id);
            match row.state {
                TopUpState::Open | TopUpState::Created
                    if now - row.created_at >= schedule::EXPIRES =>
                {
                    Counters::one(&self.counters.failed);
                    return self
                        .set_state(row, TopUpState::Failed, Some("expired"))
                        .await;
                }
                TopUpState::Captured if unacknowledged => {
                    return self
                        .mark_stuck(row, "there is news of a payment whose order is gone")
                        .await;
                }
                // Money was asked for, and nobody can say any more whether it was taken.
                TopUpState::Capturing | TopUpState::Pending
                    if now - row.created_at >= schedule::EXPIRES =>
                {
                    return self
                        .mark_stuck(row, "the order of a payment that was asked for is gone")
                        .await;
                }
                // What is owed is known without the order.
                TopUpState::Captured if row.owed.is_positive() => {
                    let total = row.returned;
                    return self.reverse_credit(row, total).await;
                }
                // Orders are not kept for ever, and this one has done what it was for.
                TopUpState::Captured | TopUpState::Failed => {
                    row.next_attempt_at = schedule::next(&row, now);
                    return self.write(row).await;
                }
                _ => row.acknowledged = heard,
            }
        }
        self.log_provider_error(&row, &error, "could not read the order of a purchase");
        if unacknowledged {
            self.retry_with_notification(row).await?;
        } else {
            self.retry_later(row).await?;
        }
        Err(ReconcileError::Provider(error))
    }

    /// Asks for the money. That it will be asked for is stored before it is.
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
                let what = "the money of a purchase was not taken, or the answer was lost";
                self.log_provider_error(&row, &error, what);
                match error.kind {
                    FailureKind::OutcomeUnknown | FailureKind::AlreadyDone => {
                        Counters::one(&self.counters.unclear);
                        Ok((row, Attempt::Answered))
                    }
                    _ => Ok((row, Attempt::Failed(error))),
                }
            }
        }
    }

    /// The provider said no, and its order says that nothing was taken.
    async fn refused(
        &self,
        mut row: TopUpRow,
        kind: FailureKind,
    ) -> Result<TopUpRow, ReconcileError> {
        let why = match kind {
            FailureKind::Declined => {
                Counters::one(&self.counters.declined);
                row.declines += 1;
                "declined"
            }
            FailureKind::Refused => "refused",
            // The buyer is not done; nothing has happened.
            _ => return self.set_state(row, TopUpState::Open, None).await,
        };
        if kind == FailureKind::Refused || row.declines >= DECLINES_MAX {
            Counters::one(&self.counters.failed);
            return self.set_state(row, TopUpState::Failed, Some(why)).await;
        }
        self.set_state(row, TopUpState::Open, Some(why)).await
    }

    /// The money was asked for in an earlier run, and the buyer has to agree once more: what was tried is over, and what follows has a
    /// key of its own.
    async fn reopen(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        row.declines += 1;
        self.set_state(row, TopUpState::Open, Some("declined"))
            .await
    }

    async fn retry_later(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        row.attempts += 1;
        row.next_attempt_at = schedule::retry(&row, (self.now)());
        self.write(row).await
    }

    /// The same, with news that is still to be heard then: a ring stays as it is, and a buyer who came back becomes one.
    async fn retry_with_notification(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        row.attempts += 1;
        row.next_attempt_at = schedule::retry(&row, (self.now)());
        let mut parts = vec![self.changed(&mut row)];
        if row.notifications == row.acknowledged {
            row.notifications += 1;
            parts.push(part(TopUpPart::Notify(TopUpSubject::TopUp(row.id))));
        }
        // Before it is written: from then on it is due.
        self.defer(row.id, row.notifications);
        let unit = UnitOfWork::of_all(parts, Admission::Begins);
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
        Counters::one(&self.counters.stuck);
        tracing::error!(top_up = %row.id, order = ?row.order, why,
            "a purchase needs a person: nothing is credited or taken back for it until its order fits");
        row.note = Some(Arc::from(why));
        row.attempts += 1;
        row.next_attempt_at = schedule::stuck((self.now)());
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
            at: (self.now)(),
        };
        let before = row.clone();
        row.state = TopUpState::Captured;
        row.note = None;
        row.attempts = 0;
        row.next_attempt_at = schedule::next(&row, (self.now)());
        let beside = self.changed(&mut row);
        match self.ledger.top_up_with(credit, beside).await {
            Ok(credited) => {
                Counters::one(&self.counters.captured);
                tracing::info!(top_up = %row.id, capture = %capture, price = %row.price, credits = %row.credits,
                    repeated = credited.repeated, "a payment was credited");
                Ok(row)
            }
            Err(error) => Err(self.retry_booking(before, error).await),
        }
    }

    /// Takes credits back for money that has gone back: as much as is there. What is held or spent is noted as owed, and taken by later
    /// looks as it comes in.
    async fn reverse_credit(
        &self,
        mut row: TopUpRow,
        total: Usd,
    ) -> Result<TopUpRow, ReconcileError> {
        let capture = row.capture.clone().expect("what was paid has a payment");
        let is_new = total > row.returned;
        let missing = (credits_for(&row, total) - row.taken_back).max(Micros::ZERO);
        let name = format!("{}/returned/{}", reference(&capture), total.cents());
        // Each step has a name of its own: what was taken before it grows with every one.
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
            let is_news = is_new || taken.is_positive();
            row.attempts = if is_news { 0 } else { row.attempts + 1 };
            row.next_attempt_at = schedule::next(&row, (self.now)());
            if !taken.is_positive() {
                row = self.write(row).await?;
                if is_news {
                    self.log_refund(&row, taken);
                }
                return Ok(row);
            }
            let credit = Credit {
                operation: self.operation(),
                account: row.account,
                amount: -taken,
                reference: name.clone(),
                at: (self.now)(),
            };
            let beside = self.changed(&mut row);
            match self.ledger.correct_with(credit, vec![beside]).await {
                Ok(_) => {
                    self.log_refund(&row, taken);
                    return Ok(row);
                }
                // It was spent between the two; there is less now.
                Err(CreditError::InsufficientCredit { .. }) => {}
                Err(error) => return Err(self.retry_booking(before, error).await),
            }
        }
        self.retry_later(before).await
    }

    fn log_refund(&self, row: &TopUpRow, taken: Micros) {
        if row.owed.is_positive() {
            tracing::warn!(top_up = %row.id, account = %row.account, returned = %row.returned, taken = %taken, owed = %row.owed,
                "money went back to a buyer whose credits are held or spent; what comes in is taken until nothing is owed");
        } else {
            tracing::info!(top_up = %row.id, returned = %row.returned, taken = %taken, "money went back to a buyer, and its credits were taken back");
        }
    }

    /// The books did not take it. The row stays as it was and is looked at again; the reference makes that safe.
    async fn retry_booking(&self, mut row: TopUpRow, error: CreditError) -> ReconcileError {
        if !matches!(error, CreditError::Conflict(Refusal::TopUpMoved(_))) {
            tracing::error!(top_up = %row.id, %error, "a purchase could not be booked; it is tried again");
            row.attempts += 1;
            row.next_attempt_at = schedule::retry(&row, (self.now)());
            if let Err(error) = self.change(&mut row).await {
                tracing::error!(top_up = %row.id, %error, "could not write a purchase");
            }
        }
        ReconcileError::Credit(error)
    }

    /// Writes a purchase that has come to another state.
    async fn set_state(
        &self,
        mut row: TopUpRow,
        state: TopUpState,
        note: Option<&str>,
    ) -> Result<TopUpRow, ReconcileError> {
        row.state = state;
        row.note = note.map(Arc::from);
        row.attempts = 0;
        row.next_attempt_at = schedule::next(&row, (self.now)());
        self.write(row).await
    }

    async fn write(&self, mut row: TopUpRow) -> Result<TopUpRow, ReconcileError> {
        self.change(&mut row).await.map_err(ReconcileError::Store)?;
        Ok(row)
    }

    fn log_provider_error(&self, row: &TopUpRow, error: &OrderError, what: &'static str) {
        match error.kind {
            FailureKind::Misconfigured => {
                tracing::error!(top_up = %row.id, cause = %error, "{what}: the settings or the standing with the provider are wrong");
            }
            kind => tracing::warn!(top_up = %row.id, ?kind, cause = %error, "{what}"),
        }
    }
}

/// An attempt to take money.
enum Attempt {
    /// It was answered, or the answer was lost: the order says what has happened.
    Answered,
    /// The provider said no.
    Failed(OrderError),
}

/// Whether the order has to be read before anything is concluded from a failure.
fn may_have_been_done(kind: FailureKind) -> bool {
    !matches!(
        kind,
        FailureKind::Unavailable | FailureKind::Misconfigured | FailureKind::Gone
    )
}

fn payment(view: &Order) -> Option<Arc<str>> {
    view.capture.as_ref().map(|capture| Arc::from(&*capture.id))
}

/// What the books call a payment.
fn reference(capture: &str) -> Arc<str> {
    Arc::from(format!("paypal/{capture}"))
}

/// The credits that so much money of a purchase stands for, rounded down but for the whole.
fn credits_for(row: &TopUpRow, money: Usd) -> Micros {
    let credits =
        i128::from(row.credits.get()) * i128::from(money.cents()) / i128::from(row.price.cents());
    Micros::new(i64::try_from(credits).expect("a part of what fits, fits"))
}
