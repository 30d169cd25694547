//! Gateways that are cut off from their PostgreSQL database: open streams end, and a stream is charged once, whatever happens to the
//! gateway afterwards.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use tollgate_testing::{Answer, Client, DatabaseLink, EventStream, Postgres, Script, within};
use toml::Table;

use super::installation::{Installation, Serving, ended};
use super::upgrade::{Successor, first_ended};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, audited_store, chat, micros};

const QUIET: &str = "[telemetry]\naccess_log = \"none\"";

/// A database behind a link: the link, the database's address through the link, and past the link.
pub(super) fn linked_database() -> (DatabaseLink, String, String) {
    let server = Postgres::shared();
    let direct = server.database();
    let link = DatabaseLink::start(server.folder());
    let linked = link.url(direct.rsplit('/').next().expect("a name"));
    (link, linked, direct)
}

/// A file with the settings of an installation, overridden by `over`: section, key and value.
fn settings(installation: &Installation, file: &str, over: &[[&str; 3]]) -> PathBuf {
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let mut table: Table = text.parse().expect("TOML");
    for [section, key, value] in over {
        let entry = table.entry(*section).or_insert_with(|| Table::new().into());
        let entry = entry.as_table_mut().expect("a table");
        entry.insert((*key).to_owned(), (*value).into());
    }
    let path = installation.config.with_file_name(file);
    let text = toml::to_string(&table).expect("tables are TOML");
    std::fs::write(&path, text).expect("the folder takes files");
    path
}

/// An installation with a spool, whose database is behind a link.
async fn spooling() -> (DatabaseLink, Installation) {
    let (link, url, _) = linked_database();
    let mut installation = Installation::on_postgres(&url, QUIET).await;
    let spool = [["store", "spool", "spool"]];
    installation.config = settings(&installation, "spooling.toml", &spool);
    (link, installation)
}

async fn balance(installation: &Installation) -> (i64, i64) {
    let words = ["credits", "show", "--account", &installation.account];
    let shown = installation.ask(&words).await;
    (micros(&shown["available"]), micros(&shown["held"]))
}

/// Begun streams in wait for the provider at a gate.
pub(super) async fn begun(
    client: &Client,
    installation: &Installation,
    gate: &str,
    count: usize,
) -> Streams {
    let script = Script::hold(2, gate).times(count as u32);
    installation.provider.script(script);
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut stream = client.stream(CHAT, &chat(true)).await;
        assert_eq!(stream.status, 200);
        stream.next_event().await.expect("an event before the gate");
        streams.push(stream);
    }
    Streams(streams)
}

pub(super) struct Streams(Vec<EventStream>);

impl Streams {
    /// Waits for their whole ends.
    pub(super) async fn end(self) {
        for mut stream in self.0 {
            let (events, _) = within("the stream ends", stream.rest()).await;
            assert!(events.last().expect("an event").is_done(), "{events:?}");
        }
    }
}

/// Three streams with an end during an outage of the database.
async fn streams(link: &DatabaseLink, installation: &Installation, serving: &Serving, gate: &str) {
    let client = serving.client(installation);
    let streams = begun(&client, installation, gate, 3).await;
    link.cut();
    installation.provider.gate(gate).open();
    streams.end().await;
}

/// A request with an idempotency key.
fn with_key(client: &Client) -> Request<Bytes> {
    let body = Bytes::from(chat(false).to_string());
    let mut request = client.request("POST", CHAT, body);
    let key = HeaderValue::from_static("one-of-mine");
    request.headers_mut().insert("idempotency-key", key);
    request
}

/// Asks until the gateway admits requests again.
pub(super) async fn admitted(client: &Client) -> Answer {
    within("it admits again", async {
        loop {
            let answer = client.post(CHAT, &chat(false)).await;
            if answer.status == 200 {
                return answer;
            }
        }
    })
    .await
}

