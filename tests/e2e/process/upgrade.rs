//! Upgrade: a new process takes over, and the earlier process completes open requests.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderValue;
use serde_json::Value;
use tollgate_testing::{Client, Head, Postgres, RawClient, Script, within};
use toml::Table;

use super::installation::{Installation, Serving, ended};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, chat, micros, poll};

/// A process after a takeover. The process is not a child of the test.
pub(super) struct Successor(pub(super) u64);

impl Successor {
    pub(super) async fn of(installation: &Installation) -> Successor {
        let upgraded = installation.ask(&["upgrade"]).await;
        Successor(upgraded["process"].as_u64().expect("a process"))
    }

    /// The successor of a process after an outage of the database: an upgrade is refused until the lease is renewed.
    pub(super) async fn of_recovered(installation: &Installation) -> Successor {
        let upgraded = async {
            loop {
                let command = installation.command(&["upgrade", "--json"]);
                let mut process = installation.spawn(command);
                if ended(&mut process).await.success() {
                    let output = process.output();
                    let line = output.lines().find(|line| line.starts_with('{'));
                    let printed: serde_json::Value =
                        serde_json::from_str(line.expect("an object")).expect("JSON");
                    return Successor(printed["process"].as_u64().expect("a process"));
                }
            }
        };
        within("an upgrade", upgraded).await
    }

