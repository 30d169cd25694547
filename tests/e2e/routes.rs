//! Routing: paths, methods, media types and CORS.

use bytes::Bytes;
use serde_json::json;
use tollgate_testing::Answer;

use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, TEXT, chat};

/// Fails unless the answer is an error in the envelope with `code`.
fn is_error(answer: &Answer, status: u16, code: &str, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    let error = &answer.json()["error"];
    assert_eq!(error["code"], code, "{what}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.len() > 10),
        "{what}"
    );
    assert!(answer.header("x-request-id").is_some(), "{what}");
    let promised = answer.header("strict-transport-security").is_some();
    assert_eq!(promised, what.contains("TLS"), "{what}");
}

#[tokio::test]
async fn unknown_paths_are_404_in_every_spelling() {
    let rig = Rig::start().await;
    for (what, client) in rig.clients() {
        for path in [
            "/v1",
            "/v1/",
            "/v1/models/",
            "/v1//models",
            "//v1/models",
            "/V1/models",
            "/v1/Models",
            "/v1%2Fmodels",
            "/v1%2fmodels",
            "/v1/mode%6Cs",
            "/v1/x/../models",
            "/v1/./models",
            "/v1/%2e%2e/v1/models",
            "/v1/models;x=1",
            "/v1/models%00",
            "/metrics",
            "/ready",
            "/live",
        ] {
            let answer = client.get(path).await;
            is_error(&answer, 404, "not_found", &format!("{what}: {path}"));
        }
        // A query is no part of the address.
        assert_eq!(client.get("/v1/models?limit=20").await.status, 200);
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_target_in_absolute_form_is_routed_by_its_path() {
    let rig = Rig::start().await;
    for (target, status) in [
        ("http://localhost/v1/models", 200),
        ("http://localhost/nowhere", 404),
        // The address itself is the front page; the front page leads to a sign-in.
        ("http://localhost", 303),
    ] {
        let mut raw = rig.raw().await;
        let key = &rig.key;
        raw.send(format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
        ))
        .await;
        let (head, _) = raw.read_answer().await;
        assert_eq!(head.status(), status, "{target}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn targets_with_invalid_bytes_match_no_route() {
    let rig = Rig::start().await;
    for (target, status) in [
        // Neither a path nor a whole address.
        (" /v1/models", 400),
        ("v1/models", 400),
        ("localhost/v1/models", 400),
        ("ftp://localhost/v1/models", 400),
        // The session writes the byte as `%XX` before the path is matched.
        ("/v1/models ", 404),
        ("/v1/\0models", 404),
        ("/v1/models\0", 404),
    ] {
        let mut raw = rig.raw().await;
        let key = &rig.key;
        raw.send(format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
        ))
        .await;
        let (head, _) = raw.read_answer().await;
        assert_eq!(head.status(), status, "{target:?}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_method_that_an_address_does_not_answer_is_405_with_allow_and_an_unknown_one_501() {
    let rig = Rig::start().await;
    for (what, client) in rig.both() {
        //   method    path         status allow
        for (method, path, status, allow) in [
            ("GET", CHAT, 405, Some("POST, OPTIONS")),
            ("HEAD", CHAT, 405, Some("POST, OPTIONS")),
            ("PUT", CHAT, 405, Some("POST, OPTIONS")),
            ("DELETE", TEXT, 405, Some("POST, OPTIONS")),
            ("PATCH", TEXT, 405, Some("POST, OPTIONS")),
            ("TRACE", CHAT, 405, Some("POST, OPTIONS")),
            ("POST", "/v1/models", 405, Some("GET, HEAD, OPTIONS")),
            ("QUERY", "/v1/models", 405, Some("GET, HEAD, OPTIONS")),
            ("BREW", CHAT, 501, None),
            ("GETT", "/v1/models", 501, None),
            ("BREW", "/nowhere", 404, None),
        ] {
            let answer = client
                .send(client.request(method, path, Bytes::new()))
                .await;
            let case = format!("{what}: {method} {path}");
            assert_eq!(answer.status, status, "{case}");
            assert_eq!(answer.header("allow"), allow, "{case}");
            if method != "HEAD" {
                assert!(answer.json()["error"]["code"].is_string(), "{case}");
            }
            assert!(answer.header("x-request-id").is_some(), "{case}");
        }
    }
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn methods_without_a_route_are_refused() {
    let rig = Rig::start().await;
    for (line, statuses) in [
        ("OPTIONS * HTTP/1.1", [404, 405]),
        ("CONNECT example.net:443 HTTP/1.1", [404, 405]),
        ("TRACE * HTTP/1.1", [404, 405]),
    ] {
        let mut raw = rig.raw().await;
        let host = if line.starts_with("CONNECT") {
            "example.net:443"
        } else {
            "localhost"
        };
        raw.send(format!("{line}\r\nHost: {host}\r\n\r\n")).await;
        let head = raw.read_head().await;
        assert!(
            statuses.contains(&head.status()),
            "{line}: {}",
            head.start_line
        );
        assert!(head.header("x-request-id").is_some(), "{line}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn head_answers_as_get_without_the_body() {
    let rig = Rig::start().await;
    for (what, client) in rig.both() {
        let whole = client.get("/v1/models").await;
        let head = client
            .send(client.request("HEAD", "/v1/models", Bytes::new()))
            .await;
        assert_eq!(head.status, 200, "{what}");
        assert!(head.body.is_empty(), "{what}: a body");
        for name in ["content-type", "content-length", "cache-control"] {
            assert_eq!(head.header(name), whole.header(name), "{what}: {name}");
        }
    }
    // The connection continues after the answer.
    let mut raw = rig.raw().await;
    let request = |method: &str| {
        let key = &rig.key;
        format!(
            "{method} /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
        )
    };
    raw.send(request("HEAD") + &request("GET")).await;
    let head = raw.read_head().await;
    assert_eq!(head.status(), 200);
    let (next, body) = raw.read_answer().await;
    assert_eq!(next.status(), 200);
    assert!(body.starts_with(b"{"), "{body:?}");
    rig.finish().await;
}

#[tokio::test]
async fn media_types_and_encodings_other_than_plain_json_are_415() {
    let rig = Rig::start().await;
    //   content type                                   encoding     status
    for (kind, encoding, status) in [
        (Some("application/json"), None, 200),
        (Some("application/json; charset=utf-8"), None, 200),
        (Some("Application/JSON ;charset=\"utf-8\""), None, 200),
        (None, None, 200),
        (Some("application/json"), Some("identity"), 200),
        (Some("text/plain"), None, 415),
        (Some("application/jsonp"), None, 415),
        (Some("application/x-www-form-urlencoded"), None, 415),
        (Some("multipart/form-data; boundary=x"), None, 415),
        (Some(""), None, 415),
        (Some("application/json"), Some("gzip"), 415),
        (Some("application/json"), Some("br"), 415),
        (Some("application/json"), Some("identity, gzip"), 415),
    ] {
        for (what, client) in rig.both() {
            let mut request = client.request("POST", CHAT, chat(false).to_string().into());
            let headers = request.headers_mut();
            headers.remove("content-type");
            if let Some(kind) = kind {
                headers.insert("content-type", kind.parse().expect("a value"));
            }
            if let Some(encoding) = encoding {
                headers.insert("content-encoding", encoding.parse().expect("a value"));
            }
            let answer = client.send(request).await;
            let case = format!("{what}: {kind:?} {encoding:?}");
            assert_eq!(answer.status, status, "{case}");
            match status {
                200 => drop(rig.record_charge(&answer.json())),
                _ => {
                    is_error(&answer, 415, "unsupported_media_type", &case);
                    let help = if encoding.is_some() {
                        "accept-encoding"
                    } else {
                        "accept"
                    };
                    assert!(answer.header(help).is_some(), "{case}: no {help}");
                }
            }
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_preflight_is_answered_without_a_credential_and_lists_every_requested_field() {
    let rig = Rig::start().await;
    for (what, client) in rig.both() {
        let mut request = client.request("OPTIONS", CHAT, Bytes::new());
        let headers = request.headers_mut();
        headers.remove("authorization");
        headers.remove("content-type");
        for (name, value) in [
            ("origin", "https://app.example"),
            ("access-control-request-method", "POST"),
            (
                "access-control-request-headers",
                "authorization,content-type,x-stainless-os,x-new",
            ),
        ] {
            headers.insert(name, value.parse().expect("a value"));
        }
        let answer = client.send(request).await;
        assert_eq!(answer.status, 204, "{what}");
        assert!(answer.body.is_empty(), "{what}");
        for (name, value) in [
            ("access-control-allow-origin", "*"),
            ("access-control-allow-methods", "POST, OPTIONS"),
            (
                "access-control-allow-headers",
                "authorization, content-type, x-stainless-os, x-new",
            ),
            ("access-control-max-age", "600"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{what}: {name}");
        }
        assert!(
            answer.header("access-control-allow-credentials").is_none(),
            "{what}"
        );
        assert!(
            answer.header("ratelimit").is_none(),
            "{what}: it is not counted"
        );
        assert!(answer.header("x-request-id").is_some(), "{what}");
        assert!(
            answer.header("content-length").is_none(),
            "{what}: 204 has no length"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn options_without_a_preflight_names_the_methods() {
    let rig = Rig::start().await;
    for (what, client) in rig.both() {
        let answer = client
            .send(client.request("OPTIONS", "/v1/models", Bytes::new()))
            .await;
        assert_eq!(answer.status, 204, "{what}");
        assert_eq!(answer.header("allow"), Some("GET, HEAD, OPTIONS"), "{what}");
        assert!(
            answer.header("access-control-allow-origin").is_none(),
            "{what}"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn answers_and_errors_can_be_read_by_pages_of_other_origins() {
    let rig = Rig::start().await;
    for (what, client) in rig.both() {
        //   method  body                                             key    status
        for (method, body, key, status) in [
            ("POST", chat(false), true, 200),
            ("POST", chat(true), true, 200),
            ("POST", json!({"model": "none", "messages": []}), true, 400),
            ("POST", chat(false), false, 401),
            ("GET", json!(null), true, 405),
        ] {
            let mut request = client.request(method, CHAT, body.to_string().into());
            let headers = request.headers_mut();
            headers.insert("origin", "https://app.example".parse().expect("a value"));
            if !key {
                headers.remove("authorization");
            }
            let answer = client.send(request).await;
            let case = format!("{what}: {status}");
            assert_eq!(answer.status, status, "{case}");
            assert_eq!(
                answer.header("access-control-allow-origin"),
                Some("*"),
                "{case}"
            );
            let exposed = answer
                .header("access-control-expose-headers")
                .unwrap_or_default();
            for name in [
                "X-Request-Id",
                "Retry-After",
                "RateLimit",
                "WWW-Authenticate",
                "PAYMENT-REQUIRED",
                "PAYMENT-RESPONSE",
                "Payment-Receipt",
            ] {
                assert!(exposed.contains(name), "{case}: {name} is not exposed");
            }
            if status == 200 {
                rig.add_expected_charge(PRICE_OF_A_CHAT);
            }
        }
        // The fields are missing without an origin.
        let answer = client.get("/v1/models").await;
        assert!(
            answer.header("access-control-allow-origin").is_none(),
            "{what}"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn unknown_paths_of_the_api_are_json_whatever_is_accepted() {
    let rig = Rig::start().await;
    for (what, client) in rig.both() {
        for (path, is_json) in [
            ("/v1/nowhere", true),
            ("/v1", true),
            ("/v1/chat", true),
            ("/ucp/nowhere", true),
            ("/ucp/v1/checkout-session", true),
            ("/v10/models", false),
            ("/nowhere", false),
        ] {
            let mut request = client.request("GET", path, Bytes::new());
            let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
            let accept = browser.parse().expect("a value");
            request.headers_mut().insert("accept", accept);
            let answer = client.send(request).await;
            assert_eq!(answer.status, 404, "{what}: {path}");
            match is_json {
                true => is_error(&answer, 404, "not_found", &format!("{what}: {path}")),
                false => assert!(answer.text().starts_with("<!DOCTYPE html>"), "{path}"),
            }
        }
    }
    rig.finish().await;
}
