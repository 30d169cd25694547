//! Rules of the list, and a family that stands in tests only.

use crate::edit::BodyEdit;
use crate::request::{CompletionRequest, RequestErrorCode};

use super::form::{Family, RequestForm, Role, roles};
use super::{chat, text};

#[test]
fn families_stand_at_their_index_and_differ_in_every_name_and_number() {
    for (at, family) in Family::ALL.into_iter().enumerate() {
        assert_eq!(family.place(), at);
        assert_eq!(
            Family::at(&format!("/gate/v1{}", family.path)),
            Some(family)
        );
        assert_eq!(Family::stored_as(family.stored), Some(family));
        assert_eq!(Family::cached_as(family.cache_code), Some(family));
        assert_eq!(Family::STORED[at], family.stored);
        for other in Family::ALL.into_iter().filter(|other| *other != family) {
            assert_ne!(family.name, other.name);
            assert_ne!(family.title, other.title);
            assert_ne!(family.usage_label, other.usage_label);
            assert_ne!(family.operation, other.operation);
            assert_ne!(family.request.schema, other.request.schema);
        }
    }
    assert_eq!(Family::at("/v1/models"), None);
    assert_eq!(Family::stored_as(3), None);
}

/// Rows of earlier releases, cache keys and stored entries contain these.
#[test]
fn permanent_numbers_of_families_are_unchanged() {
    let numbers = Family::ALL.map(|family| (family.name, family.stored, family.cache_code));
    assert_eq!(numbers, [("chat", 1, 0), ("text", 2, 1)]);
}

#[test]
fn every_name_with_a_role_is_compared_without_case() {
    for family in Family::ALL {
        let form = &family.request;
        let documented = form.contract.iter().map(|rule| rule.name);
        let others = form.others.iter().map(|(name, _)| *name);
        for name in documented.chain(others).chain([form.input, form.cap]) {
            assert!(form.names.contains(&name), "{} {name}", family.name);
        }
        let is_lower = |name: &&str| !name.bytes().any(|byte| byte.is_ascii_uppercase());
        assert!(form.names.iter().all(is_lower));
    }
}

/// A value that differs from both families wherever a value may.
static TRIAL: Family = Family {
    index: 2,
    name: "trial",
    path: "/rerank",
    request: RequestForm {
        input: "prompt",
        cap: "max_output_tokens",
        newer_cap: None,
        usage_option: None,
        clamp_cap: true,
        roles: roles(&[&[
            ("model", Role::Model),
            ("prompt", Role::Prompt),
            ("stream", Role::Stream),
            ("store", Role::Refused),
        ]]),
        others: &[
            ("max_output_tokens", Role::Cap),
            ("conversation", Role::Refused),
        ],
        ..text::TEXT.request
    },
    ..chat::CHAT
};

#[test]
fn a_request_is_read_and_edited_by_the_value_of_its_family() {
    let body = br#"{"model":"m","prompt":["a","b"],"stream":true,"max_output_tokens":9,"conversation":null}"#;
    let request = CompletionRequest::read(&TRIAL, body).expect("a request");
    assert_eq!((request.prompts, request.output_max()), (2, Some(9)));
    let edit = |request: &CompletionRequest, body: &'static [u8]| {
        let edit = BodyEdit::new(request).with_usage().cap_output(5);
        edit.cap_completion_tokens().apply(&body.into())
    };
    assert_eq!(
        edit(&request, body),
        &br#"{"model":"m","prompt":["a","b"],"stream":true,"max_output_tokens":5,"conversation":null}"#[..]
    );
    let body = br#"{"prompt":"a","stream":true}"#;
    let request = CompletionRequest::read(&TRIAL, body).expect("a request");
    assert_eq!(
        edit(&request, body),
        &br#"{"prompt":"a","stream":true,"max_output_tokens":5}"#[..]
    );
}

#[test]
fn a_refused_member_is_named() {
    for (body, member) in [
        (r#"{"prompt":"a","conversation":"c"}"#, "conversation"),
        (r#"{"store":true,"prompt":"a"}"#, "store"),
    ] {
        let error = CompletionRequest::read(&TRIAL, body.as_bytes()).expect_err(member);
        assert_eq!(error.code, RequestErrorCode::UnknownField);
        assert_eq!(error.param.as_deref(), Some(member), "{error}");
    }
    let error = CompletionRequest::read(&TRIAL, b"{}").expect_err("no input");
    assert_eq!(error.code, RequestErrorCode::MissingField);
    assert_eq!(error.param.as_deref(), Some("prompt"));
}
