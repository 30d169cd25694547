//! Stored and replayed answers: typical streams, and arbitrary provider output.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::family::Content;

mod clients;

const STAMP: Stamp<'static> = Stamp {
    id: "chatcmpl-1",
    created: 7,
};

fn stored(family: &'static Family, answer: &Value) -> StoredAnswer {
    StoredAnswer::of_answer(family, answer.to_string().as_bytes(), "m", "x_svc", 1 << 20)
        .expect("it can be stored")
}

fn accumulate(family: &'static Family, events: &[Bytes]) -> Result<StoredAnswer, StoredError> {
    let mut accumulator = Accumulator::new(family, "x_svc", 1 << 20);
    for event in events {
        accumulator.event(event);
    }
    accumulator.finish("m")
}

fn value(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("what is written is JSON")
}

fn accumulated_json(family: &'static Family, events: &[Value]) -> Value {
    let events: Vec<Bytes> = events
        .iter()
        .map(|event| event.to_string().into())
        .collect();
    let kept = accumulate(family, &events).expect("it can be stored");
    let mut answer = value(&kept.answer(STAMP, 0));
    for member in ["id", "created", "model", "object"] {
        answer.as_object_mut().expect("an object").remove(member);
    }
    answer
}

fn delta(delta: Value, finish: Value) -> Value {
    json!({"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "p",
        "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]})
}

#[test]
fn a_stored_answer_has_no_id_time_or_metadata() {
    let body = br#" { "id":"x", "object" : "chat.completion","created":5,"x_svc":{"a":1},"model":"provider/m",
        "choices":[{"index":0,"message":{"role":"assistant","content":"Hi","extra":[1.50]},"finish_reason":"stop"}],
        "usage" : {"prompt_tokens":1, "completion_tokens":2,"total_tokens":3},"new":{"a":null}}"#;
    let kept = StoredAnswer::of_answer(Family::CHAT, body, "m", "x_svc", 1 << 20).expect("kept");
    assert_eq!(
        std::str::from_utf8(&kept.answer(STAMP, 0)).expect("UTF-8"),
        r#"{"id":"chatcmpl-1","created":7,"model":"m","object" : "chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hi","extra":[1.50]},"finish_reason":"stop"}],"usage" : {"prompt_tokens":1, "completion_tokens":2,"total_tokens":3},"new":{"a":null}}"#
    );
    assert!(kept.has_usage());
}

#[test]
fn a_usage_is_stored_as_parsed_and_once() {
    for (usage, kept) in [
        (
            r#""usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":25,"cost":1.50}"#,
            r#"{"prompt_tokens":5,"completion_tokens":20,"total_tokens":25,"cost":1.50}"#,
        ),
        (
            r#""usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2},"usage":{"prompt_tokens":5,"completion_tokens":4}"#,
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}"#,
        ),
        (
            r#""usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2},"usage":{"prompt_tokens":0}"#,
            r#"{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}"#,
        ),
    ] {
        let body = format!(
            r#"{{{usage},"choices":[{{"index":0,"message":{{"content":"Hi"}},"finish_reason":"stop"}}]}}"#
        );
        let whole = StoredAnswer::of_answer(Family::CHAT, body.as_bytes(), "m", "x_svc", 10_000);
        let whole = whole.expect("it is stored");
        assert!(whole.has_usage());
        let text = String::from_utf8(whole.answer(STAMP, 0).to_vec()).expect("UTF-8");
        assert_eq!(text.matches("\"usage\"").count(), 1, "{text}");
        assert!(text.contains(&format!("\"usage\":{kept}")), "{text}");
        let event = body.replace("message", "delta");
        let mut accumulator = Accumulator::new(Family::CHAT, "x_svc", 10_000);
        accumulator.event(event.as_bytes());
        let stream = accumulator.finish("m").expect("it is stored");
        let text = String::from_utf8(stream.answer(STAMP, 0).to_vec()).expect("UTF-8");
        assert!(text.contains(&format!("\"usage\":{kept}")), "{text}");
    }
}

