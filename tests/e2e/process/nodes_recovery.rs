//! A node whose process has ended, or is paused for longer than its lease and grace, is recovered by another node without a command.

use std::path::PathBuf;

use serde_json::{Value, json};
use tollgate_testing::{Client, EventStream, Postgres, Script, StreamEnd, within};

use super::installation::ended;
use super::nodes::{Cluster, NAMES};
use super::postgres::{self, log_in};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, SECRETS, chat};

const TOKEN: &str = "3f1be2a07c9d4e58a6b4d0c81597e3f2";

const CREDIT: i64 = 1_000_000_000;

/// A cluster with a charged chat at node `b`, and a hold of `b` for a stream in wait for the provider.
struct Interrupted {
    cluster: Cluster,
    stream: EventStream,
}

impl Interrupted {
    async fn start() -> Interrupted {
        let database = Postgres::shared().database();
        Interrupted::of(Cluster::with(&database, "", "", &[]).await).await
    }

    async fn of(cluster: Cluster) -> Interrupted {
        let answer = cluster.client(1).post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let script = Script::hold(2, "middle").once();
        cluster.installation.provider.script(script);
        let mut stream = cluster.client(1).stream(CHAT, &chat(true)).await;
        stream.next_event().await.expect("an event before the gate");
        let (_, held) = cluster.balance(&cluster.installation.account).await;
        assert!(held > 0, "the stream holds credit");
        Interrupted { cluster, stream }
    }

    /// Interrupts node `b` by `signal`, with ended lease and grace period, and waits until another node has recovered `b`.
    async fn recovered_after(&mut self, signal: &str) {
        self.cluster.nodes[1].process.signal(signal);
        let node = self.cluster.end_lease("b");
        let recovered = async { while self.state_of_b().await != "ended" {} };
        within("the recovery by another node", recovered).await;
        let left = format!("SELECT sum(available + held) FROM allotments WHERE node_id = {node}");
        assert_eq!(
            self.cluster.sql(&left),
            "0",
            "its part of the credit is shared again"
        );
        self.has_paid(1).await;
    }

    /// Waits until the running nodes report `count` nodes without a possible recovery.
    async fn becomes_unrecovered(&self, count: u64) {
        let reported = async {
            loop {
                let mut all = 0;
                for node in [0, 2] {
                    let node = &self.cluster.nodes[node];
                    all += node.metric("tollgate_nodes_unrecovered").await;
                }
                if all == count {
                    break;
                }
            }
        };
        within("the count of nodes that were not recovered", reported).await;
    }

    async fn state_of_b(&self) -> String {
        let nodes = self.cluster.ask("a", &["nodes"]).await;
        let mut all = nodes.as_array().expect("a list").iter();
        let found = all.find(|node| node["name"] == "b").expect("it is there");
        let state: &Value = &found["state"];
        state.as_str().expect("a word").to_owned()
    }

    /// The account has paid for `chats` chats, and no credit is held.
    async fn has_paid(&self, chats: i64) {
        let balance = self.cluster.balance(&self.cluster.installation.account);
        let left = CREDIT - chats * PRICE_OF_A_CHAT;
        assert_eq!(balance.await, (left, 0), "after {chats} chats");
    }

