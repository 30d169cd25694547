//! Makes changes to the books: the one who answers the control socket, and who writes when no gateway runs.

use std::sync::Arc;

use tollgate_filter::{Clock, Entropy, Resources, Scope, Scopes};
use tollgate_identity::{
    Form, KeyId, Login, NewAccount, NewKey, create_account, create_key, revoke_key, set_class,
    set_status,
};
use tollgate_ledger::{Credit, Ledger};
use tollgate_money::{AccountId, Micros};
use tollgate_store::{AccountStatus, Store};

use super::control::{Applied, Applying, Change, Changes, SecretText};
use crate::config::Settings;

/// The class of accounts for which none is named.
const CLASS: &str = "free";

/// Changes accounts, keys and credits, each durable before it is answered and known to a running gateway at once.
pub struct Clerk {
    store: Arc<dyn Store>,
    ledger: Ledger,
    clock: Clock,
    entropy: Entropy,
    form: Form,
    classes: Vec<Arc<str>>,
    models: Vec<Arc<str>>,
    credit_limit: Micros,
}

impl Clerk {
    /// A clerk for these books, with the classes, models and terms of these settings.
    pub fn new(
        settings: &Settings,
        store: Arc<dyn Store>,
        ledger: Ledger,
        clock: Clock,
        entropy: Entropy,
    ) -> Clerk {
        Clerk {
            store,
            ledger,
            clock,
            entropy,
            form: Form::api_key(&settings.service.name),
            classes: settings
                .limits
                .classes()
                .iter()
                .map(|class| class.name.clone())
                .collect(),
            models: settings
                .catalog
                .models()
                .iter()
                .map(|model| model.id.clone())
                .collect(),
            credit_limit: settings.meter.credit_limit,
        }
    }

    async fn make(&self, change: Change) -> Result<Applied, String> {
        let now = self.clock.unix_micros();
        match change {
            Change::AccountCreate {
                emails,
                phones,
                class,
            } => self.account_create(&emails, &phones, class, now).await,
            Change::AccountSuspend { account, suspended } => {
                let status = if suspended {
                    AccountStatus::Suspended
                } else {
                    AccountStatus::Active
                };
                set_status(&*self.store, read(&account)?, status, now)
                    .await
                    .map_err(words)?;
                Ok(Applied::Done)
            }
            Change::AccountClass { account, class } => {
                let class = self.class(&class)?;
                set_class(&*self.store, read(&account)?, class, now)
                    .await
                    .map_err(words)?;
                Ok(Applied::Done)
            }
            Change::KeyCreate {
                account,
                name,
                scopes,
                models,
                expires_at,
            } => {
                let key = NewKey {
                    account: read(&account)?,
                    label: name,
                    resources: Resources::API.bits(),
                    scopes: read_scopes(&scopes)?.bits(),
                    models: self.models(&models)?,
                    expires_at,
                    created_at: now,
                };
                let made = create_key(&*self.store, &self.form, key, |out| self.entropy.fill(out))
                    .await
                    .map_err(words)?;
                Ok(Applied::Key {
                    id: made.id.to_string(),
                    secret: SecretText(made.secret.expose().to_owned()),
                })
            }
            Change::KeyRevoke { key } => {
                let key: KeyId = key.parse().map_err(words)?;
                revoke_key(&*self.store, key, now).await.map_err(words)?;
                Ok(Applied::Done)
            }
            Change::CreditsGrant {
                account,
                amount,
                reference,
            } => {
                let credit = Credit {
                    operation: self.entropy.operation_id(&self.clock),
                    account: read(&account)?,
                    amount: amount
                        .parse()
                        .map_err(words::<tollgate_money::DecimalError>)?,
                    reference: reference.into(),
                    at: now,
                };
                let booked = self.ledger.grant(credit).await.map_err(words)?;
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
        emails: &[String],
        phones: &[String],
        class: Option<String>,
        now: i64,
    ) -> Result<Applied, String> {
        let emails = emails.iter().map(|text| Login::email(text));
        let phones = phones.iter().map(|text| Login::phone(text));
        let account = NewAccount {
            logins: emails
                .chain(phones)
                .collect::<Result<_, _>>()
                .map_err(words)?,
            class: self.class(class.as_deref().unwrap_or(CLASS))?,
            credit_limit: self.credit_limit,
            created_at: now,
        };
        let id = create_account(&*self.store, account, |out| self.entropy.fill(out))
            .await
            .map_err(words)?;
        Ok(Applied::Account { id: id.to_string() })
    }

    fn class(&self, name: &str) -> Result<Arc<str>, String> {
        known(&self.classes, name, "rate class")
    }

    fn models(&self, names: &[String]) -> Result<Option<Arc<[Arc<str>]>>, String> {
        if names.is_empty() {
            return Ok(None);
        }
        names
            .iter()
            .map(|name| known(&self.models, name, "model"))
            .collect::<Result<Arc<[_]>, _>>()
            .map(Some)
    }
}

impl Changes for Clerk {
    fn apply(&self, change: Change) -> Applying<'_> {
        Box::pin(self.make(change))
    }
}

/// The one of this name, or a sentence that names them all.
fn known(all: &[Arc<str>], name: &str, what: &str) -> Result<Arc<str>, String> {
    all.iter()
        .find(|one| ***one == *name)
        .cloned()
        .ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|one| &**one).collect();
            format!(
                "there is no {what} `{name}` in the settings; there is {}",
                crate::config::words(&names)
            )
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
                crate::config::words(&names)
            )
        })?;
        Ok(scopes.with(scope))
    })
}

fn read(account: &str) -> Result<AccountId, String> {
    account.parse().map_err(words::<tollgate_money::IdError>)
}

/// An error and its causes in one sentence.
fn words<E: std::error::Error>(error: E) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
