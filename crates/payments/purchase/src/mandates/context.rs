//! What every operation on mandates shares: store, provider, clock, locks, and the writes of rows.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tollgate_clock::Clock;
use tollgate_counters::Counters;
use tollgate_money::{AccountId, MandateId};
use tollgate_store::{
    Admission, CommitError, MandateRow, Part, Store, SubscriptionRow, UnitOfWork, commit, reading,
};

use super::counters::MandateEvent;
use super::error::VerifyError;
use super::plan_check::PlanCheck;
use super::recent_reads::RecentReads;
use super::recurring::Recurring;
use crate::keyed_lock::KeyedLock;
use crate::plan::Plans;
use crate::tasks::PurchaseTasks;
use crate::topups::Draw;

/// Mandates read per account: the open mandate, and earlier mandates that may still be charged.
pub(super) const OF_ACCOUNT: usize = 64;

/// Builds parts for the unit of work of a payment, from the subscription and mandate after the payment. May be called again on a write
/// conflict.
pub type AttachParts = Arc<dyn Fn(&SubscriptionRow, &MandateRow) -> Vec<Part> + Send + Sync>;

pub(super) struct MandateContext {
    pub(super) store: Arc<dyn Store>,
    pub(super) plans: Plans,
    pub(super) recurring: Arc<dyn Recurring>,
    pub(super) plan_id: Option<Arc<str>>,
    pub(super) environment: String,
    pub(super) counters: Counters<MandateEvent>,
    pub(super) clock: Clock,
    pub(super) plan_check: Mutex<PlanCheck>,
    pub(super) reads_plan: AsyncMutex<()>,
    pub(super) draw: Draw,
    pub(super) runtime: PurchaseTasks,
    /// One lock for each account with mandates in work here: decisions about one mandate depend on the others. Another node may change a
    /// row meanwhile. The write on the older version is then refused, and the reconciliation repeated with the stored row.
    pub(super) locks: KeyedLock<AccountId>,
    pub(super) recent_reads: RecentReads,
}

impl MandateContext {
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

    /// Writes parts in one unit of work.
    pub(super) async fn write(&self, parts: Vec<Part>) -> Result<(), CommitError> {
        commit(&*self.store, UnitOfWork::of_all(parts, Admission::Normal))
            .await
            .map(|_| ())
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
