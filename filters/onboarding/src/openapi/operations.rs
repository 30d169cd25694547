//! The operations, under the names that clients are generated with.

use serde_json::{Map, Value, json};
use tollgate_filter::{ErrorCode, Scope};

use super::answers;
use super::schemas::reference;
use crate::documents::{Deprecated, Installation};

/// What an operation with a credential may answer before it does anything.
const ACCESS: [ErrorCode; 3] = [
    ErrorCode::InvalidHeader,
    ErrorCode::MissingCredential,
    ErrorCode::InsufficientScope,
];

/// What a completion may come to besides.
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
pub(super) fn paths(installation: &Installation<'_>) -> Value {
    let service = installation.service.name;
    let mut paths = json!({
        "/v1/models": {"get": operation(Operation {
            id: "listModels",
            tag: "models",
            summary: "The models that work and that the credential may use, with prices, and the credits left",
            scope: Some(Scope::ApiModels),
            body: None,
            answer: "ModelList",
            stream: false,
            errors: &ACCESS,
            example: None,
        })},
        "/v1/chat/completions": {"post": operation(Operation {
            id: "createChatCompletion",
            tag: "completions",
            summary: "An answer to a conversation, whole or as a stream of events",
            scope: Some(Scope::ApiChat),
            body: Some("ChatCompletionRequest"),
            answer: "ChatCompletion",
            stream: true,
            errors: &COMPLETION,
            example: Some(json!({"messages": [{"role": "user", "content": "What is a toll?"}], "max_tokens": 100})),
        })},
        "/v1/completions": {"post": operation(Operation {
            id: "createCompletion",
            tag: "completions",
            summary: "A text that goes on from a prompt, whole or as a stream of events. Prefer chat for new programs",
            scope: Some(Scope::ApiCompletions),
            body: Some("CompletionRequest"),
            answer: "TextCompletion",
            stream: true,
            errors: &COMPLETION,
            example: Some(json!({"prompt": "A toll is", "max_tokens": 100})),
        })},
        "/developer/onboarding": {"get": operation(Operation {
            id: "getDeveloperOnboarding",
            tag: "onboarding",
            summary: &format!("Where accounts and keys (sk-{service}-) are made, the sandbox and the free tier"),
            scope: None,
            body: None,
            answer: "DeveloperOnboarding",
            stream: false,
            errors: &[],
            example: None,
        })},
    });
    for Deprecated { method, path } in &installation.deprecated {
        let method = method.as_str().to_ascii_lowercase();
        let described = paths.get_mut(*path).and_then(|path| path.get_mut(method));
        if let Some(described) = described {
            described["deprecated"] = json!(true);
        }
    }
    paths
}

struct Operation<'a> {
    id: &'a str,
    tag: &'a str,
    summary: &'a str,
    /// What a credential needs; none for what anybody may do.
    scope: Option<Scope>,
    body: Option<&'a str>,
    answer: &'a str,
    stream: bool,
    errors: &'a [ErrorCode],
    example: Option<Value>,
}

fn operation(operation: Operation<'_>) -> Value {
    let mut content = Map::new();
    content.insert(
        "application/json".to_owned(),
        json!({"schema": reference(operation.answer)}),
    );
    if operation.stream {
        content.insert(
            "text/event-stream".to_owned(),
            json!({"schema": {"type": "string", "description": "With `stream`: events of JSON, the last line `data: [DONE]`."}}),
        );
    }
    let mut answers = answers::of(operation.errors);
    answers.insert(
        "200".to_owned(),
        json!({"description": operation.summary, "content": content}),
    );
    let mut described = json!({
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": answers,
        "security": match operation.scope {
            Some(scope) => json!([{"apiKey": []}, {"oauth": [scope.name()]}]),
            None => json!([]),
        },
    });
    if let Some(body) = operation.body {
        let mut media = json!({"schema": reference(body)});
        if let Some(example) = operation.example {
            media["example"] = example;
        }
        described["requestBody"] =
            json!({"required": true, "content": {"application/json": media}});
    }
    described
}