#[test]
fn neither_the_requester_nor_an_empty_usage_is_stored() {
    let body = json!({"user": "u", "metadata": {"a": 1}, "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]});
    let mut event = delta(json!({"content": "Hi"}), json!("stop"));
    for member in ["user", "metadata", "usage"] {
        event[member] = body[member].clone();
    }
    for kept in [
        stored(Family::CHAT, &body),
        accumulate(Family::CHAT, &[event.to_string().into()]).expect("it can be stored"),
    ] {
        assert!(!kept.has_usage());
        let answer = value(&kept.answer(STAMP, 0));
        for member in ["user", "metadata", "usage"] {
            assert_eq!(answer.get(member), None, "{member}");
        }
    }
}

#[test]
fn a_stream_of_words_becomes_one_message() {
    let mut events = vec![delta(
        json!({"role": "assistant", "content": ""}),
        Value::Null,
    )];
    for word in ["The ", "toll \"is\"", " paid", ".", ".", "\n"] {
        events.push(delta(json!({"content": word}), Value::Null));
    }
    events.push(delta(json!({}), json!("stop")));
    events.push(json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}}));
    assert_eq!(
        accumulated_json(Family::CHAT, &events),
        json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "The toll \"is\" paid..\n"},
            "logprobs": null, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}})
    );
}

#[test]
fn calls_of_tools_are_put_together_from_their_pieces() {
    let call = |call: Value| delta(json!({"tool_calls": [call]}), Value::Null);
    let events = [
        delta(json!({"role": "assistant", "content": ""}), Value::Null),
        call(
            json!({"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}),
        ),
        call(json!({"index": 0, "function": {"arguments": "{\"a\""}})),
        call(json!({"index": 0, "function": {"arguments": ":1}"}})),
        // A provider that repeats the facts.
        call(
            json!({"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{"}}),
        ),
        call(json!({"index": 1, "id": "c2", "type": "function", "function": {"arguments": "}"}})),
        delta(json!({}), json!("tool_calls")),
    ];
    assert_eq!(
        accumulated_json(Family::CHAT, &events),
        json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
            "logprobs": null, "finish_reason": "tool_calls"}]})
    );
}

#[test]
fn interleaved_choices_and_their_tokens_stay_separate() {
    let chunk = |index: u64, word: &str, finish: Value| {
        json!({"system_fingerprint": "fp", "obfuscation": word, "choices": [{"index": index, "delta": {"content": word},
            "logprobs": {"content": [{"token": word}], "refusal": null}, "finish_reason": finish, "stop_reason": finish}]})
    };
    let events = [
        chunk(1, "b", Value::Null),
        chunk(0, "a", Value::Null),
        chunk(1, "b", json!("length")),
        chunk(0, "c", json!("stop")),
    ];
    let choice = |index: u64, words: [&str; 2], finish: &str| {
        json!({"index": index, "message": {"role": "assistant", "content": words.concat()},
            "logprobs": {"content": [{"token": words[0]}, {"token": words[1]}], "refusal": null},
            "finish_reason": finish, "stop_reason": finish})
    };
    assert_eq!(
        accumulated_json(Family::CHAT, &events),
        json!({"system_fingerprint": "fp", "choices": [choice(0, ["a", "c"], "stop"), choice(1, ["b", "b"], "length")]})
    );
}

#[test]
fn a_text_completion_is_accumulated_like_a_chat() {
    let chunk = |text: &str, finish: Value| json!({"choices": [{"index": 0, "text": text, "logprobs": {"tokens": [text], "text_offset": [1]}, "finish_reason": finish}]});
    let events = [
        chunk("to", Value::Null),
        chunk("ll", Value::Null),
        chunk("", json!("stop")),
    ];
    assert_eq!(
        accumulated_json(Family::TEXT, &events),
        json!({"choices": [{"index": 0, "text": "toll",
            "logprobs": {"tokens": ["to", "ll", ""], "text_offset": [1, 1, 1]}, "finish_reason": "stop"}]})
    );
}

