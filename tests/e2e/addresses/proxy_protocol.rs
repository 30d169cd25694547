//! Listeners on which every connection begins with a header of the PROXY protocol.

use std::net::IpAddr;

use tollgate_testing::RawClient;

use crate::rig::{CHAT, Rig, chat};
use crate::ucp::PROTOCOL;

/// The two listeners take the header from the local machine.
const SETTINGS: &str = r#"
    [[listener]]
    trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
    proxy_protocol = true
    [[listener]]
    trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
    proxy_protocol = true
    [telemetry]
    client_address = "whole"
"#;

const REQUEST: &str = "GET /llms.txt HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A header of version 1.
fn line(source: &str) -> Vec<u8> {
    let family = if source.contains(':') { "TCP6" } else { "TCP4" };
    let own = if source.contains(':') {
        "::1"
    } else {
        "127.0.0.1"
    };
    format!("PROXY {family} {source} {own} 4711 443\r\n").into_bytes()
}

/// A header of version 2, with `values` bytes of ignored TLVs.
fn binary(source: &str, values: usize) -> Vec<u8> {
    let source: IpAddr = source.parse().expect("an address");
    let (family, addresses) = match source {
        IpAddr::V4(source) => (0x11, [source.octets(); 2].concat()),
        IpAddr::V6(source) => (0x21, [source.octets(); 2].concat()),
    };
    let length = u16::try_from(addresses.len() + 4 + values).expect("short");
    let values = vec![b'G'; values];
    [
        b"\r\n\r\n\0\r\nQUIT\n\x21",
        &[family][..],
        &length.to_be_bytes(),
        &addresses,
        &[0; 4],
        &values,
    ]
    .concat()
}

/// A connection of the proxy itself.
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

async fn answered(raw: &mut RawClient, what: &str) {
    let (head, _) = raw.read_answer().await;
    assert_eq!(head.status(), 200, "{what}");
}

