//! A stream that is stored is the same answer to a client three times: as it arrived, replayed, and whole.
//!
//! [`Client`] accumulates as openai-node's `ChatCompletionStream` does: content, refusals, arguments, audio data and transcripts are
//! appended, ids, types and names are set, tokens of `logprobs` are listed, and any other member is assigned. What that library has no
//! member for follows the clients that have: reasoning is appended (`@ai-sdk/openai-compatible`), its details join by their index
//! (OpenRouter), parts of a content are joined in order (Mistral), token ids are listed (vLLM), and a new id is a new call.

use std::collections::BTreeMap;

use super::*;

mod streams;

/// The messages that a client has at the end of a stream.
#[derive(Debug, Default, PartialEq)]
struct Client {
    choices: BTreeMap<u64, BTreeMap<String, Value>>,
    top: BTreeMap<String, Value>,
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || *value == "" || *value == json!([]) || *value == json!({})
}

fn append(to: &mut BTreeMap<String, Value>, name: &str, piece: &str) {
    let text = to.entry(name.to_owned()).or_insert_with(|| "".into());
    *text = (text.as_str().expect("a text").to_owned() + piece).into();
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Appends a content to a list of `[kind, text]`.
fn say(said: &mut Vec<(String, String)>, kind: &str, content: &Value) {
    match content {
        Value::Array(parts) => {
            for part in parts {
                let kind = if kind == "thinking" {
                    kind
                } else {
                    text_of(&part["type"])
                };
                say(said, kind, &part[text_of(&part["type"])]);
            }
        }
        content => match (text_of(content), said.last_mut()) {
            ("", _) => {}
            (text, Some((last, before))) if *last == kind => before.push_str(text),
            (text, _) => said.push((kind.to_owned(), text.to_owned())),
        },
    }
}

impl Client {
    fn of_stream(events: &[Value]) -> Client {
        let mut client = Client::default();
        for event in events {
            for (name, value) in event.as_object().expect("an object") {
                client.top_level(name, value);
            }
            for choice in event["choices"].as_array().expect("choices") {
                client.choice(choice, "delta");
            }
        }
        client.finished()
    }

    fn of_answer(answer: &Value) -> Client {
        let mut client = Client::default();
        for (name, value) in answer.as_object().expect("an object") {
            client.top_level(name, value);
        }
        for choice in answer["choices"].as_array().expect("choices") {
            client.choice(choice, "message");
        }
        client.finished()
    }

    fn top_level(&mut self, name: &str, value: &Value) {
        let own = matches!(
            name,
            "id" | "created" | "object" | "model" | "choices" | "usage"
        );
        if !own && !is_empty(value) {
            self.top.insert(name.to_owned(), value.clone());
        }
    }

    fn choice(&mut self, choice: &Value, message: &str) {
        let index = choice["index"].as_u64().expect("an index");
        let to = self.choices.entry(index).or_default();
        for (name, value) in choice.as_object().expect("an object") {
            match name.as_str() {
                "index" => {}
                name if name == message => Client::message(to, value),
                "text" => append(to, "text", text_of(value)),
                "token_ids" => extend(to, "token_ids", value),
                "logprobs" => {
                    for (name, list) in value.as_object().into_iter().flatten() {
                        extend(to, &format!("logprobs {name}"), list);
                    }
                }
                _ if is_empty(value) => {}
                name => {
                    to.insert(name.to_owned(), value.clone());
                }
            }
        }
    }

    fn message(to: &mut BTreeMap<String, Value>, delta: &Value) {
        for (name, value) in delta.as_object().into_iter().flatten() {
            match (name.as_str(), value) {
                (_, value) if is_empty(value) => {}
                ("content", content) => extend(to, "said", &json!([content])),
                ("refusal" | "reasoning_content" | "reasoning" | "thinking", text) => {
                    append(to, name, text_of(text));
                }
                ("audio" | "function_call", Value::Object(members)) => {
                    for (member, value) in members {
                        let at = format!("{name} {member}");
                        match member.as_str() {
                            "data" | "transcript" | "arguments" => append(to, &at, text_of(value)),
                            _ => drop(to.insert(at, value.clone())),
                        }
                    }
                }
                ("tool_calls", Value::Array(calls)) => {
                    let mut known = to.remove("tool_calls").unwrap_or(json!([]));
                    let known = known.as_array_mut().expect("a list");
                    for call in calls {
                        Client::call(known, call);
                    }
                    to.insert("tool_calls".into(), known.clone().into());
                }
                ("reasoning_details", Value::Array(details)) => {
                    let known = to.entry("details".into()).or_insert_with(|| json!({}));
                    for detail in details {
                        let known = &mut known[detail["index"].to_string()];
                        join(known, detail, &["text", "summary"]);
                    }
                }
                (_, Value::Object(_)) => {
                    let known = to.entry(name.clone()).or_insert_with(|| json!({}));
                    join(known, value, &[]);
                }
                (name, value) => drop(to.insert(name.to_owned(), value.clone())),
            }
        }
    }

    fn call(known: &mut Vec<Value>, call: &Value) {
        let same_index = |other: &&mut Value| other["index"] == call["index"];
        let id = text_of(&call["id"]);
        let same = |other: &&mut Value| match (id, text_of(&other["id"])) {
            ("", _) | (_, "") => same_index(other),
            (id, other_id) => id == other_id && same_index(other),
        };
        let call = call.clone();
        match known.iter_mut().rev().find(same) {
            Some(known) if !call["index"].is_null() => join(known, &call, &["arguments", "input"]),
            _ => known.push(call),
        }
    }

    fn finished(mut self) -> Client {
        for choice in self.choices.values_mut() {
            let mut said = Vec::new();
            for content in choice
                .remove("said")
                .iter()
                .flat_map(|said| said.as_array().cloned())
                .flatten()
            {
                say(&mut said, "text", &content);
            }
            choice.insert("content".into(), json!(said));
            // No other role answers.
            choice
                .entry("role".into())
                .or_insert_with(|| "assistant".into());
            for call in choice
                .get_mut("tool_calls")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                call.as_object_mut().expect("an object").remove("index");
            }
        }
        self
    }
}

