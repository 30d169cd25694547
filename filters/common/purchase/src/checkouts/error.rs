//! Why a checkout was not begun, looked at or changed.

use tollgate_store::{CommitError, ReadError};

use super::session::{NotModifiable, Status};
use crate::mandates::{OpenError, VerifyError};
use crate::plan::PlanError;

/// Why nothing was done. No money has moved by it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckoutError {
    /// It is over, or its owner has agreed to it as it is.
    #[error("the checkout is `{}` and is not changed any more", .0.word())]
    NotModifiable(Status),
    /// The plan cannot be sold by a monthly payment at the moment.
    #[error("the plan cannot be sold by recurring payment: {0}")]
    Closed(String),
    /// Money that was paid in another way may still be moving.
    #[error("another payment of the account is not clear yet")]
    Processing,
    /// The payment provider could not be asked, or did not do what it was asked for.
    #[error("the payment provider could not be asked")]
    Provider(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What the account has could not be read or written.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The store could not be read.
    #[error("could not read the checkout")]
    Read(#[from] ReadError),
    /// The store did not write it.
    #[error("could not write the checkout")]
    Store(#[source] CommitError),
    /// Others kept changing it.
    #[error("the checkout kept changing; try again")]
    Busy,
    /// The process is ending.
    #[error("the process is ending")]
    Ending,
}

impl From<NotModifiable> for CheckoutError {
    fn from(NotModifiable(status): NotModifiable) -> CheckoutError {
        CheckoutError::NotModifiable(status)
    }
}

impl From<VerifyError> for CheckoutError {
    fn from(error: VerifyError) -> CheckoutError {
        match error {
            VerifyError::Provider(error) => CheckoutError::Provider(Box::new(error)),
            VerifyError::Plan(error) => CheckoutError::Plan(error),
            VerifyError::Read(error) => CheckoutError::Read(error),
            VerifyError::Store(error) => CheckoutError::Store(error),
            // A mandate that was read a moment ago is there; the process is ending.
            _ => CheckoutError::Ending,
        }
    }
}

impl From<OpenError> for CheckoutError {
    fn from(error: OpenError) -> CheckoutError {
        match error {
            OpenError::Closed(why) => CheckoutError::Closed(why),
            OpenError::Provider(error) => CheckoutError::Provider(Box::new(error)),
            OpenError::Plan(error) => CheckoutError::Plan(error),
            OpenError::Read(error) => CheckoutError::Read(error),
            OpenError::Store(error) => CheckoutError::Store(error),
            // What is active or agreed to is looked at before this; whatever else there is may still move money.
            OpenError::AlreadyActive(_) | OpenError::Processing(_) | OpenError::Transfer => {
                CheckoutError::Processing
            }
            _ => CheckoutError::Ending,
        }
    }
}
