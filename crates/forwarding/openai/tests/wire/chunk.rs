//! Events of completion streams: their facts, and their form for the client.

use std::sync::Arc;

use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_openai::FinishReason::{ContentFilter, Error, Length, Other, Stop, ToolCalls};
use tollgate_openai::{
    Chunk, ChunkReader, EventCutter, Family, FinishReason, Patch, Progress, Usage,
};

fn reader(include_usage: bool) -> ChunkReader {
    let patch = Patch::new(Family::CHAT, "x_svc").model("m-small");
    ChunkReader::new(Arc::new(patch), include_usage)
}

fn write(chunk: &Chunk<'_>, metadata: Option<&[u8]>, out: &mut BytesMut) {
    match metadata {
        Some(metadata) => chunk.write_last(None, metadata, out),
        None => chunk.write(out),
    }
}

/// One event in its form for the client.
fn patched(reader: &mut ChunkReader, data: &str, metadata: Option<&str>) -> String {
    let mut out = BytesMut::new();
    let chunk = reader.read(data.as_bytes()).expect("a chunk");
    write(&chunk, metadata.map(str::as_bytes), &mut out);
    String::from_utf8(out.to_vec()).expect("UTF-8")
}

fn text(data: &str) -> String {
    let mut text = String::new();
    let mut reader = reader(false);
    let chunk = reader.read(data.as_bytes()).expect("a chunk");
    chunk.append_text(&mut text);
    assert_eq!(chunk.text_bytes() > 0, !text.is_empty(), "{data}");
    text
}

const PLAIN: &str = r#"data: {"id":"chatcmpl-9fK2","object":"chat.completion.chunk","created":1798761600,"model":"m-small","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

data: {"id":"chatcmpl-9fK2","object":"chat.completion.chunk","created":1798761600,"model":"m-small","choices":[{"index":0,"delta":{"content":"The toll"},"logprobs":null,"finish_reason":null}]}

: keep-alive
data: {"id":"chatcmpl-9fK2","object":"chat.completion.chunk","created":1798761600,"model":"m-small","choices":[{"index":0,"delta":{"content":" is paid."},"logprobs":null,"finish_reason":null}]}

data: {"id":"chatcmpl-9fK2","object":"chat.completion.chunk","created":1798761600,"model":"m-small","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}

data: [DONE]

"#;

const USAGE_TAIL: &str = r#"data: {"id":"chatcmpl-9fK2","object":"chat.completion.chunk","created":1798761600,"model":"m-small","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}

data: {"id":"chatcmpl-9fK2","object":"chat.completion.chunk","created":1798761600,"model":"m-small","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}}

data: [DONE]

"#;

const FAILURE: &str = r#"data: {"id":"chatcmpl-9fK2","object":"chat.completion.chunk","created":1798761600,"model":"m-small","choices":[{"index":0,"delta":{"content":"The toll"},"logprobs":null,"finish_reason":null}]}

data: {"error":{"message":"The model provider stopped answering.","type":"upstream_error","param":null,"code":"upstream_error"}}

"#;

/// The accumulated result of a whole stream.
#[derive(Debug, Default)]
struct Sum {
    text: String,
    progress: Progress,
    done: bool,
    empty: usize,
    errors: Vec<String>,
}

fn sum(stream: &str) -> Sum {
    let mut sum = Sum::default();
    let mut chunks = reader(true);
    let mut cutter = EventCutter::new(10_000);
    let mut events = cutter.push(stream.as_bytes());
    while let Some(event) = events.next().expect("small events") {
        if event.is_done() {
            sum.done = true;
            continue;
        }
        let chunk = chunks.read(event.data).expect("a chunk");
        sum.progress.note(&chunk);
        sum.empty += usize::from(chunk.has_empty_choices());
        chunk.append_text(&mut sum.text);
        let error = chunk
            .error()
            .map(|error| String::from_utf8_lossy(error).into_owned());
        sum.errors.extend(error);
    }
    sum
}

#[test]
fn a_plain_stream_ends_with_a_reason_and_without_usage() {
    let sum = sum(PLAIN);
    assert_eq!(sum.text, "The toll is paid.");
    assert!(sum.done && sum.progress.all_finished() && !sum.progress.failed());
    assert_eq!(
        (sum.progress.usage(), sum.empty, sum.progress.choices_seen()),
        (None, 0, 1)
    );
}

#[test]
fn the_usage_comes_in_an_event_without_choices() {
    let sum = sum(USAGE_TAIL);
    assert_eq!(
        (sum.progress.usage(), sum.empty),
        (Some(Usage::new(5, 4)), 1)
    );
    assert!(sum.done && sum.progress.all_finished());
}

#[test]
fn a_failed_stream_has_an_error_and_no_end() {
    let sum = sum(FAILURE);
    assert!(!sum.done && !sum.progress.all_finished() && sum.progress.failed());
    assert_eq!(sum.text, "The toll");
    assert_eq!(sum.errors.len(), 1);
    assert!(
        sum.errors[0].starts_with(r#"{"message":"The model provider"#),
        "{:?}",
        sum.errors
    );
}

#[test]
fn interleaved_choices_finish_one_by_one() {
    let mut reader = reader(false);
    let mut progress = Progress::default();
    type Choices = &'static [(u32, Option<&'static str>)];
    let steps: [(Choices, bool); 7] = [
        (&[(0, None)], false),
        (&[(1, None)], false),
        (&[(1, Some("length"))], false),
        (&[(1, Some("length"))], false),
        (&[], false),
        (&[(0, Some("stop"))], true),
        (&[(2, None), (3, Some("stop"))], false),
    ];
    for (choices, finished) in steps {
        let choices: Vec<_> = choices
            .iter()
            .map(|(index, reason)| json!({"index": index, "delta": {}, "finish_reason": reason}))
            .collect();
        let data = json!({"choices": choices}).to_string();
        progress.note(&reader.read(data.as_bytes()).expect("a chunk"));
        assert_eq!(progress.all_finished(), finished, "after {data}");
    }
}

#[test]
fn the_last_valid_usage_counts() {
    let mut reader = reader(false);
    let mut progress = Progress::default();
    for (usage, holds) in [
        ("null", None),
        (
            r#"{"prompt_tokens":5,"completion_tokens":1}"#,
            Some(Usage::new(5, 1)),
        ),
        (
            r#"{"prompt_tokens":5,"completion_tokens":2}"#,
            Some(Usage::new(5, 2)),
        ),
        ("null", Some(Usage::new(5, 2))),
        (
            r#"{"prompt_tokens":-5,"completion_tokens":2}"#,
            Some(Usage::new(5, 2)),
        ),
    ] {
        let data =
            format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"x"}}}}],"usage":{usage}}}"#);
        progress.note(&reader.read(data.as_bytes()).expect("a chunk"));
        assert_eq!(progress.usage(), holds, "after {usage}");
    }
}

