//! Three nodes with caches, with and without a shared server: purges, limits, the second level, and a missing server.

use std::time::Duration;

use serde_json::Value;
use tollgate_clock::Clock;
use tollgate_testing::{Client, Postgres, Redis, RedisLink, Script, within};

use super::installation::{Serving, ended};
use super::nodes::Cluster;
use crate::rig::{CHAT, PRICE_OF_A_CHAT, SECRETS, chat, micros};

const CACHE: &str = "[cache]\nenabled = true\nhit_price_ppm = 100000";

/// Whether a node answered the chat with `seed` from a cache, and the charge.
async fn answered(cluster: &Cluster, node: usize, seed: u64) -> (bool, i64) {
    let mut body = chat(false);
    body["seed"] = seed.into();
    let answer = cluster.client(node).post(CHAT, &body).await;
    assert_eq!(answer.status, 200, "node {node}: {}", answer.text());
    let answer: Value = answer.json();
    let is_hit = answer["x_svc"]["cache_store_status"] == "hit";
    (is_hit, micros(&answer["x_svc"]["credits_used"]))
}

/// Waits until a metric has `value` at every node.
async fn each_reports(nodes: &[Serving], metric: &str, value: u64) {
    for node in nodes {
        let polled = async { while node.metric(metric).await != value {} };
        within(metric, polled).await;
    }
}

/// Waits until a node has read every change so far. The last change is the revocation of a key.
async fn has_read_the_feed(cluster: &Cluster, node: usize) {
    let account = &cluster.installation.account;
    let words = ["key", "create", "--account", account, "--name", "last"];
    let made = cluster.ask("a", &words).await;
    let secret = made["secret"].as_str().expect("a secret");
    let client = Client::new(&cluster.nodes[node].url).with_key(SECRETS.used("an API key", secret));
    assert_eq!(client.get("/v1/models").await.status, 200);
    let id = made["id"].as_str().expect("an id");
    cluster.ask("a", &["key", "revoke", "--key", id]).await;
    let refused = async { while client.get("/v1/models").await.status != 401 {} };
    within("a revoked key", refused).await;
}

