//! Complete answers without a close by the provider: the answers count as complete, whatever happens to the connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, header};
use parking_lot::Mutex;
use tollgate_testing::provider::{Plan, Step};

use super::fixture::{ProviderFixture, state};
use super::*;
use crate::rig::{Setup, TEXT};

/// The price of a successful request, in micro-credits.
const REQUEST: i64 = 10_000;

/// The reported usage of every answer here, with the request.
const REPORTED: i64 = 5 * IN + 2 * OUT + REQUEST;

/// Two words and a request, counted here.
const COUNTED: i64 = counted(2) + REQUEST;

const USAGE: &str = r#"{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}"#;

/// The act of a provider after the last event or byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// Silence, for ever.
    Silent,
    /// Comments, for a minute.
    Comments,
    /// Empty events, for a minute.
    Pings,
    /// FIN without the last chunk.
    Fin,
    /// RST, after the client has received the earlier bytes.
    Reset,
    /// The last chunk.
    End,
}

use Then::{Comments, End, Fin, Pings, Reset, Silent};

fn word(index: u32, word: &str) -> String {
    format!(
        r#"data: {{"id":"7","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":{index},"delta":{{"content":"{word}"}},"finish_reason":null}}]}}"#
    ) + "\n\n"
}

fn stop(index: u32) -> String {
    format!(
        r#"data: {{"id":"7","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":{index},"delta":{{}},"finish_reason":"stop"}}]}}"#
    ) + "\n\n"
}

fn usage() -> String {
    format!("data: {{\"id\":\"7\",\"choices\":[],\"usage\":{USAGE}}}\n\n")
}

fn whole() -> String {
    format!(
        r#"{{"id":"7","object":"chat.completion","created":1,"model":"m","choices":[{{"index":0,"message":{{"role":"assistant","content":"The toll"}},"finish_reason":"stop"}}],"usage":{USAGE}}}"#
    )
}

/// A provider whose next answers are set by the test.
#[derive(Clone, Default)]
struct Played(Arc<Mutex<Plan>>);

impl Played {
    fn custom(&self) -> tollgate_testing::provider::Custom {
        let plan = self.0.clone();
        Arc::new(move |_| Some(plan.lock().clone()))
    }

    fn play(&self, rig: &Rig, kind: &'static str, pieces: &[String], then: Then) {
        let mut steps = vec![Step::Head {
            status: 200,
            headers: vec![(header::CONTENT_TYPE, HeaderValue::from_static(kind))],
            framing: Framing::Chunked,
            length: 0,
        }];
        let pieces = pieces.iter().cloned().map(Bytes::from);
        steps.extend(pieces.map(Step::Piece));
        let never = rig.provider.gate("never");
        match then {
            Silent => steps.push(Step::Wait(never)),
            Comments | Pings => {
                let text = match then {
                    Comments => ": still here\n\n",
                    _ => "data: {\"choices\":[]}\n\n",
                };
                for _ in 0..1_200 {
                    steps.push(Step::Pause(Duration::from_millis(50)));
                    steps.push(Step::Piece(Bytes::from_static(text.as_bytes())));
                }
            }
            Fin => steps.push(Step::Leave(Leave::Close)),
            Reset => {
                steps.push(Step::Wait(rig.provider.gate("reset")));
                steps.push(Step::Leave(Leave::Reset));
            }
            End => {}
        }
        *self.0.lock() = Plan {
            steps,
            write_bytes: None,
        };
    }
}

async fn rig(first: &str, more: &str) -> (Rig, Played) {
    let played = Played::default();
    let model = "price = { input = \"150\", output = \"600\", request = \"0.01\" }";
    let fixture = ProviderFixture {
        first,
        model,
        more,
        custom: Some(played.custom()),
        ..ProviderFixture::default()
    };
    (fixture.open().await.0, played)
}

/// The events of a stream. For a nonzero `until`, the gate of a reset is opened after `until` events.
async fn read(rig: &Rig, client: &Client, body: &Value, until: usize) -> Vec<Event> {
    let mut answer = client.stream(CHAT, body).await;
    assert_eq!(answer.status, 200, "{body}");
    let mut events = Vec::new();
    while events.len() < until {
        let event = answer.next_event().await.expect("an event");
        if !event.data().is_empty() {
            events.push(event);
        }
    }
    if until > 0 {
        rig.provider.gate("reset").release(1);
    }
    let (rest, end) = answer.rest().await;
    assert_eq!(end, StreamEnd::Proper, "{body}");
    events.extend(rest.into_iter().filter(|event| !event.data().is_empty()));
    events
}

