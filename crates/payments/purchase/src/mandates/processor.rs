//! Processor of mandates: opening, reconciliation, cancellation and provider notifications.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tollgate_clock::{Clock, Timestamp};
use tollgate_counters::Counters;
use tollgate_money::{AccountId, MandateId};
use tollgate_store::{
    Admission, CommitError, MandatePart, MandateRow, MandateState, MandateSubject, Part, ReadError,
    Refusal, Store, SubscriptionRow, TopUpPart, TopUpSubject, UnitOfWork, commit, reading,
};

use super::context::{AttachParts, MandateContext};
use super::counters::MandateEvent;
use super::current::{current_mandate, is_own, part};
use super::error::{ChangeError, OpenError, VerifyError};
use super::open::Urls;
use super::plan_check;
use super::rail::MandateRail;
use super::recent_reads::RecentReads;
use super::recurring::Recurring;
use crate::due::{Due, DueWork, DueWorker};
use crate::keyed_lock::KeyedLock;
use crate::plan::{Plans, Rail};
use crate::tasks::PurchaseTasks;
use crate::topups::Draw;

/// Dependencies of [`Mandates`].
pub struct MandateDeps {
    /// Store of the mandates.
    pub store: Arc<dyn Store>,
    /// Records payments for the plan.
    pub plans: Plans,
    /// The payment provider.
    pub recurring: Arc<dyn Recurring>,
    /// The provider's plan. `None`: no mandate is created, and existing mandates stay under reconciliation.
    pub plan_id: Option<String>,
    /// Provider environment (its address), part of idempotency keys: two installations share no key.
    pub environment: String,
    pub clock: Clock,
    /// Fills a slice with random bytes.
    pub draw: Draw,
    /// Runs the work in separate tasks, so that a disconnected caller does not cancel the work.
    pub runtime: PurchaseTasks,
}

/// A notification of the provider, untrusted: only a trigger of reconciliation.
#[derive(Clone, Debug)]
pub struct MandateNotification {
    /// The provider's event id.
    pub id: String,
    /// The event type.
    pub kind: String,
    /// Mandates named in the notification.
    pub mandates: Vec<MandateSubject>,
    /// Purchases of credits named in the notification.
    pub top_ups: Vec<TopUpSubject>,
}

/// Result of a reconciliation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    /// Paid; the plan is active by this mandate.
    Paid(SubscriptionRow, MandateRow),
    /// The buyer has not agreed yet.
    Waiting(MandateRow),
    /// The buyer has agreed; no charge is paid yet.
    Unpaid(MandateRow),
    /// No payment will follow: ended, superseded, or a duplicate.
    Over(MandateRow),
}

/// Opens and reconciles mandates. Cheap to clone.
#[derive(Clone)]
pub struct Mandates {
    pub(super) inner: Arc<MandateContext>,
    worker: Arc<DueWorker<MandateContext>>,
    /// Owned here; the plans hold a weak reference.
    _rail: Arc<dyn Rail>,
}

impl Mandates {
    /// A processor. Due mandates are reconciled only while [`Mandates::run`] runs.
    pub fn new(deps: MandateDeps) -> Mandates {
        let (clock, tasks) = (deps.clock.clone(), deps.runtime.clone());
        let inner = Arc::new(MandateContext {
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
            recent_reads: RecentReads::default(),
        });
        let rail: Arc<dyn Rail> = Arc::new(MandateRail(inner.clone()));
        inner.plans.add_rail(&rail);
        let worker = Arc::new(DueWorker::new(inner.clone(), clock, tasks));
        Mandates {
            inner,
            worker,
            _rail: rail,
        }
    }

    pub fn counters(&self) -> &Counters<MandateEvent> {
        &self.inner.counters
    }

    /// Whether the settings name a provider plan to create mandates for.
    pub fn has_plan(&self) -> bool {
        self.inner.plan_id.is_some()
    }

    /// Why mandates cannot be opened now; `None` if possible.
    pub async fn closed(&self) -> Option<String> {
        let this = self.clone();
        let closed = self.spawn(async move { this.inner.closed().await }).await;
        closed.unwrap_or_else(|| Some(String::from("the process is shutting down")))
    }

