//! Errors of recording payments for the plan.

use tollgate_ledger::{BalanceError, CreditError, HoldError};
use tollgate_money::AccountId;
use tollgate_store::{CommitError, ReadError, Refusal};

use crate::conflict::WriteConflict;

/// Why the subscription was not changed. Nothing was written. Retry, and always after a movement of money.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Reading the store failed.
    #[error("could not read the subscription of the account")]
    Read(#[source] ReadError),
    /// Writing to the store failed.
    #[error("could not record the payment")]
    Store(#[source] CommitError),
    /// An attached part was refused.
    #[error("a part attached to the payment was refused")]
    AttachedPart(#[source] Refusal),
    /// Booking the credits failed.
    #[error("the credits of the plan could not be booked")]
    Credit(#[source] CreditError),
    /// The balance of the account, which decides how much is taken back, is not known.
    #[error("could not read the balance of the account")]
    Balance(#[source] BalanceError),
    /// Other nodes have not returned their free allotment of the account.
    #[error("could not recall the credit of the account")]
    Recall(#[source] HoldError),
    /// Concurrent writers kept changing the subscription.
    #[error("the subscription of `{0}` kept changing; try again")]
    Busy(AccountId),
}

impl WriteConflict for PlanError {
    fn is_conflict(&self) -> bool {
        match self {
            PlanError::AttachedPart(refusal)
            | PlanError::Credit(CreditError::Conflict(refusal)) => refusal.is_conflict(),
            PlanError::Store(error) => error.is_conflict(),
            _ => false,
        }
    }
}
