//! Meaning of providers' error bodies, as far as the gateway or its clients act on the error.
//!
//! A provider may quote the request in the message. So a text counts only at the start of a message, where providers quote no request: a
//! request must not be able to take a provider out for every client.

use tollgate_filter::ErrorCode;
use tollgate_openai::provider_error::ProviderError;

/// Members `code` or `type` that report an account without money at the provider: of OpenAI (the first four), Anthropic, Groq, DashScope,
/// Volcengine, Moonshot, and gateways of the family of one-api.
const UNPAID_CODES: [&str; 12] = [
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_limit_user_error",
    "billing_error",
    "blocked_api_access",
    "arrearage",
    "accountoverdueerror",
    "exceeded_current_quota_error",
    "insufficient_balance",
    "insufficient_credits",
    "insufficient_user_quota",
];

/// Start and continuation of messages with this meaning: of Anthropic, DeepSeek and MiniMax, OpenRouter, SiliconFlow, DashScope, OpenAI,
/// Gemini, xAI, Fireworks, Zhipu.
const UNPAID_TEXTS: [(&str, &str); 11] = [
    ("your credit balance is too low", ""),
    ("insufficient balance", ""),
    ("insufficient credits", ""),
    ("sorry, your account balance is insufficient", ""),
    (
        "access denied, please make sure your account is in good standing",
        "",
    ),
    ("your account is not active, please check your billing", ""),
    ("your prepayment credits are depleted", ""),
    ("your team ", "used all available credits"),
    ("your newly created team doesn't have any credits", ""),
    ("account ", "reaching the monthly spending limit"),
    ("余额不足", ""),
];

/// Codes that programs act on (agents compact their history, or leave a member out), with the spellings of providers.
const REQUEST_CODES: [(&str, ErrorCode); 9] = [
    ("context_length_exceeded", ErrorCode::ContextLengthExceeded),
    // llama.cpp.
    (
        "exceed_context_size_error",
        ErrorCode::ContextLengthExceeded,
    ),
    ("content_filter", ErrorCode::ContentFilter),
    ("content_policy_violation", ErrorCode::ContentFilter),
    // DashScope.
    ("data_inspection_failed", ErrorCode::ContentFilter),
    ("datainspectionfailed", ErrorCode::ContentFilter),
    ("unsupported_parameter", ErrorCode::UnsupportedParameter),
    ("unknown_parameter", ErrorCode::UnsupportedParameter),
    ("unsupported_value", ErrorCode::UnsupportedValue),
];

/// How messages begin for which their providers have no code: of vLLM and OpenAI, Anthropic, DeepSeek.
const REQUEST_TEXTS: [(&str, ErrorCode); 3] = [
    (
        "this model's maximum context length is",
        ErrorCode::ContextLengthExceeded,
    ),
    ("prompt is too long", ErrorCode::ContextLengthExceeded),
    ("content exists risk", ErrorCode::ContentFilter),
];

/// The longest name of a member.
const PARAM_BYTES_MAX: usize = 128;

/// Whether an error says that the gateway's account at the provider has no money.
pub(super) fn is_unpaid(error: &ProviderError) -> bool {
    let text = error.message.as_deref().unwrap_or_default().to_lowercase();
    let follows = |(start, then): &(&str, &str)| {
        text.strip_prefix(start)
            .is_some_and(|rest| rest.contains(then))
    };
    words(error).any(|word| UNPAID_CODES.contains(&&*word)) || UNPAID_TEXTS.iter().any(follows)
}

/// The code for the client of an error about the request itself.
pub(super) fn request_code(error: &ProviderError) -> Option<ErrorCode> {
    let known = |word: String| {
        let mut codes = REQUEST_CODES.iter();
        codes
            .find(|(known, _)| *known == word)
            .map(|(_, code)| *code)
    };
    let text = error.message.as_deref().unwrap_or_default().to_lowercase();
    let begins = |(start, _): &&(&str, ErrorCode)| text.starts_with(start);
    let by_text = || REQUEST_TEXTS.iter().find(begins).map(|(_, code)| *code);
    words(error).find_map(known).or_else(by_text)
}

