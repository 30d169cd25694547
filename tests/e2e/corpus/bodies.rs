//! Samples of bodies: invalid JSON, JSON with difficult syntax, and invalid values for every described member.

use serde_json::{Value, json};

use super::Operation;

/// Every body for an operation, with a description.
pub(super) fn for_operation(operation: &Operation) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = texts();
    let example = operation.example.clone().unwrap_or_else(|| json!({}));
    for member in operation
        .members
        .iter()
        .map(String::as_str)
        .chain(["", "__proto__", "extra"])
    {
        for (what, value) in values() {
            let mut body = example.clone();
            body[member] = value;
            all.push((
                format!("`{member}` is {what}"),
                body.to_string().into_bytes(),
            ));
        }
        // Values outside the range of `Value`.
        for (what, value) in [
            ("a number beyond every float", "1e400"),
            ("a number below every float", "-1e400"),
            ("a number of a thousand digits", &*"9".repeat(1000)),
            ("half of a pair of surrogates", r#""\ud800""#),
            ("a deep list", &*nested("[", "]", 2000)),
            ("a deep object", &*nested("{\"a\":", "}", 2000)),
            ("there twice", "1,\"there\":2,\"there\":1"),
        ] {
            let rest = match example.as_object().filter(|members| !members.is_empty()) {
                Some(members) => {
                    let mut members = members.clone();
                    members.remove(member);
                    let rest = Value::Object(members).to_string();
                    let rest = rest
                        .trim_start_matches('{')
                        .trim_end_matches('}')
                        .to_owned();
                    if rest.is_empty() {
                        rest
                    } else {
                        format!(",{rest}")
                    }
                }
                None => String::new(),
            };
            let name = Value::from(member);
            all.push((
                format!("`{member}` is {what}"),
                format!("{{{name}:{value}{rest}}}").into_bytes(),
            ));
        }
        if let Some(value) = example.get(member) {
            let name = Value::from(member);
            all.push((
                format!("`{member}` twice"),
                format!("{{{name}:{value},{name}:{value}}}").into_bytes(),
            ));
        }
    }
    all
}

/// As many openings as closings; a zero within.
fn nested(open: &str, close: &str, depth: usize) -> String {
    format!("{}0{}", open.repeat(depth), close.repeat(depth))
}

/// Values for a member.
fn values() -> Vec<(&'static str, Value)> {
    vec![
        ("null", Value::Null),
        ("true", json!(true)),
        ("zero", json!(0)),
        ("below zero", json!(-1)),
        ("a fraction", json!(1.5)),
        ("the largest integer", json!(u64::MAX)),
        ("the smallest integer", json!(i64::MIN)),
        ("a large number", json!(1e300)),
        ("no text", json!("")),
        ("a text", json!("x")),
        ("a long text", json!("x".repeat(20_000))),
        (
            "odd letters",
            json!("\u{202e}\u{0}\u{feff}\u{fffd}\u{1f9ff}e\u{301}\u{85}\u{2028}\r\n\t"),
        ),
        (
            "an address",
            json!("javascript:alert(1)//https://169.254.169.254/"),
        ),
        (
            "words for a database",
            json!("' OR 1=1; DROP TABLE accounts; --"),
        ),
        ("words for a template", json!("{{7*7}}${7*7}<script>%s%n")),
        ("an empty list", json!([])),
        ("a list with nothing", json!([null])),
        ("a list of lists", json!([[], [[]]])),
        ("a list of objects", json!([{}, {"id": 1}])),
        (
            "a list of items",
            json!([{"item": {"id": -1}, "quantity": 1e99}, {"item": null, "quantity": "x"}]),
        ),
        ("a long list", json!(vec![0; 5000])),
        ("an empty object", json!({})),
        ("an object", json!({"": null, "id": [], "type": {}})),
    ]
}

/// Texts without JSON, or without an object.
fn texts() -> Vec<(String, Vec<u8>)> {
    let mut texts: Vec<(&str, Vec<u8>)> = [
        ("nothing", ""),
        ("spaces", " \t\r\n "),
        ("half an object", "{"),
        ("half a name", "{\"a"),
        ("a name without a value", "{\"a\":}"),
        ("a comma too many", "{\"a\":1,}"),
        ("no quotes", "{a:1}"),
        ("other quotes", "{'a':1}"),
        ("a comment", "{}//"),
        ("two objects", "{}{}"),
        ("an object and a word", "{} x"),
        ("null", "null"),
        ("true", "true"),
        ("a number", "7"),
        ("a text", "\"a\""),
        ("a list", "[]"),
        ("a list of objects", "[{}]"),
        ("an empty object", "{}"),
        ("not a number", "{\"a\":NaN}"),
        ("a plus sign", "{\"a\":+1}"),
        ("a leading zero", "{\"a\":01}"),
        ("half an escape", "{\"a\":\"\\u12\"}"),
        ("half of a pair", "{\"a\":\"\\udc00\"}"),
        ("a line end in a text", "{\"a\":\"\n\"}"),
        ("the same name twice", "{\"a\":1,\"a\":2}"),
        ("the same name twice, one escaped", "{\"a\":1,\"\\u0061\":2}"),
        ("the same name twice inside", "{\"a\":{\"b\":1,\"b\":2}}"),
        ("a form", "a=1&b=%zz&grant_type=x&grant_type=y&token=%00"),
        ("XML", "<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY b SYSTEM \"file:///etc/passwd\">]><a>&b;</a>"),
    ]
    .map(|(what, text)| (what, text.as_bytes().to_vec()))
    .to_vec();
    texts.extend([
        ("no UTF-8", b"{\"a\":\"\xff\xfe\"}".to_vec()),
        ("half a letter", b"{\"a\":\"\xe2\x82\"}".to_vec()),
        ("a surrogate in UTF-8", b"{\"a\":\"\xed\xa0\x80\"}".to_vec()),
        ("a mark before it", b"\xef\xbb\xbf{}".to_vec()),
        ("UTF-16", b"\xff\xfe{\0}\0".to_vec()),
        ("zeros", vec![0; 64]),
        ("a control character", b"{\"a\":\"\x01\"}".to_vec()),
        (
            "compressed",
            b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\x05\0".to_vec(),
        ),
        ("deep lists", nested("[", "]", 20_000).into_bytes()),
        ("deep objects", nested("{\"a\":", "}", 8_000).into_bytes()),
        ("deep and never closed", b"[".repeat(60_000)),
        ("many members", many_members()),
        ("more than there is room for", vec![b' '; 70_000]),
    ]);
    texts
        .into_iter()
        .map(|(what, text)| (what.to_owned(), text))
        .collect()
}

fn many_members() -> Vec<u8> {
    let members: Vec<String> = (0..4000)
        .map(|number| format!("\"m{number}\":{number}"))
        .collect();
    format!("{{{}}}", members.join(",")).into_bytes()
}
