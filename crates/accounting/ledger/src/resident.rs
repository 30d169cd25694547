//! An account in memory, and the state of a load under way.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use tokio::sync::oneshot;
use tollgate_money::Micros;
use tollgate_store::{CommitError, DebtKey, Failure, ReadError};

use crate::account::Balance;

/// An account in memory. A change of its balance is a use of the account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub(crate) balance: Balance,
    /// Whether the account was not used since the last call of `Ledger::evict_idle`.
    pub(crate) is_idle: bool,
}

impl Resident {
    /// The balance, for a caller. Marks the account as used: the account stays in memory for the time between two calls of
    /// `Ledger::evict_idle`.
    pub(crate) fn used(&mut self) -> Balance {
        self.is_idle = false;
        self.balance
    }
}

impl From<Balance> for Resident {
    fn from(balance: Balance) -> Resident {
        let is_idle = false;
        Resident { balance, is_idle }
    }
}

impl Deref for Resident {
    type Target = Balance;

    fn deref(&self) -> &Balance {
        &self.balance
    }
}

impl DerefMut for Resident {
    fn deref_mut(&mut self) -> &mut Balance {
        self.is_idle = false;
        &mut self.balance
    }
}

/// Debts of one account from returned payments.
pub(crate) type Debts = HashMap<DebtKey, Micros>;

/// A load under way.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    pub(crate) waiting: Vec<oneshot::Sender<Result<(), LoadError>>>,
    /// Whether this node has received credit for the account during the load. The credit goes to the shared balance.
    pub(crate) is_shared: bool,
    /// Whether the feed has announced a change of the account during the load: the account is read again.
    pub(crate) is_changed: bool,
    /// Whether the load belongs to the start. Such an account answers recalls after the release of the holds of earlier runs.
    pub(crate) is_of_start: bool,
}

/// Counters of loads, and the progress of evictions.
#[derive(Debug, Default)]
pub(crate) struct LoadCounters {
    pub(crate) under_way: AtomicUsize,
    pub(crate) found: AtomicU64,
    pub(crate) unknown: AtomicU64,
    /// Number of calls of `Ledger::evict_idle`, and the last call whose earlier decisions are durable or refused.
    pub(crate) calls: AtomicU64,
    pub(crate) flushed: AtomicU64,
}

/// Why an account was not loaded. Every reason except a stopped store ends after a moment: a 503 with `Retry-After`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The queue for the disk, or the number of loads under way, is at its limit.
    #[error("{waiting} units of work wait for the disk; try again in a second")]
    Overloaded {
        /// Units in the queue, or loads under way.
        waiting: usize,
    },
    /// The database does not answer.
    #[error("the database does not answer; try again when it does")]
    CutOff,
    /// The store has stopped.
    #[error("could not read the account")]
    Store(#[source] Failure),
}

/// Why the total balance of an account, over every node, is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BalanceError {
    /// The account was not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The database did not answer.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl LoadError {
    pub(crate) fn from_commit(error: CommitError) -> LoadError {
        match error {
            CommitError::Overloaded { waiting } => LoadError::Overloaded { waiting },
            CommitError::CutOff => LoadError::CutOff,
            CommitError::Stopped(failure) => LoadError::Store(failure),
            _ => LoadError::Store(Failure::closed()),
        }
    }
}
