//! Processor of credit purchases: creation, reconciliation and provider notifications.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OwnedMutexGuard;
use tollgate_clock::{Clock, Timestamp};
use tollgate_counters::Counters;
use tollgate_ledger::Ledger;
use tollgate_money::{AccountId, Micros, OperationId, TopUpId, Usd};
use tollgate_store::{
    Admission, CommitError, Part, ReadError, Refusal, Store, TopUpPart, TopUpRow, TopUpState,
    TopUpSubject, UnitOfWork, commit, reading,
};

use super::counters::TopUpEvent;
use super::error::{BeginError, ReconcileError};
use super::keys::{Step, key};
use super::offer::Offer;
use super::orders::{FailureKind, NewOrder, Orders};
use super::owing::{OWING_MAX, Owing};
use super::schedule;
use super::top_up::TopUp;
use crate::conflict::repeated;
use crate::due::{Due, DueWork, DueWorker};
use crate::keyed_lock::KeyedLock;
use crate::tasks::PurchaseTasks;

/// Unfinished purchases that an account may have.
const OPEN_MAX: usize = 10;

/// Retention of notification ids: PayPal retries for three days (Webhooks guide), and an old event can be resent on request.
const NOTIFICATION_RETENTION: Duration = Duration::from_hours(30 * 24);

/// Interval between two clean-ups of notification ids.
const CLEANUP_INTERVAL: Duration = Duration::from_mins(30);

/// Fills a slice with random bytes.
pub type Draw = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// Dependencies of [`TopUps`].
pub struct TopUpDeps {
    /// Store of the purchases.
    pub store: Arc<dyn Store>,
    pub ledger: Ledger,
    /// The payment provider.
    pub orders: Arc<dyn Orders>,
    /// Provider environment (its address), part of idempotency keys: two installations share no key.
    pub environment: String,
    /// Prices and limits. `None`: no credits are sold, and existing purchases stay under reconciliation.
    pub offer: Option<Offer>,
    /// Description shown to the buyer at the provider.
    pub description: String,
    pub clock: Clock,
    /// Fills a slice with random bytes.
    pub draw: Draw,
    /// Runs the work in separate tasks, so that a disconnected caller does not cancel the work.
    pub runtime: PurchaseTasks,
}

/// A request to buy credits.
#[derive(Clone, Debug)]
pub struct PurchaseRequest {
    /// The purchase id, drawn when the form was shown: a form submitted twice is one purchase.
    pub id: TopUpId,
    /// The account that gets the credits.
    pub account: AccountId,
    pub price: Usd,
    /// Redirect URL after approval.
    pub return_url: String,
    /// Redirect URL after the buyer has declined.
    pub cancel_url: String,
}

/// A notification of the provider, untrusted: only a trigger of reconciliation.
#[derive(Clone, Debug)]
pub struct Notification {
    /// The provider's event id.
    pub id: String,
    /// The event type.
    pub kind: String,
    /// Purchase named in the notification, if any.
    pub about: Option<TopUpSubject>,
}

/// Creates and reconciles purchases of credits. Cheap to clone.
#[derive(Clone)]
pub struct TopUps {
    pub(super) inner: Arc<TopUpContext>,
    worker: Arc<DueWorker<TopUpContext>>,
}

pub(super) struct TopUpContext {
    pub(super) store: Arc<dyn Store>,
    pub(super) ledger: Ledger,
    pub(super) orders: Arc<dyn Orders>,
    pub(super) environment: String,
    pub(super) counters: Counters<TopUpEvent>,
    pub(super) clock: Clock,
    offer: Option<Offer>,
    description: String,
    draw: Draw,
    runtime: PurchaseTasks,
    /// One lock for each purchase in work in this process, to save provider calls. Between nodes the row version decides: the second writer
    /// is refused, and reconciles the reread row.
    locks: KeyedLock<TopUpId>,
    pub(super) owing: Owing,
}

