//! The admin service: changes to accounts, keys and credits, for the control socket and for commands while no gateway runs.

use std::sync::Arc;

use secrecy::ExposeSecret;
use tollgate_cache::{Cache, Lookup, Purge, Removal, Storing};
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_filter::{NoCacheEntryId, Resources, Scope, Scopes};
use tollgate_identity::{
    Form, KeyId, Login, NewAccount, NewKey, create_account, create_key, revoke_key,
    set_cache_scope, set_class, set_status,
};
use tollgate_ledger::{Credit, Ledger};
use tollgate_meter::MeterSettings;
use tollgate_money::{AccountId, CapPeriod, Micros, OperationId, SpendingCap};
use tollgate_pay::x402::{Resolution, close_payment};
use tollgate_purchase::mandates::request_cancellation;
use tollgate_purchase::plan::Plans;
use tollgate_rate_limit::Limits;
use tollgate_store::{AccountStatus, CacheScope, Store};

use super::control::{Applied, ApplyFuture, CacheState, Change, Changes, SecretText};
use super::{JsonSource, RunningSettings, Upgrade};
use crate::config::Settings;
use crate::telemetry::chain;

/// Maximum number of an account's mandates that are read.
const MANDATES_MAX: usize = 64;

/// The default class of accounts.
const DEFAULT_CLASS: &str = "free";

/// Changes accounts, keys and credits, each durable before the response and visible to a running gateway at once.
pub struct AdminService {
    store: Arc<dyn Store>,
    ledger: Ledger,
    clock: Clock,
    entropy: Entropy,
    form: Form,
    classes: Vec<Arc<str>>,
    models: Vec<Arc<str>>,
    credit_limit: Micros,
    /// `None` without the section `[plan]`.
    plans: Option<Plans>,
    /// `None` while no gateway runs.
    running: Option<Arc<dyn RunningSettings>>,
    /// `None` while no gateway runs.
    upgrade: Option<Arc<dyn Upgrade>>,
    /// `None` while no gateway runs.
    cache: Option<Arc<Cache>>,
    /// `None` while no gateway runs.
    providers: Option<JsonSource>,
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
        let limits: Limits = settings.sections.find().unwrap_or_default();
        let meter: MeterSettings = settings.sections.find().unwrap_or_default();
        AdminService {
            plans,
            store,
            ledger,
            clock,
            entropy,
            form: Form::api_key(&settings.service.name),
            classes: limits
                .classes()
                .iter()
                .map(|class| class.name.clone())
                .collect(),
            models: model_ids(settings),
            credit_limit: meter.credit_limit,
            running: None,
            upgrade: None,
            cache: None,
            providers: None,
        }
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

