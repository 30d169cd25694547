//! Text completions with arrays of prompts, with `system`, and for chat-only models.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_testing::provider::{Failure, Plan, Script, answer};
use tollgate_testing::{Event, StreamEnd};

use crate::rig::{IN, OUT, Rig, Setup, TEXT};

/// The model `small` has chat alone.
const CHAT_ALONE: &str = r#"
    [[model]]
    providers = [{ provider = "stand-in", model = "vendor/small-1", api = ["chat"] }]
"#;

/// A provider that echoes the last message of a chat, at most three words of the message.
fn echo() -> Setup {
    let custom = |request: &tollgate_testing::provider::Request| {
        let body: Value = serde_json::from_slice(&request.body).ok()?;
        let said = body["messages"].as_array()?.last()?["content"].as_str()?;
        let n = body["n"].as_u64().unwrap_or(1);
        let usage = json!({"prompt_tokens": 10, "completion_tokens": n, "total_tokens": 10 + n});
        let head = |object: &str, choices: Vec<Value>| json!({"id": format!("chatcmpl-{said}"), "object": object, "created": 7, "model": "x", "choices": choices});
        let text = |index: u64| format!("{said}{index}");
        if body["stream"] != true {
            let choice = |index| json!({"index": index, "message": {"role": "assistant", "content": text(index)}, "finish_reason": "stop"});
            let mut whole = head("chat.completion", (0..n).map(choice).collect());
            whole["usage"] = usage;
            return Some(Plan::json(200, whole.to_string().into()));
        }
        let chunk = |index: u64, delta: Value, finish: Value| {
            let choice = json!({"index": index, "delta": delta, "finish_reason": finish});
            head("chat.completion.chunk", vec![choice])
        };
        let mut events: Vec<Value> = Vec::new();
        for index in 0..n {
            events.push(chunk(
                index,
                json!({"role": "assistant", "content": ""}),
                Value::Null,
            ));
            events.push(chunk(index, json!({"content": text(index)}), Value::Null));
            events.push(chunk(index, json!({}), json!("length")));
        }
        let mut last = head("chat.completion.chunk", Vec::new());
        last["usage"] = usage;
        events.push(last);
        let mut events: Vec<_> = events
            .iter()
            .map(|event| format!("data: {event}\n\n").into())
            .collect();
        events.push("data: [DONE]\n\n".into());
        Some(Plan::events(events))
    };
    Setup {
        custom: Some(Arc::new(custom)),
        ..Setup::with(CHAT_ALONE)
    }
}

/// The data of a stream that ended with `[DONE]`.
fn whole(events: &[Event], end: &StreamEnd, what: &str) -> Vec<Value> {
    assert_eq!(*end, StreamEnd::Proper, "{what}: the end of the stream");
    let (last, data) = events.split_last().expect("events");
    assert!(last.is_done(), "{what}: the last event is `{}`", last.raw);
    data.iter().map(Event::json).collect()
}

/// The texts of the choices, in the order of their numbers.
fn texts<'a>(choices: impl Iterator<Item = &'a Value>) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for choice in choices {
        let index = choice["index"].as_u64().expect("a number") as usize;
        texts.resize(texts.len().max(index + 1), String::new());
        texts[index].push_str(choice["text"].as_str().expect("a text"));
    }
    texts
}

#[tokio::test]
async fn every_choice_of_every_prompt_has_its_number_and_one_charge_covers_them() {
    let rig = Rig::start().await;
    for (what, client) in rig.both() {
        let mut body = json!({"model": "small", "prompt": ["Who goes", "there?"], "n": 2, "max_tokens": 3,
            "suffix": "end", "best_of": 2, "echo": false, "logprobs": 1});
        let answer = client.post(TEXT, &body).await.json();
        let choices = answer["choices"].as_array().expect("choices");
        assert_eq!(texts(choices.iter()), vec![answer::text(3); 4], "{what}");
        assert_eq!(
            choices[3]["logprobs"]["text_offset"],
            json!([0, 3, 8]),
            "{what}: the provider's own"
        );
        assert_eq!(rig.record_charge(&answer), 3 * IN + 12 * OUT, "{what}");
        let asked = rig.provider.last_call();
        assert!(asked.target.ends_with("/v1/completions"), "{what}");
        for member in ["prompt", "suffix", "best_of", "echo", "logprobs", "n"] {
            assert_eq!(asked.json()[member], body[member], "{what}: passed through");
        }

        body["stream"] = true.into();
        let (events, end) = client.stream(TEXT, &body).await.rest().await;
        let chunks = whole(&events, &end, what);
        let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array());
        assert_eq!(texts(choices.flatten()), vec![answer::text(3); 4], "{what}");
        let last = chunks.last().expect("chunks");
        assert_eq!(rig.record_charge(last), 3 * IN + 12 * OUT, "{what}");
    }
    assert_eq!(rig.finish().await.endings(), ["complete"; 4]);
}

