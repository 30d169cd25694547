//! Queries for an account's usage, as shown to its owner: totals by day, and requests by cursor pagination.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};

/// Usage of an account, model and credential on one day.
///
/// A displayed period is a sum of usage days: by day, by model, by credential, or in total.
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
    /// Number of requests answered from the completion cache.
    pub cache_hits: u64,
    /// Number of requests that were cut short.
    pub incomplete: u64,
    /// Input tokens.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub completion_tokens: u64,
    /// The amount charged.
    pub cost: Micros,
    /// The cost of cached responses beyond the charge, at the price version of the response.
    pub saved: Micros,
    /// The cost beyond the charge, lost to the operator.
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
    /// Only requests for the model.
    pub model: Option<Arc<str>>,
    /// Only requests with the credential.
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
    /// A page that starts with the first request older than the position.
    OlderThan(RequestPosition),
    /// A page that ends with the last request newer than the position.
    NewerThan(RequestPosition),
}

/// The position of a request in the order of time. Two requests may share an instant: the id breaks the tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestPosition {
    /// The request's time.
    pub at: Timestamp,
    /// The request at the instant.
    pub operation: OperationId,
}
