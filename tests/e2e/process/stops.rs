//! Graceful shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate_clock::Clock;
use tollgate_testing::{Client, Head, RawClient, Script, within};

use super::installation::{Installation, ended};
use super::upgrade::{address, ask_until, charged};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, SECRETS, audited, chat, poll_mut};

#[tokio::test]
async fn a_program_asked_to_end_finishes_what_is_under_way_and_ends_with_0() {
    for signal in ["TERM", "INT"] {
        let installation = Installation::new("").await;
        let mut serving = installation.serve().await;
        installation.provider.script(Script::hold(9, "middle"));
        let client = serving.client(&installation);
        let clients = [
            Client::new(&serving.url).with_key(&installation.key),
            Client::new(&serving.url)
                .with_key(&installation.key)
                .with_http2(),
            Client::new(&serving.tls_url)
                .with_key(&installation.key)
                .with_tls(&installation.ca_pem),
            Client::new(&serving.tls_url)
                .with_key(&installation.key)
                .with_http2()
                .with_tls(&installation.ca_pem),
        ];
        // Idle connections must not delay the shutdown.
        let plain = serving
            .url
            .strip_prefix("http://")
            .and_then(|text| text.parse().ok());
        let plain = plain.expect("an address");
        let _silent = RawClient::connect(plain).await;
        let mut rested = RawClient::connect(plain).await;
        rested.post("/nowhere", &installation.key, "{}").await;
        assert_eq!(rested.read_answer().await.0.status(), 404);

        let mut streams = Vec::new();
        for client in &clients {
            for _ in 0..5 {
                let mut stream = client.stream(CHAT, &chat(true)).await;
                assert_eq!(stream.status, 200);
                stream.next_event().await.expect("the role");
                streams.push(stream);
            }
        }
        let gate = installation.provider.gate("middle");
        gate.reached_by(20).await;
        serving.process.signal(signal);
        // The signal is handled when no new connection is accepted.
        let refused = || std::net::TcpStream::connect(plain).is_err();
        within("the end of listening", crate::rig::poll(refused)).await;
        assert!(
            serving.process.has_ended().is_none(),
            "streams are under way"
        );
        gate.open();
        for mut stream in streams {
            let (events, end) = stream.rest().await;
            let last = events.last().expect("events");
            assert!(last.is_done(), "{signal}: a stream ended with {end:?}");
        }
        let status = ended(&mut serving.process).await;
        assert_eq!(status.code(), Some(0), "{}", serving.process.output());
        let report = audited(&installation.database());
        assert_eq!(report.sums.spent.get(), 20 * PRICE_OF_A_CHAT);
        drop(client);
    }
}

#[tokio::test]
async fn what_does_not_end_within_the_grace_is_cut_and_costs_nothing() {
    let installation = Installation::new("[server]\ngrace_secs = 1").await;
    let mut serving = installation.serve().await;
    let clients = || {
        [
            serving.client(&installation),
            serving.client(&installation).with_http2(),
        ]
    };
    installation.provider.script(Script::hold(9, "never"));
    let mut streams = Vec::new();
    for client in clients() {
        let mut stream = client.stream(CHAT, &chat(true)).await;
        stream.next_event().await.expect("the role");
        streams.push(stream);
    }
    installation.provider.clear_scripts();
    installation.provider.script(Script::hold(0, "never"));
    let wholes: Vec<_> = clients()
        .into_iter()
        .map(|client| {
            let request = client.request("POST", CHAT, chat(false).to_string().into());
            tokio::spawn(async move { client.try_send(request).await.map(|answer| answer.status) })
        })
        .collect();
    // Two streams and two whole answers wait.
    installation.provider.gate("never").reached_by(4).await;
    serving.process.signal("TERM");
    for mut stream in streams {
        let (events, _) = stream.rest().await;
        assert!(
            events.iter().all(|event| !event.is_done()),
            "it must not look whole"
        );
    }
    for whole in wholes {
        let status = whole.await.expect("no panic");
        assert_ne!(status.ok(), Some(200), "there was no answer");
    }
    let status = ended(&mut serving.process).await;
    assert_eq!(status.code(), Some(0), "{}", serving.process.output());
    assert_eq!(audited(&installation.database()).sums.spent.get(), 0);
}