async fn eventually(what: &str, serving: &Serving, name: &str, value: u64) {
    within(what, async {
        while serving.metric(name).await != value {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_during_an_outage_of_the_database_and_are_paid_once() {
    let (link, installation) = spooling().await;
    let serving = installation.serve().await;
    let (before, _) = balance(&installation).await;
    streams(&link, &installation, &serving, "first").await;
    serving.metric_becomes("tollgate_spool_units", 3).await;
    let client = serving.client(&installation);
    // The first request waits for the claim of the idempotency key until the gateway knows of the outage.
    for request in [
        with_key(&client),
        client.request("POST", CHAT, Bytes::from(chat(false).to_string())),
    ] {
        let refused = client.send(request).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.json()["error"]["code"], "store_unavailable");
        assert_eq!(refused.header("retry-after"), Some("5"));
    }
    assert_eq!(serving.metric("tollgate_store_cut_off").await, 1);
    let ready = Client::new(&serving.admin_url).get("/ready").await;
    assert_eq!(ready.status, 503);
    for reason in ["the database does not answer", "charges are in the spool"] {
        assert!(ready.text().contains(reason), "{}", ready.text());
    }
    link.restore();
    admitted(&client).await;
    eventually("an empty spool", &serving, "tollgate_spool_units", 0).await;
    assert_eq!(serving.metric("tollgate_store_cut_off").await, 0);
    let (after, held) = balance(&installation).await;
    assert_eq!((before - after, held), (4 * PRICE_OF_A_CHAT, 0));
    let again = client.send(with_key(&client)).await;
    assert_eq!(again.status, 200, "its key is free: {}", again.text());
    drop(serving);
    audited_store(&installation.store());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_stopped_during_an_outage_ends_with_0_and_its_next_start_charges() {
    let (link, installation) = spooling().await;
    let mut serving = installation.serve().await;
    let (before, _) = balance(&installation).await;
    for (round, signal) in [(1, "TERM"), (2, "KILL")] {
        streams(&link, &installation, &serving, signal).await;
        serving.process.signal(signal);
        let status = ended(&mut serving.process).await;
        if signal == "TERM" {
            let output = serving.process.output();
            assert_eq!(status.code(), Some(0), "{output}");
            assert!(output.contains("stopped without the database"), "{output}");
        }
        link.restore();
        serving = installation.serve().await;
        let (after, held) = balance(&installation).await;
        let charged = (before - after, held);
        assert_eq!(charged, (round * 3 * PRICE_OF_A_CHAT, 0), "{signal}");
        assert_eq!(serving.metric("tollgate_late_charges_total").await, 0);
        eventually("an empty spool", &serving, "tollgate_spool_bytes", 0).await;
    }
    drop(serving);
    audited_store(&installation.store());
}

/// The answer is in the spool with the charge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_with_an_idempotency_key_that_ended_during_an_outage_is_repeated_for_nothing() {
    let (link, installation) = spooling().await;
    let mut serving = installation.serve().await;
    let (before, _) = balance(&installation).await;
    let gate = "with a key";
    installation.provider.script(Script::hold_head(gate).once());
    let client = serving.client(&installation);
    let (first, ()) = tokio::join!(client.send(with_key(&client)), async {
        installation.provider.gate(gate).reached_by(1).await;
        link.cut();
        installation.provider.gate(gate).open();
    });
    assert_eq!(first.status, 200, "{}", first.text());
    serving.process.kill();
    link.restore();
    serving = installation.serve().await;
    let client = serving.client(&installation);
    let again = client.send(with_key(&client)).await;
    assert_eq!(again.text(), first.text());
    let (after, held) = balance(&installation).await;
    assert_eq!((before - after, held), (PRICE_OF_A_CHAT, 0));
    drop(serving);
    audited_store(&installation.store());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_passes_the_spool_on() {
    let (link, installation) = spooling().await;
    let mut serving = installation.serve().await;
    let (before, _) = balance(&installation).await;
    let client = serving.client(&installation);
    let streams = begun(&client, &installation, "upgrade", 1).await;
    let successor = Successor::of(&installation).await;
    installation.provider.gate("upgrade").open();
    streams.end().await;
    let status = first_ended(&mut serving).await;
    assert_eq!(status, Some(0), "{}", serving.process.output());
    let streams = begun(&client, &installation, "outage", 1).await;
    link.cut();
    installation.provider.gate("outage").open();
    streams.end().await;
    link.restore();
    admitted(&client).await;
    let left = (before - 3 * PRICE_OF_A_CHAT, 0);
    within("the charges", async {
        while balance(&installation).await != left {
            tokio::task::yield_now().await;
        }
    })
    .await;
    successor.stop().await;
    audited_store(&installation.store());
}

/// One of two nodes is cut off. The second node recovers the cut-off node during the end of answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_recovered_by_another_one_meanwhile_charges_late_and_once() {
    let (link, linked, direct) = linked_database();
    let mut installation = Installation::on_postgres(&direct, QUIET).await;
    let node = [
        ["store", "node", "a"],
        ["admin", "socket", "a.sock"],
        ["store", "url", &linked],
        ["store", "spool", "spool"],
    ];
    let a = settings(&installation, "a.toml", &node);
    let node = [["store", "node", "b"], ["admin", "socket", "b.sock"]];
    installation.config = settings(&installation, "b.toml", &node);
    let serve_a = || installation.serve_as(installation.command_with(&a, &["serve"]));
    let mut node = serve_a().await;
    let other = installation.serve().await;
    let (before, _) = balance(&installation).await;
    let client = node.client(&installation);
    let streams = begun(&client, &installation, "recovered", 1).await;
    link.cut();
    // Refused until the lease has ended; the command waits for the end.
    installation.run(&["nodes", "recover", "a"]).await;
    assert_eq!(balance(&installation).await, (before, 0), "it was released");
    installation.provider.gate("recovered").open();
    streams.end().await;
    node.metric_becomes("tollgate_spool_units", 1).await;
    link.restore();
    let status = ended(&mut node.process).await;
    assert_eq!(status.code(), Some(1), "{}", node.process.output());
    for late in [1, 0] {
        let mut node = serve_a().await;
        let charged = node.metric("tollgate_late_charges_total").await;
        assert_eq!(charged, late, "{}", node.process.output());
        node.metric_becomes("tollgate_spool_bytes", 0).await;
        let (after, held) = balance(&installation).await;
        assert_eq!((before - after, held), (PRICE_OF_A_CHAT, 0), "{late}");
        node.process.signal("TERM");
        assert_eq!(ended(&mut node.process).await.code(), Some(0));
    }
    drop(other);
    audited_store(&installation.store());
}

/// The database is lost, and a backup takes the place of the database. The backup does not have the last run, the run of the spool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_spool_has_is_charged_once_on_a_database_that_was_restored_from_a_backup() {
    let (link, linked, direct) = linked_database();
    let mut installation = Installation::on_postgres(&linked, QUIET).await;
    let spool = [["store", "spool", "spool"]];
    installation.config = settings(&installation, "spooling.toml", &spool);
    let mut serving = installation.serve().await;
    admitted(&serving.client(&installation)).await;
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let (before, _) = balance(&installation).await;
    let backup = Postgres::shared().restored(direct.rsplit('/').next().expect("a name"));

    let mut serving = installation.serve().await;
    // The numbers of the rows belong to different rows in the restored database.
    for _ in 0..10 {
        admitted(&serving.client(&installation)).await;
    }
    let account = installation.ask(&["account", "create"]).await;
    let account = account["id"].as_str().expect("an id").to_owned();
    let grant = "credits grant --amount 10 --reference new --account";
    let grant: Vec<_> = grant.split(' ').chain([&*account]).collect();
    installation.run(&grant).await;
    let key = installation
        .ask(&["key", "create", "--name", "new", "--account", &account])
        .await;
    let key = key["secret"].as_str().expect("a secret");
    let client = serving.client(&installation).with_key(key);
    let of_new = begun(&client, &installation, "new", 1).await;
    streams(&link, &installation, &serving, "lost").await;
    installation.provider.gate("new").open();
    of_new.end().await;
    serving.process.kill();
    let folder = installation.folder.path().join("spool");
    let left = std::fs::read(folder.join("charges")).expect("the spool");

    installation.config = settings(&installation, "restored.toml", &[["store", "url", &backup]]);
    installation.postgres = Some(backup);
    for round in 1..=2 {
        let mut serving = installation.serve().await;
        eventually("an empty spool", &serving, "tollgate_spool_bytes", 0).await;
        let (after, held) = balance(&installation).await;
        assert_eq!((before - after, held), (3 * PRICE_OF_A_CHAT, 0), "{round}");
        serving.process.signal("TERM");
        assert_eq!(ended(&mut serving.process).await.code(), Some(0));
        let output = serving.process.output();
        let is_reported = output.contains("the database does not have its account");
        assert!(is_reported, "{round}: {output}");
        assert!(!output.contains("store refused"), "{round}: {output}");
        // As if the process had ended before emptying the file.
        std::fs::write(folder.join("charges"), &left).expect("the folder takes files");
    }
    audited_store(&installation.store());
}

/// The process may write files of at most 512 bytes: the head of the spool, and no charge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_of_the_spool_answers_wait_for_the_database() {
    let (link, installation) = spooling().await;
    let full = installation.command_after("trap '' XFSZ; ulimit -f 1", &["serve"]);
    let mut serving = installation.serve_as(full).await;
    let (before, _) = balance(&installation).await;
    let client = serving.client(&installation);
    let streams = begun(&client, &installation, "full", 1).await;
    link.cut();
    installation.provider.gate("full").open();
    eventually("a failure", &serving, "tollgate_spool_failing", 1).await;
    let ready = Client::new(&serving.admin_url).get("/ready").await;
    assert!(ready.text().contains("the spool cannot be written"));
    let end = streams.end();
    tokio::pin!(end);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut end).await;
    assert!(early.is_err(), "it is not paid");
    link.restore();
    end.await;
    let (after, held) = balance(&installation).await;
    assert_eq!((before - after, held), (PRICE_OF_A_CHAT, 0));
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let output = serving.process.output();
    assert!(
        output.contains("writing the spool failed") && output.contains("free space"),
        "{output}"
    );
    audited_store(&installation.store());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_spool_answers_wait_for_the_database() {
    let (link, url, _) = linked_database();
    let installation = Installation::on_postgres(&url, QUIET).await;
    let serving = installation.serve().await;
    let (before, _) = balance(&installation).await;
    let client = serving.client(&installation);
    let streams = begun(&client, &installation, "waits", 1).await;
    link.cut();
    installation.provider.gate("waits").open();
    eventually("an outage", &serving, "tollgate_store_cut_off", 1).await;
    let end = streams.end();
    tokio::pin!(end);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut end).await;
    assert!(early.is_err(), "it is not paid");
    serving.metric_becomes("tollgate_spool_bytes", 0).await;
    link.restore();
    end.await;
    admitted(&client).await;
    let (after, held) = balance(&installation).await;
    assert_eq!((before - after, held), (2 * PRICE_OF_A_CHAT, 0));
    drop(serving);
    audited_store(&installation.store());
}
