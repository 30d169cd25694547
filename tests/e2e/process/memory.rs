//! Memory under attack: what ten accounts send at once stays within the limit of the process, and another account is served.

use std::net::SocketAddr;

use serde_json::json;
use tollgate_testing::{RawClient, Script};

use super::installation::{Installation, Serving};
use crate::rig::{CHAT, Setup, chat};

/// The limit: 300 MB.
const LIMIT_BYTES: u64 = 300 << 20;

const ATTACKERS: usize = 10;

/// Connections of each attacker, in equal parts for each kind of attack.
const CONNECTIONS: usize = 24;

/// Requests of the account that does not attack.
const REQUESTS: usize = 40;

/// Above the share of an account there are four of these at once.
const BODY_BYTES: usize = 5 << 20;

/// What ten accounts could make the process hold was bounded by nothing but their connections: bodies were read before the balance was
/// looked at, and a stream whose client does not read held several copies of its largest event. One key ended a process with 300 MB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_accounts_that_attack_at_once_stay_within_the_limit_and_an_eleventh_is_served() {
    let settings = format!(
        r#"
        [server]
        memory_bytes_max = {LIMIT_BYTES}

        [telemetry]
        access_log = "none"
        log_level = "info"
        "#
    );
    let installation = Installation::of(Setup {
        // A provider that keeps what it is sent would have the attackers' bodies in this process.
        calls_kept: 0,
        ..Setup::with(&settings)
    })
    .await;
    // A large event of a stream that is not read, and a large whole answer: to attackers only, who name this model.
    installation.provider.script(Script {
        model: Some("dear".to_owned()),
        event_bytes: Some(3 << 20),
        ..Script::default()
    });
    let mut keys = Vec::new();
    for number in 0..ATTACKERS {
        // Every other one has no credit.
        let credits = if number % 2 == 0 { "1000000" } else { "0" };
        keys.push(installation.account(credits).await.1);
    }
    let serving = installation.serve().await;
    let address: SocketAddr = serving.url["http://".len()..].parse().expect("an address");
    let mut attacks = Vec::new();
    for key in &keys {
        for number in 0..CONNECTIONS {
            let key = key.clone();
            attacks.push(tokio::spawn(async move {
                match number % 3 {
                    0 => unread(address, &key, true).await,
                    1 => unread(address, &key, false).await,
                    _ => large(address, &key).await,
                }
            }));
        }
    }
    // The attack has begun to be refused.
    let refusals = async || serving.metric("tollgate_memory_refused_total").await > 0;
    while !refusals().await {
        tokio::task::yield_now().await;
    }
    let client = serving.client(&installation);
    let mut longer = chat(false);
    longer["messages"][0]["content"] = json!("word ".repeat(20_000));
    for number in 0..REQUESTS {
        let body = if number % 2 == 0 {
            chat(false)
        } else {
            longer.clone()
        };
        let answer = client.post(CHAT, &body).await;
        assert_eq!(answer.status, 200, "request {number}: {}", answer.text());
    }
    attacks.iter().for_each(tokio::task::JoinHandle::abort);
    let peak = peak(&serving);
    assert!(peak < LIMIT_BYTES, "the process had {peak} bytes");
}

/// A request whose answer is not read.
async fn unread(address: SocketAddr, key: &str, stream: bool) {
    let mut raw = RawClient::connect(address).await;
    let mut body = chat(stream);
    body["model"] = "dear".into();
    body["max_tokens"] = 16.into();
    raw.post(CHAT, key, &body.to_string()).await;
    // Its head, and nothing of its body.
    let _ = raw.try_read_head().await;
    std::future::pending::<()>().await;
}

/// A large body without its last byte.
async fn large(address: SocketAddr, key: &str) {
    let mut raw = RawClient::connect(address).await;
    let mut body = chat(false);
    body["messages"][0]["content"] = json!("word ".repeat(BODY_BYTES / 5));
    let body = body.to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let _ = raw.try_send(head).await;
    let _ = raw.try_send(&body[..body.len() - 1]).await;
    std::future::pending::<()>().await;
}

/// The most memory that the program has had in use, in bytes.
fn peak(serving: &Serving) -> u64 {
    let pid = serving.process.id();
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib
        .expect("a process has memory")
        .trim()
        .parse()
        .expect("a number");
    kib << 10
}
