//! Accounts.

use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate_filter::ApiError;
use tollgate_identity::{
    AccountError, Login, NewAccount, create_account, set_cache_scope, set_class, set_status,
};
use tollgate_money::AccountId;
use tollgate_purchase::mandates::request_cancellation;
use tollgate_store::{AccountStatus, CacheScope, Reader, reading};

use super::operation::{Done, Operation, Run};
use crate::admin::api::call::{Call, LIMIT, cursor, invalid, no_account};
use crate::admin::api::endpoint::{Endpoint, Route, schema};
use crate::admin::api::state::ApiState;
use crate::admin::changes::ChangeError;
use crate::admin::views::{AccountExport, AccountView};
use crate::config::AdminRole;

/// Maximum number of mandates read per account.
const MANDATES_MAX: usize = 64;

/// The default class of accounts.
const DEFAULT_CLASS: &str = "free";

/// Maximum number of ledger entries in an export over the admin API.
const ENTRIES_MAX: usize = 100_000;

/// Creates an account.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Create {
    /// E-mail addresses for sign-in.
    pub(crate) emails: Vec<String>,
    /// Phone numbers for sign-in, in E.164 form.
    pub(crate) phones: Vec<String>,
    /// The account's rate class; `free` by default.
    pub(crate) class: Option<String>,
    /// Who shares the account's stored answers: `shared` (the default), `account` or `off`.
    #[serde(default)]
    pub(crate) cache_scope: Option<String>,
}

/// A new account.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Created {
    /// Its id.
    pub(crate) id: String,
}

impl Operation for Create {
    type Output = Created;
    const NAME: &'static str = "account_create";
    const RESULT: &'static str = "account";

    async fn run(self, run: &Run<'_>) -> Result<Created, ChangeError> {
        let service = run.service;
        let scope = self.cache_scope.as_deref().map(read_cache_scope);
        let scope = scope.transpose()?;
        let emails = self.emails.iter().map(|text| Login::email(text));
        let phones = self.phones.iter().map(|text| Login::phone(text));
        let account = NewAccount {
            logins: emails.chain(phones).collect::<Result<_, _>>()?,
            class: service.class(self.class.as_deref().unwrap_or(DEFAULT_CLASS))?,
            credit_limit: service.credit_limit,
            cache_scope: scope.unwrap_or(CacheScope::Shared),
            created_at: run.now,
        };
        let draw = |out: &mut [u8]| service.entropy.fill(out);
        let id = create_account(run.recorder, account, draw).await?;
        Ok(Created { id: id.to_string() })
    }

    fn created(output: &Created) -> Option<&str> {
        Some(&output.id)
    }
}

/// An account to create.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct CreateAccountRequest {
    /// E-mail addresses for sign-in.
    emails: Vec<String>,
    /// Phone numbers for sign-in, in E.164 form.
    phones: Vec<String>,
    /// The rate class; `free` by default.
    class: Option<String>,
    /// Which accounts share its cached responses: `shared` (the default), `account` or `off`.
    cache_scope: Option<String>,
}

impl Endpoint for Create {
    type Answer = AccountView;
    const ROUTE: Route = Route::change(
        "createAccount",
        Method::POST,
        "/accounts",
        "Create an account.",
    )
    .body(schema!(CreateAccountRequest))
    .status(StatusCode::CREATED);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<AccountView, ApiError> {
        let new: CreateAccountRequest = call.message()?;
        let create = Create {
            emails: new.emails,
            phones: new.phones,
            class: new.class,
            cache_scope: new.cache_scope,
        };
        let created = api.perform(create, call).await?;
        api.account(&created.id).await
    }
}

/// Suspends an account, or ends a suspension.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suspend {
    /// The account's id.
    pub(crate) account: String,
    /// `true` suspends the account; `false` ends the suspension.
    pub(crate) suspended: bool,
}

impl Operation for Suspend {
    type Output = Done;
    const NAME: &'static str = "account_suspend";
    const SUBJECT: Option<&'static str> = Some("account");

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let id = run.service.undeleted(&self.account).await?;
        let status = match self.suspended {
            true => AccountStatus::Suspended,
            false => AccountStatus::Active,
        };
        set_status(run.recorder, id, status, run.now).await?;
        Ok(Done {})
    }
}

