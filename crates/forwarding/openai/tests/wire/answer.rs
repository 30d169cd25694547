//! Whole answers.

use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_openai::FinishReason::{Length, Stop};
use tollgate_openai::{Answer, AnswerError, Family, Patch, Usage};

const WHOLE: &str = r#"{"id":"chatcmpl-9fK2","object":"chat.completion","created":1798761600,"model":"m-small",
 "choices":[{"index":0,"message":{"role":"assistant","content":"The toll is paid."},"logprobs":null,"finish_reason":"stop"}],
 "usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}}"#;

fn patch() -> Patch {
    Patch::new(Family::CHAT, "x_svc").model("m-small")
}

fn written(body: &str, counted: Option<Usage>, metadata: Option<&str>) -> String {
    let mut out = BytesMut::new();
    let answer = Answer::read(body.as_bytes(), &patch()).expect("an answer");
    let facts = answer.facts();
    let metadata = metadata.map(str::as_bytes);
    assert!(facts.write(body.as_bytes(), &patch(), counted, metadata, &mut out));
    let longer = format!("{body} ");
    assert!(
        !facts.write(longer.as_bytes(), &patch(), counted, metadata, &mut out),
        "it is another body"
    );
    String::from_utf8(out.to_vec()).expect("UTF-8")
}

fn text(body: &str) -> String {
    let mut text = String::new();
    let answer = Answer::read(body.as_bytes(), &patch()).expect("an answer");
    answer.append_text(&mut text);
    text
}

