//! Streaming to and from the client: chunks are relayed on arrival.

use serde_json::json;
use tollgate_testing::{Act, Certificate, Client, McpServer};

use super::{MCP, McpRig, call};
use crate::rig::{Setup, Token};

#[tokio::test]
async fn the_first_piece_of_a_request_arrives_before_the_last_is_sent() {
    let rig = McpRig::start().await;
    let mut raw = rig.begin("POST", "Transfer-Encoding: chunked\r\n").await;
    raw.send("3\r\none\r\n").await;
    rig.server
        .when("the first chunk", |calls| {
            calls.first().is_some_and(|call| call.body == b"one")
        })
        .await;
    raw.send("3\r\ntwo\r\n").await;
    rig.server
        .when("the second chunk", |calls| calls[0].body == b"onetwo")
        .await;
    raw.send("0\r\n\r\n").await;
    let (head, _) = raw.read_answer().await;
    // The stand-in cannot parse the body, and answers with an error of the stand-in.
    assert_eq!(head.status(), 406);
    let call = &rig.server.calls()[0];
    assert_eq!(call.headers["transfer-encoding"], "chunked");
    assert!(!call.headers.contains_key("content-length"));

    let mut raw = rig.begin("POST", "Content-Length: 6\r\n").await;
    raw.send("one").await;
    let has_first =
        |calls: &[tollgate_testing::McpCall]| calls.get(1).is_some_and(|call| call.body == b"one");
    rig.server.when("half of a known length", has_first).await;
    raw.send("two").await;
    let (_, _) = raw.read_answer().await;
    let call = &rig.server.calls()[1];
    assert_eq!(call.headers["content-length"], "6");
    assert!(call.is_whole && call.body == b"onetwo");
    rig.rig.finish().await;
}

#[tokio::test]
async fn the_first_event_arrives_before_the_server_ends() {
    let rig = McpRig::start().await;
    let tls = format!("https://localhost:{}", rig.tls.port());
    let secure = || Client::new(&tls).with_key(&rig.token);
    for (protocol, client) in [
        ("HTTP/1.1", rig.client()),
        ("h2c", rig.client().with_http2()),
        ("TLS", secure().with_tls(&rig.ca_pem)),
        ("h2", secure().with_http2().with_tls(&rig.ca_pem)),
    ] {
        rig.server.play([
            Act::ReadBody,
            Act::event_stream(),
            Act::chunk("data: 1\n\n"),
            Act::Stop("middle"),
            Act::chunk("data: 2\n\n"),
            Act::last_chunk(),
        ]);
        let mut stream = client.stream(MCP, &call()).await;
        assert_eq!(stream.status, 200, "{protocol}");
        assert_eq!(stream.headers["content-type"], "text/event-stream");
        assert_eq!(stream.headers["x-accel-buffering"], "no");
        assert_eq!(stream.headers["cache-control"], "no-store");
        let event = stream.next_event().await.expect("the first event");
        assert_eq!(event.data(), "1", "{protocol}");
        rig.server.gate("middle").release(1);
        let (rest, _) = stream.rest().await;
        assert_eq!(rest[0].data(), "2", "{protocol}");
    }
    let after = rig.rig.finish().await;
    assert_eq!(after.endings(), ["complete"; 4]);
    assert_eq!(after.each("provider"), ["mcp.general"; 4]);
}

#[tokio::test]
async fn the_head_of_a_stream_is_sent_before_its_first_event() {
    let rig = McpRig::start().await;
    rig.server
        .play([Act::event_stream(), Act::Stop("end"), Act::last_chunk()]);
    let mut raw = rig.begin("GET", "Accept: text/event-stream\r\n").await;
    let head = raw.read_head().await;
    assert_eq!(head.status(), 200);
    rig.server.gate("end").open();
    assert_eq!(raw.try_read_chunk().await.expect("the end"), None);
    rig.rig.finish().await;
}

#[tokio::test]
async fn an_early_response_is_relayed_before_the_request_is_complete() {
    let rig = McpRig::start().await;
    rig.server.play([
        Act::ReadPiece,
        Act::send("HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbad"),
        Act::Wait,
    ]);
    let mut raw = rig.begin("POST", "Transfer-Encoding: chunked\r\n").await;
    raw.send("1\r\n{\r\n").await;
    let (head, body) = raw.read_answer().await;
    assert_eq!((head.status(), &body[..]), (400, &b"bad"[..]));

    // Two ways at once: an event per piece, while more pieces are sent.
    rig.server.play([
        Act::ReadPiece,
        Act::event_stream(),
        Act::chunk("data: 1\n\n"),
        Act::ReadPiece,
        Act::chunk("data: 2\n\n"),
        Act::ReadBody,
        Act::last_chunk(),
    ]);
    let mut raw = rig.begin("POST", "Transfer-Encoding: chunked\r\n").await;
    raw.send("1\r\n{\r\n").await;
    let head = raw.read_head().await;
    assert_eq!(raw.next_event(&head).await.expect("an event").data(), "1");
    raw.send("1\r\n}\r\n").await;
    assert_eq!(raw.next_event(&head).await.expect("an event").data(), "2");
    raw.send("0\r\n\r\n").await;
    assert_eq!(raw.try_read_chunk().await.expect("the end"), None);
    rig.rig.finish().await;
}

