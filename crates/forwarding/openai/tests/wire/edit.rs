//! Edits of a request body: the changed bytes, and above all the unchanged ones.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_openai::{BodyEdit, CompletionRequest, Family};

type Edit = fn(BodyEdit<'_>) -> BodyEdit<'_>;

const MESSAGES: &str = r#""messages":[{"role":"user","content":"x"}]"#;

/// Applies an edit; `M` in both bodies is a placeholder for a list of messages.
fn check(before: &str, edit: Edit, after: &str) {
    let body = Bytes::from(before.replace('M', MESSAGES));
    let request = CompletionRequest::read(Family::CHAT, &body).expect("the request is good");
    let edited = edit(BodyEdit::new(&request)).apply(&body);
    let after = after.replace('M', MESSAGES);
    assert_eq!(
        std::str::from_utf8(&edited).expect("UTF-8"),
        after,
        "from {before}"
    );
    let again = CompletionRequest::read(Family::CHAT, &edited).expect("an edited body is good");
    let same = edit(BodyEdit::new(&again)).apply(&edited);
    assert_eq!(
        same.as_ptr(),
        edited.as_ptr(),
        "a second time there is nothing to change"
    );
}

#[test]
fn the_cache_member_is_taken_out_with_one_comma() {
    let edit: Edit = |edit| edit.without_cache();
    check(r#"{"cache":true,M}"#, edit, "{M}");
    check(r#"{M,"cache":false}"#, edit, "{M}");
    check(r#"{M , "cache" : null , "a":1}"#, edit, r#"{M  , "a":1}"#);
    check(r#"{ "cache":false , M }"#, edit, "{  M }");
    check("{M}", edit, "{M}");
}

#[test]
fn the_model_is_replaced_or_added() {
    let edit: Edit = |edit| edit.model("org/m \"1\"");
    check(r#"{"model":"a",M}"#, edit, r#"{"model":"org/m \"1\"",M}"#);
    check(
        r#"{ "model" : null , M }"#,
        edit,
        r#"{ "model" : "org/m \"1\"" , M }"#,
    );
    check("{M}", edit, r#"{M,"model":"org/m \"1\""}"#);
    // With escapes it is still the same name.
    check(
        r#"{"model":"org\/m \u00221\"",M}"#,
        edit,
        r#"{"model":"org\/m \u00221\"",M}"#,
    );
}

#[test]
fn usage_is_asked_for_beside_the_options_that_are_there() {
    let edit: Edit = |edit| edit.with_usage();
    check(
        r#"{M,"stream":true}"#,
        edit,
        r#"{M,"stream":true,"stream_options":{"include_usage":true}}"#,
    );
    for (before, after) in [
        ("null", r#"{"include_usage":true}"#),
        ("{}", r#"{"include_usage":true}"#),
        ("{ }", r#"{ "include_usage":true}"#),
        (
            r#"{"a":{"b":[]}}"#,
            r#"{"a":{"b":[]},"include_usage":true}"#,
        ),
        (r#"{"include_usage":false}"#, r#"{"include_usage":true}"#),
        (
            r#"{"include_usage": null ,"a":1}"#,
            r#"{"include_usage": true ,"a":1}"#,
        ),
        (r#"{"include_usage":true}"#, r#"{"include_usage":true}"#),
    ] {
        let body = |options| format!(r#"{{"stream":true,"stream_options":{options},M}}"#);
        check(&body(before), edit, &body(after));
    }
    // An answer that is not a stream has its usage anyway.
    check("{M}", edit, "{M}");
    check(
        r#"{M,"stream_options":{"include_usage":false}}"#,
        edit,
        r#"{M,"stream_options":{"include_usage":false}}"#,
    );
}

#[test]
fn a_cap_is_lowered_never_raised_and_added_where_there_is_none() {
    let old: Edit = |edit| edit.cap_output(16);
    let new: Edit = |edit| edit.cap_output(16).cap_completion_tokens();
    check("{M}", old, r#"{M,"max_tokens":16}"#);
    check("{M}", new, r#"{M,"max_completion_tokens":16}"#);
    check(r#"{M,"max_tokens":17}"#, new, r#"{M,"max_tokens":16}"#);
    check(r#"{M,"max_tokens":15}"#, old, r#"{M,"max_tokens":15}"#);
    check(
        r#"{"max_tokens":9,M,"max_completion_tokens":1e3}"#,
        old,
        r#"{"max_tokens":9,M,"max_completion_tokens":16}"#,
    );
    check(r#"{"max_tokens":null,M}"#, old, r#"{"max_tokens":16,M}"#);
    check(
        r#"{"max_tokens":null,"max_completion_tokens":20,M}"#,
        old,
        r#"{"max_tokens":null,"max_completion_tokens":16,M}"#,
    );
    check(
        r#"{"max_tokens":null,M}"#,
        new,
        r#"{"max_tokens":null,M,"max_completion_tokens":16}"#,
    );
}

#[test]
fn all_changes_are_made_at_once() {
    let edit: Edit = |edit| edit.without_cache().model("b").with_usage().cap_output(5);
    check(
        r#"{"cache":true, "seed":0.10, "model":"a", M, "stream":true}"#,
        edit,
        r#"{ "seed":0.10, "model":"b", M, "stream":true,"stream_options":{"include_usage":true},"max_tokens":5}"#,
    );
}

#[test]
fn a_body_that_needs_no_change_is_not_copied() {
    let body = Bytes::from(format!(r#"{{{MESSAGES},"model":"m","max_tokens":5}}"#));
    let request = CompletionRequest::read(Family::CHAT, &body).expect("the request is good");
    let edit = BodyEdit::new(&request)
        .without_cache()
        .model("m")
        .with_usage();
    let edited = edit.cap_output(5).apply(&body);
    assert_eq!(edited.as_ptr(), body.as_ptr());
}

#[test]
fn a_text_request_knows_only_the_older_cap() {
    let body = Bytes::from(r#"{"prompt":"x"}"#);
    let request = CompletionRequest::read(Family::TEXT, &body).expect("the request is good");
    let edited = BodyEdit::new(&request)
        .cap_output(3)
        .cap_completion_tokens()
        .apply(&body);
    assert_eq!(&edited[..], br#"{"prompt":"x","max_tokens":3}"#);
}

/// One member in any valid encoding, with white space around its parts.
fn member() -> impl Strategy<Value = (&'static str, String)> {
    let stated = prop::sample::select(vec![
        ("model", r#""a""#),
        ("model", "null"),
        ("cache", "true"),
        ("cache", "false"),
        ("stream", "true"),
        ("stream", "false"),
        ("stream_options", "null"),
        ("stream_options", "{}"),
        (
            "stream_options",
            r#"{ "include_usage" : false , "x" : "}" }"#,
        ),
        ("stream_options", r#"{"x":[1,{"include_usage":false}]}"#),
        ("max_tokens", "100"),
        ("max_tokens", "1e1"),
        ("max_completion_tokens", "7.0"),
        ("max_completion_tokens", "null"),
        ("seed", "12345678901234567890.10"),
        ("stop", r#"[",","}","\u007d\\"]"#),
        ("other", r#"{"model":"z","cache":1}"#),
        ("temperature", "0.70"),
    ]);
    let space = prop::sample::select(vec!["", " ", "\n\t", "  "]);
    (stated, space.clone(), space.clone(), space.clone(), space)
        .prop_map(|((name, value), a, b, c, d)| (name, format!("{a}\"{name}\"{b}:{c}{value}{d}")))
}

proptest! {
    #[test]
    fn only_the_edited_members_differ(
        mut members in prop::collection::vec(member(), 0..9),
        place in any::<prop::sample::Index>(),
        model in prop::option::of("[a-z/\"é]{1,8}"),
        cache: bool,
        usage: bool,
        cap in prop::option::of(1u64..200),
    ) {
        let mut seen = std::collections::HashSet::new();
        members.retain(|(name, _)| seen.insert(*name));
        members.insert(place.index(members.len() + 1), ("messages", MESSAGES.to_owned()));
        let texts: Vec<_> = members.iter().map(|(_, text)| text.as_str()).collect();
        let body = Bytes::from(format!("{{{}}}", texts.join(",")));
        let request = CompletionRequest::read(Family::CHAT, &body).expect("the request is good");

        let mut edit = BodyEdit::new(&request);
        let mut expected: Value = serde_json::from_slice(&body).expect("JSON");
        let before = expected.clone();
        if let Some(model) = &model {
            edit = edit.model(model);
            expected["model"] = json!(model);
        }
        if cache {
            edit = edit.without_cache();
            expected.as_object_mut().expect("an object").remove("cache");
        }
        if usage {
            edit = edit.with_usage();
            if request.stream {
                if !expected["stream_options"].is_object() {
                    expected["stream_options"] = json!({});
                }
                expected["stream_options"]["include_usage"] = json!(true);
            }
        }
        if let Some(cap) = cap {
            edit = edit.cap_output(cap);
            for name in ["max_tokens", "max_completion_tokens"] {
                if expected[name].as_f64().is_some_and(|current| current > cap as f64) {
                    expected[name] = json!(cap);
                }
            }
            if request.output_max().is_none() {
                expected["max_tokens"] = json!(cap);
            }
            // The lookup of a member has inserted it.
            for name in ["max_tokens", "max_completion_tokens"] {
                if expected[name].is_null() && before.get(name).is_none() {
                    expected.as_object_mut().expect("an object").remove(name);
                }
            }
        }

        let edited = edit.apply(&body);
        let parsed: Value = serde_json::from_slice(&edited).expect("an edited body is JSON");
        prop_assert_eq!(&parsed, &expected);
        let again = CompletionRequest::read(Family::CHAT, &edited);
        prop_assert!(again.is_ok(), "{:?} from {:?}", again, edited);
        // Members that the gateway does not change are as the client wrote them.
        let edited = std::str::from_utf8(&edited).expect("UTF-8");
        for (name, text) in &members {
            if before.get(name) == expected.get(name) {
                prop_assert!(edited.contains(text.trim()), "{:?} is gone from {}", text, edited);
            }
        }
    }
}

#[test]
fn a_system_text_is_put_before_every_prompt() {
    //    before, after
    text(
        r#"{"system":"s\t","prompt":"a\u0020"}"#,
        r#"{"prompt":"s\t\n\na\u0020"}"#,
    );
    text(
        r#"{"prompt":["a" , "", "b"],"x":1, "system" : "s"}"#,
        r#"{"prompt":["s\n\na" , "s\n\n", "s\n\nb"],"x":1}"#,
    );
    text(r#"{"prompt":"a","system":""}"#, r#"{"prompt":"a"}"#);
    text(
        r#"{"prompt":"a","system":null}"#,
        r#"{"prompt":"a","system":null}"#,
    );
    text(r#"{"prompt":["a"]}"#, r#"{"prompt":["a"]}"#);
    text(r#"{"prompt":[],"system":"s"}"#, r#"{"prompt":[]}"#);

    fn text(before: &str, after: &str) {
        let body = Bytes::copy_from_slice(before.as_bytes());
        let request = CompletionRequest::read(Family::TEXT, &body).expect("the request is good");
        let edited = BodyEdit::new(&request).system_before_prompt().apply(&body);
        let edited = std::str::from_utf8(&edited).expect("UTF-8");
        assert_eq!(edited, after, "from {before}");
    }
}
