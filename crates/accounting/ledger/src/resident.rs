//! An account in memory, and what is known of the load of one that is not.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use tokio::sync::oneshot;
use tollgate_money::Micros;
use tollgate_store::{CommitError, DebtKey, Failure, ReadError};

use crate::account::Balance;

/// An account in memory. A change of its balance is a use of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub(crate) balance: Balance,
    /// Not used since the last call of `Ledger::evict_idle`.
    pub(crate) is_idle: bool,
}

impl Resident {
    /// Its balance, which a caller needs now: it stays in memory for the time between two calls of `Ledger::evict_idle`.
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

/// What the returned payments of one account owe.
pub(crate) type Debts = HashMap<DebtKey, Micros>;

/// A load under way.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    pub(crate) waiting: Vec<oneshot::Sender<Result<(), LoadError>>>,
    /// Whether this node has received credit for the account meanwhile, which goes to the shared balance.
    pub(crate) is_shared: bool,
    /// Whether the feed has announced a change of the account meanwhile: it is read again.
    pub(crate) is_changed: bool,
    /// Whether it is one of the start, which answers recalls once the holds of earlier runs are released.
    pub(crate) is_of_start: bool,
}

/// What is counted of loads, and the progress of evictions.
#[derive(Debug, Default)]
pub(crate) struct LoadCounters {
    pub(crate) under_way: AtomicUsize,
    pub(crate) found: AtomicU64,
    pub(crate) unknown: AtomicU64,
    /// Calls of `Ledger::evict_idle`, and the last one whose decisions are all durable or refused.
    pub(crate) calls: AtomicU64,
    pub(crate) flushed: AtomicU64,
}

/// Why an account was not loaded. All but a stopped store are over after a moment: a 503 with `Retry-After`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// As much waits for the disk, or is being loaded, as may be.
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

/// Why the balance of an account at all nodes is not known.
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
