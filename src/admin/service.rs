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
use tollgate_store::{
    AccountStatus, Admission, CacheScope, OpenError, Reader, Store, UnitOfWork, commit, reading,
};

use super::audit::{Act, Recorder};
use super::changes::{Caller, ChangeError};
use super::operations::operation::{ApplyFuture, Changes, Operation, Recorded, Request, Run};
use super::running::{JsonSource, RunningSettings, Upgrade};
use super::upkeep::Upkeep;
use crate::config::{self, Retention, Settings};

/// For how long the database may take to answer before an upgrade.
const ANSWER: Duration = Duration::from_secs(2);

/// Changes accounts, keys and credits, each durable before the response and visible to a running gateway at once.
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
    /// Of the start.
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
    /// The admin service of a store and its ledger, with the classes, models and terms of the settings.
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

    /// Attaches what replaces a running gateway.
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

    /// Performs an operation and records it; its effect is durable before the result.
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
                // The process that takes over has the store then.
                recorder.begin().await?;
            }
        }
        let result = operation.run(&run).await;
        recorder.end::<O>(result).await
    }

    /// Refuses an upgrade whose begin could not be recorded before the gateway gives its database up.
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

    /// What changes nothing.
    async fn answer(&self, question: Change) -> Result<Applied, ChangeError> {
        match question {
            Change::GatewayShow {} => Ok(Applied::Gateway {
                process: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                settings: self
                    .running
                    .as_ref()
                    .and_then(|running| running.settings().source.real_file()),
            }),
            Change::ProvidersShow {} => {
                let providers = self.providers.as_ref();
                let providers = providers.ok_or_else(not_running)?();
                Ok(Applied::Providers { providers })
            }
            Change::SettingsDiff {} => {
                let running = self.running()?;
                let check = tokio::task::spawn_blocking(move || running.differences());
                let differences = check.await.map_err(panicked)?;
                let differences = differences.map_err(ChangeError::conflict)?;
                Ok(Applied::Differences { differences })
            }
            _ => Ok(Applied::Cache(cache_state(self.cache()?))),
        }
    }

    async fn make_change(
        &self,
        change: Change,
        recorder: &Recorder<'_>,
        now: Timestamp,
    ) -> Result<Applied, ChangeError> {
        match change {
            Change::AccountCreate {
                emails,
                phones,
                class,
                cache_scope,
            } => {
                let new = NewAccountRequest {
                    emails: &emails,
                    phones: &phones,
                    class,
                    cache_scope,
                };
                self.account_create(new, recorder, now).await
            }
            Change::AccountSuspend { account, suspended } => {
                let id = self.undeleted(&account).await?;
                let status = if suspended {
                    AccountStatus::Suspended
                } else {
                    AccountStatus::Active
                };
                set_status(recorder, id, status, now).await?;
                Ok(Applied::Done)
            }
            Change::AccountEndPlan { account } => {
                let account: AccountId = account.parse()?;
                let read = move |store: &Reader| store.mandates_of(account, MANDATES_MAX);
                let rows = reading(&self.store, read).await?;
                // A running gateway has PayPal cancel it within seconds, otherwise the next one does at its start.
                let attached = vec![recorder.part()];
                let requested = request_cancellation(self.plans()?, rows, now, attached).await?;
                if requested.is_some() {
                    recorder.set_recorded();
                }
                Ok(Applied::Done)
            }
            Change::AccountClass { account, class } => {
                let class = self.class(&class)?;
                let id = self.undeleted(&account).await?;
                set_class(recorder, id, class, now).await?;
                Ok(Applied::Done)
            }
            Change::AccountCacheScope { account, scope } => {
                let scope = read_cache_scope(&scope)?;
                let id = self.undeleted(&account).await?;
                set_cache_scope(recorder, id, scope, now).await?;
                Ok(Applied::Done)
            }
            Change::AccountExport { account } => {
                let id: AccountId = account.parse()?;
                let row = reading(&self.store, move |store| store.account(id)).await?;
                row.map(|_| Applied::Done)
                    .ok_or_else(|| AccountError::NoAccount(id).into())
            }
            Change::AccountDelete { account, forfeit } => {
                self.account_delete(account.parse()?, forfeit, recorder, now)
                    .await
            }
            Change::CachePurge { id, model } => self.purge(id, model).await,
            Change::SettingsReload {} => {
                let running = self.running()?;
                let reload = tokio::task::spawn_blocking(move || running.reload());
                Ok(Applied::Reloaded(reload.await.map_err(panicked)??))
            }
            Change::Upgrade { program } => {
                let upgrade = self.upgrade.clone();
                let upgrade = upgrade.ok_or_else(not_running)?;
                let upgraded =
                    tokio::task::spawn_blocking(move || upgrade.upgrade(program.as_deref()));
                let upgraded = upgraded.await.map_err(panicked)?;
                upgraded
                    .map(Applied::Upgraded)
                    .map_err(ChangeError::conflict)
            }
            Change::RetentionRun {} => {
                let is_elsewhere = !self.store.has_duties();
                let exported = match is_elsewhere {
                    true => None,
                    false => self.retain().await?,
                };
                if exported.is_none() {
                    // A run that does nothing is no act.
                    recorder.set_recorded();
                }
                Ok(Applied::Retained {
                    exported,
                    is_elsewhere,
                })
            }
            Change::NodeRecover { node } => self.recover_node(node).await,
            Change::CacheShow {}
            | Change::GatewayShow {}
            | Change::ProvidersShow {}
            | Change::SettingsDiff {} => self.answer(change).await,
            Change::KeyCreate {
                account,
                name,
                scopes,
                models,
                spend_max,
                spend_period,
                expires_at,
            } => {
                let spending_cap = spend_max
                    .map(|max| read_cap(&max, spend_period.as_deref()))
                    .transpose()?;
                let key = NewKey {
                    account: self.undeleted(&account).await?,
                    label: name,
                    resources: Resources::API.bits(),
                    scopes: read_scopes(&scopes)?.bits(),
                    models: self.models(&models)?,
                    spending_cap,
                    expires_at,
                    created_at: now,
                };
                let draw = |out: &mut [u8]| self.entropy.fill(out);
                let made = create_key(recorder, &self.form, key, draw).await?;
                Ok(Applied::Key {
                    id: made.id.to_string(),
                    secret: SecretText(made.secret.expose_secret().to_owned()),
                })
            }
            Change::KeyRevoke { key } => {
                let key: KeyId = key.parse()?;
                revoke_key(recorder, key, now).await?;
                Ok(Applied::Done)
            }
            Change::PaymentClose {
                payment,
                paid,
                shared_transaction: is_shared,
            } => {
                let verdict = match paid {
                    None => Resolution::NotMoved,
                    Some(hash) => Resolution::Paid {
                        transaction: hash.parse().map_err(|_| {
                            ChangeError::invalid(format!(
                                "`{hash}` is not a transaction hash; use `0x` and 64 hex digits"
                            ))
                        })?,
                        is_shared,
                    },
                };
                let books = (&self.store, self.plans()?);
                let attached = vec![recorder.part()];
                if close_payment(books, now, &payment, verdict, attached).await? {
                    recorder.set_recorded();
                }
                Ok(Applied::Done)
            }
            Change::CreditsGrant {
                account,
                amount,
                reference,
            } => {
                let credit = self.credit(&account, &amount, reference)?;
                self.undeleted(&account).await?;
                let attached = vec![recorder.part()];
                let booked = self.ledger.grant_with(credit, attached).await?;
                recorder.set_recorded();
                Ok(credited(booked))
            }
            Change::CreditsCorrect {
                account,
                amount,
                reference,
            } => {
                let credit = self.credit(&account, &amount, reference)?;
                if credit.amount > Micros::ZERO {
                    self.undeleted(&account).await?;
                }
                let attached = vec![recorder.part()];
                let booked = self.ledger.correct_with(credit, attached).await?;
                recorder.set_recorded();
                Ok(credited(booked))
            }
        }
    }

    async fn recover_node(&self, name: String) -> Result<Applied, ChangeError> {
        // A reload may have replaced the password.
        let running = self.running.as_ref().map(|running| running.settings());
        let settings = running.map_or_else(|| self.database.clone(), |it| it.store.clone());
        let clock = self.clock.clone();
        let entropy = self.entropy.clone();
        let recovery = tokio::task::spawn_blocking(move || {
            let opener = Opener {
                name: "recovery",
                clock: &clock,
                entropy: &entropy,
            };
            let nodes = database::nodes(&settings, &opener)?;
            let Some(found) = nodes.iter().find(|node| node.is_named(&name)) else {
                return Err(ChangeError::not_found(format!("there is no node `{name}`")));
            };
            if found.has_ended_cleanly() {
                return Ok(());
            }
            let by = RecoveredBy::Operator(None);
            match database::recover_node(&settings, &opener, found.node, by) {
                Err(OpenError::InUse { holder, .. }) => Err(ChangeError::conflict(format!(
                    "node `{name}` runs, as {holder}; it is recovered once that has ended"
                ))),
                recovered => Ok(recovered?),
            }
        });
        recovery.await.map_err(panicked)??;
        Ok(Applied::Done)
    }

    /// The id of an account. Refused where it is deleted: what it would get, no one could use, and the credit would be owed without end.
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

/// The element of this name, or an error that lists all of them.
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
