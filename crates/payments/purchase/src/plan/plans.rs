//! Records payments for the plan: subscription, period, rate class and credits in one unit of work.

use std::fmt;
use std::sync::Arc;

use tollgate_clock::{Clock, Timestamp};
use tollgate_counters::Counters;
use tollgate_ledger::{Credit, CreditError, Ledger};
use tollgate_money::{AccountId, Micros, OperationId, PaymentId, SubscriptionId};
use tollgate_store::{
    Admission, CommitError, EntryKind, Part, PaymentRow, PaymentStatus, PlanPart, Refusal, Route,
    Store, SubscriptionRow, UnitOfWork, commit, plan_reference, reading,
};

use super::counters::PlanEvent;
use super::extend::{Extended, Paid, Renewal, ReportedPayment, advance, extend, renewal, shorten};
use super::payment::Payment;
use super::rails::{Question, Rail, Rails};
use super::state::PlanState;
use super::{Plan, PlanError};
use crate::checkouts;
use crate::mandates::current_mandate;
use crate::topups::Draw;

/// Attempts at a write under optimistic locking: each conflict is another writer's commit.
const WRITE_ATTEMPTS: usize = 16;

/// Mandates of one account read to find the current mandate.
const MANDATES_MAX: usize = 64;

/// Dependencies of [`Plans`].
pub struct PlanDeps {
    /// Store of subscriptions and payments.
    pub store: Arc<dyn Store>,
    pub ledger: Ledger,
    /// The plan on sale.
    pub plan: Plan,
    pub clock: Clock,
    /// Fills a slice with random bytes.
    pub draw: Draw,
}

/// Records payments and reads subscriptions. Cheap to clone.
#[derive(Clone)]
pub struct Plans {
    pub(super) inner: Arc<PlanDeps>,
    counters: Arc<Counters<PlanEvent>>,
    rails: Arc<Rails>,
}

/// Outcome of recording a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayOutcome {
    /// Recorded; the account has the paid benefits.
    New(SubscriptionRow),
    /// Recorded before; nothing was written. The current subscription.
    Repeated(SubscriptionRow),
    /// The plan is active by another mandate; nothing was written. The charged mandate has to be cancelled and the payment refunded.
    Duplicate(SubscriptionRow),
}

/// Outcome of reversing a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reversal {
    /// The paid time was taken away, with the available part of the credits.
    New {
        /// The subscription after the reversal.
        subscription: SubscriptionRow,
        /// Credits taken back.
        taken: Micros,
        /// Credits already held or spent.
        missing: Micros,
    },
    /// Reversed before, or an unknown payment; nothing was written.
    Nothing,
}

impl Plans {
    /// A recorder of payments for the plan.
    pub fn new(deps: PlanDeps) -> Plans {
        Plans {
            inner: Arc::new(deps),
            counters: Arc::default(),
            rails: Arc::default(),
        }
    }

    /// The plan on sale.
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// Counters of payments since the process started.
    pub fn counters(&self) -> &Counters<PlanEvent> {
        &self.counters
    }

    /// The account's subscription and pending payments.
    pub async fn state(&self, account: AccountId) -> Result<PlanState, PlanError> {
        let read = reading(&self.inner.store, move |store| {
            // Pending payments first: a pending payment becomes a subscription, never the reverse.
            let authorization = store.authorization_open(account)?;
            let mandates = store.mandates_of(account, MANDATES_MAX)?;
            Ok((store.subscription(account)?, mandates, authorization))
        });
        let (row, mandates, authorization) = read.await.map_err(PlanError::Read)?;
        let state = PlanState::new(&self.inner.plan, self.inner.clock.now(), row);
        Ok(PlanState {
            mandate: current_mandate(mandates),
            authorization,
            ..state
        })
    }

    /// Adds a rail to the reconciliation of [`Plans::state_across_rails`], for the rail's lifetime.
    pub fn add_rail(&self, rail: &Arc<dyn Rail>) {
        self.rails.add(rail);
    }

    /// The account's state after every rail but `own` has reconciled the account's open purchases. Every rail reads this state before
    /// offering or taking a payment.
    pub async fn state_across_rails(
        &self,
        account: AccountId,
        own: Route,
        question: Question,
    ) -> Result<PlanState, PlanError> {
        let before = self.state(account).await?;
        // No further purchase is possible.
        if before.is_active() && !before.may_renew() {
            return Ok(before);
        }
        let is_open = self.rails.have_open(account, own, question).await;
        // Reconciliation may have recorded a payment.
        let mut state = self.state(account).await?;
        state.is_open_elsewhere = is_open;
        Ok(state)
    }

