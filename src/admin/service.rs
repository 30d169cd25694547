//! The admin service: performs the operations of the operator, for the control socket, the admin API, and commands while no gateway runs.

use std::sync::Arc;
use std::time::Duration;

use tollgate_cache::Cache;
use tollgate_clock::{Clock, Entropy};
use tollgate_identity::Form;
use tollgate_ledger::{Credit, Ledger};
use tollgate_meter::MeterSettings;
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_purchase::plan::Plans;
use tollgate_rate_limit::Limits;
use tollgate_store::{AccountStatus, Store, reading};

use super::audit::{Act, Recorder};
use super::changes::{Caller, ChangeError};
use super::operations::operation::{ApplyFuture, Changes, Operation, Recorded, Request, Run};
use super::running::{JsonSource, RunningSettings, Upgrade};
use super::upkeep::Upkeep;
use crate::config::{self, Retention, Settings};

/// Time limit for the database's answer before an upgrade.
const ANSWER: Duration = Duration::from_secs(2);

/// Changes accounts, keys and credits. A change is durable before the response, and visible to a running gateway at once.
pub struct AdminService {
    pub(super) store: Arc<dyn Store>,
    pub(super) ledger: Ledger,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) form: Form,
    classes: Vec<Arc<str>>,
    models: Vec<Arc<str>>,
    pub(super) credit_limit: Micros,
    pub(super) retention: Option<Retention>,
    /// The database settings at the start of the process.
    pub(super) database: config::Store,
    pub(super) upkeep: Arc<Upkeep>,
    /// `None` without the section `[plan]`.
    pub(super) plans: Option<Plans>,
    /// `None` while no gateway runs.
    pub(super) running: Option<Arc<dyn RunningSettings>>,
    /// `None` while no gateway runs.
    pub(super) upgrade: Option<Arc<dyn Upgrade>>,
    /// `None` while no gateway runs.
    pub(super) cache: Option<Arc<Cache>>,
    /// `None` while no gateway runs.
    pub(super) providers: Option<JsonSource>,
}

impl AdminService {
    /// The admin service of a store and a ledger, with the classes, models and terms of the settings.
    pub fn new(
        settings: &Settings,
        store: Arc<dyn Store>,
        ledger: Ledger,
        clock: Clock,
        entropy: Entropy,
    ) -> AdminService {
        let plans = settings
            .sections
            .find()
            .map(|plan| tollgate_pay::plans(plan, (&store, &ledger), (&clock, &entropy)));
        let meter: MeterSettings = settings.sections.find().unwrap_or_default();
        AdminService {
            plans,
            store,
            ledger,
            clock,
            entropy,
            form: Form::api_key(&settings.service.name),
            classes: class_names(settings),
            models: model_ids(settings),
            credit_limit: meter.credit_limit,
            retention: settings.store.retention.clone(),
            database: settings.store.clone(),
            upkeep: Arc::default(),
            running: None,
            upgrade: None,
            cache: None,
            providers: None,
        }
    }

    /// The last upkeep, for the metrics.
    pub(crate) fn upkeep(&self) -> Arc<Upkeep> {
        self.upkeep.clone()
    }

    /// Attaches the settings of a running gateway.
    #[must_use]
    pub fn with_settings(mut self, running: Arc<dyn RunningSettings>) -> AdminService {
        self.running = Some(running);
        self
    }

    /// Attaches the upgrade of a running gateway.
    #[must_use]
    pub fn with_upgrade(mut self, upgrade: Arc<dyn Upgrade>) -> AdminService {
        self.upgrade = Some(upgrade);
        self
    }

    /// Attaches the cache of a running gateway.
    #[must_use]
    pub fn with_cache(mut self, cache: Arc<Cache>) -> AdminService {
        self.cache = Some(cache);
        self
    }

    /// Attaches the provider health of a running gateway.
    #[must_use]
    pub fn with_providers(mut self, providers: JsonSource) -> AdminService {
        self.providers = Some(providers);
        self
    }

    /// Performs and records an operation. The effect is durable before the result is returned.
    pub(crate) async fn perform<O: Operation>(
        &self,
        operation: O,
        caller: Caller,
    ) -> Result<O::Output, ChangeError> {
        let now = self.clock.now();
        let new_id = || OperationId::generate(now, &self.entropy).to_string();
        let recorder = Recorder::new(&*self.store, Act::of(&operation), caller, now, new_id);
        let run = Run::new(self, &recorder, now);
        match O::RECORDED {
            Recorded::Never => return operation.run(&run).await,
            Recorded::AtEnd => {}
            Recorded::AtBegin => {
                self.database_answers().await?;
                // After the takeover, the new process has the store.
                recorder.begin().await?;
            }
        }
        let result = operation.run(&run).await;
        recorder.end::<O>(result).await
    }

