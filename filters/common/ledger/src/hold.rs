//! Holds: credit reserved for one operation before it runs.

use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_clock::{Deadline, Timestamp};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{CommitError, Failure, Receipt, Refusal, SubmitError, UsageRecord};

use crate::accounts::Inner;
use crate::settlement::{AttachedPart, SettleError, Settlement};

/// A request for a hold, made before the upstream call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldRequest {
    /// The operation; one hold each.
    pub operation: OperationId,
    /// The account.
    pub account: AccountId,
    /// The maximum cost of the operation; not negative.
    pub amount: Micros,
    /// The price version of the operation.
    pub price_version: Option<i64>,
    /// When it was requested.
    pub at: Timestamp,
    /// When [`crate::Ledger::sweep`] releases it: well above the longest response. On the monotonic clock, so that setting the wall clock
    /// releases no hold of a response under way.
    pub deadline: Deadline,
    /// The same by the wall clock at the request. Recorded only: the next start releases what this run leaves open, whatever is recorded.
    pub expires_at: Timestamp,
}

/// The cost and usage of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The cost of the usage; not negative.
    pub actual: Micros,
    /// The usage.
    pub usage: UsageRecord,
    /// When it was settled.
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
        /// The most it could have held, including its credit limit.
        available: Micros,
        /// The requested amount.
        requested: Micros,
    },
    /// The account does not exist on this node.
    #[error("there is no account `{account}`")]
    NoAccount {
        /// The requested account.
        account: AccountId,
    },
    /// The operation had its hold before.
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
    pub(crate) fn from_submit(operation: OperationId, error: SubmitError) -> HoldError {
        match error {
            SubmitError::Overloaded { waiting } => HoldError::Overloaded { waiting },
            SubmitError::Stopped(source) => HoldError::Store { operation, source },
            _ => HoldError::Store {
                operation,
                source: Failure::closed(),
            },
        }
    }

    pub(crate) fn from_commit(operation: OperationId, error: CommitError) -> HoldError {
        match error {
            CommitError::Refused(Refusal::OperationExists(operation)) => {
                HoldError::Repeated { operation }
            }
            CommitError::Overloaded { waiting } => HoldError::Overloaded { waiting },
            CommitError::Stopped(source) => HoldError::Store { operation, source },
            _ => HoldError::Store {
                operation,
                source: Failure::closed(),
            },
        }
    }
}

/// Credit reserved for one operation. Resolved by [`Hold::settle`] or [`Hold::release`]; dropped without either it is released, whatever
/// the reason: a panic, a cancelled task, a forgotten branch.
#[derive(Debug)]
#[must_use = "dropping a hold releases its credit"]
pub struct Hold {
    pub(crate) ledger: Arc<Inner>,
    pub(crate) request: HoldRequest,
    pub(crate) durability: Durability,
    pub(crate) resolved: bool,
}

/// State of the durable half of a hold.
#[derive(Debug)]
pub(crate) enum Durability {
    /// Only in memory.
    Unwritten,
    Waiting(oneshot::Receiver<Result<Receipt, CommitError>>),
    Known(Result<(), CommitError>),
}

impl Hold {
    /// The operation it was placed for.
    pub fn operation(&self) -> OperationId {
        self.request.operation
    }

    /// Its account.
    pub fn account(&self) -> AccountId {
        self.request.account
    }

    /// Its amount.
    pub fn amount(&self) -> Micros {
        self.request.amount
    }

    /// When it expires.
    pub fn deadline(&self) -> Deadline {
        self.request.deadline
    }

    /// Waits until the hold is on the disk. No byte of the response may be sent before. May be called again, and cancelled.
    pub async fn durable(&mut self) -> Result<(), HoldError> {
        let operation = self.request.operation;
        if matches!(self.durability, Durability::Unwritten) {
            self.durability = match self.ledger.write_reserved(&self.request)? {
                Some(wait) => Durability::Waiting(wait),
                None => Durability::Known(Ok(())),
            };
        }
        if let Durability::Waiting(wait) = &mut self.durability {
            let known = match wait.await {
                Ok(result) => result.map(|_| ()),
                Err(_) => Err(CommitError::Stopped(Failure::closed())),
            };
            self.durability = Durability::Known(known);
        }
        match &self.durability {
            Durability::Known(known) => known
                .clone()
                .map_err(|error| HoldError::from_commit(operation, error)),
            Durability::Unwritten | Durability::Waiting(_) => {
                unreachable!("the wait has just ended")
            }
        }
    }

    /// Charges what the operation cost, frees the rest, and queues both for the disk before it returns.
    ///
    /// A cost above the hold is charged to the available balance, down to the credit limit; the rest is written off.
    pub fn settle(self, settle: Settle) -> Settlement {
        self.settle_with(settle, None)
    }

    /// The same, with a part that becomes durable in the same commit or not at all.
    pub fn settle_with(mut self, settle: Settle, attached: Option<AttachedPart>) -> Settlement {
        self.resolved = true;
        let mut settlement = self.ledger.settle(&self.request, settle, attached);
        if matches!(settlement.wait, Err(SettleError::Expired { .. }))
            && let Some(error) = self.refused()
        {
            settlement.wait = Err(SettleError::from_commit(self.request.operation, error));
        }
        settlement
    }

    /// Why the hold was not stored, as far as the store has reported it.
    fn refused(&mut self) -> Option<CommitError> {
        match &mut self.durability {
            Durability::Waiting(wait) => wait.try_recv().ok()?.err(),
            Durability::Known(known) => known.clone().err(),
            Durability::Unwritten => None,
        }
    }

    /// Releases all of it, and queues that for the disk.
    pub fn release(mut self, at: Timestamp) {
        self.resolved = true;
        self.ledger.release(&self.request, at);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.resolved {
            let at = self.ledger.latest().max(self.request.at);
            self.ledger.release(&self.request, at);
        }
    }
}
