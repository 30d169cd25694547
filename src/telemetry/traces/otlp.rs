//! OTLP in its JSON encoding: ids in hexadecimal, 64-bit numbers as texts, enumerations as numbers.
//!
//! The crate `opentelemetry-otlp` (0.33, with protobuf) would replace this file and add seven crates. The bounded queue, the TLS settings and
//! the retries of `export` would stay.

use base16ct::HexDisplay;
use serde_json::{Value as Json, json};

/// The conventions that define the names of attributes.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.41.0";
/// The trace flag for sampled, and the two bits that say whether the parent is of another process.
const SAMPLED: u32 = 0x001;
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;
/// The status of a span that failed.
const STATUS_ERROR: u8 = 2;

/// A finished span.
pub(super) struct Span {
    pub(super) trace: [u8; 16],
    pub(super) id: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    pub(super) parent_is_remote: bool,
    pub(super) state: Option<Box<str>>,
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Nanoseconds since 1970.
    pub(super) started: u64,
    pub(super) ended: u64,
    pub(super) failed: bool,
    pub(super) attributes: Vec<(&'static str, Value)>,
}

/// The side of a call that a span describes.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Server = 2,
    Client = 3,
}

/// The value of an attribute.
pub(super) enum Value {
    Word(&'static str),
    Text(Box<str>),
    Number(i64),
    Fraction(f64),
    Flag(bool),
    Words(Vec<&'static str>),
}

impl Value {
    pub(super) fn text(text: impl Into<Box<str>>) -> Value {
        Value::Text(text.into())
    }

    fn json(&self) -> Json {
        match self {
            Value::Word(word) => json!({ "stringValue": word }),
            Value::Text(text) => json!({ "stringValue": text }),
            Value::Number(number) => json!({ "intValue": number.to_string() }),
            Value::Fraction(number) => json!({ "doubleValue": number }),
            Value::Flag(flag) => json!({ "boolValue": flag }),
            Value::Words(words) => {
                let words = words.iter().map(|word| json!({ "stringValue": word }));
                json!({ "arrayValue": { "values": words.collect::<Vec<_>>() } })
            }
        }
    }
}

impl From<&'static str> for Value {
    fn from(word: &'static str) -> Value {
        Value::Word(word)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Flag(flag)
    }
}

impl Span {
    fn json(&self) -> Json {
        let remote = if self.parent_is_remote { IS_REMOTE } else { 0 };
        let mut span = json!({
            "traceId": hex(&self.trace),
            "spanId": hex(&self.id),
            "flags": SAMPLED | HAS_IS_REMOTE | remote,
            "name": self.name,
            "kind": self.kind as u8,
            "startTimeUnixNano": self.started.to_string(),
            "endTimeUnixNano": self.ended.max(self.started).to_string(),
            "attributes": attributes(&self.attributes),
        });
        if let Some(parent) = &self.parent {
            span["parentSpanId"] = hex(parent).into();
        }
        if let Some(state) = &self.state {
            span["traceState"] = (&**state).into();
        }
        if self.failed {
            span["status"] = json!({ "code": STATUS_ERROR });
        }
        span
    }
}

/// The body of an export: the spans of a single resource, this process.
pub(super) fn export_request(resource: &[(&'static str, Value)], spans: &[Span]) -> Vec<u8> {
    let spans: Vec<Json> = spans.iter().map(Span::json).collect();
    let request = json!({
        "resourceSpans": [{
            "resource": { "attributes": attributes(resource) },
            "scopeSpans": [{
                "scope": { "name": "tollgate", "version": env!("CARGO_PKG_VERSION") },
                "schemaUrl": SCHEMA_URL,
                "spans": spans,
            }],
        }],
    });
    request.to_string().into_bytes()
}

/// The number of spans in an export that the collector did not accept, and the reason, from the collector's answer.
pub(super) fn rejected(answer: &[u8]) -> (u64, String) {
    let answer: Json = serde_json::from_slice(answer).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    let number = &partial["rejectedSpans"];
    // A 64-bit number is a text in this encoding; readers have to accept text and number.
    let number = number
        .as_u64()
        .or_else(|| number.as_str()?.parse().ok())
        .unwrap_or(0);
    let why = partial["errorMessage"].as_str().unwrap_or_default();
    (number, why.to_owned())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    format!("{:x}", HexDisplay(bytes))
}

fn attributes(list: &[(&'static str, Value)]) -> Json {
    let pairs = list
        .iter()
        .map(|(name, value)| json!({ "key": name, "value": value.json() }));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_spans_are_read_as_a_number_and_as_a_text() {
        for (answer, expected) in [
            ("{}", 0),
            ("", 0),
            (r#"{"partialSuccess":{}}"#, 0),
            (r#"{"partialSuccess":{"rejectedSpans":"3"}}"#, 3),
            (r#"{"partialSuccess":{"rejectedSpans":4}}"#, 4),
        ] {
            assert_eq!(rejected(answer.as_bytes()).0, expected, "{answer}");
        }
    }
}
