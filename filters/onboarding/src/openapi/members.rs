//! OpenAPI: schemas of request bodies, from the table of their members.

use serde_json::{Map, Value, json};
use tollgate_openai::contract::{ASSISTANT, CALLS, MESSAGE, MemberRule, Shape};

/// A message: without `content` only an assistant's with calls.
///
/// The condition is an `else`: with an `anyOf` beside the members, openapi-python-client leaves the schema and its operation out, and
/// openapi-typescript makes it `unknown`. Both pass over `else`.
pub(super) fn message() -> Value {
    let mut schema = object(MESSAGE);
    schema["required"] = json!(["role"]);
    let [tool_calls, function_call] = CALLS.map(|name| {
        let call = match name {
            "function_call" => json!({"type": "object"}),
            _ => json!({"type": "array", "minItems": 1}),
        };
        json!({"required": [name], "properties": {"role": {"const": ASSISTANT}, name: call}})
    });
    schema["if"] = json!({"required": ["content"]});
    schema["else"] = json!({"anyOf": [tool_calls, function_call]});
    schema
}

/// An object of these members, which permits others.
pub(super) fn object(rules: &[MemberRule]) -> Value {
    let properties: Map<String, Value> = rules
        .iter()
        .map(|rule| (rule.name.to_owned(), property(rule)))
        .collect();
    let required = rules.iter().filter(|rule| rule.required);
    let required: Vec<&str> = required.map(|rule| rule.name).collect();
    let mut schema =
        json!({"type": "object", "properties": properties, "additionalProperties": true});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// Permits null, which means the same as the absence of an optional member.
fn nullable(schema: &mut Value) {
    if let Some(Value::Array(any)) = schema.get_mut("anyOf") {
        any.push(json!({"type": "null"}));
    } else if let Some(kind) = schema.get("type").cloned() {
        schema["type"] = json!([kind, "null"]);
    }
}

fn property(rule: &MemberRule) -> Value {
    let any = json!({"type": "object", "additionalProperties": true});
    let text = json!({"type": "string"});
    let mut schema = match rule.shape {
        Shape::Text => text,
        Shape::Word(words) => json!({"type": "string", "enum": words}),
        Shape::Number => json!({"type": "number", "minimum": 0}),
        Shape::Count => json!({"type": "integer", "minimum": 1}),
        Shape::Flag(absent) => json!({"type": "boolean", "default": absent}),
        Shape::Object => any,
        Shape::Texts => json!({"type": "array", "items": text}),
        Shape::Objects => json!({"type": "array", "items": any}),
        Shape::TextOrObject => json!({"anyOf": [text, any]}),
        Shape::TextOrTexts => json!({"anyOf": [text, {"type": "array", "items": text}]}),
        Shape::Content => {
            json!({"anyOf": [text, {"type": "array", "items": any}, {"type": "null"}]})
        }
        Shape::Messages => {
            json!({"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}})
        }
    };
    if !rule.required {
        nullable(&mut schema);
    }
    schema["description"] = json!(rule.meaning);
    schema
}
