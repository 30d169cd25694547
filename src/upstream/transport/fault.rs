//! Error mapping: failures of providers as errors for the client and log lines for the operator, with the gateway's key redacted.

use std::time::Duration;

use http::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use tollgate_chain::UpstreamError;
use tollgate_filter::UpstreamFault;
use tollgate_openai::provider_error::ProviderError;

use super::provider_words::{request_code, request_param, unpaid};
use super::request::{AttemptError, Unpaid};

/// The replacement for a secret.
const REDACTED: &str = "[redacted]";

/// How ids of accounts begin.
const ACCOUNT_IDS: [&str; 8] = [
    "org-", "org_", "proj-", "proj_", "user-", "acct_", "acc-", "team-",
];

/// The `Retry-After` for the client after a provider's rate limit without `Retry-After`.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(5);

/// An answer other than 200. `retry_after`: the answer's `Retry-After`, within the bound.
pub(in crate::upstream) fn of_status(
    status: StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
    key: Option<&SecretString>,
) -> AttemptError {
    let said = provider_error(body, key);
    let unpaid = unpaid(status, &said);
    let error = match unpaid {
        Some(which) => without_money(status, &said, which),
        None => paid(status, retry_after, said),
    };
    AttemptError {
        status: Some(status.as_u16()),
        retry_after,
        unpaid,
        ..error.into()
    }
}

/// The gateway's account at the provider lacks money. The client cannot change this, and must not take the account for the client's own.
fn without_money(status: StatusCode, said: &ProviderError, which: Unpaid) -> UpstreamError {
    let message = said.message.as_deref().unwrap_or_default();
    let lack = match which {
        Unpaid::Account => "has no money",
        Unpaid::Request => "has too little money for this request",
    };
    let detail = format!(
        "answered {status}: {message}; the account at the provider {lack}: add credit there"
    );
    UpstreamError::new(UpstreamFault::Error, "", detail)
}

fn paid(status: StatusCode, retry_after: Option<Duration>, said: ProviderError) -> UpstreamError {
    let (code, param) = (request_code(&said), request_param(&said).map(str::to_owned));
    let message = said.message.unwrap_or_default();
    let detail = format!("answered {status}: {message}");
    let (fault, message) = match status.as_u16() {
        // About the request itself: the provider's message helps the client.
        400 | 413 | 422 => (UpstreamFault::BadRequest, message),
        // The gateway's key, account or model name is wrong, which the client cannot change.
        401..=404 => {
            return UpstreamError::new(
                UpstreamFault::Error,
                "",
                format!(
                    "{detail}; check the provider's API key, the balance of the account there, `base_url` and the model's name"
                ),
            );
        }
        408 | 504 => (UpstreamFault::Timeout, String::new()),
        429 => {
            return limited(detail, retry_after.unwrap_or(RETRY_AFTER_DEFAULT));
        }
        500..=599 => (UpstreamFault::Error, String::new()),
        _ => (UpstreamFault::Invalid, String::new()),
    };
    let mut error = UpstreamError::new(fault, message, detail);
    match fault {
        UpstreamFault::BadRequest => {
            error.answer.code = code.unwrap_or(error.answer.code);
            error.answer.param = param;
        }
        _ => error.answer.retry_after = retry_after.map(at_least_a_second),
    }
    error
}

/// A wait distinguishable from zero.
fn at_least_a_second(wait: Duration) -> Duration {
    wait.max(Duration::from_secs(1))
}

/// A rate limit of the provider on the gateway, for this long.
pub(in crate::upstream) fn limited(detail: impl Into<String>, wait: Duration) -> UpstreamError {
    with_retry_after(UpstreamFault::RateLimited, detail, wait)
}

/// No provider was called: every provider is at capacity or unhealthy, for this long.
pub(in crate::upstream) fn overloaded(detail: impl Into<String>, wait: Duration) -> UpstreamError {
    with_retry_after(UpstreamFault::Overloaded, detail, wait)
}

fn with_retry_after(
    fault: UpstreamFault,
    detail: impl Into<String>,
    wait: Duration,
) -> UpstreamError {
    let mut error = UpstreamError::new(fault, "", detail);
    error.answer.retry_after = Some(at_least_a_second(wait));
    error
}

/// The error in the body of a provider's answer, redacted.
fn provider_error(body: &[u8], key: Option<&SecretString>) -> ProviderError {
    // Before the truncation of the message, so that no part of the key remains; and afterwards, since JSON may have escaped the key.
    let text = without_key(&String::from_utf8_lossy(body), key);
    let mut error = ProviderError::read(text.as_bytes());
    for text in [&mut error.message, &mut error.param] {
        *text = text.take().map(|text| redact(&text, key));
    }
    error
}

fn without_key(text: &str, key: Option<&SecretString>) -> String {
    match key.map(ExposeSecret::expose_secret) {
        Some(key) if !key.is_empty() => text.replace(key, REDACTED),
        _ => text.to_owned(),
    }
}

/// A provider's text without the gateway's key, without the remnants of a masked key, and without ids of the gateway's account.
pub(in crate::upstream) fn redact(text: &str, key: Option<&SecretString>) -> String {
    let text = without_key(text, key);
    let key = key.map_or("", |key| key.expose_secret());
    let is_word = |letter: char| letter.is_alphanumeric() || "_-*•….".contains(letter);
    let mut clean = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(start) = rest.find(is_word) {
        let length = rest[start..].find(|letter| !is_word(letter));
        let end = length.map_or(rest.len(), |length| start + length);
        let word = &rest[start..end];
        // The end of a sentence is no part of a word.
        let bare = word.trim_end_matches('.');
        clean.push_str(&rest[..start]);
        match is_account_id(bare) || is_remnant(bare, key) {
            true => {
                clean.push_str(REDACTED);
                clean.push_str(&word[bare.len()..]);
            }
            false => clean.push_str(word),
        }
        rest = &rest[end..];
    }
    clean + rest
}

