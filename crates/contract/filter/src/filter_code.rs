//! Error codes of filters of other programs, with their status, type and prefix.

use std::borrow::Cow;

use crate::{ApiError, ErrorCode, ErrorType};

/// An error code of a filter: `price-limit.too_expensive`. The gateway's codes have no dot: a filter cannot replace a gateway code.
///
/// ```
/// use tollgate_filter::{ErrorShape, ErrorType, FilterCode};
///
/// /// The request may cost more than the limit.
/// static TOO_EXPENSIVE: FilterCode =
///     FilterCode::new("price-limit.too_expensive", 400, ErrorType::InvalidRequest).never_retry();
///
/// let error = TOO_EXPENSIVE.error("The request may cost 2 credits; the limit is 1. Lower `max_tokens`.");
/// let body = error.body(ErrorShape::Envelope);
/// assert!(body.ends_with(br#""type":"invalid_request_error","param":null,"code":"price-limit.too_expensive"}}"#));
/// ```
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct FilterCode {
    pub(crate) word: &'static str,
    pub(crate) status: u16,
    pub(crate) kind: ErrorType,
    pub(crate) should_retry: Option<bool>,
}

impl FilterCode {
    /// A code: the name of the filter, a dot and a word, with its status and type. In a `static`, an invalid code does not compile:
    ///
    /// ```compile_fail
    /// # use tollgate_filter::{ErrorType, FilterCode};
    /// static NOT_FOUND: FilterCode = FilterCode::new("not_found", 404, ErrorType::InvalidRequest);
    /// ```
    ///
    /// # Panics
    ///
    /// The status is not 400 to 599, or the word is not lower-case letters, digits, `-` and `_` with one dot between them.
    pub const fn new(word: &'static str, status: u16, kind: ErrorType) -> FilterCode {
        assert!(
            status >= 400 && status <= 599,
            "an error has a status of 400 to 599"
        );
        assert!(
            is_prefixed(word.as_bytes()),
            "a code is the filter's name, a dot and a word"
        );
        FilterCode {
            word,
            status,
            kind,
            should_retry: None,
        }
    }

    /// Reports to clients that a retry is of no use (`x-should-retry: false`). Without the report clients decide by the status.
    #[must_use]
    pub const fn never_retry(self) -> FilterCode {
        FilterCode {
            should_retry: Some(false),
            ..self
        }
    }

    /// Reports to clients that a retry may succeed (`x-should-retry: true`), whatever the status. `ApiError::retry_after` gives the time.
    #[must_use]
    pub const fn may_retry(self) -> FilterCode {
        FilterCode {
            should_retry: Some(true),
            ..self
        }
    }

    /// An error of this code with a message for the client's developer: the problem, its place, and the remedy.
    pub fn error(&'static self, message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(ErrorCode::OfFilter(self), message)
    }
}

const fn is_prefixed(word: &[u8]) -> bool {
    let mut dots = 0;
    let mut at = 0;
    while at < word.len() {
        match word[at] {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => {}
            b'.' if at > 0 && at + 1 < word.len() => dots += 1,
            _ => return false,
        }
        at += 1;
    }
    dots == 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderMap;

    use super::*;
    use crate::{CODES, ErrorShape};

    static CLOSED: FilterCode = FilterCode::new("hours.closed", 403, ErrorType::Permission);
    static HOPELESS: FilterCode = FilterCode::new("h.a_b-1", 410, ErrorType::Server).never_retry();
    static SOON: FilterCode = FilterCode::new("h.soon", 409, ErrorType::Unavailable).may_retry();

    #[test]
    fn a_code_of_a_filter_has_the_envelope_and_the_status_of_its_own() {
        let error = CLOSED.error("closed");
        assert_eq!(error.status(), 403);
        assert_eq!(
            &error.body(ErrorShape::Envelope)[..],
            br#"{"error":{"message":"closed","type":"permission_error","param":null,"code":"hours.closed"}}"#
        );
        let oauth = SOON.error("later").body(ErrorShape::OAuth);
        assert!(oauth.starts_with(br#"{"error":"temporarily_unavailable""#));
    }

    #[test]
    fn a_filter_says_whether_a_retry_is_of_use() {
        let stated = |error: ApiError| {
            let mut headers = HeaderMap::new();
            error.write_headers(&mut headers);
            headers.remove("x-should-retry")
        };
        assert_eq!(stated(CLOSED.error("")), None);
        assert_eq!(stated(HOPELESS.error("")).expect("a field"), "false");
        assert_eq!(stated(SOON.error("")).expect("a field"), "true");
        let long = SOON.error("").retry_after(Duration::from_secs(61));
        assert_eq!(
            stated(long).expect("a field"),
            "false",
            "a client would hang"
        );
    }

    #[test]
    fn no_code_of_the_gateway_has_the_form_of_a_filters_code() {
        for code in CODES {
            assert!(!is_prefixed(code.word().as_bytes()), "{}", code.word());
        }
        for word in [
            "closed",
            ".closed",
            "hours.",
            "a.b.c",
            "Hours.closed",
            "a. b",
        ] {
            assert!(!is_prefixed(word.as_bytes()), "{word}");
        }
    }
}