/// The request member named by an error, if a path of names and indexes.
pub(super) fn request_param(error: &ProviderError) -> Option<&str> {
    let param = error.param.as_deref()?;
    let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"_.[]-".contains(&byte);
    (param.len() <= PARAM_BYTES_MAX && param.bytes().all(is_path)).then_some(param)
}

/// The error's `code` and `type`.
fn words(error: &ProviderError) -> impl Iterator<Item = String> {
    let words = [error.code.as_deref(), error.kind.as_deref()];
    words.into_iter().flatten().map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> ProviderError {
        ProviderError::read(body.as_bytes())
    }

    #[test]
    fn a_provider_without_money_is_known_by_its_code_or_the_start_of_its_message() {
        for (body, found) in [
            (
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}"#,
                true,
            ),
            (
                r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
                true,
            ),
            (
                r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#,
                true,
            ),
            (
                r#"{"error":{"code":402,"message":"Insufficient credits. Add more using https://openrouter.ai/settings/credits"}}"#,
                true,
            ),
            (
                r#"{"error":{"code":"Arrearage","message":"Access denied, please make sure your account is in good standing.","type":"Arrearage"}}"#,
                true,
            ),
            (
                r#"{"error":{"type":"billing_error","message":"Payment required"}}"#,
                true,
            ),
            (
                r#"{"code":"7","error":"Your team 0a1b has either used all available credits or reached its monthly spending limit."}"#,
                true,
            ),
            (
                r#"{"error":{"code":"1113","message":"余额不足或无可用资源包,请充值。"}}"#,
                true,
            ),
            // A rate limit of Gemini, with OpenAI's text.
            (
                r#"[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED"}}]"#,
                false,
            ),
            // The request, quoted.
            (
                r#"{"error":{"message":"Invalid value: 'your credit balance is too low'. Supported values are: 'a'.","code":"invalid_value"}}"#,
                false,
            ),
            (
                r#"{"detail":[{"type":"missing","msg":"Field required","input":{"code":"insufficient_quota","type":"billing_error"}}]}"#,
                false,
            ),
            ("", false),
            ("<html><title>400</title>", false),
        ] {
            assert_eq!(is_unpaid(&read(body)), found, "{body}");
        }
    }

    #[test]
    fn codes_and_members_of_an_invalid_request_are_known() {
        for (body, code, param) in [
            (
                r#"{"error":{"message":"m","code":"context_length_exceeded","param":"messages"}}"#,
                Some(ErrorCode::ContextLengthExceeded),
                Some("messages"),
            ),
            (
                r#"{"error":{"message":"m","type":"exceed_context_size_error","code":400}}"#,
                Some(ErrorCode::ContextLengthExceeded),
                None,
            ),
            (
                r#"{"object":"error","message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","param":null,"code":400}"#,
                Some(ErrorCode::ContextLengthExceeded),
                None,
            ),
            (
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
                Some(ErrorCode::ContextLengthExceeded),
                None,
            ),
            (
                r#"{"error":{"message":"m","code":"content_filter","param":"prompt","innererror":{"code":"ResponsibleAIPolicyViolation"}}}"#,
                Some(ErrorCode::ContentFilter),
                Some("prompt"),
            ),
            (
                r#"{"error":{"message":"m","code":"unsupported_parameter","param":"max_tokens"}}"#,
                Some(ErrorCode::UnsupportedParameter),
                Some("max_tokens"),
            ),
            (
                r#"{"error":{"message":"m","code":"unsupported_value","param":"messages[2].content[0].image_url"}}"#,
                Some(ErrorCode::UnsupportedValue),
                Some("messages[2].content[0].image_url"),
            ),
            (
                r#"{"error":{"message":"m","code":"invalid_value","param":"the account of org x"}}"#,
                None,
                None,
            ),
            (r#"{"error":{"message":"m"}}"#, None, None),
        ] {
            let error = read(body);
            assert_eq!(request_code(&error), code, "{body}");
            assert_eq!(request_param(&error), param, "{body}");
        }
    }
}
