//! The MPP endpoint: translates HTTP to purchase requests, and their answers to HTTP.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tollgate_filter::{
    ApiError, ErrorCode, Exchange, FilterError, Outcome, PaymentCredential, Principal, Reply,
    ReplyBody,
};
use tollgate_purchase::idempotency::Answer;

use super::accept::accepted_intents;
use super::processor::{Processor, PurchaseAnswer, PurchaseRequest};
use crate::problem::PROBLEM_JSON;
use crate::request::ValidatedRequest;

/// Set on replayed answers.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Answers a purchase request.
pub(crate) async fn answer(
    processor: &Processor,
    exchange: &mut Exchange,
    validated: ValidatedRequest,
) -> Result<Outcome, FilterError> {
    let Some(principal) = exchange.get::<Principal>() else {
        let answer = ApiError::new(
            ErrorCode::InternalError,
            "The gateway is misconfigured: this route does not authenticate the account. Report the request id to the operator.",
        );
        let cause = "the exchange has no principal; put `auth` before `pay`";
        return Err(FilterError::new(answer, cause));
    };
    let request = PurchaseRequest {
        account: principal.account,
        validated,
        payment: exchange.take::<PaymentCredential>(),
        body: exchange.request.body.clone(),
        intents: accepted_intents(&exchange.request.headers),
    };
    Ok(match processor.purchase(request).await {
        Ok(PurchaseAnswer { answer, replayed }) => {
            if replayed {
                let yes = HeaderValue::from_static("true");
                exchange.reply_headers.insert(REPLAYED, yes);
            }
            Outcome::reply(reply(&answer))
        }
        Err(problem) => problem.outcome(exchange, PROBLEM_JSON),
    })
}

/// The HTTP reply for an answer.
fn reply(answer: &Answer) -> Reply {
    let mut headers = HeaderMap::with_capacity(8);
    for (name, value) in &answer.fields {
        let name = HeaderName::try_from(&**name).expect("stored header names are valid");
        let value = HeaderValue::try_from(&**value).expect("stored header values are valid");
        headers.append(name, value);
    }
    Reply {
        status: StatusCode::from_u16(answer.status).expect("a stored answer has a valid status"),
        headers,
        body: ReplyBody::Whole(Bytes::copy_from_slice(&answer.body)),
    }
}
