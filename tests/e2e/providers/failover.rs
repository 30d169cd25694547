//! Failover: after a failure before the first byte, another provider answers. A failure after the first byte has no failover. Every case
//! has a single hold and a single charge.

use http::HeaderValue;
use http::header::CONTENT_TYPE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate_testing::Provider;
use tollgate_testing::provider::{Plan, Step};

use super::fixture::{NO_CIRCUIT, ProviderFixture, metric};
use super::*;

/// Sends whole requests and streams over HTTP/1.1 and HTTP/2, and expects answers of the second provider.
async fn served_by_the_other(rig: &Rig, other: &Provider, what: &str, prepare: impl Fn()) {
    for (protocol, client) in rig.both() {
        for stream in [false, true] {
            let what = format!("{what}, {protocol}, stream {stream}");
            other.forget_calls();
            prepare();
            let seen = observe(&client, stream).await;
            assert_eq!(seen, Ok(Answer { words: 16 }), "{what}");
            rig.quiet().await;
            rig.add_expected_charge(PRICE_OF_A_CHAT);
            let calls = other.calls_when_ended().await;
            assert_eq!(calls.len(), 1, "{what}");
            assert_eq!(calls[0].ended, Some(Ended::Whole), "{what}");
            let body = calls[0].json();
            assert_eq!(body["model"], "vendor/other-1", "{what}");
            assert_eq!(body["messages"], chat(stream)["messages"], "{what}");
            rig.provider.clear_scripts();
        }
    }
}