    /// Records a payment in one unit of work: payment, new subscription, rate class, credits, and the parts built by `attached` from the
    /// subscription. On a write conflict the subscription is read again and `attached` called again.
    ///
    /// # Errors
    ///
    /// Nothing was written. Money has moved, so the caller has to retry.
    pub async fn pay(
        &self,
        paid: Paid,
        attached: impl Fn(&SubscriptionRow) -> Vec<Part> + Send + Sync,
    ) -> Result<PayOutcome, PlanError> {
        let inner = &*self.inner;
        for _ in 0..WRITE_ATTEMPTS {
            let before = self.subscription(paid.account).await?;
            let now = inner.clock.now();
            let new_id = self.draw_id(SubscriptionId::from_parts);
            let Some(extended) = extend(before.as_ref(), &paid, now, new_id) else {
                let active = before.expect("an active subscription was read");
                return self.unextended(&paid, active).await;
            };
            let mut parts = self.payment_parts(&paid, &extended, now)?;
            let row = extended.row;
            parts.extend(attached(&row));
            // Money has moved: this write is always admitted.
            match commit(&*inner.store, UnitOfWork::of_all(parts, Admission::Always)).await {
                Ok(_) => {
                    self.counters.inc(match paid.route {
                        Route::X402 => PlanEvent::X402,
                        _ => PlanEvent::PayPal,
                    });
                    tracing::info!(account = %paid.account, route = paid.route.word(), payment = %paid.payment,
                        until = row.period_end.as_micros(), "payment for the plan recorded");
                    return Ok(PayOutcome::New(row));
                }
                Err(CommitError::Refused(Refusal::PaymentKnown)) => {
                    self.counters.inc(PlanEvent::Repeated);
                    let row = self.subscription(paid.account).await?;
                    // Recorded without a subscription: a payment of another account, which no route may grant twice.
                    return row
                        .map(PayOutcome::Repeated)
                        .ok_or(PlanError::AttachedPart(Refusal::PaymentKnown));
                }
                Err(CommitError::Refused(Refusal::SubscriptionConflict(_))) => {}
                Err(CommitError::Refused(refusal)) => return Err(PlanError::AttachedPart(refusal)),
                Err(error) => return Err(PlanError::Store(error)),
            }
        }
        Err(PlanError::Busy(paid.account))
    }

    /// The outcome of a payment that does not extend the active subscription.
    async fn unextended(
        &self,
        paid: &Paid,
        active: SubscriptionRow,
    ) -> Result<PayOutcome, PlanError> {
        if self.payment(paid.route, &paid.payment).await?.is_some() {
            self.counters.inc(PlanEvent::Repeated);
            return Ok(PayOutcome::Repeated(active));
        }
        self.counters.inc(PlanEvent::Duplicate);
        Ok(PayOutcome::Duplicate(active))
    }

    /// The parts that record a payment: payment, subscription, credits, and the completion of the account's checkouts.
    fn payment_parts(
        &self,
        paid: &Paid,
        extended: &Extended,
        now: Timestamp,
    ) -> Result<Vec<Part>, PlanError> {
        let row = &extended.row;
        let credits = self.inner.plan.monthly_credits;
        let payment = PaymentRow {
            id: self.draw_id(PaymentId::from_parts),
            account: paid.account,
            subscription: row.id,
            route: paid.route,
            provider_ref: paid.payment.clone(),
            amount: paid.amount,
            credits,
            period_start: extended.paid.0,
            period_end: extended.paid.1,
            status: PaymentStatus::Paid,
            receipt: paid.receipt.clone(),
            at: paid.at,
            returned_at: None,
            owed: None,
            attempts: 0,
            next_attempt_at: None,
        };
        // The payment first: a duplicate is reported before any other refusal.
        let mut parts = vec![part(PlanPart::Pay(payment)), self.put(row.clone())];
        if credits.is_positive() {
            let credit = Credit {
                operation: self.draw_id(OperationId::from_parts),
                account: paid.account,
                amount: credits,
                reference: plan_reference(paid.route, &paid.payment),
                at: now,
            };
            parts.push(credit.part(EntryKind::Grant).map_err(PlanError::Credit)?);
        }
        parts.push(checkouts::completed(row, now));
        Ok(parts)
    }

