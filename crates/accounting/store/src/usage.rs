//! Queries for an account's usage, as shown to its owner: totals by day, and requests by cursor pagination.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};

/// Usage of one account, model and credential on one day.
///
/// Every displayed period is a sum of these: by day, by model, by credential, or all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageDay {
    /// The start of the day, UTC.
    pub day_at: Timestamp,
    /// The service's id of the model.
    pub model: Arc<str>,
    /// The credential used.
    pub credential: Option<CredentialId>,
    /// Number of operations.
    pub requests: u64,
    /// Number of them served from the completion cache.
    pub cache_hits: u64,
    /// Number of them that were cut short.
    pub incomplete: u64,
    /// Input tokens.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub completion_tokens: u64,
    /// The amount charged.
    pub cost: Micros,
    /// The cost of cached responses beyond the amount charged for them, at the price version of each.
    pub saved: Micros,
    /// The cost beyond what was charged, lost to the operator.
    pub written_off: Micros,
}

/// A query for requests of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestsQuery {
    /// The account.
    pub account: AccountId,
    /// Inclusive.
    pub from: Timestamp,
    /// Exclusive.
    pub to: Timestamp,
    /// Only those for this model.
    pub model: Option<Arc<str>>,
    /// Only those with this credential.
    pub credential: Option<CredentialId>,
    /// The position in the period.
    pub cursor: PageCursor,
    /// Maximum number of requests.
    pub limit: usize,
}

/// Where a page of requests starts or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCursor {
    /// Starting with the newest of the period.
    Newest,
    /// Starting with the first that is older than this one.
    OlderThan(RequestPosition),
    /// Ending with the last that is newer than this one.
    NewerThan(RequestPosition),
}

/// The position of one request in the order of time. Two may share an instant, hence the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestPosition {
    /// Its time.
    pub at: Timestamp,
    /// The request at that instant.
    pub operation: OperationId,
}
