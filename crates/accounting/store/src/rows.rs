//! Row types: stored accounts, credentials, logins, holds, usage and prices as plain values.

use std::fmt;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, LoginId, Micros, OperationId, Price, SpendingCap};

use crate::codes::{AccountStatus, CacheScope, CredentialKind, Endpoint, LoginKind};
use crate::entries::Entry;

/// A new account, with a balance of zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAccount {
    /// The id; its text form is the public id.
    pub id: AccountId,
    /// The class whose limits apply.
    pub class: Arc<str>,
    /// The account's completion cache scope.
    pub cache_scope: CacheScope,
    /// How far below zero `available` may go; never negative.
    pub credit_limit: Micros,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// A stored account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountRow {
    /// The id; its text form is the public id.
    pub id: AccountId,
    /// Whether the account may spend.
    pub status: AccountStatus,
    /// The class whose limits apply.
    pub class: Arc<str>,
    /// The account's completion cache scope.
    pub cache_scope: CacheScope,
    /// The available balance.
    pub available: Micros,
    /// The held balance.
    pub held: Micros,
    /// How far below zero `available` may go.
    pub credit_limit: Micros,
    /// The plan's class, in place of [`AccountRow::class`], and the plan's end.
    pub plan: Option<(Arc<str>, Timestamp)>,
    /// Whether the account has ever paid for credit or for the plan. Derived from the bookings and the payments.
    pub has_paid: bool,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

impl AccountRow {
    /// The class whose limits apply at `now`: the plan's class until the plan ends, then the account's class.
    pub fn class_at(&self, now: Timestamp) -> &Arc<str> {
        match &self.plan {
            Some((class, until)) if now < *until => class,
            _ => &self.class,
        }
    }
}

/// A new credential: digest and permissions, never the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCredential {
    /// The public id.
    pub id: CredentialId,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// The credential's kind.
    pub kind: CredentialKind,
    /// The paying account.
    pub account: AccountId,
    /// The OAuth client of the credential.
    pub client_id: Option<Arc<str>>,
    /// The OAuth grant of the credential.
    pub grant_id: Option<[u8; 16]>,
    /// Bit set of the permitted resources.
    pub resource: u32,
    /// Bit set of the scopes.
    pub scopes: u32,
    /// The name given by the owner.
    pub label: Option<Arc<str>>,
    /// The displayable part of the secret (first and last characters).
    pub hint: Option<Arc<str>>,
    /// The only permitted models; `None` for all models. A model id has no line break.
    pub models: Option<Arc<[Arc<str>]>>,
    /// The spending cap; `None` for no cap.
    pub spending_cap: Option<SpendingCap>,
    /// Time of issue.
    pub created_at: Timestamp,
    /// The expiry; `None` for no expiry.
    pub expires_at: Option<Timestamp>,
}

/// A stored credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialRow {
    /// The row as created, or last changed.
    pub made: NewCredential,
    /// Time of revocation; `None` while the credential is valid.
    pub revoked_at: Option<Timestamp>,
    /// Time of the last use, with a precision of a minute or two; `None` before the first use.
    pub used_at: Option<Timestamp>,
    /// The number of changes.
    pub version: i64,
}

/// A new login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLogin {
    /// The id.
    pub id: LoginId,
    /// The account of the login.
    pub account: AccountId,
    /// The kind of address.
    pub kind: LoginKind,
    /// The address in canonical form; one login per kind and address.
    pub address: Arc<str>,
    /// Time of verification by a one-time code; `None` before verification.
    pub verified_at: Option<Timestamp>,
    /// Time of addition.
    pub created_at: Timestamp,
}

/// A stored login.
pub type LoginRow = NewLogin;

/// An open hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHold {
    /// The operation of the hold.
    pub operation: OperationId,
    /// The account.
    pub account: AccountId,
    /// The amount.
    pub amount: Micros,
    /// The node that placed the hold.
    pub node: i64,
    /// The run of the node; holds of an older run are orphans.
    pub epoch: i64,
    /// Time of placement.
    pub created_at: Timestamp,
    /// The hold's planned end. Earlier releases stored a time of a process-local clock here, which is meaningless to another process.
    pub expires_at: Timestamp,
}

