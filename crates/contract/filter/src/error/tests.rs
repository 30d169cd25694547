//! Tests of errors as clients see them.

use std::collections::HashSet;

use super::*;

#[test]
fn every_code_has_its_own_word_and_an_error_status() {
    let words: HashSet<_> = CODES.iter().map(|code| code.word()).collect();
    assert_eq!(words.len(), CODES.len());
    for code in CODES {
        let status = code.status();
        assert!(
            status.is_client_error() || status.is_server_error(),
            "{code:?}"
        );
    }
}

#[test]
fn the_envelope_has_all_four_members_even_when_they_are_null() {
    let body = ApiError::new(ErrorCode::NotFound, "nothing here").body(ErrorShape::Envelope);
    assert_eq!(
        &body[..],
        br#"{"error":{"message":"nothing here","type":"invalid_request_error","param":null,"code":"not_found"}}"#
    );
}

#[test]
fn rfc6749_5_2_oauth_endpoints_use_the_oauth_error_format() {
    for (code, word) in [
        (ErrorCode::InvalidGrant, "invalid_grant"),
        (ErrorCode::InvalidClient, "invalid_client"),
        (ErrorCode::BodyTooLarge, "invalid_request"),
        (ErrorCode::MethodNotAllowed, "invalid_request"),
        (ErrorCode::RateLimitExceeded, "temporarily_unavailable"),
        (ErrorCode::StoreUnavailable, "temporarily_unavailable"),
        (ErrorCode::InternalError, "server_error"),
    ] {
        let body = ApiError::new(code, "a \"b\" `c` \\ \u{e9}\n").body(ErrorShape::OAuth);
        let expected = format!(r#"{{"error":"{word}","error_description":"a 'b' 'c' / ??"}}"#);
        assert_eq!(String::from_utf8_lossy(&body), expected);
    }
}

#[test]
fn platforms_read_code_and_content_beside_the_envelope() {
    let text =
        |error: ApiError| String::from_utf8(error.body(ErrorShape::Ucp).to_vec()).expect("JSON");
    assert_eq!(
        text(ApiError::new(ErrorCode::NotModifiable, "over")),
        r#"{"error":{"message":"over","type":"invalid_request_error","param":null,"code":"not_modifiable"},"code":"not_modifiable","content":"over"}"#
    );
    for (code, word) in [
        (ErrorCode::MissingCredential, "identity_required"),
        (ErrorCode::InvalidCredential, "identity_required"),
        (ErrorCode::InsufficientScope, "insufficient_scope"),
    ] {
        let body = text(ApiError::new(code, "who"));
        let message = format!(
            r#""messages":[{{"type":"error","code":"{word}","content":"who","severity":"recoverable"}}]"#
        );
        assert!(body.contains(&message), "{body}");
    }
}

#[test]
fn a_402_states_required_and_available_credits_exactly_and_where_to_top_up() {
    let credits = Credits {
        required: Some(Micros::new(2_000)),
        available: Micros::new(-1),
        topup_url: "https://toll.example/credits".into(),
    };
    let error = ApiError::new(ErrorCode::InsufficientCredits, "add credits").credits(credits);
    let body = String::from_utf8(error.body(ErrorShape::Envelope).to_vec()).expect("JSON");
    assert!(body.contains(r#""required":0.002"#), "{body}");
    assert!(
        body.contains(r#""available":-1e-6"#) || body.contains("-0.000001"),
        "{body}"
    );
    assert!(
        body.contains(r#""topup_url":"https://toll.example/credits""#),
        "{body}"
    );
    let mut error = error;
    if let Some(credits) = &mut error.credits {
        credits.required = None;
    }
    let body = String::from_utf8(error.body(ErrorShape::Envelope).to_vec()).expect("JSON");
    assert!(!body.contains("required"), "{body}");
}

#[test]
fn waits_round_up_and_long_ones_forbid_automatic_retries() {
    //    wait in ms, Retry-After, x-should-retry
    check(1, "1", None);
    check(12_000, "12", None);
    check(60_000, "60", None);
    check(60_001, "61", Some("false"));
}

fn check(wait_ms: u64, seconds: &str, should_retry: Option<&str>) {
    let mut headers = HeaderMap::new();
    ApiError::new(ErrorCode::RateLimitExceeded, "wait")
        .retry_after(Duration::from_millis(wait_ms))
        .write_headers(&mut headers);
    assert_eq!(headers["retry-after"], seconds);
    let received = headers
        .get("x-should-retry")
        .map(|value| value.to_str().expect("ASCII"));
    assert_eq!(received, should_retry, "after {wait_ms} ms");
}
