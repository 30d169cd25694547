//! Durability: what waits for the disk, and the effect of a hold's age.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_filter::Ending;
use tollgate_meter::MeterSettings;

use crate::support::{Client, Gateway, Outcome, Provider, Step};

const CREDITS: i64 = 10_000;
const STREAM: &str = r#"{"messages":[{"role":"user","content":"hello"}],"stream":true}"#;
const WHOLE: &str = r#"{"messages":[{"role":"user","content":"hello"}]}"#;
const TEXT: &str = r#"{"choices":[{"index":0,"delta":{"content":"hello world"}}]}"#;
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":4}}"#;
const DONE: &str = "[DONE]";
const ANSWER: &str = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":5,"completion_tokens":4}}"#;
const UNCOUNTED: &str = r#"{"choices":[{"message":{"content":"hello world"}}]}"#;

/// Turns of the runtime after which everything that does not depend on the disk has happened.
const TURNS: usize = 100;

/// A hold that is not on the disk is no guarantee: after a crash the text would be sent and not charged.
#[tokio::test]
async fn no_byte_leaves_before_the_hold_is_on_the_disk() {
    let (signal, reached) = Step::signal();
    let gateway = Gateway::new(CREDITS).await;
    let gate = gateway.fixture.stall();
    let events = [TEXT, STOP, USAGE, DONE].map(event);
    let provider = Provider::playing([signal].into_iter().chain(events));
    let outcome = watch(gateway, STREAM, provider, reached, 0, move || gate.open()).await;
    assert_eq!(outcome.ending, Ending::Complete);
    assert_eq!(outcome.client.status, Some(200));
}

/// A charge that is not on the disk may be lost: a client with the whole answer must have been charged for it.
#[tokio::test]
async fn no_whole_answer_leaves_before_its_charge_is_on_the_disk() {
    let (signal, reached) = Step::signal();
    let gateway = Gateway::new(CREDITS).await;
    let gate = gateway.fixture.stall();
    let provider = Provider::playing([signal, Step::Send(ANSWER.to_owned())]);
    let outcome = watch(gateway, WHOLE, provider, reached, 0, move || gate.open()).await;
    assert_eq!(outcome.client.received, ANSWER);
}

#[tokio::test]
async fn no_tail_leaves_before_its_charge_is_on_the_disk() {
    let (signal, reached) = Step::signal();
    let gateway = Gateway::new(CREDITS).await;
    let gate = Arc::new(Mutex::new(None));
    let stall = Step::Meanwhile(Arc::new({
        let (fixture, gate) = (gateway.fixture.staller(), Arc::clone(&gate));
        move || *gate.lock().expect("no panic under the lock") = Some(fixture())
    }));
    let tail = [STOP, USAGE, DONE].map(event);
    let steps = [event(TEXT), stall, signal].into_iter().chain(tail);
    let outcome = watch(
        gateway,
        STREAM,
        Provider::playing(steps),
        reached,
        1,
        move || {
            drop(gate.lock().expect("no panic under the lock").take());
        },
    )
    .await;
    assert_eq!(outcome.ending, Ending::Complete);
    assert!(outcome.client.received.ends_with("data: [DONE]\n\n"));
}

/// Sends a request over a disk that stalls, checks that no more than `sent` pieces leave once the provider is `reached`, and unblocks the
/// disk.
async fn watch(
    gateway: Gateway,
    body: &'static str,
    provider: Provider,
    reached: Arc<Notify>,
    sent: usize,
    open: impl FnOnce(),
) -> Outcome {
    let gateway = Arc::new(gateway);
    let client = Client::staying();
    let watched = Arc::clone(&client.watched);
    let task = tokio::spawn({
        let gateway = Arc::clone(&gateway);
        async move { gateway.send(body, client, provider).await }
    });
    reached.notified().await;
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
        let seen = watched.load(Ordering::Relaxed);
        assert_eq!(seen, sent, "pieces left while the disk did nothing");
    }
    open();
    let outcome = task.await.expect("an outcome");
    gateway.fixture.audit().await;
    outcome
}

