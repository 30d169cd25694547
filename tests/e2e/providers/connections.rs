//! Connections to providers: refused, silent, stale, shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::HeaderValue;
use http::header::CONTENT_TYPE;
use tollgate_testing::provider::{self, Plan, Step};
use tollgate_testing::within;

use super::*;
use crate::rig::Setup;

#[tokio::test]
async fn a_provider_that_is_silent_is_504_or_an_error_event() {
    let limits = "[[provider]]\ntimeouts = { first_byte_secs = 1, first_byte_whole_secs = 1, between_bytes_secs = 1 }";
    let rig = Rig::with(limits).await;
    let timeout = || Error(504, "upstream_timeout");
    check(
        &rig,
        false,
        vec![
            ("no head", Script::hold_head("never"), timeout(), 0),
            ("no body", Script::hold(0, "never"), timeout(), 0),
        ],
    )
    .await;
    // The ledger's clock continues where the first table stopped.
    rig.finish().await;

    let rig = Rig::with(limits).await;
    check(
        &rig,
        true,
        vec![
            ("no head", Script::hold_head("never"), timeout(), 0),
            ("no event", Script::hold(0, "never"), timeout(), 0),
            (
                "no event after the role",
                Script::hold(1, "never"),
                Broken {
                    words: 0,
                    code: "upstream_timeout",
                },
                0,
            ),
            (
                "no event after four words",
                Script::hold(5, "never"),
                Broken {
                    words: 4,
                    code: "upstream_timeout",
                },
                counted(4),
            ),
        ],
    )
    .await;
    let calls = rig.provider.calls();
    assert!(
        calls.iter().all(|call| call.ended == Some(Ended::PeerGone)),
        "the gateway hangs up on a provider that is silent"
    );
    rig.finish().await;
}

/// A provider may send the head of an answer, and comments, long before the model has begun.
#[tokio::test]
async fn the_first_data_of_an_answer_may_take_as_long_as_its_first_byte() {
    let limits = "[[provider]]\ntimeouts = { between_bytes_secs = 1 }";
    for stream in [true, false] {
        let rig = Rig::with(limits).await;
        rig.provider.script(Script::hold(0, "thinking").once());
        let client = rig.client();
        let thinking = tokio::spawn(async move { observe(&client, stream).await });
        rig.provider.gate("thinking").reached_by(1).await;
        // A second answer, silent after the first word, marks the time: the second answer began later and ends after a second.
        for _ in 0..2 {
            rig.provider.script(Script::hold(2, "never").once());
            let seen = observe(&rig.client(), true).await;
            let broken = Broken {
                words: 1,
                code: "upstream_timeout",
            };
            assert_eq!(seen, Ok(broken));
            rig.add_expected_charge(counted(1));
        }
        rig.provider.gate("thinking").open();
        let seen = within("the answer", thinking).await.expect("no panic");
        assert_eq!(seen, Ok(Answer { words: 16 }), "stream {stream}");
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        rig.finish().await;
    }
}

