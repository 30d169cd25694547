//! Processor of mandates: opening, reconciliation, cancellation and provider notifications.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};
use tokio::task::JoinSet;
use tollgate_clock::Clock;
use tollgate_counters::Counters;
use tollgate_money::{AccountId, MandateId};
use tollgate_store::{
    Admission, CommitError, MandatePart, MandateRow, MandateState, MandateSubject, Part, Refusal,
    Store, SubscriptionRow, TopUpPart, TopUpSubject, UnitOfWork, commit, reading,
};

use super::counters::MandateEvent;
use super::error::{CancelError, OpenError, VerifyError};
use super::open::Urls;
use super::plan_check::{self, PlanCheck};
use super::rail::MandateRail;
use super::recurring::Recurring;
use crate::keyed_lock::KeyedLock;
use crate::plan::{Plans, Rail};
use crate::tasks::PurchaseTasks;
use crate::topups::Draw;

/// Polling interval for due mandates, unless a notification wakes the processor.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Mandates reconciled concurrently.
const CONCURRENCY_MAX: usize = 8;

/// Mandates of one account that are read: the open one, and earlier ones that may still be charged.
pub(super) const OF_ACCOUNT: usize = 64;

/// Dependencies of [`Mandates`].
pub struct MandateDeps {
    /// Store of the mandates.
    pub store: Arc<dyn Store>,
    /// Records payments for the plan.
    pub plans: Plans,
    /// The payment provider.
    pub recurring: Arc<dyn Recurring>,
    /// The provider's plan; without one no mandate is created, and existing ones stay under reconciliation.
    pub plan_id: Option<String>,
    /// Provider environment (its address): part of idempotency keys, so that two installations do not share them.
    pub environment: String,
    /// The clock.
    pub clock: Clock,
    /// Fills a slice with random bytes.
    pub draw: Draw,
    /// Runs the work in tasks of its own, so that a disconnected caller does not cancel it.
    pub runtime: PurchaseTasks,
}

/// A notification of the provider. It only triggers reconciliation; its content is not trusted.
#[derive(Clone, Debug)]
pub struct MandateNotification {
    /// The provider's event id.
    pub id: String,
    /// The event type.
    pub kind: String,
    /// The mandates it names.
    pub mandates: Vec<MandateSubject>,
    /// The purchases of credits it names.
    pub top_ups: Vec<TopUpSubject>,
}

/// Result of a reconciliation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    /// Paid; the plan is active by this mandate.
    Paid(SubscriptionRow, MandateRow),
    /// The buyer has not agreed yet.
    Waiting(MandateRow),
    /// The buyer has agreed, and nothing is paid yet.
    Unpaid(MandateRow),
    /// No payment will come of it: ended, superseded, or a duplicate.
    Over(MandateRow),
}

/// Builds parts for the unit of work that records a payment, from the subscription and the mandate after it. May be called again on a write
/// conflict.
pub type AttachParts = Arc<dyn Fn(&SubscriptionRow, &MandateRow) -> Vec<Part> + Send + Sync>;

/// Opens and reconciles mandates. Cheap to clone.
#[derive(Clone)]
pub struct Mandates {
    pub(super) inner: Arc<Inner>,
    /// Kept for the plans, which hold it weakly.
    _rail: Arc<dyn Rail>,
}

pub(super) struct Inner {
    pub(super) store: Arc<dyn Store>,
    pub(super) plans: Plans,
    pub(super) recurring: Arc<dyn Recurring>,
    pub(super) plan_id: Option<Arc<str>>,
    pub(super) environment: String,
    pub(super) counters: Counters<MandateEvent>,
    pub(super) clock: Clock,
    pub(super) plan_check: Mutex<PlanCheck>,
    pub(super) reads_plan: AsyncMutex<()>,
    draw: Draw,
    pub(super) runtime: PurchaseTasks,
    /// One lock for each account that has mandates in work: decisions about one mandate depend on the others.
    locks: KeyedLock<AccountId>,
    wake: Notify,
}

impl Mandates {
    /// A processor. Due mandates are reconciled only while [`Mandates::run`] runs.
    pub fn new(deps: MandateDeps) -> Mandates {
        let inner = Arc::new(Inner {
            store: deps.store,
            plans: deps.plans,
            recurring: deps.recurring,
            plan_id: deps.plan_id.map(Arc::from),
            environment: deps.environment,
            counters: Counters::default(),
            clock: deps.clock,
            plan_check: Mutex::default(),
            reads_plan: AsyncMutex::default(),
            draw: deps.draw,
            runtime: deps.runtime,
            locks: KeyedLock::default(),
            wake: Notify::new(),
        });
        let rail: Arc<dyn Rail> = Arc::new(MandateRail(inner.clone()));
        inner.plans.add_rail(&rail);
        Mandates { inner, _rail: rail }
    }

