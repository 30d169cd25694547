//! Refusals: a 429 with its retry delay.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use tollgate_clock::Entropy;
use tollgate_filter::{ApiError, ErrorCode};

use crate::quota::Decision;
use crate::tokens::{TokenDecision, TokenQuota};

/// Retry delay of a request refused by the concurrency limit.
pub(crate) const CONCURRENCY_WAIT_SECS: u64 = 1;

/// Longer delays get jitter.
const SPREAD_ABOVE_SECS: u64 = 60;

/// The decision for sending. When no request remains and the wait is long, jitter adds up to a tenth. Without jitter, clients refused
/// together would retry together.
pub(crate) fn spread(mut decision: Decision, entropy: &Entropy) -> Decision {
    if decision.remaining == 0 {
        decision.reset_secs = longer(decision.reset_secs, entropy);
    }
    decision
}

/// A long wait with jitter of up to a tenth.
fn longer(secs: u64, entropy: &Entropy) -> u64 {
    if secs <= SPREAD_ABOVE_SECS {
        return secs;
    }
    secs + u64::from_le_bytes(entropy.bytes()) % (secs / 10 + 1)
}

/// A 429 for a request that may use more tokens than are left, with the retry delay.
pub(crate) fn too_many_tokens(
    wanted: u64,
    decision: &TokenDecision,
    quota: &TokenQuota,
    entropy: &Entropy,
) -> (ApiError, u64) {
    let seconds = longer(decision.reset_secs, entropy);
    let message = format!(
        "This request may use {wanted} tokens, and {} of {} in {} seconds are left. Try again in {seconds} seconds, or lower `max_tokens`.",
        decision.remaining,
        quota.limit(),
        quota.window_secs(),
    );
    let error = ApiError::new(ErrorCode::RateLimitExceeded, message);
    (error.retry_after(Duration::from_secs(seconds)), seconds)
}

/// A 429 by the concurrency limit. The end of a running request is not known; a second is a short delay.
pub(crate) fn too_many_at_once(max: NonZeroU32) -> ApiError {
    let message = format!(
        "Requests under way: {max}, which is as many as this account may have at once. Wait for one to end and try again."
    );
    let error = ApiError::new(ErrorCode::ConcurrencyExceeded, message);
    error.retry_after(Duration::from_secs(CONCURRENCY_WAIT_SECS))
}

/// A 429 with the retry delay, which equals the delay in `RateLimit`.
pub(crate) fn too_many(what: &'static str, decision: &Decision) -> ApiError {
    let seconds = decision.reset_secs;
    let unit = if seconds == 1 { "second" } else { "seconds" };
    let message: Cow<'static, str> =
        format!("Too many {what}. Try again in {seconds} {unit}.").into();
    ApiError::new(ErrorCode::RateLimitExceeded, message).retry_after(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry_after(remaining: u32, reset_secs: u64, entropy: &Entropy) -> u64 {
        let decision = Decision {
            admitted: false,
            remaining,
            reset_secs,
        };
        spread(decision, entropy).reset_secs
    }

    #[test]
    fn long_waits_are_spread_by_a_tenth_and_never_shortened() {
        let entropy = Entropy::seeded(3);
        assert_eq!(retry_after(0, 60, &entropy), 60);
        assert_eq!(
            retry_after(5, 3600, &entropy),
            3600,
            "no client has to wait"
        );
        let waits: Vec<u64> = (0..200).map(|_| retry_after(0, 600, &entropy)).collect();
        assert!(waits.iter().all(|wait| (600..=660).contains(wait)));
        let spread = waits.iter().max().expect("some") - waits.iter().min().expect("some");
        assert!(spread > 40, "200 clients came back within {spread} seconds");
    }
}
