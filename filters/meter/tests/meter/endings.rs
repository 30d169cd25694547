//! Every way an exchange can end: the client's response, and the charge. `README.md` lists them with these names.
//!
//! A request is 5 bytes of text in one message, so at most 74 tokens in; a token costs 1 in and 2 out, a successful request 100. An answer
//! has the text `hello world` and, where the provider reports usage, 5 tokens in and 4 out: 5 + 8 + 100.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Client, Gateway, Leaves, Outcome, Panics, Provider, Step};
use tollgate_filter::{Ending, ErrorCode, UpstreamFault};
use tollgate_meter::MeterEvent;
use tollgate_store::{EntryKind, UsageFlags};

const CREDITS: i64 = 10_000;
const STREAM: &str = r#"{"messages":[{"role":"user","content":"hello"}],"stream":true}"#;
const WHOLE: &str = r#"{"messages":[{"role":"user","content":"hello"}]}"#;

const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
const TEXT: &str = r#"{"choices":[{"index":0,"delta":{"content":"hello world"}}]}"#;
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":4}}"#;
const DONE: &str = "[DONE]";
const ERROR: &str = r#"{"error":{"message":"out of memory"}}"#;
const ANSWER: &str = r#"{"choices":[{"index":0,"message":{"content":"hello world"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":4}}"#;
const UNCOUNTED: &str =
    r#"{"choices":[{"index":0,"message":{"content":"hello world"},"finish_reason":"stop"}]}"#;

/// The provider's report, at the price.
const REPORTED: i64 = 5 + 2 * 4 + 100;
/// Our count: `hello` and a line end are 2 tokens and a chat of one message 6 more; `hello world` is 2.
const COUNTED: i64 = 8 + 2 * 2 + 100;

#[tokio::test]
async fn a_whole_answer_is_charged_for_what_it_reports() {
    let outcome = check(
        WHOLE,
        Client::staying(),
        Provider::answering(ANSWER),
        REPORTED,
    )
    .await;
    assert_eq!(outcome.ending, Ending::Complete);
    assert_eq!(outcome.client.received, ANSWER);
    let charge = outcome.charge.expect("a charge");
    assert_eq!(charge.remaining.get(), CREDITS - REPORTED);
    assert!(!charge.estimated);
}

