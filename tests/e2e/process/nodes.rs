//! Several gateways on one PostgreSQL database: common accounts and keys at every node, every credit spent once, and nodes with every kind
//! of end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use http::HeaderValue;
use serde_json::Value;
use tollgate_clock::Clock;
use tollgate_testing::{Client, Postgres, Script, within};
use toml::Table;

use super::installation::{Installation, Serving, ended};
use super::scarce;
use super::upgrade::{Successor, first_ended};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, audited_store, chat, micros};

/// The longest delay between a change of a credential and the effect at another node.
pub(super) const FEED_AGE: Duration = Duration::from_secs(2);

pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three gateways with separate settings.
pub(super) struct Cluster {
    pub(super) installation: Installation,
    pub(super) nodes: Vec<Serving>,
    /// The server of the cluster's database; `None` for the shared server.
    pub(super) server: Option<Postgres>,
    /// The environment variables of the settings.
    pub(super) variables: Vec<(&'static str, &'static str)>,
}

/// The settings of a node, beside the common settings.
pub(super) fn settings_of(config: &Path, name: &str) -> PathBuf {
    let text = std::fs::read_to_string(config).expect("the settings");
    let mut table: Table = text.parse().expect("TOML");
    let section = |table: &mut Table, section: &str, key: &str, value: String| {
        let entry = table.entry(section).or_insert_with(|| Table::new().into());
        let entry = entry.as_table_mut().expect("a table");
        entry.insert(key.to_owned(), value.into());
    };
    section(&mut table, "store", "node", name.to_owned());
    section(&mut table, "admin", "socket", format!("{name}.sock"));
    let path = config.with_file_name(format!("{name}.toml"));
    let text = toml::to_string(&table).expect("tables are TOML");
    std::fs::write(&path, text).expect("the folder takes files");
    path
}

impl Cluster {
    pub(super) async fn start() -> Cluster {
        Cluster::on(&Postgres::shared().database()).await
    }

    async fn on(url: &str) -> Cluster {
        Cluster::with(url, "", "", &[]).await
    }

    /// A cluster with `settings` over the usual settings. `later` is added to the settings after the creation of the account, with
    /// environment variables of the given values.
    pub(super) async fn with(
        url: &str,
        settings: &str,
        later: &str,
        variables: &[(&'static str, &'static str)],
    ) -> Cluster {
        let mut cluster = Cluster::stopped(url, settings, later, variables).await;
        for name in NAMES {
            cluster.nodes.push(cluster.serve(name).await);
        }
        cluster
    }

    /// A cluster without a running node.
    pub(super) async fn stopped(
        url: &str,
        settings: &str,
        later: &str,
        variables: &[(&'static str, &'static str)],
    ) -> Cluster {
        let settings = format!("{settings}\n[telemetry]\naccess_log = \"none\"");
        // A single node creates the account, before the start of the remaining nodes.
        let installation = Installation::on_postgres(url, &settings).await;
        let text = std::fs::read_to_string(&installation.config).expect("the settings");
        let text = format!("{text}\n{later}");
        std::fs::write(&installation.config, text).expect("the folder takes files");
        Cluster {
            installation,
            nodes: Vec::new(),
            server: None,
            variables: variables.to_vec(),
        }
    }

    /// Starts the nodes at once.
    pub(super) async fn serve_all(&mut self) {
        let started = NAMES.map(|name| {
            let process = self.installation.spawn(self.command(name, &["serve"]));
            self.installation.listening(process)
        });
        self.nodes = futures_util::future::join_all(started).await;
    }

    pub(super) async fn serve(&self, name: &str) -> Serving {
        let command = self.command(name, &["serve"]);
        self.installation.serve_as(command).await
    }

    /// The program with the settings of a node, not started yet.
    pub(super) fn command(&self, name: &str, words: &[&str]) -> Command {
        let config = settings_of(&self.installation.config, name);
        let mut command = self.installation.command_with(&config, words);
        command.envs(self.variables.iter().copied());
        command
    }

    pub(super) fn client(&self, node: usize) -> Client {
        self.nodes[node % self.nodes.len()].client(&self.installation)
    }

