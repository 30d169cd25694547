//! Where mandates are opened, looked at, ended and heard about.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};
use tokio::task::JoinSet;
use tollgate_money::{AccountId, MandateId};
use tollgate_store::{
    Admission, CommitError, MandatePart, MandateRow, MandateState, MandateSubject, Part, Refusal,
    Store, SubscriptionRow, TopUpPart, TopUpSubject, UnitOfWork, commit, reading,
};

use super::counters::MandateCounters;
use super::error::{CancelError, OpenError, VerifyError};
use super::open::Urls;
use super::plan_check::{self, PlanCheck};
use super::recurring::Recurring;
use crate::plan::Plans;
use crate::tasks::PurchaseTasks;
use crate::topups::Draw;

/// How often the desk asks the store which mandates are due, when nobody wakes it.
const EVERY: Duration = Duration::from_secs(2);

/// Mandates looked at at once.
const AT_ONCE: usize = 8;

/// Mandates of one account that are read: its open one, and those before it that something may still come of.
pub(super) const OF_ACCOUNT: usize = 64;

/// What a desk works with.
pub struct MandateDeps {
    /// Where mandates are kept.
    pub store: Arc<dyn Store>,
    /// What payments become.
    pub plans: Plans,
    /// The payment provider.
    pub recurring: Arc<dyn Recurring>,
    /// The provider's plan; without one nothing new is begun, and what there is goes on being looked at.
    pub plan_id: Option<String>,
    /// Tells this installation's keys from those of another with the same provider: its address.
    pub environment: String,
    /// Unix microseconds.
    pub now: Box<dyn Fn() -> i64 + Send + Sync>,
    /// Fills a slice with random bytes.
    pub draw: Draw,
    /// Where the work runs, so that a caller who leaves does not cut it off.
    pub runtime: PurchaseTasks,
}

/// What the provider says has happened. Only a bell.
#[derive(Clone, Debug)]
pub struct MandateNotification {
    /// The provider's id of the event.
    pub id: String,
    /// The kind of event.
    pub kind: String,
    /// The mandates it seems to be about.
    pub mandates: Vec<MandateSubject>,
    /// The purchases of credits it seems to be about.
    pub top_ups: Vec<TopUpSubject>,
}

/// What a look at a mandate has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    /// It is paid, and the plan runs by it.
    Paid(SubscriptionRow, MandateRow),
    /// The buyer has yet to agree.
    Waiting(MandateRow),
    /// The buyer has agreed, and nothing is paid yet.
    Unpaid(MandateRow),
    /// Nothing comes of it any more: it has ended, another took its place, or it was not wanted.
    Over(MandateRow),
}

/// Makes what is to be written together with a payment, of what the account has with it and the mandate as it is then. It may be asked
/// again.
pub type AttachParts = Arc<dyn Fn(&SubscriptionRow, &MandateRow) -> Vec<Part> + Send + Sync>;

/// The desk. Cheap to clone.
#[derive(Clone)]
pub struct Mandates {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) store: Arc<dyn Store>,
    pub(super) plans: Plans,
    pub(super) recurring: Arc<dyn Recurring>,
    pub(super) plan_id: Option<Arc<str>>,
    pub(super) environment: String,
    pub(super) counters: MandateCounters,
    pub(super) now: Box<dyn Fn() -> i64 + Send + Sync>,
    pub(super) plan_check: Mutex<PlanCheck>,
    pub(super) reads_plan: AsyncMutex<()>,
    draw: Draw,
    runtime: PurchaseTasks,
    /// Whoever works on mandates of an account holds its lock: what one of them is worth depends on the others.
    locks: Mutex<HashMap<AccountId, Weak<AsyncMutex<()>>>>,
    wake: Notify,
}

impl Mandates {
    /// A desk. Nothing is looked at before [`Mandates::run`] runs.
    pub fn new(parts: MandateDeps) -> Mandates {
        Mandates {
            inner: Arc::new(Inner {
                store: parts.store,
                plans: parts.plans,
                recurring: parts.recurring,
                plan_id: parts.plan_id.map(Arc::from),
                environment: parts.environment,
                counters: MandateCounters::default(),
                now: parts.now,
                plan_check: Mutex::default(),
                reads_plan: AsyncMutex::default(),
                draw: parts.draw,
                runtime: parts.runtime,
                locks: Mutex::default(),
                wake: Notify::new(),
            }),
        }
    }

    /// What has become of mandates so far.
    pub fn counters(&self) -> &MandateCounters {
        &self.inner.counters
    }

    /// Whether there is a plan that mandates are begun for.
    pub fn has_plan(&self) -> bool {
        self.inner.plan_id.is_some()
    }

    /// Why mandates cannot be opened now; `None` when they can.
    pub async fn closed(&self) -> Option<String> {
        let this = self.clone();
        let closed = self.spawn(async move { this.inner.closed().await }).await;
        closed.unwrap_or_else(|| Some(String::from("the process is ending")))
    }

    /// Whether mandates could be opened when the provider's plan was last read. Waits for the provider only before the first answer.
    pub async fn is_sold(&self) -> bool {
        match self.inner.is_sold() {
            Some(is_sold) => is_sold,
            None => self.closed().await.is_none(),
        }
    }

    /// The mandate that is offered to an account: the one that is waiting for its owner, or a new one. Where the owner agrees to it is
    /// known then.
    pub async fn open(&self, account: AccountId, urls: Urls) -> Result<MandateRow, OpenError> {
        let this = self.clone();
        self.spawn(async move { this.inner.open(account, &urls).await })
            .await
            .unwrap_or(Err(OpenError::Ending))
    }