#[tokio::test]
async fn a_failure_before_the_first_byte_is_served_by_the_next_provider_for_one_charge() {
    let timeouts = "timeouts = { first_byte_secs = 1, first_byte_whole_secs = 1 }";
    let (rig, others) = ProviderFixture {
        first: &format!("{NO_CIRCUIT}\n{timeouts}"),
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    let first = &rig.provider;
    let scripts = [
        ("reset before the head", Script::no_head(Leave::Reset)),
        ("closed before the head", Script::no_head(Leave::Close)),
        ("no head in time", Script::hold_head("never")),
        ("another status", Script::status(302)),
        ("a time-out of its own", Script::status(408)),
        ("a refusal", Script::status(403)),
        ("no such model", Script::status(404)),
        ("an error", Script::status(500)),
        ("a bad gateway", Script::status(502)),
        ("too much to do", Script::status(503)),
        ("a gateway's time-out", Script::status(504)),
        (
            "a compressed answer",
            headers(Script::default(), "content-encoding", "gzip"),
        ),
    ];
    let mut followed = 0;
    for (what, script) in scripts {
        served_by_the_other(&rig, &others[0], what, || {
            first.forget_calls();
            first.script(script.clone().once());
        })
        .await;
        assert_eq!(first.call_count(), 1, "{what}: it was called once");
        followed += 4;
    }
    first.stop_listening().await;
    first.hang_up_idle();
    served_by_the_other(&rig, &others[0], "refused", || {}).await;
    let failovers = metric(&rig, "tollgate_upstream_failovers_total", "stand-in").await;
    assert_eq!(failovers, followed + 4);
    let after = rig.finish().await;
    assert!(after.each("provider").iter().all(|name| *name == "other-1"));
    assert!(after.log.iter().all(|line| line["upstream_calls"] == 2));
}

#[tokio::test]
async fn a_provider_that_rejects_the_key_opens_its_circuit_at_once_and_is_reported() {
    let (rig, others) = ProviderFixture {
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    rig.provider.script(Script::status(401));
    served_by_the_other(&rig, &others[0], "once is enough", || {}).await;
    assert_eq!(rig.provider.call_count(), 1);
    let ready = rig.admin_get("/ready").await;
    assert!(ready.text().contains("`stand-in`"), "{}", ready.text());
    rig.finish().await;
}

#[tokio::test]
async fn a_rate_limit_of_one_provider_is_hidden_while_another_can_serve() {
    let (rig, others) = ProviderFixture {
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    rig.provider.script(Script::status(429));
    served_by_the_other(&rig, &others[0], "limited", || {}).await;
    rig.finish().await;
}

#[tokio::test]
async fn a_request_that_a_provider_refuses_as_invalid_is_not_sent_to_another() {
    let (rig, others) = ProviderFixture {
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    for status in [400, 413, 422] {
        let refused = || {
            (
                "refused",
                Script::status(status),
                Error(400, "upstream_rejected"),
                0,
            )
        };
        check(&rig, false, vec![refused()]).await;
        check(&rig, true, vec![refused()]).await;
    }
    assert_eq!(others[0].call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn nothing_is_retried_after_the_first_byte() {
    let (rig, others) = ProviderFixture {
        others: &[""],
        first: NO_CIRCUIT,
        more: "[upstream]\nhedge_after_ms = 600000",
        ..ProviderFixture::default()
    }
    .open()
    .await;
    let broken = |words, code| Broken { words, code };
    let cut = Script::cut_after;
    let error_at = |at| Script {
        error_event_at: Some(at),
        ..Script::default()
    };
    check(
        &rig,
        true,
        vec![
            (
                "cut behind the head",
                cut(0, Leave::Close),
                Error(502, "upstream_error"),
                0,
            ),
            (
                "cut after the role",
                cut(1, Leave::Close),
                broken(0, "upstream_error"),
                0,
            ),
            (
                "cut after four words",
                cut(5, Leave::Close),
                broken(4, "upstream_error"),
                counted(4),
            ),
            (
                "an error event",
                error_at(5),
                broken(4, "upstream_error"),
                counted(4),
            ),
        ],
    )
    .await;
    assert_eq!(others[0].call_count(), 0);
    rig.finish().await;

    let (rig, others) = ProviderFixture {
        others: &[""],
        first: NO_CIRCUIT,
        ..ProviderFixture::default()
    }
    .open()
    .await;
    let torn = Script {
        cut: Some(Cut {
            after_bytes: Some(40),
            ..Cut::default()
        }),
        ..Script::default()
    };
    check(
        &rig,
        false,
        vec![("a torn body", torn, Error(502, "upstream_error"), 0)],
    )
    .await;
    assert_eq!(others[0].call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn when_all_fail_the_client_receives_the_last_failure_unless_one_was_a_rate_limit() {
    let (rig, others) = ProviderFixture {
        first: NO_CIRCUIT,
        others: &[NO_CIRCUIT],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    let status = Script::status;
    let busy = |secs: &str| Script {
        retry_after: Some(secs.to_owned()),
        ..status(429)
    };
    //   the first          the second        answer                                   Retry-After
    for (one, other, expected, wait) in [
        (status(500), status(503), Error(502, "upstream_error"), None),
        (
            status(500),
            status(504),
            Error(504, "upstream_timeout"),
            None,
        ),
        (
            status(504),
            Script::no_head(Leave::Reset),
            Error(502, "upstream_error"),
            None,
        ),
        (
            status(429),
            status(500),
            Error(429, "rate_limit_exceeded"),
            Some("5"),
        ),
        (
            status(500),
            status(400),
            Error(400, "upstream_rejected"),
            None,
        ),
        // The last case: afterwards neither provider is called.
        (
            busy("20"),
            busy("30"),
            Error(429, "rate_limit_exceeded"),
            Some("20"),
        ),
    ] {
        rig.provider.script(one.clone().once());
        others[0].script(other.clone().once());
        let answer = rig.client().post(CHAT, &chat(false)).await;
        let code = answer.json()["error"]["code"].clone();
        let code = known(code.as_str().expect("a code")).expect("a known code");
        assert_eq!(Error(answer.status, code), expected, "{one:?}, {other:?}");
        assert_eq!(answer.header("retry-after"), wait, "{one:?}, {other:?}");
        // A rate limit without `Retry-After` is respected for a second.
        rig.provider.clear_scripts();
        others[0].clear_scripts();
    }
    let calls = rig.provider.call_count() + others[0].call_count();
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 429);
    let wait: u32 = answer
        .header("retry-after")
        .and_then(|wait| wait.parse().ok())
        .expect("a number of seconds");
    assert!((10..=20).contains(&wait), "the sooner of both: {wait}");
    assert_eq!(
        rig.provider.call_count() + others[0].call_count(),
        calls,
        "no provider is called before its `Retry-After`"
    );
    rig.finish().await;
}

#[tokio::test]
async fn a_provider_whose_certificate_is_not_trusted_is_skipped() {
    let (rig, others) = ProviderFixture {
        others: &[""],
        tls: true,
        ..ProviderFixture::default()
    }
    .open()
    .await;
    served_by_the_other(&rig, &others[0], "no trust", || {}).await;
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn an_answer_that_is_not_http_fails_over_to_the_next_provider() {
    for garbage in [
        "HTTP/9.9 banana\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "\0\0\0\0",
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut piece = [0; 4096];
                let _ = socket.read(&mut piece).await;
                let _ = socket.write_all(garbage.as_bytes()).await;
            }
        });
        let (rig, others) = ProviderFixture {
            first: &format!("{NO_CIRCUIT}\nbase_url = \"http://{address}/v1\""),
            others: &[""],
            ..ProviderFixture::default()
        }
        .open()
        .await;
        served_by_the_other(&rig, &others[0], garbage, || {}).await;
        rig.finish().await;
    }
}

/// An HTTP/2 server with a fixed frame as the answer to every request, on every connection. A `0xff` in place of the stream's number is
/// replaced by the number of the request's stream.
async fn h2_server(kind: u8, stream: u8, payload: &'static [u8]) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut received = Vec::new();
                // Settings: none.
                let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
                if socket.write_all(&settings).await.is_err() {
                    return;
                }
                let mut piece = [0; 4096];
                while let Ok(read @ 1..) = socket.read(&mut piece).await {
                    received.extend_from_slice(&piece[..read]);
                    let Some(id) = first_stream(&received) else {
                        continue;
                    };
                    let on = if stream == 0xff { id } else { stream };
                    let length = u8::try_from(payload.len()).expect("a short frame");
                    let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, on];
                    frame.extend_from_slice(payload);
                    let _ = socket.write_all(&frame).await;
                    received.clear();
                }
            });
        }
    });
    address
}