    /// Counters of mandate events.
    pub fn counters(&self) -> &Counters<MandateEvent> {
        &self.inner.counters
    }

    /// Whether the settings name a provider plan to create mandates for.
    pub fn has_plan(&self) -> bool {
        self.inner.plan_id.is_some()
    }

    /// Why mandates cannot be opened now; `None` when they can.
    pub async fn closed(&self) -> Option<String> {
        let this = self.clone();
        let closed = self.spawn(async move { this.inner.closed().await }).await;
        closed.unwrap_or_else(|| Some(String::from("the process is shutting down")))
    }

    /// Whether the last plan check allows opening mandates. Waits for the provider only before the first check.
    pub async fn is_sold(&self) -> bool {
        match self.inner.is_sold() {
            Some(is_sold) => is_sold,
            None => self.closed().await.is_none(),
        }
    }

    /// The mandate offered to an account: the open one, or a new one. Its approval URL is known on return.
    pub async fn open(&self, account: AccountId, urls: Urls) -> Result<MandateRow, OpenError> {
        let this = self.clone();
        self.spawn(async move { this.inner.open(account, &urls).await })
            .await
            .unwrap_or(Err(OpenError::Ending))
    }

    /// Reconciles a mandate with the provider now.
    pub async fn verify(&self, id: MandateId) -> Result<Verified, VerifyError> {
        self.verify_with(id, None).await
    }

    /// The same; if the reconciliation records a payment, the parts built by `attach` are written in the same unit of work.
    pub async fn verify_with(
        &self,
        id: MandateId,
        attach: Option<AttachParts>,
    ) -> Result<Verified, VerifyError> {
        let this = self.clone();
        self.spawn(async move { this.inner.verify(id, attach.as_ref()).await })
            .await
            .unwrap_or(Err(VerifyError::Ending))
    }

    /// The current mandate of an account: offered, agreed to or charged, or else the latest.
    pub async fn of(&self, account: AccountId) -> Result<Option<MandateRow>, VerifyError> {
        let rows = self.inner.of(account).await?;
        Ok(current_mandate(rows))
    }

    /// Cancels the current mandate. Paid periods stay. Returns the mandate, in [`MandateState::CancelPending`] while the provider has not
    /// confirmed the cancellation.
    pub async fn cancel(&self, account: AccountId) -> Result<MandateRow, CancelError> {
        let this = self.clone();
        self.spawn(async move { this.inner.cancel(account).await })
            .await
            .unwrap_or(Err(CancelError::NotStored(VerifyError::Ending)))
    }

