//! What PayPal says no with, and what it means. Decided on `issue`, never on a description (Orders v2, `error_details`).

use serde::Deserialize;

/// Why PayPal did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {detail}")]
pub struct Error {
    /// What it means.
    pub kind: ErrorKind,
    /// What was asked for.
    pub what: &'static str,
    /// For the log: status, name, issue, and the id that PayPal's support asks for. Nothing of the buyer.
    pub detail: String,
}

/// What a failure means for whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No answer, or none that can be understood. It may or may not have been done.
    OutcomeUnknown,
    /// Not done, and it may work later: no connection, no token to be had, too many calls (429).
    Unavailable,
    /// Not done: our credentials, permissions or requests are wrong (401 after a new token, 403, 400).
    Misconfigured,
    /// There is no such thing, or no longer (404).
    Gone,
    /// The buyer has not agreed yet.
    NotApproved,
    /// The money cannot be taken from what the buyer has chosen; another choice may do.
    Declined,
    /// It was done before, or is being done.
    AlreadyDone,
    /// It will not be done (422).
    Refused,
}

/// An error as PayPal writes it (Orders v2, `error`), or as its token endpoint does (RFC 6749 section 5.2).
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

/// Issues after which the buyer goes to PayPal again and chooses otherwise (Orders v2, `orders.capture-422`).
const CHOOSE_AGAIN: &[&str] = &[
    "INSTRUMENT_DECLINED",
    "PAYER_ACTION_REQUIRED",
    "PAYER_CANNOT_PAY",
    "REDIRECT_PAYER_FOR_ALTERNATE_FUNDING",
    "TRANSACTION_LIMIT_EXCEEDED",
    "TRANSACTION_REFUSED",
];

/// Issues that say that it was done before, or is being done.
const ALREADY_DONE: &[&str] = &[
    "CAPTURE_FULLY_REFUNDED",
    "DUPLICATE_INVOICE_ID",
    "DUPLICATE_RESOURCE_IDENTIFIER",
    "ORDER_ALREADY_CAPTURED",
    "ORDER_COMPLETION_IN_PROGRESS",
    // Of a subscription that is to be ended or started (Subscriptions v1, `subscriptions.cancel-422`).
    "SUBSCRIPTION_STATUS_INVALID",
];

/// Issues that say that the merchant's plan does not allow it (Subscriptions v1, `subscriptions.create-422`).
const OUR_PLAN: &[&str] = &[
    "CURRENCY_NOT_SUPPORTED_FOR_RECEIVER",
    "PLAN_STATUS_INVALID",
    "PRODUCT_STATUS_INVALID",
];

impl Error {
    /// No answer.
    pub(crate) fn from_transport(what: &'static str, error: &reqwest::Error) -> Error {
        // Without a connection nothing was sent. Everything later may have arrived.
        let kind = match error.is_connect() {
            true => ErrorKind::Unavailable,
            false => ErrorKind::OutcomeUnknown,
        };
        let detail = if error.is_timeout() {
            "no answer in time"
        } else if error.is_connect() {
            "no connection"
        } else {
            "the connection was lost"
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

    /// An answer that says no.
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
            // 409, 5xx and whatever else: another call with the same key may be under way, or was cut off in the middle.
            _ => ErrorKind::OutcomeUnknown,
        };
        let mut detail = format!("{status} {word}");
        if let Some(debug_id) = debug_id {
            detail += &format!(" (debug id {debug_id})");
        }
        Error::new(kind, what, detail)
    }
}

/// A word from outside, fit for a log.
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
    fn failures_are_told_apart_by_their_issue() {
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
    fn a_failure_tells_the_log_what_support_asks_for_and_nothing_else() {
        let body = br#"{"name":"UNPROCESSABLE_ENTITY","message":"mara@example.com cannot pay","debug_id":"90957fca61718",
            "details":[{"issue":"PAYER_CANNOT_PAY","value":"mara@example.com","description":"mara"}]}"#;
        let error = Error::from_response("take the money", 422, None, body);
        assert_eq!(
            error.to_string(),
            "take the money: 422 PAYER_CANNOT_PAY (debug id 90957fca61718)"
        );
        let error = Error::from_response("x", 500, Some("a\nb"), b"");
        assert_eq!(error.to_string(), "x: 500  (debug id ab)");
    }
}