/// Whether an account may be used.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StatusRequest {
    status: StatusWord,
}

/// `active` or `suspended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum StatusWord {
    Active,
    Suspended,
}

impl Endpoint for Suspend {
    type Answer = AccountView;
    const ROUTE: Route = Route::change(
        "setAccountStatus",
        Method::PUT,
        "/accounts/{account}/status",
        "Suspend an account, or end its suspension. All its credentials are refused from the next request on.",
    )
    .body(schema!(StatusRequest));

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<AccountView, ApiError> {
        let wanted: StatusRequest = call.message()?;
        let suspend = Suspend {
            account: call.name().to_owned(),
            suspended: wanted.status == StatusWord::Suspended,
        };
        api.perform(suspend, call).await?;
        api.account(call.name()).await
    }
}

/// Cancels the monthly charge for an account's plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndPlan {
    /// The account's id.
    pub(crate) account: String,
}

impl Operation for EndPlan {
    type Output = Done;
    const NAME: &'static str = "account_end_plan";
    const SUBJECT: Option<&'static str> = Some("account");

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let account: AccountId = self.account.parse()?;
        let read = move |store: &Reader| store.mandates_of(account, MANDATES_MAX);
        let rows = reading(&run.service.store, read).await?;
        // A running gateway requests the cancellation at PayPal within seconds. Otherwise the next gateway requests the cancellation at the
        // start.
        let attached = vec![run.recorder.part()];
        let plans = run.service.plans()?;
        if request_cancellation(plans, rows, run.now, attached)
            .await?
            .is_some()
        {
            run.recorder.set_recorded();
        }
        Ok(Done {})
    }
}

/// A plan whose charges end.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct PlanEnded {
    /// The account.
    account: String,
    /// `ended`.
    plan: &'static str,
}

impl Endpoint for EndPlan {
    type Answer = PlanEnded;
    const ROUTE: Route = Route::change(
        "endAccountPlan",
        Method::DELETE,
        "/accounts/{account}/plan",
        "Have the monthly charge for the plan of an account cancelled, for good.",
    );

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<PlanEnded, ApiError> {
        let account = api.find(call.name()).await?.id.to_string();
        let end = EndPlan {
            account: account.clone(),
        };
        api.perform(end, call).await?;
        Ok(PlanEnded {
            account,
            plan: "ended",
        })
    }
}

/// Changes the rate class of an account.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Class {
    /// The account's id.
    pub(crate) account: String,
    /// The class.
    pub(crate) class: String,
}

impl Operation for Class {
    type Output = Done;
    const NAME: &'static str = "account_class";
    const SUBJECT: Option<&'static str> = Some("account");

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let class = run.service.class(&self.class)?;
        let id = run.service.undeleted(&self.account).await?;
        set_class(run.recorder, id, class, run.now).await?;
        Ok(Done {})
    }
}

/// A rate class.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClassRequest {
    /// Its name in the settings.
    class: String,
}

impl Endpoint for Class {
    type Answer = AccountView;
    const ROUTE: Route = Route::change(
        "setAccountClass",
        Method::PUT,
        "/accounts/{account}/class",
        "Change the rate class of an account.",
    )
    .body(schema!(ClassRequest));

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<AccountView, ApiError> {
        let wanted: ClassRequest = call.message()?;
        let class = Class {
            account: call.name().to_owned(),
            class: wanted.class,
        };
        api.perform(class, call).await?;
        api.account(call.name()).await
    }
}

/// Sets who shares an account's stored answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetCacheScope {
    /// The account's id.
    pub(crate) account: String,
    /// `shared`, `account` or `off`.
    pub(crate) scope: String,
}

impl Operation for SetCacheScope {
    type Output = Done;
    const NAME: &'static str = "account_cache_scope";
    const SUBJECT: Option<&'static str> = Some("account");

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let scope = read_cache_scope(&self.scope)?;
        let id = run.service.undeleted(&self.account).await?;
        set_cache_scope(run.recorder, id, scope, run.now).await?;
        Ok(Done {})
    }
}

fn read_cache_scope(word: &str) -> Result<CacheScope, ChangeError> {
    match word {
        "shared" => Ok(CacheScope::Shared),
        "account" => Ok(CacheScope::Account),
        "off" => Ok(CacheScope::Off),
        other => Err(ChangeError::invalid(format!(
            "there is no cache scope `{other}`; use `shared`, `account` or `off`"
        ))),
    }
}