/// The stream of the first HEADERS frame behind the preface.
fn first_stream(received: &[u8]) -> Option<u8> {
    let mut rest = received
        .strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap_or(received);
    while rest.len() >= 9 {
        let length = usize::from(rest[1]) << 8 | usize::from(rest[2]);
        if rest[3] == 1 {
            return Some(rest[8]);
        }
        rest = rest.get(9 + length..)?;
    }
    None
}

#[tokio::test]
async fn a_refused_stream_and_a_goaway_fail_over_to_the_next_provider() {
    const REFUSED_STREAM: &[u8] = &[0, 0, 0, 7];
    // No stream was processed. No error.
    const LEAVING: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0];
    for (what, kind, stream, payload) in [
        ("RST_STREAM", 3, 0xff, REFUSED_STREAM),
        ("GOAWAY", 7, 0, LEAVING),
    ] {
        let address = h2_server(kind, stream, payload).await;
        let (rig, others) = ProviderFixture {
            first: &format!("{NO_CIRCUIT}\nhttp2 = true\nbase_url = \"http://{address}/v1\""),
            others: &[""],
            ..ProviderFixture::default()
        }
        .open()
        .await;
        served_by_the_other(&rig, &others[0], what, || {}).await;
        let after = rig.finish().await;
        assert!(
            after.log.iter().all(|line| line["upstream_calls"] == 3),
            "{what}: a try on a new connection, then another provider"
        );
    }
}

#[tokio::test]
async fn a_fallback_model_serves_at_the_price_of_the_requested_one() {
    let (rig, others) = ProviderFixture {
        first: NO_CIRCUIT,
        others: &[NO_CIRCUIT],
        model: "fallback = [\"dear\"]\nexpensive_fallback = true",
        ..ProviderFixture::default()
    }
    .open()
    .await;
    for (provider, model) in [
        (&rig.provider, "vendor/small-1"),
        (&others[0], "vendor/other-1"),
    ] {
        provider.script(Script {
            model: Some(model.to_owned()),
            ..Script::status(500)
        });
    }
    for stream in [false, true] {
        let seen = observe(&rig.client(), stream).await;
        assert_eq!(seen, Ok(Answer { words: 16 }));
        rig.quiet().await;
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        assert_eq!(rig.provider.last_call().json()["model"], "dear");
    }
    let after = rig.finish().await;
    assert_eq!(after.each("model"), ["small", "small"]);
    assert_eq!(after.each("served_by"), ["dear", "dear"]);
    assert_eq!(after.report.usage, 2);
}