#[tokio::test]
async fn a_system_text_stands_before_the_prompt_where_the_provider_takes_texts() {
    let rig = Rig::start().await;
    let body =
        json!({"model": "small", "prompt": ["a", "b"], "system": "Be brief.", "max_tokens": 1});
    let answer = rig.client().post(TEXT, &body).await.json();
    assert_eq!(
        rig.provider.last_call().json(),
        json!({"model": "vendor/small-1", "prompt": ["Be brief.\n\na", "Be brief.\n\nb"], "max_tokens": 1})
    );
    assert_eq!(rig.record_charge(&answer), 6 * IN + 2 * OUT);
    rig.finish().await;
}

#[tokio::test]
async fn a_system_text_is_a_system_message_where_the_model_wants_it_so() {
    let rig = Rig::with("[[model]]\nsystem_as_chat = true\n").await;
    let with = json!({"model": "small", "prompt": "a", "system": "Be brief.", "max_tokens": 1});
    let answer = rig.client().post(TEXT, &with).await.json();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(rig.record_charge(&answer), 3 * IN + OUT);
    let asked = rig.provider.last_call();
    assert!(asked.target.ends_with("/chat/completions"));
    assert_eq!(
        asked.json()["messages"],
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}])
    );
    let without = json!({"model": "small", "prompt": "a", "max_tokens": 1});
    let answer = rig.client().post(TEXT, &without).await.json();
    assert_eq!(rig.record_charge(&answer), IN + OUT);
    assert!(rig.provider.last_call().target.ends_with("/v1/completions"));
    rig.finish().await;
}

#[tokio::test]
async fn a_model_that_only_chats_completes_texts_over_every_protocol() {
    let rig = Rig::with(CHAT_ALONE).await;
    for (what, client) in rig.clients() {
        let mut body =
            json!({"model": "small", "prompt": "Who goes there?", "max_tokens": 5, "logprobs": 1});
        let answer = client.post(TEXT, &body).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        let answer = answer.json();
        assert_eq!(answer["object"], "text_completion", "{what}");
        assert!(
            answer["id"]
                .as_str()
                .is_some_and(|id| id.starts_with("cmpl-") && !id.contains("chat")),
            "{what}: {}",
            answer["id"]
        );
        assert_eq!(answer["model"], "small", "{what}");
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], answer::text(5), "{what}");
        assert_eq!(choice["finish_reason"], "length", "{what}");
        assert_eq!(choice["logprobs"]["tokens"][1], " toll", "{what}");
        assert_eq!(
            choice["logprobs"]["token_logprobs"][1],
            answer::LOGPROB,
            "{what}"
        );
        assert_eq!(
            choice["logprobs"]["text_offset"],
            json!([0, 3, 8, 11, 16]),
            "{what}"
        );
        assert_eq!(
            answer["usage"],
            json!({"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}),
            "{what}"
        );
        assert_eq!(rig.record_charge(&answer), 3 * IN + 5 * OUT, "{what}");
        let asked = rig.provider.last_call();
        assert!(asked.target.ends_with("/chat/completions"), "{what}");

        for include_usage in [false, true] {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": include_usage});
            let (events, end) = client.stream(TEXT, &body).await.rest().await;
            let chunks = whole(&events, &end, what);
            assert_eq!(
                chunks.len(),
                6 + usize::from(include_usage),
                "{what}: 5 words, finish, usage: {chunks:?}"
            );
            let ids: Vec<&Value> = chunks.iter().map(|chunk| &chunk["id"]).collect();
            assert!(ids.iter().all(|id| *id == ids[0]), "{what}: {ids:?}");
            let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array());
            assert_eq!(texts(choices.flatten()), [answer::text(5)], "{what}");
            assert_eq!(
                chunks[4]["choices"][0]["logprobs"]["text_offset"],
                json!([16]),
                "{what}"
            );
            assert_eq!(chunks[5]["choices"][0]["finish_reason"], "length", "{what}");
            let last = chunks.last().expect("chunks");
            assert_eq!(rig.record_charge(last), 3 * IN + 5 * OUT, "{what}");
            assert_eq!(
                rig.provider.last_call().json()["stream_options"]["include_usage"],
                true
            );
        }
    }
    assert_eq!(rig.finish().await.endings(), ["complete"; 12]);
}

