//! Why a mandate could not be opened, looked at or ended.

use tollgate_money::MandateId;
use tollgate_store::{CommitError, MandateRow, ReadError, SubscriptionRow};

use super::recurring::RecurringError;
use crate::plan::PlanError;

/// Why no mandate is offered. Nothing was charged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The account has the plan.
    #[error("the account has the plan already")]
    AlreadyActive(Box<SubscriptionRow>),
    /// The buyer has agreed to one, and its first payment has yet to come: money may be moving.
    #[error("the buyer has agreed, and the payment has not been confirmed yet")]
    Processing(Box<MandateRow>),
    /// A transfer that the buyer has signed may still move money, and nothing else is to be agreed to before that is clear.
    #[error("a signed transfer of the account may still move money")]
    Transfer,
    /// The provider's plan is not what is sold here, or has not been seen yet.
    #[error("the plan cannot be sold by recurring payment: {0}")]
    Closed(String),
    /// The provider did not answer, or said no.
    #[error("the payment provider did not make the subscription")]
    Provider(#[source] RecurringError),
    /// What the account has could not be read.
    #[error(transparent)]
    Plan(PlanError),
    /// The store could not be read.
    #[error("could not read the mandate")]
    Read(#[source] ReadError),
    /// The store did not write it.
    #[error("could not write the mandate")]
    Store(#[source] CommitError),
    /// The process is ending.
    #[error("the process is ending")]
    Ending,
}

/// Why a look came to nothing. It is repeated by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// There is no such mandate.
    #[error("there is no mandate `{0}`")]
    Unknown(MandateId),
    /// The provider could not be asked.
    #[error("the payment provider could not be asked")]
    Provider(#[source] RecurringError),
    /// What was paid could not be noted.
    #[error(transparent)]
    Plan(PlanError),
    /// The store could not be read.
    #[error("could not read the mandate")]
    Read(#[source] ReadError),
    /// The store did not write it.
    #[error("could not write the mandate")]
    Store(#[source] CommitError),
    /// The process is ending.
    #[error("the process is ending")]
    Ending,
}

/// Why a mandate was not ended at once. Where it was stored that it shall be, it is tried until it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CancelError {
    /// The account has nothing that could be ended.
    #[error("nothing is charged for this account")]
    Nothing,
    /// It will be ended; the provider has not confirmed it yet.
    #[error("the payment provider has not confirmed it yet")]
    UnderWay(#[source] VerifyError),
    /// It was not stored that it shall end: nothing has changed.
    #[error("could not write that the mandate ends")]
    NotStored(#[source] VerifyError),
}

impl From<VerifyError> for OpenError {
    fn from(error: VerifyError) -> OpenError {
        match error {
            VerifyError::Provider(error) => OpenError::Provider(error),
            VerifyError::Plan(error) => OpenError::Plan(error),
            VerifyError::Read(error) => OpenError::Read(error),
            VerifyError::Store(error) => OpenError::Store(error),
            // A mandate that was read a moment ago is there; the process is ending.
            VerifyError::Unknown(_) | VerifyError::Ending => OpenError::Ending,
        }
    }
}
