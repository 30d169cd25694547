//! Meaning of providers' error bodies, as far as the gateway or its clients act on the error.
//!
//! A provider may quote the request in the message. So a text counts only at the start of a message, where providers quote no request: a
//! request must not be able to take a provider out for every client.

use http::StatusCode;
use tollgate_filter::ErrorCode;
use tollgate_openai::provider_error::ProviderError;

use super::request::Unpaid;

/// Members `code` or `type` that report an account without money at the provider: of OpenAI (the first four), Anthropic, Groq, DashScope,
/// Volcengine, Moonshot.
const UNPAID_CODES: [&str; 10] = [
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
];

/// Members `code` or `type` of providers that hold the highest price of a request before the request is served, so that a long answer may
/// be refused while a short one is served: of gateways like this one, and of the family of one-api. A balance of nothing has the same code
/// there; but holds of other requests take a balance to nothing too.
const TOO_DEAR_CODES: [&str; 2] = ["insufficient_credits", "insufficient_user_quota"];

/// Parts of messages with the same meaning: of OpenRouter.
const TOO_DEAR_TEXTS: [&str; 3] = [
    "requires more credits",
    "fewer max_tokens",
    "can only afford",
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

/// Whether an answer of this status says that money is lacking in the gateway's account at the provider, and for which requests. In doubt
/// for this request alone: the client chooses `max_tokens`.
pub(super) fn unpaid(status: StatusCode, error: &ProviderError) -> Option<Unpaid> {
    if !status.is_client_error() {
        return None;
    }
    let text = error.message.as_deref().unwrap_or_default().to_lowercase();
    let follows = |(start, then): &(&str, &str)| {
        text.strip_prefix(start)
            .is_some_and(|rest| rest.contains(then))
    };
    let has_code = |codes: &[&str]| words(error).any(|word| codes.contains(&&*word));
    let is_402 = status == StatusCode::PAYMENT_REQUIRED;
    if has_code(&TOO_DEAR_CODES) {
        return Some(Unpaid::Request);
    }
    if has_code(&UNPAID_CODES) || UNPAID_TEXTS.iter().any(follows) {
        // Anywhere in the message, since a quoted request could not take the provider out by this.
        let is_too_dear = TOO_DEAR_TEXTS.iter().any(|part| text.contains(part));
        return Some(match is_too_dear {
            true => Unpaid::Request,
            false => Unpaid::Account,
        });
    }
    is_402.then_some(Unpaid::Request)
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
        const ACCOUNT: Option<Unpaid> = Some(Unpaid::Account);
        for (body, found) in [
            (
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}"#,
                ACCOUNT,
            ),
            (
                r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
                ACCOUNT,
            ),
            (
                r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#,
                ACCOUNT,
            ),
            (
                r#"{"error":{"code":402,"message":"Insufficient credits. Add more using https://openrouter.ai/settings/credits"}}"#,
                ACCOUNT,
            ),
            (
                r#"{"error":{"code":"Arrearage","message":"Access denied, please make sure your account is in good standing.","type":"Arrearage"}}"#,
                ACCOUNT,
            ),
            (
                r#"{"error":{"type":"billing_error","message":"Payment required"}}"#,
                ACCOUNT,
            ),
            (
                r#"{"code":"7","error":"Your team 0a1b has either used all available credits or reached its monthly spending limit."}"#,
                ACCOUNT,
            ),
            (
                r#"{"error":{"code":"1113","message":"余额不足或无可用资源包,请充值。"}}"#,
                ACCOUNT,
            ),
            // A rate limit of Gemini, with OpenAI's text.
            (
                r#"[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED"}}]"#,
                None,
            ),
            // The request, quoted.
            (
                r#"{"error":{"message":"Invalid value: 'your credit balance is too low'. Supported values are: 'a'.","code":"invalid_value"}}"#,
                None,
            ),
            (
                r#"{"detail":[{"type":"missing","msg":"Field required","input":{"code":"insufficient_quota","type":"billing_error"}}]}"#,
                None,
            ),
            ("", None),
            ("<html><title>400</title>", None),
        ] {
            assert_eq!(
                unpaid(StatusCode::BAD_REQUEST, &read(body)),
                found,
                "{body}"
            );
        }
    }

    /// The client chooses `max_tokens`, and with `max_tokens` the amount held by a provider.
    #[test]
    fn a_request_that_the_money_does_not_cover_says_nothing_about_other_requests() {
        let more = "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, but can only afford 30104.";
        for (status, message, kind, code, found) in [
            (402, more, "", "402", Some(Unpaid::Request)),
            // Codes and texts of two kinds.
            (402, more, "insufficient_quota", "", Some(Unpaid::Request)),
            (
                402,
                "Insufficient credits. You can only afford 30104.",
                "",
                "402",
                Some(Unpaid::Request),
            ),
            (
                403,
                "user quota is not enough",
                "new_api_error",
                "insufficient_user_quota",
                Some(Unpaid::Request),
            ),
            (
                402,
                "The account has 0.01 credits to spend and this request may need 0.63.",
                "insufficient_credits_error",
                "insufficient_credits",
                Some(Unpaid::Request),
            ),
            (
                402,
                "Prompt tokens limit exceeded: 10000 > 6000.",
                "",
                "402",
                Some(Unpaid::Request),
            ),
            (402, "", "", "", Some(Unpaid::Request)),
            (402, "Insufficient Balance", "", "", Some(Unpaid::Account)),
            (400, more, "", "", None),
            (500, "", "", "insufficient_credits", None),
            (500, "", "", "insufficient_quota", None),
        ] {
            let error = ProviderError {
                message: Some(message.to_owned()),
                kind: Some(kind.to_owned()),
                code: Some(code.to_owned()),
                ..ProviderError::default()
            };
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(unpaid(status, &error), found, "{status} {message} {code}");
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
