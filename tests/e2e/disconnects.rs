//! Clients with a disconnect at every phase of a request, and clients without further reads.

use bytes::Bytes;
use tollgate_testing::provider::UsageReport;
use tollgate_testing::{Ended, RawClient, Script};

use crate::rig::{CHAT, IN, OUT, PRICE_OF_A_CHAT, Rig, chat};

/// How a client disconnects.
#[derive(Clone, Copy, Debug)]
enum By {
    /// The client closes the connection in order.
    Closing,
    /// The client resets the connection.
    Reset,
    /// The client resets the HTTP/2 stream and keeps the connection.
    ResetOfTheStream,
    /// The client closes the sending side and would still read.
    ClosingOneSide,
}

const WAYS: [By; 4] = [
    By::Closing,
    By::Reset,
    By::ResetOfTheStream,
    By::ClosingOneSide,
];

/// A client after a request, with the head of a stream if the head has arrived.
enum DisconnectingClient {
    Raw(Box<RawClient>, By),
    H2(
        tokio::task::JoinHandle<()>,
        tokio::sync::mpsc::UnboundedReceiver<()>,
    ),
}

impl DisconnectingClient {
    /// Sends a chat and reads events on arrival.
    async fn connect(rig: &Rig, by: By, stream: bool) -> DisconnectingClient {
        let body = chat(stream);
        if !matches!(by, By::ResetOfTheStream) {
            let mut raw = rig.raw().await;
            raw.post(CHAT, &rig.key, &body.to_string()).await;
            return DisconnectingClient::Raw(Box::new(raw), by);
        }
        let client = rig.client().with_http2();
        let (saw, seen) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut answer = client.stream(CHAT, &body).await;
            while answer.next_event().await.is_ok() {
                let _ = saw.send(());
            }
        });
        DisconnectingClient::H2(task, seen)
    }

    /// Reads `events` events.
    async fn read_events(&mut self, events: usize) {
        match self {
            DisconnectingClient::Raw(raw, _) => {
                let head = raw.read_head().await;
                for _ in 0..events {
                    raw.next_event(&head).await.expect("an event");
                }
            }
            DisconnectingClient::H2(_, seen) => {
                for _ in 0..events {
                    tollgate_testing::within("an event", seen.recv())
                        .await
                        .expect("an event");
                }
            }
        }
    }

    /// Disconnects. The returned value keeps the connection open if needed by the test.
    async fn disconnect(self) -> Option<Box<RawClient>> {
        match self {
            DisconnectingClient::Raw(raw, By::Reset) => raw.reset(),
            DisconnectingClient::Raw(mut raw, By::ClosingOneSide) => {
                raw.half_close().await;
                return Some(raw);
            }
            DisconnectingClient::Raw(..) => {}
            // Dropping the answer resets the stream.
            DisconnectingClient::H2(task, _) => task.abort(),
        }
        None
    }
}

#[tokio::test]
async fn a_disconnect_before_output_is_free_and_cancels_the_call() {
    //   state of the provider                        stream
    for (what, script, stream) in [
        ("before its head", Script::hold_head("gate"), false),
        ("before its head", Script::hold_head("gate"), true),
        ("before the body", Script::hold(0, "gate"), false),
        ("before the first event", Script::hold(0, "gate"), true),
    ] {
        let rig = Rig::start().await;
        for by in WAYS {
            rig.provider.script(script.clone().once());
            let gate = rig.provider.gate("gate");
            let before = gate.arrived();
            let visitor = DisconnectingClient::connect(&rig, by, stream).await;
            gate.reached_by(before + 1).await;
            let left = visitor.disconnect().await;
            let calls = rig.provider.calls_when_ended().await;
            let call = calls.last().expect("a call");
            assert_eq!(call.ended, Some(Ended::PeerGone), "{what}, {by:?}");
            if let Some(mut raw) = left {
                let rest = raw.read_to_end().await.unwrap_or_default();
                assert!(rest.is_empty(), "{what}, {by:?}: {rest:?}");
            }
        }
        assert_eq!(rig.finish().await.endings(), ["gone_before"; 4], "{what}");
    }
}

