//! Errors of opening, reconciling and cancelling mandates.

use tollgate_money::MandateId;
use tollgate_store::{CommitError, MandateRow, ReadError, SubscriptionRow};

use super::recurring::RecurringError;
use crate::conflict::WriteConflict;
use crate::plan::PlanError;
use crate::topups::FailureKind;

/// Why no mandate was opened. Nothing was charged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The account already has the plan.
    #[error("the account has the plan already")]
    AlreadyActive(Box<SubscriptionRow>),
    /// The buyer has agreed to a mandate whose first payment is not confirmed: money may be moving.
    #[error("the buyer has agreed, and the payment has not been confirmed yet")]
    Processing(Box<MandateRow>),
    /// A signed transfer of the account may still move money; other payments are offered after the transfer is final.
    #[error("a signed transfer of the account may still move money")]
    Transfer,
    /// The provider's plan does not match the plan on sale, or was not read yet.
    #[error("the plan cannot be sold by recurring payment: {0}")]
    Closed(String),
    /// The provider did not answer, or refused.
    #[error("creating the subscription at the payment provider failed")]
    Provider(#[source] RecurringError),
    /// Reading the account's plan failed.
    #[error(transparent)]
    Plan(PlanError),
    /// Reading the store failed.
    #[error("could not read the mandate")]
    Read(#[source] ReadError),
    /// Writing to the store failed.
    #[error("could not write the mandate")]
    Store(#[source] CommitError),
    /// The process is shutting down.
    #[error("the process is shutting down")]
    Ending,
}

/// Why a reconciliation failed. Retried automatically.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The mandate does not exist.
    #[error("there is no mandate `{0}`")]
    Unknown(MandateId),
    /// The call to the provider failed.
    #[error("calling the payment provider failed")]
    Provider(#[source] RecurringError),
    /// Recording the payment failed.
    #[error(transparent)]
    Plan(PlanError),
    /// Reading the store failed.
    #[error("could not read the mandate")]
    Read(#[source] ReadError),
    /// Writing to the store failed.
    #[error("could not write the mandate")]
    Store(#[source] CommitError),
    /// The process is shutting down.
    #[error("the process is shutting down")]
    Ending,
}

/// Why a mandate was not cancelled or resumed at once. A stored request is retried until the provider confirms.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The account has no mandate to cancel or resume.
    #[error("the account has no such mandate")]
    Nothing,
    /// The request is stored; the provider has not confirmed it yet.
    #[error("the payment provider has not confirmed the request yet")]
    UnderWay(#[source] VerifyError),
    /// The request was not stored. The mandate is unchanged.
    #[error("could not store the change of the mandate")]
    NotStored(#[source] VerifyError),
}

impl WriteConflict for OpenError {
    fn is_conflict(&self) -> bool {
        match self {
            OpenError::Plan(error) => error.is_conflict(),
            OpenError::Store(error) => error.is_conflict(),
            _ => false,
        }
    }
}

impl WriteConflict for VerifyError {
    fn is_conflict(&self) -> bool {
        match self {
            VerifyError::Plan(error) => error.is_conflict(),
            VerifyError::Store(error) => error.is_conflict(),
            _ => false,
        }
    }
}

impl From<VerifyError> for OpenError {
    fn from(error: VerifyError) -> OpenError {
        match error {
            VerifyError::Provider(error) => OpenError::Provider(error),
            VerifyError::Plan(error) => OpenError::Plan(error),
            VerifyError::Read(error) => OpenError::Read(error),
            VerifyError::Store(error) => OpenError::Store(error),
            // The mandate was read just before and exists; the process is shutting down.
            VerifyError::Unknown(_) | VerifyError::Ending => OpenError::Ending,
        }
    }
}

/// Logs a failed call to the payment provider. Wrong settings are an error, everything else is retried.
pub(super) fn log_provider_error(mandate: MandateId, error: &RecurringError, what: &'static str) {
    match error.kind {
        FailureKind::Misconfigured => {
            tracing::error!(%mandate, what, cause = %error,
                "payment provider call failed: check the settings and the merchant account");
        }
        kind => {
            tracing::warn!(%mandate, what, ?kind, cause = %error, "payment provider call failed");
        }
    }
}
