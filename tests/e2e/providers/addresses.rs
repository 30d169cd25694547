//! Providers and servers with several addresses. Some addresses accept no connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;
use tollgate::Resolver;
use tollgate_testing::{Act, McpServer, within};

use super::fixture::{metric, state};
use super::*;
use crate::rig::{Setup, Token};

/// Addresses without a listener at the provider's port: refused, and a family without a route or without an answer.
const DEAD: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// A gateway with two addresses per name of providers and servers: the address of the stand-in, and `other`.
fn twin(settings: &str, other: IpAddr) -> Setup {
    let resolver = Resolver::from_fn(move |_, port| {
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(vec![SocketAddr::from((other, port)), own])
    });
    Setup {
        customise: Box::new(|builder| builder.resolver(resolver)),
        provider_host: Some("localhost"),
        ..Setup::with(settings)
    }
}

/// The only worker answers.
async fn is_live(rig: &Rig) {
    let live = within("an answer of the worker", rig.client().get("/v1/models")).await;
    assert_eq!(live.status, 200);
    assert_eq!(rig.admin_get("/live").await.status, 200);
}

/// The failing address fails after another request's rate limit: the provider may not be called again.
#[tokio::test]
async fn a_request_that_wants_the_next_address_of_a_provider_that_limits_the_gateway_ends() {
    let mut setup = twin("[[provider]]\nca_file = \"provider-ca.pem\"", DEAD[0]);
    setup.provider_tls = true;
    let rig = setup.start().await;
    // A listener with accepted connections and without TLS.
    let other = (DEAD[0], rig.provider.address().port());
    let listener = TcpListener::bind(other).await.expect("a free port");
    rig.provider.script(Script {
        retry_after: Some("30".to_owned()),
        hold_head: Some("limit".to_owned()),
        ..Script::status(429)
    });
    let send = || {
        let client = rig.client();
        tokio::spawn(async move { client.post(CHAT, &chat(false)).await.status })
    };
    let first = send();
    rig.provider.gate("limit").reached_by(1).await;
    let second = send();
    let (socket, _) = within("a connection to the other address", listener.accept())
        .await
        .expect("a connection");
    rig.provider.gate("limit").open();
    assert_eq!(first.await.expect("no panic"), 429);
    drop((socket, listener));
    is_live(&rig).await;
    let second = within("the end of the second request", second).await;
    assert_eq!(second.expect("no panic"), 429);
    rig.finish().await;
}

#[tokio::test]
async fn a_dead_address_of_two_costs_no_request_and_neither_budget_nor_circuit() {
    let budget = "[upstream.budget]\npercent = 0\nper_sec = 0\nburst = 1\n";
    let provider = "[[provider]]\nhealth = { failures = 1, cooldown_secs = 3600 }\n";
    for (tls, http2) in [(false, false), (true, false), (false, true), (true, true)] {
        for dead in DEAD {
            let mut settings = format!("{budget}{provider}http2 = {http2}\n");
            if tls {
                settings += "ca_file = \"provider-ca.pem\"\n";
            }
            let mut setup = twin(&settings, dead);
            setup.provider_tls = tls;
            let rig = setup.start().await;
            let clients: Vec<_> = (0..32)
                .map(|_| {
                    let client = rig.client();
                    tokio::spawn(async move {
                        let mut charged = Vec::new();
                        for _ in 0..2 {
                            let answer = client.post(CHAT, &chat(false)).await;
                            assert_eq!(answer.status, 200, "{}", answer.text());
                            charged.push(answer.json());
                        }
                        charged
                    })
                })
                .collect();
            let what = format!("TLS {tls}, HTTP/2 {http2}, {dead}");
            for client in clients {
                for answer in client.await.unwrap_or_else(|_| panic!("{what}")) {
                    rig.record_charge(&answer);
                }
            }
            is_live(&rig).await;
            assert_eq!(state(&rig, 0, false).await, "working", "{what}");
            for counter in ["failovers", "retries_refused"] {
                let name = format!("tollgate_upstream_{counter}_total");
                assert_eq!(metric(&rig, &name, "stand-in").await, 0, "{what}");
            }
            rig.finish().await;
        }
    }
}

#[tokio::test]
async fn a_name_without_a_live_address_is_one_failure_for_each_request() {
    let settings = "[[provider]]\nhealth = { failures = 2, cooldown_secs = 3600 }";
    let rig = twin(settings, DEAD[0]).start().await;
    rig.provider.stop_listening().await;
    for expected in ["working", "resting"] {
        let seen = observe(&rig.client(), false).await;
        assert_eq!(seen, Ok(Error(502, "upstream_unreachable")));
        assert_eq!(state(&rig, 0, false).await, expected);
    }
    rig.provider.listen_again().await;
    let seen = observe(&rig.client(), false).await;
    assert_eq!(seen, Ok(Answer { words: 16 }), "as a trial request");
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    rig.finish().await;
}

#[tokio::test]
async fn a_probe_succeeds_where_one_address_of_two_does() {
    let settings = "[[provider]]\nhealth = { failures = 1, cooldown_secs = 3600, probe_path = \"/models\", probe_secs = 1 }";
    let rig = twin(settings, DEAD[0]).start().await;
    for probes in 1..=3 {
        rig.provider
            .calls_when("a probe", |calls| calls.len() >= probes)
            .await;
        rig.provider.hang_up_idle();
        assert_eq!(state(&rig, 0, false).await, "working", "{probes}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_server_of_relayed_requests_is_reached_where_one_address_of_two_is() {
    for dead in DEAD {
        let server = McpServer::start().await;
        let url = server.url().replace("127.0.0.1", "localhost");
        let settings = format!("[mcp.general]\nupstream = \"{url}\"\nconnect_secs = 60");
        let rig = twin(&settings, dead).start().await;
        let (_, token) = rig.new_token(rig.account, Token::MCP).await;
        let client = Client::new(&rig.url()).with_key(&token);
        for _ in 0..2 {
            server.play([
                Act::ReadBody,
                Act::send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"),
            ]);
            let answer = client.post("/mcp", &json!({"jsonrpc": "2.0"})).await;
            assert_eq!(answer.status, 200, "{dead}: {}", answer.text());
        }
        rig.finish().await;
    }
}

/// A backoff without a possible selection afterwards is not repeated: the rate limit of the other request outlasts the time of the call.
#[tokio::test]
async fn a_retry_at_a_provider_that_limits_the_gateway_by_then_is_given_up() {
    let rig = Rig::with("[[provider]]\nretries = 1\ntimeouts = { total_secs = 5 }").await;
    let limited = Script {
        retry_after: Some("30".to_owned()),
        hold_head: Some("limited".to_owned()),
        ..Script::status(429)
    };
    let failed = Script {
        hold_head: Some("failed".to_owned()),
        ..Script::status(503)
    };
    rig.provider.script(failed.once());
    rig.provider.script(limited.once());
    let send = || {
        let client = rig.client();
        tokio::spawn(async move { client.post(CHAT, &chat(false)).await.status })
    };
    let first = send();
    rig.provider.gate("failed").reached_by(1).await;
    let second = send();
    rig.provider.gate("limited").reached_by(1).await;
    rig.provider.gate("limited").open();
    assert_eq!(second.await.expect("no panic"), 429);
    rig.provider.gate("failed").open();
    let first = within("the end of the first request", first).await;
    assert_eq!(first.expect("no panic"), 502);
    assert_eq!(rig.provider.call_count(), 2, "no call after the limit");
    rig.finish().await;
}