fn extend(to: &mut BTreeMap<String, Value>, name: &str, list: &Value) {
    let known = to.entry(name.to_owned()).or_insert_with(|| json!([]));
    let items = list.as_array().cloned().unwrap_or_default();
    known.as_array_mut().expect("a list").extend(items);
}

/// Adds the members of an object: texts of these names are appended, any other member is set.
fn join(known: &mut Value, more: &Value, texts: &[&str]) {
    if known.is_null() {
        *known = json!({});
    }
    for (name, value) in more.as_object().expect("an object") {
        match (&known[name], value) {
            (_, value) if is_empty(value) => {
                if known.get(name).is_none() {
                    known[name] = value.clone();
                }
            }
            (Value::String(before), Value::String(piece)) if texts.contains(&name.as_str()) => {
                known[name] = (before.clone() + piece).into();
            }
            (Value::Object(_), Value::Object(_)) => join(&mut known[name], value, texts),
            _ => known[name] = value.clone(),
        }
    }
}

/// The answer that a non-streaming client is given, if the stream can be stored. Panics where two clients have another answer than the
/// one of the stream.
fn check(events: &[Value]) -> Result<Value, StoredError> {
    let bytes: Vec<Bytes> = events
        .iter()
        .map(|event| event.to_string().into())
        .collect();
    let kept = accumulate(Family::CHAT, &bytes)?;
    let answer = value(&kept.answer(STAMP, 0));
    let live = Client::of_stream(events);
    assert_eq!(Client::of_answer(&answer), live, "whole: {answer}");
    for include_usage in [false, true] {
        let replayed = kept.events(include_usage)?.write(STAMP);
        let replayed: Vec<Value> = replayed.iter().map(|event| value(event)).collect();
        assert_eq!(Client::of_stream(&replayed), live, "replayed: {replayed:?}");
    }
    Ok(answer)
}

