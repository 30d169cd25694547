//! The endpoints of the admin API, from which requests are matched and the OpenAPI document is made.

use http::{Method, StatusCode};
use schemars::{Schema, SchemaGenerator};

use super::messages::{
    AccountPage, AuditLogPage, BalancePage, Booked, CacheScopeRequest, ClassRequest,
    ClosePaymentRequest, Closed, CreateAccountRequest, CreateKeyRequest, CreatedKey,
    CreditsRequest, Differences, FindKeyRequest, Findings, FoundKey, KeyList, NodeList,
    PaymentList, PlanEnded, Providers, Purged, Retained, RevokedKey, StatusRequest, UsageList,
};
use crate::admin::control::CacheState;
use crate::admin::running::ReloadedSettings;
use crate::admin::views::{AccountExport, AccountView, AuditReportView};
use crate::config::AdminRole;

/// The path that all endpoints begin with.
pub(super) const BASE: &str = "/admin/v1";

/// What an endpoint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    ListAccounts,
    CreateAccount,
    ShowAccount,
    SetStatus,
    SetClass,
    SetCacheScope,
    ExportAccount,
    DeleteAccount,
    EndPlan,
    ListKeys,
    CreateKey,
    FindKey,
    RevokeKey,
    ShowCredits,
    BookCredits,
    ShowUsage,
    ListPayments,
    ClosePayment,
    ShowProviders,
    ShowCache,
    PurgeCache,
    SettingsDifferences,
    ReloadSettings,
    RunRetention,
    ListNodes,
    RecoverNode,
    RunAudit,
    RunDoctor,
    ListAuditLog,
}

/// Makes the schema of a message.
type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// One endpoint.
pub(super) struct Endpoint {
    pub(super) operation: Operation,
    /// Its name in the document.
    pub(super) id: &'static str,
    pub(super) method: Method,
    /// The path after [`BASE`]; `{NAME}` is any segment.
    pub(super) path: &'static str,
    /// The role that it needs.
    pub(super) role: AdminRole,
    pub(super) summary: &'static str,
    /// Query parameters with their descriptions.
    pub(super) query: &'static [(&'static str, &'static str)],
    /// Whether the field `Idempotency-Key` is required.
    pub(super) has_key: bool,
    pub(super) body: Option<MakeSchema>,
    pub(super) status: StatusCode,
    pub(super) answer: MakeSchema,
}

impl Endpoint {
    /// The values of the path's names, if it is this path.
    pub(super) fn matches<'p>(&self, path: &'p str) -> Option<Vec<&'p str>> {
        let (mut names, mut given) = (self.path.split('/'), path.split('/'));
        let mut values = Vec::new();
        loop {
            match (names.next(), given.next()) {
                (None, None) => return Some(values),
                (Some(name), Some(value)) if name.starts_with('{') && !value.is_empty() => {
                    values.push(value);
                }
                (Some(name), Some(value)) if name == value => {}
                _ => return None,
            }
        }
    }

    /// The names of the path.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let segments = self.path.split('/');
        segments.filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }
}

macro_rules! schema {
    ($message:ty) => {
        |generator| generator.subschema_for::<$message>()
    };
}

const LIMIT: (&str, &str) = (
    "limit",
    "Maximum number of elements, 1 to 1000; 100 by default.",
);

