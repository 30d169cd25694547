//! OpenAPI: error responses, generated from the table of codes, and response headers.

use serde_json::{Map, Value, json};
use tollgate_filter::{CODES, ErrorCode, ErrorType};

use super::schema::reference;

/// Headers of a 429 and of every other counted response.
const QUOTA_FIELDS: [(&str, &str); 5] = [
    (
        "RateLimit-Policy",
        "The quotas: name, requests and window in seconds, as in `\"requests\";q=60;w=60`.",
    ),
    (
        "RateLimit",
        "Remaining quota of each, and seconds until it refills, as in `\"requests\";r=59;t=60`.",
    ),
    ("RateLimit-Limit", "The quota closest to exhaustion."),
    ("RateLimit-Remaining", "Its remaining requests."),
    ("RateLimit-Reset", "Seconds until it refills."),
];

/// Statuses of every operation, in addition to its own.
const COMMON_STATUSES: [u16; 7] = [404, 405, 408, 413, 429, 500, 503];

/// Statuses of a request that no operation has seen: one response, `4XX`, describes them together, so that the document stays small.
const UNROUTED_STATUSES: [u16; 4] = [408, 414, 417, 431];

/// The key of a status in the responses of an operation.
fn key(status: u16) -> String {
    match UNROUTED_STATUSES.contains(&status) {
        true => String::from("4XX"),
        false => status.to_string(),
    }
}

/// Component name of the response of a status.
pub(super) fn name(status: u16) -> String {
    format!("Error{}", key(status))
}

/// Error codes of a status in the envelope. 402 responses of purchases are problem documents and described there.
pub(super) fn codes(status: u16) -> impl Iterator<Item = ErrorCode> {
    CODES.iter().copied().filter(move |code| {
        code.status().as_u16() == status && code.kind() != ErrorType::PaymentRequired
    })
}

/// A list of codes for descriptions.
pub(super) fn code_list(codes: impl Iterator<Item = ErrorCode>) -> String {
    let words: Vec<&str> = codes.map(ErrorCode::word).collect();
    format!("`error.code`: `{}`.", words.join("`, `"))
}

/// Error responses by name: one per status.
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
    let description = match UNROUTED_STATUSES.contains(&status) {
        true => format!(
            "{} or {}: the request could not be read. {}",
            UNROUTED_STATUSES[..3]
                .iter()
                .map(u16::to_string)
                .collect::<Vec<_>>()
                .join(", "),
            UNROUTED_STATUSES[3],
            code_list(UNROUTED_STATUSES.into_iter().flat_map(codes))
        ),
        false => format!("{reason}. {}", code_list(codes(status))),
    };
    let mut answer = json!({
        "description": description,
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

/// Headers of a response: the given ones, the request id, and the remaining quotas if the request is counted.
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

/// A success response: description, schema with example, and headers.
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

/// Header components by name.
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

/// Headers other than quotas: name, description, schema.
fn other_headers() -> [(&'static str, &'static str, Value); 9] {
    let text = || json!({"type": "string"});
    let base64 = || json!({"type": "string", "contentEncoding": "base64", "contentMediaType": "application/json"});
    [
        (
            "X-Request-Id",
            "The request id, for support.",
            json!({"type": "string", "pattern": "^req_[0-9a-f]{32}$"}),
        ),
        (
            "Retry-After",
            "Seconds to wait before a retry.",
            json!({"type": "integer", "minimum": 0}),
        ),
        (
            "WWW-Authenticate",
            "How to obtain a valid credential (RFC 6750, RFC 9728); for MPP, the `Payment` challenge.",
            text(),
        ),
        (
            "ETag",
            "Version of the document, for `If-None-Match`.",
            text(),
        ),
        (
            "Location",
            "URL of the checkout session, visible to its owner only.",
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
            "Payment requirements of x402 version 2: JSON in base64.",
            base64(),
        ),
        (
            "PAYMENT-RESPONSE",
            "Result of the transfer, x402 version 2: JSON in base64.",
            base64(),
        ),
    ]
}

/// Responses of an operation with these error codes, in addition to the common ones.
pub(super) fn for_codes(codes: &[ErrorCode]) -> Map<String, Value> {
    let own = codes.iter().map(|code| code.status().as_u16());
    own.chain(COMMON_STATUSES)
        .map(|status| {
            let reference = json!({"$ref": format!("#/components/responses/{}", name(status))});
            (key(status), reference)
        })
        .collect()
}
