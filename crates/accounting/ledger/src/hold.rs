//! Holds: credit reserved for one operation before it runs.

use tokio::sync::oneshot;
use tollgate_clock::{Deadline, Timestamp};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{CommitError, Failure, Receipt};

use crate::accounts::{Ledger, Shard};
use crate::hold_request::{HoldError, HoldRequest, Settle, rest};
use crate::settlement::{AttachedPart, SettleError, Settlement};

/// Credit reserved for one operation. Resolved by [`Hold::settle`] or [`Hold::release`]. A drop without a resolution releases the hold, for
/// any reason: a panic, a cancelled task, a forgotten branch.
#[derive(Debug)]
#[must_use = "dropping a hold releases its credit"]
pub struct Hold {
    pub(crate) ledger: Ledger,
    pub(crate) request: HoldRequest,
    pub(crate) durability: Durability,
    pub(crate) resolved: bool,
    /// Further credit for a settlement above the amount, on a node with allotments.
    pub(crate) extra: Option<Box<Hold>>,
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
    /// The operation of the hold.
    pub fn operation(&self) -> OperationId {
        self.request.operation
    }

    pub fn account(&self) -> AccountId {
        self.request.account
    }

    pub fn amount(&self) -> Micros {
        self.request.amount
    }

    /// When the hold expires.
    pub fn deadline(&self) -> Deadline {
        self.request.deadline
    }

    /// Waits until the hold is on the disk. Send no byte of the response before. May be called again, and cancelled.
    pub async fn durable(&mut self) -> Result<(), HoldError> {
        let operation = self.request.operation;
        if matches!(self.durability, Durability::Unwritten) {
            self.durability = match self.ledger.queue_reserved(&self.request)? {
                Some(wait) => Durability::Waiting(wait),
                None => Durability::Known(Ok(())),
            };
        }
        if let Durability::Waiting(wait) = &mut self.durability {
            let answer = match self.ledger.store.outage() {
                None => wait.await,
                // The hold may be durable. Its drop releases the hold, with a release behind the hold in the queue.
                Some(outage) => tokio::select! {
                    biased;
                    answer = &mut *wait => answer,
                    () = outage.began() => return Err(HoldError::CutOff),
                },
            };
            let known = match answer {
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

    /// Charges the cost of the operation and frees the rest. Queues both changes for the disk before returning.
    ///
    /// A cost above the hold is charged to the available balance, down to the credit limit. The rest is written off.
    pub fn settle(self, settle: Settle) -> Settlement {
        self.settle_with(settle, None)
    }

    /// Settles the hold together with a part: one commit has both, or neither.
    pub fn settle_with(mut self, settle: Settle, attached: Option<AttachedPart>) -> Settlement {
        self.resolved = true;
        let extra = self.extra.take().map(|extra| *extra);
        let mut settlement = self.ledger.settle(&self.request, settle, attached, extra);
        if matches!(settlement.wait, Err(SettleError::Expired { .. }))
            && let Some(error) = self.refused()
        {
            settlement.wait = Err(SettleError::from_commit(self.request.operation, error));
        }
        settlement
    }

    /// Whether a settlement of `actual` exceeds the hold, so that this node may have to take credit first ([`Hold::cover`]). Never on a
    /// node that is alone, which does not compute `actual`.
    pub fn is_short_of(&self, actual: impl FnOnce() -> Micros) -> bool {
        self.ledger.has_allotments && actual() > self.request.amount
    }

    /// Takes credit for a settlement above the amount of the hold, if this node has too little. Takes the missing amount or the credit of
    /// the account, whichever is less, if the credit arrives before the settlement must go on. The missing rest is written off.
    pub async fn cover(&mut self, actual: Micros, at: Timestamp) {
        if !self.is_short_of(|| actual) {
            return;
        }
        let request = HoldRequest {
            operation: self.ledger.next_move(at),
            amount: actual - self.request.amount,
            at,
            ..self.request.in_memory()
        };
        if let Ok(extra) = self.ledger.acquire(request, rest).await {
            self.extra = Some(Box::new(extra));
        }
    }

    /// Frees a hold that exists only in memory, under its shard's lock. The freed credit can be used before the lock is released.
    pub(crate) fn free_in(mut self, shard: &mut Shard) {
        self.resolved = true;
        let HoldRequest {
            operation,
            account,
            amount,
            ..
        } = self.request;
        if shard.open.remove(&operation).is_some() {
            shard.held = shard.held.wrapping_sub(amount.get());
            shard.holder(account).release(amount);
        }
    }

    /// The reason for a refused hold, as far as the store has reported the reason.
    fn refused(&mut self) -> Option<CommitError> {
        match &mut self.durability {
            Durability::Waiting(wait) => wait.try_recv().ok()?.err(),
            Durability::Known(known) => known.clone().err(),
            Durability::Unwritten => None,
        }
    }

    /// Releases the whole hold, and queues the release for the disk.
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