    async fn apply_change(&self, change: Change) -> Result<Applied, String> {
        let now = self.clock.now();
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
                self.account_create(new, now).await
            }
            Change::AccountSuspend { account, suspended } => {
                let status = if suspended {
                    AccountStatus::Suspended
                } else {
                    AccountStatus::Active
                };
                set_status(&*self.store, parse_account(&account)?, status, now)
                    .await
                    .map_err(error_text)?;
                Ok(Applied::Done)
            }
            Change::AccountEndPlan { account } => {
                let rows = self
                    .store
                    .mandates_of(parse_account(&account)?, MANDATES_MAX);
                // A running gateway has PayPal cancel it within seconds, otherwise the next one does at its start.
                request_cancellation(self.plans()?, rows.map_err(error_text)?, now)
                    .await
                    .map_err(error_text)?;
                Ok(Applied::Done)
            }
            Change::AccountClass { account, class } => {
                let class = self.class(&class)?;
                set_class(&*self.store, parse_account(&account)?, class, now)
                    .await
                    .map_err(error_text)?;
                Ok(Applied::Done)
            }
            Change::AccountCacheScope { account, scope } => {
                let scope = read_cache_scope(&scope)?;
                set_cache_scope(&*self.store, parse_account(&account)?, scope, now)
                    .await
                    .map_err(error_text)?;
                Ok(Applied::Done)
            }
            Change::CachePurge { id, model } => self.purge(id, model),
            Change::ProvidersShow {} => {
                let providers = self.providers.as_ref();
                let providers = providers.ok_or("no gateway runs on this database")?();
                Ok(Applied::Providers { providers })
            }
            Change::SettingsReload {} => {
                let running = self.running()?;
                let reload = tokio::task::spawn_blocking(move || running.reload());
                let reloaded = reload.await.map_err(error_text)?;
                reloaded.map(Applied::Reloaded)
            }
            Change::Upgrade { program } => {
                let upgrade = self.upgrade.clone();
                let upgrade = upgrade.ok_or("no gateway runs on this database")?;
                let upgraded =
                    tokio::task::spawn_blocking(move || upgrade.upgrade(program.as_deref()));
                upgraded.await.map_err(error_text)?.map(Applied::Upgraded)
            }
            Change::SettingsDiff {} => {
                let running = self.running()?;
                let check = tokio::task::spawn_blocking(move || running.differences());
                let differences = check.await.map_err(error_text)??;
                Ok(Applied::Differences { differences })
            }
            Change::CacheShow {} => Ok(Applied::Cache(cache_state(self.cache()?))),
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
                    account: parse_account(&account)?,
                    label: name,
                    resources: Resources::API.bits(),
                    scopes: read_scopes(&scopes)?.bits(),
                    models: self.models(&models)?,
                    spending_cap,
                    expires_at,
                    created_at: now,
                };
                let made = create_key(&*self.store, &self.form, key, |out| self.entropy.fill(out))
                    .await
                    .map_err(error_text)?;
                Ok(Applied::Key {
                    id: made.id.to_string(),
                    secret: SecretText(made.secret.expose_secret().to_owned()),
                })
            }
            Change::KeyRevoke { key } => {
                let key: KeyId = key.parse().map_err(error_text)?;
                revoke_key(&*self.store, key, now)
                    .await
                    .map_err(error_text)?;
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
                            format!(
                                "`{hash}` is not a transaction hash; use `0x` and 64 hex digits"
                            )
                        })?,
                        is_shared,
                    },
                };
                let books = (&self.store, self.plans()?);
                let closed = close_payment(books, now, &payment, verdict).await;
                closed.map(|()| Applied::Done).map_err(error_text)
            }
            Change::CreditsGrant {
                account,
                amount,
                reference,
            } => {
                let credit = Credit {
                    operation: OperationId::generate(self.clock.now(), &self.entropy),
                    account: parse_account(&account)?,
                    amount: amount
                        .parse()
                        .map_err(error_text::<tollgate_money::DecimalError>)?,
                    reference: reference.into(),
                    at: self.clock.now(),
                };
                let booked = self.ledger.grant(credit).await.map_err(error_text)?;
                Ok(Applied::Credits {
                    operation: booked.operation.to_string(),
                    repeated: booked.repeated,
                    available: booked.available.to_string(),
                })
            }
        }
    }

    async fn account_create(
        &self,
        new: NewAccountRequest<'_>,
        now: Timestamp,
    ) -> Result<Applied, String> {
        let NewAccountRequest {
            class, cache_scope, ..
        } = new;
        let scope = cache_scope
            .map(|scope| read_cache_scope(&scope))
            .transpose()?;
        let emails = new.emails.iter().map(|text| Login::email(text));
        let phones = new.phones.iter().map(|text| Login::phone(text));
        let account = NewAccount {
            logins: emails
                .chain(phones)
                .collect::<Result<_, _>>()
                .map_err(error_text)?,
            class: self.class(class.as_deref().unwrap_or(DEFAULT_CLASS))?,
            credit_limit: self.credit_limit,
            cache_scope: scope.unwrap_or(CacheScope::Shared),
            created_at: now,
        };
        let id = create_account(&*self.store, account, |out| self.entropy.fill(out))
            .await
            .map_err(error_text)?;
        Ok(Applied::Account { id: id.to_string() })
    }

    fn purge(&self, id: Option<String>, model: Option<String>) -> Result<Applied, String> {
        let cache = self.cache()?;
        let what = match (id, model) {
            (Some(id), None) => Purge::Entry(id.parse().map_err(error_text::<NoCacheEntryId>)?),
            (None, Some(model)) => {
                Purge::Model(find_named(&self.models_on_sale(), &model, "model")?)
            }
            (None, None) => Purge::All,
            (Some(_), Some(_)) => return Err("name an entry or a model, not both".to_owned()),
        };
        let removed = cache.purge(&what);
        tracing::info!(?what, removed, "purged cache entries");
        Ok(Applied::Purged { removed })
    }

    fn plans(&self) -> Result<&Plans, String> {
        let none = || "this gateway has no section `[plan]`".to_owned();
        self.plans.as_ref().ok_or_else(none)
    }

    fn cache(&self) -> Result<&Cache, String> {
        let none = || "no gateway runs on this database, and the cache exists only in its memory";
        self.cache.as_deref().ok_or_else(|| none().to_owned())
    }

    fn running(&self) -> Result<Arc<dyn RunningSettings>, String> {
        let none =
            || "no gateway runs on this database; its next start reads the settings".to_owned();
        self.running.clone().ok_or_else(none)
    }

    /// The models of the settings in force.
    fn models_on_sale(&self) -> Vec<Arc<str>> {
        match &self.running {
            Some(running) => model_ids(&running.settings()),
            None => self.models.clone(),
        }
    }

    fn class(&self, name: &str) -> Result<Arc<str>, String> {
        find_named(&self.classes, name, "rate class")
    }

    fn models(&self, names: &[String]) -> Result<Option<Arc<[Arc<str>]>>, String> {
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
    fn apply(&self, change: Change) -> ApplyFuture<'_> {
        Box::pin(self.apply_change(change))
    }
}

