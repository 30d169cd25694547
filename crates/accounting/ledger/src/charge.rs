//! Charges without a hold, and the start of a ledger: inputs, results and errors of both.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{Failure, ReadError, UsageRecord};

/// A charge without a previous hold: a cache hit, or a model without a price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The operation.
    pub operation: OperationId,
    /// The account.
    pub account: AccountId,
    /// The cost; zero writes a usage record and no entry.
    pub amount: Micros,
    pub price_version: Option<i64>,
    /// The usage.
    pub usage: UsageRecord,
    pub at: Timestamp,
}

/// Why a charge was not booked. Never for lack of credit: an uncovered cost is written off.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChargeError {
    /// The account does not exist on this node.
    #[error("there is no account `{account}`")]
    NoAccount {
        /// The requested account.
        account: AccountId,
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
    /// The store has stopped; the process is about to exit.
    #[error("could not write the charge of `{operation}`")]
    Store {
        /// The operation.
        operation: OperationId,
        /// The cause.
        #[source]
        source: Failure,
    },
}

/// Why the ledger could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data of earlier runs could not be read.
    #[error("could not read the open holds")]
    Read(#[source] ReadError),
    /// The file has contradictory data about one account.
    #[error("`{account}` has {held} held, and an open hold of {amount}; run `tollgate audit`")]
    Inconsistent {
        /// The account.
        account: AccountId,
        /// The stored held amount.
        held: Micros,
        /// The sum of the account's holds.
        amount: Micros,
    },
    /// The holds of an earlier run could not be released.
    #[error("could not release the holds of an earlier run")]
    Store(#[source] Failure),
}

/// The result of the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Units in the spool of an earlier run that were not in the database.
    pub spooled: usize,
    /// Charges in the spool whose credit was no longer held.
    pub late: usize,
    /// Holds of an earlier run that were released.
    pub orphans: usize,
    /// The sum of the released holds.
    pub orphans_amount: Micros,
}
