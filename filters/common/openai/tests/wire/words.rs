//! Small texts: usage, metadata, envelopes, a provider's complaints, counts.

use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_openai::count::{self, Estimate, VocabularyFactor};
use tollgate_openai::{ErrorEnvelope, Metadata, ProviderError, Usage};

#[test]
fn a_usage_is_read_with_patience_and_never_absurd() {
    let read = |text: &str| {
        let usage = Usage::read(text.as_bytes())?;
        Some((
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.total_tokens(),
        ))
    };
    for (text, expected) in [
        (
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}"#,
            Some((5, 4, 9)),
        ),
        (
            r#"{"prompt_tokens":5.0,"completion_tokens":4e0}"#,
            Some((5, 4, 9)),
        ),
        (
            r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#,
            None,
        ),
        (r#"{"prompt_tokens":0,"completion_tokens":0}"#, None),
        (
            r#"{"prompt_tokens":0,"completion_tokens":4,"total_tokens":4}"#,
            Some((0, 4, 4)),
        ),
        (
            r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":12}"#,
            Some((0, 12, 12)),
        ),
        (
            r#"{"completion_tokens":4,"total_tokens":9,"prompt_tokens_details":{"prompt_tokens":7}}"#,
            Some((5, 4, 9)),
        ),
        (
            r#"{"prompt_tokens":5,"total_tokens":9,"completion_tokens":null}"#,
            Some((5, 4, 9)),
        ),
        // What stands in the total alone was made by the model: reasoning, at several providers.
        (
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":12}"#,
            Some((5, 7, 12)),
        ),
        (
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9,"completion_tokens_details":{"reasoning_tokens":90}}"#,
            Some((5, 4, 9)),
        ),
        (
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":1e300}"#,
            Some((5, 4, 9)),
        ),
        (
            r#"{"prompt_tokens":5,"completion\u005ftokens":4,"total_tokens":null}"#,
            Some((5, 4, 9)),
        ),
        (
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":1}"#,
            Some((5, 4, 9)),
        ),
        (
            r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":-1}"#,
            Some((5, 4, 9)),
        ),
        ("{}", None),
        ("null", None),
        ("[]", None),
        ("5", None),
        (r#"{"prompt_tokens":5}"#, None),
        (r#"{"total_tokens":9}"#, None),
        // A count that is missing is not known to be zero.
        (
            r#"{"prompt_tokens":5,"completion_tokens":null,"total_tokens":5}"#,
            None,
        ),
        (r#"{"completion_tokens":5,"total_tokens":5}"#, None),
        (r#"{"prompt_tokens":5,"completion_tokens":null}"#, None),
        (
            r#"{"prompt_tokens":5,"completion_tokens":"4","total_tokens":"9"}"#,
            None,
        ),
        (
            r#"{"prompt_tokens":null,"completion_tokens":null,"total_tokens":null}"#,
            None,
        ),
        (r#"{"prompt_tokens":9,"total_tokens":5}"#, None),
        (r#"{"prompt_tokens":-5,"completion_tokens":4}"#, None),
        (r#"{"prompt_tokens":5.5,"completion_tokens":4}"#, None),
        (r#"{"prompt_tokens":"5","completion_tokens":4}"#, None),
        (r#"{"prompt_tokens":1e300,"completion_tokens":4}"#, None),
        (
            r#"{"prompt_tokens":18446744073709551616,"completion_tokens":4}"#,
            None,
        ),
        (r#"{"prompt_tokens":5,"completion_tokens":4"#, None),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn metadata_states_all_it_knows_with_exact_decimals() {
    let write = |metadata: Metadata<'_>| {
        let mut out = BytesMut::new();
        metadata.write(&mut out);
        String::from_utf8(out.to_vec()).expect("UTF-8")
    };
    let metadata = Metadata {
        cache_hit: false,
        cache_entry_id: None,
        cache_store_status: Some(b"stored"),
        credits_used: b"0.002",
        credits_remaining: b"-41.498",
        owner: b"acct_42",
        resolved_owner: None,
        usage_estimated: false,
    };
    assert_eq!(
        write(metadata),
        r#"{"cache_hit":false,"cache_entry_id":null,"cache_store_status":"stored","credits_used":0.002,"credits_remaining":-41.498,"owner":"acct_42","resolved_owner":null,"usage_estimated":false}"#
    );
    let other = Metadata {
        cache_hit: true,
        cache_entry_id: Some(b"ce_1"),
        cache_store_status: None,
        owner: b"a-1",
        resolved_owner: Some(b"b"),
        usage_estimated: true,
        credits_used: b"0",
        ..metadata
    };
    assert_eq!(
        write(other),
        r#"{"cache_hit":true,"cache_entry_id":"ce_1","cache_store_status":null,"credits_used":0,"credits_remaining":-41.498,"owner":"a-1","resolved_owner":"b","usage_estimated":true}"#
    );
}

#[test]
fn an_envelope_has_all_four_members_as_a_body_and_as_an_event() {
    let envelope = ErrorEnvelope {
        message: "messages needs at least one item.",
        kind: "invalid_request_error",
        param: Some("messages"),
        code: Some("out_of_range"),
    };
    let body = r#"{"error":{"message":"messages needs at least one item.","type":"invalid_request_error","param":"messages","code":"out_of_range"}}"#;
    assert_eq!(&envelope.body()[..], body.as_bytes());
    assert_eq!(
        &envelope.event()[..],
        format!("data: {body}\n\n").as_bytes()
    );
    let bare = ErrorEnvelope {
        message: "a \"b\"\n\u{1}",
        kind: "server_error",
        param: None,
        code: None,
    };
    let read: Value = serde_json::from_slice(&bare.body()).expect("JSON");
    assert_eq!(
        read,
        json!({"error": {"message": "a \"b\"\n\u{1}", "type": "server_error", "param": null, "code": null}})
    );
    assert_eq!(
        bare.event().iter().filter(|&&byte| byte == b'\n').count(),
        2,
        "an event is one line"
    );
}

#[test]
fn a_complaint_of_a_provider_is_found_in_every_shape() {
    let message = |body: &str| ProviderError::read(body.as_bytes()).message;
    for (body, expected) in [
        (r#"{"error":{"message":"too long","type":"x"}}"#, "too long"),
        (r#"{"error":"too long"}"#, "too long"),
        (r#"{"message":"too long"}"#, "too long"),
        (
            r#"{"object":"error","message":"too long","code":400}"#,
            "too long",
        ),
        (r#"{"detail":"too long"}"#, "too long"),
        (
            r#"{"detail":[{"loc":["body"],"msg":"too long"},{"msg":"second"}]}"#,
            "too long",
        ),
        (r#"[{"error":{"message":"too long"}}]"#, "too long"),
        (
            r#"{"error":{"code":500,"message":null,"error":{"message":"too long"}}}"#,
            "too long",
        ),
        (r#""too long""#, "too long"),
        ("too long", "too long"),
        ("\u{feff} too\r\n\tlong \0\u{1b}[0m", "too long [0m"),
        ("a\u{202e}b", "a b"),
        (
            "<html><head><TITLE>502 Bad\n Gateway</title></head><body>x</body></html>",
            "502 Bad Gateway",
        ),
    ] {
        assert_eq!(message(body).as_deref(), Some(expected), "{body}");
    }
    for body in [
        "",
        " \n",
        "{}",
        "[]",
        "null",
        "{\"a\":",
        "<html><body>no title</body></html>",
        "<title>",
        "{\"message\":\"\"}",
        "\0",
        r#"{"error":{"message":"cut"#,
    ] {
        assert_eq!(message(body), None, "{body}");
    }
}

#[test]
fn the_rest_of_a_complaint_is_kept_as_text() {
    let error = ProviderError::read(br#"{"error":{"message":"m","type":"invalid_request_error","param":"messages[0]","code":40001}}"#);
    assert_eq!(error.kind.as_deref(), Some("invalid_request_error"));
    assert_eq!(error.param.as_deref(), Some("messages[0]"));
    assert_eq!(error.code.as_deref(), Some("40001"));
}

proptest! {
    #[test]
    fn a_complaint_is_one_short_printable_line(body in prop_oneof![any::<Vec<u8>>(), "\\PC{0,600}".prop_map(String::into_bytes), "[\\s\\x00a<{\"]{0,900}".prop_map(String::into_bytes)]) {
        if let Some(message) = ProviderError::read(&body).message {
            prop_assert!(message.chars().count() <= 400);
            prop_assert!(!message.is_empty() && !message.chars().any(char::is_control), "{:?}", message);
        }
    }
}

#[test]
fn tokens_are_counted_and_scaled_up_not_down() {
    let count = |text: &str, ppm| count::tokens(text, VocabularyFactor { ppm });
    let text = "The toll is paid. Das Tor ist offen.";
    let plain = count(text, 1_000_000);
    assert!(
        (7..=14).contains(&plain.0),
        "{plain:?} is no likely count of {text:?}"
    );
    assert_eq!(count("", 1_000_000), Estimate(0));
    assert_eq!(count("the", 1_000_000).0, 1);
    assert_eq!(count("the", 1_000_001).0, 2);
    assert_eq!(count("the", 0).0, 0);
    assert_eq!(count(text, 2_000_000).0, plain.0 * 2);
    assert_eq!(count::tokens(text, VocabularyFactor::default()), plain);
}