/// A name with several addresses, including a dead address: like `localhost` on a machine with IPv6.
#[tokio::test]
async fn a_provider_is_called_at_its_next_address_when_one_refuses() {
    let provider = Provider::start().await;
    let url = provider.base_url().replace("127.0.0.1", "localhost");
    let rig = Rig::with(&format!("[[provider]]\nbase_url = \"{url}\"")).await;
    for _ in 0..4 {
        let answer = rig.client().post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.record_charge(&answer.json());
        provider.hang_up_idle();
        provider.calls_when_ended().await;
    }
    rig.finish().await;
}

#[tokio::test]
async fn one_provider_is_retried_only_where_it_has_not_started_the_request() {
    //   retries   what it does              calls   the client sees
    for (retries, script, calls, expected) in [
        (1, Script::status(503).once(), 2, Answer { words: 16 }),
        (
            1,
            Script::status(503).times(2),
            2,
            Error(502, "upstream_error"),
        ),
        (2, Script::status(503).times(2), 3, Answer { words: 16 }),
        (
            0,
            Script::status(503).once(),
            1,
            Error(502, "upstream_error"),
        ),
        (
            2,
            Script::status(500).once(),
            1,
            Error(502, "upstream_error"),
        ),
        (
            2,
            Script::no_head(Leave::Reset).once(),
            1,
            Error(502, "upstream_error"),
        ),
    ] {
        let settings = format!("[[provider]]\n{NO_CIRCUIT}\nretries = {retries}");
        let rig = Rig::with(&settings).await;
        rig.provider.script(script.clone());
        let seen = observe(&rig.client(), false).await;
        assert_eq!(seen.as_ref(), Ok(&expected), "{script:?}");
        if seen == Ok(Answer { words: 16 }) {
            rig.add_expected_charge(PRICE_OF_A_CHAT);
        }
        assert_eq!(rig.provider.call_count(), calls, "{script:?}");
        rig.finish().await;
    }
}

#[tokio::test]
async fn further_attempts_end_with_their_budget() {
    let (rig, others) = ProviderFixture {
        first: NO_CIRCUIT,
        others: &[""],
        more: "[upstream.budget]\npercent = 0\nper_sec = 0\nburst = 5",
        ..ProviderFixture::default()
    }
    .open()
    .await;
    rig.provider.script(Script::status(500));
    for number in 0..20 {
        let seen = observe(&rig.client(), false).await;
        if number < 5 {
            assert_eq!(seen, Ok(Answer { words: 16 }));
            rig.add_expected_charge(PRICE_OF_A_CHAT);
        } else {
            assert_eq!(seen, Ok(Error(502, "upstream_error")));
        }
    }
    assert_eq!((rig.provider.call_count(), others[0].call_count()), (20, 5));
    let refused = metric(&rig, "tollgate_upstream_retries_refused_total", "stand-in").await;
    assert_eq!(refused, 15);
    rig.finish().await;
}

