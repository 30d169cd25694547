//! Errors of checkouts.

use tollgate_store::{CommitError, ReadError};

use super::session::{NotModifiable, Status};
use crate::mandates::{OpenError, VerifyError};
use crate::plan::PlanError;

/// Why an operation on a checkout failed. It moved no money.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckoutError {
    /// The checkout has ended, or the owner has already agreed.
    #[error("the checkout is `{}` and can no longer be changed", .0.word())]
    NotModifiable(Status),
    /// The plan cannot be sold by monthly payment at the moment.
    #[error("the plan cannot be sold by recurring payment: {0}")]
    Closed(String),
    /// A payment on another route may still move money.
    #[error("another payment of the account is still pending")]
    Processing,
    /// The call to the payment provider failed.
    #[error("calling the payment provider failed")]
    Provider(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Reading or writing the account's subscription failed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Reading the store failed.
    #[error("could not read the checkout")]
    Read(#[from] ReadError),
    /// Writing to the store failed.
    #[error("could not write the checkout")]
    Store(#[source] CommitError),
    /// Concurrent writers kept changing the checkout.
    #[error("the checkout kept changing; try again")]
    Busy,
    /// The process is shutting down.
    #[error("the process is shutting down")]
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
            // The mandate was read just before and exists; the process is shutting down.
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
            // The caller checks for an active plan and an agreed mandate before; any other payment may still move money.
            OpenError::AlreadyActive(_) | OpenError::Processing(_) | OpenError::Transfer => {
                CheckoutError::Processing
            }
            _ => CheckoutError::Ending,
        }
    }
}
