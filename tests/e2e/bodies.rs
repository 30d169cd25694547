//! Request bodies: sizes, chunked coding and `Expect: 100-continue`.

use bytes::Bytes;
use serde_json::{Value, json};
use tollgate_money::{CapPeriod, Micros, SpendingCap};
use tollgate_testing::provider::UsageReport;
use tollgate_testing::{Client, RawClient, Script};

use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, chat};

/// The head of a chat with the field lines `fields`.
fn head(rig: &Rig, fields: &str) -> String {
    let key = &rig.key;
    format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n{fields}\r\n"
    )
}

#[tokio::test]
async fn malformed_chunks_are_refused_and_not_forwarded() {
    let rig = Rig::start().await;
    let body = chat(false).to_string();
    let length = body.len();
    for (what, chunks) in [
        (
            "a size that is no number",
            format!("zz\r\n{body}\r\n0\r\n\r\n"),
        ),
        (
            "a size with a sign",
            format!("+{length:x}\r\n{body}\r\n0\r\n\r\n"),
        ),
        (
            "a size below zero",
            format!("-{length:x}\r\n{body}\r\n0\r\n\r\n"),
        ),
        (
            "a size with a prefix",
            format!("0x{length:x}\r\n{body}\r\n0\r\n\r\n"),
        ),
        ("no size", format!("\r\n{body}\r\n0\r\n\r\n")),
        (
            "a size beyond every integer",
            format!("fffffffffffffffff\r\n{body}\r\n0\r\n\r\n"),
        ),
        (
            "the largest size there is",
            format!("ffffffffffffffff\r\n{body}\r\n0\r\n\r\n"),
        ),
        (
            "data longer than its size",
            format!("{:x}\r\n{body}\r\n0\r\n\r\n", length - 1),
        ),
        (
            "no line end behind the data",
            format!("{length:x}\r\n{body}0\r\n\r\n"),
        ),
        (
            "a space in the size",
            format!("{length:x} 1\r\n{body}\r\n0\r\n\r\n"),
        ),
    ] {
        let mut raw = rig.raw().await;
        raw.send(head(&rig, "Transfer-Encoding: chunked\r\n") + &chunks)
            .await;
        let (head, answer) = raw.read_answer().await;
        assert_eq!(head.status(), 400, "{what}: {answer:?}");
        let error: Value = serde_json::from_slice(&answer).expect("the envelope");
        assert_eq!(error["error"]["code"], "invalid_request", "{what}");
        assert_eq!(head.header("connection"), Some("close"), "{what}");
        let rest = raw.read_to_end().await.unwrap_or_default();
        assert!(rest.is_empty(), "{what}: a second answer: {rest:?}");
    }
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn valid_chunked_bodies_are_read() {
    let rig = Rig::start().await;
    let body = chat(false).to_string();
    let length = body.len();
    let single: String = body
        .chars()
        .map(|byte| format!("1\r\n{byte}\r\n"))
        .collect();
    for (what, chunks) in [
        ("one chunk", format!("{length:x}\r\n{body}\r\n0\r\n\r\n")),
        ("a byte a chunk", format!("{single}0\r\n\r\n")),
        (
            "a size in capitals",
            format!("{length:X}\r\n{body}\r\n0\r\n\r\n"),
        ),
        (
            "leading zeros",
            format!("000{length:x}\r\n{body}\r\n000\r\n\r\n"),
        ),
        (
            "an extension",
            format!("{length:x};a=b;c=\"d\"\r\n{body}\r\n0\r\n\r\n"),
        ),
        (
            "a trailer",
            format!("{length:x}\r\n{body}\r\n0\r\nAuthorization: Bearer x\r\nX-A: b\r\n\r\n"),
        ),
    ] {
        let mut raw = rig.raw().await;
        raw.send(head(&rig, "Transfer-Encoding: chunked\r\n") + &chunks)
            .await;
        let (head, answer) = raw.read_answer().await;
        assert_eq!(head.status(), 200, "{what}: {answer:?}");
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        let call = rig.provider.last_call();
        assert_eq!(call.json()["messages"], chat(false)["messages"], "{what}");
        assert!(
            call.header("x-a").is_none(),
            "{what}: a trailer was sent on"
        );
        // The bytes after the body are the next request.
        raw.send("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await;
        let (next, _) = raw.read_answer().await;
        assert_eq!(next.status(), 404, "{what}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_client_that_expects_100_continue_receives_it() {
    let rig = Rig::start().await;
    let body = chat(false).to_string();
    let mut raw = rig.raw().await;
    let fields = format!("Expect: 100-continue\r\nContent-Length: {}\r\n", body.len());
    raw.send(head(&rig, &fields)).await;
    assert_eq!(raw.read_head().await.status(), 100);
    raw.send(body).await;
    let (head, answer) = raw.read_answer().await;
    assert_eq!(head.status(), 200, "{answer:?}");
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    assert!(rig.provider.last_call().header("expect").is_none());
    rig.finish().await;
}

#[tokio::test]
async fn a_client_that_expects_100_continue_is_refused_before_it_sends_its_body() {
    let rig = Rig::with("[[route]]\npath = \"/v1/chat/completions\"\nmethods = [\"POST\"]\nbody_bytes_max = 1000\nchain = [\"auth\", \"completions\", \"meter\"]\nscope = \"api:chat\"").await;
    //   fields                                           status
    for (fields, status) in [
        ("Expect: 100-continue\r\nContent-Length: 1001\r\n", 413),
        (
            "Expect: 100-continue\r\nContent-Length: 10\r\nContent-Encoding: gzip\r\n",
            415,
        ),
    ] {
        let mut raw = rig.raw().await;
        raw.send(head(&rig, fields)).await;
        let (head, _) = raw.read_answer().await;
        assert_eq!(
            head.status(),
            status,
            "the first head is the answer, not a 100"
        );
        assert_eq!(head.header("connection"), Some("close"));
        assert!(raw.read_to_end().await.unwrap_or_default().is_empty());
    }
    let mut raw = rig.raw().await;
    let unknown =
        head(&rig, "Expect: 100-continue\r\nContent-Length: 10\r\n").replace("sk-svc-", "sk-oth-");
    raw.send(unknown).await;
    assert_eq!(raw.read_head().await.status(), 401);
    rig.finish().await;
}

#[tokio::test]
async fn a_body_past_the_limit_of_its_route_is_413_and_one_at_the_limit_is_not() {
    let rig = Rig::with("[[route]]\npath = \"/v1/chat/completions\"\nmethods = [\"POST\"]\nbody_bytes_max = 1000\nchain = [\"auth\", \"completions\", \"meter\"]\nscope = \"api:chat\"").await;
    let sized = |bytes: usize| {
        let mut body = chat(false);
        body["pad"] = "".into();
        let short = body.to_string().len();
        body["pad"] = "x".repeat(bytes - short).into();
        body.to_string()
    };
    //   bytes  status
    for (bytes, status) in [(1000, 200), (1001, 413), (100_000, 413)] {
        for chunked in [false, true] {
            let body = sized(bytes);
            let (fields, body) = match chunked {
                false => (format!("Content-Length: {bytes}\r\n"), body),
                true => (
                    String::from("Transfer-Encoding: chunked\r\n"),
                    format!("{bytes:x}\r\n{body}\r\n0\r\n\r\n"),
                ),
            };
            let mut raw = rig.raw().await;
            // A refusal may arrive, and the connection end, while the body is still being sent.
            let _ = raw.try_send(head(&rig, &fields) + &body).await;
            let (head, answer) = raw.read_answer().await;
            let what = format!("{bytes} bytes, chunked {chunked}");
            assert_eq!(head.status(), status, "{what}: {answer:?}");
            if status == 200 {
                rig.add_expected_charge(PRICE_OF_A_CHAT);
                continue;
            }
            let error: Value = serde_json::from_slice(&answer).expect("the envelope");
            assert_eq!(error["error"]["code"], "body_too_large", "{what}");
            assert_eq!(head.header("connection"), Some("close"), "{what}");
        }
        let client = rig.client().with_http2();
        let request = client.request("POST", CHAT, Bytes::from(sized(bytes)));
        let answer = client.send(request).await;
        assert_eq!(answer.status, status, "{bytes} bytes over HTTP/2");
        if status == 200 {
            rig.record_charge(&answer.json());
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_large_body_reaches_the_provider_whole() {
    let rig = Rig::start().await;
    for (what, client) in rig.clients() {
        let mut body = chat(false);
        body["pad"] = "x".repeat(3 << 20).into();
        let answer = client.post(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{what}");
        rig.record_charge(&answer.json());
        assert_eq!(
            rig.provider.last_call().json()["pad"],
            body["pad"],
            "{what}"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_body_timeout_is_408() {
    let rig = Rig::with("[server]\nbody_secs = 1").await;
    let mut raw = rig.raw().await;
    raw.send(head(&rig, "Content-Length: 100\r\n") + "{\"model\":")
        .await;
    let (head, answer) = raw.read_answer().await;
    assert_eq!(head.status(), 408);
    let error: Value = serde_json::from_slice(&answer).expect("the envelope");
    assert_eq!(error["error"]["code"], "request_timeout");
    assert_eq!(head.header("connection"), Some("close"));
    assert!(raw.read_to_end().await.unwrap_or_default().is_empty());
    rig.finish().await;
}

#[tokio::test]
async fn an_invalid_completion_request_is_400_and_names_the_member() {
    let rig = Rig::start().await;
    for (what, client) in rig.both() {
        //   body                                                            code           param
        for (body, code, param) in [
            ("", "invalid_json", Value::Null),
            ("[]", "invalid_json", Value::Null),
            ("{\"model\":\"small\"", "invalid_json", Value::Null),
            (
                "{\"model\":\"small\",\"model\":\"dear\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                "invalid_json",
                Value::Null,
            ),
            ("{\"model\":\"small\"}", "missing_field", json!("messages")),
            (
                "{\"model\":\"small\",\"messages\":[]}",
                "out_of_range",
                json!("messages"),
            ),
            (
                "{\"model\":\"small\",\"messages\":[{\"role\":\"boss\",\"content\":\"x\"}]}",
                "out_of_range",
                json!("messages[0].role"),
            ),
            (
                "{\"model\":\"none\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                "model_not_supported",
                json!("model"),
            ),
        ] {
            let answer = client.send(client.request("POST", CHAT, body.into())).await;
            assert_eq!(answer.status, 400, "{what}: {body}");
            let error = &answer.json()["error"];
            assert_eq!(error["code"], code, "{what}: {body}");
            assert_eq!(error["param"], param, "{what}: {body}");
        }
    }
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

/// A body of 20 MiB was read for an account without credit for any request.
#[tokio::test]
async fn an_account_without_credit_is_refused_on_the_head() {
    let rig = Rig::start().await;
    let poor = rig.new_account("pro", 0).await;
    let poor = rig.new_key(poor, |_| {}).await.1;
    let (_, capped) = rig
        .new_key(rig.account, |key| {
            key.spending_cap = Some(SpendingCap {
                max: Micros::new(60_000),
                period: CapPeriod::Total,
            });
        })
        .await;
    // An answer with usage above the hold is charged in full, and takes the whole cap.
    rig.provider.script(Script::usage(UsageReport::Exactly {
        prompt_tokens: 1_000,
        completion_tokens: 1,
    }));
    let client = Client::new(&rig.url()).with_key(&capped);
    rig.record_charge(&client.post(CHAT, &chat(false)).await.json());
    for (key, status, code) in [
        (&poor, 402, "insufficient_credits"),
        (&capped, 403, "key_spending_cap"),
    ] {
        let mut raw = rig.raw().await;
        // No byte of the body is sent, and an interim answer would ask for the body.
        raw.send(format!(
            "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
             Content-Length: 20971520\r\nExpect: 100-continue\r\n\r\n"
        ))
        .await;
        let (head, answer) = raw.read_answer().await;
        assert_eq!(head.status(), status, "{answer:?}");
        let error: Value = serde_json::from_slice(&answer).expect("the envelope");
        assert_eq!(error["error"]["code"], code);
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_body_that_does_not_fit_into_the_memory_is_refused_before_it_is_sent() {
    // Two fifths of 64 MiB: an account has at most 5 MiB, two copies of the largest body.
    let rig = Rig::with("[server]\nmemory_bytes_max = 67108864").await;
    let start = |length: usize| {
        let rig = &rig;
        async move {
            let mut raw = rig.raw().await;
            let fields = format!("Content-Length: {length}\r\nExpect: 100-continue\r\n");
            raw.send(head(rig, &fields)).await;
            let head = raw.read_head().await;
            (raw, head)
        }
    };
    let (_raw, refused) = start(4 << 20).await;
    assert_eq!(refused.status(), 413, "it never fits");
    let body = chat(false).to_string();
    let (mut first, asked) = start(2 << 20).await;
    assert_eq!(asked.status(), 100);
    let (_raw, refused) = start(2 << 20).await;
    assert_eq!(refused.status(), 503, "it does not fit beside the first");
    assert_eq!(refused.header("retry-after"), Some("5"));
    assert_eq!(rig.metric("tollgate_memory_refused_total").await, 1);
    // A second account has a separate share, and small bodies need no share.
    rig.record_charge(&rig.client().post(CHAT, &chat(false)).await.json());
    // An ended request returns the bytes.
    first
        .send(body.clone() + &" ".repeat((2 << 20) - body.len()))
        .await;
    let (head, answer) = first.read_answer().await;
    assert_eq!(head.status(), 200, "{answer:?}");
    rig.record_charge(&serde_json::from_slice(&answer).expect("JSON"));
    let (raw, asked) = start(2 << 20).await;
    assert_eq!(asked.status(), 100);
    drop(raw);
    rig.finish().await;
}

#[tokio::test]
async fn a_client_that_reads_only_after_it_has_sent_its_body_gets_the_answer() {
    let rig = Rig::with("server.body_secs = 30").await;
    // More than the buffers of the two sockets; the limit of the route is 20 MiB.
    let large = vec![b' '; 24 << 20];
    let chunked = |bytes: &[u8]| {
        let mut out = format!("{:x}\r\n", bytes.len()).into_bytes();
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n0\r\n\r\n");
        out
    };
    let length = format!("Content-Length: {}\r\n", large.len());
    let with_key = |fields: &str| head(&rig, fields);
    let without = |fields: &str| with_key(fields).replace(&rig.key, "sk-svc-unknown");
    for (what, head, body, status) in [
        ("a length", with_key(&length), large.clone(), 413),
        (
            "chunks",
            with_key("Transfer-Encoding: chunked\r\n"),
            chunked(&large),
            413,
        ),
        // Refused before the read of the body, at any size.
        ("no credential", without(&length), large.clone(), 401),
    ] {
        for tls in [false, true] {
            let mut raw = match tls {
                false => rig.raw().await,
                true => {
                    let connected = RawClient::connect_tls(rig.tls, &rig.ca_pem).await;
                    connected.expect("a connection")
                }
            };
            raw.send(&head).await;
            raw.send(&body).await;
            let (answer, text) = raw.read_answer().await;
            assert_eq!(answer.status(), status, "{what}, TLS {tls}: {text:?}");
            assert_eq!(answer.header("connection"), Some("close"), "{what}");
            let rest = raw.read_to_end().await.expect("an orderly end");
            assert!(rest.is_empty(), "{what}, TLS {tls}");
        }
    }
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn a_connection_stays_open_after_a_refusal_that_did_not_need_its_short_body() {
    let rig = Rig::start().await;
    let account = rig.new_account("free", 0).await;
    let (_, poor) = rig.new_key(account, |_| {}).await;
    for tls in [false, true] {
        let mut raw = match tls {
            false => rig.raw().await,
            true => {
                let connected = RawClient::connect_tls(rig.tls, &rig.ca_pem).await;
                connected.expect("a connection")
            }
        };
        for (key, status) in [
            ("sk-svc-unknown", 401),
            (&*poor, 402),
            (&*poor, 402),
            (&*rig.key, 200),
        ] {
            let body = chat(false).to_string();
            let head = head(&rig, &format!("Content-Length: {}\r\n", body.len()));
            raw.send(head.replace(&*rig.key, key) + &body).await;
            let (answer, text) = raw.read_answer().await;
            assert_eq!(answer.status(), status, "TLS {tls}: {text:?}");
            assert_eq!(answer.header("connection"), Some("keep-alive"), "{status}");
            if status == 200 {
                rig.record_charge(&serde_json::from_slice(&text).expect("JSON"));
            }
        }
    }
    rig.finish().await;
}