    /// Runs a command with the settings of a node.
    pub(super) async fn ask(&self, node: &str, words: &[&str]) -> Value {
        let words = [words, &["--json"]].concat();
        let command = || self.command(node, &words);
        let (status, output) = self.installation.until_answered(command).await;
        assert!(status.success(), "`{}` failed:\n{output}", words.join(" "));
        let line = output.lines().find(|line| line.starts_with(['{', '[']));
        serde_json::from_str(line.expect("a line of JSON")).expect("JSON")
    }

    pub(super) async fn balance(&self, account: &str) -> (i64, i64) {
        let words = ["credits", "show", "--account", account];
        let shown = self.ask("a", &words).await;
        (micros(&shown["available"]), micros(&shown["held"]))
    }

    /// The answer of the database to a statement.
    pub(super) fn sql(&self, statement: &str) -> String {
        let url = self.installation.postgres.as_deref();
        let name = url.and_then(|url| url.rsplit('/').next());
        let server = self.server.as_ref().unwrap_or_else(|| Postgres::shared());
        server.run(name.expect("a database"), statement)
    }

    /// Ends the lease of a node and of the node's leadership, with the grace periods. Returns the node's number.
    pub(super) fn end_lease(&self, name: &str) -> String {
        let node = self.sql(&format!("SELECT id FROM nodes WHERE name = '{name}'"));
        self.sql(&format!(
            "UPDATE leases SET held_until = 0 WHERE node = {node} OR holder LIKE 'node {node}, run %'"
        ));
        node
    }

    pub(super) fn audit(&self) {
        audited_store(&self.installation.store());
    }
}

