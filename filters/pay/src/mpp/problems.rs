//! Problems and challenge reasons of the MPP route, for buyers without the plan.

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
const A_MOMENT: Duration = Duration::from_secs(1);

/// Why a challenge is sent.
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
    detail: "The plan is paid each month with PayPal. Have the owner of the account open the approval URL and agree; then send the request again with the credential of this challenge.",
    state: PaymentState::Required,
    action: RetryAction::ApproveThenRetry,
    retry_after: None,
};

/// The owner has not approved.
pub(super) const NOT_APPROVED: ChallengeReason = ChallengeReason {
    code: ErrorCode::PaymentActionRequired,
    detail: "The owner of the account has not agreed yet, or PayPal has not told us. Nothing was charged. Have them open the approval URL, and send the request again.",
    state: PaymentState::ApprovalPending,
    action: RetryAction::ApproveThenRetry,
    retry_after: Some(SOON),
};

/// The owner has approved, and the payment has not arrived.
pub(super) const NOT_PAID: ChallengeReason = ChallengeReason {
    code: ErrorCode::PaymentActionRequired,
    detail: "The owner of the account has agreed, and PayPal has not confirmed the first payment yet. Nobody has to agree again: send the request again until it is there.",
    state: PaymentState::Processing,
    action: RetryAction::RetrySame,
    retry_after: Some(SOON),
};

/// The owner has approved, and PayPal could not collect the payment.
pub(super) const NOT_COLLECTED: ChallengeReason = ChallengeReason {
    code: ErrorCode::PaymentActionRequired,
    detail: "The owner of the account has agreed, and PayPal could not collect the first payment. Nothing was charged. PayPal may try again; the challenge of this answer is a new one, with another approval URL.",
    state: PaymentState::Failed,
    action: RetryAction::PayAgain,
    retry_after: None,
};

/// The payment of the credential has failed or ended.
pub(super) const ENDED: ChallengeReason = ChallengeReason {
    code: ErrorCode::VerificationFailed,
    detail: "Nothing was kept of this payment: it was ended, or is not what was offered. The challenge of this answer is a new one, with another approval URL.",
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
    detail: "The payment belongs to another account. Write to support.",
    state: PaymentState::Refused,
    action: RetryAction::ContactSupport,
    retry_after: None,
};

/// The idempotency key was used with another request.
pub(super) fn other_request() -> Problem {
    Problem::new(
        ErrorCode::IdempotencyConflict,
        "This idempotency key was sent with another body. Use a new key for another request.",
        PaymentState::Refused,
        RetryAction::Pay,
    )
}

/// No payment can be offered now.
pub(super) fn unavailable() -> Problem {
    Problem::new(
        ErrorCode::PaymentRouteUnavailable,
        "The plan cannot be bought in this way at the moment. Nothing was charged; try again later, or choose another way of paying.",
        PaymentState::Unavailable,
        RetryAction::RetrySame,
    )
    .retry_after(LATER)
}

/// The payment's outcome is not known now.
pub(super) fn outcome_unknown() -> Problem {
    Problem::new(
        ErrorCode::PaymentRouteUnavailable,
        "What has become of the payment cannot be found out at the moment. Nothing is lost: send the same request again. Do not pay in another way meanwhile.",
        PaymentState::Processing,
        RetryAction::RetrySame,
    )
    .retry_after(LATER)
}

/// A payment over another protocol may be moving money.
pub(super) fn transfer_in_progress() -> Problem {
    Problem::new(
        ErrorCode::PaymentRouteUnavailable,
        "A payment by another way is under way for this account. Send the request again when it is clear; paying now could pay twice.",
        PaymentState::Processing,
        RetryAction::RetrySame,
    )
    .retry_after(SOON)
}

/// Another request of the account takes too long.
pub(super) fn in_progress() -> Problem {
    Problem::new(
        ErrorCode::InProgress,
        "Another request of this account is being answered. Send this one again in a second.",
        PaymentState::Processing,
        RetryAction::RetrySame,
    )
    .retry_after(A_MOMENT)
}

/// The store failed to write what must be durable before the purchase starts.
pub(super) fn store_unavailable(error: &ClaimError) -> Problem {
    tracing::warn!(%error, "a purchase could not be begun");
    Problem::new(
        ErrorCode::StoreUnavailable,
        "The service cannot write at the moment. Nothing was charged; try again in a second.",
        PaymentState::Unavailable,
        RetryAction::RetrySame,
    )
    .retry_after(A_MOMENT)
}