#[tokio::test]
async fn a_stream_is_charged_for_what_it_reports() {
    let provider = Provider::streaming([ROLE, TEXT, STOP, USAGE, DONE]);
    let outcome = check(STREAM, Client::staying(), provider, REPORTED).await;
    assert_eq!(outcome.ending, Ending::Complete);
    assert!(outcome.client.received.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_whole_answer_without_usage_is_counted() {
    let provider = Provider::answering(UNCOUNTED);
    let outcome = check(WHOLE, Client::staying(), provider, COUNTED).await;
    assert_eq!(outcome.ending, Ending::Complete);
    assert!(outcome.charge.expect("a charge").estimated);
    assert_eq!(outcome.record.prompt_tokens, 8);
    assert_eq!(outcome.record.completion_tokens, 2);
}

#[tokio::test]
async fn a_stream_without_usage_is_counted() {
    let provider = Provider::streaming([ROLE, TEXT, STOP, DONE]);
    let outcome = check(STREAM, Client::staying(), provider, COUNTED).await;
    assert_eq!(outcome.ending, Ending::Complete);
    assert!(outcome.charge.expect("a charge").estimated);
}

#[tokio::test]
async fn a_stream_whose_end_is_missing_but_whose_choices_are_finished_is_complete() {
    let provider = Provider::streaming([ROLE, TEXT, STOP, USAGE]);
    let outcome = check(STREAM, Client::staying(), provider, REPORTED).await;
    assert_eq!(outcome.ending, Ending::Complete);
}

#[tokio::test]
async fn a_stream_that_breaks_off_after_its_finish_reason_and_its_usage_is_complete() {
    for fault in [UpstreamFault::Cut, UpstreamFault::Timeout] {
        let provider = Provider::streaming([ROLE, TEXT, STOP, USAGE]).then(Step::Fail(fault));
        let outcome = check(STREAM, Client::staying(), provider, REPORTED).await;
        assert_eq!(outcome.ending, Ending::Complete);
    }
}

/// The provider is silent for ever; the clock says for two seconds.
#[tokio::test]
async fn a_finished_stream_that_is_silent_for_two_seconds_is_complete() {
    for (events, charged) in [
        (&[ROLE, TEXT, STOP, USAGE][..], REPORTED),
        (&[ROLE, TEXT, STOP][..], COUNTED),
    ] {
        let gateway = Gateway::new(CREDITS).await;
        let manual = gateway.fixture.manual.clone();
        let silence = Step::Meanwhile(Arc::new(move || manual.advance(Duration::from_secs(2))));
        let provider = Provider::streaming(events.iter().copied())
            .then(silence)
            .then(Step::Hang);
        let outcome = gateway.send(STREAM, Client::staying(), provider).await;
        assert_eq!(outcome.ending, Ending::Complete);
        assert_eq!(outcome.record.charged.get(), charged);
        let charge = outcome.charge.expect("a charge");
        assert_eq!(charge.estimated, charged == COUNTED);
        gateway.fixture.audit().await;
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_before_its_usage_is_cut() {
    let provider = Provider::streaming([ROLE, TEXT, STOP]).then(Step::Fail(UpstreamFault::Cut));
    let outcome = check(STREAM, Client::staying(), provider, COUNTED - 100).await;
    assert_eq!(outcome.ending, Ending::UpstreamCut(UpstreamFault::Cut));
}

#[tokio::test]
async fn a_whole_answer_that_breaks_off_after_its_last_byte_is_complete() {
    let provider = Provider::answering(ANSWER).then(Step::Fail(UpstreamFault::Cut));
    let outcome = check(WHOLE, Client::staying(), provider, REPORTED).await;
    assert_eq!(outcome.ending, Ending::Complete);
    assert_eq!(outcome.client.received, ANSWER);
}

#[tokio::test]
async fn a_refusal_of_the_provider_costs_nothing() {
    for fault in [
        UpstreamFault::Unreachable,
        UpstreamFault::BadRequest,
        UpstreamFault::RateLimited,
        UpstreamFault::Error,
        UpstreamFault::Invalid,
    ] {
        let outcome = check(STREAM, Client::staying(), Provider::refusing(fault), 0).await;
        assert_eq!(outcome.ending, Ending::UpstreamFailed(fault));
        assert!(outcome.client.status >= Some(400));
    }
}

#[tokio::test]
async fn a_time_out_before_the_first_byte_costs_nothing() {
    let provider = Provider::refusing(UpstreamFault::Timeout);
    let outcome = check(WHOLE, Client::staying(), provider, 0).await;
    assert_eq!(outcome.client.status, Some(504));
}

#[tokio::test]
async fn a_whole_answer_that_breaks_off_costs_nothing() {
    let provider = Provider::answering(r#"{"choices":[{"#).then(Step::Fail(UpstreamFault::Cut));
    let outcome = check(WHOLE, Client::staying(), provider, 0).await;
    assert_eq!(outcome.ending, Ending::UpstreamFailed(UpstreamFault::Cut));
}

#[tokio::test]
async fn a_stream_cut_before_any_text_costs_nothing() {
    let provider = Provider::streaming([ROLE]).then(Step::Fail(UpstreamFault::Cut));
    let outcome = check(STREAM, Client::staying(), provider, 0).await;
    assert_eq!(outcome.ending, Ending::UpstreamCut(UpstreamFault::Cut));
}

#[tokio::test]
async fn a_stream_cut_after_text_costs_its_tokens_but_not_the_request() {
    let provider = Provider::streaming([ROLE, TEXT]).then(Step::Fail(UpstreamFault::Cut));
    let outcome = check(STREAM, Client::staying(), provider, COUNTED - 100).await;
    assert_eq!(outcome.ending, Ending::UpstreamCut(UpstreamFault::Cut));
    assert!(
        outcome
            .client
            .received
            .contains(r#""code":"upstream_error""#)
    );
    assert!(!outcome.client.received.contains(DONE));
}

#[tokio::test]
async fn media_counts_when_a_stream_is_cut() {
    const CALL: &str = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"hello","arguments":" world"}}]}}]}"#;
    let sound = format!(
        r#"{{"choices":[{{"index":0,"delta":{{"audio":{{"id":"a","data":"{}"}}}}}}]}}"#,
        "A".repeat(3 * 4_096 + 1)
    );
    let picture = format!(
        r#"{{"choices":[{{"index":0,"delta":{{"images":[{{"type":"image_url","image_url":{{"url":"data:{}"}}}}]}}}}]}}"#,
        "A".repeat(4_096)
    );
    const SAID: &str =
        r#"{"choices":[{"index":0,"delta":{"audio":{"transcript":"hello world"}}}]}"#;
    // case, event, tokens
    for (what, event, tokens) in [
        ("a call of a tool", CALL, 2),
        ("sound", &sound, 3),
        ("what the sound says", SAID, 2),
        ("a picture", &picture, 1),
    ] {
        let provider = Provider::streaming([ROLE, event]).then(Step::Fail(UpstreamFault::Cut));
        let outcome = check(STREAM, Client::staying(), provider, 8 + 2 * tokens).await;
        assert_eq!(
            outcome.ending,
            Ending::UpstreamCut(UpstreamFault::Cut),
            "{what}"
        );
        assert!(outcome.charge.expect("a charge").estimated, "{what}");
    }
}