    /// Asks the provider now, and does what is to be done.
    pub async fn verify(&self, id: MandateId) -> Result<Verified, VerifyError> {
        self.verify_with(id, None).await
    }

    /// The same; where the look finds that the plan was paid for, what `beside` makes of it is written in the same unit of work.
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

    /// The mandate of an account that there is to speak of: what is offered, agreed to or charged, or else what was last.
    pub async fn of(&self, account: AccountId) -> Result<Option<MandateRow>, VerifyError> {
        let rows = self.inner.of(account).await?;
        Ok(current_mandate(rows))
    }

    /// Ends what is charged, or offered. What is paid for stays. The mandate as it is then: [`MandateState::CancelPending`] while the provider
    /// has not confirmed it yet.
    pub async fn cancel(&self, account: AccountId) -> Result<MandateRow, CancelError> {
        let this = self.clone();
        self.spawn(async move { this.inner.cancel(account).await })
            .await
            .unwrap_or(Err(CancelError::NotStored(VerifyError::Ending)))
    }

    /// Stores a notice and rings for what it is about. It is heard after this; `false` when it had come in before.
    pub async fn record_notification(
        &self,
        news: MandateNotification,
    ) -> Result<bool, CommitError> {
        let inner = &self.inner;
        let notice = TopUpPart::Notice {
            id: Arc::from(news.id),
            kind: Arc::from(news.kind),
            at: (inner.now)(),
        };
        let mut parts = vec![Part::TopUp(Box::new(notice))];
        let rings = news.mandates.into_iter().map(MandatePart::Notify);
        parts.extend(rings.map(part));
        let rings = news.top_ups.into_iter().map(TopUpPart::Notify);
        parts.extend(rings.map(|ring| Part::TopUp(Box::new(ring))));
        let unit = UnitOfWork::of_all(parts, Admission::Begins);
        match commit(&*inner.store, unit).await {
            Ok(_) => {
                inner.wake.notify_one();
                Ok(true)
            }
            Err(CommitError::Refused(Refusal::NoticeSeen)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Looks at mandates when they are due, and at the provider's plan, until it is dropped. What an earlier run left half done is due at
    /// once.
    pub async fn run(&self) {
        let plan = async {
            loop {
                // What it finds is logged where it is found, and kept for the next buyer.
                let _ = self.closed().await;
                tokio::time::sleep(plan_check::TURN).await;
            }
        };
        let turns = async {
            loop {
                // Where there is more than fits into one turn, nobody waits; unless nothing can be done at all.
                if self.reconcile_batch().await == (AT_ONCE, true) {
                    continue;
                }
                tokio::select! {
                    () = self.inner.wake.notified() => {}
                    () = tokio::time::sleep(EVERY) => {}
                }
            }
        };
        tokio::join!(plan, turns);
    }

    /// Looks once at everything that is due; says how many mandates that were.
    pub async fn reconcile_due(&self) -> usize {
        self.reconcile_batch().await.0
    }

    /// The same; says also whether any look has come to something.
    async fn reconcile_batch(&self) -> (usize, bool) {
        let Some(_turn) = self.inner.runtime.background() else {
            return (0, false);
        };
        let now = (self.inner.now)();
        let due = reading(&self.inner.store, move |store| {
            store.mandates_due(now, AT_ONCE)
        });
        let due = match due.await {
            Ok(due) => due,
            Err(error) => {
                tracing::error!(%error, "could not read which mandates are due");
                return (0, false);
            }
        };
        let mut looks = JoinSet::new();
        let count = due.len();
        for row in due {
            let this = self.clone();
            looks.spawn(async move {
                // What came to nothing is due again by itself, and was logged where it was understood.
                this.inner.reconcile(row.id, None).await.is_ok()
            });
        }
        let mut is_done = false;
        while let Some(look) = looks.join_next().await {
            is_done |= look.unwrap_or(false);
        }
        (count, is_done)
    }

    /// PlanSource work on the desk's own runtime; `None` when that is going down.
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

/// The mandate to speak of, among all of an account, newest first.
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

    /// Writes parts in one unit.
    pub(super) async fn write(&self, parts: Vec<Part>) -> Result<(), CommitError> {
        commit(&*self.store, UnitOfWork::of_all(parts, Admission::Begins))
            .await
            .map(|_| ())
    }

    /// The part that writes a row in the place of the one it was made from.
    pub(super) fn changed(&self, row: &mut MandateRow) -> Part {
        row.version += 1;
        row.updated_at = (self.now)();
        part(MandatePart::Change(row.clone()))
    }

    /// Waits until nobody else works on mandates of an account.
    pub(super) async fn lock(&self, account: AccountId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            let known = locks.get(&account).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::new(AsyncMutex::new(()));
                locks.insert(account, Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }

    pub(super) fn new_id(&self) -> MandateId {
        let mut random = [0; 10];
        (self.draw)(&mut random);
        let ms = (self.now)() / 1000;
        MandateId::from_parts(ms.unsigned_abs(), random)
    }
}

pub(super) fn part(part: MandatePart) -> Part {
    Part::Mandate(Box::new(part))
}

/// Whether a subscription runs by this mandate.
pub(super) fn is_own(subscription: &SubscriptionRow, row: &MandateRow) -> bool {
    subscription.route == tollgate_store::Route::PayPal
        && row.provider_ref.as_deref() == Some(&*subscription.reference)
}
