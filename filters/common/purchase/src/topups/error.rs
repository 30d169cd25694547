//! Why a purchase did not begin, or could not be looked at.

use tollgate_ledger::CreditError;
use tollgate_money::TopUpId;
use tollgate_store::{CommitError, ReadError};

use super::offer::PriceError;
use super::orders::OrderError;

/// Why a purchase did not begin. Nothing was charged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeginError {
    /// The amount is not on offer.
    #[error(transparent)]
    Price(#[from] PriceError),
    /// The id stands for another purchase: of somebody else, or of another amount.
    #[error("`{0}` is another purchase")]
    OtherPurchase(TopUpId),
    /// Too many purchases of this account are unfinished.
    #[error("{open} purchases are unfinished; finish one, or wait until they end")]
    TooMany {
        /// How many.
        open: usize,
    },
    /// The provider did not answer, or not in a way that could be understood. The same purchase can be begun again.
    #[error("the payment provider did not make the order")]
    Provider(#[source] OrderError),
    /// The store could not be read.
    #[error("could not read the purchase")]
    Read(#[source] ReadError),
    /// The store did not write it.
    #[error("could not write the purchase")]
    Store(#[source] CommitError),
    /// The process is ending.
    #[error("the process is ending")]
    Ending,
}

/// Why a look came to nothing. It is repeated by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// There is no such purchase.
    #[error("there is no purchase `{0}`")]
    Unknown(TopUpId),
    /// The provider could not be asked.
    #[error("the payment provider could not be asked")]
    Provider(#[source] OrderError),
    /// The books did not take the credit.
    #[error("the credit could not be booked")]
    Credit(#[source] CreditError),
    /// The store could not be read.
    #[error("could not read the purchase")]
    Read(#[source] ReadError),
    /// The store did not write it.
    #[error("could not write the purchase")]
    Store(#[source] CommitError),
    /// The process is ending.
    #[error("the process is ending")]
    Ending,
}
