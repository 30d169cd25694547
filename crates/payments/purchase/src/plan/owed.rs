//! Credits owed for returned payments, as due work: taken back as they become free.

use std::sync::Arc;

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use tollgate_store::{PaymentRow, ReadError, Route, reading};

use super::plans::Plans;
use crate::due::{Due, DueWork, DueWorker};
use crate::tasks::PurchaseTasks;

/// Maximum of payments due as soon as the account has free credit. Further payments are due at their stored times.
const OWING_MAX: usize = 256;

/// The payments for the plan that were given back while their credits were held or spent.
pub struct OwedCredits(Plans);

impl OwedCredits {
    pub fn worker(plans: &Plans, tasks: PurchaseTasks) -> DueWorker<OwedCredits> {
        let clock = plans.inner.clock.clone();
        DueWorker::new(Arc::new(OwedCredits(plans.clone())), clock, tasks)
    }
}

#[async_trait]
impl DueWork for OwedCredits {
    type Key = (Route, Arc<str>);
    const NAME: &'static str = "returned plan payments";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due<Self::Key>>, ReadError> {
        let (store, ledger) = (&self.0.inner.store, &self.0.inner.ledger);
        // Every row has a time, and the rows are few.
        let owing_max = limit.max(OWING_MAX);
        let owing = reading(store, move |store| {
            store.payments_due(Timestamp::MAX, owing_max)
        });
        // An account outside memory cannot spend credit.
        let is_due = |row: &PaymentRow| {
            row.next_attempt_at.is_some_and(|at| at <= now) || ledger.has_free_credit(row.account)
        };
        let due = owing.await?.into_iter().filter(is_due).take(limit);
        let due = due.map(|row| Due {
            key: (row.route, row.provider_ref),
            // Each attempt stores a later time.
            version: row.next_attempt_at.map_or(0, Timestamp::as_micros),
            notifications: 0,
            next_attempt_at: row.next_attempt_at,
        });
        Ok(due.collect())
    }

    async fn reconcile(&self, (route, name): Self::Key) -> bool {
        let collected = self.0.collect_owed(route, &name).await;
        if let Err(error) = &collected {
            tracing::error!(route = route.word(), payment = %name, %error, "taking back owed credits failed, retrying");
        }
        collected.is_ok()
    }
}
