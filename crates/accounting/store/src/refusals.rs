//! Requests that were refused or failed, as shown to the owner of the account: a bounded number for each account.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, OperationId};

use crate::usage::RequestPosition;

/// Rows kept for each account; older ones are deleted.
pub const REFUSALS_MAX: u32 = 1000;

/// A request that got an error instead of an answer, or several equal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalRow {
    /// The request; of several, the first.
    pub id: OperationId,
    /// The account whose credential it had.
    pub account: AccountId,
    /// The credential; `None` for requests of several.
    pub credential: Option<CredentialId>,
    /// The service's id of the model, if it was known by then; `None` for several requests.
    pub model: Option<Arc<str>>,
    /// The status sent.
    pub status: u16,
    /// The error code sent.
    pub code: Arc<str>,
    /// Microseconds from the request's head to the end of the answer; of several, those of the last.
    pub total_us: Option<u64>,
    /// The number of requests. Writing a row again adds to it.
    pub requests: u64,
    /// When it ended; of several, the last.
    pub at: Timestamp,
}

impl RefusalRow {
    /// Its position in the order of time.
    pub fn position(&self) -> RequestPosition {
        RequestPosition {
            at: self.at,
            operation: self.id,
        }
    }
}
