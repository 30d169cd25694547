//! A promise of credit to one operation.

use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{CommitError, Failure, Receipt, Refusal, UsageRecord};

use crate::accounts::{Inner, closed};
use crate::settlement::{Beside, SettleError, Settlement};

/// What is asked for before the upstream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldRequest {
    /// The operation; one hold each.
    pub operation: OperationId,
    /// The account.
    pub account: AccountId,
    /// The most that the operation can cost; not negative.
    pub amount: Micros,
    /// The price version that the operation will be billed at.
    pub price_version: Option<i64>,
    /// Unix microseconds.
    pub at: i64,
    /// Unix microseconds after which [`crate::Ledger::sweep`] gives the credit back: well above the longest answer.
    pub expires_at: i64,
}

/// What an operation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// What the usage costs; not negative.
    pub actual: Micros,
    /// What was used.
    pub usage: UsageRecord,
    /// Unix microseconds.
    pub at: i64,
}

/// Why a hold was not placed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// The downstream's doing: becomes a 402, never a 5xx.
    #[error(
        "account `{account}` has {available} credits free, the hold needs {requested}; top up or lower `max_tokens`"
    )]
    InsufficientCredit {
        /// The account.
        account: AccountId,
        /// What it could have promised at most, its credit limit included.
        available: Micros,
        /// What was asked for.
        requested: Micros,
    },
    /// There is no such account on this node.
    #[error("there is no account `{account}`")]
    NoAccount {
        /// The account asked for.
        account: AccountId,
    },
    /// The operation has had its hold.
    #[error("operation `{operation}` is already in the books; an operation id is used once")]
    Repeated {
        /// The operation.
        operation: OperationId,
    },
    /// Too much waits for the disk: a 503 with `Retry-After`.
    #[error("{waiting} units of work wait for the disk; try again in a second")]
    Overloaded {
        /// Units in the queue.
        waiting: usize,
    },
    /// The store has stopped; the process is about to end.
    #[error("could not write the hold of `{operation}`")]
    Store {
        /// The operation.
        operation: OperationId,
        /// Why.
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
            CommitError::Stopped(source) => HoldError::Store { operation, source },
            _ => HoldError::Store {
                operation,
                source: closed(),
            },
        }
    }
}

/// Credit promised to one operation. Ends in [`Hold::settle`] or [`Hold::release`]; dropped without either it is released, whatever
/// the reason: a panic, a cancelled task, a forgotten branch.
#[derive(Debug)]
#[must_use = "dropping a hold gives its credit back"]
pub struct Hold {
    pub(crate) ledger: Arc<Inner>,
    pub(crate) request: HoldRequest,
    pub(crate) durability: Durability,
    pub(crate) resolved: bool,
}

/// How far the durable half of a hold is.
#[derive(Debug)]
pub(crate) enum Durability {
    /// Promised in memory alone.
    Unwritten,
    Waiting(oneshot::Receiver<Result<Receipt, CommitError>>),
    Known(Result<(), CommitError>),
}

impl Hold {
    /// The operation it was placed for.
    pub fn operation(&self) -> OperationId {
        self.request.operation
    }

    /// Whose credit it promises.
    pub fn account(&self) -> AccountId {
        self.request.account
    }

    /// How much it promises.
    pub fn amount(&self) -> Micros {
        self.request.amount
    }

    /// Unix microseconds after which it is given back.
    pub fn expires_at(&self) -> i64 {
        self.request.expires_at
    }

    /// Waits until the hold is on the disk. No byte of the answer may leave before. May be asked again, and cancelled.
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
                Err(_) => Err(CommitError::Stopped(closed())),
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

    /// Takes what the operation cost, frees the rest, and queues both for the disk before it returns.
    ///
    /// What the hold does not cover is taken from what is free, down to the credit limit; the rest is written off.
    pub fn settle(self, settle: Settle) -> Settlement {
        self.settle_with(settle, None)
    }

    /// The same, with a part that becomes durable in the same commit or not at all.
    pub fn settle_with(mut self, settle: Settle, beside: Option<Beside>) -> Settlement {
        self.resolved = true;
        let mut settlement = self.ledger.settle(&self.request, settle, beside);
        if matches!(settlement.wait, Err(SettleError::Expired { .. }))
            && let Some(error) = self.refused()
        {
            settlement.wait = Err(SettleError::from_commit(self.request.operation, error));
        }
        settlement
    }

    /// Why the disk did not take the hold, as far as it has told.
    fn refused(&mut self) -> Option<CommitError> {
        match &mut self.durability {
            Durability::Waiting(wait) => wait.try_recv().ok()?.err(),
            Durability::Known(known) => known.clone().err(),
            Durability::Unwritten => None,
        }
    }

    /// Gives all of it back, and queues that for the disk.
    pub fn release(mut self, at: i64) {
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
