//! HTTP responses to the outcomes of a purchase: the plan with the receipt, or a problem with an offer where permitted.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;
use tollgate_filter::{ErrorCode, Exchange, Outcome, Reply, ReplyBody};
use tollgate_module::Snapshot;
use tollgate_purchase::idempotency::Answer;
use tollgate_purchase::plan::{PaymentState, RetryAction};
use tollgate_purchase::wire::Product;

use super::extensions;
use super::offer::{Offer, Terms};
use super::purchase::{PurchaseOutcome, Unreadable};
use super::reason::exact;
use crate::problem::{JSON, Problem};

/// The offer, in a response.
const REQUIRED: HeaderName = HeaderName::from_static("payment-required");
/// The receipt, in a response.
const RESPONSE: HeaderName = HeaderName::from_static("payment-response");

/// `Retry-After` while a payment's outcome is not known.
const RETRY_SOON: Duration = Duration::from_secs(3);

/// `Retry-After` while no payment can be accepted.
const RETRY_LATER: Duration = Duration::from_secs(15);

/// The content of responses: the terms, and the other members of an offer.
pub(crate) struct Responses {
    terms: Terms,
    product: Snapshot<Product>,
    extensions: Value,
    /// The price as text.
    price: String,
}

impl Responses {
    pub(crate) fn new(terms: Terms, product: Snapshot<Product>) -> Responses {
        let sold = product.load_full();
        Responses {
            terms,
            product,
            extensions: extensions::offered(&sold.id),
            price: format!("{} USDC", sold.price_usd),
        }
    }

    /// The response to an outcome. `is_available`: an offer may be shown.
    pub(crate) fn respond(
        &self,
        exchange: &mut Exchange,
        outcome: PurchaseOutcome,
        is_available: bool,
    ) -> Outcome {
        let problem = match outcome {
            PurchaseOutcome::Done(answer) => return done(answer),
            PurchaseOutcome::Offer
            | PurchaseOutcome::Unreadable(_)
            | PurchaseOutcome::Refused { .. }
                if !is_available =>
            {
                unavailable()
            }
            PurchaseOutcome::Unreadable(unreadable) => self.unreadable(unreadable),
            PurchaseOutcome::Offer => self.offer(),
            PurchaseOutcome::Refused {
                why,
                failure,
                is_proven,
            } => self.refused(&why, failure, is_proven),
            PurchaseOutcome::UsedByAnother => used_by_another(),
            PurchaseOutcome::OtherRequest => other_request(),
            PurchaseOutcome::InProgress => in_progress(),
            PurchaseOutcome::Processing => processing(),
            PurchaseOutcome::NotFinal { why, secs } => not_final(&why, secs),
            PurchaseOutcome::Unavailable => unavailable(),
            PurchaseOutcome::TooManyUnverified(wait) => too_many_unverified(wait),
            PurchaseOutcome::TooManyRefused(wait) => too_many_refused(wait),
            PurchaseOutcome::StoreUnavailable => store_unavailable(),
        };
        problem.outcome(exchange, JSON)
    }

    fn unreadable(&self, Unreadable { why, detail }: Unreadable) -> Problem {
        let detail = format!(
            "{detail}. Nothing was charged. Correct the header and send the request again; the offer in PAYMENT-REQUIRED is for a \
                     payment that was not made yet."
        );
        let problem = Problem::new(
            ErrorCode::InvalidPayload,
            detail,
            PaymentState::Refused,
            RetryAction::FixRequest,
        );
        self.with_offer(problem, why)
    }

    fn offer(&self) -> Problem {
        let detail = format!(
            "Pay exactly {} on the network that PAYMENT-REQUIRED names, for 30 days of the plan, which buy: {}. Sign the offer with an x402 client \
                     (version 2) and repeat the same request with PAYMENT-SIGNATURE. {}",
            self.price,
            self.product.load().includes(),
            self.spending_cap()
        );
        let problem = Problem::new(
            ErrorCode::PaymentRequired,
            detail,
            PaymentState::Required,
            RetryAction::Pay,
        );
        self.with_offer(problem, "Payment required")
    }

