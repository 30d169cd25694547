//! Every misbehaviour of the provider stand-in, as seen by a client at byte level.

use serde_json::{Value, json};
use tollgate_testing::provider::{
    Cut, Failure, Framing, Hold, Leave, LineEnd, UsageReport, answer,
};
use tollgate_testing::{
    Certificate, Client, Ended, Provider, RawClient, Script, Settings, StreamEnd, within,
};

const CHAT: &str = "/v1/chat/completions";

fn question(stream: bool) -> Value {
    json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "May I pass?"}]})
}

/// One raw request to a provider that follows `script`.
async fn asked(script: Script, stream: bool) -> (Provider, RawClient) {
    let provider = Provider::start().await;
    provider.script(script);
    let mut client = RawClient::connect(provider.address()).await;
    client
        .post(CHAT, "sk-test", &question(stream).to_string())
        .await;
    (provider, client)
}

#[tokio::test]
async fn statuses_come_with_openai_errors() {
    for status in [400, 401, 403, 404, 429, 500, 503] {
        let script = Script {
            retry_after: Some("7".to_owned()),
            ..Script::status(status)
        };
        let (_provider, mut client) = asked(script, true).await;
        let (head, body) = client.read_answer().await;
        assert_eq!(head.status(), status);
        assert_eq!(head.header("retry-after"), Some("7"));
        let error: Value = serde_json::from_slice(&body).expect("JSON");
        for member in ["message", "type", "param", "code"] {
            assert!(
                error["error"].get(member).is_some(),
                "{status} lacks {member}"
            );
        }
    }
}

#[tokio::test]
async fn bodies_can_be_anything() {
    //    failure                            starts with
    for (failure, start) in [
        (Failure::Html, &b"<html>"[..]),
        (Failure::Garbage, b"\x00\xff"),
        (Failure::InvalidJson, b"{\"id\":"),
        (Failure::OtherJson, b"{\"weather\""),
        (Failure::Empty, b""),
        (Failure::Text("busy".to_owned()), b"busy"),
    ] {
        let script = Script {
            status: Some(502),
            ..Script::failure(failure.clone())
        };
        let (_provider, mut client) = asked(script, false).await;
        let (head, body) = client.read_answer().await;
        assert_eq!(head.status(), 502);
        assert!(body.starts_with(start), "{failure:?} gave {body:?}");
    }
}

