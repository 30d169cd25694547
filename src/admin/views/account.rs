//! Accounts.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_clock::Timestamp;
use tollgate_store::{
    AccountRow, AccountStatus, CacheScope, LoginKind, LoginRow, SubscriptionRow, SubscriptionStatus,
};

use super::Credits;

/// An account.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Account")]
pub(crate) struct AccountView {
    /// `acct_` and 32 hex digits.
    pub(crate) id: String,
    /// `active`, `suspended` or `closed`.
    pub(crate) status: &'static str,
    /// The rate class in force.
    pub(crate) class: String,
    /// Which accounts share its cached responses: `shared`, `account` or `off`.
    pub(crate) cache_scope: &'static str,
    /// The available balance in credits.
    pub(crate) available: Credits,
    /// The credits held for requests in progress.
    pub(crate) held: Credits,
    /// How far below zero the balance may be, in credits.
    pub(crate) credit_limit: Credits,
    /// RFC 3339.
    pub(crate) created_at: String,
    /// Its plan, active or ended. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<PlanView>,
    /// The e-mail addresses that sign in to it. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) emails: Option<Vec<String>>,
    /// The phone numbers that sign in to it. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phones: Option<Vec<String>>,
}

impl AccountView {
    /// An account at `now`, as in a list.
    pub(crate) fn of(row: &AccountRow, now: Timestamp) -> AccountView {
        AccountView {
            id: row.id.to_string(),
            status: status(row.status),
            class: row.class_at(now).to_string(),
            cache_scope: cache_scope(row.cache_scope),
            available: row.available.into(),
            held: row.held.into(),
            credit_limit: row.credit_limit.into(),
            created_at: row.created_at.rfc3339(),
            plan: None,
            emails: None,
            phones: None,
        }
    }

    /// Adds the plan and the logins.
    #[must_use]
    pub(crate) fn with(
        mut self,
        plan: Option<&SubscriptionRow>,
        logins: &[LoginRow],
        now: Timestamp,
    ) -> AccountView {
        let of = |kind| -> Vec<String> {
            let logins = logins.iter().filter(|login| login.kind == kind);
            logins.map(|login| login.address.to_string()).collect()
        };
        self.plan = plan.map(|row| PlanView::of(row, now));
        self.emails = Some(of(LoginKind::Email));
        self.phones = Some(of(LoginKind::Phone));
        self
    }
}

/// The plan of an account.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Plan")]
pub(crate) struct PlanView {
    /// The id of the subscription.
    pub(crate) id: String,
    /// `active`, `past due`, `canceled` or `expired`.
    pub(crate) status: &'static str,
    /// How it is paid.
    pub(crate) route: &'static str,
    /// The name of the subscription or payment there.
    pub(crate) reference: String,
    /// Whether it is charged again at its end.
    pub(crate) renews: bool,
    /// Its end, RFC 3339.
    pub(crate) until: String,
}

impl PlanView {
    fn of(row: &SubscriptionRow, now: Timestamp) -> PlanView {
        PlanView {
            id: row.id.to_string(),
            status: match row.status_at(now) {
                SubscriptionStatus::Active => "active",
                SubscriptionStatus::PastDue => "past due",
                SubscriptionStatus::Canceled => "canceled",
                _ => "expired",
            },
            route: row.route.word(),
            reference: row.reference.to_string(),
            renews: row.renews,
            until: row.period_end.rfc3339(),
        }
    }
}

fn status(status: AccountStatus) -> &'static str {
    match status {
        AccountStatus::Active => "active",
        AccountStatus::Suspended => "suspended",
        AccountStatus::Closed => "closed",
        _ => "unknown",
    }
}

fn cache_scope(scope: CacheScope) -> &'static str {
    match scope {
        CacheScope::Shared => "shared",
        CacheScope::Account => "account",
        CacheScope::Off => "off",
        _ => "unknown",
    }
}