impl TopUps {
    /// A processor. Due purchases are reconciled only while [`TopUps::run`] runs.
    pub fn new(deps: TopUpDeps) -> TopUps {
        let (clock, tasks) = (deps.clock.clone(), deps.runtime.clone());
        let inner = Arc::new(TopUpContext {
            store: deps.store,
            ledger: deps.ledger,
            orders: deps.orders,
            environment: deps.environment,
            counters: Counters::default(),
            clock: deps.clock,
            offer: deps.offer,
            description: deps.description,
            draw: deps.draw,
            runtime: deps.runtime,
            locks: KeyedLock::default(),
            owing: Owing::default(),
        });
        let worker = Arc::new(DueWorker::new(inner.clone(), clock, tasks));
        TopUps { inner, worker }
    }

    /// Prices and limits; `None` where no credits are sold.
    pub fn offer(&self) -> Option<&Offer> {
        self.inner.offer.as_ref()
    }

    /// Counters of purchase events.
    pub fn counters(&self) -> &Counters<TopUpEvent> {
        &self.inner.counters
    }

    /// A fresh purchase id.
    pub fn new_id(&self) -> TopUpId {
        let (ms, random) = self.inner.id_parts();
        TopUpId::from_parts(ms, random)
    }

    /// Creates a purchase, or returns the existing purchase with this id. On return the order and approval URL are known, or the purchase
    /// has ended.
    pub async fn begin(&self, request: PurchaseRequest) -> Result<TopUpRow, BeginError> {
        let this = self.clone();
        self.spawn(async move { this.inner.begin(request).await })
            .await
            .unwrap_or(Err(BeginError::Ending))
    }

    /// Reconciles a purchase with the provider now, at the buyer's request: no attempt of the worker's schedule. `is_notified`: the buyer
    /// has come back, so the order may have changed.
    pub async fn reconcile(
        &self,
        id: TopUpId,
        is_notified: bool,
    ) -> Result<TopUpRow, ReconcileError> {
        let this = self.clone();
        let reconciled = self.spawn(async move {
            let reconciled = this.inner.ask(id, is_notified).await;
            if reconciled.is_err() {
                this.worker.hold_back(id);
            }
            reconciled
        });
        reconciled.await.unwrap_or(Err(ReconcileError::Ending))
    }

    /// Stores a notification and marks the named purchase for reconciliation. Durable on return; `false` for a duplicate.
    pub async fn record_notification(
        &self,
        notification: Notification,
    ) -> Result<bool, CommitError> {
        let inner = &self.inner;
        let mut parts = vec![part(TopUpPart::Notice {
            id: Arc::from(notification.id),
            kind: Arc::from(notification.kind),
            at: inner.clock.now(),
        })];
        parts.extend(
            notification
                .about
                .map(|subject| part(TopUpPart::Notify(subject))),
        );
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

    /// Reconciles due purchases until the future is dropped. Unfinished work of an earlier run is due at once.
    pub async fn run(&self) {
        let clean_up = async {
            loop {
                self.delete_old_notifications().await;
                tokio::time::sleep(CLEANUP_INTERVAL).await;
            }
        };
        tokio::join!(self.worker.run(), clean_up);
    }

    /// Reconciles due purchases once; returns the number of purchases.
    pub async fn reconcile_due(&self) -> usize {
        self.worker.run_once().await
    }

    async fn delete_old_notifications(&self) {
        let before = self.inner.clock.now() - NOTIFICATION_RETENTION;
        let forget = part(TopUpPart::ForgetNotices {
            before,
            limit: 10_000,
        });
        let unit = UnitOfWork::of(forget, Admission::Normal);
        if let Err(error) = commit(&*self.inner.store, unit).await {
            tracing::warn!(%error, "deleting old notification ids failed");
        }
    }

    /// Runs work in a separate task; `None` when the runtime is shutting down.
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

#[async_trait]
impl DueWork for TopUpContext {
    type Key = TopUpId;
    const NAME: &'static str = "top-ups";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due<TopUpId>>, ReadError> {
        if self.owing.is_unread() {
            let owing = reading(&self.store, |store| store.top_ups_owing(OWING_MAX)).await?;
            self.owing.start(&owing);
        }
        let collectable = self.owing.collectable(&self.ledger);
        let due = reading(&self.store, move |store| {
            let mut due = store.top_ups_due(now, limit)?;
            for id in collectable {
                let row = store.top_up(id)?;
                due.extend(row.filter(|row| due.iter().all(|due| due.id != row.id)));
            }
            Ok(due)
        });
        let due = due.await?.into_iter().map(|row| Due {
            key: row.id,
            version: row.version,
            notifications: row.notifications,
            next_attempt_at: row.next_attempt_at,
        });
        Ok(due.collect())
    }

    async fn reconcile(&self, id: TopUpId) -> bool {
        // The failed reconciliation has logged its error.
        self.attempt(id).await.is_ok()
    }
}

impl TopUpContext {
    async fn begin(&self, request: PurchaseRequest) -> Result<TopUpRow, BeginError> {
        let offer = self.offer.as_ref().ok_or(BeginError::NotSold)?;
        offer.check(request.price)?;
        let _lock = self.lock(request.id).await;
        repeated(|| self.begin_locked(&request, offer)).await
    }

