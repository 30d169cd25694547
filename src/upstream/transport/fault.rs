//! Error mapping: failures of providers as errors for the client and log lines for the operator, with the gateway's key redacted.

use std::time::Duration;

use http::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use tollgate_chain::UpstreamError;
use tollgate_filter::UpstreamFault;
use tollgate_openai::provider_error::ProviderError;

/// The replacement for a secret.
const REDACTED: &str = "[redacted]";

/// The `Retry-After` for the client when a provider that limits the gateway names none.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(5);

/// An answer other than 200. `retry_after` is its `Retry-After`, within the bound.
pub(in crate::upstream) fn of_status(
    status: StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
    key: Option<&SecretString>,
) -> UpstreamError {
    let message = provider_message(body, key);
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
    if fault != UpstreamFault::BadRequest {
        error.answer.retry_after = retry_after.map(at_least_a_second);
    }
    error
}

/// A wait that a client cannot take for none.
fn at_least_a_second(wait: Duration) -> Duration {
    wait.max(Duration::from_secs(1))
}

/// A rate limit of the provider on the gateway, for this long.
pub(in crate::upstream) fn limited(detail: impl Into<String>, wait: Duration) -> UpstreamError {
    with_retry_after(UpstreamFault::RateLimited, detail, wait)
}

/// No provider was called: all are at capacity or unhealthy, for this long.
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

/// The message in the body of a provider's error, with the gateway's key redacted.
fn provider_message(body: &[u8], key: Option<&SecretString>) -> String {
    let Some(key) = key else {
        return ProviderError::read(body).message.unwrap_or_default();
    };
    // Before the message is truncated, so that no part of the key remains; and after, since JSON may have escaped it.
    let text = redact(&String::from_utf8_lossy(body), key);
    let message = ProviderError::read(text.as_bytes()).message;
    redact(&message.unwrap_or_default(), key)
}

/// A text with the key redacted.
pub(in crate::upstream) fn redact(text: &str, key: &SecretString) -> String {
    text.replace(key.expose_secret(), REDACTED)
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
                let error = of_status(status, None, body.as_bytes(), Some(&key));
                let texts = format!("{} {}", error.detail, error.answer.message);
                assert!(!texts.contains("secret/12"), "{texts}");
                assert!(
                    texts.contains("bad key [redacted]!") || body.starts_with('x'),
                    "{texts}"
                );
            }
        }
    }
}
