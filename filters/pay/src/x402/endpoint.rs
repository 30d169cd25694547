//! The x402 endpoint: reads the payment of a request from the header, and answers with the outcome of the purchase.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use tollgate_filter::{ApiError, ErrorCode, Exchange, Outcome};
use tollgate_money::AccountId;
use tollgate_purchase::plan::{PaymentState, RetryAction};

use super::extensions::identifier;
use super::payment::{HEADER_BYTES_MAX, MemberFault, Payment, PaymentError};
use super::processor::Processor;
use super::purchase::{PurchaseOutcome, PurchaseRequest, Unreadable};
use super::response::Responses;
use crate::problem::{JSON, Problem};
use crate::request::ValidatedRequest;

/// The payment, in a request.
const SIGNATURE: HeaderName = HeaderName::from_static("payment-signature");
/// The payment header of protocol version 1.
const VERSION_1: HeaderName = HeaderName::from_static("x-payment");

pub(crate) struct X402Endpoint {
    processor: Processor,
    responses: Responses,
}

impl X402Endpoint {
    pub(crate) fn new(processor: Processor) -> X402Endpoint {
        X402Endpoint {
            responses: Responses::new(processor.terms().clone(), processor.product().clone()),
            processor,
        }
    }

    /// Answers an authenticated request.
    pub(crate) async fn answer(
        &self,
        exchange: &mut Exchange,
        account: AccountId,
        validated: &ValidatedRequest,
    ) -> Outcome {
        let read = match payment(&exchange.request.headers) {
            Ok(read) => read,
            Err(error) => {
                return Problem::of(error, PaymentState::Refused, RetryAction::PayAgain)
                    .outcome(exchange, JSON);
            }
        };
        let (payment, unreadable) = match read {
            Read::Nothing => (None, None),
            Read::Unreadable(unreadable) => (None, Some(unreadable)),
            Read::Payment(payment) => (Some(*payment), None),
        };
        let mut idempotency_keys: Vec<Arc<str>> = Vec::new();
        if let Some(payment) = &payment {
            // The two kinds of keys have separate namespaces.
            idempotency_keys.extend(
                validated
                    .key
                    .as_ref()
                    .map(|key| format!("key {key}").into()),
            );
            let id = identifier(payment).ok().flatten();
            idempotency_keys.extend(id.map(|id| format!("payment {id}").into()));
        }
        let outcome = self.processor.purchase(PurchaseRequest {
            account,
            payment,
            idempotency_keys,
        });
        let outcome = match (outcome.await, unreadable) {
            // An unreadable payment counts as no payment; the refusal is sent where an offer may be shown.
            (PurchaseOutcome::Offer, Some(unreadable)) => PurchaseOutcome::Unreadable(unreadable),
            (outcome, _) => outcome,
        };
        self.responses
            .respond(exchange, outcome, self.processor.is_available())
    }
}

/// The payment of a request.
enum Read {
    Nothing,
    /// No payment that can be read.
    Unreadable(Unreadable),
    Payment(Box<Payment>),
}

fn payment(headers: &HeaderMap) -> Result<Read, ApiError> {
    let mut values = headers.get_all(SIGNATURE).iter();
    let value = match (values.next(), values.next()) {
        (None, _) if headers.contains_key(VERSION_1) => {
            return Ok(Read::Unreadable(Unreadable {
                why: "invalid_x402_version: this service supports version 2, with PAYMENT-SIGNATURE in place of X-PAYMENT",
                detail: "X-PAYMENT is the header of x402 version 1: this service supports version 2, with PAYMENT-SIGNATURE".to_owned(),
            }));
        }
        (None, _) => return Ok(Read::Nothing),
        (Some(value), None) => value.as_bytes(),
        (Some(_), Some(_)) => {
            return Err(ApiError::new(
                ErrorCode::InvalidHeader,
                "PAYMENT-SIGNATURE is duplicated. Send one payment.",
            )
            .param("PAYMENT-SIGNATURE"));
        }
    };
    let read = Payment::read(value)
        .and_then(|payment| match identifier(&payment) {
            Ok(_) => Ok(payment),
            Err(_) => Err(PaymentError::Member {
                path: "extensions.payment-identifier.info.id",
                fault: MemberFault::Form,
                wanted: "a string of 16 to 128 letters, digits, `-` and `_`",
            }),
        })
        .map(Box::new);
    match read {
        Ok(payment) => Ok(Read::Payment(payment)),
        Err(PaymentError::TooLarge) => {
            let message = format!("PAYMENT-SIGNATURE is larger than {HEADER_BYTES_MAX} bytes.");
            let error = ApiError::new(ErrorCode::HeadTooLarge, message);
            Err(error.param("PAYMENT-SIGNATURE"))
        }
        Err(error) => Ok(Read::Unreadable(Unreadable {
            why: match error {
                PaymentError::Version => "invalid_x402_version",
                _ => "invalid_payload",
            },
            detail: format!("PAYMENT-SIGNATURE cannot be read: {error}"),
        })),
    }
}