#[test]
fn a_whole_answer_is_stamped_at_its_end_and_otherwise_untouched() {
    let answer = Answer::read(WHOLE.as_bytes(), &patch()).expect("an answer");
    assert_eq!(answer.usage(), Some(Usage::new(5, 4)));
    assert_eq!(
        answer
            .choices()
            .iter()
            .map(|choice| choice.finish)
            .collect::<Vec<_>>(),
        [Some(Stop)]
    );
    assert_eq!((answer.error(), answer.text_bytes()), (None, 17));
    assert_eq!(text(WHOLE), "The toll is paid.");
    assert_eq!(written(WHOLE, None, None), WHOLE);
    let stamped = format!(
        r#"{},"x_svc":{{"cache_hit":false}}}}"#,
        WHOLE.strip_suffix('}').expect("an object")
    );
    assert_eq!(
        written(WHOLE, None, Some(r#"{"cache_hit":false}"#)),
        stamped
    );
    // A usage that is charged as it was reported is unchanged.
    assert_eq!(written(WHOLE, Some(Usage::new(5, 4)), None), WHOLE);
}

#[test]
fn a_missing_usage_is_filled_in_with_what_was_charged() {
    let filled = r#""usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}"#;
    for (usage, expected) in [
        (
            "",
            format!(r#"{{"choices":[{{}}],"model":"m-small",{filled}}}"#),
        ),
        (
            r#","usage":null"#,
            format!(r#"{{"choices":[{{}}],{filled},"model":"m-small"}}"#),
        ),
        (
            r#","usage":{"prompt_tokens":-2}"#,
            format!(r#"{{"choices":[{{}}],{filled},"model":"m-small"}}"#),
        ),
        (
            r#","usage":[]"#,
            format!(r#"{{"choices":[{{}}],{filled},"model":"m-small"}}"#),
        ),
        (
            r#","usage":{}"#,
            format!(r#"{{"choices":[{{}}],{filled},"model":"m-small"}}"#),
        ),
    ] {
        let body = format!(r#"{{"choices":[{{}}]{usage}}}"#);
        assert_eq!(written(&body, Some(Usage::new(2, 3)), None), expected);
    }
}

/// The text of a `usage` in an answer, for a client that is charged for so many tokens in and out.
fn shown(usage: &str, charged: (u64, u64)) -> String {
    let body = format!(r#"{{"model":"m-small","choices":[{{}}],"usage":{usage}}}"#);
    let written = written(&body, Some(Usage::new(charged.0, charged.1)), None);
    let head = r#"{"model":"m-small","choices":[{}],"usage":"#;
    let usage = written
        .strip_prefix(head)
        .and_then(|rest| rest.strip_suffix('}'));
    usage.expect("nothing else has changed").to_owned()
}

#[test]
fn a_usage_states_the_charged_tokens_and_keeps_every_other_byte() {
    for (usage, charged, expected) in [
        // Correct already, in any notation.
        (
            r#"{ "total_tokens":9.0, "cost":1.50,"completion_tokens":4,"prompt_tokens":5 }"#,
            (5, 4),
            r#"{ "total_tokens":9.0, "cost":1.50,"completion_tokens":4,"prompt_tokens":5 }"#,
        ),
        // Reasoning in the total alone.
        (
            r#"{"prompt_tokens":5,"completion_tokens": 4 ,"total_tokens":25,"completion_tokens_details":{"reasoning_tokens":1.60e1}}"#,
            (5, 20),
            r#"{"prompt_tokens":5,"completion_tokens": 20 ,"total_tokens":25,"completion_tokens_details":{"reasoning_tokens":1.60e1}}"#,
        ),
        // Bounded by what can have been used.
        (
            r#"{"prompt_tokens":5,"completion_tokens":400,"total_tokens":405,"x":[1, 2]}"#,
            (5, 40),
            r#"{"prompt_tokens":5,"completion_tokens":40,"total_tokens":45,"x":[1, 2]}"#,
        ),
        // Counted, where none was reported.
        (
            r#"{"prompt_tokens":0,"completion_tokens":null,"total_tokens":"0","cost":0}"#,
            (3, 2),
            r#"{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"cost":0}"#,
        ),
        // Without a total, and with one that is less than the sum.
        (
            r#"{"prompt_tokens":5,"completion_tokens":4}"#,
            (5, 4),
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}"#,
        ),
        (
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":4}"#,
            (5, 4),
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}"#,
        ),
        // A parser that takes the first of two gets the same as one that takes the last.
        (
            r#"{"prompt_tokens":1,"completion_tokens":4,"total_tokens":9,"prompt_tokens":5}"#,
            (5, 4),
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9,"prompt_tokens":5}"#,
        ),
    ] {
        assert_eq!(shown(usage, charged), expected, "{usage}");
    }
}

#[test]
fn each_of_two_usages_states_the_charged_tokens() {
    let body = r#"{"model":"m-small","usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2},"choices":[{}],"usage":null}"#;
    let both = r#"{"model":"m-small","usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2},"choices":[{}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
    assert_eq!(written(body, Some(Usage::new(1, 1)), None), both);
    assert_eq!(written(both, Some(Usage::new(1, 1)), None), both);
}

/// The value of a count in a usage.
fn count() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0u64..40).prop_map(|count| count.to_string()),
        1 => (0u64..40).prop_map(|count| format!("{count}.0")),
        1 => prop::sample::select(vec!["null", "-3", "1.5", "\"7\"", "{}", "[]", "true", "1e300", "18446744073709551616", "4294967296"]).prop_map(str::to_owned),
    ]
}

proptest! {
    #[test]
    fn a_client_gets_the_charged_usage_for_any_reported_usage(
        members in prop::collection::vec((prop::sample::select(vec!["prompt_tokens", "completion_tokens", "total_tokens", "completion\\u005ftokens", "cost"]), count()), 0..6),
        also in prop_oneof![Just(""), Just(r#","usage":null"#), Just(r#","usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}"#)],
        bound in 1u64..60,
        counted in (1u64..9, 0u64..9),
    ) {
        let members: Vec<_> = members.iter().map(|(name, count)| format!("\"{name}\":{count}")).collect();
        let body = format!(r#"{{"choices":[{{}}],"usage":{{{}}}{also}}}"#, members.join(","));
        // Twice: the second time it matches its template.
        for _ in 0..2 {
            let reported = Answer::read(body.as_bytes(), &patch()).expect("an answer").usage();
            // The meter's result: bounded by what can have been used, or counted.
            let charged = match reported {
                Some(usage) => Usage::new(usage.prompt_tokens.min(bound), usage.completion_tokens.min(bound)),
                None => Usage::new(counted.0, counted.1),
            };
            prop_assert_ne!(reported, Some(Usage::default()));
            let after = written(&body, Some(charged), None);
            let shown = serde_json::from_str::<Value>(&after).expect("JSON")["usage"].clone();
            let number = |name: &str| shown[name].as_f64().expect("a number") as u64;
            prop_assert_eq!(number("prompt_tokens"), charged.prompt_tokens, "{} of {}", after, body);
            prop_assert_eq!(number("completion_tokens"), charged.completion_tokens, "{} of {}", after, body);
            prop_assert_eq!(number("total_tokens"), charged.total_tokens(), "{} of {}", after, body);
            prop_assert_eq!(Answer::read(after.as_bytes(), &patch()).expect("an answer").usage(), Some(charged).filter(|usage| *usage != Usage::default()));
        }
    }
}

#[test]
fn of_two_usages_the_last_valid_one_counts() {
    let usage = |members: &str| {
        let body = format!(r#"{{"choices":[{{}}],{members}}}"#);
        let answer = Answer::read(body.as_bytes(), &patch()).expect("an answer");
        answer.usage()
    };
    let (one, two) = (
        r#""usage":{"prompt_tokens":1,"completion_tokens":1}"#,
        r#""usage":{"prompt_tokens":2,"completion_tokens":2}"#,
    );
    assert_eq!(usage(&format!("{one},{two}")), Some(Usage::new(2, 2)));
    assert_eq!(
        usage(&format!(r#"{one},"usage":null"#)),
        Some(Usage::new(1, 1))
    );
}

#[test]
fn a_body_without_choices_is_no_answer() {
    for (body, error) in [
        (&b"{}"[..], "the answer has no choices"),
        (br#"{"choices":[]}"#, "the answer has no choices"),
        (br#"{"choices":null}"#, "the answer has no choices"),
        (br#"{"choices":{}}"#, "the answer has no choices"),
        (br#"{"choices":["x"]}"#, "the answer has no choices"),
        (br#"{"choices":[{},1]}"#, "the answer has no choices"),
        (br#"{"choices":[{}]"#, "the answer is not a JSON object"),
        (b"", "the answer is not a JSON object"),
        (b"<html>", "the answer is not a JSON object"),
        (br#"[{"choices":[{}]}]"#, "the answer is not a JSON object"),
        (b"{\"choices\":[{\"\xff\":1}]}", "the answer is not UTF-8"),
    ] {
        let read = Answer::read(body, &patch());
        let refused = read.map(|_| ()).expect_err("no answer").to_string();
        assert!(
            refused.starts_with(error),
            "{}: {refused}",
            String::from_utf8_lossy(body)
        );
    }
    assert!(matches!(
        Answer::read(b"{}", &patch()),
        Err(AnswerError::NoChoices)
    ));
}

#[test]
fn an_error_in_a_200_is_seen() {
    let answer =
        Answer::read(br#"{"error":{"message":"overloaded"}}"#, &patch()).expect("an error is read");
    assert_eq!(answer.error(), Some(&br#"{"message":"overloaded"}"#[..]));
    assert!(answer.choices().is_empty());
    let answer = Answer::read(br#"{"error":null,"choices":[{}]}"#, &patch()).expect("an answer");
    assert_eq!(answer.error(), None);
}

#[test]
fn null_content_stays_null_and_tool_calls_are_replayed() {
    let body = r#"{"model":"m-small","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"pay","arguments":"{\"sum\": 1.50}"}}]},"finish_reason":"tool_calls"}]}"#;
    assert_eq!(written(body, None, None), body);
    assert_eq!(text(body), r#"pay{"sum": 1.50}"#);
}

#[test]
fn text_answers_and_several_choices_are_read() {
    let body = r#"{"choices":[{"text":"one","index":1,"finish_reason":"length"},{"text":" two","index":0,"finish_reason":null}]}"#;
    let answer = Answer::read(body.as_bytes(), &patch()).expect("an answer");
    let choices: Vec<_> = answer
        .choices()
        .iter()
        .map(|choice| (choice.index, choice.finish))
        .collect();
    assert_eq!(choices, [(1, Some(Length)), (0, None)]);
    assert_eq!(text(body), "one two");
}

#[test]
fn numbers_and_order_survive_as_written() {
    let body = r#"{"z":1.10,"created":1.7e9,"big":123456789012345678901234567890.000,"model":"m-small","choices":[{"score":-0.0}],"a":"\u0041"}"#;
    assert_eq!(written(body, None, None), body);
}

proptest! {
    #[test]
    fn a_written_answer_differs_in_our_members_only(
        members in prop::collection::hash_map("(id|model|usage|x_svc|error|[a-c])", "(null|1|\"a\"|\\{\\}|\\[1, 2\\]|\"chatcmpl-1\")", 0..8),
        spaces in "[ \n\t]{0,2}",
    ) {
        let mut texts: Vec<_> = members.iter().map(|(name, value)| format!("{spaces}\"{name}\"{spaces}:{spaces}{value}{spaces}")).collect();
        texts.push(r#""choices":[{"message":{}}]"#.to_owned());
        let body = format!("{{{}}}", texts.join(","));
        let mut expected: Value = serde_json::from_str(&body).expect("JSON");
        let object = expected.as_object_mut().expect("an object");
        object.insert("model".into(), json!("m-small"));
        object.insert("x_svc".into(), json!({"owner": "a"}));
        object.insert("usage".into(), json!({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}));
        if let Some(Value::String(id)) = object.get_mut("id").filter(|id| *id != "chatcmpl-1") {
            *id = format!("chatcmpl-{id}");
        }
        let after = written(&body, Some(Usage::new(1, 2)), Some(r#"{"owner":"a"}"#));
        prop_assert_eq!(serde_json::from_str::<Value>(&after).expect("JSON"), expected, "{}", after);
    }
}
