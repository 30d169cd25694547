//! HTTP for the MPP processor: a request becomes a purchase request, its outcome a response.

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
            "The gateway could not tell who is asking. Tell the operator the request id.",
        );
        let cause = "no principal stands on the exchange; put `auth` before `pay`";
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
        let name = HeaderName::try_from(&**name).expect("the names are ours");
        let value = HeaderValue::try_from(&**value).expect("the values are ours");
        headers.append(name, value);
    }
    Reply {
        status: StatusCode::from_u16(answer.status).expect("what is kept has a status"),
        headers,
        body: ReplyBody::Whole(Bytes::copy_from_slice(&answer.body)),
    }
}
