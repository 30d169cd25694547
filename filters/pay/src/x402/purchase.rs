//! A purchase request and its outcomes, as returned by the steps of a payment.

use std::sync::Arc;
use std::time::Duration;

use tollgate_money::AccountId;
use tollgate_purchase::idempotency::{Answer, ClaimError};
use tollgate_purchase::plan::PlanError;
use tollgate_store::{CommitError, ReadError, Refusal};

use super::payment::Payment;
use super::transfer::IllegalTransition;

#[derive(Clone, Debug)]
pub struct PurchaseRequest {
    /// The account that gets the plan: the owner of the credential.
    pub account: AccountId,
    /// The payment, if any.
    pub payment: Option<Payment>,
    /// The idempotency keys of the request, if any.
    pub idempotency_keys: Vec<Arc<str>>,
}

/// Why the header of a payment cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The protocol's word for the reason.
    pub why: &'static str,
    /// The fault: a clause without a full stop.
    pub detail: String,
}

/// The outcome of a purchase request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PurchaseOutcome {
    /// No payment in the request: an offer may be shown.
    Offer,
    /// The header of the payment cannot be read, and the account may be shown an offer.
    Unreadable(Unreadable),
    /// The payment is invalid, and moves no money: an offer may be shown.
    Refused {
        /// The protocol's word for the reason.
        why: String,
        /// The value of `PAYMENT-RESPONSE` for an attempted payment.
        failure: Option<String>,
        /// Whether no moved money is proved. Otherwise the payment was submitted, and only the facilitator reports this.
        is_proven: bool,
    },
    /// The facilitator refused the payment after submission, and the chain does not rule out a settlement yet: no offer.
    NotFinal {
        /// The reason of the refusal, as the protocol names it.
        why: String,
        /// Seconds until settlement becomes impossible.
        secs: u64,
    },
    /// The account has the plan.
    Done(Answer),
    /// The payment was presented by another account before.
    UsedByAnother,
    /// An idempotency key of the request was used with another request.
    OtherRequest,
    /// A request with the same idempotency key is in progress.
    InProgress,
    /// Money may be moving.
    Processing,
    /// The facilitator is unavailable, or the token is not verified; no money has moved.
    Unavailable,
    /// Too many signatures that could not be verified locally.
    TooManyUnverified(Duration),
    /// Too many payments of the account were refused after submission, without confirmation by a node. This payment was not submitted.
    TooManyRefused(Duration),
    /// The store could not be read or written.
    StoreUnavailable,
}

/// A read or write of the store that failed during an attempt.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreFailure {
    #[error("could not read a payment")]
    Read(#[from] ReadError),
    #[error("could not write a payment")]
    Write(#[from] CommitError),
    #[error("could not read or write the plan state of the account")]
    Plan(#[from] PlanError),
    #[error("could not claim an idempotency key")]
    IdempotencyKey(#[from] ClaimError),
    #[error("the payment has changed meanwhile")]
    Transition(#[from] IllegalTransition),
}

impl StoreFailure {
    /// Whether another node has changed the payment since it was read.
    fn is_conflict(&self) -> bool {
        let refusal = match self {
            StoreFailure::Write(CommitError::Refused(refusal))
            | StoreFailure::Plan(PlanError::AttachedPart(refusal)) => refusal,
            _ => return false,
        };
        matches!(refusal, Refusal::AuthorizationConflict)
    }
}

impl PurchaseOutcome {
    /// The refusal of a payment that was not submitted.
    pub(super) fn refused(why: &str) -> PurchaseOutcome {
        PurchaseOutcome::Refused {
            why: why.to_owned(),
            failure: None,
            is_proven: true,
        }
    }
}

/// The end of a payment before its last step.
#[derive(Debug)]
pub(super) enum Stop {
    /// The outcome of the payment.
    Outcome(PurchaseOutcome),
    /// The store failed. What was stored before is reconciled.
    Store(StoreFailure),
}

impl<E> From<E> for Stop
where
    StoreFailure: From<E>,
{
    fn from(error: E) -> Stop {
        Stop::Store(StoreFailure::from(error))
    }
}

impl Stop {
    /// The outcome for the buyer. A failure of the store is logged.
    pub(super) fn into_outcome(self) -> PurchaseOutcome {
        match self {
            Stop::Outcome(outcome) => outcome,
            Stop::Store(error) if error.is_conflict() => {
                tracing::info!(%error, "payment attempt left to another node");
                PurchaseOutcome::Processing
            }
            Stop::Store(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "payment attempt failed");
                PurchaseOutcome::StoreUnavailable
            }
        }
    }
}
