//! Canonical forms, converted to RFC 8785 and compared with another implementation.
//!
//! A form decodes to exactly one value: two values have two forms.

mod decode;

use proptest::prelude::*;
use serde_json::{Map, Number, Value};

use super::*;
use crate::family::Family;

/// The RFC 8785 form of a body.
fn canonical(body: &str) -> Result<String, CanonicalError> {
    make(body.as_bytes()).map(|form| decode::rfc8785(&form))
}

#[test]
fn spellings_of_one_value_have_one_form() {
    for (form, spellings) in [
        (
            r#"{"a":1,"b":[2,3]}"#,
            &[
                r#" { "b" : [2 , 3] , "a" : 1 } "#,
                r#"{"b":[2.0,30e-1],"a":1e0}"#,
            ][..],
        ),
        (
            r#"{"a":"é/\n\u0001"}"#,
            &[
                r#"{"a":"\u00e9\/\n\u0001"}"#,
                r#"{"\u0061":"\u00E9/\u000a\u0001"}"#,
            ],
        ),
        (r#"{"a":"😀"}"#, &[r#"{"a":"\ud83d\ude00"}"#]),
        (
            r#"{"a":0}"#,
            &[r#"{"a":-0}"#, r#"{"a":0.000}"#, r#"{"a":-0e99}"#],
        ),
        (
            r#"{"a":0.7}"#,
            &[r#"{"a":0.70}"#, r#"{"a":7e-1}"#, r#"{"a":70E-2}"#],
        ),
        (
            r#"{"a":{},"b":[],"c":[{}]}"#,
            &[r#"{"c":[{ }],"b":[ ],"a":{}}"#],
        ),
        ("{}", &[r#"{"model":"m","stream":true}"#, "{ }"]),
    ] {
        assert_eq!(canonical(form).as_deref(), Ok(form), "it is its own form");
        for spelling in spellings {
            assert_eq!(canonical(spelling).as_deref(), Ok(form), "{spelling}");
            assert_eq!(make(spelling.as_bytes()), make(form.as_bytes()));
        }
    }
}

#[test]
fn requests_that_a_provider_may_distinguish_have_different_forms() {
    for (one, other) in [
        (r#"{"a":null}"#, "{}"),
        (
            r#"{"seed":9007199254740993}"#,
            r#"{"seed":9007199254740992}"#,
        ),
        (
            r#"{"seed":9007199254740993.0}"#,
            r#"{"seed":9007199254740992}"#,
        ),
        (r#"{"a":0.1}"#, r#"{"a":0.1000000000000000055}"#),
        (r#"{"a":1}"#, r#"{"a":"1"}"#),
        (r#"{"a":true}"#, r#"{"a":"true"}"#),
        (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
        (r#"{"max_tokens":5}"#, r#"{"max_completion_tokens":5}"#),
        ("{\"a\":\"\u{e9}\"}", "{\"a\":\"e\u{301}\"}"),
        (r#"{"x":{"user":"a"}}"#, r#"{"x":{"user":"b"}}"#),
    ] {
        let (one, other) = (canonical(one), canonical(other));
        assert!(one.is_ok() && other.is_ok());
        assert_ne!(one, other);
    }
}

#[test]
fn only_what_cannot_change_the_answer_is_left_out_and_only_at_the_top() {
    let body = r#"{"user":"u","messages":[{"user":"in here it counts"}],"cache":true,"metadata":{"a":[1]},
        "store":false,"service_tier":"flex","stream_options":null,"top_p":1,"stream":false,"model":"m"}"#;
    let form = r#"{"messages":[{"user":"in here it counts"}],"top_p":1}"#;
    assert_eq!(canonical(body).as_deref(), Ok(form));
}

#[test]
fn a_missing_canonical_form_has_its_reason() {
    use CanonicalError::{DuplicateNames, HalfPair, Number};
    for (body, error) in [
        (r#"{"a":{"b":1,"b":1}}"#, DuplicateNames),
        (r#"{"a":[{"b":1,"c":2,"\u0062":1}]}"#, DuplicateNames),
        (r#"{"a":"\ud83d"}"#, HalfPair),
        (r#"{"a":"\ud83d\u0041"}"#, HalfPair),
        (r#"{"a":{"\ude00":1}}"#, HalfPair),
        (r#"{"a":1e99999999999}"#, Number),
    ] {
        assert_eq!(canonical(body), Err(error), "{body}");
    }
}

#[test]
fn canonicalization_of_a_body_made_to_cost_time_is_aborted() {
    let mut body = String::from("1");
    for _ in 0..60 {
        body = format!(r#"{{"b":{body},"a":1}}"#);
    }
    assert_eq!(canonical(&body), Err(CanonicalError::TooCostly));
}

/// A request with one more member.
fn request(member: &str) -> String {
    format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"cache":true,{member}}}"#
    )
}

fn read(body: &str) -> Box<CompletionRequest> {
    CompletionRequest::read(Family::CHAT, body.as_bytes()).expect("a request")
}

/// The bytes that are appended for a request, after the existing ones.
fn written(request: &CompletionRequest, body: &str) -> Result<Vec<u8>, CanonicalError> {
    let mut out = b"prefix".to_vec();
    let written = write(request, body.as_bytes(), &mut out);
    let form = out.split_off(6);
    assert!(out == b"prefix" && (written.is_ok() || form.is_empty()));
    written.map(|()| form)
}

#[test]
fn a_form_has_the_bytes_that_are_described() {
    let long = "x".repeat(63);
    let digits = "9".repeat(30);
    let nines = format!("0.{digits}");
    for (body, form) in [
        ("{}".to_owned(), b"\xc0".to_vec()),
        (
            r#"{"a":[null,false,true,"","b",-1.5],"role":"user"}"#.to_owned(),
            [
                b"\xc2",
                &[WORD + Word::Role as u8, WORD + Word::User as u8][..],
                b"\x41a\xa6\x01\x02\x03\x40\x41b\x84-1.5",
            ]
            .concat(),
        ),
        (
            format!(r#"["{long}"]"#),
            [b"\xa1\x7f\x3f\0\0\0\0\0\0\0", long.as_bytes()].concat(),
        ),
        (
            format!("[{nines}]"),
            [b"\xa1\x9f\x20\0\0\0\0\0\0\0", nines.as_bytes()].concat(),
        ),
        (
            format!("[{}]", ["1"; 30].join(",")),
            [b"\xbe".to_vec(), b"\x811".repeat(30)].concat(),
        ),
        (
            format!("[{}]", ["1"; 31].join(",")),
            [b"\xbf".to_vec(), b"\x811".repeat(31), b"\0".to_vec()].concat(),
        ),
    ] {
        assert_eq!(make(body.as_bytes()), Ok(form), "{body}");
    }
}

#[test]
fn a_form_that_is_too_long_to_be_kept_is_made_again() {
    for (length, kept) in [(1, true), (KEPT_BYTES_MAX, false), (1 << 20, false)] {
        for value in [
            format!(r#""{}""#, "x".repeat(length)),
            format!("[{}0]", "0,".repeat(length / 2)),
            format!("[{}true]", "true,".repeat(length)),
            format!("[{}[]]", "[],".repeat(length)),
            format!(r#"[{}""]"#, r#""user","#.repeat(length)),
            format!(r#""{}""#, r"\n".repeat(length)),
        ] {
            let body = request(&format!(r#""x":{value}"#));
            let request = read(&body);
            assert_eq!(matches!(request.canonical, Form::Kept(_)), kept, "{length}");
            if let Form::Kept(form) = &request.canonical {
                assert!(form.capacity() <= KEPT_BYTES_MAX);
            }
            assert_eq!(written(&request, &body), make(body.as_bytes()));
        }
    }
    // Dropped members take no space.
    let body = request(&format!(r#""user":"{}""#, "x".repeat(1 << 20)));
    assert!(matches!(read(&body).canonical, Form::Kept(_)));
}

#[test]
fn a_body_without_a_canonical_form_is_still_parsed() {
    for member in [
        r#""x":{"b":1,"b":1}"#,
        r#""x":["\ud83d"]"#,
        r#""x":1e99999999999"#,
    ] {
        let body = request(&format!(r#"{member},"y":[1,{{"z":2}}]"#));
        let error = make(body.as_bytes()).expect_err("it has none");
        assert_eq!(written(&read(&body), &body), Err(error));
    }
}

/// Any JSON value whose numbers a double holds exactly.
fn value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<i32>().prop_map(Number::from),
        (-(1i64 << 53)..(1i64 << 53)).prop_map(Number::from),
        any::<f64>().prop_filter_map("a number", Number::from_f64),
        (-1000i32..1000, -30i32..30).prop_filter_map("a number", |(mantissa, exponent)| {
            Number::from_f64(format!("{mantissa}e{exponent}").parse().expect("a float"))
        }),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number.prop_map(Value::Number),
        any::<String>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec(any::<bool>(), 28..34).prop_map(Value::from),
            prop::collection::btree_map(text(), inner, 0..6)
                .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Any text, many that are words or nearly, and some near the length from which it is encoded separately.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "(role|content|user|system|type|index|n|model)[a-z\u{0}]{0,1}",
        "[a-z]{61,65}",
    ]
}

fn body() -> impl Strategy<Value = Value> {
    // A prefix prevents names of dropped members.
    prop::collection::btree_map("x[a-z\u{e000}\u{10000}é\"\\\\]{0,3}", value(), 0..6)
        .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>()))
}

fn draw(seed: &mut u64, below: usize) -> usize {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below
}

/// The same value, spelled by a seed: members in any order, white space anywhere, redundant escapes.
fn spell(value: &Value, seed: &mut u64, out: &mut String) {
    let space = [" ", "", "\n", "\t", "", ""];
    out.push_str(space[draw(seed, 6)]);
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().collect();
            for at in (1..members.len()).rev() {
                members.swap(at, draw(seed, at + 1));
            }
            out.push('{');
            for (at, (name, member)) in members.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                spell(&Value::from(name.as_str()), seed, out);
                out.push(':');
                spell(member, seed, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                spell(item, seed, out);
            }
            out.push(']');
        }
        Value::String(text) => {
            out.push('"');
            for character in text.chars() {
                match (character, draw(seed, 3)) {
                    (_, 0) | ('"' | '\\' | '\0'..='\u{1f}', _) => {
                        for unit in character.encode_utf16(&mut [0; 2]) {
                            out.push_str(&format!("\\u{unit:04x}"));
                        }
                    }
                    ('/', 1) => out.push_str("\\/"),
                    _ => out.push(character),
                }
            }
            out.push('"');
        }
        Value::Number(number) => {
            let text = number.to_string();
            match (draw(seed, 3), text.contains(['.', 'e'])) {
                (0, false) => out.push_str(&format!("{text}.00")),
                (1, false) => out.push_str(&format!("{text}0e-1")),
                _ => out.push_str(&text),
            }
        }
        other => out.push_str(&other.to_string()),
    }
    out.push_str(space[draw(seed, 6)]);
}

proptest! {
    #[test]
    fn it_is_the_form_of_rfc_8785(body in body()) {
        let expected = serde_json_canonicalizer::to_string(&body).expect("it has a form");
        prop_assert_eq!(canonical(&body.to_string()), Ok(expected));
    }

    #[test]
    fn order_white_space_escapes_and_spelling_of_numbers_change_nothing(body in body(), seed: u64) {
        let mut spelled = String::new();
        spell(&body, &mut seed.clone(), &mut spelled);
        let form = make(body.to_string().as_bytes());
        prop_assert!(form.is_ok());
        prop_assert_eq!(make(spelled.as_bytes()), form);
    }

    #[test]
    fn the_canonical_form_made_while_parsing_equals_that_of_the_body(value in value(), content: String, seed: u64) {
        let mut spelled = String::new();
        let request = serde_json::json!({
            "model": "m", "stream": true, "temperature": 0.25, "user": [value.clone()],
            "messages": [
                {"role": "system", "content": content.clone(), "name": null},
                {"role": "assistant", "content": null, "tool_calls": [{"x": value.clone()}], "thought": value.clone()},
                {"role": "user", "content": [{"type": "text", "text": content}, {"image_url": value.clone(), "type": "image_url"}]},
            ],
            "tools": [{"type": "function", "function": value.clone()}], "stream_options": {"include_usage": true, "x": value.clone()},
            "max_tokens": 5, "tool_choice": "auto", "response_format": value,
        });
        spell(&request, &mut seed.clone(), &mut spelled);
        prop_assert_eq!(written(&read(&spelled), &spelled), make(spelled.as_bytes()));
    }

    #[test]
    fn any_change_of_any_member_changes_it(body in body(), name in "x[a-z]{0,6}", one in value(), other in value()) {
        let with = |value: &Value| {
            let mut body = body.clone();
            body[&name] = value.clone();
            make(body.to_string().as_bytes())
        };
        let without = make(body.to_string().as_bytes());
        let as_before = body.get(&name);
        prop_assert_eq!(with(&one) == with(&other), one == other, "{} and {}", one, other);
        prop_assert_eq!(with(&one) == without, as_before == Some(&one));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        let _ = make(&bytes);
    }
}