/// A cache scope.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CacheScopeRequest {
    /// `shared`, `account` or `off`.
    cache_scope: String,
}

impl Endpoint for SetCacheScope {
    type Answer = AccountView;
    const ROUTE: Route = Route::change(
        "setAccountCacheScope",
        Method::PUT,
        "/accounts/{account}/cache-scope",
        "Set which accounts share the cached responses of an account.",
    )
    .body(schema!(CacheScopeRequest));

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<AccountView, ApiError> {
        let wanted: CacheScopeRequest = call.message()?;
        let set = SetCacheScope {
            account: call.name().to_owned(),
            scope: wanted.cache_scope,
        };
        api.perform(set, call).await?;
        api.account(call.name()).await
    }
}

/// Records an export of the account's data. The account is unchanged.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Export {
    /// The account's id.
    pub(crate) account: String,
}

impl Operation for Export {
    type Output = Done;
    const NAME: &'static str = "account_export";
    const SUBJECT: Option<&'static str> = Some("account");

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let id: AccountId = self.account.parse()?;
        let row = reading(&run.service.store, move |store| store.account(id)).await?;
        row.map(|_| Done {})
            .ok_or_else(|| AccountError::NoAccount(id).into())
    }
}

impl Endpoint for Export {
    type Answer = AccountExport;
    const ROUTE: Route = Route::read(
        "exportAccount",
        "/accounts/{account}/export",
        "All data of an account, for its owner: keys without secrets, ledger entries, usage, purchases, apps and sessions. Of more than \
         100,000 entries the newest; `tollgate account export` has all. An export is recorded in the audit log.",
    )
    .role(AdminRole::Operate);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<AccountExport, ApiError> {
        let (id, now) = (api.find(call.name()).await?.id, api.deps.clock.now());
        // The record precedes the read: every export has a record.
        let account = id.to_string();
        api.perform(Export { account }, call).await?;
        let read = move |store: &Reader| AccountExport::read(store, id, now, ENTRIES_MAX);
        let exported = api.read(read).await?;
        exported.ok_or_else(|| no_account(id))
    }
}

/// Lists accounts, or finds an account by a login.
pub(in crate::admin) struct List;

/// A page of accounts.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct AccountPage {
    data: Vec<AccountView>,
    /// The cursor of the next page; null on the last.
    next: Option<String>,
}

impl Endpoint for List {
    type Answer = AccountPage;
    const ROUTE: Route = Route::read(
        "listAccounts",
        "/accounts",
        "List accounts in the order of their ids, or find one by a login.",
    )
    .query(&[
        LIMIT,
        ("after", "The `next` of the page before."),
        (
            "email",
            "Only the account that this e-mail address signs in to.",
        ),
        (
            "phone",
            "Only the account that this phone number signs in to.",
        ),
    ]);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<AccountPage, ApiError> {
        let limit = call.limit()?;
        let login = match (call.parameter("email"), call.parameter("phone")) {
            (None, None) => None,
            (Some(email), None) => Some(Login::email(email)),
            (None, Some(phone)) => Some(Login::phone(phone)),
            (Some(_), Some(_)) => return Err(invalid("Name `email` or `phone`, not both.")),
        };
        let login = login.transpose().map_err(ChangeError::from)?;
        let after: Option<AccountId> = match call.parameter("after") {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| cursor("after"))?),
        };
        let find = move |store: &Reader| match login {
            None => store.accounts_after(after, limit + 1),
            Some(login) => {
                let found = login.find(|address| store.account_by_login(login.kind(), address))?;
                Ok(found.into_iter().collect())
            }
        };
        let mut rows = api.read(find).await?;
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| has_more);
        let now = api.deps.clock.now();
        Ok(AccountPage {
            next: last.map(|row| row.id.to_string()),
            data: rows.iter().map(|row| AccountView::of(row, now)).collect(),
        })
    }
}

/// Shows an account.
pub(in crate::admin) struct Show;

impl Endpoint for Show {
    type Answer = AccountView;
    const ROUTE: Route = Route::read(
        "getAccount",
        "/accounts/{account}",
        "Show an account with its plan and logins.",
    );

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<AccountView, ApiError> {
        api.account(call.name()).await
    }
}