    async fn begin_locked(
        &self,
        request: &PurchaseRequest,
        offer: &Offer,
    ) -> Result<TopUpRow, BeginError> {
        let (id, account) = (request.id, request.account);
        let known = reading(&self.store, move |store| {
            Ok((
                store.top_up(id)?,
                store.top_ups_of(account, Timestamp::MAX, 4 * OPEN_MAX)?,
            ))
        });
        let (known, others) = known.await.map_err(BeginError::Read)?;
        let row = match known {
            Some(row) if row.account == request.account && row.price == request.price => row,
            Some(row) => return Err(BeginError::OtherPurchase(row.id)),
            None => self.store_new(request, offer, &others).await?,
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
                let open = TopUp::stored(row.clone()).ordered(
                    &placed.order,
                    &placed.approve_url,
                    self.clock.now(),
                );
                let open = self.change(open).await.map_err(BeginError::Store)?;
                Ok(open.into_row())
            }
            Err(error) => {
                tracing::warn!(top_up = %row.id, kind = ?error.kind, cause = %error, "creating order failed");
                if error.kind == FailureKind::OutcomeUnknown {
                    self.counters.inc(TopUpEvent::Unclear);
                }
                // If the order exists after all, the buyer has no link, so no capture is possible.
                if error.kind == FailureKind::Refused {
                    self.counters.inc(TopUpEvent::Failed);
                    let over =
                        TopUp::stored(row.clone()).failed("refused", false, self.clock.now());
                    self.change(over).await.map_err(BeginError::Store)?;
                }
                Err(BeginError::Provider(error))
            }
        }
    }

    async fn store_new(
        &self,
        request: &PurchaseRequest,
        offer: &Offer,
        others: &[TopUpRow],
    ) -> Result<TopUpRow, BeginError> {
        let now = self.clock.now();
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
            credits: offer.credits(request.price),
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
        commit(&*self.store, UnitOfWork::of(begin, Admission::Normal))
            .await
            .map_err(BeginError::Store)?;
        self.counters.inc(TopUpEvent::Begun);
        Ok(row)
    }

    /// Writes a changed purchase (optimistic locking by `version`).
    pub(super) async fn change(&self, row: TopUp) -> Result<TopUp, CommitError> {
        let unit = UnitOfWork::of(row.part(), Admission::Normal);
        commit(&*self.store, unit).await.map(|_| row.written())
    }

    /// Acquires the lock of a purchase.
    pub(super) async fn lock(&self, id: TopUpId) -> OwnedMutexGuard<()> {
        self.locks.acquire(id).await
    }

    /// A fresh operation id for the ledger.
    pub(super) fn operation(&self) -> OperationId {
        let (ms, random) = self.id_parts();
        OperationId::from_parts(ms, random)
    }

    fn id_parts(&self) -> (u64, [u8; 10]) {
        let mut random = [0; 10];
        (self.draw)(&mut random);
        let ms = self.clock.now().as_millis();
        (ms.unsigned_abs(), random)
    }
}

pub(super) fn part(part: TopUpPart) -> Part {
    Part::TopUp(Box::new(part))
}