#[tokio::test]
async fn several_prompts_for_a_model_that_only_chats_are_several_chats_and_one_charge() {
    let rig = echo().start().await;
    let expected = ["a0", "a1", "b0", "b1", "c0", "c1"];
    for (what, client) in rig.both() {
        let before = rig.provider.call_count();
        let mut body = json!({"model": "small", "prompt": ["a", "b", "c"], "n": 2});
        let answer = client.post(TEXT, &body).await.json();
        let choices = answer["choices"].as_array().expect("choices");
        assert_eq!(texts(choices.iter()), expected, "{what}");
        assert_eq!(answer["usage"]["total_tokens"], 36, "{what}");
        assert_eq!(rig.record_charge(&answer), 30 * IN + 6 * OUT, "{what}");
        assert_eq!(rig.provider.call_count() - before, 3, "{what}");

        body["stream"] = true.into();
        let (events, end) = client.stream(TEXT, &body).await.rest().await;
        let chunks = whole(&events, &end, what);
        let choices = || chunks.iter().flat_map(|chunk| chunk["choices"].as_array());
        assert_eq!(texts(choices().flatten()), expected, "{what}");
        let ends = choices()
            .flatten()
            .filter(|one| one["finish_reason"] == "length");
        assert_eq!(ends.count(), 6, "{what}");
        let charges = chunks.iter().filter(|chunk| chunk.get("x_svc").is_some());
        assert_eq!(charges.count(), 1, "{what}: the charge is sent once");
        let last = chunks.last().expect("chunks");
        assert_eq!(rig.record_charge(last), 30 * IN + 6 * OUT, "{what}");
        let ids: Vec<&Value> = chunks.iter().map(|chunk| &chunk["id"]).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{what}: {ids:?}");
    }
    let after = rig.finish().await;
    assert_eq!(after.endings(), ["complete"; 4]);
    assert_eq!(after.log[0]["upstream_calls"], 3);
}

#[tokio::test]
async fn more_prompts_than_permits_are_answered_one_after_the_other() {
    let setup = echo();
    let narrow = "[[provider]]\nconcurrency_max = 1\nqueue_max = 8\nqueue_wait_secs = 60\n";
    let setup = Setup {
        settings: format!("{narrow}{}", setup.settings),
        ..setup
    };
    let rig = setup.start().await;
    let expected = ["a0", "b0", "c0"];
    // Two simultaneous requests do not block one another either.
    let ask = |stream: bool| {
        let (rig, client) = (&rig, rig.client());
        async move {
            let body = json!({"model": "small", "prompt": ["a", "b", "c"], "stream": stream});
            if !stream {
                let answer = client.post(TEXT, &body).await.json();
                let choices = answer["choices"].as_array().expect("choices");
                assert_eq!(texts(choices.iter()), expected, "whole");
                rig.record_charge(&answer);
                return;
            }
            let (events, end) = client.stream(TEXT, &body).await.rest().await;
            let chunks = whole(&events, &end, "stream");
            let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array());
            assert_eq!(texts(choices.flatten()), expected, "stream");
            rig.record_charge(chunks.last().expect("chunks"));
        }
    };
    tokio::join!(ask(false), ask(true), ask(true));
    let after = rig.finish().await;
    assert_eq!(after.endings(), ["complete"; 3]);
    assert!(after.log.iter().all(|line| line["upstream_calls"] == 3));
}

