//! Mapping of request validation errors to API errors.

use tollgate_filter::{ApiError, ErrorCode, FilterError};
use tollgate_openai::{RequestError, RequestErrorCode};

/// The most characters of a model's name that an error message repeats.
const NAME_CHARS_MAX: usize = 80;

/// Why the filter cannot decide: the filters are in the wrong order, or on a wrong route.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompletionsError {
    #[error("no principal on the exchange; put `auth` before `completions`")]
    NoPrincipal,
    #[error(
        "`{path}` is no completion operation; route /v1/chat/completions and /v1/completions here"
    )]
    Path { path: Box<str> },
}

impl From<CompletionsError> for FilterError {
    fn from(error: CompletionsError) -> FilterError {
        FilterError::new(
            ApiError::new(
                ErrorCode::InternalError,
                "The request could not be read. Try again later.",
            ),
            error,
        )
    }
}

/// A body that is not a valid request.
pub(crate) fn bad_request(error: RequestError) -> ApiError {
    let code = match error.code {
        RequestErrorCode::InvalidJson => ErrorCode::InvalidJson,
        RequestErrorCode::MissingField => ErrorCode::MissingField,
        RequestErrorCode::InvalidType => ErrorCode::InvalidType,
        RequestErrorCode::OutOfRange => ErrorCode::OutOfRange,
        RequestErrorCode::UnknownField => ErrorCode::UnknownField,
    };
    let answer = ApiError::new(code, error.message);
    match error.param {
        Some(param) => answer.param(param),
        None => answer,
    }
}

/// Prompts that never fit into memory, because each prompt has the `system` text.
pub(crate) fn prompts_too_large(bytes: usize) -> ApiError {
    ApiError::new(
        ErrorCode::BodyTooLarge,
        format!(
            "The prompts, each with the `system` text, are {bytes} bytes, which is too much for one request. Send fewer prompts at once."
        ),
    )
}

/// A model that the credential may not use, though other credentials may.
pub(crate) fn not_for_this_key(name: &str) -> ApiError {
    ApiError::new(
        ErrorCode::KeyNotPermitted,
        format!("This key may not use the model `{name}`. GET /v1/models lists those that it may."),
    )
    .param("model")
}

/// A model that is not available.
pub(crate) fn unsupported_model(name: &str) -> ApiError {
    let short: String = name.chars().take(NAME_CHARS_MAX).collect();
    ApiError::new(
        ErrorCode::ModelNotSupported,
        format!("The model `{short}` is not available. GET /v1/models lists those that are."),
    )
    .param("model")
}

/// A chat with a text-only model.
pub(crate) fn no_chat(name: &str) -> ApiError {
    ApiError::new(
        ErrorCode::ModelNotSupported,
        format!("The model `{name}` does not support chat completions. Send its prompt to /v1/completions."),
    )
    .param("model")
}

/// A member that a provider of the model refuses.
pub(crate) fn refused_member(member: &str, model: &str) -> ApiError {
    ApiError::new(
        ErrorCode::UnknownField,
        format!("{member} is not supported by the model `{model}`; leave it out."),
    )
    .param(member)
}

/// A request without a model where there is no default.
pub(crate) fn no_model() -> ApiError {
    ApiError::new(
        ErrorCode::MissingField,
        "model is missing and this service has no default; GET /v1/models lists what to name.",
    )
    .param("model")
}
