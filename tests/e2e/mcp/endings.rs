//! Ends of relayed exchanges: disconnects, failures and timeouts.

use tollgate_testing::{Act, StreamEnd, refusing_address};

use super::{MCP, McpRig, call};
use crate::rig::Rig;

#[tokio::test]
async fn a_disconnect_cancels_the_relayed_request() {
    let rig = McpRig::start().await;
    // In a stream; in wait for an answer; in the middle of the body.
    rig.server
        .play([Act::event_stream(), Act::chunk("data: 1\n\n"), Act::Wait]);
    let mut raw = rig.begin("GET", "Accept: text/event-stream\r\n").await;
    let head = raw.read_head().await;
    raw.next_event(&head).await.expect("an event");
    drop(raw);
    rig.server
        .when("the end of the stream", |calls| calls[0].was_left)
        .await;

    rig.server.play([Act::ReadBody, Act::Wait]);
    let raw = rig.begin("POST", "Content-Length: 2\r\n\r\n{}").await;
    rig.server
        .when("the request", |calls| calls.len() == 2 && calls[1].is_whole)
        .await;
    drop(raw);
    rig.server
        .when("the end of the wait", |calls| calls[1].was_left)
        .await;

    rig.server.play([Act::ReadBody, Act::Wait]);
    let mut raw = rig.begin("POST", "Content-Length: 5\r\n").await;
    raw.send("{").await;
    rig.server
        .when("half a body", |calls| {
            calls.len() == 3 && calls[2].body == b"{"
        })
        .await;
    drop(raw);
    rig.server
        .when("the end of the body", |calls| calls[2].was_left)
        .await;
    assert!(!rig.server.calls()[2].is_whole);

    let after = rig.rig.finish().await;
    assert_eq!(
        after.endings(),
        ["gone_during", "gone_before", "gone_before"]
    );
}

#[tokio::test]
async fn a_server_failure_is_502_before_the_head_and_a_cut_after_it() {
    let rig = McpRig::start().await;
    let broken = [
        vec![Act::ReadBody, Act::Cut { reset: false }],
        vec![Act::ReadBody, Act::Cut { reset: true }],
        vec![
            Act::ReadBody,
            Act::send("HTTP/1.1 2"),
            Act::Cut { reset: false },
        ],
    ];
    for acts in broken {
        rig.server.play(acts.clone());
        let answer = rig.client().post(MCP, &call()).await;
        assert_eq!(answer.status, 502, "{acts:?}");
        assert_eq!(answer.json()["error"]["code"], "upstream_error", "{acts:?}");
    }
    rig.server
        .play([Act::ReadBody, Act::send("hello\r\n\r\n"), Act::Wait]);
    let answer = rig.client().post(MCP, &call()).await;
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].as_str()),
        (502, Some("upstream_invalid"))
    );

    for (protocol, client) in [
        ("HTTP/1.1", rig.client()),
        ("h2c", rig.client().with_http2()),
    ] {
        rig.server.play([
            Act::ReadBody,
            Act::event_stream(),
            Act::chunk("data: 1\n\n"),
            Act::Stop("before the cut"),
            Act::Cut { reset: false },
        ]);
        let mut stream = client.stream(MCP, &call()).await;
        stream.next_event().await.expect("the first event");
        rig.server.gate("before the cut").release(1);
        let (rest, end) = stream.rest().await;
        assert!(rest.is_empty(), "{protocol}: {rest:?}");
        assert!(matches!(end, StreamEnd::Cut(_)), "{protocol}: {end:?}");
    }
    // A too short body of known length is no whole body either.
    rig.server.play([
        Act::ReadBody,
        Act::send(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{}",
        ),
        Act::Cut { reset: false },
    ]);
    let mut raw = rig.begin("POST", "Content-Length: 2\r\n\r\n{}").await;
    let head = raw.read_head().await;
    assert!(raw.try_read_body(&head).await.is_err());

    let after = rig.rig.finish().await;
    let endings = after.endings();
    assert_eq!(endings[..4], ["upstream_failed"; 4]);
    assert_eq!(endings[4..], ["upstream_cut"; 3]);
}

#[tokio::test]
async fn an_unreachable_server_is_502() {
    let address = refusing_address().expect("an address");
    let settings = format!("[mcp.general]\nupstream = \"http://{address}/mcp\"\n");
    let rig = Rig::with(&settings).await;
    let (_, token) = rig.new_token(rig.account, crate::rig::Token::MCP).await;
    let client = tollgate_testing::Client::new(&rig.url()).with_key(&token);
    let answer = client.post(MCP, &call()).await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json()["error"]["type"], "upstream_error");
    assert_eq!(answer.json()["error"]["code"], "upstream_unreachable");
    rig.finish().await;
}

