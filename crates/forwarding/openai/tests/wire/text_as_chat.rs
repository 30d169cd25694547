//! Text requests as chats, and the answers translated back.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_openai::text_as_chat::PROMPTS_MAX;
use tollgate_openai::{CompletionRequest, Family, RequestError, TextAsChat, TextStream, TurnError};

fn asked(body: &str) -> Result<TextAsChat, RequestError> {
    let request = CompletionRequest::read(Family::TEXT, body.as_bytes()).expect("a good request");
    TextAsChat::read(&request, body.as_bytes())
}

fn turn(body: &str) -> Arc<TextAsChat> {
    Arc::new(asked(body).expect("a request that a chat can serve"))
}

#[test]
fn a_prompt_becomes_the_user_message_and_everything_else_stays_as_written() {
    //    text request, chats
    check(
        r#"{"model":"m","prompt":"\u0041 \/"}"#,
        &[r#"{"model":"m","messages":[{"role":"user","content":"\u0041 \/"}]}"#],
    );
    check(
        r#"{"prompt":"a","system":"s\n","temperature" : 1.50,"stop":["x", "y"],"n":2,"best_of":2}"#,
        &[
            r#"{"temperature" : 1.50,"stop":["x", "y"],"n":2,"messages":[{"role":"system","content":"s\n"},{"role":"user","content":"a"}]}"#,
        ],
    );
    check(
        r#"{"prompt":["a","b"],"system":null,"max_tokens":5,"stream":true}"#,
        &[
            r#"{"max_tokens":5,"stream":true,"messages":[{"role":"user","content":"a"}]}"#,
            r#"{"max_tokens":5,"stream":true,"messages":[{"role":"user","content":"b"}]}"#,
        ],
    );
    check(
        r#"{"prompt":"a","logprobs":3}"#,
        &[r#"{"logprobs":true,"top_logprobs":3,"messages":[{"role":"user","content":"a"}]}"#],
    );
    check(
        r#"{"prompt":"a","logprobs":null,"suffix":null,"echo":false,"tools":[{}],"messages":1}"#,
        &[r#"{"messages":[{"role":"user","content":"a"}]}"#],
    );

    fn check(body: &str, expected: &[&str]) {
        let asked = asked(body).expect("a request that a chat can serve");
        let chats: Vec<&str> = asked
            .chats()
            .iter()
            .map(|chat| std::str::from_utf8(chat).expect("UTF-8"))
            .collect();
        assert_eq!(chats, expected, "{body}");
        for chat in asked.chats() {
            CompletionRequest::read(Family::CHAT, chat).expect("a good chat");
        }
    }
}

#[test]
fn text_features_without_a_chat_equivalent_are_refused() {
    let many = vec!["\"a\""; PROMPTS_MAX + 1].join(",");
    for (body, param) in [
        (r#"{"prompt":[]}"#.to_owned(), "prompt"),
        (format!(r#"{{"prompt":[{many}]}}"#), "prompt"),
        (r#"{"prompt":"a","suffix":"b"}"#.to_owned(), "suffix"),
        (r#"{"prompt":"a","best_of":3,"n":2}"#.to_owned(), "best_of"),
        (
            r#"{"prompt":"a","echo":true,"logprobs":0}"#.to_owned(),
            "echo",
        ),
        (r#"{"prompt":"a","logprobs":-1}"#.to_owned(), "logprobs"),
        (r#"{"prompt":"a","logprobs":"2"}"#.to_owned(), "logprobs"),
    ] {
        let error = asked(&body).expect_err("a refusal");
        assert_eq!(error.param.as_deref(), Some(param), "{body}");
        assert!(error.message.starts_with(param), "{}", error.message);
    }
}

/// A chat's whole answer with these choices.
fn chat_answer(id: &str, choices: Value, usage: Value) -> Bytes {
    let answer = json!({"id": id, "object": "chat.completion", "created": 7, "model": "p", "system_fingerprint": "f",
        "choices": choices, "usage": usage});
    Bytes::from(answer.to_string())
}

fn whole(request: &str, answers: &[Bytes]) -> Value {
    let text = turn(request).whole(answers).expect("chat answers");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn a_whole_answer_is_translated_with_finish_reasons_and_additional_members() {
    let usage =
        json!({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "extra": {"a": 1}});
    let choices = json!([
        {"index": 0, "message": {"role": "assistant", "content": "a \"b\""}, "logprobs": null, "finish_reason": "stop", "seen": 1},
        {"index": 1, "message": {"role": "assistant", "content": null, "tool_calls": [{"id": "c"}]}, "finish_reason": "tool_calls"},
        {"index": 2, "message": {"content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}, "finish_reason": "length"},
        {"index": 3, "message": {"content": null, "refusal": "no"}, "finish_reason": "content_filter"},
        {"index": 4, "message": {"content": "z", "reasoning_content": "hm"}, "finish_reason": null},
    ]);
    let answer = whole(
        r#"{"prompt":"a","n":5}"#,
        &[chat_answer("chatcmpl-1", choices, usage.clone())],
    );
    assert_eq!(
        answer,
        json!({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "p", "system_fingerprint": "f",
            "choices": [
                {"index": 0, "text": "a \"b\"", "logprobs": null, "finish_reason": "stop", "seen": 1},
                {"index": 1, "text": "", "logprobs": null, "finish_reason": "stop"},
                {"index": 2, "text": "xy", "logprobs": null, "finish_reason": "length"},
                {"index": 3, "text": "no", "logprobs": null, "finish_reason": "content_filter"},
                {"index": 4, "text": "z", "logprobs": null, "finish_reason": null, "reasoning_content": "hm"},
            ],
            "usage": usage})
    );
}

#[test]
fn several_answers_are_numbered_through_and_their_usages_added_up() {
    let one = |id: &str, text: &str| {
        let choices = json!([
            {"index": 1, "message": {"content": format!("{text}1")}, "finish_reason": "stop"},
            {"index": 0, "message": {"content": format!("{text}0")}, "finish_reason": "stop"},
        ]);
        let usage = json!({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3});
        chat_answer(id, choices, usage)
    };
    const REQUEST: &str = r#"{"prompt":["a","b","c"],"n":2}"#;
    let answers = [one("x", "a"), one("y", "b"), one("z", "c")];
    let answer = whole(REQUEST, &answers);
    let choices = answer["choices"].as_array().expect("choices").iter();
    let texts: Vec<_> = choices
        .map(|choice| (choice["index"].as_u64(), choice["text"].as_str()))
        .collect();
    assert_eq!(
        texts,
        [
            (1, "a1"),
            (0, "a0"),
            (3, "b1"),
            (2, "b0"),
            (5, "c1"),
            (4, "c0")
        ]
        .map(|(index, text)| (Some(index), Some(text)))
    );
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9})
    );
    assert_eq!(answer["id"], "x", "the first one's");

    let choice = json!([{"index": 0, "message": {"content": "c"}}]);
    let unknown = chat_answer("z", choice, Value::Null);
    let answer = whole(REQUEST, &[one("x", "a"), one("y", "b"), unknown]);
    assert_eq!(
        answer.get("usage"),
        None,
        "two of three say nothing about all"
    );
}

#[test]
fn a_choice_index_of_another_prompt_is_refused() {
    let answer = |index: u64| {
        let choices =
            json!([{"index": index, "message": {"content": "x"}, "finish_reason": "stop"}]);
        chat_answer("x", choices, Value::Null)
    };
    let two = turn(r#"{"prompt":["a","b"]}"#);
    assert_eq!(
        two.whole(&[answer(0), answer(1)]),
        Err(TurnError::Index { index: 1, asked: 1 })
    );
    let one = turn(r#"{"prompt":"a"}"#);
    assert!(one.whole(&[answer(1)]).is_ok(), "there is no other prompt");
}

#[test]
fn an_error_of_one_answer_is_the_error_of_all() {
    let good = chat_answer("x", json!([{"message": {"content": "x"}}]), Value::Null);
    let bad = Bytes::from_static(br#"{"error":{"message":"no"}}"#);
    let answer = whole(r#"{"prompt":["a","b"]}"#, &[good, bad]);
    assert_eq!(answer, json!({"error": {"message": "no"}}));
}

#[test]
fn log_probabilities_stand_side_by_side_with_offsets_in_characters() {
    let token = |token: &str, logprob: f64, top: Value| json!({"token": token, "logprob": logprob, "bytes": [1], "top_logprobs": top});
    let top = json!([{"token": "é", "logprob": -0.5}, {"token": "e", "logprob": -1.25}, {"token": "é", "logprob": -9}]);
    let content = json!([token("é", -0.5, top), token(" b", -2.0, json!([]))]);
    let choices = json!([{"index": 0, "message": {"content": "é b"}, "logprobs": {"content": content, "refusal": null},
        "finish_reason": "stop"}]);
    let answers = [chat_answer("x", choices, Value::Null)];
    let with_top = whole(r#"{"prompt":"a","logprobs":2}"#, &answers);
    assert_eq!(
        with_top["choices"][0]["logprobs"],
        json!({"tokens": ["é", " b"], "token_logprobs": [-0.5, -2.0],
            "top_logprobs": [{"é": -0.5, "e": -1.25}, {}], "text_offset": [0, 1]})
    );
    let without = whole(r#"{"prompt":"a","logprobs":0}"#, &answers);
    assert_eq!(
        without["choices"][0]["logprobs"]["top_logprobs"],
        Value::Null
    );
    let unasked = whole(r#"{"prompt":"a"}"#, &answers);
    assert_eq!(unasked["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn an_echo_stands_before_the_text() {
    let choices = json!([{"index": 0, "message": {"content": "b"}}, {"index": 1, "message": {"content": null}}]);
    let answers = [chat_answer("x", choices, Value::Null)];
    let answer = whole(r#"{"prompt":"a\u0022 ","n":2,"echo":true}"#, &answers);
    assert_eq!(answer["choices"][0]["text"], "a\" b");
    assert_eq!(answer["choices"][1]["text"], "a\" ");
}

fn chunk(id: &str, choices: Value) -> String {
    json!({"id": id, "object": "chat.completion.chunk", "created": 7, "model": "p", "choices": choices})
        .to_string()
}

fn delta(index: u64, delta: Value, finish: Value) -> Value {
    json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": finish}])
}

/// The data of the events that a stream makes of `(prompt, data)`, with those of its end.
fn streamed(request: &str, events: &[(usize, String)]) -> Vec<Value> {
    let mut stream = TextStream::new(turn(request));
    let mut out = BytesMut::new();
    for (prompt, data) in events {
        stream
            .turn(*prompt, data.as_bytes(), &mut out)
            .expect("an event of a chat");
    }
    stream.end(&mut out);
    let out = std::str::from_utf8(&out).expect("UTF-8");
    let mut events: Vec<&str> = out
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("a data line"))
        .collect();
    assert_eq!(events.pop(), Some("[DONE]"));
    let read = |event: &str| serde_json::from_str(event).expect("JSON");
    events.into_iter().map(read).collect()
}

#[test]
fn the_events_of_one_chat_become_those_of_a_text_and_silent_ones_are_left_out() {
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3});
    let mut last: Value = serde_json::from_str(&chunk("chatcmpl-1", json!([]))).expect("JSON");
    last["usage"] = usage.clone();
    let events = [
        chunk(
            "chatcmpl-1",
            delta(0, json!({"role": "assistant", "content": ""}), Value::Null),
        ),
        chunk("chatcmpl-1", delta(0, json!({"content": "a"}), Value::Null)),
        chunk(
            "chatcmpl-1",
            delta(0, json!({"tool_calls": [{"index": 0}]}), Value::Null),
        ),
        chunk(
            "chatcmpl-1",
            delta(0, json!({"reasoning_content": "hm"}), Value::Null),
        ),
        chunk("chatcmpl-1", delta(0, json!({}), json!("function_call"))),
        last.to_string(),
    ];
    let events: Vec<_> = events.into_iter().map(|data| (0, data)).collect();
    let event = |choices: Value| json!({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "p", "choices": choices});
    let mut with_usage = event(json!([]));
    with_usage["usage"] = usage;
    assert_eq!(
        streamed(r#"{"prompt":"a","stream":true}"#, &events),
        [
            event(json!([{"index": 0, "text": "a", "logprobs": null, "finish_reason": null}])),
            event(
                json!([{"index": 0, "text": "", "logprobs": null, "finish_reason": null, "reasoning_content": "hm"}])
            ),
            event(json!([{"index": 0, "text": "", "logprobs": null, "finish_reason": "stop"}])),
            with_usage,
        ]
    );
}

#[test]
fn the_events_of_several_chats_are_one_stream_under_one_id() {
    let mut events = Vec::new();
    for prompt in [1, 0] {
        let id = format!("chatcmpl-{prompt}");
        for index in 0..2 {
            let delta_json = json!({"content": format!("{prompt}{index}")});
            events.push((prompt, chunk(&id, delta(index, delta_json, json!("stop")))));
        }
        let usage = json!({"prompt_tokens": 1, "completion_tokens": 2});
        events.push((prompt, json!({"choices": [], "usage": usage}).to_string()));
    }
    let mut events = streamed(r#"{"prompt":["a","b"],"n":2,"echo":true}"#, &events);
    let last = events.pop().expect("the usage");
    let texts: Vec<_> = events
        .iter()
        .map(|event| {
            assert_eq!(event["id"], "cmpl-1", "all events have the id of the first");
            let choice = &event["choices"][0];
            (choice["index"].as_u64(), choice["text"].as_str())
        })
        .collect();
    assert_eq!(
        texts,
        [(2, "b10"), (3, "b11"), (0, "a00"), (1, "a01")].map(|(i, text)| (Some(i), Some(text)))
    );
    assert_eq!(last["id"], "cmpl-1");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"],
        json!({"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6})
    );
}

#[test]
fn a_message_beside_the_deltas_is_not_said_again() {
    let event = |so_far: &str, piece: &str| {
        let message = json!({"role": "assistant", "content": so_far});
        (
            0,
            chunk(
                "x",
                json!([{"index": 0, "delta": {"content": piece}, "message": message}]),
            ),
        )
    };
    let last = json!([{"index": 0, "message": {"content": "The toll"}, "finish_reason": "stop"}]);
    let events = [
        event("The", "The"),
        event("The toll", " toll"),
        (0, chunk("x", last)),
    ];
    let texts: Vec<Value> = streamed(r#"{"prompt":"a"}"#, &events)
        .iter()
        .map(|event| event["choices"][0]["text"].clone())
        .collect();
    assert_eq!(texts, ["The", " toll", ""]);
}

#[test]
fn a_chat_is_over_when_every_choice_that_was_asked_for_has_ended() {
    let mut stream = TextStream::new(turn(r#"{"prompt":"a","n":2}"#));
    let mut out = BytesMut::new();
    for index in 0..2 {
        assert!(!stream.is_over(0), "choice {index} is missing");
        let data = chunk("x", delta(index, json!({"content": "a"}), json!("stop")));
        stream
            .turn(0, data.as_bytes(), &mut out)
            .expect("an event of a chat");
    }
    assert!(stream.is_over(0));
}

#[test]
fn offsets_continue_from_event_to_event() {
    let logprobs =
        |token: &str| json!({"content": [{"token": token, "logprob": -1, "top_logprobs": []}]});
    let mut events = Vec::new();
    for token in ["äö", "x", "!"] {
        let choices =
            json!([{"index": 0, "delta": {"content": token}, "logprobs": logprobs(token)}]);
        events.push((0, chunk("x", choices)));
    }
    let offsets: Vec<_> = streamed(r#"{"prompt":"a","logprobs":0}"#, &events)
        .iter()
        .map(|event| event["choices"][0]["logprobs"]["text_offset"].clone())
        .collect();
    assert_eq!(offsets, [json!([0]), json!([2]), json!([3])]);
}

proptest! {
    #[test]
    fn arbitrary_provider_output_does_not_break_the_translation(text in ".{0,200}", cut in 0usize..400) {
        let choices = json!([{"index": 0, "message": {"content": text}, "finish_reason": "stop",
            "logprobs": {"content": [{"token": text, "logprob": -1.5, "top_logprobs": [{"token": text, "logprob": 0}]}]}}]);
        let answer = chat_answer("chatcmpl-1", choices, Value::Null);
        let cut = answer.slice(..cut.min(answer.len()));
        let asked = turn(r#"{"prompt":"a","logprobs":1}"#);
        let mut out = BytesMut::new();
        for body in [answer.clone(), cut.clone()] {
            let whole = asked.whole(std::slice::from_ref(&body));
            let event = TextStream::new(Arc::clone(&asked)).turn(0, &body, &mut out);
            prop_assert_eq!(whole.is_ok(), event.is_ok());
            prop_assert_eq!(whole.is_ok(), serde_json::from_slice::<Value>(&body).is_ok());
        }
        let whole = asked.whole(&[answer]).expect("a chat answer");
        let whole: Value = serde_json::from_slice(&whole).expect("JSON");
        prop_assert_eq!(whole["choices"][0]["text"].as_str(), Some(text.as_str()));
        let lists = &whole["choices"][0]["logprobs"];
        prop_assert_eq!(lists["tokens"][0].as_str(), Some(text.as_str()));
    }
}
