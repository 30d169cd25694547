//! Refusals and failures, from the table of codes, and the fields of a 429.

use serde_json::{Map, Value, json};
use tollgate_filter::{CODES, ErrorCode};

use super::schemas::reference;

/// The fields that a 429 carries, and every other answer that was counted.
const QUOTA_FIELDS: [(&str, &str); 5] = [
    (
        "RateLimit-Policy",
        "The quotas: name, requests and window in seconds, as in `\"requests\";q=60;w=60`.",
    ),
    (
        "RateLimit",
        "What is left of each, and seconds until more is there, as in `\"requests\";r=59;t=60`.",
    ),
    ("RateLimit-Limit", "The quota that is nearest to its end."),
    ("RateLimit-Remaining", "What is left of it."),
    ("RateLimit-Reset", "Seconds until more of it is there."),
];

/// The statuses that every operation may answer with, beside its own.
const ANYWHERE: [u16; 9] = [404, 405, 408, 413, 414, 417, 429, 431, 500];

/// The name of the answer of a status.
fn name(status: u16) -> String {
    format!("Error{status}")
}

/// All answers of an error, by their names: one for each status.
pub(super) fn all() -> Value {
    let mut answers = Map::new();
    for code in CODES {
        let status = code.status().as_u16();
        answers
            .entry(name(status))
            .or_insert_with(|| answer(status));
    }
    Value::Object(answers)
}

fn answer(status: u16) -> Value {
    let codes: Vec<&str> = CODES
        .iter()
        .filter(|code| code.status().as_u16() == status)
        .map(|code| code.word())
        .collect();
    let reason = http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Error");
    let mut answer = json!({
        "description": format!("{reason}. `error.code`: `{}`.", codes.join("`, `")),
        "content": {"application/json": {"schema": reference("Error")}},
    });
    let mut fields = Map::new();
    let mut field = |name: &str| {
        fields.insert(
            name.to_owned(),
            json!({"$ref": format!("#/components/headers/{name}")}),
        );
    };
    match status {
        401 | 403 => field("WWW-Authenticate"),
        429 => {
            QUOTA_FIELDS.iter().for_each(|(name, _)| field(name));
            field("Retry-After");
        }
        503 => field("Retry-After"),
        _ => {}
    }
    if !fields.is_empty() {
        answer["headers"] = Value::Object(fields);
    }
    answer
}

/// The fields by their names.
pub(super) fn headers() -> Value {
    let mut headers: Map<String, Value> = QUOTA_FIELDS
        .iter()
        .map(|(name, meaning)| {
            let schema = match *name {
                "RateLimit-Limit" => json!({"type": "integer", "minimum": 1}),
                "RateLimit-Remaining" | "RateLimit-Reset" => {
                    json!({"type": "integer", "minimum": 0})
                }
                _ => json!({"type": "string"}),
            };
            (
                (*name).to_owned(),
                json!({"description": meaning, "schema": schema}),
            )
        })
        .collect();
    headers.insert(
        "Retry-After".to_owned(),
        json!({"description": "Seconds to wait before another try.", "schema": {"type": "integer", "minimum": 0}}),
    );
    headers.insert(
        "WWW-Authenticate".to_owned(),
        json!({"description": "How a credential is had that works here (RFC 6750, RFC 9728).", "schema": {"type": "string"}}),
    );
    Value::Object(headers)
}

/// The answers of an operation to which these codes belong, beside those that every operation may give.
pub(super) fn of(codes: &[ErrorCode]) -> Map<String, Value> {
    let own = codes.iter().map(|code| code.status().as_u16());
    own.chain(ANYWHERE)
        .map(|status| {
            let reference = json!({"$ref": format!("#/components/responses/{}", name(status))});
            (status.to_string(), reference)
        })
        .collect()
}