#[tokio::test]
async fn a_disconnect_during_output_is_charged_by_the_reported_usage() {
    let rig = Rig::start().await;
    for by in WAYS {
        rig.provider.script(Script::hold(5, "gate").once());
        let gate = rig.provider.gate("gate");
        let before = gate.arrived();
        let mut visitor = DisconnectingClient::connect(&rig, by, true).await;
        gate.reached_by(before + 1).await;
        visitor.read_events(5).await;
        let _left = visitor.disconnect().await;
        // The gateway has seen the disconnect; the rest of the stream is drained for the usage.
        gate.release(1);
        let calls = rig.provider.calls_when_ended().await;
        let call = calls.last().expect("a call");
        assert_eq!(
            call.ended,
            Some(Ended::Whole),
            "{by:?}: the rest is drained"
        );
        rig.quiet().await;
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    let after = rig.finish().await;
    assert_eq!(after.report.usage, 4);
}

/// Clients disconnect during an endless stream: the call is cancelled, and the relayed part is charged.
async fn what_was_relayed_is_charged(settings: &str) {
    let rig = Rig::with(settings).await;
    for by in WAYS {
        rig.provider.script(Script::hold(5, "never").once());
        let mut visitor = DisconnectingClient::connect(&rig, by, true).await;
        visitor.read_events(5).await;
        let _left = visitor.disconnect().await;
        let calls = rig.provider.calls_when_ended().await;
        let call = calls.last().expect("a call");
        assert_eq!(call.ended, Some(Ended::PeerGone), "{by:?}");
        rig.quiet().await;
        // Counted by the test: the prompt, and four words of a single token.
        rig.add_expected_charge(9 * IN + 4 * OUT);
    }
    let after = rig.finish().await;
    assert_eq!(after.endings(), ["gone_during"; 4]);
    assert!(after.log.iter().all(|line| line["usage_estimated"] == true));
}

#[tokio::test]
async fn a_disconnect_from_an_endless_stream_is_charged_for_what_was_relayed() {
    what_was_relayed_is_charged("[meter]\ndrain_secs = 1").await;
}

#[tokio::test]
async fn with_after_leaving_stop_a_disconnect_cancels_the_call_and_charges_what_was_relayed() {
    for settings in [
        "[meter]\nafter_leaving = \"stop\"\ndrain_secs = 600",
        "[meter]\ndrain_secs = 600\n[[model]]\nafter_leaving = \"stop\"",
    ] {
        // Ten minutes of draining would exceed the time limit of the test.
        what_was_relayed_is_charged(settings).await;
    }
}

#[tokio::test]
async fn after_leaving_can_be_set_for_one_model() {
    let settings = "[meter]\nafter_leaving = \"stop\"\n[[model]]\nafter_leaving = \"drain\"";
    let rig = Rig::with(settings).await;
    for by in WAYS {
        rig.provider.script(Script::hold(5, "gate").once());
        let gate = rig.provider.gate("gate");
        let before = gate.arrived();
        let mut visitor = DisconnectingClient::connect(&rig, by, true).await;
        gate.reached_by(before + 1).await;
        visitor.read_events(5).await;
        let _left = visitor.disconnect().await;
        gate.release(1);
        let calls = rig.provider.calls_when_ended().await;
        assert_eq!(calls.last().and_then(|call| call.ended), Some(Ended::Whole));
        rig.quiet().await;
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_disconnect_after_the_role_event_is_free() {
    let rig = Rig::with("[meter]\ndrain_secs = 0").await;
    for by in WAYS {
        rig.provider.script(Script::hold(1, "never").once());
        let mut visitor = DisconnectingClient::connect(&rig, by, true).await;
        visitor.read_events(1).await;
        let _left = visitor.disconnect().await;
        rig.provider.calls_when_ended().await;
    }
    assert_eq!(rig.finish().await.endings(), ["gone_during"; 4]);
}

#[tokio::test]
async fn a_disconnect_during_the_request_body_calls_no_provider() {
    let rig = Rig::start().await;
    let key = &rig.key;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    );
    for framing in [
        "Content-Length: 1000\r\n\r\n{\"model\":",
        "Transfer-Encoding: chunked\r\n\r\n9\r\n{\"model\":\r\n4",
    ] {
        for reset in [false, true] {
            let mut raw = rig.raw().await;
            raw.send(format!("{head}{framing}")).await;
            match reset {
                true => raw.reset(),
                false => drop(raw),
            }
        }
        // Half a head is not a request.
        let mut raw = rig.raw().await;
        raw.send("POST /v1/chat/comp").await;
    }
    // A later request shows that the earlier requests have been processed.
    let answer = rig.client().get("/v1/models").await;
    assert_eq!(answer.status, 200);
    crate::rig::poll(|| log_lines(&rig) >= 5).await;
    assert_eq!(rig.provider.call_count(), 0);
    let after = rig.finish().await;
    let gone = after
        .endings()
        .iter()
        .filter(|ending| **ending == "gone_before")
        .count();
    assert_eq!(gone, 4, "{:?}", after.log);
}

fn log_lines(rig: &Rig) -> usize {
    let log = std::fs::read_to_string(rig.folder.path().join("access.log"));
    log.map_or(0, |log| log.lines().count())
}

#[tokio::test]
async fn a_client_that_stops_reading_is_disconnected_and_charged_for_what_was_sent() {
    let rig = Rig::with("[server]\nwrite_secs = 1\n[meter]\ndrain_secs = 0").await;
    let endless = Script {
        endless: true,
        event_bytes: Some(64 * 1024),
        usage: UsageReport::EveryChunk,
        ..Script::default()
    };
    rig.provider.script(endless.clone().once());
    let mut raw = rig.raw().await;
    raw.post(CHAT, &rig.key, &chat(true).to_string()).await;
    raw.read_head().await;
    rig.provider.calls_when_ended().await;
    rig.quiet().await;
    rig.add_expected_charge(PRICE_OF_A_CHAT);

    rig.provider.script(endless.once());
    let client = rig.client().with_http2();
    let stream = client.stream(CHAT, &chat(true)).await;
    rig.provider.calls_when_ended().await;
    rig.quiet().await;
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    drop((raw, stream));
    let calls = rig.provider.calls();
    assert!(calls.iter().all(|call| call.ended == Some(Ended::PeerGone)));
    assert_eq!(rig.finish().await.endings(), ["gone_during"; 2]);
}

#[tokio::test]
async fn an_endless_stream_is_drained_for_a_limited_time() {
    let rig = Rig::with("[meter]\ndrain_secs = 1").await;
    for by in WAYS {
        rig.provider.script(
            Script {
                endless: true,
                usage: UsageReport::EveryChunk,
                ..Script::default()
            }
            .once(),
        );
        let mut visitor = DisconnectingClient::connect(&rig, by, true).await;
        visitor.read_events(5).await;
        let _left = visitor.disconnect().await;
        let calls = rig.provider.calls_when_ended().await;
        let call = calls.last().expect("a call");
        assert_eq!(call.ended, Some(Ended::PeerGone), "{by:?}");
        rig.quiet().await;
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    assert_eq!(rig.finish().await.endings(), ["gone_during"; 4]);
}

#[tokio::test]
async fn resetting_one_http2_stream_does_not_affect_others() {
    let rig = Rig::start().await;
    rig.provider.script(Script::hold(5, "gate").times(2));
    let client = rig.client().with_http2();
    let mut kept = client.stream(CHAT, &chat(true)).await;
    let left = client.stream(CHAT, &chat(true)).await;
    rig.provider.gate("gate").reached_by(2).await;
    drop(left);
    rig.provider.gate("gate").open();
    let (events, _) = kept.rest().await;
    assert!(events.last().expect("events").is_done());
    let answer = client
        .send(client.request("GET", "/v1/models", Bytes::new()))
        .await;
    assert_eq!(answer.status, 200);
    rig.quiet().await;
    rig.add_expected_charge(2 * PRICE_OF_A_CHAT);
    rig.finish().await;
}

/// An account could cause any cost at the providers by disconnects before the first byte.
#[tokio::test]
async fn work_that_clients_abandon_is_free_up_to_a_limit() {
    // A request counts 82 tokens by the estimate, and 100 tokens for the begun second.
    let rig = Rig::with("[meter]\nabandoned_tokens_max = 200").await;
    let other = rig.new_account("pro", 1_000_000).await;
    let (_, other) = rig.new_key(other, |_| {}).await;
    for round in 1..=2 {
        rig.provider.script(Script::hold_head("gate").once());
        let mut raw = rig.raw().await;
        raw.post(CHAT, &rig.key, &chat(round == 1).to_string())
            .await;
        rig.provider.gate("gate").reached_by(round).await;
        raw.reset();
        rig.quiet().await;
    }
    let refused = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    let error = &refused.json()["error"];
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert!(refused.header("retry-after").is_some());
    assert!(rig.metric("tollgate_abandoned_work_total").await >= 200);
    assert_eq!(
        rig.metric("tollgate_meter_total{event=\"abandoned_limit\"}")
            .await,
        1
    );
    // The second account is not concerned, and answered requests do not count.
    let client = tollgate_testing::Client::new(&rig.url()).with_key(&other);
    rig.record_charge(&client.post(CHAT, &chat(false)).await.json());
    rig.provider.gate("gate").open();
    rig.finish().await;
}
