//! Requests that were refused or failed, as shown to the owner of the account: a bounded number per account.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, OperationId};

use crate::usage::RequestPosition;

/// Rows kept per account; older rows are deleted.
pub const REFUSALS_MAX: u32 = 1000;

/// A request that got an error instead of an answer, or several equal requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalRow {
    /// The request; of several, the first.
    pub id: OperationId,
    /// The account of the request's credential.
    pub account: AccountId,
    /// The credential; `None` for requests of several credentials.
    pub credential: Option<CredentialId>,
    /// The service's id of the model, if known at the refusal; `None` for requests of several models.
    pub model: Option<Arc<str>>,
    /// The status sent.
    pub status: u16,
    /// The error code sent.
    pub code: Arc<str>,
    /// Microseconds from the request's head to the end of the answer; for several requests, the time of the last request.
    pub total_us: Option<u64>,
    /// The number of requests. Writing a row again adds to the number.
    pub requests: u64,
    /// The end of the request; for several requests, the end of the last request.
    pub at: Timestamp,
}

impl RefusalRow {
    /// The row's position in the order of time.
    pub fn position(&self) -> RequestPosition {
        RequestPosition {
            at: self.at,
            operation: self.id,
        }
    }
}
