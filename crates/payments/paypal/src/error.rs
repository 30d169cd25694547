//! Errors of PayPal's API and their classes. Decided by `issue`, never by a description (Orders v2, `error_details`).

use serde::Deserialize;

/// Why a call to PayPal failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {detail}")]
pub struct Error {
    /// Its class.
    pub kind: ErrorKind,
    /// The operation.
    pub what: &'static str,
    /// For the log: status, name, issue, and PayPal's debug id. No data about the buyer.
    pub detail: String,
}

/// Class of a failure, which decides on retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No answer, or an unreadable one. The call may or may not have taken effect.
    OutcomeUnknown,
    /// Not carried out, and may be retried: no connection, no token, or rate limited (429).
    Unavailable,
    /// Not carried out: wrong credentials, permissions or request (401 after a new token, 403, 400).
    Misconfigured,
    /// The object does not exist, or no longer does (404).
    Gone,
    /// The buyer has not approved yet.
    NotApproved,
    /// The payment method was declined; another method may work.
    Declined,
    /// Carried out before, or in progress.
    AlreadyDone,
    /// Refused for good (422).
    Refused,
}

/// An error body of PayPal (Orders v2, `error`), or of its token endpoint (RFC 6749 section 5.2).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    name: Option<String>,
    debug_id: Option<String>,
    details: Vec<Detail>,
    error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Detail {
    issue: String,
}

/// Issues after which the buyer returns to PayPal to choose another payment method (Orders v2, `orders.capture-422`).
const CHOOSE_AGAIN: &[&str] = &[
    "INSTRUMENT_DECLINED",
    "PAYER_ACTION_REQUIRED",
    "PAYER_CANNOT_PAY",
    "REDIRECT_PAYER_FOR_ALTERNATE_FUNDING",
    "TRANSACTION_LIMIT_EXCEEDED",
    "TRANSACTION_REFUSED",
];

/// Issues of calls that were carried out before, or are in progress.
const ALREADY_DONE: &[&str] = &[
    "CAPTURE_FULLY_REFUNDED",
    "DUPLICATE_INVOICE_ID",
    "DUPLICATE_RESOURCE_IDENTIFIER",
    "ORDER_ALREADY_CAPTURED",
    "ORDER_COMPLETION_IN_PROGRESS",
    // On cancelling or activating a subscription (Subscriptions v1, `subscriptions.cancel-422`).
    "SUBSCRIPTION_STATUS_INVALID",
];

/// Issues with the merchant's plan (Subscriptions v1, `subscriptions.create-422`).
const OUR_PLAN: &[&str] = &[
    "CURRENCY_NOT_SUPPORTED_FOR_RECEIVER",
    "PLAN_STATUS_INVALID",
    "PRODUCT_STATUS_INVALID",
];

impl Error {
    /// A call without an answer.
    pub(crate) fn from_transport(what: &'static str, error: &reqwest::Error) -> Error {
        // Without a connection nothing was sent. Any later failure may have been preceded by the effect.
        let kind = match error.is_connect() {
            true => ErrorKind::Unavailable,
            false => ErrorKind::OutcomeUnknown,
        };
        let detail = if error.is_timeout() {
            "timed out waiting for the answer"
        } else if error.is_connect() {
            "no connection"
        } else {
            "connection lost"
        };
        Error::new(kind, what, detail)
    }

    pub(crate) fn new(kind: ErrorKind, what: &'static str, detail: impl Into<String>) -> Error {
        Error {
            kind,
            what,
            detail: detail.into(),
        }
    }

