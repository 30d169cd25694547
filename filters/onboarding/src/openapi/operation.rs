//! OpenAPI: one operation, and the parts that several operations have.

use serde_json::{Map, Value, json};
use tollgate_filter::{ErrorCode, Scope};

use super::responses;

/// Errors of every operation with a credential.
pub(super) const ACCESS: [ErrorCode; 3] = [
    ErrorCode::InvalidHeader,
    ErrorCode::MissingCredential,
    ErrorCode::InsufficientScope,
];

/// An operation: id, required scope, and error codes.
pub(super) struct Operation<'a> {
    pub(super) id: &'a str,
    pub(super) tag: &'a str,
    pub(super) summary: &'a str,
    /// Required scope; `None` for public operations.
    pub(super) scope: Option<Scope>,
    pub(super) errors: &'a [ErrorCode],
}

impl Operation<'_> {
    /// The operation with these responses in addition to those of its errors.
    pub(super) fn responses(&self, own: impl IntoIterator<Item = (u16, Value)>) -> Value {
        let mut responses = responses::for_codes(self.errors);
        responses.extend(
            own.into_iter()
                .map(|(status, answer)| (status.to_string(), answer)),
        );
        json!({
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "responses": responses,
            "security": match self.scope {
                Some(scope) => json!([{"apiKey": []}, {"oauth": [scope.name()]}]),
                None => json!([]),
            },
        })
    }
}

/// A public static document.
pub(super) struct Document<'a> {
    pub(super) id: &'a str,
    pub(super) tag: &'a str,
    pub(super) summary: &'a str,
    pub(super) answer: &'a str,
    pub(super) example: Option<Value>,
}

pub(super) fn document(document: Document<'_>) -> Value {
    let operation = Operation {
        id: document.id,
        tag: document.tag,
        summary: document.summary,
        scope: None,
        errors: &[],
    };
    let whole = responses::success(
        document.summary,
        document.answer,
        document.example,
        &["ETag"],
    );
    let known = json!({"description": "The version in `If-None-Match` is current.", "headers": responses::fields(&["ETag"], true)});
    operation.responses([(200, whole), (304, known)])
}

/// The `Idempotency-Key` header.
pub(super) fn idempotency_key(means: &str) -> Value {
    json!({
        "name": "Idempotency-Key",
        "in": "header",
        "description": means,
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    })
}

/// An object of these members.
pub(super) fn object<const N: usize>(members: [(&str, Value); N]) -> Map<String, Value> {
    members
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}
