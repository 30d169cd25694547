//! A common entry for whole answers and for streams, in either order.

use serde_json::{Value, json};
use tollgate_testing::Script;
use tollgate_testing::provider::UsageReport;

use super::{events, metadata, rig, status};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, TEXT, chat};

/// The messages of a stream by choice, assembled as a client does.
fn streamed_message(events: &[Value]) -> Vec<Value> {
    let mut choices: Vec<Value> = Vec::new();
    for event in events {
        for choice in event["choices"].as_array().expect("choices") {
            let index =
                usize::try_from(choice["index"].as_u64().expect("an index")).expect("small");
            while choices.len() <= index {
                choices.push(json!({"content": null, "tool_calls": [], "finish_reason": null}));
            }
            let whole = &mut choices[index];
            let delta = &choice["delta"];
            let whole_message = delta["content"].as_str().or(choice["text"].as_str());
            if let Some(whole_message) = whole_message {
                let before = whole["content"].as_str().unwrap_or_default().to_owned();
                whole["content"] = (before + whole_message).into();
            }
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let index =
                    usize::try_from(call["index"].as_u64().expect("an index")).expect("small");
                let calls = whole["tool_calls"].as_array_mut().expect("an array");
                if calls.len() <= index {
                    calls.push(call.clone());
                    calls[index]
                        .as_object_mut()
                        .expect("an object")
                        .remove("index");
                } else {
                    let more = call["function"]["arguments"].as_str().unwrap_or_default();
                    let arguments = calls[index]["function"]["arguments"]
                        .as_str()
                        .unwrap_or_default();
                    calls[index]["function"]["arguments"] = (arguments.to_owned() + more).into();
                }
            }
            if !choice["finish_reason"].is_null() {
                whole["finish_reason"] = choice["finish_reason"].clone();
            }
        }
    }
    for choice in &mut choices {
        // A stream with tool calls only begins with an empty text; a whole answer has no text.
        if choice["content"] == "" && choice["tool_calls"] != json!([]) {
            choice["content"] = Value::Null;
        }
    }
    choices
}

/// The message of a whole answer.
fn whole_message(answer: &Value) -> Vec<Value> {
    let choices = answer["choices"].as_array().expect("choices");
    let of = |choice: &Value| {
        let message = &choice["message"];
        let content = message.get("content").or(choice.get("text"));
        json!({
            "content": content,
            "tool_calls": message.get("tool_calls").unwrap_or(&json!([])),
            "finish_reason": choice["finish_reason"],
        })
    };
    choices.iter().map(of).collect()
}