#[tokio::test]
async fn a_purge_at_one_node_reaches_the_others_without_a_shared_server() {
    let cluster = Cluster::with(&Postgres::shared().database(), CACHE, "", &[]).await;
    let nodes = cluster.nodes.len();
    for words in [&["--model", "small"][..], &["--all"]] {
        for node in 0..nodes {
            assert!(!answered(&cluster, node, 1).await.0, "node {node}: a miss");
            assert!(answered(&cluster, node, 1).await.0, "node {node}: a hit");
        }
        let purged = cluster
            .ask("b", &[&["cache", "purge"], words].concat())
            .await;
        assert_eq!(purged["removed"], 1, "{words:?}");
        each_reports(&cluster.nodes, "tollgate_cache_entries", 0).await;
        // The node reads the node's own purge in the feed too, and the purge removes earlier answers.
        has_read_the_feed(&cluster, 1).await;
    }
    assert!(!answered(&cluster, 0, 1).await.0);
    answered(&cluster, 1, 1).await;
    // A purge of a node's entry: the remaining nodes keep their entries.
    let kept = cluster.client(0).post(CHAT, &seeded(1)).await.json();
    let id = kept["x_svc"]["cache_entry_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    cluster.ask("c", &["cache", "purge", "--id", &id]).await;
    each_reports(&cluster.nodes[..1], "tollgate_cache_entries", 0).await;
    assert!(answered(&cluster, 1, 1).await.0);
    cluster.audit();
}

/// The account's credit is with an unresponsive node: whether the account can pay the hit is unknown. The hit was given away.
#[tokio::test]
async fn a_hit_that_waits_for_the_credit_of_another_node_is_refused_and_not_given_away() {
    let mut cluster = Cluster::with(&Postgres::shared().database(), CACHE, "", &[]).await;
    assert!(!answered(&cluster, 0, 1).await.0, "it is stored");
    let provider = &cluster.installation.provider;
    provider.script(Script::hold(2, "gate"));
    let mut first = cluster.client(1).stream(CHAT, &chat(true)).await;
    let (_, hold) = cluster.balance(&cluster.installation.account).await;
    let credits = format!("{}.{:06}", hold / 1_000_000, hold % 1_000_000);
    let (account, key) = cluster.installation_account(&credits).await;
    let [other, holder] = [0, 1].map(|node| Client::new(&cluster.nodes[node].url).with_key(&key));
    let mut second = holder.stream(CHAT, &chat(true)).await;
    assert_eq!(second.status, 200);
    assert_eq!(cluster.balance(&account).await, (0, hold));
    cluster.nodes[1].process.signal("STOP");
    let refused = other.post(CHAT, &seeded(1)).await;
    cluster.nodes[1].process.signal("CONT");
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(
        refused.text().contains("credit_unavailable"),
        "{}",
        refused.text()
    );
    provider.gate("gate").open();
    first.rest().await;
    second.rest().await;
    let left = (hold - PRICE_OF_A_CHAT, 0);
    let settled = async { while cluster.balance(&account).await != left {} };
    within("the settlement", settled).await;
    let hit = other.post(CHAT, &seeded(1)).await;
    assert_eq!(hit.status, 200, "{}", hit.text());
    assert!(micros(&hit.json()["x_svc"]["credits_used"]) > 0);
    cluster.audit();
}

const FREE: &str = r#"
[[model]]
id = "free"
providers = [{ provider = "stand-in" }]
price = { input = "0", output = "0" }
context_length = 128000
max_output_tokens = 4096
"#;

/// Free answers were given without end to an account without credit at any node: a hold of zero fits, and a free hit asked for no hold. A
/// hit with a price was given unpaid.
#[tokio::test]
async fn an_account_without_credit_gets_no_hit_and_no_free_model_at_any_node() {
    for price in [0, 100_000] {
        let cache = format!("[cache]\nenabled = true\nhit_price_ppm = {price}");
        let database = Postgres::shared().database();
        let cluster = Cluster::with(&database, &cache, FREE, &[]).await;
        let (account, poor) = cluster.installation_account("0").await;
        let mut free = seeded(2);
        free["model"] = "free".into();
        for node in 0..cluster.nodes.len() {
            answered(&cluster, node, 1).await;
            assert!(answered(&cluster, node, 1).await.0, "node {node}: stored");
            let client = Client::new(&cluster.nodes[node].url).with_key(&poor);
            let mut stream = chat(true);
            stream["seed"] = 1.into();
            for body in [seeded(1), stream, free.clone()] {
                for _ in 0..3 {
                    let refused = client.stream(CHAT, &body).await.whole().await;
                    assert_eq!(refused.status, 402, "{price}: {}", refused.text());
                }
            }
        }
        // A credit pays for ten hits, and an account with any credit gets free answers.
        cluster.grant("a", &account, "1").await;
        let rich = Client::new(&cluster.nodes[2].url).with_key(&poor);
        let mut paid = 0;
        for body in [seeded(1), free] {
            // A refusal is repeated for a moment.
            let answered = async {
                loop {
                    let answer = rich.post(CHAT, &body).await;
                    if answer.status != 402 {
                        break answer;
                    }
                }
            };
            let answer = within("an answer", answered).await;
            assert_eq!(answer.status, 200, "{price}: {}", answer.text());
            paid += micros(&answer.json()["x_svc"]["credits_used"]);
        }
        let left = (1_000_000 - paid, 0);
        let settled = async { while cluster.balance(&account).await != left {} };
        within("the settlements", settled).await;
        cluster.audit();
    }
}

/// The credit pays for a number of hits, with the remainder for the last hit, at any node.
#[tokio::test]
async fn hits_of_one_account_at_all_nodes_at_once_are_paid() {
    let cluster = Cluster::with(&Postgres::shared().database(), CACHE, "", &[]).await;
    for node in 0..cluster.nodes.len() {
        answered(&cluster, node, 1).await;
    }
    let price = PRICE_OF_A_CHAT / 10;
    let credit = price * 4 + 1;
    let credits = format!("{}.{:06}", credit / 1_000_000, credit % 1_000_000);
    let (account, key) = cluster.installation_account(&credits).await;
    let clients = cluster.nodes.iter().cycle().take(24);
    let answers = clients.map(|node| {
        let client = Client::new(&node.url).with_key(&key);
        async move {
            loop {
                let answer = client.post(CHAT, &seeded(1)).await;
                match answer.status {
                    200 => break Some(micros(&answer.json()["x_svc"]["credits_used"])),
                    402 => break None,
                    status => assert_eq!(status, 503, "{}", answer.text()),
                }
            }
        }
    });
    let charges: Vec<_> = futures_util::future::join_all(answers).await;
    let mut charges: Vec<i64> = charges.into_iter().flatten().collect();
    charges.sort_unstable();
    assert!(charges.iter().all(|charge| *charge > 0), "{charges:?}");
    let settled = async { while cluster.balance(&account).await != (0, 0) {} };
    within("the settlements", settled).await;
    assert_eq!(charges.iter().sum::<i64>(), credit, "{charges:?}");
    cluster.audit();
}

fn seeded(seed: u64) -> Value {
    let mut body = chat(false);
    body["seed"] = seed.into();
    body
}

const UNREACHABLE: &str = "shared server unreachable";
const CONNECTED: &str = "connected to the shared server";
const REACHABLE: &str = "tollgate_shared_reachable";

#[tokio::test]
async fn nodes_with_a_shared_server_have_one_limit_and_one_cache_and_go_on_without_it() {
    let mut redis = Redis::start();
    let settings = format!(
        "{CACHE}\n[shared]\nurl = '{}'\n[limits.classes.anonymous]\nquota = 30\nwindow_secs = 86400",
        redis.url()
    );
    let mut cluster = Cluster::with(&Postgres::shared().database(), &settings, "", &[]).await;
    let nodes = cluster.nodes.len();
    each_reports(&cluster.nodes, "tollgate_shared_nodes", 3).await;
    let mut charged = 0;

    // One limit.
    let admitted: u32 = admitted(&cluster.nodes, 40).await.iter().sum();
    // Without the shared server, the nodes admit 90. On a busy machine calls may take too long, and the shares decide: at most 30 more.
    assert!((20..=60).contains(&admitted), "{admitted}");

    // A shared second level: an answer of a node is a hit at the next node. On a busy machine a slow read is a miss.
    let stored = "tollgate_cache_shared_total{result=\"stored\"}";
    let mut hits = 0;
    for seed in 10.. {
        let (node, before) = (
            seed as usize % nodes,
            cluster.nodes[seed as usize % nodes].metric(stored).await,
        );
        charged += answered(&cluster, node, seed).await.1;
        let written = async { while cluster.nodes[node].metric(stored).await == before {} };
        if tokio::time::timeout(Duration::from_secs(1), written)
            .await
            .is_ok()
        {
            let (is_hit, charge) = answered(&cluster, node + 1, seed).await;
            charged += charge;
            hits += u32::from(is_hit);
        }
        if hits == 3 {
            break;
        }
    }
    cluster.ask("c", &["cache", "purge", "--all"]).await;
    each_reports(&cluster.nodes, "tollgate_cache_entries", 0).await;

    // Killed, started again, stopped, continued: requests go on.
    let mut seed = 1_000_000;
    for round in 0..2 {
        match round {
            0 => redis.kill(),
            _ => redis.pause(),
        }
        for node in 0..nodes {
            seed += 1;
            charged += answered(&cluster, node, seed).await.1;
        }
        each_reports(&cluster.nodes, REACHABLE, 0).await;
        for node in 0..nodes {
            seed += 1;
            charged += answered(&cluster, node, seed).await.1;
        }
        match round {
            0 => redis.restart(),
            _ => redis.resume(),
        }
        each_reports(&cluster.nodes, REACHABLE, 1).await;
    }
    let account = cluster.installation.account.clone();
    let left = 1_000_000_000 - charged;
    assert_eq!(cluster.balance(&account).await, (left, 0));
    cluster.audit();
    assert!(
        changes_of_reachability(&mut cluster)
            .await
            .iter()
            .all(|count| *count >= 5)
    );
}

/// Ends the nodes. Returns the number of logged changes of the shared server's reachability per node: a change is a line.
async fn changes_of_reachability(cluster: &mut Cluster) -> Vec<usize> {
    let mut counts = Vec::new();
    for node in &mut cluster.nodes {
        node.process.signal("TERM");
        assert_eq!(ended(&mut node.process).await.code(), Some(0));
        let output = node.process.output();
        let changes = output.lines().filter_map(|line| match line {
            line if line.contains(UNREACHABLE) => Some(false),
            line if line.contains(CONNECTED) => Some(true),
            _ => None,
        });
        let changes: Vec<bool> = changes.collect();
        assert!(
            changes.windows(2).all(|pair| pair[0] != pair[1]),
            "a line without a change:\n{output}"
        );
        counts.push(changes.len());
    }
    counts
}

/// The number of admitted requests per node, of `requests` anonymous requests.
async fn admitted(nodes: &[Serving], requests: usize) -> Vec<u32> {
    let mut admitted = vec![0; nodes.len()];
    for _ in 0..requests {
        for (node, admitted) in nodes.iter().zip(&mut admitted) {
            let answer = Client::new(&node.url).get("/robots.txt").await;
            assert!([200, 429].contains(&answer.status), "{}", answer.text());
            *admitted += u32::from(answer.status == 200);
        }
    }
    admitted
}

/// A node reports a slow server after three late calls. Afterwards no request waits for the server.
#[tokio::test]
async fn nodes_whose_shared_server_answers_late_use_their_shares_and_share_again_afterwards() {
    const LATE: Duration = Duration::from_secs(3);
    const QUOTA: u32 = 30;
    let redis = Redis::start();
    let link = RedisLink::start(&redis);
    let settings = format!(
        "{CACHE}\n[shared]\nurl = '{}'\n[limits.classes.anonymous]\nquota = {QUOTA}\nwindow_secs = 86400",
        link.url()
    );
    let mut cluster = Cluster::with(&Postgres::shared().database(), &settings, "", &[]).await;
    let nodes = cluster.nodes.len();
    each_reports(&cluster.nodes, "tollgate_shared_nodes", nodes as u64).await;
    let (mut charged, mut seed) = (0, 0);
    link.delay(LATE);
    for node in 0..nodes {
        while cluster.nodes[node].metric(REACHABLE).await == 1 {
            seed += 1;
            charged += answered(&cluster, node, seed).await.1;
        }
    }
    let clock = Clock::system();
    for node in 0..nodes {
        let mut waits = Vec::new();
        for _ in 0..10 {
            seed += 1;
            let began = clock.elapsed();
            let (is_hit, charge) = answered(&cluster, node, seed).await;
            waits.push(clock.elapsed() - began);
            assert!(!is_hit, "node {node}");
            charged += charge;
        }
        // The machine may be busy during a request, but not during every request.
        let fastest = waits.iter().min().expect("requests");
        assert!(*fastest < LATE, "node {node}: {waits:?}");
    }
    // Without the shared server, every node admits a full share.
    let share = QUOTA / nodes as u32;
    assert_eq!(admitted(&cluster.nodes, 20).await, vec![share; nodes]);
    each_reports(&cluster.nodes, REACHABLE, 0).await;

    link.delay(Duration::ZERO);
    each_reports(&cluster.nodes, REACHABLE, 1).await;
    each_reports(&cluster.nodes, "tollgate_shared_nodes", nodes as u64).await;
    // The server has admitted no part of the quota yet. On a busy machine the shares decide, and the shares are used up.
    let shared: u32 = admitted(&cluster.nodes, 40).await.iter().sum();
    assert!((1..=QUOTA).contains(&shared), "{shared}");
    let account = cluster.installation.account.clone();
    let left = 1_000_000_000 - charged;
    assert_eq!(cluster.balance(&account).await, (left, 0));
    cluster.audit();
    // On a busy machine the server may have been late more than once.
    let changes = changes_of_reachability(&mut cluster).await;
    assert!(changes.iter().all(|count| *count >= 3), "{changes:?}");
}