/// A request to create an account.
struct NewAccountRequest<'a> {
    emails: &'a [String],
    phones: &'a [String],
    class: Option<String>,
    cache_scope: Option<String>,
}

fn cache_state(cache: &Cache) -> CacheState {
    let totals = cache.totals();
    let counters = cache.counters();
    CacheState {
        entries: totals.entries,
        bytes: totals.bytes,
        bytes_max: totals.bytes_max,
        waiting: totals.waiting,
        hits: counters.lookups.get(Lookup::Hit),
        misses: counters.lookups.get(Lookup::Miss),
        stored: counters.stores.get(Storing::Stored),
        evicted: counters.removals.get(Removal::Evicted),
    }
}

fn read_cache_scope(word: &str) -> Result<CacheScope, String> {
    match word {
        "shared" => Ok(CacheScope::Shared),
        "account" => Ok(CacheScope::Account),
        "off" => Ok(CacheScope::Off),
        other => Err(format!(
            "there is no cache scope `{other}`; use `shared`, `account` or `off`"
        )),
    }
}

fn model_ids(settings: &Settings) -> Vec<Arc<str>> {
    let models = settings.catalog.models().iter();
    models.map(|model| model.id.clone()).collect()
}

/// The element of this name, or an error that lists all of them.
fn find_named(all: &[Arc<str>], name: &str, what: &str) -> Result<Arc<str>, String> {
    all.iter()
        .find(|one| ***one == *name)
        .cloned()
        .ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|one| &**one).collect();
            format!(
                "there is no {what} `{name}` in the settings; there is {}",
                tollgate_filter::settings::words(&names)
            )
        })
}

fn read_cap(max: &str, period: Option<&str>) -> Result<SpendingCap, String> {
    Ok(SpendingCap {
        max: max
            .parse()
            .map_err(error_text::<tollgate_money::DecimalError>)?,
        period: match period {
            None | Some("total") => CapPeriod::Total,
            Some("month") => CapPeriod::Month,
            Some(other) => {
                return Err(format!(
                    "`{other}` is not a period of a spending cap; use total or month"
                ));
            }
        },
    })
}

fn read_scopes(names: &[String]) -> Result<Scopes, String> {
    if names.is_empty() {
        return Ok(Scopes::API);
    }
    names.iter().try_fold(Scopes::NONE, |scopes, name| {
        let scope = Scope::named(name).ok_or_else(|| {
            let names: Vec<&str> = Scope::ALL.into_iter().map(Scope::name).collect();
            format!(
                "there is no scope `{name}`; use {}",
                tollgate_filter::settings::words(&names)
            )
        })?;
        Ok(scopes.with(scope))
    })
}

fn parse_account(account: &str) -> Result<AccountId, String> {
    account
        .parse()
        .map_err(error_text::<tollgate_money::IdError>)
}

fn error_text<E: std::error::Error>(error: E) -> String {
    chain(&error)
}