#[tokio::test]
async fn the_header_names_the_client_with_and_without_tls_however_it_arrives() {
    let rig = Rig::with(SETTINGS).await;
    let mut clients = Vec::new();
    for (header, client) in [
        (line("192.0.2.1"), "192.0.2.1"),
        (line("2001:db8::1"), "2001:db8::1"),
        (line("::ffff:192.0.2.2"), "192.0.2.2"),
        (binary("192.0.2.3", 0), "192.0.2.3"),
        (binary("2001:db8::2", 50), "2001:db8::2"),
        (binary("192.0.2.4", 65_000), "192.0.2.4"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (LOCAL.to_vec(), "127.0.0.1"),
    ] {
        let shown = header[..header.len().min(60)].escape_ascii().to_string();
        // Together with the first bytes of the request, and of the handshake.
        let mut raw = RawClient::connect(rig.plain).await;
        raw.send([&header, REQUEST.as_bytes()].concat()).await;
        answered(&mut raw, &shown).await;
        let raw = RawClient::connect_tls_behind(rig.tls, &rig.ca_pem, &header).await;
        let mut raw = raw.unwrap_or_else(|error| panic!("{shown}: {error}"));
        raw.send(REQUEST).await;
        answered(&mut raw, &shown).await;
        // By itself, and in pieces.
        let mut raw = RawClient::connect(rig.plain).await;
        raw.send(&header).await;
        raw.send(REQUEST).await;
        answered(&mut raw, &shown).await;
        let mut raw = RawClient::connect(rig.plain).await;
        for piece in header.chunks(header.len().div_ceil(9)) {
            raw.send(piece).await;
            tokio::task::yield_now().await;
        }
        raw.send(REQUEST).await;
        answered(&mut raw, &shown).await;
        clients.extend([client; 4]);
    }
    let after = rig.finish().await;
    assert_eq!(after.each("client_address"), clients);
}

#[tokio::test]
async fn http2_with_prior_knowledge_may_stand_right_behind_the_header() {
    let rig = Rig::with(SETTINGS).await;
    let mut raw = RawClient::connect(rig.plain).await;
    // The preface and empty settings.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // Short enough for a single read, without further data.
    raw.send([&binary("192.0.2.1", 0), &preface[..]].concat())
        .await;
    let first = raw.try_read_some().await.expect("settings");
    assert_eq!(first.get(3), Some(&4), "a frame of settings: {first:?}");
    drop(raw);
    rig.finish().await;
}

#[tokio::test]
async fn connections_without_a_proxy_header_are_closed_before_tls() {
    let rig = Rig::with(SETTINGS).await;
    let too_long = format!("PROXY UNKNOWN {}", "x".repeat(100));
    let cases: [&[u8]; 6] = [
        REQUEST.as_bytes(),
        // A handshake.
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"PROXY TCP4 192.0.2.1 127.0.0.1 1 65536\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c",
        too_long.as_bytes(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    for bytes in cases {
        for address in [rig.plain, rig.tls] {
            let mut raw = RawClient::connect(address).await;
            raw.send(bytes).await;
            // Closed or reset, in any case without a sent byte.
            let said = raw.read_to_end().await.unwrap_or_default();
            assert!(said.is_empty(), "{}: {said:?}", bytes.escape_ascii());
        }
    }
    let refused = "tollgate_proxy_protocol_refused_total{reason=\"malformed\"}";
    assert_eq!(rig.metric(refused).await, 12);
    // An unfinished header; and a connection without any byte, without a fault.
    let mut raw = RawClient::connect(rig.plain).await;
    raw.send("PROXY TCP4 192.0.2.1").await;
    raw.half_close().await;
    assert!(raw.read_to_end().await.unwrap_or_default().is_empty());
    let mut raw = RawClient::connect(rig.plain).await;
    raw.half_close().await;
    assert!(raw.read_to_end().await.unwrap_or_default().is_empty());
    let refused = "tollgate_proxy_protocol_refused_total{reason=\"incomplete\"}";
    assert_eq!(rig.metric(refused).await, 1);
    let after = rig.finish().await;
    assert_eq!(after.log.len(), 0, "no request was made of it");
}

#[tokio::test]
async fn a_header_that_does_not_come_in_time_ends_the_connection() {
    let rig = Rig::with(&format!("{SETTINGS}\n[server]\nhead_secs = 1")).await;
    let mut slow = Vec::new();
    for begun in [&b""[..], b"PROXY TCP4", &binary("192.0.2.1", 9)[..20]] {
        for address in [rig.plain, rig.tls] {
            let mut raw = RawClient::connect(address).await;
            raw.send(begun).await;
            slow.push(raw);
        }
    }
    for mut raw in slow {
        assert!(raw.read_to_end().await.unwrap_or_default().is_empty());
    }
    let refused = "tollgate_proxy_protocol_refused_total{reason=\"incomplete\"}";
    assert_eq!(rig.metric(refused).await, 6);
    rig.finish().await;
}

#[tokio::test]
async fn a_proxy_header_from_an_untrusted_peer_is_not_read() {
    let elsewhere = SETTINGS.replace("\"127.0.0.1\", ", "");
    let rig = Rig::with(&elsewhere).await;
    for address in [rig.plain, rig.tls] {
        let mut raw = RawClient::connect(address).await;
        // The connection may be closed already.
        let _ = raw
            .try_send([&line("192.0.2.1"), REQUEST.as_bytes()].concat())
            .await;
        assert!(raw.read_to_end().await.unwrap_or_default().is_empty());
    }
    let refused = "tollgate_proxy_protocol_refused_total{reason=\"untrusted\"}";
    assert_eq!(rig.metric(refused).await, 2);
    let after = rig.finish().await;
    assert_eq!(after.log.len(), 0);
}

#[tokio::test]
async fn without_the_setting_a_header_is_no_request() {
    let rig = Rig::with("[[listener]]\ntrusted_proxies = [\"127.0.0.1\"]").await;
    let mut raw = rig.raw().await;
    raw.send([&line("192.0.2.1"), REQUEST.as_bytes()].concat())
        .await;
    assert_eq!(raw.read_head().await.status(), 400);
    rig.finish().await;
}

#[tokio::test]
async fn after_the_header_fields_are_trusted_of_a_trusted_proxy_only() {
    let rig = Rig::with(SETTINGS).await;
    let mut clients = Vec::new();
    for (header, client) in [
        (line("10.1.2.3"), "203.0.113.9"),
        (line("192.0.2.1"), "192.0.2.1"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (LOCAL.to_vec(), "127.0.0.1"),
    ] {
        let mut raw = RawClient::connect(rig.plain).await;
        let request =
            "GET /llms.txt HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n";
        raw.send([&header, request.as_bytes()].concat()).await;
        answered(&mut raw, client).await;
        clients.push(client);
    }
    let after = rig.finish().await;
    assert_eq!(after.each("client_address"), clients);
}

#[tokio::test]
async fn only_local_sources_are_exempt_from_tls13_behind_a_local_proxy() {
    let rig = Rig::with(SETTINGS).await;
    //  header, whether TLS is used, whether the connection is refused
    for (header, tls, is_refused) in [
        (line("192.0.2.1"), false, true),
        (binary("2001:db8::1", 0), false, true),
        (line("10.1.2.3"), false, true),
        (LOCAL.to_vec(), false, true),
        (line("192.0.2.1"), true, false),
        (line("127.0.0.1"), false, false),
        (binary("::1", 0), false, false),
    ] {
        let shown = format!("{} {tls}", header.escape_ascii());
        let mut raw = if tls {
            let raw = RawClient::connect_tls_behind(rig.tls, &rig.ca_pem, &header).await;
            raw.unwrap_or_else(|error| panic!("{shown}: {error}"))
        } else {
            let mut raw = RawClient::connect(rig.plain).await;
            raw.send(&header).await;
            raw
        };
        raw.post(PROTOCOL, &rig.key, "{}").await;
        let (head, body) = raw.read_answer().await;
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        let refused = body["code"] == "insecure_connection";
        assert_eq!(refused, is_refused, "{shown}: {body}");
        assert_eq!(head.status() == 403, is_refused, "{shown}: {body}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn limits_count_by_the_client_that_the_header_names() {
    let rig = Rig::with(&format!(
        "{SETTINGS}\n[limits.missing_credentials]\nquota = 1\nwindow_secs = 3600"
    ))
    .await;
    let request = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (header, status) in [
        (line("192.0.2.1"), 401),
        (binary("192.0.2.1", 3), 429),
        (line("192.0.2.2"), 401),
        (LOCAL.to_vec(), 401),
        (LOCAL.to_vec(), 401),
    ] {
        let mut raw = RawClient::connect(rig.plain).await;
        raw.send([&header, request.as_bytes()].concat()).await;
        assert_eq!(raw.read_head().await.status(), status);
    }
    // And a whole request with a body passes as ever.
    let mut raw = RawClient::connect(rig.plain).await;
    raw.send(line("192.0.2.1")).await;
    raw.post(CHAT, &rig.key, &chat(false).to_string()).await;
    let (head, body) = raw.read_answer().await;
    assert_eq!(head.status(), 200, "{body:?}");
    rig.record_charge(&serde_json::from_slice(&body).expect("JSON"));
    rig.finish().await;
}
