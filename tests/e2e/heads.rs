//! Request smuggling and malformed heads. A request gets the gateway's error response and a closed connection, and no byte reaches a
//! provider.

use serde_json::Value;
use tollgate_testing::Head;

use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, chat};

/// The `error` of a response in the error envelope with the request id.
fn envelope(head: &Head, body: &[u8]) -> Result<Value, String> {
    let id = head.header("x-request-id").unwrap_or_default();
    if !id.starts_with("req_") {
        return Err(format!("x-request-id is `{id}`"));
    }
    for (name, value) in [
        ("content-type", "application/json"),
        ("cache-control", "no-store"),
    ] {
        if head.header(name) != Some(value) {
            return Err(format!("{name} is {:?}", head.header(name)));
        }
    }
    let body: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let error = &body["error"];
    let complete = ["message", "type", "param", "code"]
        .iter()
        .all(|member| error.get(member).is_some());
    match complete {
        true => Ok(error.clone()),
        false => Err(format!("{body} lacks a member")),
    }
}

/// A request to be refused: description, bytes, status and code of the refusal.
type Case<'a> = (&'a str, Vec<u8>, u16, &'a str);

/// Sends every request on a separate connection. Fails with the list of requests without the expected refusal.
async fn refused(rig: &Rig, cases: Vec<Case<'_>>) {
    let mut problems = Vec::new();
    for (what, bytes, status, code) in &cases {
        if let Err(problem) = refusal(rig, bytes, *status, code).await {
            problems.push(format!("{what}: {problem}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Sends the bytes and checks the refusal: status, code, and the close of the connection.
async fn refusal(rig: &Rig, bytes: &[u8], status: u16, code: &str) -> Result<(), String> {
    let mut raw = rig.raw().await;
    // The refusal may arrive while the rest is still being sent.
    let _ = raw.try_send(bytes).await;
    let head = raw.try_read_head().await;
    let Ok(Some(head)) = head else {
        return Err(format!("no answer but {head:?}"));
    };
    let body = raw.read_body(&head).await;
    if head.status() != status {
        return Err(format!("{} {body:?}", head.start_line));
    }
    let error = envelope(&head, &body)?;
    if error["code"] != code {
        return Err(format!("{error}"));
    }
    if head.header("connection") != Some("close") {
        return Err(String::from("the connection is kept"));
    }
    match raw.read_to_end().await.unwrap_or_default() {
        rest if rest.is_empty() => Ok(()),
        rest => Err(format!("a second answer: {rest:?}")),
    }
}

/// A request with the field lines `fields` and the body `body` behind the head. Without `fields` and `body` the request is good.
fn post(rig: &Rig, fields: &str, body: &str) -> Vec<u8> {
    let key = &rig.key;
    format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\n{fields}\r\n{body}"
    )
    .into_bytes()
}

#[tokio::test]
async fn ambiguous_framing_is_refused() {
    let rig = Rig::start().await;
    let body = chat(false).to_string();
    let length = body.len();
    let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let second = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let smuggled = format!("0\r\n\r\n{second}");
    let cases = [
        (
            "a length and chunks",
            format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
            &chunked,
        ),
        (
            "chunks and a length",
            String::from("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
            &smuggled,
        ),
        (
            "a length in odd capitals beside chunks",
            format!("transfer-encoding: chunked\r\ncONTENT-lENGTH: {length}\r\n"),
            &chunked,
        ),
        (
            "two lengths that differ",
            format!("Content-Length: {length}\r\nContent-Length: 5\r\n"),
            &body,
        ),
        (
            "two lengths in one field",
            format!("Content-Length: {length}, 5\r\n"),
            &body,
        ),
        (
            "a length with a plus",
            format!("Content-Length: +{length}\r\n"),
            &body,
        ),
        (
            "a length below zero",
            String::from("Content-Length: -1\r\n"),
            &body,
        ),
        (
            "a length in hexadecimal",
            format!("Content-Length: 0x{length:x}\r\n"),
            &body,
        ),
        (
            "a length with a space in it",
            String::from("Content-Length: 1 0\r\n"),
            &body,
        ),
        (
            "an empty length",
            String::from("Content-Length:\r\n"),
            &body,
        ),
        (
            "a length beyond every integer",
            String::from("Content-Length: 99999999999999999999999999\r\n"),
            &body,
        ),
        (
            "a coding that is not chunked",
            String::from("Transfer-Encoding: gzip\r\n"),
            &body,
        ),
        (
            "chunked, but not last",
            String::from("Transfer-Encoding: chunked, gzip\r\n"),
            &chunked,
        ),
        (
            "chunked twice",
            String::from("Transfer-Encoding: chunked, chunked\r\n"),
            &chunked,
        ),
        (
            "chunked on two lines",
            String::from("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
            &chunked,
        ),
        (
            "another coding on a second line",
            String::from("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
            &chunked,
        ),
        (
            "identity before chunked",
            String::from("Transfer-Encoding: identity, chunked\r\n"),
            &chunked,
        ),
        (
            "gzip before chunked",
            String::from("Transfer-Encoding: gzip, chunked\r\n"),
            &chunked,
        ),
        (
            "a coding that looks like chunked",
            String::from("Transfer-Encoding: xchunked\r\n"),
            &chunked,
        ),
        (
            "chunked in quotes",
            String::from("Transfer-Encoding: \"chunked\"\r\n"),
            &chunked,
        ),
        (
            "chunked behind a vertical tab",
            String::from("Transfer-Encoding: \u{b}chunked\r\n"),
            &chunked,
        ),
        (
            "an empty coding",
            String::from("Transfer-Encoding:\r\n"),
            &chunked,
        ),
        (
            "a coding on a folded line",
            String::from("Transfer-Encoding:\r\n chunked\r\n"),
            &chunked,
        ),
        (
            "a space before the colon",
            String::from("Transfer-Encoding : chunked\r\n"),
            &chunked,
        ),
        (
            "a space before the colon of a length",
            format!("Content-Length : {length}\r\n"),
            &body,
        ),
        (
            "a folded line",
            format!("Content-Length: {length}\r\nX-Folded: a\r\n b\r\n"),
            &body,
        ),
    ];
    let cases = cases
        .into_iter()
        .map(|(what, fields, body)| (what, post(&rig, &fields, body), 400, "invalid_request"));
    refused(&rig, cases.collect()).await;
    assert_eq!(
        rig.provider.call_count(),
        0,
        "something reached the provider"
    );
    rig.finish().await;
}

#[tokio::test]
async fn malformed_heads_are_refused_with_the_error_envelope() {
    let rig = Rig::start().await;
    let mut cases = Vec::new();
    for (what, bytes) in [
        (
            "no version",
            &b"GET /v1/models\r\nHost: localhost\r\n\r\n"[..],
        ),
        (
            "a later version",
            b"GET /v1/models HTTP/3.0\r\nHost: localhost\r\n\r\n",
        ),
        (
            "a version in small letters",
            b"GET /v1/models http/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "a version of another protocol",
            b"GET /v1/models RTSP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "a method that is no token",
            b"G@T /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "a method of nothing",
            b" /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        ("no target", b"GET HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        (
            "TLS to the plain port",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        ),
        (
            "a field without a name",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
        ),
        (
            "a field without a colon",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx\r\n\r\n",
        ),
        (
            "a field name with a space",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\na b: x\r\n\r\n",
        ),
        (
            "a field name in brackets",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n(a): x\r\n\r\n",
        ),
        (
            "NUL in a value",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\na: x\0y\r\n\r\n",
        ),
        (
            "NUL in a name",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\na\0b: x\r\n\r\n",
        ),
        (
            "a control character in a value",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\na: x\x01y\r\n\r\n",
        ),
        (
            "a carriage return in a value",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\na: x\ry\r\n\r\n",
        ),
        (
            "a carriage return alone at the end of a line",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\ra: x\r\n\r\n",
        ),
        (
            "a line feed alone at the end of a line",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\na: x\r\n\r\n",
        ),
        (
            "a line feed alone at the end of the head",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\n",
        ),
        (
            "line feeds alone everywhere",
            b"GET /v1/models HTTP/1.1\nHost: localhost\n\n",
        ),
        (
            "a first line that is folded",
            b"GET /v1/models HTTP/1.1\r\n Host: localhost\r\n\r\n",
        ),
        ("no host", b"GET /v1/models HTTP/1.1\r\nAccept: */*\r\n\r\n"),
        (
            "two hosts",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        ),
        (
            "two hosts that differ",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: example.net\r\n\r\n",
        ),
        (
            "a host with a user",
            b"GET /v1/models HTTP/1.1\r\nHost: me@localhost\r\n\r\n",
        ),
        (
            "a host that is not the target's",
            b"GET http://example.net/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ),
        (
            "words that look like a limit",
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nlarger than too many: \0\r\n\r\n",
        ),
    ] {
        cases.push((what, bytes.to_vec(), 400, "invalid_request"));
    }
    let old = b"POST /v1/chat/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    cases.push(("chunks in HTTP/1.0", old.to_vec(), 400, "invalid_request"));
    refused(&rig, cases).await;
    assert_eq!(
        rig.provider.call_count(),
        0,
        "something reached the provider"
    );
    let after = rig.finish().await;
    assert!(
        after.endings().iter().all(|ending| *ending == "refused"),
        "{:?}",
        after.log
    );
}

#[tokio::test]
async fn heads_and_targets_that_are_too_large_are_refused_by_their_own_codes() {
    let rig = Rig::start().await;
    let fields = |count: usize| "x-a: b\r\n".repeat(count);
    let get = |target: &str, fields: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").into_bytes()
    };
    let long = |bytes: usize| "x".repeat(bytes);
    let cases = vec![
        (
            "101 fields",
            get("/v1/models", &fields(100)),
            431,
            "head_too_large",
        ),
        (
            "300 fields",
            get("/v1/models", &fields(300)),
            431,
            "head_too_large",
        ),
        (
            "2,000 fields",
            get("/v1/models", &fields(2000)),
            431,
            "head_too_large",
        ),
        (
            "a field of 40 KB",
            get("/v1/models", &format!("x-a: {}\r\n", long(40_000))),
            431,
            "head_too_large",
        ),
        (
            "a target of 9 KB",
            get(&format!("/{}", long(9000)), ""),
            414,
            "uri_too_long",
        ),
        (
            "a query of 9 KB",
            get(&format!("/v1/models?{}", long(9000)), ""),
            414,
            "uri_too_long",
        ),
    ];
    refused(&rig, cases).await;
    // One field less is not refused for the number of fields.
    let mut raw = rig.raw().await;
    raw.send(get("/v1/models", &fields(99))).await;
    let (head, _) = raw.read_answer().await;
    assert_eq!(head.status(), 401);
    rig.finish().await;
}

#[tokio::test]
async fn an_endless_head_is_refused_within_the_size_limit() {
    let rig = Rig::start().await;
    let mut raw = rig.raw().await;
    raw.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-a: ")
        .await;
    let piece = vec![b'x'; 64 * 1024];
    // At some point no more bytes are accepted. Before, no response arrives.
    let mut sent = 0;
    while sent < 8 << 20 && raw.try_send(&piece).await.is_ok() {
        sent += piece.len();
    }
    assert!(sent < 8 << 20, "8 MiB of one head were taken");
    rig.finish().await;
}

#[tokio::test]
async fn an_unknown_expectation_is_refused() {
    let rig = Rig::start().await;
    let request = post(&rig, "Expect: 200-maybe\r\nContent-Length: 5\r\n", "");
    let case = ("an unknown expectation", request, 417, "expectation_failed");
    refused(&rig, vec![case]).await;
    rig.finish().await;
}

#[tokio::test]
async fn a_second_request_behind_a_body_is_a_request_of_its_own() {
    let rig = Rig::start().await;
    let body = chat(false).to_string();
    let first = post(&rig, &format!("Content-Length: {}\r\n", body.len()), &body);
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let second = post(&rig, "Transfer-Encoding: chunked\r\n", &chunked);
    let third = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut raw = rig.raw().await;
    raw.send([&first[..], &second, third].concat()).await;
    for expected in [200, 200, 404] {
        let (head, body) = raw.read_answer().await;
        assert_eq!(head.status(), expected, "{body:?}");
    }
    rig.add_expected_charge(2 * PRICE_OF_A_CHAT);
    let calls = rig.provider.calls();
    assert_eq!(calls.len(), 2);
    assert!(
        calls
            .iter()
            .all(|call| call.body.len() == calls[0].body.len())
    );
    let after = rig.finish().await;
    assert_eq!(after.endings(), ["complete", "complete", "refused"]);
}

#[tokio::test]
async fn bytes_behind_a_body_that_is_refused_unread_are_no_request() {
    let rig = Rig::start().await;
    // The body of a request without a credential looks like a request itself.
    let inner = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut raw = rig.raw().await;
    let outer = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{inner}",
        inner.len()
    );
    raw.send(outer + "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    let (head, _) = raw.read_answer().await;
    assert_eq!(head.status(), 401);
    // Afterwards the connection is closed, or the next answer belongs to the bytes after the body.
    if let Ok(Some(next)) = raw.try_read_head().await {
        assert_eq!(next.status(), 404, "the body was taken for a request");
    }
    rig.finish().await;
}

#[tokio::test]
async fn an_upgrade_is_not_done_and_changes_nothing_about_the_body() {
    let rig = Rig::start().await;
    let body = chat(false).to_string();
    for upgrade in ["websocket", "h2c", "TLS/1.2"] {
        let fields = format!(
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: {}\r\n",
            body.len()
        );
        let mut raw = rig.raw().await;
        // A server that reads the body to the end of the connection would wait for ever, or take the next request for a part of the body.
        let next = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n";
        raw.send([&post(&rig, &fields, &body)[..], next.as_bytes()].concat())
            .await;
        let (head, answer) = raw.read_answer().await;
        assert_eq!(head.status(), 200, "{upgrade}: {answer:?}");
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        assert!(head.header("upgrade").is_none());
        assert_eq!(
            rig.provider.last_call().json()["messages"],
            chat(false)["messages"]
        );
        if let Ok(Some(next)) = raw.try_read_head().await {
            assert_eq!(next.status(), 404, "{upgrade}");
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn fields_that_a_client_declares_hop_by_hop_change_nothing() {
    let rig = Rig::start().await;
    let body = chat(false).to_string();
    let fields = format!(
        "Connection: authorization, content-type, x-mine, close\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\n\
         Proxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\nTrailer: x\r\nContent-Length: {}\r\n",
        body.len()
    );
    let mut raw = rig.raw().await;
    raw.send(post(&rig, &fields, &body)).await;
    let (head, answer) = raw.read_answer().await;
    assert_eq!(
        head.status(),
        200,
        "what authenticates is not taken away: {answer:?}"
    );
    assert_eq!(
        head.header("connection"),
        Some("close"),
        "as the client asked"
    );
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    let call = rig.provider.last_call();
    for name in [
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "proxy-authorization",
        "proxy-connection",
        "x-mine",
        "upgrade",
    ] {
        assert!(call.header(name).is_none(), "{name} was sent on");
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_an_answer_it_understands() {
    let rig = Rig::start().await;
    for stream in [false, true] {
        let body = chat(stream).to_string();
        let mut raw = rig.raw().await;
        let request = format!(
            "POST {CHAT} HTTP/1.0\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            rig.key,
            body.len()
        );
        raw.send(request).await;
        let head = raw.read_head().await;
        assert_eq!(head.status(), 200);
        assert!(
            head.header("transfer-encoding").is_none(),
            "HTTP/1.0 has no chunks"
        );
        let text = raw
            .read_to_end()
            .await
            .expect("the end closes the connection");
        let text = String::from_utf8_lossy(&text);
        match stream {
            true => assert!(text.ends_with("data: [DONE]\n\n"), "{text}"),
            false => assert!(text.ends_with('}'), "{text}"),
        }
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    rig.finish().await;
}
