//! OpenAPI: operations, with the ids used by client generators.

use serde_json::{Map, Value, json};
use tollgate_filter::{ErrorCode, Scope};

use super::{access, purchase, responses, schemas};
use crate::documents::{Deprecated, Installation};

/// Errors of every operation with a credential.
pub(super) const ACCESS: [ErrorCode; 3] = [
    ErrorCode::InvalidHeader,
    ErrorCode::MissingCredential,
    ErrorCode::InsufficientScope,
];

/// Further errors of completions.
const COMPLETION: [ErrorCode; 10] = [
    ErrorCode::InvalidHeader,
    ErrorCode::MissingCredential,
    ErrorCode::InsufficientCredits,
    ErrorCode::InsufficientScope,
    ErrorCode::InProgress,
    ErrorCode::UnsupportedMediaType,
    ErrorCode::UpstreamError,
    ErrorCode::StoreUnavailable,
    ErrorCode::UpstreamTimeout,
    ErrorCode::InvalidJson,
];

/// All paths.
pub(super) fn paths(installation: &Installation) -> Value {
    let service = &installation.service.name;
    let mut paths = json!({
        "/v1/models": {"get": models()},
        "/v1/chat/completions": {"post": completion(Completion {
            id: "createChatCompletion",
            summary: "A completion of a conversation, complete or as a stream of events",
            scope: Scope::ApiChat,
            body: "ChatCompletionRequest",
            answer: "ChatCompletion",
            example: json!({"messages": [{"role": "user", "content": "What is a toll?"}], "max_tokens": 100}),
        })},
        "/v1/completions": {"post": completion(Completion {
            id: "createCompletion",
            summary: "A completion of a prompt, complete or as a stream of events. Prefer chat for new programs",
            scope: Scope::ApiCompletions,
            body: "CompletionRequest",
            answer: "TextCompletion",
            example: json!({"prompt": "A toll is", "max_tokens": 100}),
        })},
        "/developer/onboarding": {"get": document(Document {
            id: "getDeveloperOnboarding",
            tag: "onboarding",
            summary: &format!("Sign-up, keys (sk-{service}-), the sandbox and the free tier"),
            answer: "DeveloperOnboarding",
            example: None,
        })},
    });
    if let Some(paths) = paths.as_object_mut() {
        paths.extend(purchase::paths(installation));
        paths.extend(access::paths(installation));
    }
    for Deprecated { method, path } in &installation.deprecated {
        let method = method.as_str().to_ascii_lowercase();
        let path = path.replace("{plan}", &installation.plan.slug);
        let described = paths.get_mut(path).and_then(|path| path.get_mut(method));
        if let Some(described) = described {
            described["deprecated"] = json!(true);
        }
    }
    paths
}

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

fn models() -> Value {
    let operation = Operation {
        id: "listModels",
        tag: "models",
        summary: "The available models that the credential may use, with prices, and the remaining credits",
        scope: Some(Scope::ApiModels),
        errors: &ACCESS,
    };
    operation.responses([(
        200,
        responses::success(operation.summary, "ModelList", None, &[]),
    )])
}

struct Completion<'a> {
    id: &'a str,
    summary: &'a str,
    scope: Scope,
    body: &'a str,
    answer: &'a str,
    example: Value,
}

fn completion(completion: Completion<'_>) -> Value {
    let operation = Operation {
        id: completion.id,
        tag: "completions",
        summary: completion.summary,
        scope: Some(completion.scope),
        errors: &COMPLETION,
    };
    let mut whole = responses::success(completion.summary, completion.answer, None, &[]);
    // No type: some tools process the text of the stream, others single events.
    whole["content"]["text/event-stream"] = json!({"schema": {
        "description": "With `stream`: server-sent events whose data is the JSON of a chunk, or of an `Error` that ends the stream. The last data is `[DONE]`."
    }});
    let mut described = operation.responses([(200, whole)]);
    described["requestBody"] = json!({
        "required": true,
        "content": {"application/json": {"schema": schemas::reference(completion.body), "example": completion.example}},
    });
    described["parameters"] = json!([idempotency_key(
        "The same key with the same body is answered and charged once, however often it is sent."
    )]);
    described
}

/// The `Idempotency-Key` header.
pub(super) fn idempotency_key(means: &str) -> Value {
    json!({
        "name": "Idempotency-Key",
        "in": "header",
        "description": means,
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-~]+$"},
    })
}

/// An object of these members.
pub(super) fn object<const N: usize>(members: [(&str, Value); N]) -> Map<String, Value> {
    members
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}