#[tokio::test]
async fn a_time_out_between_events_costs_the_tokens_so_far() {
    let provider = Provider::streaming([ROLE, TEXT]).then(Step::Fail(UpstreamFault::Timeout));
    let outcome = check(STREAM, Client::staying(), provider, COUNTED - 100).await;
    assert_eq!(outcome.ending, Ending::UpstreamCut(UpstreamFault::Timeout));
    assert!(outcome.client.received.contains("upstream_timeout"));
}

#[tokio::test]
async fn a_stream_that_ends_without_finishing_is_a_cut() {
    let outcome = check(
        STREAM,
        Client::staying(),
        Provider::streaming([ROLE, TEXT]),
        COUNTED - 100,
    )
    .await;
    assert_eq!(outcome.ending, Ending::UpstreamCut(UpstreamFault::Cut));
}

#[tokio::test]
async fn an_error_event_after_text_costs_the_tokens_so_far() {
    let provider = Provider::streaming([ROLE, TEXT, ERROR]);
    let outcome = check(STREAM, Client::staying(), provider, COUNTED - 100).await;
    assert_eq!(outcome.ending, Ending::UpstreamCut(UpstreamFault::Error));
    assert_eq!(outcome.record.error, Some(ErrorCode::UpstreamError));
}

#[tokio::test]
async fn an_error_event_before_anything_else_costs_nothing() {
    let provider = Provider::streaming([ERROR]);
    let outcome = check(STREAM, Client::staying(), provider, 0).await;
    assert_eq!(outcome.ending, Ending::UpstreamFailed(UpstreamFault::Error));
    assert_eq!(outcome.client.status, Some(502));
}

#[tokio::test]
async fn a_client_that_disconnects_before_any_output_pays_nothing() {
    for body in [STREAM, WHOLE] {
        let provider = Provider::playing([Step::Hang]);
        let outcome = check(body, Client::new(Leaves::AtOnce), provider, 0).await;
        assert_eq!(outcome.ending, Ending::GoneBefore);
    }
}

#[tokio::test]
async fn a_client_that_disconnects_during_output_pays_the_reported_usage() {
    let provider = Provider::streaming([ROLE, TEXT, TEXT, STOP, USAGE, DONE]);
    let outcome = check(STREAM, Client::new(Leaves::After(2)), provider, REPORTED).await;
    assert_eq!(outcome.ending, Ending::GoneDuring);
}

#[tokio::test]
async fn a_client_that_disconnects_during_output_pays_the_relayed_tokens_without_reported_usage() {
    let provider = Provider::streaming([ROLE, TEXT, TEXT]).then(Step::Hang);
    let outcome = check(STREAM, Client::new(Leaves::After(3)), provider, COUNTED + 4).await;
    assert_eq!(outcome.ending, Ending::GoneDuring);
}

#[tokio::test]
async fn text_after_the_client_disconnected_is_not_counted() {
    // The write of the second text detects the disconnect, so it counts; later ones do not.
    let provider = Provider::streaming([ROLE, TEXT, TEXT, TEXT, TEXT, STOP, DONE]);
    let outcome = check(STREAM, Client::new(Leaves::After(2)), provider, COUNTED + 4).await;
    assert_eq!(outcome.ending, Ending::GoneDuring);
}

#[tokio::test]
async fn a_client_that_disconnects_after_the_role_pays_nothing_without_reported_usage() {
    let provider = Provider::streaming([ROLE]).then(Step::Hang);
    let outcome = check(STREAM, Client::new(Leaves::After(1)), provider, 0).await;
    assert_eq!(outcome.ending, Ending::GoneDuring);
}

#[tokio::test]
async fn a_client_that_disconnects_at_the_last_piece_has_been_charged() {
    let provider = Provider::answering(ANSWER);
    let outcome = check(WHOLE, Client::new(Leaves::AtTheEnd), provider, REPORTED).await;
    assert_eq!(outcome.ending, Ending::GoneDuring);
}