#[tokio::test]
async fn a_hold_lives_as_long_as_the_settings_say() {
    // microseconds after the hold, holds that have expired by then, ending, charged
    for (age, expired, ending, charged) in [
        (59_999_999, 0, Ending::Complete, 113),
        (60_000_000, 1, Ending::Unsettled, 0),
    ] {
        let settings = MeterSettings {
            hold: Duration::from_secs(60),
            ..MeterSettings::default()
        };
        let gateway = Gateway::with(CREDITS, settings, 0).await;
        let sweep = Step::Meanwhile(Arc::new({
            let ledger = gateway.fixture.ledger().clone();
            let mut at = gateway.fixture.clock.reading();
            at.elapsed += Duration::from_micros(age);
            // Whatever the wall clock is set to meanwhile.
            at.now += Duration::from_secs(100 * 365 * 86_400);
            move || assert_eq!(ledger.sweep(at), expired)
        }));
        let provider = Provider::playing([sweep, Step::Send(ANSWER.to_owned())]);
        let outcome = gateway.send(WHOLE, Client::staying(), provider).await;
        assert_eq!(outcome.ending, ending, "after {age} microseconds");
        assert_eq!(
            gateway.fixture.available(gateway.account),
            CREDITS - charged
        );
        gateway.fixture.audit().await;
    }
}

fn event(data: &str) -> Step {
    Step::Send(format!("data: {data}\n\n"))
}

/// A clock reading is reused until something has been awaited; a recorded time must not be older than the wait.
#[tokio::test]
async fn ledger_entries_are_dated_by_the_end_of_an_answer() {
    for wait in [1, 300, 999, 1_000, 90_000].map(Duration::from_millis) {
        dated(STREAM, &[TEXT, STOP, USAGE, DONE].map(event), wait).await;
        for answer in [ANSWER, UNCOUNTED] {
            dated(WHOLE, &[Step::Send(answer.to_owned())], wait).await;
        }
    }
}

/// The rest of the answer is sent before the charge, and a client may read slowly.
#[tokio::test]
async fn ledger_entries_are_dated_by_the_end_of_a_slow_clients_answer() {
    let gateway = Gateway::new(CREDITS).await;
    let manual = gateway.fixture.manual.clone();
    let mut client = Client::staying();
    client.reads_slowly = Some((manual, Duration::from_secs(50)));
    let last = [TEXT, STOP, USAGE, DONE].map(|data| format!("data: {data}\n\n"));
    let provider = Provider::playing([event(TEXT), Step::Send(last.concat())]);
    let began = gateway.fixture.clock.now();
    let outcome = gateway.send(STREAM, client, provider).await;
    let ended = gateway.fixture.clock.now();
    assert!(ended > began, "the client has been waited for");
    let rows = gateway.fixture.rows(outcome.operation).await;
    assert_eq!(rows.usage.expect("a usage record").at, ended);
    assert_eq!(rows.entries.last().expect("an entry").at, ended);
}

/// Sends one request to a provider that waits `wait` before its first output, and as long again after that.
async fn dated(body: &str, pieces: &[Step], wait: Duration) {
    let gateway = Gateway::new(CREDITS).await;
    let manual = gateway.fixture.manual.clone();
    let waits = Step::Meanwhile(Arc::new(move || manual.advance(wait)));
    let mut steps = pieces.to_vec();
    steps.insert(1, waits.clone());
    steps.insert(0, waits);
    let began = gateway.fixture.clock.reading();
    let provider = Provider::playing(steps);
    let outcome = gateway.send(body, Client::staying(), provider).await;
    let ended = gateway.fixture.clock.reading();
    let took = ended.elapsed - began.elapsed;
    assert_eq!(took, 2 * wait, "the provider has waited");
    let rows = gateway.fixture.rows(outcome.operation).await;
    let usage = rows.usage.expect("a usage record");
    assert_eq!(usage.at, ended.now, "{wait:?} of {body}");
    let entry = rows.entries.last().expect("an entry");
    assert_eq!(entry.at, ended.now, "{wait:?} of {body}");
    let total = usage.usage.total_us.map(Duration::from_micros);
    // The test gateway records no start: its requests started with the clock.
    assert_eq!(total, Some(ended.elapsed), "{wait:?} of {body}");
    let record = &outcome.record;
    assert_eq!(record.upstream_started, Some(began.elapsed));
    assert_eq!(record.upstream_ended, Some(ended.elapsed));
}