    /// Whether the last plan check allows opening mandates. Waits for the provider only before the first check; a later due check is begun.
    pub async fn is_sold(&self) -> bool {
        match self.inner.is_sold() {
            Some(is_sold) => is_sold,
            None => self.closed().await.is_none(),
        }
    }

    /// The mandate offered to an account: the open mandate, or a new one, with a known approval URL.
    pub async fn open(&self, account: AccountId, urls: Urls) -> Result<MandateRow, OpenError> {
        let this = self.clone();
        self.spawn(async move { this.inner.open(account, &urls).await })
            .await
            .unwrap_or(Err(OpenError::Ending))
    }

    /// Reconciles a mandate with the provider now, because its buyer or an agent asks: no attempt of the worker's schedule.
    pub async fn verify(&self, id: MandateId) -> Result<Verified, VerifyError> {
        self.verify_with(id, None).await
    }

    /// [`verify`](Self::verify); a recorded payment writes the parts built by `attach` in one unit of work.
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

    /// Cancels the current mandate for the owner. Paid periods stay. The owner can resume until the next charge would have been due
    /// ([`super::resumable_until`]).
    pub async fn cancel(&self, account: AccountId) -> Result<MandateRow, ChangeError> {
        let this = self.clone();
        self.spawn(async move { this.inner.cancel(account).await })
            .await
            .unwrap_or(Err(ChangeError::NotStored(VerifyError::Ending)))
    }

    /// Resumes a mandate cancelled by the owner; a repeated request changes nothing.
    pub async fn resume(&self, account: AccountId) -> Result<MandateRow, ChangeError> {
        let this = self.clone();
        self.spawn(async move { this.inner.resume(account).await })
            .await
            .unwrap_or(Err(ChangeError::NotStored(VerifyError::Ending)))
    }

    /// Stores a notification and marks the named rows for reconciliation. Durable on return; `false` for a duplicate.
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
                self.worker.wake();
                Ok(true)
            }
            Err(CommitError::Refused(Refusal::DuplicateNotification)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reconciles due mandates and checks the provider's plan, until the future is dropped. Unfinished work of an earlier run is due at
    /// once.
    pub async fn run(&self) {
        let plan = async {
            loop {
                // The result is logged and cached for the next buyer.
                let _ = self.closed().await;
                tokio::time::sleep(plan_check::POLL_INTERVAL).await;
            }
        };
        tokio::join!(plan, self.worker.run());
    }

    /// Reconciles due mandates once; returns the number of mandates.
    pub async fn reconcile_due(&self) -> usize {
        self.worker.run_once().await
    }

    /// Runs work in a separate task; `None` when the runtime is shutting down.
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

#[async_trait]
impl DueWork for MandateContext {
    type Key = MandateId;
    const NAME: &'static str = "mandates";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due<MandateId>>, ReadError> {
        let due = reading(&self.store, move |store| store.mandates_due(now, limit)).await?;
        let due = due.into_iter().map(|row| Due {
            key: row.id,
            version: row.version,
            notifications: row.notifications,
            next_attempt_at: row.next_attempt_at,
        });
        Ok(due.collect())
    }

    async fn reconcile(&self, id: MandateId) -> bool {
        // The failed reconciliation has logged its error.
        self.attempt(id).await.is_ok()
    }
}

impl MandateContext {
    async fn verify(
        &self,
        id: MandateId,
        attach: Option<&AttachParts>,
    ) -> Result<Verified, VerifyError> {
        let row = self.ask(id, attach).await?;
        let state = self.plans.state(row.account);
        let state = state.await.map_err(VerifyError::Plan)?;
        let own = state
            .active()
            .filter(|subscription| is_own(subscription, &row));
        Ok(match (row.state, own) {
            (
                MandateState::Active
                | MandateState::CancelAtEnd
                | MandateState::CancelPending
                | MandateState::Ended
                | MandateState::Resuming,
                Some(own),
            ) => Verified::Paid(own.clone(), row),
            (MandateState::Created | MandateState::Open, _) => Verified::Waiting(row),
            (MandateState::Agreed, _) => Verified::Unpaid(row),
            _ => Verified::Over(row),
        })
    }
}
