//! Requests: accepted and refused bodies, and the upstream body.

use std::sync::Arc;

use tollgate_filter::{ErrorCode, Filter, Forward, ModelAccess, ProviderModel};
use tollgate_openai::CompletionRequest;

use crate::support::{CHAT, PROVIDER_MODEL, TEXT, exchange, filter, forwarded, json, now, refusal};

const USER: &str = r#"{"role":"user","content":"hi"}"#;

/// Every member of the two requests and of a message, with accepted and refused values.
#[test]
fn every_described_member_has_its_type_and_range() {
    use ErrorCode::{InvalidType as Type, MissingField as Missing, OutOfRange as Range};

    //  member, accepted, refused with code and, where it is not the member, param
    for (member, taken, refused) in [
        (
            "model",
            &[r#""m""#, "null"][..],
            &[("1", Type), ("[]", Type)][..],
        ),
        (
            "temperature",
            &["0", "0.0", "2", "1e3", "null"],
            &[("-0.1", Range), (r#""1""#, Type)],
        ),
        (
            "max_tokens",
            &["1", "1.0", "1e3", "null"],
            &[("0", Range), ("-1", Range), ("1.5", Type), (r#""1""#, Type)],
        ),
        (
            "stream",
            &["true", "false", "null"],
            &[(r#""true""#, Type), ("1", Type)],
        ),
        ("cache", &["true", "false", "null"], &[("0", Type)]),
    ] {
        for (path, required) in [
            (CHAT, format!(r#""messages":[{USER}]"#)),
            (TEXT, r#""prompt":"a""#.into()),
        ] {
            check(path, &required, member, taken, refused);
        }
    }
    let required = format!(r#""messages":[{USER}]"#);
    for (member, taken, refused) in [
        (
            "max_completion_tokens",
            &["1", "2.0", "null"][..],
            &[("0", Range), ("1.5", Type), ("true", Type)][..],
        ),
        (
            "tools",
            &["[]", "[{}]", "null"],
            &[("{}", Type), ("[1]", Type)],
        ),
        (
            "tool_choice",
            &[r#""auto""#, "{}", "null"],
            &[("1", Type), ("[]", Type)],
        ),
        (
            "plugins",
            &["[]", "[{}]", "null"],
            &[(r#""x""#, Type), ("[null]", Type)],
        ),
        (
            "modalities",
            &["[]", r#"["text"]"#, "null"],
            &[(r#""text""#, Type), ("[1]", Type)],
        ),
        (
            "image_config",
            &["{}", "null"],
            &[("[]", Type), ("1", Type)],
        ),
        ("reasoning", &["{}", "null"], &[(r#""high""#, Type)]),
    ] {
        check(CHAT, &required, member, taken, refused);
    }
    check(
        TEXT,
        r#""prompt":"a""#,
        "system",
        &[r#""s""#, "null"],
        &[("1", Type), ("{}", Type)],
    );
    check(
        TEXT,
        r#""n":1"#,
        "prompt",
        &[r#""a""#, r#"["a","b"]"#, r#""""#],
        &[("1", Type), ("[1,2]", Type), ("[[1]]", Type), ("{}", Type)],
    );
    check(
        CHAT,
        r#""n":1"#,
        "messages",
        &["[{\"role\":\"user\",\"content\":null}]"],
        &[
            ("{}", Type),
            (r#""hi""#, Type),
            ("[]", Range),
            ("null", Type),
        ],
    );
    refused(CHAT, "{}", Missing, Some("messages"));
    refused(TEXT, "{}", Missing, Some("prompt"));
}

#[test]
fn every_member_of_a_message_has_its_type_and_range() {
    use ErrorCode::{InvalidType as Type, MissingField as Missing, OutOfRange as Range};

    for taken in [
        r#"{"role":"system","content":"a"}"#,
        r#"{"role":"assistant","content":null,"tool_calls":[{}]}"#,
        r#"{"tool_calls":[{"id":"1"}],"role":"assistant"}"#,
        r#"{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}"#,
        r#"{"role":"tool","content":"a","tool_call_id":"1"}"#,
        r#"{"role":"user","content":[{"type":"text","text":"a"},{}],"name":"n"}"#,
        r#"{"role":"user","content":"a","name":null,"tool_calls":null,"unknown":[1]}"#,
    ] {
        forwarded(CHAT, &format!(r#"{{"messages":[{taken}]}}"#));
    }
    for (message, code, param) in [
        (r#"{"content":"a"}"#, Missing, "messages[1].role"),
        (r#"{"role":"user"}"#, Missing, "messages[1].content"),
        (
            r#"{"role":"narrator","content":"a"}"#,
            Range,
            "messages[1].role",
        ),
        (r#"{"role":1,"content":"a"}"#, Type, "messages[1].role"),
        (
            r#"{"role":"user","content":1}"#,
            Type,
            "messages[1].content",
        ),
        (
            r#"{"role":"user","content":{}}"#,
            Type,
            "messages[1].content",
        ),
        (
            r#"{"role":"user","content":["a"]}"#,
            Type,
            "messages[1].content",
        ),
        (
            r#"{"role":"user","content":"a","name":1}"#,
            Type,
            "messages[1].name",
        ),
        (
            r#"{"role":"user","content":"a","tool_call_id":1}"#,
            Type,
            "messages[1].tool_call_id",
        ),
        (
            r#"{"role":"user","content":"a","tool_calls":{}}"#,
            Type,
            "messages[1].tool_calls",
        ),
        (
            r#"{"role":"user","content":"a","tool_calls":[1]}"#,
            Type,
            "messages[1].tool_calls",
        ),
        (r#""hi""#, Type, "messages[1]"),
    ] {
        let body = format!(r#"{{"messages":[{USER},{message}]}}"#);
        refused(CHAT, &body, code, Some(param));
    }
}

#[test]
fn an_unreadable_or_ambiguous_body_is_refused() {
    for body in [
        "",
        "[]",
        "null",
        r#""text""#,
        r#"{"messages":[}"#,
        "\u{feff}{}",
        r#"{"prompt":"a"} {}"#,
        r#"{"prompt":"a","model":"m","model":"n"}"#,
        r#"{"prompt":"a","model":"m","\u006dodel":"n"}"#,
    ] {
        refused(TEXT, body, ErrorCode::InvalidJson, None);
    }
}

#[test]
fn only_models_on_sale_to_the_credential_are_served() {
    let only_n = || ModelAccess::Only(Arc::from([Arc::from("n")]));
    //  model, access, served
    for (model, access, served) in [
        (Some("m"), ModelAccess::All, Some("m")),
        (None, ModelAccess::All, Some("m")),
        (Some("x"), ModelAccess::All, None),
        (Some(""), ModelAccess::All, None),
        (Some("m"), only_n(), None),
        (Some("n"), only_n(), Some("n")),
        (None, only_n(), None),
    ] {
        let member = model.map_or(String::new(), |model| format!(r#","model":"{model}""#));
        let body = format!(r#"{{"prompt":"a"{member}}}"#);
        let mut exchange = exchange(TEXT, &body, access.clone());
        let refusal = refusal(&mut exchange);
        let forward = exchange.get::<Forward>();
        assert_eq!(
            forward.map(|forward| &*forward.model.id),
            served,
            "{model:?} with {access:?}"
        );
        assert_eq!(exchange.record.model.as_deref(), served);
        if served.is_none() {
            let refusal = refusal.expect("a refusal");
            let (code, status) = match access {
                ModelAccess::All => (ErrorCode::ModelNotSupported, 400),
                // It is available, but not to this key.
                ModelAccess::Only(_) => (ErrorCode::KeyNotPermitted, 403),
            };
            assert_eq!(refusal.code, code);
            assert_eq!(refusal.status().as_u16(), status);
            assert_eq!(refusal.param.as_deref(), Some("model"));
        }
    }
}

#[test]
fn without_a_default_a_request_names_its_model() {
    let catalog = tollgate_filter::Catalog::new(Vec::new(), None).expect("a catalog");
    let filter = tollgate_completions::Completions::new("svc", &catalog, 1 << 20);
    let mut exchange = exchange(TEXT, r#"{"prompt":"a"}"#, ModelAccess::All);
    let outcome = now(filter.on_request(&mut exchange)).expect("a decision");
    let tollgate_filter::Outcome::Refuse(error) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(error.code, ErrorCode::MissingField);
    assert_eq!(error.param.as_deref(), Some("model"));
}

#[test]
fn a_name_that_comes_back_in_a_message_is_short() {
    let body = format!(r#"{{"prompt":"a","model":"{}"}}"#, "x".repeat(10_000));
    let mut exchange = exchange(TEXT, &body, ModelAccess::All);
    let message = refusal(&mut exchange).expect("a refusal").message;
    assert!(message.len() < 200, "{message}");
}

#[test]
fn unknown_members_go_upstream_as_they_came() {
    let body = format!(
        r#" {{ "messages" : [ {USER} ], "top_p": 0.9000, "seed":1e2,"metadata":{{"a":"\u00e9\/"}},"x":"\ud83d", "model":"{PROVIDER_MODEL}x" }} "#
    );
    let mut other = exchange(CHAT, &body, ModelAccess::All);
    assert_eq!(
        refusal(&mut other).expect("no such model").code,
        ErrorCode::ModelNotSupported
    );
    let body = body.replace(&format!("{PROVIDER_MODEL}x"), "m");
    assert_eq!(
        forwarded(CHAT, &body),
        body.replace(r#""model":"m""#, &format!(r#""model":"{PROVIDER_MODEL}""#))
    );
}

#[test]
fn a_body_in_which_nothing_changes_is_not_copied() {
    let body = format!(r#"{{"messages":[{USER}],"model":"m"}}"#);
    let mut exchange = exchange(CHAT, &body, ModelAccess::All);
    assert!(refusal(&mut exchange).is_none());
    let forward = exchange.get::<Forward>().expect("something to send");
    let sent = forward
        .body
        .render(&exchange, &ProviderModel::new("stand-in", "m"));
    assert_eq!(sent.as_ptr(), exchange.request.body.as_ptr());
}

#[test]
fn the_upstream_body_is_of_its_operation_and_requests_usage() {
    //  path, body, upstream path, stream, body upstream
    for (path, body, to, stream, sent) in [
        (
            CHAT,
            r#""stream":false"#,
            "/chat/completions",
            false,
            r#""stream":false"#,
        ),
        (
            CHAT,
            r#""stream":true,"cache":true"#,
            "/chat/completions",
            true,
            r#""stream":true,"stream_options":{"include_usage":true}"#,
        ),
        (
            TEXT,
            r#""stream":true"#,
            "/completions",
            true,
            r#""stream":true,"stream_options":{"include_usage":true}"#,
        ),
    ] {
        let required = match path {
            CHAT => format!(r#""model":"m","messages":[{USER}]"#),
            _ => r#""model":"m","prompt":"a""#.to_owned(),
        };
        let body = format!("{{{required},{body}}}");
        let mut exchange = exchange(path, &body, ModelAccess::All);
        assert!(refusal(&mut exchange).is_none(), "{body}");
        let forward = exchange.get::<Forward>().expect("something to send");
        assert_eq!((forward.api.path(), forward.stream), (to, stream), "{body}");
        assert_eq!(exchange.record.stream, stream);
        let expected = format!("{{{required},{sent}}}");
        let rendered = forward
            .body
            .render(&exchange, &ProviderModel::new("stand-in", "m"));
        assert_eq!(rendered, expected.as_bytes(), "{body}");
        let headers = exchange.take_reply_headers();
        assert_eq!(headers["cache-control"], "no-store");
    }
}

#[test]
fn a_cap_from_elsewhere_is_written_into_the_body() {
    let body = format!(r#"{{"messages":[{USER}]}}"#);
    let mut exchange = exchange(CHAT, &body, ModelAccess::All);
    assert!(refusal(&mut exchange).is_none());
    let forward = exchange.get_mut::<Forward>().expect("something to send");
    forward.body.cap_output(tollgate_filter::OutputCap {
        tokens: 33,
        member: tollgate_filter::CapMember::MaxTokens,
    });
    let forward = exchange.get::<Forward>().expect("something to send");
    let sent = forward
        .body
        .render(&exchange, &ProviderModel::new("stand-in", "m"));
    let sent = json(std::str::from_utf8(&sent).expect("UTF-8"));
    assert_eq!(sent["max_tokens"], 33);
}

#[test]
fn the_values_for_the_meter_are_on_the_exchange() {
    let body = format!(r#"{{"messages":[{USER},{USER}],"max_tokens":7}}"#);
    let mut exchange = exchange(CHAT, &body, ModelAccess::All);
    assert!(refusal(&mut exchange).is_none());
    let request = exchange.get::<CompletionRequest>().expect("the request");
    assert_eq!((request.messages, request.text_bytes), (2, 4));
    assert_eq!(request.output_max(), Some(7));
}

#[test]
fn a_route_without_completions_is_a_filter_error() {
    let mut exchange = exchange("/v1/models", "{}", ModelAccess::All);
    let error = now(filter().on_request(&mut exchange)).expect_err("no decision");
    assert_eq!(error.answer.code, ErrorCode::InternalError);
}

fn check(path: &str, required: &str, member: &str, taken: &[&str], refusals: &[(&str, ErrorCode)]) {
    for value in taken {
        forwarded(path, &format!(r#"{{{required},"{member}":{value}}}"#));
    }
    for (value, code) in refusals {
        let body = format!(r#"{{{required},"{member}":{value}}}"#);
        refused(path, &body, *code, Some(member));
    }
}

fn refused(path: &str, body: &str, code: ErrorCode, param: Option<&str>) {
    let mut exchange = exchange(path, body, ModelAccess::All);
    let error = refusal(&mut exchange).unwrap_or_else(|| panic!("{body} is taken"));
    assert_eq!(error.code, code, "{body}: {error}");
    assert_eq!(error.param.as_deref(), param, "{body}: {error}");
    assert!(exchange.get::<Forward>().is_none(), "{body} goes upstream");
}