#[tokio::test]
async fn no_head_is_sent_when_scripted() {
    let (provider, mut client) = asked(Script::no_head(Leave::Close), false).await;
    assert!(
        client
            .try_read_head()
            .await
            .expect("an orderly end")
            .is_none()
    );
    assert_eq!(provider.calls_when_ended().await[0].ended, Some(Ended::Cut));

    let (_provider, mut client) = asked(Script::no_head(Leave::Reset), false).await;
    let problem = client.try_read_head().await.expect_err("a reset");
    assert_eq!(problem.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn interim_heads_come_first() {
    let script = Script {
        informational: vec![103, 102],
        ..Script::default()
    };
    let (_provider, mut client) = asked(script, false).await;
    for status in [103, 102, 200] {
        assert_eq!(client.read_head().await.status(), status);
    }
}

#[tokio::test]
async fn streams_are_cut_after_events_or_bytes() {
    let by = Leave::Close;
    let (provider, mut client) = asked(Script::cut_after(3, by), true).await;
    let head = client.read_head().await;
    let (events, end) = client.rest_of_events(&head).await;
    assert_eq!(events.len(), 3);
    assert!(matches!(end, StreamEnd::Cut(_)), "{end:?}");
    assert_eq!(provider.calls_when_ended().await[0].pieces_sent, 3);

    let cut = Some(Cut {
        after_bytes: Some(10),
        after_events: None,
        by,
    });
    let (_provider, mut client) = asked(
        Script {
            cut,
            ..Script::default()
        },
        true,
    )
    .await;
    let head = client.read_head().await;
    assert_eq!(
        client
            .try_read_chunk()
            .await
            .expect("a chunk")
            .expect("data")
            .len(),
        10
    );
    assert!(
        client.try_read_chunk().await.is_err(),
        "after {}",
        head.start_line
    );
}

#[tokio::test]
async fn whole_answers_are_cut_short_of_their_length() {
    let cut = Some(Cut {
        after_bytes: Some(20),
        ..Cut::default()
    });
    let (_provider, mut client) = asked(
        Script {
            cut,
            ..Script::default()
        },
        false,
    )
    .await;
    let head = client.read_head().await;
    let problem = client
        .try_read_body(&head)
        .await
        .expect_err("20 bytes are not the whole body");
    assert_eq!(problem.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_cut_behind_the_last_event_takes_the_place_of_the_end() {
    let (_provider, mut client) = asked(Script::cut_after(1000, Leave::Close), true).await;
    let head = client.read_head().await;
    let (events, end) = client.rest_of_events(&head).await;
    assert!(events.last().expect("events").is_done());
    assert!(matches!(end, StreamEnd::Cut(_)), "no last chunk: {end:?}");
}

#[tokio::test]
async fn a_stream_stops_at_each_gate_until_it_is_released() {
    let (provider, mut client) = asked(Script::pace("step"), true).await;
    let gate = provider.gate("step");
    gate.reached_by(1).await;
    let head = client.read_head().await;
    for arrived in 1..=4 {
        gate.reached_by(arrived).await;
        assert_eq!(provider.last_call().pieces_sent, arrived - 1);
        gate.release(1);
        client
            .next_event(&head)
            .await
            .expect("the event that was let through");
    }
    gate.open();
    let (events, _) = client.rest_of_events(&head).await;
    assert_eq!(events.len(), 19 - 4);
}

#[tokio::test]
async fn a_peer_that_disconnects_at_a_gate_is_detected() {
    for http2 in [false, true] {
        let provider = Provider::start().await;
        provider.script(Script {
            holds: vec![Hold {
                before: 2,
                gate: "door".to_owned(),
            }],
            ..Script::default()
        });
        let client = Client::new(&provider.url());
        let client = if http2 { client.with_http2() } else { client };
        let mut stream = client.stream(CHAT, &question(true)).await;
        stream.next_event().await.expect("the first event");
        provider.gate("door").reached_by(1).await;
        drop(stream);
        assert_eq!(
            provider.calls_when_ended().await[0].ended,
            Some(Ended::PeerGone),
            "HTTP/2: {http2}"
        );
    }
}

#[tokio::test]
async fn usage_is_reported_in_all_the_wrong_ways() {
    let last_usage = |report: UsageReport| async {
        let provider = Provider::start().await;
        provider.script(Script::usage(report));
        let mut body = question(true);
        body["stream_options"] = json!({"include_usage": true});
        let (events, _) = Client::new(&provider.url())
            .stream(CHAT, &body)
            .await
            .rest()
            .await;
        let usages = events
            .iter()
            .filter(|event| !event.is_done())
            .map(|event| event.json()["usage"].clone());
        let given: Vec<Value> = usages.filter(|usage| !usage.is_null()).collect();
        (given.len(), given.last().cloned().unwrap_or_default())
    };
    let honest = json!({"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19});
    let exact = UsageReport::Exactly {
        prompt_tokens: 7,
        completion_tokens: 9,
    };
    //   report                        reports  the last of them
    for (report, count, last) in [
        (UsageReport::Honest, 1, honest.clone()),
        (UsageReport::Forgotten, 0, Value::Null),
        (UsageReport::EveryChunk, 19, honest.clone()),
        (UsageReport::Cumulative, 19, honest),
        (
            exact,
            1,
            json!({"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}),
        ),
    ] {
        assert_eq!(
            last_usage(report.clone()).await,
            (count, last),
            "{report:?}"
        );
    }
    assert_eq!(
        last_usage(UsageReport::Absurd).await.1["total_tokens"],
        2_000_000_000_000_u64
    );
    assert_eq!(
        last_usage(UsageReport::Negative).await.1["prompt_tokens"],
        -5
    );
    assert_eq!(
        last_usage(UsageReport::Words).await.1["prompt_tokens"],
        "five"
    );
}

#[tokio::test]
async fn an_error_event_ends_a_stream_without_done() {
    let script = Script {
        error_event_at: Some(4),
        event_names: true,
        ..Script::default()
    };
    let (_provider, mut client) = asked(script, true).await;
    let head = client.read_head().await;
    let (events, end) = client.rest_of_events(&head).await;
    assert_eq!((events.len(), end), (5, StreamEnd::Proper));
    assert!(events[4].raw.starts_with("event: error\n"));
    assert!(events[4].json()["error"]["message"].is_string());
}

#[tokio::test]
async fn done_can_be_missing() {
    let (_provider, mut client) = asked(
        Script {
            no_done: true,
            ..Script::default()
        },
        true,
    )
    .await;
    let head = client.read_head().await;
    let (events, end) = client.rest_of_events(&head).await;
    assert_eq!((events.len(), end), (18, StreamEnd::Proper));
}

#[tokio::test]
async fn events_are_written_in_every_legal_way() {
    for (line_end, text) in [
        (LineEnd::Lf, "\n"),
        (LineEnd::Crlf, "\r\n"),
        (LineEnd::Cr, "\r"),
    ] {
        let script = Script {
            line_end,
            no_space: true,
            comments: true,
            ..Script::default()
        };
        let (_provider, mut client) = asked(script, true).await;
        client.read_head().await;
        let first = client
            .try_read_chunk()
            .await
            .expect("a chunk")
            .expect("data");
        let first = std::str::from_utf8(&first).expect("text");
        assert!(
            first.starts_with(&format!(": keep-alive{text}data:{{")),
            "{first:?}"
        );
        assert!(first.ends_with(&format!("}}{text}{text}")), "{first:?}");
    }
}

#[tokio::test]
async fn one_byte_at_a_time_still_makes_the_same_answer() {
    for stream in [false, true] {
        let script = Script {
            write_bytes: Some(1),
            ..Script::default()
        };
        let (provider, mut client) = asked(script, stream).await;
        let head = client.read_head().await;
        if stream {
            let first = client
                .try_read_chunk()
                .await
                .expect("a chunk")
                .expect("data");
            assert_eq!(first, "d", "every chunk has one byte");
        }
        let body = client.read_body(&head).await;
        assert!(!body.is_empty());
        assert_eq!(
            provider.calls_when_ended().await[0].ended,
            Some(Ended::Whole)
        );
    }
}

#[tokio::test]
async fn an_event_can_be_huge_and_is_still_one_word() {
    let script = Script {
        event_bytes: Some(300_000),
        ..Script::default()
    };
    let (_provider, mut client) = asked(script, true).await;
    let head = client.read_head().await;
    let (events, _) = client.rest_of_events(&head).await;
    assert!(events[1].raw.len() > 300_000);
    let content = events[1].json()["choices"][0]["delta"]["content"].clone();
    assert_eq!(answer::tokens(content.as_str().expect("text")), 1);
}

#[tokio::test]
async fn an_endless_stream_ends_with_its_reader() {
    let (provider, mut client) = asked(
        Script {
            endless: true,
            ..Script::default()
        },
        true,
    )
    .await;
    let head = client.read_head().await;
    for _ in 0..100 {
        client.next_event(&head).await.expect("another event");
    }
    drop(client);
    assert_eq!(
        provider.calls_when_ended().await[0].ended,
        Some(Ended::PeerGone)
    );
}

#[tokio::test]
async fn bodies_are_framed_as_scripted() {
    for framing in [Framing::Length, Framing::Chunked, Framing::UntilClose] {
        let (_provider, mut client) = asked(
            Script {
                framing: Some(framing),
                ..Script::default()
            },
            false,
        )
        .await;
        let head = client.read_head().await;
        assert_eq!(
            head.header("content-length").is_some(),
            framing == Framing::Length
        );
        assert_eq!(
            head.header("transfer-encoding").is_some(),
            framing == Framing::Chunked
        );
        let body: Value = serde_json::from_slice(&client.read_body(&head).await).expect("JSON");
        assert_eq!(body["usage"]["completion_tokens"], 16);
    }
}

#[tokio::test]
async fn names_and_fields_can_be_others() {
    let script = Script {
        answer_model: Some("backend-private".to_owned()),
        headers: vec![
            ("x-leak".to_owned(), "1".to_owned()),
            ("server".to_owned(), "other".to_owned()),
        ],
        ..Script::default()
    };
    let (_provider, mut client) = asked(script, false).await;
    let (head, body) = client.read_answer().await;
    assert_eq!(
        (head.header("x-leak"), head.header("server")),
        (Some("1"), Some("other"))
    );
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(body["model"], "backend-private");
}

#[tokio::test]
async fn a_request_can_bring_its_own_script() {
    let provider = Provider::start().await;
    let client = Client::new(&provider.url());
    let mut body = question(false);
    body["stand_in"] = json!({"status": 503});
    assert_eq!(client.post(CHAT, &body).await.status, 503);
    body["stand_in"] = json!({"usage": {"exactly": {"prompt_tokens": 1, "completion_tokens": 2}}});
    assert_eq!(
        client.post(CHAT, &body).await.json()["usage"]["total_tokens"],
        3
    );
    body["stand_in"] = json!({"stauts": 503});
    assert!(client.post(CHAT, &body).await.text().contains("stauts"));
}

#[tokio::test]
async fn a_pooled_connection_goes_stale() {
    let provider = Provider::start().await;
    provider.script(Script {
        on_reused_connection: true,
        ..Script::no_head(Leave::Close)
    });
    let mut client = RawClient::connect(provider.address()).await;
    client
        .post(CHAT, "sk-test", &question(false).to_string())
        .await;
    client.read_answer().await;
    client
        .post(CHAT, "sk-test", &question(false).to_string())
        .await;
    assert!(
        client
            .try_read_head()
            .await
            .expect("an orderly end")
            .is_none()
    );
    let mut client = RawClient::connect(provider.address()).await;
    client
        .post(CHAT, "sk-test", &question(false).to_string())
        .await;
    assert_eq!(
        client.read_head().await.status(),
        200,
        "the first request of a connection is answered"
    );
}

#[tokio::test]
async fn idle_connections_are_hung_up() {
    let provider = Provider::start().await;
    let mut client = RawClient::connect(provider.address()).await;
    client
        .post(CHAT, "sk-test", &question(false).to_string())
        .await;
    client.read_answer().await;
    provider.hang_up_idle();
    assert_eq!(client.read_to_end().await.expect("an orderly end"), "");
}

#[tokio::test]
async fn connections_are_refused_or_reset() {
    let provider = Provider::start().await;
    provider.reset_connections(1);
    let client = Client::new(&provider.url());
    let send = || client.try_send(client.request("GET", "/v1/models", "".into()));
    assert!(send().await.is_err(), "the connection is reset");
    assert!(send().await.is_ok());

    provider.stop_listening().await;
    let problem = send().await.expect_err("no process listens");
    assert_eq!(problem.kind(), std::io::ErrorKind::ConnectionRefused);
    provider.listen_again().await;
    assert!(send().await.is_ok());
}

#[tokio::test]
async fn http2_streams_are_reset_one_by_one() {
    let certificate = Certificate::for_localhost();
    let tls = Some(certificate.clone());
    let provider = Provider::start_with(Settings {
        tls,
        ..Settings::default()
    })
    .await
    .expect("a free port");
    let client = Client::new(&provider.url())
        .with_http2()
        .with_tls(&certificate.ca_pem);
    provider.script(Script::no_head(Leave::Reset).once());
    let request = client.request("POST", CHAT, question(true).to_string().into());
    assert!(
        client.try_send(request).await.is_err(),
        "the stream is reset before its head"
    );

    provider.script(Script::cut_after(3, Leave::Reset).once());
    let mut stream = client.stream(CHAT, &question(true)).await;
    let (events, end) = stream.rest().await;
    assert!(
        events.len() <= 3 && matches!(end, StreamEnd::Cut(_)),
        "{} events, {end:?}",
        events.len()
    );

    assert_eq!(client.post(CHAT, &question(false)).await.status, 200);
    let calls = provider.calls_when_ended().await;
    assert!(
        calls.iter().all(|call| call.connection == 1),
        "the connection outlives its streams"
    );
}

#[tokio::test]
async fn a_dropped_provider_stops_listening() {
    let provider = Provider::start().await;
    let mut client = RawClient::connect(provider.address()).await;
    client
        .post(CHAT, "sk-test", &question(false).to_string())
        .await;
    client.read_answer().await;
    drop(provider);
    let _ = within("the end of the connection", client.read_to_end()).await;
}