#[tokio::test]
async fn expect_100_continue_is_answered_on_relayed_requests() {
    let rig = McpRig::start().await;
    let lines = "Expect: 100-continue\r\nContent-Length: 2\r\n";
    let mut raw = rig.begin("POST", lines).await;
    assert_eq!(raw.read_head().await.status(), 100);
    raw.send("{}").await;
    let (head, _) = raw.read_answer().await;
    assert_eq!(head.status(), 406);
    let call = &rig.server.calls()[0];
    assert!(!call.headers.contains_key("expect"), "it was answered here");
    rig.rig.finish().await;
}

#[tokio::test]
async fn a_silent_stream_gets_comments_between_events_only() {
    let rig = McpRig::with("[server]\ncomment_secs = 1\n").await;
    rig.server.play([
        Act::event_stream(),
        Act::chunk("data: 1\n\n"),
        Act::Stop("between"),
        Act::chunk("data: 2\n"),
        Act::Stop("within"),
        Act::chunk("\n"),
        Act::last_chunk(),
    ]);
    let mut raw = rig.begin("GET", "Accept: text/event-stream\r\n").await;
    let head = raw.read_head().await;
    assert_eq!(raw.next_event(&head).await.expect("an event").data(), "1");
    let comment = raw.try_read_chunk().await.expect("a chunk");
    assert_eq!(&comment.expect("a comment")[..], b": keep-alive\n");
    rig.server.gate("between").open();
    // More comments may have been sent before.
    let mut next = raw.try_read_chunk().await.expect("a chunk").expect("more");
    while next == ": keep-alive\n" {
        next = raw.try_read_chunk().await.expect("a chunk").expect("more");
    }
    assert_eq!(&next[..], b"data: 2\n");
    rig.server.gate("within").open();
    let next = raw.try_read_chunk().await.expect("a chunk");
    assert_eq!(&next.expect("the rest of the event")[..], b"\n");
    rig.rig.finish().await;
}

#[tokio::test]
async fn connections_to_a_server_are_used_again() {
    let rig = McpRig::start().await;
    let client = rig.client();
    for _ in 0..3 {
        rig.server.play([
            Act::ReadBody,
            Act::send("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"),
        ]);
        assert_eq!(client.post(MCP, &call()).await.status, 202);
    }
    let connections: Vec<usize> = rig
        .server
        .calls()
        .iter()
        .map(|call| call.connection)
        .collect();
    assert_eq!(connections, [0, 0, 0]);
    let served = r#"tollgate_upstream_calls_total{provider="mcp.general",result="ok"}"#;
    assert_eq!(rig.metric(served).await, 3);
    rig.rig.finish().await;
}

#[tokio::test]
async fn the_servers_tls_certificate_is_verified() {
    let certificate = Certificate::for_localhost();
    let folder = tollgate_testing::tempdir().expect("a folder");
    let file = folder.path().join("mcp-ca.pem");
    std::fs::write(&file, &certificate.ca_pem).expect("the folder takes files");
    let server = McpServer::start_with(Some(certificate)).await;
    let settings = format!(
        "ca_file = \"{}\"\n[mcp.android]\nupstream = \"{}\"\n",
        file.display(),
        server.url()
    );
    let rig = McpRig::of(Setup::default(), &settings, server).await;
    rig.server.play([
        Act::ReadBody,
        Act::send("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"),
    ]);
    assert_eq!(rig.client().post(MCP, &call()).await.status, 202);

    let android = Token {
        resource: tollgate_filter::Resource::McpAndroid,
        scopes: &[tollgate_filter::Scope::McpAndroid],
        ..Token::MCP
    };
    let (_, token) = rig.new_token(rig.account, android).await;
    let client = Client::new(&rig.url()).with_key(&token);
    let answer = client.post("/mcp/android", &call()).await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json()["error"]["code"], "upstream_unreachable");
    rig.rig.finish().await;
}

#[tokio::test]
async fn the_stand_in_takes_a_log_level_as_its_capabilities_say() {
    let rig = McpRig::start().await;
    let client = rig.client();
    let post = |message: serde_json::Value, session: Option<&str>| {
        let mut request = client.request("POST", MCP, message.to_string().into());
        let fields = [
            ("accept", Some("application/json, text/event-stream")),
            ("mcp-session-id", session),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                let value = value.parse().expect("a value");
                request.headers_mut().insert(name, value);
            }
        }
        client.send(request)
    };
    let begin = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "inspector", "version": "1"}}});
    let begun = post(begin, None).await;
    assert_eq!(begun.json()["result"]["capabilities"]["logging"], json!({}));
    let session = begun.header("mcp-session-id").expect("a session");
    let level = json!({"jsonrpc": "2.0", "id": 2, "method": "logging/setLevel", "params": {"level": "debug"}});
    let answer = post(level, Some(session)).await;
    assert_eq!(answer.json()["result"], json!({}), "{}", answer.text());
    rig.rig.finish().await;
}