#[tokio::test]
async fn a_server_timeout_is_504_before_the_head_and_a_cut_after_it() {
    let rig = McpRig::with("first_byte_secs = 1\nidle_secs = 1\n").await;
    rig.server.play([Act::ReadBody, Act::Wait]);
    let answer = rig.client().post(MCP, &call()).await;
    assert_eq!(answer.status, 504);
    assert_eq!(answer.json()["error"]["code"], "upstream_timeout");

    rig.server.play([
        Act::ReadBody,
        Act::event_stream(),
        Act::chunk("data: 1\n\n"),
        Act::Wait,
    ]);
    let mut stream = rig.client().stream(MCP, &call()).await;
    stream.next_event().await.expect("the first event");
    let (_, end) = stream.rest().await;
    assert!(matches!(end, StreamEnd::Cut(_)), "{end:?}");
    for at in 0..2 {
        rig.server
            .when("the end of the call", |calls| calls[at].was_left)
            .await;
    }
    let after = rig.rig.finish().await;
    assert_eq!(after.each("fault"), ["timeout", "timeout"]);
}

#[tokio::test]
async fn a_stream_ends_cleanly_at_its_time_limit() {
    let rig = McpRig::with("total_secs = 1\n").await;
    rig.server
        .play([Act::event_stream(), Act::chunk("data: 1\n\n"), Act::Wait]);
    let mut raw = rig.begin("GET", "Accept: text/event-stream\r\n").await;
    let head = raw.read_head().await;
    raw.next_event(&head).await.expect("an event");
    let (rest, end) = raw.rest_of_events(&head).await;
    assert!(
        rest.is_empty() && !matches!(end, StreamEnd::Cut(_)),
        "{rest:?} {end:?}"
    );
    rig.server
        .when("the end of the call", |calls| calls[0].was_left)
        .await;
    let after = rig.rig.finish().await;
    assert_eq!(after.endings(), ["complete"]);
}

#[tokio::test]
async fn a_stream_ends_cleanly_when_its_token_is_revoked() {
    let rig = McpRig::with("[server]\ncomment_secs = 1\n").await;
    rig.server
        .play([Act::event_stream(), Act::chunk("data: 1\n\n"), Act::Wait]);
    let (id, token) = rig.new_token(rig.account, crate::rig::Token::MCP).await;
    let mut raw = rig.raw().await;
    raw.send(format!(
        "GET {MCP} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    ))
    .await;
    let head = raw.read_head().await;
    raw.next_event(&head).await.expect("an event");
    let now = tollgate_clock::Clock::system().now();
    let revoked = tollgate_identity::revoke_key(&*rig.books.store, id, now).await;
    revoked.expect("written");
    let (rest, end) = raw.rest_of_events(&head).await;
    assert!(
        rest.is_empty() && !matches!(end, StreamEnd::Cut(_)),
        "{rest:?} {end:?}"
    );
    rig.server
        .when("the end of the call", |calls| calls[0].was_left)
        .await;
    let after = rig.rig.finish().await;
    assert_eq!(after.endings(), ["complete"]);
}

#[tokio::test]
async fn shutdown_ends_a_listening_stream_cleanly() {
    let rig = McpRig::start().await;
    rig.server
        .play([Act::event_stream(), Act::chunk("data: 1\n\n"), Act::Wait]);
    let mut raw = rig.begin("GET", "Accept: text/event-stream\r\n").await;
    let head = raw.read_head().await;
    raw.next_event(&head).await.expect("an event");
    let rest = tokio::spawn(async move { raw.rest_of_events(&head).await });
    // The usual grace of ten minutes would hang the test.
    let after = rig.rig.finish().await;
    let (rest, end) = rest.await.expect("the reader");
    assert!(
        rest.is_empty() && !matches!(end, StreamEnd::Cut(_)),
        "{rest:?} {end:?}"
    );
    assert_eq!(after.endings(), ["complete"]);
}

#[tokio::test]
async fn a_body_past_its_limit_is_refused_before_the_server_has_seen_all_of_it() {
    let rig = McpRig::with("[[route]]\npath = \"/mcp\"\nmethods = [\"POST\"]\nbody_bytes_max = 8\nchain = [\"auth\", \"mcp\"]\nscopes_any = [\"mcp:chat\"]\n").await;
    let mut raw = rig.begin("POST", "Content-Length: 9\r\n").await;
    let (head, body) = raw.read_answer().await;
    assert_eq!(head.status(), 413);
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(body["error"]["code"], "body_too_large");
    assert!(rig.server.calls().is_empty(), "it said so itself");

    rig.server.play([Act::ReadBody, Act::Wait]);
    let mut raw = rig.begin("POST", "Transfer-Encoding: chunked\r\n").await;
    raw.send("8\r\n12345678\r\n").await;
    rig.server
        .when("what fits", |calls| {
            calls.len() == 1 && calls[0].body.len() == 8
        })
        .await;
    raw.send("1\r\n9\r\n0\r\n\r\n").await;
    let (head, _) = raw.read_answer().await;
    assert_eq!(head.status(), 413);
    let calls = rig.server.when("the cut", |calls| calls[0].was_left).await;
    assert!(!calls[0].is_whole && calls[0].body == b"12345678");
    rig.rig.finish().await;
}
