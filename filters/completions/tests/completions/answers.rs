//! Answers: the client's output for a provider's input.

use tollgate_filter::{Ending, EventKind, Tokens, UpstreamFault};

use crate::support::{Answer, CHAT, TEXT, metadata};

const WHOLE: &str = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
const STREAM: &str = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true}"#;
const STREAM_USAGE: &str = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}"#;
const USAGE: Tokens = Tokens {
    prompt: 5,
    completion: 4,
};

/// A chunk from the provider, and its rewritten form for the client.
fn chunk(members: &str) -> (String, String) {
    (
        format!(
            r#"{{"id":"9f","object":"chat.completion.chunk","created":1,"model":"org/m-7b",{members}}}"#
        ),
        format!(
            r#"{{"id":"chatcmpl-9f","object":"chat.completion.chunk","created":1,"model":"m",{members}}}"#
        ),
    )
}

fn text(words: &str) -> (String, String) {
    chunk(&format!(
        r#""choices":[{{"index":0,"delta":{{"content":"{words}"}},"logprobs":null,"finish_reason":null}}]"#
    ))
}

fn stop() -> (String, String) {
    chunk(r#""choices":[{"index":0,"delta":{},"finish_reason":"stop"}]"#)
}

fn usage() -> (String, String) {
    chunk(r#""choices":[],"usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}"#)
}

/// An object with the metadata as its last member.
fn stamped(text: &str, estimated: bool) -> String {
    let text = text.strip_suffix('}').expect("an object");
    format!("{text},{}}}", metadata(estimated))
}

#[test]
fn a_whole_answer_has_the_clients_names_and_the_metadata() {
    let mut answer = Answer::to(CHAT, WHOLE);
    answer.pass(
        EventKind::Whole,
        r#"{"id":"x","model":"org/m-7b","choices":[{"index":0,"message":{"content":"a","reasoning_content":"1.50"}}],"usage":{"prompt_tokens":5,"completion_tokens":4},"system_fingerprint":null}"#,
    );
    assert_eq!(answer.usage(), Some(USAGE));
    assert!(answer.fault().is_none());
    let expected = r#"{"id":"chatcmpl-x","model":"m","choices":[{"index":0,"message":{"content":"a","reasoning_content":"1.50"}}],"usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9},"system_fingerprint":null}"#;
    assert_eq!(
        answer.end(Ending::Complete, true),
        [stamped(expected, false)]
    );
}

#[test]
fn a_whole_answer_without_usage_gets_the_tokens_we_counted() {
    let mut answer = Answer::to(TEXT, r#"{"prompt":"a"}"#);
    answer.pass(
        EventKind::Whole,
        r#"{"id":"cmpl-1","model":"m","choices":[{"index":0,"text":"hello"}]}"#,
    );
    assert_eq!(answer.usage(), None);
    assert_eq!(answer.text(), "hello");
    let expected = r#"{"id":"cmpl-1","model":"m","choices":[{"index":0,"text":"hello"}],"usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}}"#;
    assert_eq!(
        answer.end(Ending::Complete, true),
        [stamped(expected, true)]
    );
}

#[test]
fn an_invalid_completion_is_an_upstream_fault() {
    for (body, fault) in [
        ("", UpstreamFault::Invalid),
        ("<html>", UpstreamFault::Invalid),
        ("[]", UpstreamFault::Invalid),
        ("{}", UpstreamFault::Invalid),
        (r#"{"choices":[]}"#, UpstreamFault::Invalid),
        (r#"{"choices":[1]}"#, UpstreamFault::Invalid),
        (r#"{"choices":[{"message":{}}"#, UpstreamFault::Invalid),
        (
            r#"{"error":{"message":"out of memory"}}"#,
            UpstreamFault::Error,
        ),
        (
            r#"{"choices":[{"message":{"content":"a"},"finish_reason":"error"}]}"#,
            UpstreamFault::Error,
        ),
    ] {
        let mut answer = Answer::to(CHAT, WHOLE);
        answer.pass(EventKind::Whole, body);
        let found = answer.fault().map(|fault| fault.fault);
        assert_eq!(found, Some(fault), "{body}");
    }
}

#[test]
fn a_stream_gets_the_clients_names_and_the_metadata_in_its_finish() {
    let mut answer = Answer::to(CHAT, STREAM);
    answer.events(&[&text("a").0, &text("b").0, &stop().0]);
    assert_eq!(
        answer.sent,
        [text("a").1, text("b").1],
        "the finish waits for the charge"
    );
    answer.events(&[&usage().0, "[DONE]"]);
    assert!(answer.progress().finished);
    assert_eq!(answer.usage(), Some(USAGE));
    assert_eq!(answer.text(), "ab");
    let sent = answer.end(Ending::Complete, true);
    assert_eq!(
        sent[2..],
        [stamped(&stop().1, false), "[DONE]".to_owned()],
        "the usage was not asked for"
    );
}

#[test]
fn usage_that_was_asked_for_carries_the_metadata() {
    let mut answer = Answer::to(CHAT, STREAM_USAGE);
    let sent = answer
        .events(&[&text("a").0, &stop().0, &usage().0, "[DONE]"])
        .end(Ending::Complete, true);
    assert_eq!(
        sent,
        [
            text("a").1,
            stop().1,
            stamped(&usage().1, false),
            "[DONE]".to_owned()
        ]
    );
}

#[test]
fn usage_that_was_asked_for_and_not_sent_is_added() {
    let mut answer = Answer::to(CHAT, STREAM_USAGE);
    let sent = answer
        .events(&[&text("a").0, &stop().0, "[DONE]"])
        .end(Ending::Complete, true);
    assert_eq!(
        sent,
        [
            text("a").1,
            stop().1,
            stamped(&usage().1, true),
            "[DONE]".to_owned()
        ]
    );
}

#[test]
fn usage_that_was_asked_for_and_sent_elsewhere_gets_its_event() {
    let members = r#""choices":[{"index":0,"delta":{},"finish_reason":"stop"}]"#;
    let early = r#"{"prompt_tokens":50,"completion_tokens":40}"#;
    let finish = chunk(&format!(r#"{members},"usage":{early}"#));
    let mut answer = Answer::to(CHAT, STREAM_USAGE);
    let sent = answer
        .events(&[&finish.0, "[DONE]"])
        .end(Ending::Complete, true);
    // The charged usage, not the reported one.
    let added =
        chunk(r#""choices":[],"usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}"#);
    assert_eq!(
        sent,
        [
            chunk(&format!(r#"{members},"usage":null"#)).1,
            stamped(&added.1, false),
            "[DONE]".to_owned()
        ]
    );
}

#[test]
fn a_text_stream_owes_an_answer_to_each_prompt() {
    let body = r#"{"prompt":["a","b"],"stream":true}"#;
    let mut answer = Answer::to(TEXT, body);
    let finish =
        |index| format!(r#"{{"choices":[{{"index":{index},"text":"","finish_reason":"stop"}}]}}"#);
    answer.events(&[&finish(0)]);
    assert!(!answer.progress().finished, "the second has not begun");
    answer.events(&[&finish(1)]);
    assert!(answer.progress().finished);
}

#[test]
fn usage_in_other_events_is_hidden_or_null_as_the_client_asked() {
    let members = r#""choices":[{"index":0,"delta":{"content":"a"}}]"#;
    let running = format!(r#"{members},"usage":{{"prompt_tokens":5,"completion_tokens":1}}"#);
    let null = format!(r#"{members},"usage":null"#);
    for (request, sent, seen) in [
        (STREAM, &running, members),
        (STREAM, &null, members),
        (STREAM_USAGE, &running, &null),
        (STREAM_USAGE, &null, &null),
    ] {
        let mut answer = Answer::to(CHAT, request);
        answer.events(&[&chunk(sent).0]);
        assert_eq!(answer.sent, [chunk(seen).1], "{sent}");
    }
}

#[test]
fn the_last_of_several_usages_counts() {
    let mut answer = Answer::to(CHAT, STREAM);
    let running = r#""choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}"#;
    answer.events(&[&chunk(running).0]);
    assert_eq!(answer.usage().map(|usage| usage.completion), Some(1));
    answer.events(&[&usage().0]);
    assert_eq!(answer.usage(), Some(USAGE));
}

#[test]
fn events_without_choices_never_reach_a_client() {
    for request in [STREAM, STREAM_USAGE] {
        let mut answer = Answer::to(CHAT, request);
        answer.events(&[
            &chunk(r#""choices":[],"prompt_filter_results":[]"#).0,
            &chunk(r#""ping":1"#).0,
            &text("a").0,
        ]);
        assert_eq!(answer.sent, [text("a").1]);
    }
}

#[test]
fn with_several_choices_the_metadata_stands_on_the_very_last_finish() {
    let body = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true,"n":2}"#;
    let finish = |index| {
        chunk(&format!(
            r#""choices":[{{"index":{index},"delta":{{}},"finish_reason":"stop"}}]"#
        ))
    };
    let mut answer = Answer::to(CHAT, body);
    answer.events(&[&text("a").0, &finish(0).0]);
    assert!(!answer.progress().finished, "the second has not begun");
    answer.events(&[&finish(1).0]);
    assert!(answer.progress().finished);
    let sent = answer.events(&["[DONE]"]).end(Ending::Complete, true);
    assert_eq!(
        sent,
        [
            text("a").1,
            finish(0).1,
            stamped(&finish(1).1, true),
            "[DONE]".to_owned()
        ]
    );
}

#[test]
fn events_after_the_finish_are_held_back_in_order() {
    let mut answer = Answer::to(CHAT, STREAM);
    let after = chunk(r#""choices":[{"index":0,"delta":{}}]"#);
    answer.events(&[&stop().0, &after.0]);
    assert_eq!(answer.sent, [stop().1]);
    let sent = answer.end(Ending::Complete, true);
    assert_eq!(sent[1], stamped(&after.1, true));
}

#[test]
fn a_missing_end_is_added_when_every_choice_has_ended() {
    for done in [&["[DONE]"][..], &[]] {
        let mut answer = Answer::to(CHAT, STREAM);
        let sent = answer
            .events(&[&stop().0])
            .events(done)
            .end(Ending::Complete, true);
        assert_eq!(sent, [stamped(&stop().1, true), "[DONE]".to_owned()]);
    }
}

#[test]
fn a_stream_that_was_cut_gets_no_end() {
    let mut answer = Answer::to(CHAT, STREAM);
    let ending = Ending::UpstreamCut(UpstreamFault::Cut);
    let sent = answer.events(&[&text("a").0, &stop().0]).end(ending, true);
    assert_eq!(sent, [text("a").1, stamped(&stop().1, true)]);
}

#[test]
fn no_metadata_is_built_for_a_disconnected_client() {
    let mut answer = Answer::to(CHAT, STREAM);
    let sent = answer.events(&[&stop().0]).end(Ending::GoneDuring, false);
    assert_eq!(sent, [stop().1]);
}

#[test]
fn an_error_in_a_stream_is_sent_once_and_sanitised() {
    for (event, fault, message) in [
        (
            r#"{"error":{"message":"out\n of memory","code":500}}"#,
            UpstreamFault::Error,
            "out of memory",
        ),
        (r#"{"error":"busy"}"#, UpstreamFault::Error, "busy"),
        (
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#,
            UpstreamFault::Error,
            "",
        ),
        ("not json", UpstreamFault::Invalid, ""),
        ("[1]", UpstreamFault::Invalid, ""),
    ] {
        let mut answer = Answer::to(CHAT, STREAM);
        answer.events(&[&text("a").0, event]);
        assert_eq!(answer.sent, [text("a").1], "{event} reaches the client");
        let found = answer.fault().expect("a fault");
        assert_eq!((found.fault, &*found.message), (fault, message), "{event}");
    }
}

#[test]
fn text_of_every_kind_is_recorded_until_the_client_disconnects() {
    let mut answer = Answer::to(CHAT, STREAM);
    answer.events(&[
        &text("a\\u00e9 ").0,
        &chunk(r#""choices":[{"index":0,"delta":{"reasoning_content":"think "}}]"#).0,
        &chunk(r#""choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}}]"#).0,
    ]);
    assert_eq!(answer.text(), "aé think f{}");
    answer.progress().client_gone = true;
    answer.events(&[&text("unread text").0]);
    assert_eq!(answer.text(), "aé think f{}");
}

#[test]
fn metadata_that_a_provider_sends_is_not_ours() {
    let mut answer = Answer::to(CHAT, WHOLE);
    answer.pass(
        EventKind::Whole,
        r#"{"id":"chatcmpl-1","x_svc":{"credits_used":0},"model":"m","choices":[{"message":{}}],"usage":{"prompt_tokens":5,"completion_tokens":4}}"#,
    );
    let expected = r#"{"id":"chatcmpl-1","model":"m","choices":[{"message":{}}],"usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}}"#;
    assert_eq!(
        answer.end(Ending::Complete, true),
        [stamped(expected, false)]
    );
}

#[test]
fn a_long_stream_passes_event_by_event() {
    let mut answer = Answer::to(CHAT, STREAM);
    for number in 0..500 {
        let (sent, seen) = text(&format!("word {number} "));
        answer.events(&[&sent]);
        assert_eq!(answer.sent.last(), Some(&seen));
    }
    assert!(answer.text().ends_with("word 499 "));
}