    /// Changes the renewal state of the subscription, if the given mandate pays the subscription. The parts in `attached` are written in
    /// any case.
    pub async fn set_renewal(
        &self,
        account: AccountId,
        (route, reference): (Route, &str),
        what: Renewal,
        attached: Vec<Part>,
    ) -> Result<Option<SubscriptionRow>, PlanError> {
        for _ in 0..WRITE_ATTEMPTS {
            let before = self.subscription(account).await?;
            let now = self.inner.clock.now();
            let after = before
                .as_ref()
                .and_then(|before| renewal(before, (route, reference), what, now));
            let put = after.clone().map(|row| self.put(row));
            let parts: Vec<Part> = put.into_iter().chain(attached.iter().cloned()).collect();
            if parts.is_empty() {
                return Ok(before);
            }
            match commit(
                &*self.inner.store,
                UnitOfWork::of_all(parts, Admission::Always),
            )
            .await
            {
                Ok(_) => return Ok(after.or(before)),
                Err(CommitError::Refused(Refusal::SubscriptionConflict(_))) => {}
                Err(CommitError::Refused(refusal)) => return Err(PlanError::AttachedPart(refusal)),
                Err(error) => return Err(PlanError::Store(error)),
            }
        }
        Err(PlanError::Busy(account))
    }

    /// Grants provisional time until `until` for a payment reported by the provider and not listed yet. Payment and credits are recorded
    /// once listed. `None` when another mandate pays the active plan; then nothing was written, `attached` included.
    pub async fn advance(
        &self,
        account: AccountId,
        (route, reference): (Route, &str),
        until: Timestamp,
        attached: Vec<Part>,
    ) -> Result<Option<SubscriptionRow>, PlanError> {
        for _ in 0..WRITE_ATTEMPTS {
            let before = self.subscription(account).await?;
            let now = self.inner.clock.now();
            let new_id = self.draw_id(SubscriptionId::from_parts);
            let reported = ReportedPayment {
                account,
                route,
                reference,
                until,
            };
            let Some(row) = advance(before.as_ref(), &reported, now, new_id) else {
                return Ok(None);
            };
            let parts: Vec<Part> = [self.put(row.clone())]
                .into_iter()
                .chain(attached.iter().cloned())
                .collect();
            match commit(
                &*self.inner.store,
                UnitOfWork::of_all(parts, Admission::Always),
            )
            .await
            {
                Ok(_) => return Ok(Some(row)),
                Err(CommitError::Refused(Refusal::SubscriptionConflict(_))) => {}
                Err(CommitError::Refused(refusal)) => return Err(PlanError::AttachedPart(refusal)),
                Err(error) => return Err(PlanError::Store(error)),
            }
        }
        Err(PlanError::Busy(account))
    }

    /// Reverses a refunded payment: takes away the remaining time, and the available part of its credits. `attached` is written with the
    /// reversal, and not without one.
    pub async fn reverse_payment(
        &self,
        route: Route,
        provider_ref: &str,
        attached: Vec<Part>,
    ) -> Result<Reversal, PlanError> {
        let inner = &*self.inner;
        let name: Arc<str> = Arc::from(provider_ref);
        let mut account = None;
        for _ in 0..WRITE_ATTEMPTS {
            let Some(payment) = self.payment(route, &name).await? else {
                return Ok(Reversal::Nothing);
            };
            account = Some(payment.account);
            let Some(before) = self.subscription(payment.account).await? else {
                return Ok(Reversal::Nothing);
            };
            let now = inner.clock.now();
            let mut taken = self.free_of(payment.account, payment.credits).await?;
            if taken < payment.credits {
                // Before the rest is owed: every other node has to return free credit beyond its holds.
                let recalled = inner.ledger.recall(payment.account, now).await;
                recalled.map_err(PlanError::Recall)?;
                taken = self.free_of(payment.account, payment.credits).await?;
            }
            let Some(returned) = payment.returned(taken, now) else {
                return Ok(Reversal::Nothing);
            };
            let span = (payment.period_start, payment.period_end);
            let after = shorten(&before, route, span, now);
            let missing = payment.credits - taken;
            let mut parts = vec![part(returned.replacing(&payment)), self.put(after.clone())];
            parts.extend(attached.iter().cloned());
            let reference = format!("{}/returned", plan_reference(route, &name));
            match self
                .take_back(payment.account, taken, reference, parts)
                .await
            {
                Ok(()) => {
                    self.counters.inc(PlanEvent::Returned);
                    tracing::warn!(account = %payment.account, route = route.word(), payment = %name,
                        until = after.period_end.as_micros(), taken = %taken, missing = %missing, "payment for the plan reversed");
                    return Ok(Reversal::New {
                        subscription: after,
                        taken,
                        missing,
                    });
                }
                Err(error) => match error.refusal() {
                    Some(Refusal::PaymentKnown) => return Ok(Reversal::Nothing),
                    Some(Refusal::SubscriptionConflict(_)) => {}
                    Some(refusal) => return Err(PlanError::AttachedPart(refusal.clone())),
                    // Spent concurrently; less is available now.
                    None if error.is_spent() => {}
                    None => return Err(error.into()),
                },
            }
        }
        Err(PlanError::Busy(
            account.expect("a conflict means that the payment was read"),
        ))
    }