    /// An error answer.
    pub(crate) fn from_response(
        what: &'static str,
        status: u16,
        debug_id: Option<&str>,
        body: &[u8],
    ) -> Error {
        let body: Body = serde_json::from_slice(body).unwrap_or_default();
        let issue = body
            .details
            .iter()
            .map(|detail| &*detail.issue)
            .find(|issue| !issue.is_empty());
        let name = body.name.as_deref().or(body.error.as_deref());
        let word = issue.or(name).map(plain).unwrap_or_default();
        let debug_id = debug_id.or(body.debug_id.as_deref()).map(plain);
        let kind = match (status, issue) {
            (_, Some("ORDER_NOT_APPROVED")) => ErrorKind::NotApproved,
            (_, Some(issue)) if CHOOSE_AGAIN.contains(&issue) => ErrorKind::Declined,
            (_, Some(issue)) if ALREADY_DONE.contains(&issue) => ErrorKind::AlreadyDone,
            (_, Some(issue)) if OUR_PLAN.contains(&issue) => ErrorKind::Misconfigured,
            (400 | 401 | 403 | 405 | 406 | 413 | 415, _) => ErrorKind::Misconfigured,
            (404, _) => ErrorKind::Gone,
            (422, _) => ErrorKind::Refused,
            (429, _) => ErrorKind::Unavailable,
            // 409, 5xx and others: another call with this key may be in progress, or was interrupted.
            _ => ErrorKind::OutcomeUnknown,
        };
        let mut detail = format!("{status} {word}");
        if let Some(debug_id) = debug_id {
            detail += &format!(" (debug id {debug_id})");
        }
        Error::new(kind, what, detail)
    }
}

/// Untrusted text, reduced to characters that are safe in a log.
fn plain(word: &str) -> String {
    word.chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
        .take(80)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_classified_by_their_issue() {
        let with = |issue: &str| {
            format!(
                r#"{{"name":"UNPROCESSABLE_ENTITY","message":"m","debug_id":"b1","details":[{{"issue":"{issue}","description":"ORDER_ALREADY_CAPTURED"}}]}}"#
            )
        };
        for (status, body, kind) in [
            (422, with("ORDER_NOT_APPROVED"), ErrorKind::NotApproved),
            (422, with("INSTRUMENT_DECLINED"), ErrorKind::Declined),
            (422, with("ORDER_ALREADY_CAPTURED"), ErrorKind::AlreadyDone),
            (422, with("DUPLICATE_INVOICE_ID"), ErrorKind::AlreadyDone),
            (422, with("COMPLIANCE_VIOLATION"), ErrorKind::Refused),
            (422, with("PLAN_STATUS_INVALID"), ErrorKind::Misconfigured),
            (422, with("SUBSCRIBER_ACCOUNT_LOCKED"), ErrorKind::Refused),
            // Suspended for failed payments (`subscriptions.activate-422`).
            (
                422,
                with("SUBSCRIPTION_CANNOT_BE_ACTIVATED"),
                ErrorKind::Refused,
            ),
            (
                422,
                with("SUBSCRIPTION_STATUS_INVALID"),
                ErrorKind::AlreadyDone,
            ),
            (422, with("CAPTURE_FULLY_REFUNDED"), ErrorKind::AlreadyDone),
            (
                409,
                with("DUPLICATE_RESOURCE_IDENTIFIER"),
                ErrorKind::AlreadyDone,
            ),
            (422, String::from("<html>"), ErrorKind::Refused),
            (
                400,
                with("INVALID_PARAMETER_VALUE"),
                ErrorKind::Misconfigured,
            ),
            (
                401,
                String::from(r#"{"error":"invalid_client"}"#),
                ErrorKind::Misconfigured,
            ),
            (403, with("PERMISSION_DENIED"), ErrorKind::Misconfigured),
            (404, with("INVALID_RESOURCE_ID"), ErrorKind::Gone),
            (409, String::new(), ErrorKind::OutcomeUnknown),
            (429, String::new(), ErrorKind::Unavailable),
            (500, String::new(), ErrorKind::OutcomeUnknown),
            (503, String::from("null"), ErrorKind::OutcomeUnknown),
        ] {
            let error = Error::from_response("a call", status, None, body.as_bytes());
            assert_eq!(error.kind, kind, "{status} {body}");
        }
    }

    #[test]
    fn a_failure_logs_the_debug_id_and_no_data_about_the_buyer() {
        let body = br#"{"name":"UNPROCESSABLE_ENTITY","message":"mara@example.com cannot pay","debug_id":"90957fca61718",
            "details":[{"issue":"PAYER_CANNOT_PAY","value":"mara@example.com","description":"mara"}]}"#;
        let error = Error::from_response("capture order", 422, None, body);
        assert_eq!(
            error.to_string(),
            "capture order: 422 PAYER_CANNOT_PAY (debug id 90957fca61718)"
        );
        let error = Error::from_response("x", 500, Some("a\nb"), b"");
        assert_eq!(error.to_string(), "x: 500  (debug id ab)");
    }
}
