//! The request parser implements the table of and the table is complete.

use serde_json::{Map, Value, json};
use tollgate_openai::contract::{MESSAGE, MemberRule, Shape};
use tollgate_openai::{CompletionRequest, Family, RequestErrorCode};

/// Values that match a shape.
fn good(shape: Shape) -> Vec<Value> {
    match shape {
        Shape::Text => vec![json!(""), json!("a")],
        Shape::Word(words) => words.iter().map(|word| json!(word)).collect(),
        Shape::Number => vec![json!(0), json!(0.7), json!(3)],
        Shape::Count => vec![json!(1), json!(4096)],
        Shape::Flag(_) => vec![json!(true), json!(false)],
        Shape::Object => vec![json!({}), json!({"a": [1]})],
        Shape::Texts => vec![json!([]), json!(["a"])],
        Shape::Objects => vec![json!([]), json!([{"a": 1}])],
        Shape::TextOrObject => vec![json!("auto"), json!({"type": "function"})],
        Shape::TextOrTexts => vec![json!("a"), json!(["a", "b"])],
        Shape::Content => vec![
            json!("a"),
            json!([{"type": "text", "text": "a"}]),
            Value::Null,
        ],
        Shape::Messages => vec![json!([{"role": "user", "content": "a"}])],
    }
}

/// Values of another type, and values of the type that are out of range.
fn bad(shape: Shape) -> (Vec<Value>, Vec<Value>) {
    let (text, number, flag, list, object) =
        (json!("a"), json!(1), json!(true), json!([]), json!({}));
    match shape {
        Shape::Text => (vec![number, flag, list, object], vec![]),
        Shape::Word(_) => (vec![number, flag, list, object], vec![json!("narrator")]),
        Shape::Number => (vec![text, flag, list, object], vec![json!(-0.1), json!(-1)]),
        Shape::Count => (
            vec![text, flag, list, object, json!(1.5)],
            vec![json!(0), json!(-3)],
        ),
        Shape::Flag(_) => (vec![text, number, list, object], vec![]),
        Shape::Object => (vec![text, number, flag, list], vec![]),
        Shape::Texts => (vec![text, number, flag, object, json!([1])], vec![]),
        Shape::Objects => (vec![text, number, flag, object, json!(["a"])], vec![]),
        Shape::TextOrObject => (vec![number, flag, list], vec![]),
        Shape::TextOrTexts => (vec![number, flag, object, json!([1])], vec![]),
        Shape::Content => (vec![number, flag, object, json!(["a"])], vec![]),
        Shape::Messages => (vec![text, number, flag, object, json!(["a"])], vec![list]),
    }
}

/// An object with a valid value for each required member.
fn least(rules: &[MemberRule]) -> Map<String, Value> {
    let needed = rules.iter().filter(|rule| rule.required);
    needed
        .map(|rule| (rule.name.to_owned(), good(rule.shape)[0].clone()))
        .collect()
}

fn read(
    family: &'static Family,
    body: &Map<String, Value>,
) -> Result<Box<CompletionRequest>, (RequestErrorCode, Option<String>)> {
    let body = serde_json::to_vec(body).expect("JSON");
    CompletionRequest::read(family, &body).map_err(|error| (error.code, error.param))
}

/// Replaces the value of every member in turn, `wrap` making a body of the object and `path` the path of a member.
fn check(
    family: &'static Family,
    rules: &[MemberRule],
    wrap: impl Fn(Map<String, Value>) -> Map<String, Value>,
    path: impl Fn(&str) -> String,
) {
    for rule in rules {
        let with = |value: Value| {
            let mut object = least(rules);
            object.insert(rule.name.to_owned(), value);
            read(family, &wrap(object))
        };
        for value in good(rule.shape) {
            let found = with(value.clone());
            assert!(found.is_ok(), "{} {value}: {found:?}", rule.name);
        }
        let (other_types, out_of_range) = bad(rule.shape);
        for (values, code) in [
            (other_types, RequestErrorCode::InvalidType),
            (out_of_range, RequestErrorCode::OutOfRange),
        ] {
            for value in values {
                let refused = with(value.clone()).expect_err(rule.name);
                assert_eq!(refused.0, code, "{} {value}", rule.name);
                let param = refused.1.expect("the member is named");
                assert!(
                    param.starts_with(&path(rule.name)),
                    "{param} for {}",
                    rule.name
                );
            }
        }
        let mut without = least(rules);
        without.remove(rule.name);
        let absent = read(family, &wrap(without));
        match rule.required {
            true => assert_eq!(
                absent.expect_err(rule.name),
                (RequestErrorCode::MissingField, Some(path(rule.name)))
            ),
            false => {
                assert!(absent.is_ok(), "{}", rule.name);
                assert!(with(Value::Null).is_ok(), "null for {}", rule.name);
            }
        }
    }
}

#[test]
fn every_member_of_a_request_is_parsed_as_in_the_contract_table() {
    for family in [Family::CHAT, Family::TEXT] {
        check(
            family,
            family.request.contract,
            |object| object,
            str::to_owned,
        );
    }
}

#[test]
fn every_member_of_a_message_is_parsed_as_in_the_contract_table() {
    let wrap = |message| {
        let mut body = least(Family::CHAT.request.contract);
        body.insert("messages".to_owned(), json!([message]));
        body
    };
    check(Family::CHAT, MESSAGE, wrap, |name| {
        format!("messages[0].{name}")
    });
}

#[test]
fn unlisted_members_may_have_any_value() {
    for family in [Family::CHAT, Family::TEXT] {
        for value in [json!(1), json!("a"), json!([{}]), Value::Null] {
            let mut body = least(family.request.contract);
            body.insert("not_in_the_table".to_owned(), value);
            assert!(read(family, &body).is_ok());
        }
    }
}

#[test]
fn absent_flags_have_the_defaults_of_the_contract_table() {
    for family in [Family::CHAT, Family::TEXT] {
        let request = read(family, &least(family.request.contract)).expect("a request");
        for rule in family.request.contract {
            let absent = match rule.name {
                "stream" => request.stream,
                "cache" => request.cache,
                _ => continue,
            };
            assert_eq!(rule.shape, Shape::Flag(absent), "{}", rule.name);
        }
    }
}
