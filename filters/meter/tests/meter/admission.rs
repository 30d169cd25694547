//! Admission: balances, holds, caps, and the content of a refusal.
//!
//! A request is at most 74 tokens in and 50 out by default; a token costs 1 in and 2 out, a successful request 100: a hold of 274.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::support::{Client, Gateway, Outcome, Provider, Step, TOPUP_URL};
use tollgate_filter::{Ending, ErrorCode, Model};
use tollgate_meter::MeterSettings;
use tollgate_money::Price;

const OPEN: &str = r#"{"messages":[{"role":"user","content":"hello"}]}"#;
const CAPPED: &str = r#"{"messages":[{"role":"user","content":"hello"}],"max_tokens":50}"#;
const PICTURE: &str = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello"},{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
const ANSWER: &str = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":5,"completion_tokens":4}}"#;

#[tokio::test]
async fn a_request_continues_when_its_worst_case_is_free() {
    //    body, credits, held or required, refused
    admit(CAPPED, 274, Ok(274)).await;
    admit(CAPPED, 273, Err(274)).await;
    admit(OPEN, 274, Ok(274)).await;
    admit(PICTURE, 284, Ok(284)).await;
}

/// Dense text has a token for each byte: 18 credits were due for what 6.1 were held for, and the rest was lost.
#[tokio::test]
async fn an_account_that_never_paid_is_held_for_a_token_for_each_byte() {
    let gateway = Gateway::new(0).await;
    gateway.fixture.grant(gateway.account, 1_000).await;
    assert_eq!(send_to(&gateway, CAPPED).await.1, 277);
    let gateway = gateway.reopen();
    assert_eq!(send_to(&gateway, CAPPED).await.1, 277);
    gateway.fixture.top_up(gateway.account, 1).await;
    assert_eq!(send_to(&gateway, CAPPED).await.1, 274);
    let gateway = gateway.reopen();
    assert_eq!(send_to(&gateway, CAPPED).await.1, 274);
    gateway.fixture.audit().await;
}

#[tokio::test]
async fn an_account_without_credit_is_refused_before_anything_else() {
    // Refused on the head: the price of the body is not known, so none is named.
    for body in [OPEN, CAPPED] {
        let (outcome, _) = send(body, 0, MeterSettings::default()).await;
        assert_eq!(outcome.client.status, Some(402), "{body}");
        let error: serde_json::Value =
            serde_json::from_str(&outcome.client.received).expect("JSON");
        assert!(error["error"].get("required").is_none(), "{error}");
        assert_eq!(error["error"]["available"], 0.0, "{error}");
    }
}

#[tokio::test]
async fn a_request_without_a_cap_gets_the_one_its_account_can_pay() {
    //   credits, cap, held
    for (credits, cap, held) in [(273, 49, 272), (207, 16, 206), (206, 16, 206)] {
        let (outcome, seen) = send(OPEN, credits, MeterSettings::default()).await;
        assert_eq!(outcome.ending, Ending::Complete, "with {credits}");
        assert_eq!(outcome.cap, Some(cap), "with {credits}");
        assert_eq!(seen, held, "with {credits}");
    }
    // One token less than the smallest cap.
    admit(OPEN, 205, Err(206)).await;
}

#[tokio::test]
async fn a_request_that_can_be_paid_is_not_capped() {
    let (outcome, _) = send(OPEN, 274, MeterSettings::default()).await;
    assert_eq!(outcome.cap, None);
}