proptest! {
    #[test]
    fn a_stored_stream_is_one_answer_to_clients_live_replayed_and_whole(events in streams::stream()) {
        prop_assert!(check(&events).is_ok(), "{events:?}");
    }

    /// Members that no provider has: joined only if it makes no difference to a client.
    #[test]
    fn whatever_is_joined_is_what_clients_make_of_it(deltas in prop::collection::vec(extras(plain()), 1..5)) {
        let events: Vec<Value> = deltas.into_iter().map(|delta_of| delta(delta_of.into(), Value::Null)).collect();
        match check(&events) {
            Ok(_) | Err(StoredError::NotJoinable) => {}
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}

fn said(deltas: &[Value]) -> Result<Value, StoredError> {
    let events: Vec<Value> = deltas
        .iter()
        .map(|one| delta(one.clone(), Value::Null))
        .collect();
    Ok(check(&events)?["choices"][0]["message"].clone())
}

fn whole(deltas: &[Value]) -> Value {
    said(deltas).expect("it can be stored")
}

#[test]
fn a_new_id_at_a_known_index_is_a_new_call() {
    let call = |id: &str, city: &str| {
        json!({"tool_calls": [{"index": 0, "id": id, "type": "function",
            "function": {"name": "weather", "arguments": json!({"city": city}).to_string()}}]})
    };
    let message = whole(&[call("c1", "Oslo"), call("c2", "Rome")]);
    assert_eq!(
        message["tool_calls"],
        json!([
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}},
            {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Rome\"}"}},
        ])
    );
}

#[test]
fn a_piece_after_a_new_call_belongs_to_that_one() {
    let begin = |id: &str| json!({"tool_calls": [{"index": 0, "id": id, "function": {"name": "f", "arguments": ""}}]});
    let piece = |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
    let message = whole(&[
        begin("a"),
        piece("{\"x\":"),
        piece("1}"),
        begin("b"),
        piece("{\"x\":"),
        piece("2}"),
    ]);
    let arguments = |at: usize| message["tool_calls"][at]["function"]["arguments"].clone();
    assert_eq!(
        (arguments(0), arguments(1)),
        (json!("{\"x\":1}"), json!("{\"x\":2}"))
    );
}

#[test]
fn a_repeated_name_is_a_name() {
    let piece = |text: &str| json!({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "read_file", "arguments": text}}]});
    let message = whole(&[piece(""), piece("{\"p\":"), piece("1}")]);
    assert_eq!(
        message["tool_calls"][0]["function"],
        json!({"name": "read_file", "arguments": "{\"p\":1}"})
    );
    let function = |text: &str| json!({"function_call": {"name": "read_file", "arguments": text}});
    let message = whole(&[function("{\"p\":"), function("1}")]);
    assert_eq!(
        message["function_call"],
        json!({"name": "read_file", "arguments": "{\"p\":1}"})
    );
}