#[test]
fn finish_reasons_are_distinguished() {
    let table: [(&str, Option<FinishReason>); 13] = [
        ("null", None),
        (r#""stop""#, Some(Stop)),
        (r#""length""#, Some(Length)),
        (r#""tool_calls""#, Some(ToolCalls)),
        (r#""function_call""#, Some(FinishReason::FunctionCall)),
        (r#""content_filter""#, Some(ContentFilter)),
        (r#""error""#, Some(Error)),
        (r#""eos""#, Some(Stop)),
        (r#""end_turn""#, Some(Stop)),
        (r#""MAX_TOKENS""#, Some(Length)),
        (r#""tool_use""#, Some(ToolCalls)),
        (r#""insufficient_system_resource""#, Some(Other)),
        ("1", None),
    ];
    for (reason, expected) in table {
        let data =
            format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":{reason},"index":7.0}}]}}"#);
        let mut reader = reader(false);
        let chunk = reader.read(data.as_bytes()).expect("a chunk");
        assert_eq!(
            (chunk.choices()[0].finish, chunk.choices()[0].index),
            (expected, 7),
            "{reason}"
        );
    }
}

#[test]
fn only_a_non_empty_error_is_an_error() {
    for (error, reported) in [
        ("null", false),
        ("false", false),
        (r#""""#, false),
        (r#""overloaded""#, true),
        (r#"{"message":"x"}"#, true),
        ("{}", true),
        ("500", true),
    ] {
        for data in [
            format!(r#"{{"error":{error}}}"#),
            format!(r#"{{"err\u006fr": {error} ,"choices":[]}}"#),
        ] {
            let mut reader = reader(false);
            let chunk = reader.read(data.as_bytes()).expect("an object");
            assert_eq!(
                chunk.error(),
                reported.then_some(error.as_bytes()),
                "{data}"
            );
        }
    }
    // At a deeper level the word has no meaning.
    let mut reader = reader(false);
    let data = br#"{"choices":[{"delta":{"error":"x","content":"\"error\":1"}}]}"#;
    assert_eq!(reader.read(data).expect("a chunk").error(), None);
}

#[test]
fn all_generated_text_is_returned() {
    let choice = |inner: &str| text(&format!(r#"{{"choices":[{{"index":0,{inner}}}]}}"#));
    assert_eq!(
        choice(r#""delta":{"content":"a\n\u00e9\ud83d\ude00"}"#),
        "a\né😀"
    );
    assert_eq!(choice(r#""delta":{"content":null}"#), "");
    assert_eq!(choice(r#""delta":null"#), "");
    assert_eq!(choice(r#""text":"legacy""#), "legacy");
    assert_eq!(
        choice(r#""delta":{"reasoning_content":"think","content":"say"}"#),
        "thinksay"
    );
    assert_eq!(choice(r#""delta":{"refusal":"no"}"#), "no");
    assert_eq!(
        choice(r#""delta":{"content":[{"type":"text","text":"part"},{"type":"x","y":"z"}]}"#),
        "part"
    );
    assert_eq!(
        choice(r#""delta":{"function_call":{"name":"f","arguments":"{}"}}"#),
        "f{}"
    );
    assert_eq!(
        choice(
            r#""delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":"}}]}"#
        ),
        "f{\"a\":"
    );
    // Names, roles, log probabilities and ids are not generated text.
    assert_eq!(
        choice(r#""delta":{"role":"assistant","id":"x"},"logprobs":{"content":[{"token":"t"}]}"#),
        ""
    );
    assert_eq!(
        text(r#"{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]}"#),
        "ab"
    );
}

#[test]
fn reasoning_under_two_names_is_counted_once() {
    assert_eq!(
        text(r#"{"choices":[{"delta":{"reasoning":"think","reasoning_content":"think"}}]}"#),
        "think"
    );
    assert_eq!(
        text(r#"{"choices":[{"delta":{"reasoning":"","reasoning_content":"think"}}]}"#),
        "think"
    );
}

#[test]
fn the_name_of_a_call_is_counted_once_for_each_choice() {
    let mut reader = reader(false);
    let calls = r#""delta":{"tool_calls":[{"index":0,"function":{"name":"pay"}}]}"#;
    for (choice, counted) in [(0, "pay"), (1, "pay"), (0, ""), (1, ""), (2, "pay")] {
        let event = match choice {
            0 => format!(r#"{{"choices":[{{"index":0,{calls}}}]}}"#),
            _ => format!(r#"{{"choices":[{{{calls},"index":{choice}}}]}}"#),
        };
        let mut text = String::new();
        let chunk = reader.read(event.as_bytes()).expect("a chunk");
        chunk.append_text(&mut text);
        assert_eq!(text, counted, "{event}");
    }
    let all = [0, 3].map(|choice| format!(r#"{{"index":{choice},{calls}}}"#));
    let event = format!(r#"{{"choices":[{}]}}"#, all.join(","));
    let chunk = reader.read(event.as_bytes()).expect("a chunk");
    assert_eq!(chunk.text_bytes(), "pay".len(), "of the new choice");
}

#[test]
fn model_id_usage_and_metadata_are_patched_and_nothing_else() {
    let with = |include_usage, before: &str, metadata| {
        patched(&mut reader(include_usage), before, metadata)
    };
    for (before, asked, not_asked) in [
        // Only the model is changed.
        (
            r#"{ "id":"chatcmpl-1", "model" : "org/x" ,"choices":[{"a":1.50}]}"#,
            r#"{ "id":"chatcmpl-1", "model" : "m-small" ,"choices":[{"a":1.50}]}"#,
            r#"{ "id":"chatcmpl-1", "model" : "m-small" ,"choices":[{"a":1.50}]}"#,
        ),
        // The usage member is last, first, in the middle, twice, or next to other removed members.
        (
            r#"{"model":"x","choices":[{}],"usage":{"prompt_tokens":1}}"#,
            r#"{"model":"m-small","choices":[{}],"usage":null}"#,
            r#"{"model":"m-small","choices":[{}]}"#,
        ),
        (
            r#"{"usage": null ,"model":"x","choices":[{}]}"#,
            r#"{"usage": null ,"model":"m-small","choices":[{}]}"#,
            r#"{"model":"m-small","choices":[{}]}"#,
        ),
        (
            r#"{"x_svc":{"a":[]} , "usage":1,"model":"x", "usage" : {} ,"choices":[{}],"x_svc":null}"#,
            r#"{ "usage":null,"model":"m-small", "usage" : null ,"choices":[{}]}"#,
            r#"{ "model":"m-small" ,"choices":[{}]}"#,
        ),
        // The usage event.
        (
            r#"{"model":"x","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
            r#"{"model":"m-small","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
            r#"{"model":"m-small","choices":[]}"#,
        ),
        // A foreign id gets the prefix; a model that is missing is added.
        (
            r#"{"id":"gen-7","choices":[{}]}"#,
            r#"{"id":"chatcmpl-gen-7","choices":[{}],"model":"m-small"}"#,
            r#"{"id":"chatcmpl-gen-7","choices":[{}],"model":"m-small"}"#,
        ),
        ("{}", r#"{"model":"m-small"}"#, r#"{"model":"m-small"}"#),
        (
            r#"{"usage":null}"#,
            r#"{"usage":null,"model":"m-small"}"#,
            r#"{"model":"m-small"}"#,
        ),
        (
            r#"{"model":"x","m\u006fdel":"y","id":7}"#,
            r#"{"model":"m-small","m\u006fdel":"m-small","id":7}"#,
            r#"{"model":"m-small","m\u006fdel":"m-small","id":7}"#,
        ),
    ] {
        assert_eq!(with(true, before, None), asked, "{before}, usage asked for");
        assert_eq!(
            with(false, before, None),
            not_asked,
            "{before}, usage not asked for"
        );
        let stamped = format!(
            r#"{},"x_svc":{{"owner":"a"}}}}"#,
            not_asked.strip_suffix('}').expect("an object")
        );
        assert_eq!(
            with(false, before, Some(r#"{"owner":"a"}"#)),
            stamped,
            "{before}, stamped"
        );
    }
}

#[test]
fn an_empty_object_gets_its_metadata_without_a_comma() {
    let mut reader = ChunkReader::new(Arc::new(Patch::new(Family::TEXT, "x_toll")), false);
    assert_eq!(patched(&mut reader, "{}", Some("{}")), r#"{"x_toll":{}}"#);
    assert_eq!(
        patched(&mut reader, r#"{"x_toll":1}"#, Some("{}")),
        r#"{"x_toll":{}}"#
    );
    assert_eq!(
        patched(&mut reader, r#"{"id":"1"}"#, None),
        r#"{"id":"cmpl-1"}"#
    );
}

#[test]
fn an_event_with_the_usage_is_made_of_the_last_event() {
    let mut reader = reader(true);
    let like = |words: &str| {
        format!(
            r#"{{"id":"1","created":5,"model":"x","choices":[{{"index":0,"delta":{{"content":"{words}"}}}}],"usage":null}}"#
        )
    };
    // The second matches the template, the third does not.
    for data in [
        like("a"),
        like("b"),
        like("c").replace("\"created\":5", "\"created\":6"),
    ] {
        let created = if data.contains('6') { 6 } else { 5 };
        let chunk = reader.read(data.as_bytes()).expect("a chunk");
        let mut out = BytesMut::new();
        chunk.write_usage_chunk(Usage::new(2, 3), b"{}", &mut out);
        let expected = format!(
            r#"{{"id":"chatcmpl-1","created":{created},"model":"m-small","choices":[],"usage":{{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}},"x_svc":{{}}}}"#
        );
        assert_eq!(std::str::from_utf8(&out), Ok(expected.as_str()));
    }
}

#[test]
fn a_chunk_must_be_an_object() {
    for data in [
        &b""[..],
        b"null",
        b"[]",
        b"{",
        b"{}x",
        b"{\"a\":\"\xff\"}",
        b"ping",
        b"[DONE]",
    ] {
        assert!(
            reader(false).read(data).is_err(),
            "{}",
            String::from_utf8_lossy(data)
        );
    }
}

#[test]
fn a_template_that_matches_around_a_non_string_is_not_used() {
    let mut reader = reader(false);
    let data = |middle: &str| {
        format!(r#"{{"model":"x","choices":[{{"index":0,"delta":{{"content":"{middle}"}}}}]}}"#)
    };
    let first = data("a");
    reader.read(first.as_bytes()).expect("a chunk");
    // All of these start and end like the first.
    let finished = data(r#"b"},"finish_reason":"stop","delta":{"content":"c"#);
    let chunk = reader.read(finished.as_bytes()).expect("a chunk");
    assert_eq!(chunk.choices()[0].finish, Some(Stop));
    for broken in ["\n", "\\x", "\\", "\\u12", "\"", "a\"b"] {
        let data = data(broken);
        assert!(reader.read(data.as_bytes()).is_err(), "{data}");
    }
    let mut bytes = data("zz").into_bytes();
    let at = bytes
        .windows(2)
        .position(|pair| pair == b"zz")
        .expect("it is there");
    bytes[at] = 0xff;
    assert!(reader.read(&bytes).is_err(), "not UTF-8");
    // Shorter than its template: the end of one is the start of the other.
    let overlapping = &first[..first.len() - 5];
    assert!(reader.read(overlapping.as_bytes()).is_err());
}

/// An event of many forms, so that templates match often and not always.
fn event() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "", "a", "the toll", "\\n", "\\\"", "é", "\\ud83d", "\"", "\\", "}]}", "\"}}]}",
    ]);
    let model = prop::sample::select(vec![r#""model":"x","#, r#""model":"y","#, ""]);
    let finish = prop::sample::select(vec!["null", "null", "null", r#""stop""#]);
    let tail = prop::sample::select(vec![
        "",
        r#","usage":null"#,
        r#","usage":{"prompt_tokens":1,"completion_tokens":1}"#,
        r#","model":"z""#,
        r#","x_svc":1"#,
        r#","error":{}"#,
    ]);
    let speech = prop::sample::select(vec!["content", "reasoning_content", "role"]);
    (words, model, finish, tail, speech).prop_map(|(words, model, finish, tail, speech)| {
        format!(r#"{{"id":"1",{model}"choices":[{{"index":0,"delta":{{"{speech}":"{words}"}},"finish_reason":{finish}}}]{tail}}}"#)
    })
}

proptest! {
    #[test]
    fn an_event_reads_the_same_whatever_came_before(events in prop::collection::vec(event(), 1..12), include_usage: bool) {
        let mut used = reader(include_usage);
        for data in &events {
            let mut fresh = reader(include_usage);
            match (used.read(data.as_bytes()), fresh.read(data.as_bytes())) {
                (Ok(one), Ok(other)) => {
                    prop_assert_eq!(one.choices(), other.choices(), "{}", data);
                    prop_assert_eq!(one.usage(), other.usage());
                    prop_assert_eq!(one.error(), other.error());
                    prop_assert_eq!(one.text_bytes(), other.text_bytes());
                    let (mut text, mut said_fresh) = (String::new(), String::new());
                    one.append_text(&mut text);
                    other.append_text(&mut said_fresh);
                    prop_assert_eq!(text, said_fresh);
                    for metadata in [None, Some(&b"{\"a\":1}"[..])] {
                        let (mut out, mut out_fresh) = (BytesMut::new(), BytesMut::new());
                        write(&one, metadata, &mut out);
                        write(&other, metadata, &mut out_fresh);
                        prop_assert_eq!(&out, &out_fresh, "{}", data);
                        prop_assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&out).is_ok(), "{:?}", out);
                    }
                }
                (one, other) => prop_assert_eq!(one.err(), other.err(), "{}", data),
            }
        }
    }

    #[test]
    fn a_patched_event_differs_in_the_patched_members_only(data in event(), include_usage: bool) {
        let mut reader = reader(include_usage);
        let Ok(before) = serde_json::from_str::<Value>(&data) else { return Ok(()) };
        let mut expected = before;
        let members = expected.as_object_mut().expect("an object");
        members.insert("model".into(), json!("m-small"));
        members.insert("id".into(), json!("chatcmpl-1"));
        members.insert("x_svc".into(), json!({"a": 1}));
        match include_usage {
            true if members.contains_key("usage") => members["usage"] = Value::Null,
            true => {}
            false => drop(members.remove("usage")),
        }
        let after = patched(&mut reader, &data, Some(r#"{"a":1}"#));
        prop_assert_eq!(serde_json::from_str::<Value>(&after).expect("JSON"), expected);
    }
}

#[test]
fn output_is_an_answer_and_not_the_thought_before_it() {
    for (delta, output) in [
        (json!({"role": "assistant", "content": ""}), false),
        (json!({"reasoning_content": "Hm"}), false),
        (
            json!({"reasoning_details": [{"text": "Hm", "index": 0}]}),
            false,
        ),
        (json!({"tool_calls": []}), false),
        (json!({"content": "a"}), true),
        (json!({"content": [{"type": "text", "text": "a"}]}), true),
        (json!({"refusal": "a"}), true),
        (
            json!({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
            true,
        ),
        (json!({"function_call": {"name": "f"}}), true),
        (json!({"audio": {"data": "AAAA"}}), true),
        (json!({"images": [{"image_url": {"url": "data:"}}]}), true),
    ] {
        let data = json!({"choices": [{"index": 0, "delta": delta}]}).to_string();
        let mut reader = reader(false);
        let chunk = reader.read(data.as_bytes()).expect("a chunk");
        assert_eq!(chunk.choices()[0].output, output, "{data}");
    }
}
