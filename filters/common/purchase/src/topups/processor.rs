//! Where purchases are begun, looked at and heard about.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};
use tokio::task::JoinSet;
use tollgate_ledger::Ledger;
use tollgate_money::{AccountId, Micros, OperationId, TopUpId, Usd};
use tollgate_store::{
    Admission, CommitError, Part, Refusal, Store, TopUpPart, TopUpRow, TopUpState, TopUpSubject,
    UnitOfWork, commit, reading,
};

use super::counters::Counters;
use super::error::{BeginError, ReconcileError};
use super::keys::{Step, key};
use super::offer::Offer;
use super::orders::{FailureKind, NewOrder, Orders};
use super::schedule;
use crate::tasks::PurchaseTasks;

/// How often the desk asks the store which purchases are due, when nobody wakes it.
const EVERY: Duration = Duration::from_secs(2);

/// Purchases looked at at once.
const AT_ONCE: usize = 8;

/// Unfinished purchases of one account.
const OPEN_MAX: usize = 10;

/// How long a notice is known: PayPal repeats one for three days (Webhooks guide), and somebody may ask it to send an old one again.
const NOTICES_KEPT: i64 = 30 * 86_400 * 1_000_000;

/// How often old notices are forgotten, in turns of the desk.
const FORGET_TURNS: u32 = 900;

/// Fills a slice with random bytes.
pub type Draw = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// What a desk works with.
pub struct TopUpDeps {
    /// Where purchases are kept.
    pub store: Arc<dyn Store>,
    /// The books.
    pub ledger: Ledger,
    /// The payment provider.
    pub orders: Arc<dyn Orders>,
    /// Tells this installation's keys from those of another with the same provider: its address.
    pub environment: String,
    /// What can be bought.
    pub offer: Offer,
    /// What the buyer reads at the provider's.
    pub description: String,
    /// Unix microseconds.
    pub now: Box<dyn Fn() -> i64 + Send + Sync>,
    /// Fills a slice with random bytes.
    pub draw: Draw,
    /// Where the work runs, so that a caller who leaves does not cut it off.
    pub runtime: PurchaseTasks,
}

/// What a buyer wishes for.
#[derive(Clone, Debug)]
pub struct PurchaseRequest {
    /// The purchase, named when the form was shown: a form that is sent twice is one purchase.
    pub id: TopUpId,
    /// Who gets the credits.
    pub account: AccountId,
    /// What is to be paid.
    pub price: Usd,
    /// Where the buyer comes back to.
    pub return_url: String,
    /// Where the buyer comes back to without having agreed.
    pub cancel_url: String,
}

/// What the provider says has happened. Only a bell.
#[derive(Clone, Debug)]
pub struct Notification {
    /// The provider's id of the event.
    pub id: String,
    /// The kind of event.
    pub kind: String,
    /// The purchase it seems to be about, if it is about one.
    pub about: Option<TopUpSubject>,
}

/// The desk. Cheap to clone.
#[derive(Clone)]
pub struct TopUps {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) store: Arc<dyn Store>,
    pub(super) ledger: Ledger,
    pub(super) orders: Arc<dyn Orders>,
    pub(super) environment: String,
    pub(super) counters: Counters,
    pub(super) now: Box<dyn Fn() -> i64 + Send + Sync>,
    offer: Offer,
    description: String,
    draw: Draw,
    runtime: PurchaseTasks,
    /// Whoever works on a purchase holds its lock. The books would refuse the second anyway; this spares the provider its call.
    locks: Mutex<HashMap<TopUpId, Weak<AsyncMutex<()>>>>,
    /// Purchases with news whose order could not be read, and how often somebody had rung by then: they wait as others do, until
    /// somebody rings once more.
    deferred: Mutex<HashMap<TopUpId, i64>>,
    wake: Notify,
}

impl TopUps {
    /// A desk. Nothing is looked at before [`TopUps::run`] runs.
    pub fn new(parts: TopUpDeps) -> TopUps {
        TopUps {
            inner: Arc::new(Inner {
                store: parts.store,
                ledger: parts.ledger,
                orders: parts.orders,
                environment: parts.environment,
                counters: Counters::default(),
                now: parts.now,
                offer: parts.offer,
                description: parts.description,
                draw: parts.draw,
                runtime: parts.runtime,
                locks: Mutex::default(),
                deferred: Mutex::default(),
                wake: Notify::new(),
            }),
        }
    }

    /// What can be bought.
    pub fn offer(&self) -> &Offer {
        &self.inner.offer
    }

    /// What has become of purchases so far.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// A name for a purchase that may follow.
    pub fn new_id(&self) -> TopUpId {
        let (ms, random) = self.inner.id_parts();
        TopUpId::from_parts(ms, random)
    }