    async fn chat_at(&self, node: usize) {
        let client: Client = self.cluster.client(node);
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// The rest of the answer waits in the socket when the node continues. The answer must not be delivered whole, because the answer is not
/// charged any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_node_is_recovered_by_another_one_and_ends_when_it_continues() {
    let mut test = Interrupted::start().await;
    test.recovered_after("STOP").await;
    test.cluster.installation.provider.gate("middle").open();
    test.chat_at(0).await;
    let paused = &mut test.cluster.nodes[1].process;
    paused.signal("CONT");
    let status = ended(paused).await;
    assert_eq!(status.code(), Some(1), "{}", paused.output());
    let (events, end) = within("the end of the stream", test.stream.rest()).await;
    let is_whole = events.last().is_some_and(|event| event.is_done());
    assert!(!is_whole, "{events:?}");
    let is_refused = events
        .last()
        .is_some_and(|event| event.raw.contains("store_unavailable"));
    let is_cut = is_refused || matches!(end, StreamEnd::Cut(_));
    assert!(is_cut, "{end:?} after {events:?}");
    test.chat_at(2).await;
    test.has_paid(3).await;
    test.cluster.nodes[1] = test.cluster.serve("b").await;
    test.chat_at(1).await;
    test.has_paid(4).await;
    test.cluster.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_recovered_by_another_one() {
    let mut test = Interrupted::start().await;
    test.recovered_after("KILL").await;
    let (_, end) = within("the end of the stream", test.stream.rest()).await;
    assert!(matches!(end, StreamEnd::Cut(_)), "{end:?}");
    test.chat_at(2).await;
    test.cluster.installation.provider.gate("middle").open();
    test.cluster.nodes[1] = test.cluster.serve("b").await;
    test.chat_at(1).await;
    test.has_paid(3).await;
    test.cluster.audit();
}

/// The clock of the database is always an hour ahead: a renewed lease has already ended. After an outage of the database every lease was
/// over. The first node with a connection recovered the remaining nodes, although the nodes ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_renews_its_lease_is_not_recovered_when_the_database_says_that_it_is_over() {
    let mut test = Interrupted::start().await;
    let is_over = "CREATE FUNCTION is_over() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN NEW.held_until := NEW.held_until - 3600000000; RETURN NEW; END $$;
        CREATE TRIGGER is_over BEFORE UPDATE ON leases FOR EACH ROW WHEN (NEW.node > 0) EXECUTE FUNCTION is_over()";
    test.cluster.sql(is_over);
    test.recovered_after("KILL").await;
    test.chat_at(0).await;
    test.chat_at(2).await;
    test.has_paid(3).await;
    test.cluster.audit();
}

/// The node's credit is lost to the remaining nodes until an operator acts. The metric, and the alert on the metric, inform the operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_be_recovered_is_counted_until_it_is() {
    let mut test = Interrupted::start().await;
    let refuses = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'the node stays as it is'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON nodes FOR EACH ROW WHEN (OLD.name = 'b') EXECUTE FUNCTION refuse()";
    test.cluster.sql(refuses);
    test.cluster.nodes[1].process.signal("KILL");
    test.cluster.end_lease("b");
    test.becomes_unrecovered(1).await;
    assert_ne!(test.state_of_b().await, "ended");
    test.cluster.sql("DROP TRIGGER refuse ON nodes");
    test.becomes_unrecovered(0).await;
    assert_eq!(test.state_of_b().await, "ended");
    test.has_paid(1).await;
    test.cluster.audit();
}

/// A cluster with a password for the database, and the file of the password.
async fn with_password() -> (Cluster, PathBuf) {
    SECRETS.used("a token of the admin API beside a password", TOKEN);
    let server = postgres::with_password();
    let database = server.database();
    let token = "[[admin.token]]\nname = 'ops'\nrole = 'operate'\ntoken_env = 'ADMIN_TOKEN'\n";
    let mut cluster = Cluster::stopped(&database, "", token, &[("ADMIN_TOKEN", TOKEN)]).await;
    let file = log_in(&cluster.installation, &server);
    cluster.server = Some(server);
    for name in NAMES {
        cluster.nodes.push(cluster.serve(name).await);
    }
    (cluster, file)
}

/// The nodes' connections stay open. Every recovery, and every read of the nodes' states, makes a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reload_with_another_password_of_the_database_nodes_are_shown_and_recovered() {
    let (cluster, file) = with_password().await;
    let mut test = Interrupted::of(cluster).await;
    test.cluster
        .sql("ALTER ROLE gateway PASSWORD 'another-word'");
    std::fs::write(file, "another-word").expect("the folder takes files");
    for node in NAMES {
        test.cluster.ask(node, &["reload"]).await;
    }
    let api = Client::new(&test.cluster.nodes[0].admin_url).with_key(TOKEN);
    let shown = api.get("/admin/v1/nodes").await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    test.recovered_after("KILL").await;
    let recovered = api.post("/admin/v1/nodes/b/recover", &json!({})).await;
    assert_eq!(recovered.status, 200, "{}", recovered.text());
    let audit = api.post("/admin/v1/audit", &json!({})).await;
    assert_eq!(audit.status, 200, "{}", audit.text());
    assert_eq!(audit.json()["clean"], true, "{}", audit.text());
}

/// The reload read the prices with the earlier password, and the database's refusal ended every node a minute later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_with_another_password_of_the_database_is_accepted_after_all_connections_were_lost()
 {
    let (cluster, file) = with_password().await;
    cluster.sql("ALTER ROLE gateway PASSWORD 'another-word'");
    std::fs::write(&file, "another-word").expect("the folder takes files");
    let end =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'gateway'";
    cluster.sql(end);
    let reload = async |node| {
        let reload = cluster.command(node, &["reload"]);
        let mut process = cluster.installation.spawn(reload);
        ended(&mut process).await.code()
    };
    let reloads = async {
        for node in NAMES {
            // The first reload may come before the connection for the reload's row of the audit log.
            while reload(node).await != Some(0) {}
        }
    };
    within("reloads", reloads).await;
    let answers = async {
        for node in 0..cluster.nodes.len() {
            while cluster.client(node).post(CHAT, &chat(false)).await.status != 200 {}
        }
    };
    within("answers of each node", answers).await;
    cluster.audit();
}