#[tokio::test]
async fn without_clamping_a_request_is_refused_instead() {
    let settings = MeterSettings {
        clamp_tokens_min: None,
        ..MeterSettings::default()
    };
    let (outcome, _) = send(OPEN, 273, settings).await;
    assert_eq!(outcome.client.status, Some(402));
    assert!(outcome.client.received.contains(r#""required":0.000274"#));
}

#[tokio::test]
async fn the_smallest_cap_is_a_setting() {
    let settings = MeterSettings {
        clamp_tokens_min: NonZeroU64::new(49),
        ..MeterSettings::default()
    };
    let (outcome, _) = send(OPEN, 272, settings.clone()).await;
    assert_eq!(outcome.cap, Some(49));
    let (outcome, _) = send(OPEN, 271, settings).await;
    assert_eq!(outcome.client.status, Some(402));
}

#[tokio::test]
async fn a_credit_limit_is_as_good_as_credit() {
    let gateway = Gateway::with(0, MeterSettings::default(), 277).await;
    let outcome = gateway
        .send(CAPPED, Client::staying(), Provider::answering(ANSWER))
        .await;
    assert_eq!(outcome.ending, Ending::Complete);
    assert_eq!(gateway.fixture.available(gateway.account), -113);
    gateway.fixture.audit().await;
}

#[tokio::test]
async fn a_model_that_costs_nothing_leaves_a_usage_record() {
    let gateway = Gateway::new(1).await;
    let free = Arc::new(Model {
        price: Price::default(),
        working: AtomicBool::new(true),
        ..Arc::try_unwrap(crate::support::model()).expect("the only reference")
    });
    let outcome = gateway
        .send_for(CAPPED, Client::staying(), Provider::answering(ANSWER), free)
        .await;
    let usage = gateway.fixture.rows(outcome.operation).await.usage;
    let usage = usage.expect("a usage record");
    assert_eq!(usage.cost.get(), 0);
    assert_eq!(
        (usage.usage.prompt_tokens, usage.usage.completion_tokens),
        (5, 4)
    );
    assert_eq!(gateway.fixture.available(gateway.account), 1);
    gateway.fixture.audit().await;
}

#[tokio::test]
async fn a_model_that_costs_nothing_still_needs_a_positive_balance() {
    let gateway = Gateway::new(0).await;
    let free = Arc::new(Model {
        price: Price::default(),
        working: AtomicBool::new(true),
        ..Arc::try_unwrap(crate::support::model()).expect("the only reference")
    });
    let outcome = gateway
        .send_for(CAPPED, Client::staying(), Provider::answering(ANSWER), free)
        .await;
    assert_eq!(outcome.client.status, Some(402));
    let message = format!("The account has no credits to spend. Add some at {TOPUP_URL}.");
    assert!(outcome.client.received.contains(&message));
}

#[tokio::test]
async fn two_requests_cannot_spend_the_same_credit() {
    let gateway = Arc::new(Gateway::new(300).await);
    let (step, reached) = Step::signal();
    let first = tokio::spawn({
        let gateway = Arc::clone(&gateway);
        async move {
            let provider = Provider::playing([step, Step::Hang]);
            gateway.send(CAPPED, Client::staying(), provider).await
        }
    });
    reached.notified().await;
    // The balance is positive, but its remainder is too small.
    let second = gateway
        .send(CAPPED, Client::staying(), Provider::answering(ANSWER))
        .await;
    assert_eq!(second.client.status, Some(402));
    assert!(second.client.received.contains(r#""available":0.000026"#));
    first.abort();
    let _ = first.await;
    gateway.fixture.audit().await;
}

#[tokio::test]
async fn a_refusal_states_required_and_available_credits_and_where_to_top_up() {
    let (outcome, _) = send(CAPPED, 100, MeterSettings::default()).await;
    assert_eq!(outcome.ending, Ending::Refused);
    assert_eq!(outcome.record.error, Some(ErrorCode::InsufficientCredits));
    let expected = format!(
        r#"{{"error":{{"message":"The account has 0.0001 credits to spend and this request may need 0.000274. Lower `max_tokens`, or add credits at {TOPUP_URL}.","type":"insufficient_credits_error","param":null,"code":"insufficient_credits","required":0.000274,"available":0.0001,"topup_url":"{TOPUP_URL}"}}}}"#
    );
    assert_eq!(outcome.client.received, expected);
}

#[tokio::test]
async fn a_full_queue_is_a_503_with_a_wait() {
    let gateway = Gateway::with_queue(10_000, 1).await;
    let outcome = gateway
        .send(CAPPED, Client::staying(), Provider::answering(ANSWER))
        .await;
    assert_eq!(outcome.client.status, Some(503));
    assert_eq!(outcome.record.error, Some(ErrorCode::Overloaded));
    assert_eq!(outcome.client.header("retry-after"), Some("1"));
    assert_eq!(gateway.fixture.available(gateway.account), 10_000);
}

/// Checks the hold of a request of an account with `credits`, or the amount its refusal requires.
async fn admit(body: &str, credits: i64, expected: Result<i64, i64>) {
    let (outcome, held) = send(body, credits, MeterSettings::default()).await;
    match expected {
        Ok(amount) => {
            assert_eq!(outcome.ending, Ending::Complete, "{body} with {credits}");
            assert_eq!(held, amount, "{body} with {credits}");
        }
        Err(required) => {
            assert_eq!(outcome.client.status, Some(402), "{body} with {credits}");
            let error: serde_json::Value =
                serde_json::from_str(&outcome.client.received).expect("JSON");
            let micros = |name: &str| {
                let amount = error["error"][name].to_string();
                let amount: tollgate_money::Micros = decimal(&amount);
                amount.get()
            };
            assert_eq!(micros("required"), required, "{body} with {credits}");
            assert_eq!(micros("available"), credits, "{body} with {credits}");
        }
    }
}

/// A JSON number as an amount; a JSON parser may print small ones with an exponent.
fn decimal(number: &str) -> tollgate_money::Micros {
    let text = match number.split_once("e-") {
        None => number.trim_end_matches(".0").to_owned(),
        Some((digits, places)) => {
            let places: usize = places.parse().expect("an exponent");
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            format!("0.{}{whole}{fraction}", "0".repeat(places - 1))
        }
    };
    text.parse().expect("an amount")
}

/// Sends one request, and returns its outcome and the amount held while the provider worked.
async fn send(body: &str, credits: i64, settings: MeterSettings) -> (Outcome, i64) {
    let gateway = Gateway::with(credits, settings, 0).await;
    let seen = send_to(&gateway, body).await;
    gateway.fixture.audit().await;
    seen
}

async fn send_to(gateway: &Gateway, body: &str) -> (Outcome, i64) {
    let held = Arc::new(AtomicI64::new(0));
    let look = Step::Meanwhile(Arc::new({
        let (ledger, held) = (gateway.fixture.ledger().clone(), Arc::clone(&held));
        move || held.store(ledger.totals().held.get(), Ordering::Relaxed)
    }));
    let provider = Provider::playing([look, Step::Send(ANSWER.to_owned())]);
    let outcome = gateway.send(body, Client::staying(), provider).await;
    (outcome, held.load(Ordering::Relaxed))
}