#[test]
fn thinking_before_the_text_stays() {
    let thought = |text: &str| json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]});
    let message = whole(&[
        json!({"role": "assistant", "content": ""}),
        thought("Let me"),
        thought(" see."),
        json!({"content": "It is"}),
        json!({"content": " 4."}),
    ]);
    assert_eq!(
        message["content"],
        json!([{"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]}, {"type": "text", "text": "It is 4."}])
    );
    let signed = json!({"content": [{"type": "thinking", "thinking": "", "signature": "s"}]});
    let message = whole(&[
        json!({"content": [{"type": "thinking", "thinking": "Hm"}]}),
        signed,
        json!({"content": "4"}),
    ]);
    assert_eq!(
        message["content"][0],
        json!({"type": "thinking", "thinking": "Hm", "signature": "s"})
    );
}

#[test]
fn details_of_reasoning_join_by_their_index_and_keep_their_signatures() {
    let detail = |index: u64, detail: Value| {
        let mut detail = detail;
        detail["index"] = index.into();
        json!({"reasoning_details": [detail]})
    };
    let message = whole(&[
        detail(0, json!({"type": "reasoning.text", "text": "A"})),
        detail(
            1,
            json!({"type": "reasoning.encrypted", "data": "E", "id": "rs_1"}),
        ),
        detail(0, json!({"type": "reasoning.text", "text": "B"})),
        detail(0, json!({"type": "reasoning.text", "signature": "sig"})),
        json!({"reasoning_details": []}),
    ]);
    assert_eq!(
        message["reasoning_details"],
        json!([
            {"type": "reasoning.text", "text": "AB", "index": 0, "signature": "sig"},
            {"type": "reasoning.encrypted", "data": "E", "id": "rs_1", "index": 1},
        ])
    );
}

#[test]
fn what_is_beside_each_piece_is_there_once() {
    let events: Vec<Value> = (0..13)
        .map(|number| {
            let mut event = delta(json!({"content": "w "}), Value::Null);
            event["citations"] = json!(["https://a.test"]);
            event["search_results"] = json!((0..=number / 6).collect::<Vec<_>>());
            event["choices"][0]["token_ids"] = json!([number]);
            event
        })
        .collect();
    let answer = check(&events).expect("it can be stored");
    assert_eq!(answer["citations"], json!(["https://a.test"]));
    assert_eq!(answer["search_results"], json!([0, 1, 2]), "the last list");
    assert_eq!(
        answer["choices"][0]["token_ids"],
        json!((0..13).collect::<Vec<_>>())
    );
}

#[test]
fn null_choices_are_no_choices() {
    let mut events = vec![delta(json!({"content": "a"}), json!("stop"))];
    events.push(json!({"choices": null, "usage": {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}}));
    let bytes: Vec<Bytes> = events
        .iter()
        .map(|event| event.to_string().into())
        .collect();
    let kept = accumulate(Family::CHAT, &bytes)
        .expect("it can be stored")
        .answer(STAMP, 0);
    assert_eq!(
        String::from_utf8_lossy(&kept)
            .matches("\"choices\"")
            .count(),
        1
    );
}

#[test]
fn a_stream_of_which_clients_make_different_answers_is_not_joined() {
    let call = |call: Value| json!({"tool_calls": [call]});
    let cases: &[(&str, &[Value])] = &[
        (
            "a name in pieces",
            &[
                call(
                    json!({"index": 0, "id": "a", "function": {"name": "edit_", "arguments": ""}}),
                ),
                call(json!({"index": 0, "function": {"name": "file", "arguments": "{}"}})),
            ],
        ),
        (
            "a new id in each piece",
            &[
                call(
                    json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"a\""}}),
                ),
                call(json!({"index": 0, "id": "b", "function": {"arguments": ":1}"}})),
            ],
        ),
        (
            "a new id and the name in each piece",
            &[
                call(
                    json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"a\""}}),
                ),
                call(json!({"index": 0, "id": "b", "function": {"name": "f", "arguments": ":1}"}})),
            ],
        ),
        (
            "pieces of calls without index and id",
            &[
                call(json!({"function": {"name": "f", "arguments": "{"}})),
                call(json!({"function": {"arguments": "}"}})),
            ],
        ),
        (
            "details without an index",
            &[
                json!({"reasoning_details": [{"type": "reasoning.text", "text": "A"}]}),
                json!({"reasoning_details": [{"type": "reasoning.text", "text": "B"}]}),
            ],
        ),
        (
            "an unknown text that changes",
            &[json!({"x_thought": "A"}), json!({"x_thought": "B"})],
        ),
        (
            "a list of other items",
            &[json!({"images": [{"a": 1}]}), json!({"images": [{"a": 2}]})],
        ),
        (
            "blocks of thinking without an index",
            &[
                json!({"thinking_blocks": [{"type": "thinking", "thinking": "A"}]}),
                json!({"thinking_blocks": [{"type": "thinking", "thinking": "B"}]}),
            ],
        ),
        (
            "sound that ends twice",
            &[
                json!({"audio": {"data": "AA=="}}),
                json!({"audio": {"data": "AA=="}}),
            ],
        ),
        (
            "a text where there was an object",
            &[json!({"audio": {"id": "a"}}), json!({"audio": "b"})],
        ),
    ];
    for (what, deltas) in cases {
        assert_eq!(said(deltas), Err(StoredError::NotJoinable), "{what}");
    }
    for (what, choice) in [
        (
            "a member twice",
            r#"{"delta":{"content":"a","content":"b"}}"#,
        ),
        (
            "the same, with an escape",
            r#"{"delta":{"content":"a","c\u006fntent":"b"}}"#,
        ),
        (
            "a delta twice",
            r#"{"delta":{"content":"a"},"delta":{"content":"b"}}"#,
        ),
        (
            "the message so far",
            r#"{"delta":{"content":"a"},"message":{"content":"a"}}"#,
        ),
        (
            "a finish reason twice",
            r#"{"delta":{"content":"a"},"finish_reason":"stop","finish_reason":"stop"}"#,
        ),
    ] {
        let event = Bytes::from(format!(r#"{{"choices":[{choice}]}}"#));
        assert_eq!(
            accumulate(Family::CHAT, &[event]),
            Err(StoredError::NotJoinable),
            "{what}"
        );
    }
    let event = Bytes::from(r#"{"choices":[{"delta":{}}],"choices":[{"delta":{}}]}"#);
    assert_eq!(
        accumulate(Family::CHAT, &[event]),
        Err(StoredError::NotJoinable)
    );
}