/// Sends a request again while the account's credit is collected.
async fn stream_until_decided(client: &Client) -> tollgate_testing::EventStream {
    loop {
        let stream = client.stream(CHAT, &chat(true)).await;
        if stream.status != 503 {
            return stream;
        }
        // Five seconds where the node does not reach its database for a moment.
        assert!(matches!(stream.header("retry-after"), Some("1" | "5")));
        let answer = stream.whole().await;
        scarce::assert_may_be_repeated(&answer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_five_times_the_streams_that_an_account_can_pay_exactly_as_many_run_as_it_can() {
    const COUNT: usize = 12;
    let cluster = Cluster::start().await;
    let gate = "first";
    cluster.installation.provider.script(Script::hold(2, gate));
    // The first stream shows the hold of a stream.
    let mut first = cluster.client(0).stream(CHAT, &chat(true)).await;
    assert_eq!(first.status, 200);
    let (_, hold) = cluster.balance(&cluster.installation.account).await;
    assert!(hold > PRICE_OF_A_CHAT, "it holds more than it costs");
    cluster.installation.provider.gate(gate).open();
    let (events, _) = first.rest().await;
    assert!(!events.is_empty());
    let credit = hold * COUNT as i64;
    let credits = format!("{}.{:06}", credit / 1_000_000, credit % 1_000_000);
    for (round, _beside) in scarce::rounds() {
        let gate = format!("round {round}");
        let provider = &cluster.installation.provider;
        provider.clear_scripts();
        provider.script(Script::hold(2, &gate));
        let (account, key) = cluster.installation_account(&credits).await;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..5 * COUNT {
            let client = Client::new(&cluster.nodes[number % NAMES.len()].url).with_key(&key);
            tasks.spawn(async move { stream_until_decided(&client).await });
        }
        let streams = within("the decisions", tasks.join_all()).await;
        let (paid, refused): (Vec<_>, Vec<_>) =
            streams.into_iter().partition(|stream| stream.status == 200);
        assert_eq!(paid.len(), COUNT, "round {round}");
        for stream in &refused {
            assert_eq!(stream.status, 402, "round {round}");
        }
        if round == 0 {
            cluster.reports_its_allotments(credit).await;
        }
        provider.gate(&gate).open();
        for mut stream in paid {
            let (events, _) = stream.rest().await;
            assert!(!events.is_empty());
        }
        let left = credit - COUNT as i64 * PRICE_OF_A_CHAT;
        let all_settled = async {
            while cluster.balance(&account).await != (left, 0) {
                tokio::task::yield_now().await;
            }
        };
        within("the charges", all_settled).await;
    }
    cluster.audit();
}

impl Cluster {
    /// Nodes have taken credit, in sum at least the held credit. The node with the booking has returned the credit. A request has waited
    /// for credit of another node. A single node is the leader.
    async fn reports_its_allotments(&self, credit: i64) {
        let moved = |direction: &str| {
            format!("tollgate_allotment_moved_microcredits_total{{direction=\"{direction}\"}}")
        };
        let sum = |numbers: &[u64]| numbers.iter().sum::<u64>() as i64;
        let taken = self.each_metric(&moved("taken")).await;
        // On a busy machine, every request of a node may come too late.
        let took = taken.iter().filter(|taken| **taken > 0).count();
        assert!(took > 1, "{taken:?}");
        assert!(sum(&taken) >= credit, "{taken:?}");
        let returned = self.each_metric(&moved("returned")).await;
        assert!(sum(&returned) >= credit, "{returned:?}");
        let waits = self.each_metric("tollgate_recall_seconds_count").await;
        assert!(sum(&waits) > 0, "{waits:?}");
        let leader = async { while sum(&self.each_metric("tollgate_node_duties").await) != 1 {} };
        within("one leader", leader).await;
    }

    async fn each_metric(&self, name: &str) -> Vec<u64> {
        let each = self.nodes.iter().map(|node| node.metric(name));
        futures_util::future::join_all(each).await
    }

    /// Gives an account credit at a node.
    pub(super) async fn grant(&self, node: &str, account: &str, credits: &str) {
        let words = ["credits", "grant", "--account", account];
        let words = [&words[..], &["--amount", credits, "--reference", "test"]].concat();
        self.ask(node, &words).await;
    }

    /// Creates an account at a node, with credit and a key, and waits until every node knows the key.
    pub(super) async fn installation_account(&self, credits: &str) -> (String, String) {
        let made = self
            .ask("a", &["account", "create", "--class", "pro"])
            .await;
        let account = made["id"].as_str().expect("an id").to_owned();
        if credits != "0" {
            self.grant("b", &account, credits).await;
        }
        let key = ["key", "create", "--account", &account, "--name", "test"];
        let key = self.ask("c", &key).await;
        let key = key["secret"].as_str().expect("a secret").to_owned();
        crate::rig::SECRETS.used("an API key", &key);
        for node in &self.nodes {
            let client = Client::new(&node.url).with_key(&key);
            let answer = client.get("/v1/models").await;
            assert_eq!(answer.status, 200, "a key works at once at every node");
        }
        (account, key)
    }
}

#[tokio::test]
async fn a_key_that_one_node_revokes_is_refused_by_the_others_within_two_seconds() {
    let cluster = Cluster::start().await;
    let (account, key) = cluster.installation_account("5").await;
    let keys = cluster
        .ask("b", &["key", "list", "--account", &account])
        .await;
    let id = keys[0]["id"].as_str().expect("an id").to_owned();
    cluster.ask("a", &["key", "revoke", "--key", &id]).await;
    let clock = Clock::system();
    let revoked = clock.elapsed();
    let refused = async {
        for node in &cluster.nodes {
            let client = Client::new(&node.url).with_key(&key);
            loop {
                // A node without a read of the change in time answers 503, however slow the node is.
                let began = clock.elapsed() - revoked;
                match client.post(CHAT, &chat(false)).await.status {
                    401 => break,
                    503 => {}
                    200 => assert!(began < FEED_AGE, "accepted {began:?} after it was revoked"),
                    other => panic!("{other}"),
                }
            }
        }
    };
    within("a refusal at each node", refused).await;
    cluster.audit();
}

#[tokio::test]
async fn an_account_that_one_node_deletes_is_refused_by_the_others() {
    let cluster = Cluster::start().await;
    let (account, key) = cluster.installation_account("5").await;
    // Another node has a part of the account's credit.
    let client = Client::new(&cluster.nodes[1].url).with_key(&key);
    let answer = client.post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let delete = ["account", "delete", "--account", &account, "--forfeit"];
    cluster.ask("a", &delete).await;
    let refused = async {
        for node in &cluster.nodes {
            let client = Client::new(&node.url).with_key(&key);
            while client.post(CHAT, &chat(false)).await.status != 401 {
                tokio::task::yield_now().await;
            }
        }
    };
    within("the refusals", refused).await;
    assert_eq!(cluster.balance(&account).await, (0, 0));
    cluster.audit();
}

#[tokio::test]
async fn a_repeat_with_its_idempotency_key_gets_the_recorded_answer_at_another_node() {
    let cluster = Cluster::start().await;
    let repeated = |client: Client| async move {
        let mut request = client.request("POST", CHAT, chat(false).to_string().into());
        let name = HeaderValue::from_static("0190a1b2-0000-7000-8000-000000000001");
        request.headers_mut().insert("idempotency-key", name);
        client.send(request).await
    };
    let first = repeated(cluster.client(0)).await;
    assert_eq!(first.status, 200, "{}", first.text());
    for node in 1..NAMES.len() {
        let again = repeated(cluster.client(node)).await;
        assert_eq!(again.text(), first.text(), "node {node}");
    }
    let (available, held) = cluster.balance(&cluster.installation.account).await;
    assert_eq!((available, held), (1_000_000_000 - PRICE_OF_A_CHAT, 0));
    cluster.audit();
}

#[tokio::test]
async fn a_killed_node_is_recovered_and_the_others_go_on() {
    let mut cluster = Cluster::start().await;
    cluster
        .installation
        .provider
        .script(Script::hold(2, "middle").once());
    let mut stream = cluster.client(1).stream(CHAT, &chat(true)).await;
    stream.next_event().await.expect("an event before the gate");
    let (_, held) = cluster.balance(&cluster.installation.account).await;
    assert!(held > 0);
    cluster.nodes[1].process.kill();
    for node in [0, 2] {
        let answer = cluster.client(node).post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let state = |nodes: &Value| {
        let mut all = nodes.as_array().expect("a list").iter();
        let found = all.find(|node| node["name"] == "b").expect("it is there");
        found["state"].as_str().expect("a word").to_owned()
    };
    let nodes = cluster.ask("a", &["nodes", "recover", "b"]).await;
    assert_eq!(state(&nodes), "ended", "{nodes}");
    let log = cluster.ask("c", &["audit-log"]).await;
    let acts = log.as_array().expect("a list").iter();
    let mut acts = acts.filter(|act| act["action"] == "node_recover");
    let act = acts.next().expect("it is recorded");
    assert_eq!(
        (&act["subject"], &act["outcome"]),
        (&"b".into(), &"done".into())
    );
    let left = 1_000_000_000 - 2 * PRICE_OF_A_CHAT;
    assert_eq!(
        cluster.balance(&cluster.installation.account).await,
        (left, 0)
    );
    let again = cluster.serve("b").await;
    cluster.nodes[1] = again;
    let answer = cluster.client(1).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let nodes = cluster.ask("c", &["nodes"]).await;
    assert_eq!(state(&nodes), "running", "{nodes}");
    cluster.installation.provider.gate("middle").open();
    cluster.audit();
}

#[tokio::test]
async fn a_node_that_was_paused_and_recovered_meanwhile_ends() {
    let mut cluster = Cluster::start().await;
    let answer = cluster.client(1).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    cluster.nodes[1].process.signal("STOP");
    // Refused until the lease has ended; the command waits for the end.
    cluster.ask("a", &["nodes", "recover", "b"]).await;
    let left = 1_000_000_000 - PRICE_OF_A_CHAT;
    assert_eq!(
        cluster.balance(&cluster.installation.account).await,
        (left, 0)
    );
    cluster.nodes[1].process.signal("CONT");
    let status = ended(&mut cluster.nodes[1].process).await;
    assert_eq!(
        status.code(),
        Some(1),
        "{}",
        cluster.nodes[1].process.output()
    );
    let answer = cluster.client(2).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    cluster.audit();
}

#[tokio::test]
async fn nodes_restart_one_after_the_other_with_open_streams() {
    let mut cluster = Cluster::start().await;
    for (node, name) in NAMES.into_iter().enumerate() {
        let gate = format!("gate {node}");
        cluster
            .installation
            .provider
            .script(Script::hold(2, &gate).once());
        let mut stream = cluster.client(node).stream(CHAT, &chat(true)).await;
        stream.next_event().await.expect("an event before the gate");
        cluster.nodes[node].process.signal("TERM");
        for other in (0..NAMES.len()).filter(|other| *other != node) {
            let answer = cluster.client(other).post(CHAT, &chat(false)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        cluster.installation.provider.gate(&gate).open();
        let (events, _) = stream.rest().await;
        assert!(events.len() > 1, "the stream ends whole");
        let status = ended(&mut cluster.nodes[node].process).await;
        assert_eq!(status.code(), Some(0));
        let again = cluster.serve(name).await;
        cluster.nodes[node] = again;
    }
    let left = 1_000_000_000 - 9 * PRICE_OF_A_CHAT;
    assert_eq!(
        cluster.balance(&cluster.installation.account).await,
        (left, 0)
    );
    cluster.audit();
}

#[tokio::test]
async fn a_gateway_that_is_alone_takes_over_from_several_and_they_from_it() {
    let mut cluster = Cluster::start().await;
    let refused = cluster.installation.fail().await;
    assert!(refused.1.contains("is in use by process"), "{}", refused.1);
    let answer = cluster.client(0).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The first node leaves credit behind.
    cluster.nodes[0].process.kill();
    for node in &mut cluster.nodes[1..] {
        node.process.signal("TERM");
        ended(&mut node.process).await;
    }
    cluster.nodes.clear();
    let alone = cluster.installation.serve().await;
    let answer = alone
        .client(&cluster.installation)
        .post(CHAT, &chat(false))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        micros(&answer.json()["x_svc"]["credits_remaining"]),
        1_000_000_000 - 2 * PRICE_OF_A_CHAT
    );
    drop(alone);
    let again = cluster.serve("a").await;
    let answer = again
        .client(&cluster.installation)
        .post(CHAT, &chat(false))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    cluster.audit();
}

/// A charge received by a client is in the ledger, for every node, whatever happened to the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_under_the_load_of_three_nodes_loses_no_charge() {
    let mut server = Postgres::start();
    let cluster = Cluster::on(&server.database()).await;
    let loads: Vec<_> = (0..6)
        .map(|number| {
            let client = cluster.client(number);
            tokio::spawn(async move {
                let (mut charged, mut answers) = (0, 0);
                while answers < 25 {
                    let answer = client.post(CHAT, &chat(answers % 2 == 0)).await;
                    // Without the database, a node does not know the revocations, or has no credit at hand.
                    if answer.status == 503 {
                        tokio::task::yield_now().await;
                        continue;
                    }
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    answers += 1;
                    charged += PRICE_OF_A_CHAT;
                }
                charged
            })
        })
        .collect();
    let some = async {
        while cluster.nodes[0]
            .metric("tollgate_commit_seconds_count")
            .await
            < 20
        {
            tokio::task::yield_now().await;
        }
    };
    within("commits", some).await;
    let server = tokio::task::spawn_blocking(move || {
        server.crash_and_restart();
        server
    });
    let server = server.await.expect("no panic");
    let mut charged = 0;
    for load in loads {
        charged += load.await.expect("no panic");
    }
    let account = cluster.installation.account.clone();
    let settled = async {
        while cluster.balance(&account).await != (1_000_000_000 - charged, 0) {
            tokio::task::yield_now().await;
        }
    };
    within("the charges", settled).await;
    cluster.audit();
    drop(cluster);
    drop(server);
}

#[tokio::test]
async fn a_node_is_upgraded_with_an_open_stream_while_the_others_serve() {
    let mut cluster = Cluster::start().await;
    cluster
        .installation
        .provider
        .script(Script::hold(2, "middle").once());
    let mut stream = cluster.client(1).stream(CHAT, &chat(true)).await;
    stream.next_event().await.expect("an event before the gate");
    let upgraded = cluster.ask("b", &["upgrade"]).await;
    let successor = Successor(upgraded["process"].as_u64().expect("a process"));
    for node in 0..NAMES.len() {
        let answer = cluster.client(node).post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    cluster.installation.provider.gate("middle").open();
    let (events, _) = stream.rest().await;
    assert!(events.len() > 1, "the stream ends whole");
    assert_eq!(first_ended(&mut cluster.nodes[1]).await, Some(0));
    let left = 1_000_000_000 - 4 * PRICE_OF_A_CHAT;
    let account = cluster.installation.account.clone();
    let settled = async {
        while cluster.balance(&account).await != (left, 0) {
            tokio::task::yield_now().await;
        }
    };
    within("the charges", settled).await;
    drop(successor);
    cluster.audit();
}
