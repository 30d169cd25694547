//! Requests and answers of the admin API. Objects that operators send are closed: an unknown member is refused.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admin::control::ExportedMonth;
use crate::admin::views::{
    AccountView, AuditRecordView, BalanceView, Credits, KeyView, NodeView, PaymentView, UsageView,
};
use crate::config::Difference;
use crate::doctor::Finding;

/// An account to create.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CreateAccountRequest {
    /// E-mail addresses for sign-in.
    pub(super) emails: Vec<String>,
    /// Phone numbers for sign-in, in E.164 form.
    pub(super) phones: Vec<String>,
    /// The rate class; `free` by default.
    pub(super) class: Option<String>,
    /// Which accounts share its cached responses: `shared` (the default), `account` or `off`.
    pub(super) cache_scope: Option<String>,
}

/// Whether an account may be used.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusRequest {
    pub(super) status: StatusWord,
}

/// `active` or `suspended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum StatusWord {
    Active,
    Suspended,
}

/// A rate class.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClassRequest {
    /// Its name in the settings.
    pub(super) class: String,
}

/// A cache scope.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheScopeRequest {
    /// `shared`, `account` or `off`.
    pub(super) cache_scope: String,
}

/// An API key to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateKeyRequest {
    /// Its name.
    pub(super) name: String,
    /// Names of scopes; all scopes of the API by default.
    #[serde(default)]
    pub(super) scopes: Vec<String>,
    /// The only models that it may use; all by default.
    #[serde(default)]
    pub(super) models: Vec<String>,
    /// The spending cap as a decimal number of credits; none by default.
    pub(super) spend_max: Option<String>,
    /// The period of the cap: `total` (the default) or `month`.
    pub(super) spend_period: Option<String>,
    /// The expiry, RFC 3339; never by default.
    pub(super) expires_at: Option<String>,
}

/// A key to find.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FindKeyRequest {
    /// Its whole secret, such as one that was found in a public place. It is neither stored nor logged.
    pub(super) secret: String,
}

/// The key with a secret.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FoundKey {
    /// The account that pays for it.
    pub(super) account: String,
    pub(super) key: KeyView,
}

/// Credits to book.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreditsRequest {
    /// `grant` by default.
    #[serde(default)]
    pub(super) kind: CreditsKind,
    /// A decimal number of credits as a text, such as `12.5`; of a correction, below zero to remove credits.
    pub(super) amount: String,
}

/// Whether credits are a gift, or put a balance right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum CreditsKind {
    #[default]
    Grant,
    Correction,
}

/// The outcome of a payment.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClosePaymentRequest {
    /// Its id in the list.
    pub(super) payment: String,
    pub(super) outcome: PaymentOutcomeWord,
    /// The transaction in which it was paid.
    pub(super) transaction: Option<String>,
    /// Allows a transaction that has paid for another payment, and has a separate transfer for this one.
    #[serde(default)]
    pub(super) shared_transaction: bool,
}

/// Whether a payment was paid, in `transaction`, or has moved nothing and never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PaymentOutcomeWord {
    Paid,
    NotMoved,
}

/// A page of accounts.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AccountPage {
    pub(super) data: Vec<AccountView>,
    /// The cursor of the next page; null on the last.
    pub(super) next: Option<String>,
}

/// Keys of an account.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KeyList {
    pub(super) data: Vec<KeyView>,
}

/// A new key.
#[derive(Serialize, JsonSchema)]
pub(super) struct CreatedKey {
    /// Its id.
    pub(super) id: String,
    /// The secret: it is not stored.
    pub(super) secret: String,
    /// The account that pays.
    pub(super) account: String,
}

/// A revoked key.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RevokedKey {
    /// Its id.
    pub(super) id: String,
    /// `revoked`.
    pub(super) status: &'static str,
}

/// A plan whose charges end.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PlanEnded {
    /// The account.
    pub(super) account: String,
    /// `ended`.
    pub(super) plan: &'static str,
}

/// A balance with a page of entries.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BalancePage {
    #[serde(flatten)]
    pub(super) balance: BalanceView,
    /// The cursor of the next page of `lines`; null on the last.
    pub(super) next: Option<String>,
}

/// Booked credits.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Booked {
    /// The account.
    pub(super) account: String,
    /// The id of the booking.
    pub(super) operation: String,
    /// Whether it had been booked before under this key, so that nothing changed now.
    pub(super) repeated: bool,
    /// The available balance in credits.
    pub(super) available: Credits,
}

/// Usage by day and model.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct UsageList {
    pub(super) data: Vec<UsageView>,
}

/// Payments.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PaymentList {
    pub(super) data: Vec<PaymentView>,
}

/// A closed payment.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Closed {
    /// Its id.
    pub(super) payment: String,
    /// `closed`.
    pub(super) status: &'static str,
}

/// The model providers, as `GET /providers` of the admin address shows them.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Providers {
    #[schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>")]
    pub(super) data: serde_json::Value,
}

/// Gateways that work on one database; none of a file, which has one.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NodeList {
    pub(super) data: Vec<NodeView>,
}

/// What the checks have found.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Findings {
    pub(super) data: Vec<Finding>,
}

/// Commits that were exported and removed.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Retained {
    /// The file; missing when nothing is old enough, and where another node does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exported: Option<ExportedMonth>,
    /// Whether another node has the duties of the cluster, which does it.
    pub(super) is_elsewhere: bool,
}

/// Removed responses.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Purged {
    /// The number of them.
    pub(super) removed: u64,
}

/// Settings that differ.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Differences {
    pub(super) data: Vec<Difference>,
}

/// A page of the audit log.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AuditLogPage {
    pub(super) data: Vec<AuditRecordView>,
    /// The cursor of the next page; null on the last.
    pub(super) next: Option<String>,
}

/// Every error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(super) struct ErrorAnswer {
    pub(super) error: ErrorMembers,
}

/// What is wrong, and what to do.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ErrorMembers {
    /// How to correct the request.
    pub(super) message: String,
    /// The category.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The invalid member or parameter.
    pub(super) param: Option<String>,
    /// The cause.
    pub(super) code: String,
}