#[tokio::test]
async fn comments_and_white_space_are_not_the_first_data_of_an_answer() {
    let limits = "[[provider]]\ntimeouts = { first_byte_secs = 1, first_byte_whole_secs = 1, between_bytes_secs = 3600 }";
    for (stream, kind, piece) in [
        (true, "text/event-stream", ": processing\n\n"),
        (false, "application/json", "\n\n"),
    ] {
        let custom: provider::Custom = Arc::new(move |_| {
            let head = Step::Head {
                status: 200,
                headers: vec![(CONTENT_TYPE, HeaderValue::from_static(kind))],
                framing: Framing::Chunked,
                length: 0,
            };
            let silence = Step::Pause(std::time::Duration::from_secs(3600));
            Some(Plan {
                steps: vec![head, Step::Piece(piece.into()), silence],
                write_bytes: None,
            })
        });
        let setup = Setup {
            custom: Some(custom),
            ..Setup::with(limits)
        };
        let rig = setup.start().await;
        let seen = within("the answer", observe(&rig.client(), stream)).await;
        assert_eq!(seen, Ok(Error(504, "upstream_timeout")), "{kind}");
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_silent_model_is_covered_by_comments_which_give_its_provider_no_more_time() {
    let settings =
        "[server]\ncomment_secs = 1\n[[provider]]\ntimeouts = { between_bytes_secs = 2 }\n";
    let rig = Rig::with(&format!("{settings}{WITH_REQUEST_PRICE}")).await;
    let mut left = CREDITS;
    for (protocol, client) in rig.clients() {
        rig.provider.script(Script::hold(5, "never").once());
        let mut stream = client.stream(CHAT, &chat(true)).await;
        for _ in 0..5 {
            let event = stream.next_event().await.expect("an event");
            assert!(!event.raw.starts_with(':'), "{protocol}: {}", event.raw);
        }
        // A comment after a second, and the end of the provider's time after two.
        let (events, end) = stream.rest().await;
        assert_eq!(end, StreamEnd::Proper, "{protocol}");
        let [charged, last] = &events[..] else {
            panic!("{protocol}: {events:?}");
        };
        assert!(charged.raw.starts_with(": "), "{protocol}: {}", charged.raw);
        rig.record_charge(&charged.json());
        assert_eq!(
            last.json()["error"]["code"],
            "upstream_timeout",
            "{protocol}"
        );
        rig.quiet().await;
        assert_eq!(left - rig.available(rig.account), counted(4), "{protocol}");
        left = rig.available(rig.account);
    }
    let after = rig.finish().await;
    assert_eq!(after.endings(), ["upstream_cut"; 4]);
}

#[tokio::test]
async fn an_answer_that_takes_too_long_in_all_is_ended() {
    let settings = format!("[[provider]]\ntimeouts = {{ total_secs = 2 }}\n{WITH_REQUEST_PRICE}");
    let rig = Rig::with(&settings).await;
    // Data arrives without end: in intervals, or so fast that a read never waits.
    let paces = [Some("pace".to_owned()), None];
    let cases = paces
        .iter()
        .flat_map(|pace| rig.both().map(|one| (pace.clone(), one.1)));
    for (pace, client) in cases.collect::<Vec<_>>() {
        rig.provider.script(
            Script {
                endless: true,
                usage: UsageReport::EveryChunk,
                pace,
                ..Script::default()
            }
            .once(),
        );
        let gate = rig.provider.gate("pace");
        gate.release(3);
        let mut stream = client.stream(CHAT, &chat(true)).await;
        let end = loop {
            match stream.next_event().await {
                Ok(event) if !event.raw.contains("\"error\"") => gate.release(1),
                Ok(event) => break event.json(),
                Err(end) => panic!("{end:?} without an error event"),
            }
        };
        assert_eq!(end["error"]["code"], "upstream_timeout");
        rig.quiet().await;
        // A call in wait at the gate would consume the release for the next call.
        rig.provider.calls_when_ended().await;
        // The reported tokens, and not the request price.
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_provider_over_http2_may_fail_in_the_same_ways() {
    let http2 = "[[provider]]\nhttp2 = true\ntimeouts = { first_byte_secs = 1, first_byte_whole_secs = 1, between_bytes_secs = 1 }";
    let rig = Rig::with(http2).await;
    let cut = Script::cut_after;
    let broken = |words| Broken {
        words,
        code: "upstream_error",
    };
    check(
        &rig,
        true,
        vec![
            (
                "no head",
                Script::no_head(Leave::Reset),
                Error(502, "upstream_error"),
                0,
            ),
            (
                "a status",
                Script::status(503),
                Error(502, "upstream_error"),
                0,
            ),
            (
                "silence",
                Script::hold_head("never"),
                Error(504, "upstream_timeout"),
                0,
            ),
            ("cut after the role", cut(1, Leave::Reset), broken(0), 0),
            (
                "cut after four words",
                cut(5, Leave::Reset),
                broken(4),
                counted(4),
            ),
            (
                "nothing wrong",
                Script::default(),
                Answer { words: 16 },
                PRICE_OF_A_CHAT,
            ),
        ],
    )
    .await;
    let calls = rig.provider.calls_when_ended().await;
    assert!(calls.iter().all(|call| call.protocol == "HTTP/2.0"));
    let after = rig.finish().await;
    assert_eq!(after.report.usage, 4);
}

#[tokio::test]
async fn a_provider_that_refuses_connections_is_502_until_it_comes_back() {
    let rig = Rig::start().await;
    rig.provider.stop_listening().await;
    for (protocol, client) in rig.both() {
        for stream in [false, true] {
            let seen = observe(&client, stream).await;
            assert_eq!(seen, Ok(Error(502, "upstream_unreachable")), "{protocol}");
        }
    }
    let list = rig.client().get("/v1/models").await.json();
    assert_eq!(
        list["data"],
        json!([]),
        "a model that cannot be had is not listed"
    );
    rig.provider.listen_again().await;
    let seen = observe(&rig.client(), false).await;
    assert_eq!(seen, Ok(Answer { words: 16 }), "it is tried all the same");
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    let list = rig.client().get("/v1/models").await.json();
    assert_eq!(
        list["data"].as_array().map(Vec::len),
        Some(2),
        "it works again"
    );
    rig.finish().await;
}

#[tokio::test]
async fn a_new_connection_that_breaks_before_the_head_is_not_tried_again() {
    let rig = Rig::start().await;
    for leave in [Leave::Close, Leave::Reset] {
        for stream in [false, true] {
            rig.provider.forget_calls();
            rig.provider.script(Script::no_head(leave).once());
            let seen = observe(&rig.client(), stream).await;
            assert_eq!(seen, Ok(Error(502, "upstream_error")), "{leave:?}");
            assert_eq!(rig.provider.call_count(), 1, "{leave:?}");
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_pooled_connection_that_went_stale_costs_one_retry_and_nothing_else() {
    // Over plain HTTP/1.1 the pool is the gateway's; over TLS and HTTP/2 the pool is the connector's.
    for (tls, http2) in [(false, false), (true, false)] {
        let mut setup = crate::rig::Setup::with(&format!(
            "[[provider]]\nhttp2 = {http2}\n{}",
            if tls {
                "ca_file = \"provider-ca.pem\""
            } else {
                ""
            }
        ));
        setup.provider_tls = tls;
        let rig = setup.start().await;
        for leave in [Leave::Close, Leave::Reset] {
            for stream in [false, true] {
                // The pool has two connections. The next use breaks a connection.
                rig.provider.clear_scripts();
                fill_pool(&rig, 2).await;
                rig.provider.forget_calls();
                rig.provider.script(Script {
                    on_reused_connection: true,
                    ..Script::no_head(leave)
                });
                let seen = observe(&rig.client(), stream).await;
                let what = format!("TLS {tls}, {leave:?}, stream {stream}");
                assert_eq!(seen, Ok(Answer { words: 16 }), "{what}");
                rig.add_expected_charge(PRICE_OF_A_CHAT);
                let calls = rig.provider.calls_when_ended().await;
                assert_eq!(calls.len(), 2, "{what}: one retry, exactly");
                assert_eq!(calls[0].body, calls[1].body, "{what}");
                assert_eq!(calls[1].ended, Some(Ended::Whole), "{what}");
            }
        }
        let after = rig.finish().await;
        let calls: u64 = after
            .log
            .iter()
            .filter_map(|line| line["upstream_calls"].as_u64())
            .sum();
        assert_eq!(
            calls,
            4 * (2 + 2),
            "two to fill the pool, two for the retried one"
        );
    }
}

/// Makes `count` calls at once: afterwards the connections of the calls are idle together.
async fn fill_pool(rig: &Rig, count: usize) {
    rig.provider
        .script(Script::hold_head("together").times(u32::try_from(count).expect("a few")));
    let gate = rig.provider.gate("together");
    let before = gate.arrived();
    let clients: Vec<_> = (0..count)
        .map(|_| {
            let client = rig.client();
            tokio::spawn(async move { client.post(CHAT, &chat(false)).await.status })
        })
        .collect();
    gate.reached_by(before + count).await;
    gate.release(count);
    for client in clients {
        assert_eq!(client.await.expect("no panic"), 200);
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    rig.provider.calls_when_ended().await;
}

#[tokio::test]
async fn a_connection_that_the_provider_closed_while_it_was_idle_is_not_used() {
    let rig = Rig::start().await;
    for round in 0..3 {
        let seen = observe(&rig.client(), round % 2 == 0).await;
        assert_eq!(seen, Ok(Answer { words: 16 }));
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        rig.provider.calls_when_ended().await;
        rig.provider.hang_up_idle();
    }
    assert_eq!(rig.provider.call_count(), 3);
    rig.finish().await;
}

/// A provider, or an intermediary, that sends more than the declared length makes a second answer of the excess. With an accepted excess,
/// the next client on the connection would receive the answer of another client, or of an attacker.
#[tokio::test]
async fn bytes_after_an_answer_are_never_the_answer_to_another_request() {
    let evil = r#"{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"EVIL"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
    let good = evil.replace("EVIL", "good");
    let evil = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{evil}",
        evil.len()
    );
    for in_one_write in [true, false] {
        let (good, evil) = (good.clone(), evil.clone());
        let calls = AtomicU32::new(0);
        let setup = Setup {
            custom: Some(Arc::new(move |_| {
                if calls.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
                    return None;
                }
                let head = Step::Head {
                    status: 200,
                    headers: vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
                    framing: Framing::Length,
                    length: good.len(),
                };
                let pieces = match in_one_write {
                    true => vec![good.clone() + &evil],
                    false => vec![good.clone(), evil.clone()],
                };
                let pieces = pieces.into_iter().map(|piece| Step::Piece(piece.into()));
                Some(Plan {
                    steps: std::iter::once(head).chain(pieces).collect(),
                    write_bytes: None,
                })
            })),
            ..Setup::default()
        };
        let rig = setup.start().await;
        for round in 0..10 {
            let answer = rig.client().post(CHAT, &chat(false)).await;
            assert_eq!(answer.status, 200, "round {round}: {}", answer.text());
            assert!(
                !answer.text().contains("EVIL"),
                "round {round}: {}",
                answer.text()
            );
            rig.record_charge(&answer.json());
        }
        rig.finish().await;
    }
}
