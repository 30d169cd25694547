//! Steps common to the calls of the API: scripted fault, token, idempotency key, and responses in PayPal's format.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};

use super::fault::{Effect, Operation};
use super::state::{Kept, Shared};
use crate::server::{Answer, Arrived};

/// Checks common to every API call: the scripted fault, and the token.
pub(super) fn begin(
    shared: &Shared,
    request: &Arrived,
    operation: Operation,
) -> Result<Option<Effect>, Box<Answer>> {
    let effect = befall(shared, operation)?;
    let token = request
        .header("authorization")
        .and_then(|value| value.strip_prefix("Bearer "));
    let known = token.is_some_and(|token| shared.with(|state| state.tokens.contains(token)));
    if !known {
        return Err(Box::new(failure(401, "AUTHENTICATION_FAILURE", None)));
    }
    let json = request
        .header("content-type")
        .is_some_and(|kind| kind == "application/json");
    if request.method == http::Method::POST && !json {
        return Err(Box::new(failure(415, "UNSUPPORTED_MEDIA_TYPE", None)));
    }
    if let Ok(asked) = serde_json::from_slice(&request.body) {
        shared.with(|state| state.asked.insert(operation, asked));
    }
    Ok(effect)
}

/// The idempotency key of a request: 1 to 108 characters.
pub(super) fn key(request: &Arrived) -> Option<&str> {
    request
        .header("paypal-request-id")
        .filter(|key| (1..=108).contains(&key.len()))
}

pub(super) fn cents(amount: &Value) -> Option<i64> {
    let (whole, fraction) = amount["value"].as_str()?.split_once('.')?;
    if amount["currency_code"] != "USD" || fraction.len() != 2 {
        return None;
    }
    let cents: i64 = format!("{whole}{fraction}").parse().ok()?;
    (cents > 0).then_some(cents)
}

pub(super) fn unprocessable(issue: &str) -> Kept {
    refused("UNPROCESSABLE_ENTITY", 422, issue)
}

pub(super) fn refused(name: &str, status: u16, issue: &str) -> Kept {
    Kept {
        status,
        body: json!({"name": name, "message": "The requested action could not be performed.",
            "debug_id": "f0stand1n", "details": [{"issue": issue, "description": "As scripted."}], "links": []}),
    }
}

/// Counts a call and applies its scripted fault: `Err` is a response in its place.
pub(super) fn befall(shared: &Shared, operation: Operation) -> Result<Option<Effect>, Box<Answer>> {
    match shared.with(|state| state.faults.on_call(operation)) {
        Some(Effect::LoseCall) => Err(Box::new(None)),
        Some(Effect::Unavailable) => Err(Box::new(failure(503, "SERVICE_UNAVAILABLE", None))),
        Some(Effect::TooMany) => Err(Box::new(failure(429, "RATE_LIMIT_REACHED", None))),
        Some(Effect::Unauthorized) => Err(Box::new(failure(401, "AUTHENTICATION_FAILURE", None))),
        Some(Effect::Refuse) => {
            let issue = Some("COMPLIANCE_VIOLATION");
            Err(Box::new(failure(422, "UNPROCESSABLE_ENTITY", issue)))
        }
        other => Ok(other),
    }
}

/// The effect on the response once its call was executed.
pub(super) fn afterwards(effect: Option<Effect>, answer: Answer) -> Answer {
    match effect {
        Some(Effect::LoseAnswer | Effect::Blackout) => None,
        Some(Effect::FailAfter) => failure(500, "INTERNAL_SERVER_ERROR", None),
        _ => answer,
    }
}

pub(super) fn answer(status: u16, body: &Value) -> Answer {
    respond_with(status, "application/json", body.to_string())
}

pub(super) fn respond_with(status: u16, kind: &str, body: impl Into<Bytes>) -> Answer {
    let answer = Response::builder()
        .status(StatusCode::from_u16(status).expect("a status"))
        .header(header::CONTENT_TYPE, kind)
        .header("Paypal-Debug-Id", "f0stand1n")
        .body(Full::new(body.into()));
    Some(answer.expect("plain parts"))
}

/// 204.
pub(super) fn nothing() -> Answer {
    let answer = Response::builder()
        .status(StatusCode::NO_CONTENT)
        .header("Paypal-Debug-Id", "f0stand1n")
        .body(Full::default());
    Some(answer.expect("plain parts"))
}

pub(super) fn redirect(to: &str) -> Answer {
    let answer = Response::builder()
        .status(StatusCode::SEE_OTHER)
        .header(header::LOCATION, to)
        .body(Full::default());
    Some(answer.expect("an address that the merchant gave"))
}

/// An error in PayPal's format.
pub(super) fn failure(status: u16, name: &str, issue: Option<&str>) -> Answer {
    let details: Vec<Value> = issue
        .map(|issue| json!({"issue": issue, "description": "As scripted."}))
        .into_iter()
        .collect();
    answer(
        status,
        &json!({"name": name, "message": "As scripted.", "debug_id": "f0stand1n",
            "details": details, "links": []}),
    )
}