    pub(super) fn signal(&self, name: &str) {
        let id = self.0.to_string();
        let _ = Command::new("sh")
            .args(["-c", r#"kill -s "$1" "$2" 2>/dev/null"#, "sh", name, &id])
            .status();
    }

    /// A process that has ended, without a wait by the parent, is a zombie.
    pub(super) fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }

    pub(super) async fn stop(self) {
        self.signal("TERM");
        within("the end of the successor", poll(|| self.has_ended())).await;
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

pub(super) async fn first_ended(serving: &mut Serving) -> Option<i32> {
    let mut status = None;
    let ended = crate::rig::poll_mut(|| {
        status = serving.process.has_ended();
        status.is_some()
    });
    within("the end of the first process", ended).await;
    status.and_then(|status| status.code())
}

fn set_price(installation: &Installation, output: i64) {
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let mut table: Table = text.parse().expect("TOML");
    let model = table["model"].as_array_mut().expect("a list");
    let price = model[0]["price"].as_table_mut().expect("a price");
    price.insert("output".into(), output.to_string().into());
    let text = toml::to_string(&table).expect("tables are TOML");
    std::fs::write(&installation.config, text).expect("the folder takes files");
}

pub(super) fn charged(answer: &Value) -> i64 {
    micros(&answer["x_svc"]["credits_used"])
}

/// The available and the held credit of the account.
async fn balance(installation: &Installation) -> (i64, i64) {
    let words = ["credits", "show", "--account", &installation.account];
    let shown = installation.ask(&words).await;
    (micros(&shown["available"]), micros(&shown["held"]))
}

/// The credit held by open requests.
pub(super) async fn held(installation: &Installation) -> i64 {
    balance(installation).await.1
}

pub(super) async fn spent(installation: &Installation) -> i64 {
    1000 * 1_000_000 - balance(installation).await.0
}

/// Sends requests repeatedly on open connections, with a new connection after a close by the gateway. Returns the sum of the charges.
pub(super) async fn ask_until(address: SocketAddr, key: String, over: Arc<AtomicBool>) -> i64 {
    let body = chat(false).to_string();
    let mut charges = 0;
    let mut connection = RawClient::connect(address).await;
    while !over.load(Ordering::Relaxed) {
        connection.post(CHAT, &key, &body).await;
        let (head, answer) = connection.read_answer().await;
        assert_eq!(head.status(), 200, "{answer:?}");
        charges += charged(&serde_json::from_slice(&answer).expect("JSON"));
        if head.header("connection") == Some("close") {
            connection = RawClient::connect(address).await;
        }
    }
    charges
}

/// Sends requests repeatedly over TLS and HTTP/2, with a large body. Every request has a new connection: many connections begin while the
/// two processes accept.
async fn ask_over_tls_until(client: Client, over: Arc<AtomicBool>) -> i64 {
    let mut body = chat(false);
    // A single word, with few tokens for the provider: on a fast machine thousands of requests do not spend the account's credit.
    body["messages"][0]["content"] = "word".repeat(37_500).into();
    let mut charges = 0;
    while !over.load(Ordering::Relaxed) {
        let answer = client.post(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        charges += charged(&answer.json());
    }
    charges
}

pub(super) fn address(serving: &Serving) -> SocketAddr {
    let address = serving.url.trim_start_matches("http://");
    address.parse().expect("an address")
}

#[tokio::test]
async fn upgrades_touch_no_stream_and_no_request() {
    upgrades(Installation::new("").await, 3).await;
}

#[tokio::test]
async fn upgrades_on_postgresql_touch_no_stream_and_no_request() {
    let database = Postgres::shared().database();
    upgrades(Installation::on_postgres(&database, "").await, 2).await;
}

async fn upgrades(installation: Installation, count: usize) {
    let mut serving = installation.serve().await;
    installation.provider.script(Script::pace("piece").once());
    installation.provider.gate("piece").release(1);
    let client = serving.client(&installation);
    let mut stream = client.stream(CHAT, &chat(true)).await;
    assert_eq!(stream.status, 200);
    let gate = installation.provider.gate("piece");
    gate.reached_by(1).await;

    let over = Arc::new(AtomicBool::new(false));
    let mut load: Vec<_> = (0..4)
        .map(|_| {
            let key = installation.key.clone();
            tokio::spawn(ask_until(address(&serving), key, over.clone()))
        })
        .collect();
    load.extend((0..2).map(|_| {
        let client = Client::new(&serving.tls_url).with_tls(&installation.ca_pem);
        let client = client.with_http2().with_key(&installation.key);
        tokio::spawn(ask_over_tls_until(client, over.clone()))
    }));
    let mut successors = Vec::new();
    for _ in 0..count {
        successors.push(Successor::of(&installation).await);
        let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        gate.release(1);
    }
    over.store(true, Ordering::Relaxed);
    let mut charges = count as i64 * PRICE_OF_A_CHAT;
    for client in load {
        charges += client.await.expect("no request fails");
    }
    gate.open();
    let (events, end) = stream.rest().await;
    assert!(events.last().expect("events").is_done(), "{end:?}");
    let events: Vec<Value> = events
        .iter()
        .filter(|one| !one.is_done())
        .map(|one| one.json())
        .collect();
    let text = |event: &&Value| event["choices"][0]["delta"]["content"].as_str() != Some("");
    let pieces = events
        .iter()
        .filter(|event| event["choices"][0]["delta"]["content"].is_string())
        .filter(text);
    assert_eq!(pieces.count(), 16);
    let last = events.iter().find(|event| event["x_svc"].is_object());
    let last = charged(last.expect("the last event has the charge"));
    assert_eq!(last, PRICE_OF_A_CHAT);
    drop(client);
    assert_eq!(first_ended(&mut serving).await, Some(0));
    assert_eq!(
        spent(&installation).await,
        charges + last,
        "all were paid for once"
    );
    let serves = successors.pop().expect("there was one");
    for earlier in successors {
        within(
            "the end of an earlier process",
            poll(|| earlier.has_ended()),
        )
        .await;
    }
    serves.stop().await;
    let audit = installation.audit().await;
    assert_eq!(audit["open_holds"], 0, "{audit}");
}

/// The earlier process has the connection, and the new process has the prices.
#[tokio::test]
async fn the_next_request_on_an_open_connection_is_decided_by_the_new_process() {
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    let port = serving.tls_url.rsplit(':').next().expect("a port");
    let tls = format!("127.0.0.1:{port}").parse().expect("an address");
    let tls = RawClient::connect_tls(tls, &installation.ca_pem).await;
    let mut connections = [
        RawClient::connect(address(&serving)).await,
        tls.expect("a handshake"),
    ];
    let body = chat(false).to_string();
    let ask = async |connection: &mut RawClient| {
        connection.post(CHAT, &installation.key, &body).await;
        let (head, answer) = connection.read_answer().await;
        assert_eq!(head.status(), 200, "{answer:?}");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        (head, charged(&answer))
    };
    for connection in &mut connections {
        assert_eq!(ask(connection).await.1, PRICE_OF_A_CHAT);
    }
    let mut others = Vec::new();
    for _ in 0..2 {
        let mut connection = RawClient::connect(address(&serving)).await;
        ask(&mut connection).await;
        others.push(connection);
    }
    let [ambiguous, old] = &mut others[..] else {
        unreachable!("two were opened");
    };
    set_price(&installation, 700);
    let _successor = Successor::of(&installation).await;
    for connection in &mut connections {
        let (head, charge) = ask(connection).await;
        assert_eq!(charge, 150 + 16 * 700);
        assert_eq!(head.header("connection"), Some("close"));
    }
    // The relay would send only one of the two fields.
    let both = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        installation.key,
        body.len(),
        body.len()
    );
    ambiguous.send(both).await;
    assert_eq!(ambiguous.read_answer().await.0.status(), 400);
    // HTTP/1.0 has no chunks: the end of the connection ends the stream.
    let streamed = chat(true).to_string();
    let request = format!(
        "POST {CHAT} HTTP/1.0\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{streamed}",
        installation.key,
        streamed.len()
    );
    old.send(request).await;
    let answer = old.read_to_end().await.expect("the connection is closed");
    let answer = String::from_utf8(answer.to_vec()).expect("a text");
    assert!(
        !answer.to_lowercase().contains("transfer-encoding"),
        "{answer}"
    );
    assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
}

/// The second process has no connection of its own, and drains as soon as the third process serves.
#[tokio::test]
async fn a_connection_to_the_process_before_the_last_one_carries_its_next_request() {
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    let mut connection = RawClient::connect(address(&serving)).await;
    let body = chat(false).to_string();
    connection.post(CHAT, &installation.key, &body).await;
    assert_eq!(connection.read_answer().await.0.status(), 200);
    let _second = Successor::of(&installation).await;
    let third = Successor::of(&installation).await;
    let draining = tokio::task::spawn_blocking(move || {
        let is_it = |line: &str| line.contains("draining: refusing new connections");
        serving.process.line_where("the second process", is_it);
        serving
    });
    let mut serving = draining.await.expect("the line comes");
    connection.post(CHAT, &installation.key, &body).await;
    let (head, answer) = connection.read_answer().await;
    assert_eq!(head.status(), 200, "{answer:?}");
    assert_eq!(head.header("connection"), Some("close"));
    assert_eq!(first_ended(&mut serving).await, Some(0));
    third.stop().await;
}

/// The earlier process closed every idle connection five seconds after the hand-over. Four of 3,457 requests were on their way at the
/// close.
#[tokio::test]
async fn an_idle_connection_stays_open_after_an_upgrade_for_its_next_request() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let mut connection = RawClient::connect(address(&serving)).await;
    let body = chat(false).to_string();
    connection.post(CHAT, &installation.key, &body).await;
    assert_eq!(connection.read_answer().await.0.status(), 200);
    let successor = Successor::of(&installation).await;
    let closed = tokio::time::timeout(Duration::from_secs(7), connection.read_to_end()).await;
    assert!(closed.is_err(), "the connection is open");
    connection.post(CHAT, &installation.key, &body).await;
    let (head, answer) = connection.read_answer().await;
    assert_eq!(head.status(), 200, "{answer:?}");
    assert_eq!(head.header("connection"), Some("close"));
    // The last connection of the first process has ended.
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
}

/// An unused connection ends at the connection's time limit, and the end of the connection ends the process.
#[tokio::test]
async fn an_idle_connection_ends_after_an_upgrade_when_its_time_is_over() {
    let installation = Installation::new("[server]\nidle_secs = 1").await;
    let mut serving = installation.serve().await;
    let mut connection = RawClient::connect(address(&serving)).await;
    let body = chat(false).to_string();
    connection.post(CHAT, &installation.key, &body).await;
    assert_eq!(connection.read_answer().await.0.status(), 200);
    let successor = Successor::of(&installation).await;
    assert!(
        connection
            .read_to_end()
            .await
            .expect("it is closed")
            .is_empty()
    );
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
}

/// A request without an arriving body: an upgrade waits two seconds for the body, with the gate closed.
pub(super) async fn slow_body(serving: &Serving, installation: &Installation) -> RawClient {
    let mut connection = RawClient::connect(address(serving)).await;
    let key = &installation.key;
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n");
    let rest = "content-type: application/json\r\ncontent-length: 1000\r\n\r\n{";
    connection.send(head + rest).await;
    connection
}

async fn probe(connection: &mut RawClient, path: &str) -> Head {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    connection.send(request).await;
    let (head, body) = within(path, connection.read_answer()).await;
    assert_eq!(head.status(), 200, "{path}: {body:?}");
    head
}

/// Sends the probes of a balancer repeatedly, on a single connection for as long as the gateway keeps the connection.
async fn probe_until(address: SocketAddr, path: &str, keeps: bool, over: Arc<AtomicBool>) {
    let mut connection = RawClient::connect(address).await;
    while !over.load(Ordering::Relaxed) {
        let head = probe(&mut connection, path).await;
        if !keeps || head.header("connection") == Some("close") {
            connection = RawClient::connect(address).await;
        }
    }
}

#[tokio::test]
async fn probes_of_a_load_balancer_are_answered_before_during_and_after_an_upgrade() {
    let installation = Installation::new("[[listener]]\nhealth = true").await;
    let serving = installation.serve().await;
    let address = address(&serving);
    let mut connections = Vec::new();
    for path in ["/live", "/ready"] {
        let mut connection = RawClient::connect(address).await;
        probe(&mut connection, path).await;
        connections.push((connection, path));
    }
    let over = Arc::new(AtomicBool::new(false));
    let balancers = [("/live", true), ("/ready", true), ("/ready", false)]
        .map(|(path, keeps)| tokio::spawn(probe_until(address, path, keeps, over.clone())));
    let slow = slow_body(&serving, &installation).await;
    // The gate is closed for two seconds between the two log lines, and a probe does not wait for the gate.
    let closed = async {
        let mut connection = RawClient::connect(address).await;
        let log = || serving.process.output();
        while !log().contains("the new process is ready to take over") {
            tokio::task::yield_now().await;
        }
        let mut answered = 0;
        loop {
            probe(&mut connection, "/ready").await;
            if log().contains("upgrading while requests are received") {
                return answered;
            }
            answered += 1;
        }
    };
    let (successor, answered) = tokio::join!(Successor::of(&installation), closed);
    assert!(answered > 0, "the probes waited");
    let log = serving.process.output();
    assert!(
        log.contains("upgrading while requests are received"),
        "{log}"
    );
    over.store(true, Ordering::Relaxed);
    for balancer in balancers {
        balancer.await.expect("no probe fails");
    }
    for (connection, path) in &mut connections {
        let head = probe(connection, path).await;
        assert_eq!(head.header("connection"), Some("close"), "{path}");
    }
    drop(slow);
    successor.stop().await;
}

#[tokio::test]
async fn sigusr2_starts_a_new_process_too() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    serving.process.signal("USR2");
    let waiting = tokio::task::spawn_blocking(move || {
        let is_it = |line: &str| line.contains("the new process serves");
        let line = serving.process.line_where("the new process", is_it);
        (serving, line)
    });
    let (mut serving, line) = waiting.await.expect("the line comes");
    let process = line.split("process=").nth(1).expect("its number");
    let process = process.split(' ').next().and_then(|word| word.parse().ok());
    let successor = Successor(process.expect("a number"));
    assert_eq!(first_ended(&mut serving).await, Some(0));
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let act = ["signal SIGUSR2", "upgrade", "begun"];
    installation.acts(&[act]).await;
    successor.stop().await;
}

#[tokio::test]
async fn a_new_process_that_does_not_start_changes_nothing() {
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    let refused = async |words: &[&str]| {
        let mut process = installation.spawn(installation.command(words));
        let status = super::installation::ended(&mut process).await;
        assert_eq!(status.code(), Some(1));
        process.output()
    };
    let output = refused(&["upgrade", "--program", "/bin/false"]).await;
    assert!(output.contains("did not answer"), "{output}");
    let output = refused(&["upgrade", "--program", "/nowhere"]).await;
    assert!(output.contains("could not start `/nowhere`"), "{output}");
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    std::fs::write(
        &installation.config,
        format!("{text}\n[telemetry]\nlog_level = 1\n"),
    )
    .expect("written");
    // The command itself reads the gateway's settings.
    let valid = installation.folder.path().join("valid.toml");
    std::fs::write(&valid, &text).expect("written");
    let mut process = installation.spawn(installation.command_with(&valid, &["upgrade"]));
    let status = super::installation::ended(&mut process).await;
    assert_eq!(status.code(), Some(1));
    let output = process.output();
    assert!(output.contains("the settings are invalid"), "{output}");
    // Another database, and the gateway's database with a schema that the release cannot use.
    let other = text.replace("tollgate.db", "other.db");
    std::fs::write(&installation.config, other).expect("written");
    let mut process = installation.spawn(installation.command_with(&valid, &["upgrade"]));
    let status = super::installation::ended(&mut process).await;
    assert_eq!(status.code(), Some(1));
    let output = process.output();
    assert!(output.contains("cannot change the database"), "{output}");
    std::fs::write(&installation.config, &text).expect("written");
    let database = rusqlite::Connection::open(installation.database()).expect("the database");
    let schema = |change: &str| {
        let sql = format!("UPDATE meta SET v = v + {change} WHERE k IN ('schema', 'compatible')");
        assert_eq!(database.execute(&sql, []).expect("a change"), 2);
    };
    schema("1000");
    let output = refused(&["upgrade"]).await;
    assert!(output.contains("this version knows up to"), "{output}");
    schema("-1000");
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    std::fs::write(&installation.config, text).expect("written");
    let successor = Successor::of(&installation).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    successor.stop().await;
}

#[tokio::test]
async fn a_kill_of_either_process_charges_no_incomplete_answer_and_loses_no_credit() {
    for kills_first in [true, false] {
        let installation = Installation::new("").await;
        let mut serving = installation.serve().await;
        installation.provider.script(Script::pace("piece").once());
        installation.provider.gate("piece").release(1);
        let client = serving.client(&installation);
        let mut stream = client.stream(CHAT, &chat(true)).await;
        assert_eq!(stream.status, 200);
        installation.provider.gate("piece").reached_by(1).await;
        let successor = Successor::of(&installation).await;
        assert!(
            balance(&installation).await.1 > 0,
            "the stream has its hold"
        );
        match kills_first {
            true => {
                serving.process.signal("KILL");
                let free = async || balance(&installation).await.1 == 0;
                within("the release of the hold", async { while !free().await {} }).await;
                assert_eq!(
                    serving
                        .client(&installation)
                        .post(CHAT, &chat(false))
                        .await
                        .status,
                    200
                );
                assert_eq!(spent(&installation).await, PRICE_OF_A_CHAT);
                successor.stop().await;
            }
            false => {
                successor.signal("KILL");
                assert_eq!(first_ended(&mut serving).await, Some(1));
                let output = serving.process.output();
                assert!(output.contains("the new process has ended"), "{output}");
                let again = installation.serve().await;
                assert_eq!(spent(&installation).await, 0, "nothing was delivered whole");
                drop(again);
            }
        }
        let (_, end) = stream.rest().await;
        drop(end);
        let audit = installation.audit().await;
        assert_eq!(audit["open_holds"], 0, "{audit}");
    }
}

#[tokio::test]
async fn an_idempotency_key_stays_claimed_by_the_request_of_the_earlier_process() {
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    installation.provider.script(Script::pace("piece").once());
    let gate = installation.provider.gate("piece");
    let client = Arc::new(serving.client(&installation));
    let ask = || {
        let client = client.clone();
        let mut request = client.request("POST", CHAT, chat(false).to_string().into());
        let key = HeaderValue::from_static("k1");
        request.headers_mut().insert("idempotency-key", key);
        async move { client.send(request).await }
    };
    let asked = tokio::spawn(ask());
    gate.reached_by(1).await;
    let successor = Successor::of(&installation).await;
    let repeated = ask().await;
    assert_eq!(repeated.status, 409, "{}", repeated.text());
    gate.open();
    let first = asked.await.expect("no panic");
    assert_eq!(first.status, 200, "{}", first.text());
    let replayed = ask().await;
    assert_eq!(replayed.status, 200, "{}", replayed.text());
    assert_eq!(replayed.json()["id"], first.json()["id"]);
    assert_eq!(spent(&installation).await, PRICE_OF_A_CHAT);
    successor.stop().await;
}

/// A possible step of a later release on the schema: additional columns and tables. The step declares the store usable for the current
/// release.
const NEXT: &str = "
    ALTER TABLE accounts ADD COLUMN next_number INTEGER;
    ALTER TABLE journal ADD COLUMN next_word TEXT NOT NULL DEFAULT 'later';
    ALTER TABLE holds ADD COLUMN next_word TEXT NOT NULL DEFAULT 'later';
    CREATE TABLE next_things (id INTEGER PRIMARY KEY, word TEXT NOT NULL);
    UPDATE meta SET v = '1000' WHERE k = 'schema';";

/// A release is taken back after a change of the schema. The current release continues with the changed books, and is upgraded again.
async fn taken_back(
    installation: Installation,
    change: impl FnOnce(&str),
    schema: impl Fn() -> String,
) {
    let mut serving = installation.serve().await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    change(NEXT);
    // The earlier program takes over by an upgrade, and afterwards by a start.
    let successor = Successor::of(&installation).await;
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    for stream in [false, true] {
        let answer = client.post(CHAT, &chat(stream)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let (account, _) = installation.account("5").await;
    installation
        .run(&["account", "class", "--account", &account, "--class", "pro"])
        .await;
    drop(client);
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    assert_eq!(spent(&installation).await, 3 * PRICE_OF_A_CHAT);
    let audit = installation.audit().await;
    assert_eq!(audit["open_holds"], 0, "{audit}");
    assert_eq!(schema(), "1000", "it is not written down");
}

#[tokio::test]
async fn a_release_is_taken_back_across_a_change_of_the_schema() {
    let installation = Installation::new("").await;
    let file = installation.database();
    let database = || rusqlite::Connection::open(&file).expect("the database");
    let change = |statements: &str| database().execute_batch(statements).expect("a change");
    let schema = || {
        let sql = "SELECT v FROM meta WHERE k = 'schema'";
        let found = database().query_row(sql, [], |row| row.get(0));
        found.expect("a schema")
    };
    taken_back(installation, change, schema).await;
}

#[tokio::test]
async fn a_release_is_taken_back_across_a_change_of_the_schema_on_postgresql() {
    let server = Postgres::shared();
    let url = server.database();
    let name = url.rsplit('/').next().expect("a name");
    let installation = Installation::on_postgres(&url, "").await;
    let change = |statements: &str| drop(server.run(name, statements));
    let schema = || server.run(name, "SELECT v FROM meta WHERE k = 'schema'");
    taken_back(installation, change, schema).await;
}