#[test]
fn a_stored_answer_is_replayed_by_twenty_words_with_one_id_and_usage_on_request() {
    let words: String = (0..45).map(|number| format!("w{number} ")).collect();
    let answer = json!({"object": "chat.completion", "system_fingerprint": "fp", "new": 1,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": words, "reasoning_content": "hm"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}});
    let kept = stored(Family::CHAT, &answer);
    for include_usage in [false, true] {
        let events = kept.events(include_usage).expect("events").write(STAMP);
        let events: Vec<Value> = events.iter().map(|event| value(event)).collect();
        let choice = |at: usize| &events[at]["choices"][0];
        assert_eq!(
            choice(0)["delta"],
            json!({"role": "assistant", "content": ""})
        );
        assert_eq!(events[0]["new"], 1, "what only one event needs to say");
        assert_eq!(choice(1)["delta"], json!({"reasoning_content": "hm"}));
        for (at, words) in [(2, 20), (3, 20), (4, 5)] {
            let content = choice(at)["delta"]["content"].as_str().expect("words");
            assert_eq!(content.split_whitespace().count(), words);
        }
        assert_eq!(
            (&choice(5)["delta"], &choice(5)["finish_reason"]),
            (&json!({}), &json!("stop"))
        );
        assert_eq!(events.len(), if include_usage { 7 } else { 6 });
        for event in &events {
            assert_eq!(
                (&event["id"], &event["created"], &event["model"]),
                (&json!("chatcmpl-1"), &json!(7), &json!("m"))
            );
            assert_eq!(event["system_fingerprint"], "fp");
            assert_eq!(event.get("usage").is_some(), include_usage);
        }
        if include_usage {
            assert_eq!(
                (&events[6]["choices"], &events[6]["usage"]),
                (&json!([]), &answer["usage"])
            );
        }
    }
}

#[test]
fn an_answer_too_large_or_without_choices_is_not_stored() {
    let mut accumulator = Accumulator::new(Family::CHAT, "x_svc", 100);
    for _ in 0..50 {
        accumulator.event(
            delta(json!({"content": "0123456789"}), Value::Null)
                .to_string()
                .as_bytes(),
        );
    }
    assert_eq!(
        accumulator.finish("m"),
        Err(StoredError::TooLarge { bytes_max: 100 })
    );
    assert_eq!(accumulated(&[]), Err(StoredError::NoChoices));
    assert!(matches!(
        accumulated(&["{\"choices\":"]),
        Err(StoredError::Syntax(_))
    ));
    for body in ["{}", "[]", r#"{"choices":{}}"#] {
        let kept = StoredAnswer::of_answer(Family::CHAT, body.as_bytes(), "m", "x_svc", 1000);
        assert_eq!(kept, Err(StoredError::NoChoices), "{body}");
    }
    let body = format!(
        r#"{{"choices":[{{"message":{{"content":"{}"}}}}]}}"#,
        "x".repeat(1000)
    );
    let kept = StoredAnswer::of_answer(Family::CHAT, body.as_bytes(), "m", "x_svc", 1000);
    assert_eq!(kept, Err(StoredError::TooLarge { bytes_max: 1000 }));

    fn accumulated(events: &[&str]) -> Result<StoredAnswer, StoredError> {
        let events: Vec<Bytes> = events
            .iter()
            .map(|event| Bytes::from(event.to_string()))
            .collect();
        super::tests::accumulate(Family::CHAT, &events)
    }
}

fn plain() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            extras(inner).prop_map(Value::from),
        ]
    })
}

/// Members that no specification names.
fn extras(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map("x_[a-z\"\\\\é]{1,4}", value, 0..3)
        .prop_map(|map| map.into_iter().collect())
}

fn words() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "([a-zé\"\\\\\n]{0,5} ){0,60}"]
}

fn call() -> impl Strategy<Value = Value> {
    ("c[0-9]{1,3}", "[a-z]{1,4}", words(), extras(plain())).prop_map(|(id, name, arguments, extra)| {
        let mut call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        call.as_object_mut().expect("an object").extend(extra);
        call
    })
}

