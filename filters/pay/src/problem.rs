//! Error responses of the payment routes. One object is both a problem (RFC 9457) and the error envelope of the service, so clients of
//! either kind can read the response.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use tollgate_filter::{ApiError, ErrorCode, ErrorType, Exchange, Outcome, Reply, ReplyBody};
use tollgate_purchase::plan::{PaymentState, RetryAction};

/// Base URI of the problem types of the `Payment` scheme, for both payment routes.
const BASE: &str = "https://paymentauth.org/problems/";

/// The media type of a problem, on routes that announce it.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// The media type of every other response.
pub(crate) const JSON: &str = "application/json";

/// Why the plan is not active yet, and what to do.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    error: Box<ApiError>,
    state: PaymentState,
    action: RetryAction,
    approval_url: Option<String>,
    /// Members of the payment protocol.
    payment: Option<Value>,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: Cow<'static, str>,
    title: &'a str,
    status: u16,
    detail: &'a str,
    payment_state: &'static str,
    retry_action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_url: Option<&'a str>,
    #[serde(flatten)]
    payment: Option<&'a Value>,
    error: Envelope<'a>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}

impl Problem {
    /// A problem; `detail` is for a person.
    pub(crate) fn new(
        code: ErrorCode,
        detail: impl Into<Cow<'static, str>>,
        state: PaymentState,
        action: RetryAction,
    ) -> Problem {
        Problem::of(ApiError::new(code, detail), state, action)
    }

    /// An error of another part of the program. A 400 is no reason to pay, whatever was asked for.
    pub(crate) fn of(error: ApiError, state: PaymentState, action: RetryAction) -> Problem {
        let action = match error.status() {
            StatusCode::BAD_REQUEST => RetryAction::FixRequest,
            _ => action,
        };
        Problem {
            error: Box::new(error),
            state,
            action,
            approval_url: None,
            payment: None,
        }
    }

    /// Adds the payment protocol's members to the body, for clients without access to header fields.
    #[must_use]
    pub(crate) fn payment(mut self, members: Value) -> Problem {
        self.payment = Some(members);
        self
    }

    /// Adds the approval URL.
    #[must_use]
    pub(crate) fn approval_url(mut self, url: impl Into<String>) -> Problem {
        self.approval_url = Some(url.into());
        self
    }

    /// Adds `Retry-After`.
    #[must_use]
    pub(crate) fn retry_after(mut self, wait: Duration) -> Problem {
        self.error.retry_after = Some(wait);
        self
    }

    /// Names the limit of a 429, in its rate limit fields.
    #[must_use]
    pub(crate) fn limit(mut self, name: &'static str) -> Problem {
        self.error.limit = Some(name);
        self
    }

    /// Adds a header field to the response.
    #[must_use]
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Problem {
        self.error
            .headers
            .get_or_insert_default()
            .append(name, value);
        self
    }

    /// The response: a 402 as `media`, everything else as JSON. Never cached.
    pub(crate) fn outcome(self, exchange: &mut Exchange, media: &'static str) -> Outcome {
        exchange.record.error = Some(self.error.code);
        let status = self.error.status();
        let mut headers = HeaderMap::with_capacity(8);
        self.error.write_headers(&mut headers);
        self.error.write_limit(&mut headers);
        if self.error.code.kind() == ErrorType::PaymentRequired {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
        }
        Outcome::reply(Reply {
            status,
            headers,
            body: ReplyBody::Whole(self.body()),
        })
    }

    fn body(&self) -> Bytes {
        let error = &self.error;
        let (kind, title) = kind_and_title(error.code);
        let body = Body {
            kind,
            title,
            status: error.status().as_u16(),
            detail: &error.message,
            payment_state: self.state.word(),
            retry_action: self.action.word(),
            approval_url: self.approval_url.as_deref(),
            payment: self.payment.as_ref(),
            error: Envelope {
                message: &error.message,
                kind: error.code.kind().word(),
                param: error.param.as_deref(),
                code: error.code.word(),
            },
        };
        Bytes::from(serde_json::to_vec(&body).expect("texts and numbers serialise"))
    }
}

/// The `type` and the constant title of a problem. A code outside the scheme gets `about:blank` and the title of the status (RFC 9457
/// section 4.2.1).
fn kind_and_title(code: ErrorCode) -> (Cow<'static, str>, &'static str) {
    let title = match code {
        ErrorCode::PaymentRequired => "Payment Required",
        ErrorCode::MalformedCredential => "Malformed Credential",
        ErrorCode::InvalidChallenge => "Invalid Challenge",
        ErrorCode::InvalidPayload => "Invalid Payload",
        ErrorCode::PaymentExpired => "Payment Expired",
        ErrorCode::PaymentActionRequired => "Payment Action Required",
        ErrorCode::VerificationFailed => "Verification Failed",
        ErrorCode::MethodUnsupported => "Method Unsupported",
        _ => {
            let reason = code.status().canonical_reason();
            return ("about:blank".into(), reason.unwrap_or("Error"));
        }
    };
    (format!("{BASE}{}", code.word()).into(), title)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tollgate_filter::CODES;

    use super::*;

    fn body(problem: &Problem) -> Value {
        serde_json::from_slice(&problem.body()).expect("JSON")
    }

    #[test]
    fn a_problem_is_also_the_error_envelope() {
        let problem = Problem::new(
            ErrorCode::PaymentActionRequired,
            "The owner has not approved yet.",
            PaymentState::ApprovalPending,
            RetryAction::ApproveThenRetry,
        )
        .approval_url("https://paypal.example/approve");
        assert_eq!(
            body(&problem),
            json!({
                "type": "https://paymentauth.org/problems/payment-action-required",
                "title": "Payment Action Required",
                "status": 402,
                "detail": "The owner has not approved yet.",
                "payment_state": "approval_pending",
                "retry_action": "approve_then_retry",
                "approval_url": "https://paypal.example/approve",
                "error": {
                    "message": "The owner has not approved yet.",
                    "type": "payment_required_error",
                    "param": null,
                    "code": "payment-action-required",
                },
            })
        );
        let elsewhere = Problem::of(
            ApiError::new(ErrorCode::UnknownField, "There is no `x`.").param("x"),
            PaymentState::Required,
            RetryAction::Pay,
        );
        let elsewhere = body(&elsewhere);
        assert_eq!(elsewhere["type"], "about:blank");
        assert_eq!(elsewhere["title"], "Bad Request");
        assert_eq!(elsewhere["error"]["param"], "x");
        assert_eq!(elsewhere["retry_action"], "fix_request");
        assert_eq!(elsewhere.get("approval_url"), None);
    }

    #[test]
    fn codes_with_hyphens_are_problem_types_of_the_scheme() {
        for code in CODES {
            let (kind, title) = kind_and_title(*code);
            let by_scheme = code.word().contains('-');
            assert_eq!(kind.starts_with(BASE), by_scheme, "{code:?}");
            assert!(!title.is_empty());
            if code.kind() == ErrorType::PaymentRequired {
                assert_eq!(code.status().as_u16(), 402);
                assert!(by_scheme, "{code:?}");
            }
        }
    }
}