#[tokio::test]
async fn tokens_that_cannot_have_been_used_are_not_charged() {
    let absurd = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":4000000000,"completion_tokens":4000000000}}"#;
    let gateway = Gateway::new(CREDITS).await;
    let body = WHOLE.replacen('{', r#"{"max_tokens":10,"#, 1);
    let outcome = gateway
        .send(&body, Client::staying(), Provider::answering(absurd))
        .await;
    // The model's context in, the client's own cap out.
    assert_eq!(outcome.record.charged.get(), 1_000 + 2 * 10 + 100);
    assert_eq!(gateway.counters().events.get(MeterEvent::Bounded), 1);
    gateway.fixture.audit().await;
}

#[tokio::test]
async fn usage_beyond_the_hold_is_taken_from_what_is_free_and_no_further() {
    let more = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":500,"completion_tokens":5}}"#;
    //   credits, limit, charged, written off
    for (credits, limit, charged, written_off) in
        [(1_000, 0, 610, 0), (300, 0, 300, 310), (300, 50, 350, 260)]
    {
        let gateway = Gateway::with(credits, Default::default(), limit).await;
        let outcome = gateway
            .send(WHOLE, Client::staying(), Provider::answering(more))
            .await;
        assert_eq!(outcome.record.charged.get(), charged, "of {credits}");
        assert_eq!(gateway.counters().written_off_micros(), written_off);
        assert_eq!(
            gateway.fixture.available(gateway.account),
            credits - charged
        );
        gateway.fixture.audit().await;
    }
}

#[tokio::test]
async fn a_panic_releases_the_hold() {
    let gateway = Arc::new(Gateway::new(CREDITS).await);
    let task = tokio::spawn({
        let gateway = Arc::clone(&gateway);
        async move {
            let provider = Provider::streaming([ROLE, TEXT, Panics::EVENT]);
            gateway.send(STREAM, Client::staying(), provider).await
        }
    });
    let error = task.await.expect_err("a panic");
    assert!(error.is_panic());
    assert_eq!(gateway.fixture.available(gateway.account), CREDITS);
    gateway.fixture.audit().await;
}

#[tokio::test]
async fn a_shutdown_during_an_answer_releases_the_hold() {
    let gateway = Arc::new(Gateway::new(CREDITS).await);
    let (step, reached) = Step::signal();
    let task = tokio::spawn({
        let gateway = Arc::clone(&gateway);
        async move {
            let provider = Provider::streaming([ROLE, TEXT])
                .then(step)
                .then(Step::Hang);
            gateway.send(STREAM, Client::staying(), provider).await
        }
    });
    reached.notified().await;
    assert_eq!(gateway.fixture.totals().open_holds, 1);
    assert_eq!(gateway.fixture.available(gateway.account), CREDITS - 274);
    task.abort();
    assert!(task.await.expect_err("it was cancelled").is_cancelled());
    assert_eq!(gateway.fixture.available(gateway.account), CREDITS);
    gateway.fixture.audit().await;
}

#[tokio::test]
async fn a_store_failure_before_the_first_byte_sends_no_byte() {
    let gateway = Gateway::new(CREDITS).await;
    gateway.fixture.stop();
    let provider = Provider::streaming([ROLE, TEXT, STOP, USAGE, DONE]);
    let outcome = gateway.send(STREAM, Client::staying(), provider).await;
    assert_eq!(outcome.client.status, Some(503));
    assert_eq!(outcome.record.error, Some(ErrorCode::StoreUnavailable));
    assert!(!outcome.client.received.contains("hello"));
}

#[tokio::test]
async fn an_answer_whose_charge_cannot_be_written_is_not_delivered() {
    for (body, before, after) in [
        (STREAM, vec![ROLE, TEXT], vec![STOP, USAGE, DONE]),
        (WHOLE, vec![], vec![]),
    ] {
        let gateway = Gateway::new(CREDITS).await;
        let stop = Step::Meanwhile(gateway.fixture.stopper());
        let event = |data: &&str| Step::Send(format!("data: {data}\n\n"));
        let steps = before.iter().map(event).chain([stop]);
        let steps = match body {
            STREAM => steps.chain(after.iter().map(event)).collect::<Vec<_>>(),
            _ => steps.chain([Step::Send(ANSWER.to_owned())]).collect(),
        };
        let outcome = gateway
            .send(body, Client::staying(), Provider::playing(steps))
            .await;
        assert_eq!(outcome.ending, Ending::Unsettled);
        assert_eq!(outcome.record.error, Some(ErrorCode::StoreUnavailable));
        let received = &outcome.client.received;
        assert!(received.contains("store_unavailable"), "{received}");
        assert!(!received.contains("stop"), "the tail leaked: {received}");
        assert!(!received.contains(DONE), "the tail leaked: {received}");
    }
}

#[tokio::test]
async fn a_hold_left_by_a_killed_process_is_released_at_the_next_start() {
    let gateway = Arc::new(Gateway::new(CREDITS).await);
    let (step, reached) = Step::signal();
    let task = tokio::spawn({
        let gateway = Arc::clone(&gateway);
        async move {
            let provider = Provider::streaming([ROLE, TEXT])
                .then(step)
                .then(Step::Hang);
            gateway.send(STREAM, Client::staying(), provider).await
        }
    });
    reached.notified().await;
    assert_eq!(gateway.fixture.totals().open_holds, 1);
    // The disk state is now what a killed process leaves behind: a hold without an owner.
    let copy = gateway.fixture.copy().await;
    assert_eq!(copy.orphans, 1);
    assert_eq!(copy.available(gateway.account), CREDITS);
    copy.audit().await;
    task.abort();
    let _ = task.await;
}

#[tokio::test]
async fn the_usage_record_has_the_flags_of_the_request() {
    let stream = [ROLE, TEXT, STOP, DONE];
    let outcome = flags(STREAM, Client::staying(), Provider::streaming(stream)).await;
    assert_eq!(outcome, UsageFlags::STREAMED | UsageFlags::ESTIMATED);
    let cut = Provider::streaming([TEXT]).then(Step::Fail(UpstreamFault::Cut));
    assert_eq!(
        flags(STREAM, Client::staying(), cut).await,
        UsageFlags::STREAMED
            | UsageFlags::ESTIMATED
            | UsageFlags::INCOMPLETE
            | UsageFlags::CUT_UPSTREAM
    );
    let whole = Provider::answering(ANSWER);
    assert_eq!(
        flags(WHOLE, Client::staying(), whole).await,
        UsageFlags::NONE
    );
}

async fn flags(body: &str, client: Client, provider: Provider) -> UsageFlags {
    let gateway = Gateway::new(CREDITS).await;
    let outcome = gateway.send(body, client, provider).await;
    let rows = gateway.fixture.rows(outcome.operation).await;
    let usage = rows.usage.expect("a usage record").usage;
    assert_eq!(&*usage.model, "m");
    assert_eq!(usage.upstream.as_deref(), Some("stand-in"));
    assert_eq!(usage.http_status, 200);
    usage.flags
}

/// Sends one request, and checks that exactly `charged` was charged, that the books agree, and that no hold is left.
async fn check(body: &str, client: Client, provider: Provider, charged: i64) -> Outcome {
    let gateway = Gateway::new(CREDITS).await;
    gateway.fixture.manual.advance(Duration::from_secs(1));
    let outcome = gateway.send(body, client, provider).await;
    assert_eq!(outcome.record.charged.get(), charged, "{outcome:?}");
    assert_eq!(
        gateway.fixture.available(gateway.account),
        CREDITS - charged,
        "{outcome:?}"
    );
    // The client may send its next request with what it has left.
    if let Some(available) = outcome.client.available {
        assert_eq!(available, CREDITS - charged, "{outcome:?}");
    }
    let rows = gateway.fixture.rows(outcome.operation).await;
    let kinds: Vec<_> = rows.entries.iter().map(|entry| entry.kind).collect();
    let resolved = if charged > 0 {
        EntryKind::Settle
    } else {
        EntryKind::Release
    };
    // The writer coalesces a hold and its end into one row when both wait for the same commit.
    assert!(
        kinds.last() == Some(&resolved)
            || (charged > 0 && kinds == [EntryKind::Charge])
            || (charged == 0 && kinds.is_empty()),
        "{kinds:?} for {charged}"
    );
    if charged > 0 {
        let versions = rows.entries.iter().map(|entry| entry.price_version);
        assert!(
            versions.eq(rows.entries.iter().map(|_| Some(7))),
            "{rows:?}"
        );
    }
    assert_eq!(rows.usage.is_some(), charged > 0);
    assert_eq!(outcome.charge.is_some(), charged > 0);
    gateway.fixture.audit().await;
    outcome
}