fn choice(family: &'static Family) -> impl Strategy<Value = Map<String, Value>> {
    let content = prop_oneof![Just(Value::Null), words().prop_map(Value::from)];
    let token =
        words().prop_map(|token| json!({"token": token, "logprob": -1, "top_logprobs": []}));
    let logprobs = prop_oneof![
        Just(Value::Null),
        prop::collection::vec(token, 1..4)
            .prop_map(|tokens| json!({"content": tokens, "refusal": null})),
    ];
    let finish = prop_oneof![
        Just("stop"),
        Just("length"),
        Just("tool_calls"),
        Just("content_filter")
    ];
    let calls = prop::collection::vec(call(), 0..3);
    (
        content,
        logprobs,
        finish,
        calls,
        extras(plain()),
        extras(plain()),
        words(),
    )
        .prop_map(
            move |(content, logprobs, finish, calls, of_message, of_choice, text)| {
                let mut choice = match family.answer.content {
                    Content::Message => {
                        let mut message = json!({"role": "assistant", "content": content});
                        let members = message.as_object_mut().expect("an object");
                        if !calls.is_empty() {
                            if members["content"] == "" {
                                members["content"] = Value::Null;
                            }
                            members.insert("tool_calls".into(), calls.into());
                        }
                        members.extend(of_message);
                        json!({"message": message, "logprobs": logprobs, "finish_reason": finish})
                    }
                    Content::Text => {
                        json!({"text": text, "logprobs": logprobs, "finish_reason": finish})
                    }
                };
                let members = choice.as_object_mut().expect("an object");
                members.extend(of_choice);
                std::mem::take(members)
            },
        )
}

fn answer(family: &'static Family) -> impl Strategy<Value = Value> {
    let usage = prop_oneof![
        Just(None),
        (0..1000u64, 0..1000u64, extras(plain())).prop_map(|(prompt, completion, extra)| {
            let mut usage = json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion});
            usage.as_object_mut().expect("an object").extend(extra);
            Some(usage)
        }),
    ];
    let choices = prop::collection::vec(choice(family), 1..4);
    (choices, usage, extras(plain()), any::<bool>()).prop_map(
        move |(choices, usage, extra, fingerprint)| {
            let choices: Vec<Value> = choices
                .into_iter()
                .enumerate()
                .map(|(index, mut choice)| {
                    choice.insert("index".into(), index.into());
                    choice.into()
                })
                .collect();
            let object = family.answer.object;
            let mut answer = json!({"object": object, "choices": choices});
            let members = answer.as_object_mut().expect("an object");
            members.extend(extra);
            if let Some(usage) = usage {
                members.insert("usage".into(), usage);
            }
            if fingerprint {
                members.insert("system_fingerprint".into(), "fp_1".into());
            }
            answer
        },
    )
}

proptest! {
    #[test]
    fn a_replayed_stream_accumulates_to_the_stored_answer(
        (family, answer) in prop_oneof![Just(Family::CHAT), Just(Family::TEXT)]
            .prop_flat_map(|family| (Just(family), answer(family))),
        include_usage: bool,
    ) {
        let kept = stored(family, &answer);
        let events = kept.events(include_usage).expect("it can be replayed").write(STAMP);
        let again = accumulate(family, &events).expect("it can be stored");
        let mut expected = value(&kept.answer(STAMP, 0));
        if !include_usage {
            expected.as_object_mut().expect("an object").remove("usage");
        }
        prop_assert_eq!(value(&again.answer(STAMP, 0)), expected);
    }

    #[test]
    fn events_are_ones_that_our_own_reader_understands(answer in answer(Family::CHAT)) {
        let patch = std::sync::Arc::new(crate::Patch::new(Family::CHAT, "x_svc"));
        let mut reader = crate::ChunkReader::new(patch, true);
        let mut progress = crate::Progress::default();
        for event in stored(Family::CHAT, &answer).events(true).expect("it can be replayed").write(STAMP) {
            progress.note(&reader.read(&event).expect("a chunk"));
        }
        prop_assert!(progress.all_finished());
        prop_assert_eq!(progress.choices_seen(), answer["choices"].as_array().expect("choices").len());
        prop_assert_eq!(progress.usage().is_some(), answer.get("usage").is_some());
    }

    #[test]
    fn no_events_make_it_panic(events: Vec<Vec<u8>>) {
        let mut accumulator = Accumulator::new(Family::CHAT, "x_svc", 1000);
        for event in &events {
            accumulator.event(event);
        }
        let _ = accumulator.finish("m");
    }
}
