//! The sources of the admin API: the service for operations, the store, and the database beside the store.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::ApiError;
use tollgate_money::AccountId;
use tollgate_store::{AccountRow, OpenError, ReadError, Reader, Store, reading};

use super::call::{Call, no_account};
use crate::admin::changes::{ChangeError, panicked};
use crate::admin::operations::operation::{Changes, Operation};
use crate::admin::running::RunningSettings;
use crate::admin::views::AccountView;
use crate::config;
use crate::database::Opener;

/// The inputs of the admin API.
pub struct ApiDeps {
    /// The store, for reads.
    pub store: Arc<dyn Store>,
    /// The settings in force. The database in the settings is opened for long reads, and for the state of other nodes.
    pub settings: Arc<dyn RunningSettings>,
    /// The clock.
    pub clock: Clock,
    /// For ids of requests.
    pub entropy: Entropy,
}

/// The sources of the endpoints.
pub(in crate::admin) struct ApiState {
    pub(in crate::admin) deps: ApiDeps,
    pub(super) service: Arc<dyn Changes>,
    /// A single permit: at most a single audit runs.
    pub(in crate::admin) audits: Arc<Semaphore>,
    /// A single permit: at most a single run of `doctor` is open.
    pub(in crate::admin) doctors: Arc<Semaphore>,
}

impl ApiState {
    pub(super) fn new(deps: ApiDeps, service: Arc<dyn Changes>) -> ApiState {
        ApiState {
            deps,
            service,
            audits: Arc::new(Semaphore::new(1)),
            doctors: Arc::new(Semaphore::new(1)),
        }
    }

    /// Performs an operation on behalf of the holder of the token.
    pub(in crate::admin) async fn perform<O: Operation>(
        &self,
        operation: O,
        call: &Call<'_>,
    ) -> Result<O::Output, ApiError> {
        Ok(self.service.perform(operation, call.caller.clone()).await?)
    }

    pub(in crate::admin) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let read = reading(&self.deps.store, read).await;
        Ok(read.map_err(ChangeError::from)?)
    }

    /// The account of an id.
    pub(in crate::admin) async fn find(&self, id: &str) -> Result<AccountRow, ApiError> {
        let id: AccountId = id.parse().map_err(ChangeError::from)?;
        let row = self.read(move |store| store.account(id)).await?;
        row.ok_or_else(|| no_account(id))
    }

    /// The account of an id, as an answer.
    pub(in crate::admin) async fn account(&self, id: &str) -> Result<AccountView, ApiError> {
        let (row, now) = (self.find(id).await?, self.deps.clock.now());
        let id = row.id;
        let more = move |store: &Reader| Ok((store.subscription(id)?, store.logins(id)?));
        let (plan, logins) = self.read(more).await?;
        Ok(AccountView::of(&row, now).with(plan.as_ref(), &logins, now))
    }

    /// Opens the database beside the store.
    pub(in crate::admin) async fn open<T: Send + 'static>(
        &self,
        open: impl FnOnce(&config::Store, &Opener<'_>) -> Result<T, OpenError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (settings, clock) = (self.deps.settings.settings(), self.deps.clock.clone());
        let entropy = self.deps.entropy.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let opener = Opener {
                name: "admin API",
                clock: &clock,
                entropy: &entropy,
            };
            open(&settings.store, &opener)
        });
        let opened = opened.await.map_err(panicked)?;
        Ok(opened.map_err(ChangeError::from)?)
    }
}
