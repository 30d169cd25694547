//! Memory under attack: the requests of ten accounts at once stay within the limit of the process, and an eleventh account is served.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::oneshot;
use tollgate_testing::{RawClient, Script, within};

use super::installation::{Installation, Serving};
use crate::rig::{CHAT, Setup, TEXT, chat};

/// The limit: 300 MB.
pub(super) const LIMIT_BYTES: u64 = 300 << 20;

const ATTACKERS: usize = 10;

/// Connections per attacker, in equal parts per kind of attack.
const CONNECTIONS: usize = 24;

/// Requests of the peaceful account.
const REQUESTS: usize = 40;

/// Four bodies at once exceed the share of an account.
const BODY_BYTES: usize = 5 << 20;

/// The memory held for ten accounts was bounded only by their connections. Bodies were read before a check of the balance, and a stream
/// with a non-reading client held several copies of the largest event. A single key ended a process with 300 MB.
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
        // A provider with kept calls would have the attackers' bodies in the process of the test.
        calls_kept: 0,
        ..Setup::with(&settings)
    })
    .await;
    // A large event of an unread stream, and a large whole answer. Only attackers name the model.
    installation.provider.script(Script {
        model: Some("dear".to_owned()),
        event_bytes: Some(3 << 20),
        ..Script::default()
    });
    let mut keys = Vec::new();
    for number in 0..ATTACKERS {
        // Every second attacker has no credit.
        let credits = if number % 2 == 0 { "1000000" } else { "0" };
        keys.push(installation.account(credits).await.1);
    }
    let serving = installation.serve().await;
    let address: SocketAddr = serving.url["http://".len()..].parse().expect("an address");
    let attack = Attack::start(address, keys);
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
        // The longest idle connection may be closed for a new connection during the send of a request: clients repeat the request.
        let request = || client.request("POST", CHAT, body.to_string().into());
        let answer = match client.try_send(request()).await {
            Ok(answer) => answer,
            Err(_) => client.send(request()).await,
        };
        assert_eq!(answer.status, 200, "request {number}: {}", answer.text());
    }
    attack.end();
    let peak = peak(&serving);
    assert!(peak < LIMIT_BYTES, "the process had {peak} bytes");
}

/// The program with the limit, and the model `small` at a provider of chats alone.
async fn limited() -> Installation {
    let settings = format!(
        r#"
        [server]
        memory_bytes_max = {LIMIT_BYTES}

        [[model]]
        providers = [{{ provider = "stand-in", model = "vendor/small-1", api = ["chat"] }}]
        "#
    );
    Installation::of(Setup {
        calls_kept: 0,
        ..Setup::with(&settings)
    })
    .await
}

/// A text request becomes several chats with separate buffers. The buffers are held until the last chat has answered.
#[tokio::test]
async fn the_answers_of_several_prompts_are_in_the_memory_budget_while_one_is_missing() {
    const ANSWER_BYTES: u64 = 1 << 20;
    let installation = limited().await;
    let serving = installation.serve().await;
    for stream in [false, true] {
        let large = || Script {
            event_bytes: stream.then_some(ANSWER_BYTES as usize),
            words: (!stream).then_some(ANSWER_BYTES / 4),
            ..Script::default()
        };
        let late = Script {
            hold_head: Some("late".to_owned()),
            ..large()
        };
        installation.provider.script(late.times(1));
        installation.provider.script(large().times(3));
        let client = serving.client(&installation);
        let body = json!({"model": "small", "prompt": ["a", "b", "c", "d"], "stream": stream});
        let answer = tokio::spawn(async move { client.post(TEXT, &body).await });
        let counted = async {
            while serving.metric("tollgate_memory_taken_bytes").await < 3 * ANSWER_BYTES {
                tokio::task::yield_now().await;
            }
        };
        within("three answers in the budget", counted).await;
        installation.provider.gate("late").open();
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.status, 200);
        assert!(answer.text().len() as u64 > 4 * ANSWER_BYTES);
        let returned = async {
            while serving.metric("tollgate_memory_taken_bytes").await > 0 {
                tokio::task::yield_now().await;
            }
        };
        within("the budget after the answer", returned).await;
    }
}

/// `system` is written before every prompt: a body of a megabyte became a body of gigabytes for the provider.
#[tokio::test]
async fn many_prompts_with_a_long_system_text_are_refused_before_they_are_written() {
    let installation = limited().await;
    let serving = installation.serve().await;
    let client = serving.client(&installation);
    let system = "word ".repeat(300_000);
    for (model, prompts) in [("small", 16), ("dear", 2_000)] {
        let body = json!({"model": model, "system": system, "prompt": vec![""; prompts]});
        let answer = client.post(TEXT, &body).await;
        assert_eq!(answer.status, 413, "{model}: {}", answer.text());
        assert!(answer.text().contains("fewer prompts"), "{}", answer.text());
    }
    let few = json!({"model": "small", "system": "Be brief.", "prompt": vec!["a"; 16]});
    assert_eq!(client.post(TEXT, &few).await.status, 200);
    let peak = peak(&serving);
    assert!(peak < LIMIT_BYTES, "the process had {peak} bytes");
}

/// The attackers' connections, on a separate thread. The connections keep the thread busy for seconds: a client on the thread would
/// connect, and send the head too late.
struct Attack {
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Attack {
    fn start(address: SocketAddr, keys: Vec<String>) -> Attack {
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let mut large_body = chat(false);
            large_body["messages"][0]["content"] = json!("word ".repeat(BODY_BYTES / 5));
            let large_body = Bytes::from(large_body.to_string());
            for key in keys {
                for number in 0..CONNECTIONS {
                    let (key, large_body) = (key.clone(), large_body.clone());
                    runtime.spawn(async move {
                        match number % 3 {
                            0 => unread(address, &key, true).await,
                            1 => unread(address, &key, false).await,
                            _ => large(address, &key, &large_body).await,
                        }
                    });
                }
            }
            // The sender is dropped where the test has failed.
            let _ = runtime.block_on(ended);
        });
        Attack { end, thread }
    }

    fn end(self) {
        drop(self.end);
        self.thread.join().expect("no panic");
    }
}

/// A request whose answer is not read.
async fn unread(address: SocketAddr, key: &str, stream: bool) {
    let mut raw = RawClient::connect(address).await;
    let mut body = chat(stream);
    body["model"] = "dear".into();
    body["max_tokens"] = 16.into();
    raw.post(CHAT, key, &body.to_string()).await;
    // The head of the answer, without any byte of the body.
    let _ = raw.try_read_head().await;
    std::future::pending::<()>().await;
}

/// A large body without the last byte.
async fn large(address: SocketAddr, key: &str, body: &[u8]) {
    let mut raw = RawClient::connect(address).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let _ = raw.try_send(head).await;
    let _ = raw.try_send(&body[..body.len() - 1]).await;
    std::future::pending::<()>().await;
}

/// The peak of the program's memory, in bytes.
pub(super) fn peak(serving: &Serving) -> u64 {
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
