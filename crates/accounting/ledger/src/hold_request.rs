//! Inputs of holds and settlements, and errors of holds.

use tollgate_clock::{Deadline, Timestamp};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{CommitError, Failure, Refusal, UsageRecord};

/// A request for a hold, made before the upstream call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldRequest {
    /// The operation; one hold per operation.
    pub operation: OperationId,
    /// The account.
    pub account: AccountId,
    /// The maximum cost of the operation; not negative.
    pub amount: Micros,
    /// The price version of the operation.
    pub price_version: Option<i64>,
    /// The time of the request.
    pub at: Timestamp,
    /// The time of the release by [`crate::Ledger::sweep`]; must be well above the longest response. On the monotonic clock: a change of
    /// the wall clock releases no hold of a running response.
    pub deadline: Deadline,
    /// `deadline` by the wall clock at the request. Only recorded: the next start releases open holds of this run without regard to this
    /// time.
    pub expires_at: Timestamp,
    /// Queue the hold for the disk at once. Otherwise the hold is only in memory, for an operation without output before its settlement.
    /// The end of such a hold is one charge on the disk, or no entry. A crash loses the hold. [`crate::Hold::durable`] stores the hold.
    pub is_written: bool,
}

impl HoldRequest {
    /// A request for a hold in memory, released within the call.
    pub(crate) fn brief(
        operation: OperationId,
        account: AccountId,
        amount: Micros,
        at: Timestamp,
    ) -> HoldRequest {
        HoldRequest {
            operation,
            account,
            amount,
            price_version: None,
            at,
            deadline: Deadline::NEVER,
            expires_at: at,
            is_written: false,
        }
    }

    /// The request for a hold in memory only.
    #[must_use]
    pub fn in_memory(self) -> HoldRequest {
        HoldRequest {
            is_written: false,
            ..self
        }
    }
}

/// The fallback of a hold of any amount.
pub(crate) fn rest(available: Micros) -> Option<Micros> {
    available.is_positive().then_some(available)
}

/// The cost and usage of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The cost of the usage; not negative.
    pub actual: Micros,
    /// The usage.
    pub usage: UsageRecord,
    /// The time of the settlement.
    pub at: Timestamp,
}

/// Why a hold was not placed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// Caused by the downstream: becomes a 402, never a 5xx.
    #[error(
        "account `{account}` has {available} credits free, the hold needs {requested}; top up or lower `max_tokens`"
    )]
    InsufficientCredit {
        /// The account.
        account: AccountId,
        /// The most the account could have held, including the credit limit.
        available: Micros,
        /// The requested amount.
        requested: Micros,
    },
    /// Other nodes have not answered in time about their credit of the account: a 503 with `Retry-After`, never a 402.
    #[error(
        "the credit of account `{account}` is being collected from other nodes; try again in a second"
    )]
    CreditUnavailable {
        /// The account.
        account: AccountId,
    },
    /// The account does not exist on this node.
    #[error("there is no account `{account}`")]
    NoAccount {
        /// The requested account.
        account: AccountId,
    },
    /// The operation already had a hold.
    #[error("operation `{operation}` is already in the ledger; an operation id is used once")]
    Repeated {
        /// The operation.
        operation: OperationId,
    },
    /// The store's queue is full: a 503 with `Retry-After`.
    #[error("{waiting} units of work wait for the disk; try again in a second")]
    Overloaded {
        /// Units in the queue.
        waiting: usize,
    },
    /// The database does not answer: a 503 with `Retry-After`.
    #[error("the database does not answer; try again when it does")]
    CutOff,
    /// The spending of the request's key is not in memory ([`crate::Ledger::load_spending`]).
    #[error("the spending of the key is not loaded; send the request again")]
    NotLoaded,
    /// The store has stopped; the process is about to exit.
    #[error("could not write the hold of `{operation}`")]
    Store {
        /// The operation.
        operation: OperationId,
        /// The cause.
        #[source]
        source: Failure,
    },
}

impl HoldError {
    pub(crate) fn from_commit(operation: OperationId, error: CommitError) -> HoldError {
        match error {
            CommitError::Refused(Refusal::OperationExists(operation)) => {
                HoldError::Repeated { operation }
            }
            CommitError::Overloaded { waiting } => HoldError::Overloaded { waiting },
            CommitError::CutOff => HoldError::CutOff,
            CommitError::Stopped(source) => HoldError::Store { operation, source },
            _ => HoldError::Store {
                operation,
                source: Failure::closed(),
            },
        }
    }
}