    /// Stores a notification and marks what it names for reconciliation. Durable on return; `false` for a duplicate.
    pub async fn record_notification(
        &self,
        notification: MandateNotification,
    ) -> Result<bool, CommitError> {
        let inner = &self.inner;
        let notice = TopUpPart::Notice {
            id: Arc::from(notification.id),
            kind: Arc::from(notification.kind),
            at: inner.clock.now(),
        };
        let mut parts = vec![Part::TopUp(Box::new(notice))];
        let subjects = notification.mandates.into_iter().map(MandatePart::Notify);
        parts.extend(subjects.map(part));
        let subjects = notification.top_ups.into_iter().map(TopUpPart::Notify);
        parts.extend(subjects.map(|subject| Part::TopUp(Box::new(subject))));
        let unit = UnitOfWork::of_all(parts, Admission::Normal);
        match commit(&*inner.store, unit).await {
            Ok(_) => {
                inner.wake.notify_one();
                Ok(true)
            }
            Err(CommitError::Refused(Refusal::DuplicateNotification)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reconciles due mandates and checks the provider's plan, until it is dropped. Work that an earlier run left unfinished is due at
    /// once.
    pub async fn run(&self) {
        let plan = async {
            loop {
                // The result is logged and cached for the next buyer.
                let _ = self.closed().await;
                tokio::time::sleep(plan_check::POLL_INTERVAL).await;
            }
        };
        let reconciliation = async {
            loop {
                // A full batch is followed by the next at once, unless every reconciliation failed.
                if self.reconcile_batch().await == (CONCURRENCY_MAX, true) {
                    continue;
                }
                tokio::select! {
                    () = self.inner.wake.notified() => {}
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
        };
        tokio::join!(plan, reconciliation);
    }

    /// Reconciles everything that is due, once; returns the number of mandates.
    pub async fn reconcile_due(&self) -> usize {
        self.reconcile_batch().await.0
    }

    /// The same; also returns whether any reconciliation succeeded.
    async fn reconcile_batch(&self) -> (usize, bool) {
        let Some(_task) = self.inner.runtime.background() else {
            return (0, false);
        };
        let now = self.inner.clock.now();
        let due = reading(&self.inner.store, move |store| {
            store.mandates_due(now, CONCURRENCY_MAX)
        });
        let due = match due.await {
            Ok(due) => due,
            Err(error) => {
                tracing::error!(%error, "reading due mandates failed");
                return (0, false);
            }
        };
        let mut attempts = JoinSet::new();
        let count = due.len();
        for row in due {
            let this = self.clone();
            attempts.spawn(async move {
                // A failed reconciliation is rescheduled and logged where it failed.
                this.inner.reconcile(row.id, None).await.is_ok()
            });
        }
        let mut is_done = false;
        while let Some(attempt) = attempts.join_next().await {
            is_done |= attempt.unwrap_or(false);
        }
        (count, is_done)
    }

    /// Runs work in a task of its own; `None` when the runtime is shutting down.
    async fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.inner.runtime.spawn(work).await.ok()
    }
}

impl fmt::Debug for Mandates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mandates").finish_non_exhaustive()
    }
}

/// The current mandate among all of an account, given newest first.
pub fn current_mandate(rows: Vec<MandateRow>) -> Option<MandateRow> {
    let rank = |row: &MandateRow| match row.state {
        MandateState::Active | MandateState::Agreed => 0,
        MandateState::Open | MandateState::Created => 1,
        MandateState::CancelPending => 2,
        MandateState::Ended => 3,
        _ => 4,
    };
    rows.into_iter().min_by_key(rank)
}

impl Inner {
    /// The mandates of an account, newest first.
    pub(super) async fn of(&self, account: AccountId) -> Result<Vec<MandateRow>, VerifyError> {
        reading(&self.store, move |store| {
            store.mandates_of(account, OF_ACCOUNT)
        })
        .await
        .map_err(VerifyError::Read)
    }

    pub(super) async fn row(&self, id: MandateId) -> Result<MandateRow, VerifyError> {
        reading(&self.store, move |store| store.mandate(id))
            .await
            .map_err(VerifyError::Read)?
            .ok_or(VerifyError::Unknown(id))
    }

    async fn verify(
        &self,
        id: MandateId,
        attach: Option<&AttachParts>,
    ) -> Result<Verified, VerifyError> {
        let row = self.reconcile(id, attach).await?;
        let state = self.plans.state(row.account);
        let state = state.await.map_err(VerifyError::Plan)?;
        let own = state
            .active()
            .filter(|subscription| is_own(subscription, &row));
        Ok(match (row.state, own) {
            (
                MandateState::Active | MandateState::CancelPending | MandateState::Ended,
                Some(own),
            ) => Verified::Paid(own.clone(), row),
            (MandateState::Created | MandateState::Open, _) => Verified::Waiting(row),
            (MandateState::Agreed, _) => Verified::Unpaid(row),
            _ => Verified::Over(row),
        })
    }

    /// Writes parts in one unit of work.
    pub(super) async fn write(&self, parts: Vec<Part>) -> Result<(), CommitError> {
        commit(&*self.store, UnitOfWork::of_all(parts, Admission::Normal))
            .await
            .map(|_| ())
    }

    /// The part that replaces a row (optimistic locking by `version`).
    pub(super) fn changed(&self, row: &mut MandateRow) -> Part {
        row.version += 1;
        row.updated_at = self.clock.now();
        part(MandatePart::Change(row.clone()))
    }

    /// Acquires the lock of an account's mandates.
    pub(super) async fn lock(&self, account: AccountId) -> OwnedMutexGuard<()> {
        self.locks.acquire(account).await
    }

    pub(super) fn new_id(&self) -> MandateId {
        let mut random = [0; 10];
        (self.draw)(&mut random);
        let ms = self.clock.now().as_millis();
        MandateId::from_parts(ms.unsigned_abs(), random)
    }
}

pub(super) fn part(part: MandatePart) -> Part {
    Part::Mandate(Box::new(part))
}

/// Whether a subscription is paid by this mandate.
pub(super) fn is_own(subscription: &SubscriptionRow, row: &MandateRow) -> bool {
    subscription.route == tollgate_store::Route::PayPal
        && row.provider_ref.as_deref() == Some(&*subscription.reference)
}