    /// Takes back the free part of the credits owed for a returned payment.
    pub(super) async fn collect_owed(&self, route: Route, name: &str) -> Result<(), PlanError> {
        let mut account = None;
        for _ in 0..WRITE_ATTEMPTS {
            let Some(payment) = self.payment(route, name).await? else {
                return Ok(());
            };
            account = Some(payment.account);
            let owed = payment.owed.unwrap_or_default();
            let taken = self.free_of(payment.account, owed).await?;
            let now = self.inner.clock.now();
            if !taken.is_positive() && payment.next_attempt_at.is_some_and(|at| at > now) {
                // The free credit is held again.
                return Ok(());
            }
            let Some(after) = payment.collected(taken, now) else {
                return Ok(());
            };
            // Each step has a unique reference: the owed amount shrinks with every step.
            let reference = plan_reference(route, name);
            let reference = format!("{reference}/returned/{}", owed.get());
            let left = after.owed.unwrap_or_default();
            let parts = vec![part(after.replacing(&payment))];
            match self
                .take_back(payment.account, taken, reference, parts)
                .await
            {
                Ok(()) if taken.is_positive() => {
                    tracing::info!(account = %payment.account, route = route.word(), payment = name, taken = %taken, owed = %left,
                        "took back owed credits of a returned payment");
                    return Ok(());
                }
                Ok(()) => return Ok(()),
                // Collected or spent concurrently: read again.
                Err(error) if error.is_spent() => {}
                Err(error) if error.refusal() == Some(&Refusal::PaymentKnown) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Much is being spent: the worker tries again after its backoff.
        account.map_or(Ok(()), |account| Err(PlanError::Busy(account)))
    }

    /// As much of `credits` as the account can give back now.
    async fn free_of(&self, account: AccountId, credits: Micros) -> Result<Micros, PlanError> {
        let available = self.inner.ledger.total_available(account).await;
        let available = available.map_err(PlanError::Balance)?;
        Ok(credits.min(available).max(Micros::ZERO))
    }

    /// Writes `parts`, with a ledger correction of `taken` credits if any.
    async fn take_back(
        &self,
        account: AccountId,
        taken: Micros,
        reference: String,
        parts: Vec<Part>,
    ) -> Result<(), CreditOr> {
        let inner = &*self.inner;
        if !taken.is_positive() {
            let unit = UnitOfWork::of_all(parts, Admission::Always);
            let written = commit(&*inner.store, unit).await;
            return written.map(|_| ()).map_err(CreditOr::Commit);
        }
        let credit = Credit {
            operation: self.draw_id(OperationId::from_parts),
            account,
            amount: -taken,
            reference: reference.into(),
            at: inner.clock.now(),
        };
        let booked = inner.ledger.take_back(credit, parts).await;
        booked.map(|_| ()).map_err(CreditOr::Credit)
    }

    async fn payment(&self, route: Route, name: &str) -> Result<Option<Payment>, PlanError> {
        let name: Arc<str> = Arc::from(name);
        let row = reading(&self.inner.store, move |store| store.payment(route, &name));
        Ok(row.await.map_err(PlanError::Read)?.map(Payment::new))
    }

    async fn subscription(&self, account: AccountId) -> Result<Option<SubscriptionRow>, PlanError> {
        let row = reading(&self.inner.store, move |store| store.subscription(account));
        row.await.map_err(PlanError::Read)
    }

    fn put(&self, row: SubscriptionRow) -> Part {
        let class = self.inner.plan.class.clone();
        part(PlanPart::Put { row, class })
    }

    fn draw_id<T>(&self, make: impl FnOnce(u64, [u8; 10]) -> T) -> T {
        let mut random = [0; 10];
        (self.inner.draw)(&mut random);
        let ms = self.inner.clock.now().as_millis().max(0);
        make(ms.unsigned_abs(), random)
    }
}

impl fmt::Debug for Plans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plans")
            .field("plan", &self.inner.plan)
            .finish_non_exhaustive()
    }
}

/// Why a unit of work with or without a credit was not written.
enum CreditOr {
    Credit(CreditError),
    Commit(CommitError),
}

impl CreditOr {
    fn refusal(&self) -> Option<&Refusal> {
        match self {
            CreditOr::Credit(CreditError::Conflict(refusal))
            | CreditOr::Commit(CommitError::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }

    fn is_spent(&self) -> bool {
        matches!(
            self,
            CreditOr::Credit(CreditError::InsufficientCredit { .. })
        )
    }
}

impl From<CreditOr> for PlanError {
    fn from(error: CreditOr) -> PlanError {
        match error {
            CreditOr::Credit(error) => PlanError::Credit(error),
            CreditOr::Commit(error) => PlanError::Store(error),
        }
    }
}

fn part(part: PlanPart) -> Part {
    Part::Plan(Box::new(part))
}
