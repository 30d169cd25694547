//! OpenAPI: schemas of bodies (JSON Schema 2020-12).

use serde_json::{Map, Value, json};
use tollgate_openai::Endpoint;
use tollgate_openai::contract::{ASSISTANT, CALLS, MESSAGE, MemberRule, Shape, members};

use super::schema::{of, open, reference};
use super::{access, purchase};
use crate::developer_onboarding::DeveloperOnboarding;
use crate::installation::Installation;

/// All schemas by name.
pub(super) fn all(installation: &Installation) -> Value {
    let metadata = format!("x_{}", installation.service.name);
    let mut schemas = Map::new();
    let mut add = |name: &str, schema: Value| {
        schemas.insert(name.to_owned(), schema);
    };
    add("Message", message());
    add("ChatCompletionRequest", object(members(Endpoint::Chat)));
    add("CompletionRequest", object(members(Endpoint::Text)));
    let count = json!({"type": "integer", "minimum": 0});
    add(
        "Usage",
        open(
            &[],
            json!({"prompt_tokens": count, "completion_tokens": count, "total_tokens": count}),
        ),
    );
    add(
        "Metadata",
        open(
            &["cache_hit", "credits_used", "credits_remaining", "owner"],
            json!({
                "cache_hit": {"type": "boolean"},
                "cache_entry_id": {"type": ["string", "null"]},
                "cache_store_status": {"type": ["string", "null"], "examples": ["hit", "stored", "bypass"]},
                "credits_used": {"type": "number", "minimum": 0},
                "credits_remaining": {"type": "number"},
                "owner": {"type": "string"},
                "resolved_owner": {"type": ["string", "null"]},
                "usage_estimated": {"type": "boolean"},
            }),
        ),
    );
    add("Model", model());
    add(
        "ModelList",
        open(
            &["object", "data", &metadata],
            json!({
                "object": {"const": "list"},
                "data": {"type": "array", "items": reference("Model")},
                &metadata: open(&[], json!({"owner": {"type": "string"}, "credits_remaining": {"type": "number"}})),
            }),
        ),
    );
    let finish = json!({"type": ["string", "null"]});
    add(
        "ChatChoice",
        open(
            &["index", "message"],
            json!({"index": {"type": "integer"}, "message": reference("Message"), "finish_reason": finish}),
        ),
    );
    add(
        "TextChoice",
        open(
            &["index", "text"],
            json!({
                "index": {"type": "integer"},
                "text": {"type": "string"},
                "logprobs": {"type": ["object", "null"]},
                "finish_reason": finish,
            }),
        ),
    );
    for (name, choice) in [
        ("ChatCompletion", "ChatChoice"),
        ("TextCompletion", "TextChoice"),
    ] {
        let kind = match name {
            "TextCompletion" => json!({"const": "text_completion"}),
            _ => json!({"type": "string"}),
        };
        add(
            name,
            open(
                &["id", "object", "created", "model", "choices", &metadata],
                json!({
                    "id": {"type": "string"},
                    "object": kind,
                    "created": {"type": "integer"},
                    "model": {"type": "string"},
                    "choices": {"type": "array", "items": reference(choice)},
                    "usage": reference("Usage"),
                    &metadata: reference("Metadata"),
                }),
            ),
        );
    }
    add(
        "Error",
        open(
            &["error"],
            json!({"error": open(
                &["message", "type"],
                json!({
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                    "required": {"type": "number", "description": "Credits that the request needs, on a 402; missing where that is not known yet."},
                    "available": {"type": "number", "description": "Credits that the account has, on a 402."},
                    "topup_url": {"type": "string", "format": "uri", "description": "Where credits are added, on a 402."},
                }),
            )}),
        ),
    );
    add("DeveloperOnboarding", of::<DeveloperOnboarding<'static>>());
    schemas.extend(purchase::schemas(installation));
    schemas.extend(access::schemas());
    Value::Object(schemas)
}

fn model() -> Value {
    open(
        &["id", "object", "created", "owned_by"],
        json!({
            "id": {"type": "string"},
            "object": {"const": "model"},
            "created": {"type": "integer"},
            "owned_by": {"type": "string"},
            "name": {"type": "string"},
            "context_length": {"type": ["integer", "null"]},
            "cost": open(&[], json!({
                "input": {"type": "number", "description": "Credits for a million tokens read."},
                "output": {"type": "number", "description": "Credits for a million tokens written."},
                "request": {"type": "number", "description": "Credits for each request."},
            })),
            "pricing": {
                "type": ["object", "null"],
                "description": "US dollars, as decimal strings: for a token read, a token written, a request.",
                "properties": {"prompt": {"type": "string"}, "completion": {"type": "string"}, "request": {"type": "string"}},
                "additionalProperties": true,
            },
            "output_modalities": {"type": "array", "items": {"type": "string"}},
        }),
    )
}

/// A message: without `content` only an assistant's with calls.
fn message() -> Value {
    let mut schema = object(MESSAGE);
    schema["required"] = json!(["role"]);
    let [tool_calls, function_call] = CALLS.map(|name| {
        let call = match name {
            "function_call" => json!({"type": "object"}),
            _ => json!({"type": "array", "minItems": 1}),
        };
        json!({"required": [name], "properties": {"role": {"const": ASSISTANT}, name: call}})
    });
    schema["anyOf"] = json!([{"required": ["content"]}, tool_calls, function_call]);
    schema
}

fn object(rules: &[MemberRule]) -> Value {
    let properties: Map<String, Value> = rules
        .iter()
        .map(|rule| (rule.name.to_owned(), property(rule)))
        .collect();
    let required: Vec<&str> = rules
        .iter()
        .filter(|rule| rule.required)
        .map(|rule| rule.name)
        .collect();
    open(&required, Value::Object(properties))
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
        Shape::Messages => json!({"type": "array", "minItems": 1, "items": reference("Message")}),
    };
    if !rule.required {
        nullable(&mut schema);
    }
    schema["description"] = json!(rule.meaning);
    schema
}
