//! Settlements: the wait for durability before the last byte of a response.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tollgate_clock::Timestamp;
use tollgate_money::{Micros, OperationId, SpendingCap};
use tollgate_store::{CommitError, Failure, Part, Receipt, Refusal};

use crate::spending::Reservation;

/// Why an operation was not charged. The response's tail must not be sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// The hold expired and its credit was released before the settlement.
    #[error(
        "the hold of `{operation}` had expired; raise the hold's lifetime above the longest answer"
    )]
    Expired {
        /// The operation.
        operation: OperationId,
    },
    /// The hold is not open in the store, or the store refused the attached part: another request has taken over the claim. The response is
    /// not charged.
    #[error("the store refused the settlement of `{operation}`")]
    Refused {
        /// The operation.
        operation: OperationId,
        /// The cause.
        #[source]
        source: Refusal,
    },
    /// The store has stopped. Whether the operation is charged is known only after a restart; the process exits.
    #[error("could not write the settlement of `{operation}`")]
    Store {
        /// The operation.
        operation: OperationId,
        /// The cause.
        #[source]
        source: Failure,
    },
}

/// A durable settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The amount charged.
    pub charged: Micros,
    /// The cost beyond `charged`, lost to the operator.
    pub written_off: Micros,
    /// The available balance right after.
    pub available: Micros,
}

/// A part of another component, which becomes durable together with a settlement or charge. The part is built from the result of the
/// charge. One filter leaves the part on the exchange; the charging filter passes the part to the ledger.
///
/// The building function runs under the account's lock, and must neither wait nor call the ledger.
pub struct AttachedPart(Box<dyn FnOnce(Settled) -> Part + Send + Sync>);

impl AttachedPart {
    /// A part built by `make`.
    pub fn new(make: impl FnOnce(Settled) -> Part + Send + Sync + 'static) -> AttachedPart {
        AttachedPart(Box::new(make))
    }

    pub(crate) fn part(self, settled: Settled) -> Part {
        (self.0)(settled)
    }
}

impl std::fmt::Debug for AttachedPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AttachedPart")
    }
}

/// A settlement on its way to the disk; resolves when durable. The settlement is already decided and queued: a drop loses only the
/// notification.
#[derive(Debug)]
#[must_use = "the last byte of the answer may leave only after the settlement is durable"]
pub struct Settlement {
    pub(crate) operation: OperationId,
    pub(crate) settled: Settled,
    pub(crate) wait: Result<oneshot::Receiver<Result<Receipt, CommitError>>, SettleError>,
    /// Present for a settlement that the store may refuse.
    pub(crate) undo: Option<Undo>,
    /// The reservation of a key's cap, replaced by this settlement, and the time of the charge.
    pub(crate) reserved: Option<Box<(SpendingCap, Reservation, Timestamp)>>,
}

/// Further undo after the store has refused a settlement, with or without a waiting caller.
#[derive(Clone, Default)]
pub(crate) struct Undo(Arc<Mutex<UndoState>>);

#[derive(Default)]
enum UndoState {
    #[default]
    Undecided,
    Set(Box<dyn FnOnce() + Send>),
    Refused,
}

impl Undo {
    /// Registers `undo` for a refusal by the store; calls `undo` at once if the store has already refused.
    pub(crate) fn set(&self, undo: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        match *state {
            UndoState::Refused => {
                drop(state);
                undo();
            }
            _ => *state = UndoState::Set(Box::new(undo)),
        }
    }

    /// The store has refused the settlement.
    pub(crate) fn refused(&self) {
        let before = std::mem::replace(&mut *self.state(), UndoState::Refused);
        if let UndoState::Set(undo) = before {
            undo();
        }
    }

    fn state(&self) -> MutexGuard<'_, UndoState> {
        self.0.lock()
    }
}

impl std::fmt::Debug for Undo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Undo")
    }
}

impl Settlement {
    /// The decided result, not durable yet. For a response written in the meantime.
    pub fn settled(&self) -> Settled {
        self.settled
    }

    /// Replaces the reservation of its key's cap by the charge. A store that refuses the settlement later returns the charge to the cap.
    fn count(&mut self) {
        let Some(reserved) = self.reserved.take() else {
            return;
        };
        let (cap, reservation, at) = *reserved;
        let charged = self.settled.charged;
        let counted = reservation.settle(cap, charged, at);
        if let Some(undo) = &self.undo {
            undo.set(move || counted.undo(charged));
        }
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        // The charge is queued, with or without a waiting client.
        self.count();
    }
}

impl Future for Settlement {
    type Output = Result<Settled, SettleError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let operation = self.operation;
        let answer = match &mut self.wait {
            Err(error) => {
                let error = error.clone();
                self.reserved = None;
                return Poll::Ready(Err(error));
            }
            Ok(wait) => std::task::ready!(Pin::new(wait).poll(cx)),
        };
        if !matches!(answer, Ok(Ok(_))) {
            self.reserved = None;
        }
        Poll::Ready(match answer {
            Ok(Ok(_)) => {
                self.count();
                Ok(self.settled)
            }
            Ok(Err(error)) => Err(SettleError::from_commit(operation, error)),
            Err(_) => Err(SettleError::Store {
                operation,
                source: Failure::closed(),
            }),
        })
    }
}

impl SettleError {
    pub(crate) fn from_commit(operation: OperationId, error: CommitError) -> SettleError {
        match error {
            CommitError::Refused(source) => SettleError::Refused { operation, source },
            CommitError::Stopped(source) => SettleError::Store { operation, source },
            _ => SettleError::Store {
                operation,
                source: Failure::closed(),
            },
        }
    }
}
