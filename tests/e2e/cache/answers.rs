//! The stored answers, and the equality of a stored answer with the given answer.

use serde_json::{Map, Value, json};
use tollgate_testing::provider::Failure;
use tollgate_testing::{Answer, Script};

use super::{events, metadata, rig, status};
use crate::rig::{CHAT, Rig, micros};

/// A provider with a stream of `events`.
fn streaming(events: &[Value]) -> Script {
    let mut text: String = events
        .iter()
        .map(|event| format!("data: {event}\n\n"))
        .collect();
    text += "data: [DONE]\n\n";
    Script {
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
        ..Script::failure(Failure::Text(text))
    }
}

/// A provider with the answer `answer`.
fn answering(answer: &Value) -> Script {
    Script::failure(Failure::Text(answer.to_string()))
}

fn event(delta: Value, finish: Value) -> Value {
    json!({"id": "p", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn usage() -> Value {
    json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}})
}

fn ask(what: &str, stream: bool) -> Value {
    json!({"model": "small", "stream": stream, "messages": [{"role": "user", "content": what}]})
}

async fn post(rig: &Rig, body: &Value) -> Answer {
    let answer = rig.client().post(CHAT, body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    rig.add_expected_charge(micros(&metadata(&answer)["credits_used"]));
    answer
}

/// The message of a replayed stream. Every member except the text comes as a whole.
fn replayed_message(events: &[Value]) -> Value {
    let mut message = Map::new();
    let mut calls = Vec::new();
    for event in events {
        for (name, value) in event["choices"][0]["delta"]
            .as_object()
            .into_iter()
            .flatten()
        {
            match (name.as_str(), value, message.get(name)) {
                ("tool_calls", Value::Array(more), _) => calls.extend(more.clone()),
                ("content", Value::String(piece), Some(Value::String(before))) => {
                    let text = before.clone() + piece;
                    message.insert(name.clone(), text.into());
                }
                _ => drop(message.insert(name.clone(), value.clone())),
            }
        }
    }
    for (at, call) in calls.iter_mut().enumerate() {
        let index = call.as_object_mut().expect("a call").remove("index");
        assert_eq!(index, Some(at.into()), "calls are numbered");
    }
    if !calls.is_empty() {
        if message["content"] == "" {
            message.insert("content".into(), Value::Null);
        }
        message.insert("tool_calls".into(), calls.into());
    }
    message.into()
}

#[tokio::test]
async fn a_stream_from_the_cache_is_the_answer_that_was_given() {
    let call = |index: u64, id: &str, name: &str, arguments: &str| {
        event(
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]}),
            Value::Null,
        )
    };
    let called = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let said = |delta: Value| event(delta, Value::Null);
    let detail = |detail: Value| said(json!({"reasoning_details": [detail]}));
    let thought = |text: &str| {
        said(
            json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]}),
        )
    };
    let cases = [
        (
            "calls that share an index",
            vec![
                call(0, "c1", "weather", "{\"city\":\"Oslo\"}"),
                call(0, "c2", "weather", "{\"city\":\"Rome\"}"),
            ],
            json!({"role": "assistant", "content": null, "tool_calls": [
                called("c1", "weather", "{\"city\":\"Oslo\"}"), called("c2", "weather", "{\"city\":\"Rome\"}")]}),
        ),
        (
            "a name in each delta",
            vec![
                call(0, "c1", "read_file", ""),
                call(0, "c1", "read_file", "{\"p\":"),
                call(0, "c1", "read_file", "1}"),
            ],
            json!({"role": "assistant", "content": null, "tool_calls": [called("c1", "read_file", "{\"p\":1}")]}),
        ),
        (
            "thinking before the text",
            vec![
                thought("Let me"),
                thought(" see."),
                said(json!({"content": "It is"})),
                said(json!({"content": " 4."})),
            ],
            json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]}, {"type": "text", "text": "It is 4."}]}),
        ),
        (
            "details of reasoning",
            vec![
                detail(json!({"type": "reasoning.text", "text": "A", "index": 0})),
                detail(json!({"type": "reasoning.text", "text": "B", "index": 0})),
                detail(json!({"type": "reasoning.text", "signature": "sig", "index": 0})),
                said(json!({"content": "4"})),
            ],
            json!({"role": "assistant", "content": "4",
                "reasoning_details": [{"type": "reasoning.text", "text": "AB", "signature": "sig", "index": 0}]}),
        ),
    ];
    let rig = rig("").await;
    for (what, mut stream, expected) in cases {
        // The sources beside every event, like the events of a search model.
        stream.push(event(json!({}), json!("stop")));
        stream
            .iter_mut()
            .for_each(|event| event["citations"] = json!(["https://a.test"]));
        stream.push(usage());
        rig.provider.clear_scripts();
        rig.provider.script(streaming(&stream));
        let calls = rig.provider.call_count();
        let first = post(&rig, &ask(what, true)).await;
        assert_eq!(status(&first), "stored", "{what}");
        let whole = post(&rig, &ask(what, false)).await;
        assert_eq!(status(&whole), "hit", "{what}");
        assert_eq!(whole.json()["choices"][0]["message"], expected, "{what}");
        assert_eq!(
            whole.json()["citations"],
            json!(["https://a.test"]),
            "{what}"
        );
        let again = post(&rig, &ask(what, true)).await;
        assert_eq!(status(&again), "hit", "{what}");
        assert_eq!(replayed_message(&events(&again)), expected, "{what}");
        assert_eq!(rig.provider.call_count(), calls + 1, "{what}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_stream_of_which_clients_make_different_answers_passes_and_is_not_stored() {
    let rig = rig("").await;
    let so_far = |text: &str, piece: &str| {
        let mut event = event(json!({"content": piece}), Value::Null);
        event["choices"][0]["message"] = json!({"role": "assistant", "content": text});
        event
    };
    let name = |name: &str| {
        event(
            json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": name}}]}),
            Value::Null,
        )
    };
    for (what, mut stream) in [
        (
            "the message so far beside each piece",
            vec![so_far("The", "The"), so_far("The toll", " toll")],
        ),
        ("a name in pieces", vec![name("edit_"), name("file")]),
    ] {
        stream.extend([event(json!({}), json!("stop")), usage()]);
        rig.provider.clear_scripts();
        rig.provider.script(streaming(&stream));
        for _ in 0..2 {
            let answer = post(&rig, &ask(what, true)).await;
            assert_eq!(status(&answer), "uncacheable", "{what}");
            let deltas = |events: &[Value]| -> Vec<Value> {
                let choices = events.iter().filter_map(|event| event["choices"].get(0));
                choices.map(|choice| choice["delta"].clone()).collect()
            };
            assert_eq!(deltas(&events(&answer)), deltas(&stream), "{what}");
        }
    }
    rig.provider.clear_scripts();
    let twice = r#"{"choices":[{"index":0,"message":{"content":"a"},"message":{"content":"b"},"finish_reason":"stop"}]}"#;
    rig.provider
        .script(Script::failure(Failure::Text(twice.to_owned())));
    for _ in 0..2 {
        assert_eq!(
            status(&post(&rig, &ask("twice", false)).await),
            "uncacheable"
        );
    }
    assert_eq!(rig.provider.call_count(), 6);
    rig.finish().await;
}

#[tokio::test]
async fn an_answer_that_broke_off_or_is_empty_is_not_stored() {
    let rig = rig("").await;
    let text = json!({"role": "assistant", "content": "The"});
    let mut cases: Vec<(Value, Value, &str)> = [
        "stop",
        "length",
        "tool_calls",
        "function_call",
        "eos",
        "STOP",
    ]
    .into_iter()
    .map(|reason| (text.clone(), json!(reason), "stored"))
    .collect();
    cases.extend(
        [
            "insufficient_system_resource",
            "abort",
            "network_error",
            "malformed_function_call",
            "content_filter",
            "a_new_one",
        ]
        .into_iter()
        .map(|reason| (text.clone(), json!(reason), "incomplete")),
    );
    for message in [
        json!({"role": "assistant", "content": ""}),
        json!({"role": "assistant", "content": null, "reasoning_content": "Hm"}),
        json!({"role": "assistant", "content": null, "tool_calls": []}),
    ] {
        cases.push((message, json!("stop"), "empty"));
    }
    for message in [
        json!({"role": "assistant", "content": null, "refusal": "No."}),
        json!({"role": "assistant", "content": null, "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
        json!({"role": "assistant", "content": null, "audio": {"id": "a", "data": "AAAA"}}),
    ] {
        cases.push((message, json!("stop"), "stored"));
    }
    for (at, (message, reason, expected)) in cases.iter().enumerate() {
        for stream in [false, true] {
            let what = format!("case {at}, {reason}, {message}, streamed: {stream}");
            rig.provider.clear_scripts();
            rig.provider.script(match stream {
                true => streaming(&[
                    event(message.clone(), Value::Null),
                    event(json!({}), reason.clone()),
                    usage(),
                ]),
                false => {
                    let mut answer = usage();
                    answer["choices"] =
                        json!([{"index": 0, "message": message, "finish_reason": reason}]);
                    answering(&answer)
                }
            });
            let calls = rig.provider.call_count();
            let body = ask(&what, stream);
            assert_eq!(status(&post(&rig, &body).await), *expected, "{what}");
            let again = match *expected {
                "stored" => "hit",
                other => other,
            };
            assert_eq!(status(&post(&rig, &body).await), again, "{what}");
            assert_eq!(
                rig.provider.call_count() - calls,
                if again == "hit" { 1 } else { 2 },
                "{what}"
            );
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_request_that_reads_the_world_is_neither_stored_nor_answered_from_the_cache() {
    let rig = rig("").await;
    let part = |part: Value| json!([{"role": "user", "content": [{"type": "text", "text": "see https://a.test/"}, part]}]);
    let image = |url: &str| part(json!({"type": "image_url", "image_url": {"url": url}}));
    let function = json!({"type": "function", "function": {"name": "look", "parameters": {}}});
    let mut member_at = 0;
    let mut member = |name: &str, value: Value| {
        member_at += 1;
        let mut body = ask(&format!("member {member_at}"), false);
        body[name] = value;
        body
    };
    let cases = [
        (member("web_search_options", json!({})), "external"),
        (
            member("search_parameters", json!({"mode": "auto"})),
            "external",
        ),
        (member("enable_search", true.into()), "external"),
        (member("enable_search", false.into()), "stored"),
        (member("web_search_options", Value::Null), "stored"),
        (
            member("search_domain_filter", json!(["a.test"])),
            "external",
        ),
        (
            member("tools", json!([function, {"type": "web_search_preview"}])),
            "external",
        ),
        (member("tools", json!([{"google_search": {}}])), "external"),
        (
            member("tools", json!([{"type": "openrouter:web_search"}])),
            "external",
        ),
        (
            member(
                "tools",
                json!([function, {"function": {"name": "g"}}, {"type": "custom", "custom": {"name": "h"}}]),
            ),
            "stored",
        ),
        (
            member("messages", image("https://a.test/1.png")),
            "external",
        ),
        (member("messages", image("HTTP://a.test/2.png")), "external"),
        (member("messages", image("gs://a/3.png")), "external"),
        (
            member("messages", image("data:image/png;base64,iVBORw0KGgo=")),
            "stored",
        ),
        (
            member(
                "messages",
                part(json!({"type": "file", "file": {"file_url": "https://a.test/a.pdf"}})),
            ),
            "external",
        ),
        (
            member(
                "messages",
                part(json!({"type": "input_image", "image_url": "https://a.test/4.png"})),
            ),
            "external",
        ),
        (
            member(
                "messages",
                part(
                    json!({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"}}),
                ),
            ),
            "stored",
        ),
    ];
    for (body, expected) in cases {
        let calls = rig.provider.call_count();
        assert_eq!(status(&post(&rig, &body).await), expected, "{body}");
        let again = if expected == "stored" {
            "hit"
        } else {
            expected
        };
        assert_eq!(status(&post(&rig, &body).await), again, "{body}");
        assert_eq!(
            rig.provider.call_count() - calls,
            if again == "hit" { 1 } else { 2 },
            "{body}"
        );
    }
    // A URL with escaped slashes, in the form of some encoders.
    let escaped = r#"{"model":"small","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https:\/\/a.test\/5.png"}}]}]}"#;
    let request = rig
        .client()
        .request("POST", CHAT, escaped.to_owned().into());
    let answer = rig.client().send(request).await;
    assert_eq!(status(&answer), "external");
    rig.add_expected_charge(micros(&metadata(&answer)["credits_used"]));
    rig.finish().await;
}
