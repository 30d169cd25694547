//! Errors of creating and reconciling purchases.

use tollgate_ledger::CreditError;
use tollgate_money::TopUpId;
use tollgate_store::{CommitError, ReadError};

use super::offer::PriceError;
use super::orders::OrderError;
use crate::conflict::WriteConflict;

/// Why a purchase was not created. Nothing was charged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeginError {
    /// Credits have no price.
    #[error("credits are not sold; set their price")]
    NotSold,
    /// The amount is not on offer.
    #[error(transparent)]
    Price(#[from] PriceError),
    /// The id belongs to a purchase of another account or another amount.
    #[error("`{0}` is another purchase")]
    OtherPurchase(TopUpId),
    /// The account has too many unfinished purchases.
    #[error("{open} purchases are unfinished; finish one, or wait until they end")]
    TooMany {
        /// How many.
        open: usize,
    },
    /// The provider did not answer, or refused. The same purchase can be retried.
    #[error("creating the order at the payment provider failed")]
    Provider(#[source] OrderError),
    /// Reading the store failed.
    #[error("could not read the purchase")]
    Read(#[source] ReadError),
    /// Writing to the store failed.
    #[error("could not write the purchase")]
    Store(#[source] CommitError),
    /// The process is shutting down.
    #[error("the process is shutting down")]
    Ending,
}

/// Why a reconciliation failed. Retried automatically.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The purchase does not exist.
    #[error("there is no purchase `{0}`")]
    Unknown(TopUpId),
    /// The call to the provider failed.
    #[error("calling the payment provider failed")]
    Provider(#[source] OrderError),
    /// Booking the credit failed.
    #[error("the credit could not be booked")]
    Credit(#[source] CreditError),
    /// Reading the store failed.
    #[error("could not read the purchase")]
    Read(#[source] ReadError),
    /// Writing to the store failed.
    #[error("could not write the purchase")]
    Store(#[source] CommitError),
    /// The process is shutting down.
    #[error("the process is shutting down")]
    Ending,
}

impl WriteConflict for BeginError {
    fn is_conflict(&self) -> bool {
        matches!(self, BeginError::Store(error) if error.is_conflict())
    }
}

impl WriteConflict for ReconcileError {
    fn is_conflict(&self) -> bool {
        match self {
            ReconcileError::Credit(CreditError::Conflict(refusal)) => refusal.is_conflict(),
            ReconcileError::Store(error) => error.is_conflict(),
            _ => false,
        }
    }
}