/// Whether a word is the id of an organization, project, user or the like at a provider.
fn is_account_id(word: &str) -> bool {
    let id = ACCOUNT_IDS
        .iter()
        .find_map(|start| word.strip_prefix(start));
    // Words such as `user-provided` have neither a digit nor a capital.
    id.is_some_and(|id| {
        id.len() >= 6
            && id
                .bytes()
                .any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
    })
}

/// Whether a word is a part of the key: start or end, alone or around a mask (`sk-ab***yz`).
fn is_remnant(word: &str, key: &str) -> bool {
    let masks = ["*", "•", "…", "..."];
    let is_masked = masks.iter().any(|mask| word.contains(mask));
    // A few letters may be the end of a key by chance, but not beside a mask.
    let (of_start, of_end) = if is_masked { (3, 2) } else { (8, 4) };
    let mut parts = word.split(['*', '•', '…', '.']);
    parts.any(|part| {
        part.len() >= of_start && key.starts_with(part)
            || part.len() >= of_end && key.ends_with(part)
    })
}

/// The connection failed.
pub(in crate::upstream) fn unreachable(detail: impl std::fmt::Display) -> UpstreamError {
    UpstreamError::new(
        UpstreamFault::Unreachable,
        "",
        format!("cannot connect: {detail}"),
    )
}

/// A time limit expired.
pub(in crate::upstream) fn timeout(waiting_for: &str, limit: Duration) -> UpstreamError {
    let detail = format!("waited {limit:?} for {waiting_for}");
    UpstreamError::new(UpstreamFault::Timeout, "", detail)
}

/// The connection broke.
pub(in crate::upstream) fn cut(detail: impl std::fmt::Display) -> UpstreamError {
    UpstreamError::new(
        UpstreamFault::Cut,
        "",
        format!("connection broke: {detail}"),
    )
}

/// The answer is no HTTP or no completion.
pub(in crate::upstream) fn invalid(detail: impl Into<String>) -> UpstreamError {
    UpstreamError::new(UpstreamFault::Invalid, "", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_provider_are_redacted() {
        let key = SecretString::from("sk-secret/1234567890".to_owned());
        let long = "x".repeat(390);
        for body in [
            r#"{"error":{"message":"bad key sk-secret/1234567890!"}}"#.to_owned(),
            r#"{"error":{"message":"bad key \u0073k-secret\/1234567890!"}}"#.to_owned(),
            "bad key sk-secret/1234567890!".to_owned(),
            format!("{long} sk-secret/1234567890"),
        ] {
            for status in [400, 401, 429, 500] {
                let status = StatusCode::from_u16(status).expect("a status");
                let error = of_status(status, None, body.as_bytes(), Some(&key)).error;
                let texts = format!("{} {}", error.detail, error.answer.message);
                assert!(!texts.contains("secret/12"), "{texts}");
                assert!(
                    texts.contains("bad key [redacted]!") || body.starts_with('x'),
                    "{texts}"
                );
            }
        }
    }

    #[test]
    fn no_remnant_of_the_key_and_no_id_of_the_account_is_shown() {
        let key = SecretString::from("sk-proj-Ab12Cd34Ef56Gh78".to_owned());
        for (text, clean) in [
            ("key sk-proj-Ab12Cd34Ef56Gh78.", "key [redacted]."),
            ("key sk-proj-********Gh78.", "key [redacted]."),
            ("key sk-p...Gh78 is", "key [redacted] is"),
            ("key sk-…78", "key [redacted]"),
            ("key `sk-proj-Ab12`", "key `[redacted]`"),
            ("ends in Gh78", "ends in [redacted]"),
            (
                "in organization org-a1B2c3D4e5",
                "in organization [redacted]",
            ),
            ("project 'proj_Xy12345678'", "project '[redacted]'"),
            (
                "the user-provided value of 1.5...",
                "the user-provided value of 1.5...",
            ),
            (
                "messages[2].content: **bold**, max_tokens",
                "messages[2].content: **bold**, max_tokens",
            ),
            ("", ""),
        ] {
            assert_eq!(redact(text, Some(&key)), clean);
        }
        assert_eq!(redact("org-a1B2c3D4 is a key", None), "[redacted] is a key");
    }

    #[test]
    fn a_provider_without_money_is_no_error_of_the_client() {
        let unpaid = r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}"#;
        for (status, body, which) in [
            (400, unpaid, Some(Unpaid::Account)),
            (402, unpaid, Some(Unpaid::Account)),
            (402, "", Some(Unpaid::Request)),
            (403, unpaid, Some(Unpaid::Account)),
            (429, unpaid, Some(Unpaid::Account)),
            (400, "", None),
            (401, "", None),
            (500, unpaid, None),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let failed = of_status(status, None, body.as_bytes(), None);
            assert_eq!(failed.unpaid, which, "{status}");
            if which.is_some() {
                assert_eq!(failed.error.fault, UpstreamFault::Error, "{status}");
                assert!(!failed.error.answer.message.contains("credit"), "{status}");
                assert!(failed.error.detail.contains("add credit there"), "{status}");
            }
        }
    }
}