    /// Refuses an upgrade while the database does not answer. The begin of an upgrade must be recorded before the gateway gives up the
    /// database.
    async fn database_answers(&self) -> Result<(), ChangeError> {
        let any = AccountId::from_bytes([0; 16]);
        let read = reading(&self.store, move |store| store.account(any));
        match tokio::time::timeout(ANSWER, read).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(ChangeError::unavailable(
                "the database does not answer; try again when it does",
            )),
        }
    }

    /// The id of an account, unless the account is deleted. A deleted account could use neither a new key nor new credit, and the credit
    /// would be owed without end.
    pub(super) async fn undeleted(&self, account: &str) -> Result<AccountId, ChangeError> {
        let id: AccountId = account.parse()?;
        let row = reading(&self.store, move |store| store.account(id)).await?;
        match row.is_some_and(|row| row.status == AccountStatus::Closed) {
            true => Err(ChangeError::conflict(
                "the account is deleted; create another one",
            )),
            false => Ok(id),
        }
    }

    pub(super) fn credit(
        &self,
        account: &str,
        amount: &str,
        reference: String,
    ) -> Result<Credit, ChangeError> {
        let now = self.clock.now();
        Ok(Credit {
            operation: OperationId::generate(now, &self.entropy),
            account: account.parse()?,
            amount: amount.parse()?,
            reference: reference.into(),
            at: now,
        })
    }

    pub(super) fn plans(&self) -> Result<&Plans, ChangeError> {
        let none = || ChangeError::conflict("this gateway has no section `[plan]`");
        self.plans.as_ref().ok_or_else(none)
    }

    pub(super) fn cache(&self) -> Result<&Cache, ChangeError> {
        let none = || "no gateway runs on this database, and the cache exists only in its memory";
        self.cache
            .as_deref()
            .ok_or_else(|| ChangeError::unavailable(none()))
    }

    pub(super) fn running(&self) -> Result<Arc<dyn RunningSettings>, ChangeError> {
        let none = || {
            ChangeError::unavailable(
                "no gateway runs on this database; its next start reads the settings",
            )
        };
        self.running.clone().ok_or_else(none)
    }

    /// The models of the settings in force.
    fn models_on_sale(&self) -> Vec<Arc<str>> {
        match &self.running {
            Some(running) => model_ids(&running.settings()),
            None => self.models.clone(),
        }
    }

    /// A model of the settings in force.
    pub(super) fn model(&self, name: &str) -> Result<Arc<str>, ChangeError> {
        find_named(&self.models_on_sale(), name, "model")
    }

    /// A rate class of the settings in force.
    pub(super) fn class(&self, name: &str) -> Result<Arc<str>, ChangeError> {
        let classes = match &self.running {
            Some(running) => class_names(&running.settings()),
            None => self.classes.clone(),
        };
        find_named(&classes, name, "rate class")
    }

    pub(super) fn models(&self, names: &[String]) -> Result<Option<Arc<[Arc<str>]>>, ChangeError> {
        if names.is_empty() {
            return Ok(None);
        }
        let models = self.models_on_sale();
        names
            .iter()
            .map(|name| find_named(&models, name, "model"))
            .collect::<Result<Arc<[_]>, _>>()
            .map(Some)
    }
}

impl Changes for AdminService {
    fn apply(&self, request: Box<dyn Request>, caller: Caller) -> ApplyFuture<'_> {
        request.perform(self, caller)
    }
}

fn model_ids(settings: &Settings) -> Vec<Arc<str>> {
    let models = settings.catalog.models().iter();
    models.map(|model| model.id.clone()).collect()
}

fn class_names(settings: &Settings) -> Vec<Arc<str>> {
    let limits: Limits = settings.sections.find().unwrap_or_default();
    let classes = limits.classes().iter();
    classes.map(|class| class.name.clone()).collect()
}

/// The element with the name, or an error with the list of elements.
fn find_named(all: &[Arc<str>], name: &str, what: &str) -> Result<Arc<str>, ChangeError> {
    all.iter()
        .find(|one| ***one == *name)
        .cloned()
        .ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|one| &**one).collect();
            ChangeError::invalid(format!(
                "there is no {what} `{name}` in the settings; there is {}",
                tollgate_filter::settings::words(&names)
            ))
        })
}

pub(super) fn not_running() -> ChangeError {
    ChangeError::unavailable("no gateway runs on this database")
}