fn streamed(body: &Value, include_usage: bool) -> Value {
    let mut body = body.clone();
    body["stream"] = true.into();
    if include_usage {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

#[tokio::test]
async fn a_stored_response_is_served_whole_and_streamed() {
    let rig = rig("").await;
    let tool = json!([{"type": "function", "function": {"name": "look_up", "parameters": {}}}]);
    let ask = |text: &str| json!({"messages": [{"role": "user", "content": text}]});
    let with = |mut body: Value, name: &str, value: Value| {
        body[name] = value;
        body
    };
    let cases = [
        (CHAT, ask("words"), None),
        (CHAT, with(ask("two"), "n", 2.into()), None),
        (
            CHAT,
            with(
                with(ask("tools"), "tools", tool.clone()),
                "tool_choice",
                "required".into(),
            ),
            Some(Script {
                tool_call: true,
                ..Script::default()
            }),
        ),
        (CHAT, with(ask("short"), "max_tokens", 4.into()), None),
        (TEXT, json!({"prompt": "text"}), None),
        (TEXT, json!({"prompt": ["one", "two"]}), None),
    ];
    for stream_first in [false, true] {
        for (at, (path, body, script)) in cases.iter().enumerate() {
            let body = with(body.clone(), "x_first", stream_first.into());
            rig.provider.clear_scripts();
            if let Some(script) = script {
                rig.provider.script(script.clone());
            }
            let case = format!("case {at}, streamed first: {stream_first}");
            let first = if stream_first {
                rig.client().post(path, &streamed(&body, true)).await
            } else {
                rig.client().post(path, &body).await
            };
            assert_eq!(status(&first), "stored", "{case}: {}", first.text());
            rig.add_expected_charge(crate::rig::micros(&metadata(&first)["credits_used"]));
            let expected = match stream_first {
                true => streamed_message(&events(&first)),
                false => whole_message(&first.json()),
            };
            assert!(
                expected
                    .iter()
                    .all(|choice| !choice["finish_reason"].is_null()),
                "{case}"
            );
            let usage = match stream_first {
                true => events(&first).last().expect("events")["usage"].clone(),
                false => first.json()["usage"].clone(),
            };
            for (protocol, client) in rig.both() {
                let whole = client.post(path, &body).await;
                assert_eq!(status(&whole), "hit", "{case}, {protocol}");
                assert_eq!(whole_message(&whole.json()), expected, "{case}, {protocol}");
                assert_eq!(whole.json()["usage"], usage, "{case}, {protocol}");
                for include_usage in [false, true] {
                    let stream = client.post(path, &streamed(&body, include_usage)).await;
                    let case = format!("{case}, {protocol}, usage {include_usage}");
                    assert_eq!(
                        stream.header("content-type"),
                        Some("text/event-stream"),
                        "{case}"
                    );
                    assert_eq!(status(&stream), "hit", "{case}");
                    assert_eq!(
                        metadata(&stream)["cache_entry_id"],
                        metadata(&first)["cache_entry_id"]
                    );
                    let events = events(&stream);
                    assert_eq!(streamed_message(&events), expected, "{case}");
                    let (last, others) = events.split_last().expect("events");
                    assert_eq!(
                        last.get("usage").is_some_and(|usage| !usage.is_null()),
                        include_usage,
                        "{case}"
                    );
                    if include_usage {
                        assert_eq!(
                            (&last["choices"], &last["usage"]),
                            (&json!([]), &usage),
                            "{case}"
                        );
                    }
                    for event in others {
                        assert_eq!(
                            event.get("usage").is_some(),
                            include_usage,
                            "{case}: {event}"
                        );
                        for member in ["id", "created", "model"] {
                            assert_eq!(event[member], last[member], "{case}");
                        }
                    }
                }
            }
        }
    }
    assert_eq!(rig.provider.call_count(), 2 * cases.len() as u64);
    rig.finish().await;
}

#[tokio::test]
async fn a_stored_response_without_reported_usage_is_counted_on_each_hit() {
    let nothing = UsageReport::Exactly {
        prompt_tokens: 0,
        completion_tokens: 0,
    };
    for report in [UsageReport::Forgotten, nothing] {
        counted_for_each_reply(report).await;
    }
}

async fn counted_for_each_reply(report: UsageReport) {
    let rig = Rig::with("cache = { enabled = true, hit_price_ppm = 1000000 }").await;
    rig.provider.script(Script::usage(report));
    let first = rig.client().post(CHAT, &chat(true)).await;
    assert_eq!(status(&first), "stored");
    let charged = crate::rig::micros(&metadata(&first)["credits_used"]);
    for body in [chat(false), chat(true), streamed(&chat(true), true)] {
        let again = rig.client().post(CHAT, &body).await;
        assert_eq!(status(&again), "hit");
        assert_eq!(metadata(&again)["usage_estimated"], true);
        assert_eq!(
            crate::rig::micros(&metadata(&again)["credits_used"]),
            charged
        );
        let usage = match body["stream"].as_bool() {
            Some(true) => events(&again).last().expect("events")["usage"].clone(),
            _ => again.json()["usage"].clone(),
        };
        let asked = body["stream"] == false || body.get("stream_options").is_some();
        assert_eq!(usage["completion_tokens"].is_u64(), asked, "{usage}");
    }
    rig.add_expected_charge(4 * charged);
    assert_eq!(rig.provider.call_count(), 1);
    rig.finish().await;
}

#[tokio::test]
async fn a_hit_costs_the_configured_price_and_is_one_ledger_entry() {
    let rig = Rig::with("cache = { enabled = true, hit_price_ppm = 100000 }").await;
    for (stream, price) in [
        (false, PRICE_OF_A_CHAT),
        (false, PRICE_OF_A_CHAT / 10),
        (true, PRICE_OF_A_CHAT / 10),
    ] {
        let before = rig.available(rig.account);
        let answer = rig.client().post(CHAT, &chat(stream)).await;
        assert_eq!(
            crate::rig::micros(&metadata(&answer)["credits_used"]),
            price
        );
        assert_eq!(
            crate::rig::micros(&metadata(&answer)["credits_remaining"]),
            before - price
        );
        assert_eq!(rig.available(rig.account), before - price);
        rig.add_expected_charge(price);
    }
    let after = rig.finish().await;
    assert_eq!(after.report.usage, 3);
}
