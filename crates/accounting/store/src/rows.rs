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
    /// Its completion cache scope.
    pub cache_scope: CacheScope,
    /// How far below zero `available` may go; never negative.
    pub credit_limit: Micros,
    /// When it is created.
    pub created_at: Timestamp,
}

/// A stored account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountRow {
    /// The id; its text form is the public id.
    pub id: AccountId,
    /// Whether it may spend.
    pub status: AccountStatus,
    /// The class whose limits apply.
    pub class: Arc<str>,
    /// Its completion cache scope.
    pub cache_scope: CacheScope,
    /// The available balance.
    pub available: Micros,
    /// The held balance.
    pub held: Micros,
    /// How far below zero `available` may go.
    pub credit_limit: Micros,
    /// The class that the plan gives in place of [`AccountRow::class`], and when that ends.
    pub plan: Option<(Arc<str>, Timestamp)>,
    /// Whether it has ever paid: for credit, or for the plan. Derived from the bookings and the payments.
    pub has_paid: bool,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl AccountRow {
    /// The class whose limits apply at `now`: that of the plan until it ends, then its own.
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
    /// Its kind.
    pub kind: CredentialKind,
    /// The paying account.
    pub account: AccountId,
    /// The OAuth client it was issued to.
    pub client_id: Option<Arc<str>>,
    /// The OAuth grant it was issued from.
    pub grant_id: Option<[u8; 16]>,
    /// Bit set of the permitted resources.
    pub resource: u32,
    /// Bit set of its scopes.
    pub scopes: u32,
    /// Its name, given by its owner.
    pub label: Option<Arc<str>>,
    /// The displayable part of the secret (first and last characters).
    pub hint: Option<Arc<str>>,
    /// The only permitted models; `None` for all. A model id has no line break.
    pub models: Option<Arc<[Arc<str>]>>,
    /// Its spending cap; `None` for no cap.
    pub spending_cap: Option<SpendingCap>,
    /// When it was issued.
    pub created_at: Timestamp,
    /// When it expires; `None` when it does not.
    pub expires_at: Option<Timestamp>,
}

/// A stored credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialRow {
    /// The row as created, or last changed.
    pub made: NewCredential,
    /// When it was revoked; `None` while it is valid.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, with a precision of a minute or two; `None` before its first use.
    pub used_at: Option<Timestamp>,
    /// The number of its changes.
    pub version: i64,
}

/// A new login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLogin {
    /// The id.
    pub id: LoginId,
    /// The account it signs in to.
    pub account: AccountId,
    /// The kind of address.
    pub kind: LoginKind,
    /// The address in its canonical form; one login per kind and address.
    pub address: Arc<str>,
    /// When it was verified by a one-time code; `None` until then.
    pub verified_at: Option<Timestamp>,
    /// When it was added.
    pub created_at: Timestamp,
}

/// A stored login.
pub type LoginRow = NewLogin;

/// An open hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHold {
    /// The operation it was placed for.
    pub operation: OperationId,
    /// The account.
    pub account: AccountId,
    /// The amount.
    pub amount: Micros,
    /// The node that placed it.
    pub node: i64,
    /// The run of that node; holds of an older run are orphans.
    pub epoch: i64,
    /// When it was placed.
    pub created_at: Timestamp,
    /// When it was to end. Releases before this had a clock of their process here, which means nothing to another.
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
    /// The upstream failed. Not set in records older than this flag.
    pub const CUT_UPSTREAM: UsageFlags = UsageFlags(1 << 4);
    /// An answer from the cache saves the price of the version that the record names, which was durable before. Without this flag, which records
    /// older than it do not have, it saves the price that is the last to be in force at its time: another one for a request that began before a
    /// change of the price, or after a return to an earlier price.
    pub const PRICE_OF_VERSION: UsageFlags = UsageFlags(1 << 5);

    /// The bits, as they are stored.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// A set from its stored bits.
    pub const fn from_bits(bits: u32) -> UsageFlags {
        UsageFlags(bits)
    }

    /// Whether all of `other` is in this set.
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

/// Usage of one operation: everything but its cost, which the ledger adds.
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
    /// Its flags.
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
    /// The cost beyond that, lost to the operator.
    pub written_off: Micros,
    /// The price version that it was billed at.
    pub price_version: Option<i64>,
    /// Its time.
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

/// One line of an account's statement: an entry that changed its balance, with the usage it paid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerLine {
    /// The entry.
    pub entry: Entry,
    /// The usage behind a settlement or charge.
    pub usage: Option<UsageRow>,
}

/// The price of a model at one version. Written once and never changed: charges name the version they were calculated with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceRow {
    /// The version.
    pub version: i64,
    /// The service's id of the model.
    pub model: Arc<str>,
    /// The amounts.
    pub price: Price,
    /// When it was first in force.
    pub valid_from: Timestamp,
}

/// 32 random bytes made at first start, from which other secrets are derived. Not printable.
#[derive(Clone, PartialEq, Eq)]
pub struct RootSecret(pub [u8; 32]);

impl fmt::Debug for RootSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootSecret([redacted])")
    }
}
