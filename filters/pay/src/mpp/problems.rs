//! Problem responses of the MPP endpoint, and the reasons for which a challenge is issued.

use std::time::Duration;

use tollgate_filter::ErrorCode;
use tollgate_purchase::idempotency::ClaimError;
use tollgate_purchase::plan::{PaymentState, RetryAction};

use crate::problem::Problem;

/// `Retry-After` while the owner's approval or the first payment is awaited.
const SOON: Duration = Duration::from_secs(5);

/// `Retry-After` while a dependency is unavailable.
const LATER: Duration = Duration::from_secs(10);

/// `Retry-After` while another request of the account is in progress.
const CONTENDED: Duration = Duration::from_secs(1);

/// Why a challenge is issued.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChallengeReason {
    pub(super) code: ErrorCode,
    pub(super) detail: &'static str,
    pub(super) state: PaymentState,
    pub(super) action: RetryAction,
    pub(super) retry_after: Option<Duration>,
}

/// No credential was sent yet.
pub(super) const OFFER: ChallengeReason = ChallengeReason {
    code: ErrorCode::PaymentRequired,
    detail: "The plan is charged monthly through PayPal. Have the account owner approve the payment at the approval URL, then repeat the request with a credential that answers this challenge.",
    state: PaymentState::Required,
    action: RetryAction::ApproveThenRetry,
    retry_after: None,
};

/// The owner has not approved.
pub(super) const NOT_APPROVED: ChallengeReason = ChallengeReason {
    code: ErrorCode::PaymentActionRequired,
    detail: "The account owner has not approved the payment yet, or PayPal has not reported the approval. Nothing was charged. Have the owner approve it at the approval URL, then repeat the request.",
    state: PaymentState::ApprovalPending,
    action: RetryAction::ApproveThenRetry,
    retry_after: Some(SOON),
};

/// The owner has approved, and the payment has not arrived.
pub(super) const NOT_PAID: ChallengeReason = ChallengeReason {
    code: ErrorCode::PaymentActionRequired,
    detail: "The account owner has approved the payment, and PayPal has not confirmed the first charge yet. No further approval is needed: repeat the request until it is confirmed.",
    state: PaymentState::Processing,
    action: RetryAction::RetrySame,
    retry_after: Some(SOON),
};

/// The owner has approved, and PayPal could not collect the payment.
pub(super) const NOT_COLLECTED: ChallengeReason = ChallengeReason {
    code: ErrorCode::PaymentActionRequired,
    detail: "The account owner has approved the payment, and PayPal could not collect the first charge. Nothing was charged. PayPal may retry; this response has a new challenge with another approval URL.",
    state: PaymentState::Failed,
    action: RetryAction::PayAgain,
    retry_after: None,
};

/// The payment of the credential has failed or ended.
pub(super) const ENDED: ChallengeReason = ChallengeReason {
    code: ErrorCode::VerificationFailed,
    detail: "The payment was cancelled or does not match the offer, and a charge, if there was one, is refunded or left to the operator. This response has a new challenge with another approval URL.",
    state: PaymentState::Failed,
    action: RetryAction::PayAgain,
    retry_after: None,
};

/// An invalid credential, with a challenge for another attempt.
pub(super) fn refused(code: ErrorCode, detail: &'static str) -> ChallengeReason {
    ChallengeReason {
        code,
        detail,
        state: PaymentState::Refused,
        action: RetryAction::Pay,
        retry_after: None,
    }
}

/// A challenge that cannot be answered, or was answered already.
pub(super) fn invalid(detail: &'static str) -> ChallengeReason {
    refused(ErrorCode::InvalidChallenge, detail)
}

/// A payment method that is not supported here.
pub(super) fn other_method(detail: &'static str) -> Problem {
    let (state, action) = (PaymentState::Refused, RetryAction::PayAgain);
    Problem::new(ErrorCode::MethodUnsupported, detail, state, action)
}

/// A payment of another account, which the binding should have prevented.
pub(super) const OTHER_ACCOUNT: ChallengeReason = ChallengeReason {
    code: ErrorCode::VerificationFailed,
    detail: "The payment belongs to another account. Contact support.",
    state: PaymentState::Refused,
    action: RetryAction::ContactSupport,
    retry_after: None,
};

/// The idempotency key was used with another request.
pub(super) fn other_request() -> Problem {
    Problem::new(
        ErrorCode::IdempotencyConflict,
        "This idempotency key was used with another body. Use a new key for another request.",
        PaymentState::Refused,
        RetryAction::Pay,
    )
}

/// No payment can be offered now.
pub(super) fn unavailable() -> Problem {
    Problem::new(
        ErrorCode::PaymentRouteUnavailable,
        "The plan cannot be bought with MPP at the moment. Nothing was charged. Retry later, or use another payment method.",
        PaymentState::Unavailable,
        RetryAction::RetrySame,
    )
    .retry_after(LATER)
}

/// The payment's outcome is not known now.
pub(super) fn outcome_unknown() -> Problem {
    Problem::new(
        ErrorCode::PaymentRouteUnavailable,
        "The outcome of the payment cannot be determined at the moment. No payment is lost: repeat the same request. Do not pay by another method meanwhile.",
        PaymentState::Processing,
        RetryAction::RetrySame,
    )
    .retry_after(LATER)
}

/// A payment over another protocol may be moving money.
pub(super) fn transfer_in_progress() -> Problem {
    Problem::new(
        ErrorCode::PaymentRouteUnavailable,
        "A payment by another method is in progress for this account. Repeat the request until its outcome is known; paying now could charge twice.",
        PaymentState::Processing,
        RetryAction::RetrySame,
    )
    .retry_after(SOON)
}

/// Another request of the account takes too long.
pub(super) fn in_progress() -> Problem {
    Problem::new(
        ErrorCode::InProgress,
        "Another request of this account is in progress. Repeat this one in a second.",
        PaymentState::Processing,
        RetryAction::RetrySame,
    )
    .retry_after(CONTENDED)
}

/// The store could not write the claim, which must be durable before the purchase starts.
pub(super) fn store_unavailable(error: &ClaimError) -> Problem {
    tracing::warn!(%error, "claiming idempotency key failed");
    Problem::new(
        ErrorCode::StoreUnavailable,
        "The service cannot write to its store at the moment. Nothing was charged. Retry in a second.",
        PaymentState::Unavailable,
        RetryAction::RetrySame,
    )
    .retry_after(CONTENDED)
}
