//! Slow clients against the time limits of reads and writes. Every limit in the tests is one second; no duration is measured.

use tollgate_testing::{RawClient, within};

use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, chat};

/// Permits more sockets than usual for a process: the two ends of a connection are in the process of the test.
fn allow_many_files() {
    let pid = std::process::id().to_string();
    let asked = std::process::Command::new("prlimit")
        .args(["--pid", &pid, "--nofile=8192:"])
        .status();
    // If the limit cannot be raised and is too low, connecting fails.
    drop(asked);
}

#[tokio::test]
async fn a_thousand_clients_that_send_one_byte_are_closed_and_delay_no_other() {
    allow_many_files();
    let rig = Rig::with("[server]\nhead_secs = 1\nidle_secs = 1").await;
    let mut waiting = Vec::new();
    for number in 0..1000 {
        // The start of a head of HTTP/1.1, a byte that could begin HTTP/2, a TLS handshake, and no byte at all.
        let (address, first) = match number % 4 {
            0 | 1 => (rig.plain, "G"),
            2 => (rig.plain, "P"),
            _ => (rig.tls, "\u{16}"),
        };
        let mut raw = RawClient::connect(address).await;
        raw.send(first).await;
        waiting.push((first, raw));
    }
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "others are served meanwhile");
    rig.record_charge(&answer.json());
    for (first, mut raw) in waiting {
        let end = raw.read_to_end().await.unwrap_or_default();
        if first == "G" {
            assert!(
                end.starts_with(b"HTTP/1.1 408 "),
                "a head that has begun is answered"
            );
        }
    }
    let after = rig.finish().await;
    let late = after
        .each("error")
        .iter()
        .filter(|code| **code == "request_timeout")
        .count();
    assert_eq!(late, 500);
}

#[tokio::test]
async fn a_slowly_sending_client_is_closed() {
    let rig = Rig::with("[server]\nhead_secs = 1").await;
    let mut raw = rig.raw().await;
    raw.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-a: ")
        .await;
    // As long as bytes are taken, another follows a moment later.
    let mut now_and_then = tokio::time::interval(std::time::Duration::from_millis(50));
    while raw.try_send("x").await.is_ok() {
        now_and_then.tick().await;
    }
    assert_eq!(rig.finish().await.each("error"), ["request_timeout"]);
}

#[tokio::test]
async fn an_idle_connection_is_closed_between_requests_and_not_within_one() {
    let rig = Rig::with("[server]\nidle_secs = 1\nhead_secs = 30").await;
    let mut silent = rig.raw().await;
    let mut used = rig.raw().await;
    used.post(CHAT, &rig.key, &chat(false).to_string()).await;
    let (head, _) = used.read_answer().await;
    assert_eq!(head.status(), 200);
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    for raw in [&mut silent, &mut used] {
        let end = raw.read_to_end().await.expect("closed in order");
        assert!(end.is_empty(), "{end:?}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn an_http2_connection_without_a_stream_is_closed_after_the_idle_timeout() {
    let rig = Rig::with("[server]\nh2_idle_secs = 1\nhead_secs = 1").await;
    for preface in [
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0",
        "PRI * HTTP/2.0\r\n\r\nSM",
    ] {
        let mut raw = rig.raw().await;
        raw.send(preface).await;
        raw.read_to_end().await.unwrap_or_default();
    }
    rig.finish().await;
}

#[tokio::test]
async fn no_more_connections_than_allowed_are_served_at_once() {
    let rig = Rig::with("[server]\nconnections_max = 2").await;
    rig.provider
        .script(tollgate_testing::Script::hold_head("both"));
    let mut first = rig.raw().await;
    let mut second = rig.raw().await;
    for raw in [&mut first, &mut second] {
        raw.post(CHAT, &rig.key, &chat(false).to_string()).await;
    }
    let gate = rig.provider.gate("both");
    gate.reached_by(2).await;
    // The third connection waits in the system's queue until an earlier connection is closed or idle.
    let mut third = rig.raw().await;
    third.post(CHAT, &rig.key, &chat(false).to_string()).await;
    assert_eq!(rig.provider.call_count(), 2);
    gate.open();
    for raw in [&mut first, &mut second, &mut third] {
        assert_eq!(raw.read_answer().await.0.status(), 200);
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    let closed = rig
        .metric("tollgate_connections_closed_total{reason=\"full\"}")
        .await;
    assert_eq!(closed, 1, "an idle connection made room");
    rig.finish().await;
}

/// Unused sockets of a single host filled every place. No other client was answered until the sockets timed out after 75 seconds.
#[tokio::test]
async fn idle_sockets_of_one_host_leave_places_for_others() {
    let rig = Rig::with("[server]\nconnections_max = 50").await;
    let mut idle = Vec::new();
    for _ in 0..52 {
        idle.push(rig.raw().await);
    }
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    let closed = rig
        .metric("tollgate_connections_closed_total{reason=\"share\"}")
        .await;
    assert!(closed >= 52 - 25, "only {closed} were closed");
    // The oldest first.
    assert_eq!(idle.remove(0).read_to_end().await.unwrap_or_default(), "");
    rig.finish().await;
}

/// A connection with an open request is no candidate for eviction. An idle connection is a candidate again.
#[tokio::test]
async fn a_connection_beyond_the_share_of_its_address_never_cuts_a_request() {
    let rig = Rig::with("[server]\nconnections_per_address_max = 1").await;
    rig.provider
        .script(tollgate_testing::Script::hold_head("one"));
    let mut busy = rig.raw().await;
    busy.post(CHAT, &rig.key, &chat(false).to_string()).await;
    let gate = rig.provider.gate("one");
    gate.reached_by(1).await;
    let mut other = rig.raw().await;
    assert_eq!(
        other.read_to_end().await.unwrap_or_default(),
        "",
        "it is closed"
    );
    let refused = rig
        .metric("tollgate_connections_closed_total{reason=\"refused\"}")
        .await;
    assert_eq!(refused, 1);
    gate.open();
    assert_eq!(busy.read_answer().await.0.status(), 200);
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    let makes_room = async {
        loop {
            let mut next = rig.raw().await;
            let head = "GET /llms.txt HTTP/1.1\r\nhost: localhost\r\n\r\n";
            // A connection beyond the share is closed without an answer.
            if next.try_send(head).await.is_ok()
                && let Ok(Some(_)) = next.try_read_head().await
            {
                break;
            }
        }
    };
    within("the idle connection to make room", makes_room).await;
    assert_eq!(busy.read_to_end().await.unwrap_or_default(), "", "closed");
    let closed = rig
        .metric("tollgate_connections_closed_total{reason=\"share\"}")
        .await;
    assert_eq!(closed, 1);
    rig.finish().await;
}

#[tokio::test]
async fn more_streams_than_allowed_on_one_connection_wait_for_their_turn() {
    let rig = Rig::with("[server]\nh2_streams_max = 3").await;
    rig.provider
        .script(tollgate_testing::Script::hold_head("all"));
    let client = std::sync::Arc::new(rig.client().with_http2());
    // A client has received the limit after the server's SETTINGS.
    assert_eq!(client.get("/v1/models").await.status, 200);
    let requests: Vec<_> = (0..9)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.post(CHAT, &chat(false)).await.status })
        })
        .collect();
    let gate = rig.provider.gate("all");
    gate.reached_by(3).await;
    assert_eq!(rig.provider.call_count(), 3);
    gate.open();
    for one in requests {
        assert_eq!(one.await.expect("no panic"), 200);
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    rig.finish().await;
}