/// Flags of a usage record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageFlags(u32);

impl UsageFlags {
    /// No flags.
    pub const NONE: UsageFlags = UsageFlags(0);
    /// The upstream reported no usage; the tokens were counted here.
    pub const ESTIMATED: UsageFlags = UsageFlags(1);
    /// Answered from the completion cache.
    pub const CACHE_HIT: UsageFlags = UsageFlags(1 << 1);
    /// Sent as an event stream.
    pub const STREAMED: UsageFlags = UsageFlags(1 << 2);
    /// Cut short: the downstream disconnected, or the upstream failed, after output had started.
    pub const INCOMPLETE: UsageFlags = UsageFlags(1 << 3);
    /// The upstream failed. Not set in records older than the flag.
    pub const CUT_UPSTREAM: UsageFlags = UsageFlags(1 << 4);
    /// An answer from the cache saves the price of the version that the record names. The version was durable before the record. Records
    /// older than the flag save the last price in force at the record's time. The last price differs for a request that began before a
    /// price change, or after a return to an earlier price.
    pub const PRICE_OF_VERSION: UsageFlags = UsageFlags(1 << 5);

    /// The bits, as stored.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// A set from its stored bits.
    pub const fn from_bits(bits: u32) -> UsageFlags {
        UsageFlags(bits)
    }

    /// Whether the set contains every flag of `other`.
    pub const fn contains(self, other: UsageFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for UsageFlags {
    type Output = UsageFlags;

    fn bitor(self, other: UsageFlags) -> UsageFlags {
        UsageFlags(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for UsageFlags {
    fn bitor_assign(&mut self, other: UsageFlags) {
        self.0 |= other.0;
    }
}

/// Usage of one operation, without its cost: the ledger adds the cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRecord {
    /// The credential used.
    pub credential: Option<CredentialId>,
    /// Where.
    pub endpoint: Endpoint,
    /// The service's id of the model.
    pub model: Arc<str>,
    /// The provider that answered; `None` for a cache hit.
    pub upstream: Option<Arc<str>>,
    /// Input tokens.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub completion_tokens: u64,
    /// The record's flags.
    pub flags: UsageFlags,
    /// The status of the response to the downstream.
    pub http_status: u16,
    /// Microseconds from the request's head to the first byte of the response.
    pub ttfb_us: Option<u64>,
    /// Microseconds from the request's head to the last byte known.
    pub total_us: Option<u64>,
}

/// A stored usage record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    /// The operation.
    pub operation: OperationId,
    /// The paying account.
    pub account: AccountId,
    /// The usage.
    pub usage: UsageRecord,
    /// The amount charged.
    pub cost: Micros,
    /// The cost beyond the charge, lost to the operator.
    pub written_off: Micros,
    /// The price version of the cost.
    pub price_version: Option<i64>,
    /// The record's time.
    pub at: Timestamp,
}

/// Usage of one account and model on one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageTotal {
    /// The start of the day, UTC.
    pub day_at: Timestamp,
    /// The service's id of the model.
    pub model: Arc<str>,
    /// Number of operations.
    pub requests: u64,
    /// Input tokens.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub completion_tokens: u64,
    /// The amount charged.
    pub cost: Micros,
    /// The amount written off.
    pub written_off: Micros,
}

/// One line of an account's statement: an entry that changed the balance, with the usage behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerLine {
    /// The entry.
    pub entry: Entry,
    /// The usage behind a settlement or charge.
    pub usage: Option<UsageRow>,
}

/// The price of a model at one version. Written once and never changed: charges name the version of their price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceRow {
    /// The version.
    pub version: i64,
    /// The service's id of the model.
    pub model: Arc<str>,
    /// The amounts.
    pub price: Price,
    /// The time when the price was first in force.
    pub valid_from: Timestamp,
}

/// 32 random bytes made at first start, the source of other secrets. Not printable.
#[derive(Clone, PartialEq, Eq)]
pub struct RootSecret(pub [u8; 32]);

impl fmt::Debug for RootSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootSecret([redacted])")
    }
}
