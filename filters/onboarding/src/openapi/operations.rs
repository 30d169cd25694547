//! OpenAPI: operations, with the ids used by client generators.

use serde_json::{Value, json};
use tollgate_filter::{ErrorCode, Scope};

use super::operation::{ACCESS, Document, Operation, document, idempotency_key};
use super::schema::reference;
use super::{access, purchase, responses};
use crate::installation::{Deprecated, Installation};

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
        "/v1/models/{model}": {"get": one_model()},
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

fn one_model() -> Value {
    let operation = Operation {
        id: "retrieveModel",
        tag: "models",
        summary: "One model that the credential may use",
        scope: Some(Scope::ApiModels),
        errors: &ACCESS,
    };
    let mut described = operation.responses([(
        200,
        responses::success(operation.summary, "Model", None, &[]),
    )]);
    described["parameters"] = json!([{
        "name": "model",
        "in": "path",
        "required": true,
        "description": "Its id. A slash in it may be encoded or not.",
        "schema": {"type": "string", "minLength": 1},
    }]);
    described
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
        "content": {"application/json": {"schema": reference(completion.body), "example": completion.example}},
    });
    described["parameters"] = json!([idempotency_key(
        "The same key with the same body is answered and charged once, however often it is sent."
    )]);
    described
}
