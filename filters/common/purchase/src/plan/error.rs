//! Why what was paid could not be noted.

use tollgate_ledger::CreditError;
use tollgate_money::AccountId;
use tollgate_store::{CommitError, ReadError, Refusal};

/// Why the plan was not changed. Nothing was written; the same may be tried again, and has to be when money has moved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The store could not be read.
    #[error("could not read what the account has")]
    Read(#[source] ReadError),
    /// The store did not write it.
    #[error("could not write what was paid")]
    Store(#[source] CommitError),
    /// What was to be written beside it was refused.
    #[error("what belongs to the payment was refused")]
    AttachedPart(#[source] Refusal),
    /// The credits could not be booked.
    #[error("the credits of the plan could not be booked")]
    Credit(#[source] CreditError),
    /// Others kept changing it.
    #[error("the subscription of `{0}` kept changing; try again")]
    Busy(AccountId),
}