/// Checks the end of a stream: the finish reason, the metadata with `charge`, `[DONE]`.
fn assert_complete(rig: &Rig, events: &[Event], charge: i64, estimated: bool, what: &str) {
    let [before @ .., last, done] = events else {
        panic!("{what}: {events:?}");
    };
    assert!(done.is_done(), "{what}: {events:?}");
    let last = last.json();
    let is_finish = |event: &Value| event["choices"][0]["finish_reason"] == "stop";
    assert!(
        is_finish(&last) || before.iter().any(|event| is_finish(&event.json())),
        "{what}: {events:?}"
    );
    assert_eq!(words(before), 2, "{what}");
    assert_eq!(
        last["x_svc"]["usage_estimated"], estimated,
        "{what}: {last}"
    );
    assert_eq!(rig.record_charge(&last), charge, "{what}");
}

#[tokio::test]
async fn a_stream_that_is_complete_is_charged_as_complete_however_its_provider_leaves_it() {
    let (rig, played) = rig("health = { failures = 2 }", "").await;
    let text = [word(0, "The"), word(0, " toll"), stop(0)];
    let mut served = 0;
    for then in [Silent, Comments, Pings, Fin, Reset, End] {
        let mut pieces = text.to_vec();
        pieces.push(usage());
        if then == Reset {
            // The piece releases the earlier finish reason, and the release shows a read of the usage.
            pieces.push(stop(0));
        }
        played.play(&rig, "text/event-stream", &pieces, then);
        for (protocol, client) in rig.both() {
            let what = format!("{then:?}, {protocol}");
            let until = if then == Reset { 3 } else { 0 };
            let events = read(&rig, &client, &chat(true), until).await;
            assert_complete(&rig, &events, REPORTED, false, &what);
            served += 1;
        }
    }
    assert_eq!(state(&rig, 0, true).await, "working");
    assert_eq!(rig.finish().await.endings(), vec!["complete"; served]);
}

#[tokio::test]
async fn a_stream_whose_choices_have_finished_is_counted_when_it_is_silent_or_ends() {
    let (rig, played) = rig("health = { failures = 2 }", "").await;
    let pieces = [word(0, "The"), word(0, " toll"), stop(0)];
    for then in [Silent, Comments, Pings, End] {
        played.play(&rig, "text/event-stream", &pieces, then);
        let [(_, one), (_, other)] = rig.both();
        let client = if then == Comments { other } else { one };
        let events = read(&rig, &client, &chat(true), 0).await;
        assert_complete(&rig, &events, COUNTED, true, &format!("{then:?}"));
    }
    assert_eq!(state(&rig, 0, true).await, "working");
    assert_eq!(rig.finish().await.endings(), ["complete"; 4]);
}

#[tokio::test]
async fn a_stream_that_breaks_off_before_its_usage_is_cut_though_its_choices_have_finished() {
    let (rig, played) = rig("", "").await;
    let pieces = [word(0, "The"), word(0, " toll"), stop(0)];
    played.play(&rig, "text/event-stream", &pieces, Fin);
    for (protocol, client) in rig.both() {
        let seen = observe(&client, true).await;
        let code = "upstream_error";
        assert_eq!(seen, Ok(Broken { words: 2, code }), "{protocol}");
        rig.quiet().await;
        rig.add_expected_charge(counted(2));
    }
    assert_eq!(rig.finish().await.endings(), ["upstream_cut"; 2]);
}

/// Every requested choice is required, not only the received choices.
#[tokio::test]
async fn a_stream_that_lacks_a_requested_choice_is_no_complete_answer() {
    let (rig, played) = rig("timeouts = { between_bytes_secs = 3 }", "").await;
    let mut body = chat(true);
    body["n"] = 2.into();
    let one = [word(0, "The"), word(0, " toll"), stop(0), usage()];
    for (then, code) in [(Fin, "upstream_error"), (Silent, "upstream_timeout")] {
        played.play(&rig, "text/event-stream", &one, then);
        let mut answer = rig.client().stream(CHAT, &body).await;
        let (events, _) = answer.rest().await;
        let last = events.last().expect("an event").json();
        assert_eq!(last["error"]["code"], code, "{then:?}");
        rig.quiet().await;
        rig.add_expected_charge(REPORTED - REQUEST);
    }
    let both = [word(0, "The"), word(1, " toll"), stop(1), stop(0), usage()];
    for then in [Fin, Silent] {
        played.play(&rig, "text/event-stream", &both, then);
        let events = read(&rig, &rig.client(), &body, 0).await;
        assert_complete(&rig, &events, REPORTED, false, &format!("{then:?}, both"));
    }
    let after = rig.finish().await;
    assert_eq!(
        after.endings(),
        ["upstream_cut", "upstream_cut", "complete", "complete"]
    );
}