#[tokio::test]
async fn a_program_that_is_idle_ends_at_once_and_leaves_books_that_balance() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200);
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let report: Value = installation.audit().await;
    assert_eq!(report["clean"], true, "{report}");
    assert_eq!(
        audited(&installation.database()).sums.spent.get(),
        PRICE_OF_A_CHAT
    );
}

/// Sends every request on a new connection; returns the sum of the charges.
async fn ask_anew_until(client: Client, over: Arc<AtomicBool>) -> i64 {
    let mut charges = 0;
    while !over.load(Ordering::Relaxed) {
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        charges += charged(&answer.json());
    }
    charges
}

/// Sends the last request of a connection; returns the charge.
async fn ask_last(connection: &mut RawClient, key: &str) -> i64 {
    connection.post(CHAT, key, &chat(false).to_string()).await;
    let (head, answer) = connection.read_answer().await;
    last_charge(&head, &answer)
}

/// The charge in the last answer of a connection.
fn last_charge(head: &Head, answer: &[u8]) -> i64 {
    assert_eq!(head.status(), 200, "{answer:?}");
    assert_eq!(head.header("connection"), Some("close"));
    charged(&serde_json::from_slice(answer).expect("JSON"))
}

/// A load balancer sends requests, on open connections and on new connections, until the balancer's probe shows an unready gateway.
#[tokio::test]
async fn with_a_delay_requests_are_answered_until_the_balancer_has_noticed_and_a_second_signal_ends_it()
 {
    let settings = "[server]\ndrain_delay_secs = 600\n[[listener]]\nhealth = true";
    let installation = Installation::new(settings).await;
    let mut serving = installation.serve().await;
    let key = &installation.key;
    let (plain, probe) = (address(&serving), Client::new(&serving.url));
    assert_eq!(probe.get("/ready").await.status, 200);
    let over = Arc::new(AtomicBool::new(false));
    let mut load = Vec::new();
    for _ in 0..2 {
        load.push(tokio::spawn(ask_until(plain, key.clone(), over.clone())));
        let client = serving.client(&installation);
        load.push(tokio::spawn(ask_anew_until(client, over.clone())));
    }
    let mut idle = RawClient::connect(plain).await;
    serving.process.signal("TERM");
    let unready = async { while probe.get("/ready").await.status != 503 {} };
    within("a probe that fails", unready).await;
    over.store(true, Ordering::Relaxed);
    let mut charges = 0;
    for client in load {
        charges += client.await.expect("no request fails");
    }
    // Sent before the balancer has noticed.
    let mut fresh = RawClient::connect(plain).await;
    for connection in [&mut idle, &mut fresh] {
        charges += ask_last(connection, key).await;
    }
    assert_eq!(probe.get("/live").await.status, 200);
    // A signal within a second of the first signal counts as the first request.
    let drains = || {
        serving.process.signal("TERM");
        serving.process.output().contains("draining: refusing")
    };
    within("the drain", poll_mut(drains)).await;
    let status = ended(&mut serving.process).await;
    assert_eq!(status.code(), Some(0), "{}", serving.process.output());
    let report = audited(&installation.database());
    assert_eq!(report.sums.spent.get(), charges);
}

/// Connections stay open for five seconds after the delay. A slow machine misses the five seconds at times: a longer attempt is no
/// evidence.
#[tokio::test]
async fn an_open_connection_carries_a_last_request_after_the_delay() {
    let in_time = async { while !carries_a_last_request().await {} };
    within("an attempt in time", in_time).await;
}

/// Whether a connection is accepted, which ends before this returns: a machine that is slow to close many would end an idle one in place of
/// them (`server.connections_per_address`).
async fn is_served(address: SocketAddr) -> bool {
    let Ok(mut connection) = TcpStream::connect(address).await else {
        return false;
    };
    let _ = connection.shutdown().await;
    let _ = connection.read(&mut [0]).await;
    true
}