    /// Begins a purchase, or finds the one that was begun under the same id: its order and where the buyer agrees to it are known
    /// then, or it is over.
    pub async fn begin(&self, request: PurchaseRequest) -> Result<TopUpRow, BeginError> {
        let this = self.clone();
        self.spawn(async move { this.inner.begin(request).await })
            .await
            .unwrap_or(Err(BeginError::Ending))
    }

    /// Looks at a purchase and does what is to be done. For a buyer who comes back: `true` says that there is news.
    pub async fn reconcile(
        &self,
        id: TopUpId,
        is_notified: bool,
    ) -> Result<TopUpRow, ReconcileError> {
        let this = self.clone();
        self.spawn(async move { this.inner.reconcile(id, is_notified).await })
            .await
            .unwrap_or(Err(ReconcileError::Ending))
    }

    /// Stores a notice and rings for what it is about. It is heard after this; `false` when it had come in before.
    pub async fn record_notification(
        &self,
        notification: Notification,
    ) -> Result<bool, CommitError> {
        let inner = &self.inner;
        let mut parts = vec![part(TopUpPart::Notice {
            id: Arc::from(notification.id),
            kind: Arc::from(notification.kind),
            at: (inner.now)(),
        })];
        parts.extend(notification.about.map(|ring| part(TopUpPart::Notify(ring))));
        let unit = UnitOfWork::of_all(parts, Admission::Begins);
        match commit(&*inner.store, unit).await {
            Ok(_) => {
                Counters::one(&inner.counters.notices);
                inner.wake.notify_one();
                Ok(true)
            }
            Err(CommitError::Refused(Refusal::NoticeSeen)) => {
                Counters::one(&inner.counters.notices_known);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Looks at purchases when they are due, until it is dropped. What an earlier run left half done is due at once.
    pub async fn run(&self) {
        let mut turns = 0u32;
        loop {
            self.reconcile_due().await;
            if turns.is_multiple_of(FORGET_TURNS) {
                self.forget().await;
            }
            turns = turns.wrapping_add(1);
            tokio::select! {
                () = self.inner.wake.notified() => {}
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    /// Looks once at everything that is due; says how many purchases that were.
    pub async fn reconcile_due(&self) -> usize {
        let Some(_turn) = self.inner.runtime.background() else {
            return 0;
        };
        let now = (self.inner.now)();
        let unacknowledged = self.inner.deferred().clone();
        // As many more as there are that wait, so that they are in nobody's way.
        let most = AT_ONCE + unacknowledged.len();
        let due = reading(&self.inner.store, move |store| store.top_ups_due(now, most));
        let due = match due.await {
            Ok(due) => due,
            Err(error) => {
                tracing::error!(%error, "could not read which purchases are due");
                return 0;
            }
        };
        let mut looks = JoinSet::new();
        let waits = |row: &TopUpRow| {
            unacknowledged.get(&row.id) == Some(&row.notifications)
                && row.next_attempt_at.is_some_and(|at| at > now)
        };
        let due: Vec<_> = due
            .into_iter()
            .filter(|row| !waits(row))
            .take(AT_ONCE)
            .collect();
        let count = due.len();
        for row in due {
            let this = self.clone();
            looks.spawn(async move {
                // What came to nothing is due again by itself, and was logged where it was understood.
                let _ = this.inner.reconcile(row.id, false).await;
            });
        }
        while looks.join_next().await.is_some() {}
        count
    }

    async fn forget(&self) {
        let before = (self.inner.now)() - NOTICES_KEPT;
        let forget = part(TopUpPart::ForgetNotices {
            before,
            limit: 10_000,
        });
        let unit = UnitOfWork::of(forget, Admission::Begins);
        if let Err(error) = commit(&*self.inner.store, unit).await {
            tracing::warn!(%error, "could not forget old notices");
        }
    }

    /// Runs work on the desk's own runtime; `None` when that is going down.
    async fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.inner.runtime.spawn(work).await.ok()
    }
}

impl fmt::Debug for TopUps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopUps").finish_non_exhaustive()
    }
}

impl Inner {
    async fn begin(&self, request: PurchaseRequest) -> Result<TopUpRow, BeginError> {
        self.offer.check(request.price)?;
        let _lock = self.lock(request.id).await;
        let (id, account) = (request.id, request.account);
        let known = reading(&self.store, move |store| {
            Ok((
                store.top_up(id)?,
                store.top_ups_of(account, i64::MAX, 4 * OPEN_MAX)?,
            ))
        });
        let (known, others) = known.await.map_err(BeginError::Read)?;
        let row = match known {
            Some(row) if row.account == request.account && row.price == request.price => row,
            Some(row) => return Err(BeginError::OtherPurchase(row.id)),
            None => self.store_new(&request, &others).await?,
        };
        if row.state != TopUpState::Created || row.order.is_some() {
            return Ok(row);
        }
        let order = NewOrder {
            key: &row.create_key,
            top_up: row.id,
            price: row.price,
            description: &self.description,
            return_url: &request.return_url,
            cancel_url: &request.cancel_url,
        };
        match self.orders.create(&order).await {
            Ok(placed) => {
                let mut open = TopUpRow {
                    state: TopUpState::Open,
                    order: Some(Arc::from(placed.order)),
                    approve_url: Some(Arc::from(placed.approve_url)),
                    attempts: 0,
                    ..row
                };
                open.next_attempt_at = schedule::next(&open, (self.now)());
                self.change(&mut open).await.map_err(BeginError::Store)?;
                Ok(open)
            }
            Err(error) => {
                tracing::warn!(top_up = %row.id, kind = ?error.kind, cause = %error, "no order was made for a purchase");
                if error.kind == FailureKind::OutcomeUnknown {
                    Counters::one(&self.counters.unclear);
                }
                // An order that was made all the same is one that nobody has a link to. Nothing can be taken for it.
                if error.kind == FailureKind::Refused {
                    let mut over = TopUpRow {
                        state: TopUpState::Failed,
                        note: Some(Arc::from("refused")),
                        next_attempt_at: None,
                        ..row
                    };
                    Counters::one(&self.counters.failed);
                    self.change(&mut over).await.map_err(BeginError::Store)?;
                }
                Err(BeginError::Provider(error))
            }
        }
    }

    async fn store_new(
        &self,
        request: &PurchaseRequest,
        others: &[TopUpRow],
    ) -> Result<TopUpRow, BeginError> {
        let now = (self.now)();
        let open = others
            .iter()
            .filter(|row| {
                !matches!(row.state, TopUpState::Captured | TopUpState::Failed)
                    && row.created_at > now - schedule::EXPIRES
            })
            .count();
        if open >= OPEN_MAX {
            return Err(BeginError::TooMany { open });
        }
        let row = TopUpRow {
            id: request.id,
            account: request.account,
            state: TopUpState::Created,
            version: 0,
            price: request.price,
            credits: self.offer.credits(request.price),
            create_key: Arc::from(key(
                &self.environment,
                request.account,
                request.id,
                Step::Create,
            )),
            order: None,
            approve_url: None,
            capture_key: None,
            capture: None,
            declines: 0,
            returned: Usd::ZERO,
            taken_back: Micros::ZERO,
            owed: Micros::ZERO,
            note: None,
            attempts: 0,
            next_attempt_at: Some(now + schedule::EXPIRES),
            notifications: 0,
            acknowledged: 0,
            created_at: now,
            updated_at: now,
        };
        let begin = part(TopUpPart::Begin(row.clone()));
        commit(&*self.store, UnitOfWork::of(begin, Admission::Begins))
            .await
            .map_err(BeginError::Store)?;
        Counters::one(&self.counters.begun);
        Ok(row)
    }

    /// Writes a row in the place of the one it was made from.
    pub(super) async fn change(&self, row: &mut TopUpRow) -> Result<(), CommitError> {
        let unit = UnitOfWork::of(self.changed(row), Admission::Begins);
        commit(&*self.store, unit).await.map(|_| ())
    }

    /// The part that writes it, for a unit of more.
    pub(super) fn changed(&self, row: &mut TopUpRow) -> Part {
        row.version += 1;
        row.updated_at = (self.now)();
        part(TopUpPart::Change(row.clone()))
    }

    /// News of a purchase waits until its next look, or until it has been rung for more often than this.
    pub(super) fn defer(&self, id: TopUpId, rings: i64) {
        self.deferred().insert(id, rings);
    }

    /// The news of a purchase was heard.
    pub(super) fn clear_deferred(&self, id: TopUpId) {
        self.deferred().remove(&id);
    }

    fn deferred(&self) -> MutexGuard<'_, HashMap<TopUpId, i64>> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else works on a purchase.
    pub(super) async fn lock(&self, id: TopUpId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            let known = locks.get(&id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::new(AsyncMutex::new(()));
                locks.insert(id, Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }

    /// An id for an entry of the books.
    pub(super) fn operation(&self) -> OperationId {
        let (ms, random) = self.id_parts();
        OperationId::from_parts(ms, random)
    }

    fn id_parts(&self) -> (u64, [u8; 10]) {
        let mut random = [0; 10];
        (self.draw)(&mut random);
        let ms = (self.now)() / 1000;
        (ms.unsigned_abs(), random)
    }
}

pub(super) fn part(part: TopUpPart) -> Part {
    Part::TopUp(Box::new(part))
}