/// Two prompts, answered by the fallback and by the model's own provider: the answer is not cached as the model's own.
#[tokio::test]
async fn a_text_is_marked_as_fallback_when_one_of_its_chats_is() {
    let fallback = CHAT_ALONE.replace(
        "providers",
        "fallback = [\"dear\"]\n    expensive_fallback = true\n    providers",
    );
    let rig = Rig::with(&fallback).await;
    rig.provider.script(Script {
        times: Some(1),
        status: Some(500),
        ..Script::default()
    });
    let body = json!({"model": "small", "prompt": ["a", "b"]});
    let answer = rig.client().post(TEXT, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    let after = rig.finish().await;
    assert_eq!(after.each("served_by"), ["dear"]);
}

/// Counted by the gateway: the two prompts of a single letter are one token together, and the form of a request is six tokens.
const COUNTED_PROMPTS: i64 = 7;

#[tokio::test]
async fn a_chat_that_fails_fails_the_text_it_is_a_part_of() {
    let settings =
        format!("{CHAT_ALONE}price = {{ input = \"150\", output = \"600\", request = \"0.01\" }}");
    let rig = Rig::with(&settings).await;
    let events = |events: String| Script {
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
        ..Script::failure(Failure::Text(events))
    };
    let word = r#"data: {"choices":[{"index":0,"delta":{"content":"The"}}]}"#;
    for (what, script, words) in [
        ("a status", Script::status(500), None),
        (
            "an error event",
            Script {
                error_event_at: Some(3),
                ..Script::default()
            },
            Some(2),
        ),
        (
            "an error in a field of its own",
            events(format!("{word}\n\nerror: {{}}\n\ndata: [DONE]\n\n")),
            Some(1),
        ),
        (
            "a choice that never finishes",
            events(format!("{word}\n\ndata: [DONE]\n\n")),
            Some(1),
        ),
        (
            "an end without a finish reason",
            events(format!("{word}\n\n")),
            Some(1),
        ),
    ] {
        for (protocol, client) in rig.both() {
            let before = rig.available(rig.account);
            // One of the two chats has answered without text, no matter whether the first or the second.
            rig.provider.script(Script::hold(0, "never").once());
            rig.provider.script(script.clone().once());
            let body = json!({"model": "small", "prompt": ["a", "b"], "stream": true});
            let mut answer = client.stream(TEXT, &body).await;
            let charge = match words {
                None => {
                    assert_eq!(answer.status, 502, "{what}, {protocol}");
                    0
                }
                Some(words) => {
                    let (events, _) = answer.rest().await;
                    let [.., metadata, last] = &events[..] else {
                        panic!("{what}, {protocol}: {events:?}");
                    };
                    let last = last.json();
                    assert_eq!(last["error"]["code"], "upstream_error", "{what}: {last}");
                    rig.record_charge(&metadata.json());
                    COUNTED_PROMPTS * IN + words * OUT
                }
            };
            rig.quiet().await;
            let charged = before - rig.available(rig.account);
            assert_eq!(charged, charge, "{what}, {protocol}");
            rig.provider.calls_when_ended().await;
            rig.provider.clear_scripts();
        }
    }
    // A whole answer: no part of the answer is relayed.
    for script in [
        Script::status(500),
        Script::failure(Failure::OtherJson),
        Script::failure(Failure::InvalidJson),
    ] {
        rig.provider.script(script.once());
        let body = json!({"model": "small", "prompt": ["a", "b"]});
        let refused = rig.client().post(TEXT, &body).await;
        assert_eq!(refused.status, 502, "{}", refused.text());
        rig.provider.clear_scripts();
    }
    let after = rig.finish().await;
    let endings = after.endings();
    let cut = endings.iter().filter(|ending| **ending == "upstream_cut");
    assert_eq!((cut.count(), endings.len()), (8, 13), "{endings:?}");
}

#[tokio::test]
async fn text_options_without_a_chat_equivalent_are_refused_before_the_hold() {
    let rig = Rig::with(CHAT_ALONE).await;
    for (member, value) in [
        ("suffix", json!("end")),
        ("best_of", json!(2)),
        ("prompt", json!([])),
        ("logprobs", json!("all")),
    ] {
        let mut body = json!({"model": "small", "prompt": "a"});
        body[member] = value;
        let answer = rig.client().post(TEXT, &body).await;
        assert_eq!(answer.status, 400, "{member}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], member);
    }
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn a_model_that_only_completes_texts_refuses_chats() {
    let rig = Rig::with(&CHAT_ALONE.replace("\"chat\"", "\"text\"")).await;
    let answer = rig
        .client()
        .post(crate::rig::CHAT, &crate::rig::chat(false))
        .await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], "model_not_supported");
    rig.finish().await;
}

#[tokio::test]
async fn a_cap_that_the_account_can_pay_reaches_every_chat() {
    // 64 tokens per prompt for the template, and one token for the text, at the price of input; the rest is for output.
    let credits = 2 * 65 * IN + 2 * 20 * OUT;
    let rig = Setup::with(CHAT_ALONE).credits(credits).start().await;
    let body = json!({"model": "small", "prompt": ["a", "b"]});
    let answer = rig.client().post(TEXT, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    let caps: Vec<Value> = rig
        .provider
        .calls()
        .iter()
        .map(|call| call.json()["max_tokens"].clone())
        .collect();
    assert_eq!(caps, [json!(20), json!(20)]);
    rig.finish().await;
}