/// `false` if the connection was closed before the request, more than four seconds after the last accepted connection.
async fn carries_a_last_request() -> bool {
    let installation = Installation::new("[server]\ndrain_delay_secs = 1").await;
    let mut serving = installation.serve().await;
    let plain = address(&serving);
    let mut idle = RawClient::connect(plain).await;
    serving.process.signal("TERM");
    // Further connections do not prolong the time of acceptance.
    let clock = Clock::system();
    let mut accepted = clock.elapsed();
    let refused = async {
        while is_served(plain).await {
            accepted = clock.elapsed();
        }
    };
    within("the end of listening", refused).await;
    idle.post(CHAT, &installation.key, &chat(false).to_string())
        .await;
    let head = match idle.try_read_head().await {
        Ok(Some(head)) => head,
        closed => {
            let waited = clock.elapsed() - accepted;
            assert!(
                waited > Duration::from_secs(4),
                "{closed:?} {waited:?} after the last accepted connection"
            );
            return false;
        }
    };
    let answer = idle.try_read_body(&head).await.expect("a body");
    let charge = last_charge(&head, &answer);
    let status = ended(&mut serving.process).await;
    assert_eq!(status.code(), Some(0), "{}", serving.process.output());
    let report = audited(&installation.database());
    assert_eq!(report.sums.spent.get(), charge);
    true
}

#[tokio::test]
async fn nothing_the_program_prints_shows_a_secret_even_when_it_prints_everything() {
    let installation =
        Installation::new("[telemetry]\nlog_level = \"trace\"\naccess_log = \"stdout\"").await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    for stream in [false, true] {
        assert_eq!(
            client
                .stream(CHAT, &chat(stream))
                .await
                .whole()
                .await
                .status,
            200
        );
    }
    assert_eq!(
        client
            .get(&format!("/v1/models?api_key={}", installation.key))
            .await
            .status,
        400
    );
    installation.provider.script(Script::status(401).once());
    assert_eq!(client.post(CHAT, &chat(false)).await.status, 502);
    let mut raw = RawClient::connect(serving.url[7..].parse().expect("an address")).await;
    raw.send(format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\0\r\n\r\n",
        installation.key
    ))
    .await;
    assert_eq!(raw.read_answer().await.0.status(), 400);
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let output = serving.process.output();
    assert!(
        output.contains("\"ending\":\"complete\""),
        "the log is there:\n{output}"
    );
    SECRETS.assert_absent("what the program prints", &output);
}

#[tokio::test]
async fn what_a_key_has_spent_of_its_cap_is_known_after_a_restart() {
    let installation = Installation::new("").await;
    let made = installation
        .ask(&[
            "key",
            "create",
            "--account",
            &installation.account,
            "--name",
            "capped",
            "--spend-max",
            "0.03",
            "--spend-period",
            "month",
        ])
        .await;
    let key = SECRETS
        .used("an API key", made["secret"].as_str().expect("a secret"))
        .to_owned();
    let mut body = chat(false);
    body["max_tokens"] = 16.into();
    for expected in [200, 403] {
        let mut serving = installation.serve().await;
        let client = Client::new(&serving.url).with_key(&key);
        // The first leaves less credit than the second may need.
        let answer = client.post(CHAT, &body).await;
        assert_eq!(answer.status, expected, "{}", answer.text());
        serving.process.signal("TERM");
        assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    }
    assert_eq!(
        audited(&installation.database()).sums.spent.get(),
        PRICE_OF_A_CHAT
    );
}

/// A program with a gateway may start a second gateway: a cycle of owners would keep files, sockets and memory of the first gateway.
#[tokio::test]
async fn a_gateway_that_has_stopped_releases_its_store() {
    let rig = Rig::start().await;
    let answer = rig.client().post(CHAT, &chat(false)).await;
    rig.record_charge(&answer.json());
    let store = std::sync::Arc::downgrade(&rig.books.store);
    rig.finish().await;
    let released = crate::rig::poll(|| store.strong_count() == 0);
    tollgate_testing::within("the end of the last owner of the store", released).await;
}