/// Every endpoint, in the order of the document.
pub(super) fn endpoints() -> Vec<Endpoint> {
    let read = |operation, id, path, summary, query, answer: MakeSchema| Endpoint {
        operation,
        id,
        method: Method::GET,
        path,
        role: AdminRole::Read,
        summary,
        query,
        has_key: false,
        body: None,
        status: StatusCode::OK,
        answer,
    };
    let change = |operation, id, method, path, summary, body, answer: MakeSchema| Endpoint {
        operation,
        id,
        method,
        path,
        role: AdminRole::Operate,
        summary,
        query: &[],
        has_key: false,
        body,
        status: StatusCode::OK,
        answer,
    };
    use Operation as Op;
    vec![
        read(
            Op::ListAccounts,
            "listAccounts",
            "/accounts",
            "List accounts in the order of their ids, or find one by a login.",
            &[
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
            ],
            schema!(AccountPage),
        ),
        Endpoint {
            status: StatusCode::CREATED,
            ..change(
                Op::CreateAccount,
                "createAccount",
                Method::POST,
                "/accounts",
                "Create an account.",
                Some(schema!(CreateAccountRequest)),
                schema!(AccountView),
            )
        },
        read(
            Op::ShowAccount,
            "getAccount",
            "/accounts/{account}",
            "Show an account with its plan and logins.",
            &[],
            schema!(AccountView),
        ),
        change(
            Op::SetStatus,
            "setAccountStatus",
            Method::PUT,
            "/accounts/{account}/status",
            "Suspend an account, or end its suspension. All its credentials are refused from the next request on.",
            Some(schema!(StatusRequest)),
            schema!(AccountView),
        ),
        change(
            Op::SetClass,
            "setAccountClass",
            Method::PUT,
            "/accounts/{account}/class",
            "Change the rate class of an account.",
            Some(schema!(ClassRequest)),
            schema!(AccountView),
        ),
        change(
            Op::SetCacheScope,
            "setAccountCacheScope",
            Method::PUT,
            "/accounts/{account}/cache-scope",
            "Set which accounts share the cached responses of an account.",
            Some(schema!(CacheScopeRequest)),
            schema!(AccountView),
        ),
        Endpoint {
            role: AdminRole::Operate,
            ..read(
                Op::ExportAccount,
                "exportAccount",
                "/accounts/{account}/export",
                "All data of an account, for its owner: keys without secrets, ledger entries, usage, purchases, apps and sessions. Of more than \
                 100,000 entries the newest; `tollgate account export` has all. An export is recorded in the audit log.",
                &[],
                schema!(AccountExport),
            )
        },
        Endpoint {
            query: &[("forfeit", "`true`: the credit that it has is forfeited.")],
            ..change(
                Op::DeleteAccount,
                "deleteAccount",
                Method::DELETE,
                "/accounts/{account}",
                "Delete an account for good: its credentials and sessions end, addresses and names are removed. Its ledger entries and payments \
                 stay, under its id alone. Refused with 409 while it has credit, requests, or a subscription that may be charged.",
                None,
                schema!(AccountView),
            )
        },
        change(
            Op::EndPlan,
            "endAccountPlan",
            Method::DELETE,
            "/accounts/{account}/plan",
            "Have the monthly charge for the plan of an account cancelled, for good.",
            None,
            schema!(PlanEnded),
        ),
        read(
            Op::ListKeys,
            "listKeys",
            "/accounts/{account}/keys",
            "List the API keys of an account, without their secrets, oldest first.",
            &[],
            schema!(KeyList),
        ),
        Endpoint {
            status: StatusCode::CREATED,
            ..change(
                Op::CreateKey,
                "createKey",
                Method::POST,
                "/accounts/{account}/keys",
                "Create an API key. The answer has its secret, which is shown this once.",
                Some(schema!(CreateKeyRequest)),
                schema!(CreatedKey),
            )
        },
        Endpoint {
            role: AdminRole::Read,
            ..change(
                Op::FindKey,
                "findKey",
                Method::POST,
                "/keys/find",
                "Find an API key by its secret, for instance one that has leaked.",
                Some(schema!(FindKeyRequest)),
                schema!(FoundKey),
            )
        },
        change(
            Op::RevokeKey,
            "revokeKey",
            Method::DELETE,
            "/keys/{key}",
            "Revoke an API key: it is refused from the next request on. Idempotent.",
            None,
            schema!(RevokedKey),
        ),
        read(
            Op::ShowCredits,
            "getCredits",
            "/accounts/{account}/credits",
            "Show the balance of an account, and a page of the ledger entries that changed it, newest first.",
            &[LIMIT, ("before", "The `next` of the page before.")],
            schema!(BalancePage),
        ),
        Endpoint {
            has_key: true,
            ..change(
                Op::BookCredits,
                "bookCredits",
                Method::POST,
                "/accounts/{account}/credits",
                "Grant credits, or correct a balance. The `Idempotency-Key` is the reference in the ledger: a repetition with the same amount \
                 changes nothing, one with another amount is refused with 409.",
                Some(schema!(CreditsRequest)),
                schema!(Booked),
            )
        },
        read(
            Op::ShowUsage,
            "getUsage",
            "/accounts/{account}/usage",
            "Show the usage of an account by day (UTC) and model; of the last 30 days by default.",
            &[
                ("from", "The first day, such as 2026-01-31."),
                ("to", "The last day."),
            ],
            schema!(UsageList),
        ),
        read(
            Op::ListPayments,
            "listPayments",
            "/payments",
            "List the payments by x402 whose outcome is not proved, oldest first.",
            &[],
            schema!(PaymentList),
        ),
        change(
            Op::ClosePayment,
            "closePayment",
            Method::POST,
            "/payments/close",
            "Record the outcome of such a payment as a block explorer shows it.",
            Some(schema!(ClosePaymentRequest)),
            schema!(Closed),
        ),
        Endpoint {
            role: AdminRole::Monitor,
            ..read(
                Op::ShowProviders,
                "listProviders",
                "/providers",
                "Show the health of the model providers.",
                &[],
                schema!(Providers),
            )
        },
        read(
            Op::ShowCache,
            "getCache",
            "/cache",
            "Show the size of the response cache and its counters since the start.",
            &[],
            schema!(CacheState),
        ),
        Endpoint {
            query: &[
                ("id", "Remove one response: its `cache_entry_id`."),
                ("model", "Remove the responses of a model."),
                ("all", "`true`: remove all responses."),
            ],
            ..change(
                Op::PurgeCache,
                "purgeCache",
                Method::DELETE,
                "/cache",
                "Remove cached responses. One parameter is required.",
                None,
                schema!(Purged),
            )
        },
        read(
            Op::SettingsDifferences,
            "listSettingsDifferences",
            "/settings/differences",
            "Compare the settings file with the settings in force.",
            &[],
            schema!(Differences),
        ),
        change(
            Op::ReloadSettings,
            "reloadSettings",
            Method::POST,
            "/settings/reload",
            "Read the settings file again and put it in force: all of it, or nothing and an error.",
            None,
            schema!(ReloadedSettings),
        ),
        change(
            Op::RunRetention,
            "runRetention",
            Method::POST,
            "/retention",
            "Export old commits of the journal to one file, and remove them; repeat it until `exported` is missing. Which are old enough says \
             `store.keep_months`. It may take some minutes.",
            None,
            schema!(Retained),
        ),
        read(
            Op::ListNodes,
            "listNodes",
            "/nodes",
            "List the gateways that work on the PostgreSQL database, and what ended ones have left.",
            &[],
            schema!(NodeList),
        ),
        change(
            Op::RecoverNode,
            "recoverNode",
            Method::POST,
            "/nodes/{node}/recover",
            "Return the holds and the credit of a node whose process has ended, by its name or number. Refused with 409 while it runs.",
            None,
            schema!(NodeList),
        ),
        change(
            Op::RunAudit,
            "runAudit",
            Method::POST,
            "/audit",
            "Verify the ledger: journal, balances and holds. Nothing is changed. It takes a minute for some millions of entries, and one runs at \
             a time: another is refused with 409.",
            None,
            schema!(AuditReportView),
        ),
        change(
            Op::RunDoctor,
            "runDoctor",
            Method::POST,
            "/doctor",
            "Check the machine of this gateway, its database, and the parties that the settings in force name. No settings, no books and no money \
             are touched. It takes some seconds, and one runs at a time: another is refused with 409.",
            None,
            schema!(Findings),
        ),
        read(
            Op::ListAuditLog,
            "listAuditLog",
            "/audit-log",
            "List what operators have changed, newest first.",
            &[
                LIMIT,
                ("before", "The `next` of the page before."),
                ("actor", "Only the acts of one actor, such as `token NAME`."),
                ("subject", "Only the acts on one account, key or payment."),
            ],
            schema!(AuditLogPage),
        ),
    ]
}