    fn refused(&self, why: &str, failure: Option<String>, is_proven: bool) -> Problem {
        let state = match failure {
            None => PaymentState::Refused,
            Some(_) => PaymentState::Failed,
        };
        let advice = match is_proven {
            true => "Nothing was charged. Make a new payment for the offer in PAYMENT-REQUIRED.",
            false => {
                "It, or another signature for its nonce, was submitted before, and this service cannot prove that nothing was \
                         charged: look up the wallet's transfers before you make a new payment for the offer in PAYMENT-REQUIRED. Repeating the \
                         same request is safe: it is checked again and charged at most once."
            }
        };
        let detail = format!("{} {advice} {}", explained(why), self.spending_cap());
        let problem = Problem::new(code(why), detail, state, RetryAction::PayAgain);
        let problem = match failure.map(HeaderValue::try_from) {
            Some(Ok(value)) => problem.header(RESPONSE, value),
            _ => problem,
        };
        self.with_offer(problem, why)
    }

    fn with_offer(&self, problem: Problem, error: &str) -> Problem {
        let product = self.product.load();
        let offer = Offer {
            terms: &self.terms,
            url: product.purchase.get("x402").map_or("", String::as_str),
            description: &format!("{}, 30 days: {}", product.name, product.includes()),
            error,
            extensions: Some(&self.extensions),
        };
        let value = HeaderValue::try_from(offer.header()).expect("base64 is visible ASCII");
        let mut members = offer.members();
        members["includes"] = product.includes.clone().into();
        problem.header(REQUIRED, value).payment(members)
    }

    /// Advice for the operators of paying programs.
    fn spending_cap(&self) -> String {
        format!(
            "Stock x402 clients refuse to sign for more than 1 USD until their spending cap is raised: set it to {} for this payment.",
            self.price
        )
    }
}

fn done(answer: Answer) -> Outcome {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("private, no-store"),
    );
    for (name, value) in &answer.fields {
        if let (Ok(name), Ok(value)) = (
            HeaderName::try_from(name.as_str()),
            HeaderValue::try_from(value.as_str()),
        ) {
            headers.insert(name, value);
        }
    }
    Outcome::reply(Reply {
        status: StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK),
        headers,
        body: ReplyBody::Whole(answer.body.to_vec().into()),
    })
}

fn used_by_another() -> Problem {
    Problem::new(
        ErrorCode::PaymentAlreadyUsed,
        "Another account presented this payment first, and it counts for that account. Find out which account that is before you pay again.",
        PaymentState::Refused,
        RetryAction::ContactSupport,
    )
}

fn other_request() -> Problem {
    Problem::new(
        ErrorCode::IdempotencyConflict,
        "This idempotency key, or this `payment-identifier`, was used with another payment. Use a new one for a new payment.",
        PaymentState::Refused,
        RetryAction::None,
    )
}

fn in_progress() -> Problem {
    Problem::new(
                ErrorCode::InProgress,
                "A request with this idempotency key is in progress. Repeat the same request after `Retry-After`.",
                PaymentState::Processing,
                RetryAction::RetrySame,
            )
            .retry_after(RETRY_SOON)
}

fn processing() -> Problem {
    Problem::new(
                ErrorCode::PaymentRouteUnavailable,
                "The outcome of a payment of this account is not known yet: the money may be moving. Do not pay again; repeat the same request \
                 after `Retry-After`. If the money has moved, the plan is activated without a request.",
                PaymentState::Processing,
                RetryAction::RetrySame,
            )
            .retry_after(RETRY_SOON)
}

fn not_final(why: &str, secs: u64) -> Problem {
    Problem::new(
                ErrorCode::PaymentRouteUnavailable,
                format!(
                    "The facilitator refused the last payment of this account after it was submitted. {} The transfer can still settle \
                     for up to {secs} seconds, so no other payment is accepted before then. Repeat the same request: it is checked again and \
                     charged at most once. If the money has moved, the plan is activated without a request.",
                    explained(why)
                ),
                PaymentState::Processing,
                RetryAction::RetrySame,
            )
            .retry_after(RETRY_SOON)
}

fn too_many_unverified(wait: Duration) -> Problem {
    Problem::new(
                ErrorCode::RateLimitExceeded,
                "Too many payments whose signatures do not recover to their wallets. Wait for `Retry-After`, and check how the wallet signs.",
                PaymentState::Refused,
                RetryAction::RetrySame,
            )
            .retry_after(wait)
            .limit("unverified-payments")
}

fn too_many_refused(wait: Duration) -> Problem {
    Problem::new(
                ErrorCode::RateLimitExceeded,
                "Too many payments of this account were refused after they were submitted. This one was not submitted and nothing was \
                 charged for it. Look up the wallet's transfers, and ask the operator to close the refused payments.",
                PaymentState::Refused,
                RetryAction::RetrySame,
            )
            .retry_after(wait)
            .limit("refused-payments")
}

