//! Refusals and failures, from the table of codes, and the fields of a 429.

use serde_json::{Map, Value, json};
use tollgate_filter::{CODES, ErrorCode, ErrorType};

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
const COMMON_STATUSES: [u16; 10] = [404, 405, 408, 413, 414, 417, 429, 431, 500, 503];

/// The name of the answer of a status.
fn name(status: u16) -> String {
    format!("Error{status}")
}

/// The codes of a status that come in the envelope alone. What a purchase answers with 402 is a problem, and described there.
pub(super) fn codes(status: u16) -> impl Iterator<Item = ErrorCode> {
    CODES.iter().copied().filter(move |code| {
        code.status().as_u16() == status && code.kind() != ErrorType::PaymentRequired
    })
}

/// Words of codes, for people.
pub(super) fn code_list(codes: impl Iterator<Item = ErrorCode>) -> String {
    let words: Vec<&str> = codes.map(ErrorCode::word).collect();
    format!("`error.code`: `{}`.", words.join("`, `"))
}

/// All answers of an error, by their names: one for each status.
pub(super) fn all() -> Value {
    let mut responses = Map::new();
    for code in CODES {
        let status = code.status().as_u16();
        responses
            .entry(name(status))
            .or_insert_with(|| response(status));
    }
    Value::Object(responses)
}

fn response(status: u16) -> Value {
    let reason = http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Error");
    let mut answer = json!({
        "description": format!("{reason}. {}", code_list(codes(status))),
        "content": {"application/json": {"schema": reference("Error")}},
    });
    let own: &[&str] = match status {
        401 | 403 => &["WWW-Authenticate"],
        409 | 503 => &["Retry-After"],
        429 => {
            answer["headers"] = fields(&["Retry-After"], true);
            return answer;
        }
        _ => &[],
    };
    answer["headers"] = fields(own, false);
    answer
}

/// Fields of an answer: these, the name of the request, and what is left of the quotas where the request was counted.
pub(super) fn fields(own: &[&str], counted: bool) -> Value {
    let quota = QUOTA_FIELDS.iter().map(|(name, _)| *name);
    let names = own
        .iter()
        .copied()
        .chain(["X-Request-Id"])
        .chain(quota.filter(|_| counted));
    let fields: Map<String, Value> = names
        .map(|name| {
            let reference = json!({"$ref": format!("#/components/headers/{name}")});
            (name.to_owned(), reference)
        })
        .collect();
    Value::Object(fields)
}

/// A good answer: its meaning, its schema with an example, and its own fields.
pub(super) fn success(means: &str, schema: &str, example: Option<Value>, own: &[&str]) -> Value {
    let mut media = json!({"schema": reference(schema)});
    if let Some(example) = example {
        media["example"] = example;
    }
    json!({
        "description": means,
        "headers": fields(own, true),
        "content": {"application/json": media},
    })
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
    for (name, meaning, schema) in other_headers() {
        headers.insert(
            name.to_owned(),
            json!({"description": meaning, "schema": schema}),
        );
    }
    Value::Object(headers)
}

/// Fields besides those of quotas: name, meaning, schema.
fn other_headers() -> [(&'static str, &'static str, Value); 9] {
    let text = || json!({"type": "string"});
    let base64 = || json!({"type": "string", "contentEncoding": "base64", "contentMediaType": "application/json"});
    [
        (
            "X-Request-Id",
            "Names the request; tell it when you ask about one.",
            json!({"type": "string", "pattern": "^req_[0-9a-f]{32}$"}),
        ),
        (
            "Retry-After",
            "Seconds to wait before another try.",
            json!({"type": "integer", "minimum": 0}),
        ),
        (
            "WWW-Authenticate",
            "How a credential is had that works here (RFC 6750, RFC 9728); where the plan is sold by MPP, the `Payment` challenge.",
            text(),
        ),
        (
            "ETag",
            "Names this version of the document; `If-None-Match` asks for another.",
            text(),
        ),
        (
            "Location",
            "The address of the checkout session. It answers its owner only.",
            json!({"type": "string", "format": "uri"}),
        ),
        (
            "Link",
            "With `rel=\"payment\"`: where the owner of the account agrees to the payment.",
            text(),
        ),
        (
            "Payment-Receipt",
            "The receipt of the `Payment` scheme: JSON in base64url without padding.",
            json!({"type": "string", "contentEncoding": "base64url", "contentMediaType": "application/json"}),
        ),
        (
            "PAYMENT-REQUIRED",
            "What is asked for, as x402 version 2 writes it: JSON in base64.",
            base64(),
        ),
        (
            "PAYMENT-RESPONSE",
            "How the transfer went, as x402 version 2 writes it: JSON in base64.",
            base64(),
        ),
    ]
}

/// The answers of an operation to which these codes belong, beside those that every operation may give.
pub(super) fn for_codes(codes: &[ErrorCode]) -> Map<String, Value> {
    let own = codes.iter().map(|code| code.status().as_u16());
    own.chain(COMMON_STATUSES)
        .map(|status| {
            let reference = json!({"$ref": format!("#/components/responses/{}", name(status))});
            (status.to_string(), reference)
        })
        .collect()
}