/// Every provider of a model fails under concurrent requests: the calls must not be a multiple of the requests.
#[tokio::test]
async fn a_thousand_requests_to_dead_providers_are_few_calls() {
    let (rig, others) = ProviderFixture {
        others: &["", ""],
        weights: Some(&[1, 1, 1]),
        ..ProviderFixture::default()
    }
    .open()
    .await;
    for provider in [&rig.provider, &others[0], &others[1]] {
        provider.script(Script::status(500));
    }
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let client = rig.client();
            tokio::spawn(async move {
                for _ in 0..50 {
                    let answer = client.post(CHAT, &chat(false)).await;
                    assert!(matches!(answer.status, 502 | 503), "{}", answer.status);
                    if answer.status == 503 {
                        assert!(answer.header("retry-after").is_some());
                        assert_eq!(answer.json()["error"]["code"], "overloaded");
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("no panic");
    }
    let calls = rig.provider.call_count() + others[0].call_count() + others[1].call_count();
    // A fifth more than the requests, the allowance for elapsed time, and the burst.
    assert!(calls <= 1000 + 200 + 50 + 100, "{calls} calls");
    rig.finish().await;
}

#[tokio::test]
async fn the_providers_key_is_redacted_in_its_messages() {
    let rig = Rig::with("[telemetry]\nlog_level = \"debug\"").await;
    let echo = format!(
        "{{\"error\":{{\"message\":\"bad key {}!\"}}}}",
        crate::rig::PROVIDER_KEY
    );
    for status in [400, 401, 429, 500] {
        rig.provider.script(
            Script {
                status: Some(status),
                ..Script::failure(Failure::Text(echo.clone()))
            }
            .once(),
        );
        let answer = rig.client().post(CHAT, &chat(false)).await;
        crate::rig::SECRETS.assert_absent("the answer", answer.text());
        if status == 400 {
            assert_eq!(answer.json()["error"]["message"], "bad key [redacted]!");
        }
    }
    // Where an answer should be.
    for stream in [false, true] {
        let (kind, text) = if stream {
            ("text/event-stream", format!("data: {echo}\n\n"))
        } else {
            ("application/json", echo.clone())
        };
        let script = headers(Script::failure(Failure::Text(text)), "content-type", kind);
        rig.provider.script(script.once());
        let answer = rig.client().post(CHAT, &chat(stream)).await;
        assert_eq!(answer.status, 502);
        crate::rig::SECRETS.assert_absent("the answer", answer.text());
        assert_eq!(answer.json()["error"]["message"], "bad key [redacted]!");
    }
    rig.finish().await;
}

#[tokio::test]
async fn calls_are_shared_by_weight_and_go_to_the_least_busy() {
    let (rig, others) = ProviderFixture {
        others: &[""],
        weights: Some(&[3, 1]),
        ..ProviderFixture::default()
    }
    .open()
    .await;
    for _ in 0..200 {
        let answer = rig.client().post(CHAT, &chat(false)).await;
        rig.record_charge(&answer.json());
    }
    let other = others[0].call_count();
    // A quarter; more than six standard deviations off is a fault.
    assert!((14..=86).contains(&other), "{other} of 200");
    rig.finish().await;

    let (rig, others) = ProviderFixture {
        others: &[""],
        weights: Some(&[1, 1]),
        model: "choice = \"least-busy\"",
        ..ProviderFixture::default()
    }
    .open()
    .await;
    for provider in [&rig.provider, &others[0]] {
        provider.script(Script::hold_head("gate"));
    }
    let clients: Vec<_> = (1..=6)
        .map(|_| {
            let client = rig.client();
            tokio::spawn(async move { client.post(CHAT, &chat(false)).await })
        })
        .collect();
    for provider in [&rig.provider, &others[0]] {
        provider.gate("gate").reached_by(3).await;
    }
    for provider in [&rig.provider, &others[0]] {
        provider.gate("gate").open();
    }
    for client in clients {
        rig.record_charge(&client.await.expect("no panic").json());
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_the_attempt_and_no_other_follows() {
    let (rig, others) = ProviderFixture {
        others: &[""],
        first: NO_CIRCUIT,
        ..ProviderFixture::default()
    }
    .open()
    .await;
    rig.provider.script(Script::status(500).once());
    others[0].script(Script::hold_head("gate").once());
    let mut raw = rig.raw().await;
    raw.post(CHAT, &rig.key, &chat(true).to_string()).await;
    others[0].gate("gate").reached_by(1).await;
    raw.reset();
    let calls = others[0].calls_when_ended().await;
    assert_eq!(calls[0].ended, Some(Ended::PeerGone));
    rig.quiet().await;
    assert_eq!(rig.provider.call_count(), 1);
    let after = rig.finish().await;
    assert_eq!(after.endings(), ["gone_before"]);
    assert_eq!(after.log[0]["upstream_calls"], 2);
}

/// The head of an answer is its first byte: a provider with a sent head and invalid data afterwards has started an answer.
#[tokio::test]
async fn an_answer_of_the_wrong_content_type_is_not_retried() {
    let plan = |_: &_| {
        Some(Plan {
            steps: vec![
                Step::Head {
                    status: 200,
                    headers: vec![(CONTENT_TYPE, HeaderValue::from_static("text/html"))],
                    framing: Framing::Length,
                    length: 2,
                },
                Step::Piece("hi".into()),
            ],
            write_bytes: None,
        })
    };
    let (rig, others) = ProviderFixture {
        others: &[""],
        custom: Some(std::sync::Arc::new(plan)),
        ..ProviderFixture::default()
    }
    .open()
    .await;
    let seen = observe(&rig.client(), false).await;
    assert_eq!(seen, Ok(Error(502, "upstream_invalid")));
    assert_eq!(others[0].call_count(), 0);
    rig.finish().await;
}