fn store_unavailable() -> Problem {
    Problem::new(
                ErrorCode::StoreUnavailable,
                "The service cannot read or write its store at the moment. Do not pay again; repeat the same request after `Retry-After`.",
                PaymentState::Processing,
                RetryAction::RetrySame,
            )
            .retry_after(RETRY_SOON)
}

fn unavailable() -> Problem {
    Problem::new(
        ErrorCode::PaymentRouteUnavailable,
        "The plan cannot be bought with x402 at the moment: the facilitator is unavailable, or the token cannot be verified on the chain. \
         Nothing was charged. A payment in this request stays valid until its expiry: repeat the same request, or use another payment method.",
        PaymentState::Unavailable,
        RetryAction::RetrySame,
    )
    .retry_after(RETRY_LATER)
}

/// The error code of a reason.
fn code(why: &str) -> ErrorCode {
    match why {
        why if why.starts_with("invalid_payload") || why.starts_with("invalid_x402_version") => {
            ErrorCode::InvalidPayload
        }
        why if why.ends_with("valid_before") => ErrorCode::PaymentExpired,
        _ => ErrorCode::VerificationFailed,
    }
}

/// A refusal in words for people, with the facilitator's own word for it.
fn explained(why: &str) -> String {
    let plain = match exact(why) {
        "insufficient_funds" | "insufficient_balance" => {
            "The wallet does not have enough USDC on this network."
        }
        "No matching payment requirements" | "invalid_payment_requirements" => {
            "The payment accepts other terms than the offered ones."
        }
        "invalid_payload" => "PAYMENT-SIGNATURE cannot be read as an x402 payment of version 2.",
        why if why.starts_with("invalid_x402_version") => {
            "This service supports x402 version 2: send PAYMENT-SIGNATURE."
        }
        "invalid_scheme" | "unsupported_scheme" => "Only the scheme `exact` is accepted.",
        "invalid_network" | "network_mismatch" => {
            "The payment is for another network than the offered one."
        }
        "recipient_mismatch" => "The payment is to another recipient than the offered one.",
        "authorization_value" | "authorization_value_mismatch" => {
            "The amount of the payment is not the offered one."
        }
        "token_name_mismatch" | "token_version_mismatch" | "missing_eip712_domain" => {
            "The payment is signed for another token: sign with the name and version in `extra` of the offer."
        }
        "nonce_already_used" => "The payment was used before; sign a new one with another nonce.",
        "transaction_simulation_failed" => "The transfer would fail on the chain.",
        "eip6492_factory_not_allowed" => {
            "Wallets that are contracts and not deployed yet are not accepted."
        }
        why if why.ends_with("valid_before") => {
            "The payment has expired, or expires within seconds; check the clock of the signing machine."
        }
        why if why.ends_with("valid_before_too_far") => {
            "The payment is valid for much longer than the offer requests."
        }
        why if why.ends_with("valid_after") => {
            "The payment is not valid yet; check the clock of the signing machine."
        }
        why if why.ends_with("signature") => "The signature is not by the paying wallet.",
        why if why.ends_with("_kyt") => {
            "The facilitator does not accept payments from this wallet."
        }
        _ => "The facilitator refused the payment.",
    };
    format!("{plain} Its reason: `{why}`.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_facilitator_is_explained_and_repeated() {
        //  the facilitator's word, a part of our text
        for (why, text) in [
            ("insufficient_funds", "does not have enough USDC"),
            (
                "invalid_exact_evm_payload_authorization_value",
                "amount of the payment",
            ),
            (
                "invalid_exact_evm_payload_authorization_valid_before",
                "has expired",
            ),
            (
                "invalid_exact_evm_payload_authorization_valid_after",
                "is not valid yet",
            ),
            (
                "invalid_exact_evm_payload_recipient_mismatch",
                "another recipient",
            ),
            (
                "invalid_exact_evm_payload_signature",
                "not by the paying wallet",
            ),
            ("invalid_exact_evm_nonce_already_used", "sign a new one"),
            ("invalid_network", "another network"),
            ("invalid_x402_version", "x402 version 2"),
            ("something_new", "The facilitator refused the payment."),
        ] {
            let shown = explained(why);
            assert!(shown.contains(text), "{why}: {shown}");
            assert!(shown.ends_with(&format!("Its reason: `{why}`.")), "{shown}");
        }
    }
}