#[tokio::test]
async fn a_whole_answer_that_is_there_is_charged_however_its_provider_leaves_it() {
    let (rig, played) = rig("health = { failures = 2 }", "").await;
    let body = whole();
    let (one, other) = body.split_at(body.len() / 2);
    let pieces = [one.to_owned(), other.to_owned()];
    for then in [Silent, Fin, End] {
        played.play(&rig, "application/json", &pieces, then);
        for (protocol, client) in rig.both() {
            let answer = client.post(CHAT, &chat(false)).await;
            assert_eq!(
                answer.status,
                200,
                "{then:?}, {protocol}: {}",
                answer.text()
            );
            assert_eq!(rig.record_charge(&answer.json()), REPORTED, "{then:?}");
        }
    }
    // Half an answer is no answer.
    played.play(&rig, "application/json", &pieces[..1], Fin);
    let seen = observe(&rig.client(), false).await;
    assert_eq!(seen, Ok(Error(502, "upstream_error")));
    assert_eq!(state(&rig, 0, true).await, "working");
    rig.finish().await;
}

#[tokio::test]
async fn a_text_made_of_chats_is_complete_however_a_provider_leaves_one_of_them() {
    let played = Played::default();
    let model = r#"
        [[model]]
        providers = [{ provider = "stand-in", model = "vendor/small-1", api = ["chat"] }]
        price = { input = "150", output = "600", request = "0.01" }
    "#;
    let setup = Setup {
        custom: Some(played.custom()),
        ..Setup::with(model)
    };
    let rig = setup.start().await;
    let mut body = json!({"model": "small", "prompt": ["a", "b"], "stream": true, "stream_options": {"include_usage": true}});
    let charge = 2 * (REPORTED - REQUEST) + REQUEST;
    let text = [word(0, "The"), word(0, " toll"), stop(0), usage()];
    for then in [Silent, Comments, Fin, End] {
        played.play(&rig, "text/event-stream", &text, then);
        let (events, _) = rig.client().stream(TEXT, &body).await.rest().await;
        let [.., last, done] = &events[..] else {
            panic!("{then:?}: {events:?}");
        };
        assert!(done.is_done(), "{then:?}: {events:?}");
        let last = last.json();
        assert_eq!(last["usage"]["total_tokens"], 14, "{then:?}: {last}");
        assert_eq!(last["x_svc"]["usage_estimated"], false, "{then:?}");
        assert_eq!(rig.record_charge(&last), charge, "{then:?}");
    }
    body = json!({"model": "small", "prompt": ["a", "b"]});
    // Silence of every chat, before the driver has any part of the answer.
    for then in [Silent, Fin, End] {
        played.play(&rig, "application/json", &[whole()], then);
        let answer = rig.client().post(TEXT, &body).await;
        assert_eq!(answer.status, 200, "{then:?}: {}", answer.text());
        assert_eq!(rig.record_charge(&answer.json()), charge, "{then:?}");
    }
    assert_eq!(rig.finish().await.endings(), ["complete"; 7]);
}

#[tokio::test]
async fn an_answer_that_is_not_closed_is_never_stored() {
    let (rig, played) = rig("", "cache.enabled = true").await;
    let text = [word(0, "The"), word(0, " toll"), stop(0), usage()];
    for (at, then) in [Silent, Fin, End].into_iter().enumerate() {
        played.play(&rig, "text/event-stream", &text, then);
        let mut body = chat(true);
        body["seed"] = at.into();
        for _ in 0..2 {
            let (events, _) = rig.client().stream(CHAT, &body).await.rest().await;
            let [.., last, done] = &events[..] else {
                panic!("{then:?}: {events:?}");
            };
            assert!(done.is_done(), "{then:?}");
            rig.record_charge(&last.json());
        }
    }
    assert_eq!(rig.provider.call_count(), 5);
    let after = rig.finish().await;
    assert_eq!(after.each("cache")[4..], ["stored", "hit"]);
}
