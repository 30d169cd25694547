//! Credits that returned payments still owe, as due work: taken back when they become free.

use std::sync::Arc;

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use tollgate_store::{ReadError, Route, reading};

use super::plans::Plans;
use crate::due::{Due, DueWork, DueWorker};
use crate::tasks::PurchaseTasks;

/// The payments for the plan that were given back while their credits were held or spent.
pub struct OwedCredits(Plans);

impl OwedCredits {
    /// The worker that takes them back.
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
        let store = &self.0.inner.store;
        let due = reading(store, move |store| store.payments_due(now, limit)).await?;
        let due = due.into_iter().map(|row| Due {
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
