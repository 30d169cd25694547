//! Nodes of a database with different settings: every node warns until the settings agree.

use serde_json::Value;
use tollgate_testing::Client;

use super::installation::Serving;
use super::nodes::Cluster;
use super::reload::set_price;

const OTHERS: &str = "tollgate_nodes_with_other_settings";

/// Waits until every node counts the expected number of nodes with different settings.
async fn become_different(cluster: &Cluster, counts: [u64; 3]) {
    for (node, count) in cluster.nodes.iter().zip(counts) {
        node.metric_becomes(OTHERS, count).await;
    }
}

async fn warnings(node: &Serving) -> String {
    let ready = Client::new(&node.admin_url).get("/ready").await;
    assert_eq!(ready.status, 200, "{}", ready.text());
    ready.json()["warnings"].to_string()
}

/// The nodes whose settings `tollgate nodes` calls older.
async fn older(cluster: &Cluster) -> Vec<String> {
    let nodes = cluster.ask("a", &["nodes"]).await;
    let nodes = nodes.as_array().expect("a list").iter();
    let older = nodes.filter(|node| node["has_older_settings"] == true);
    older
        .map(|node| node["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// A model had two prices, depending on the node selected by the balancer, without any warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_price_that_is_reloaded_at_one_node_alone_is_a_warning_at_each_until_all_have_it() {
    let cluster = Cluster::start().await;
    let recorded = "SELECT count(*) || ' ' || count(DISTINCT digest) FROM node_settings";
    while cluster.sql(recorded) != "3 1" {}
    assert_eq!(older(&cluster).await, [""; 0]);
    assert!(!warnings(&cluster.nodes[0]).await.contains("differ"));

    set_price(&cluster.installation, 700);
    cluster.ask("a", &["reload"]).await;
    become_different(&cluster, [2, 1, 1]).await;
    let at_a = warnings(&cluster.nodes[0]).await;
    let words = "the settings differ from the older ones of nodes `b`, `c`";
    assert!(at_a.contains(words), "{at_a}");
    for node in &cluster.nodes[1..] {
        let found = warnings(node).await;
        let words = "the settings differ from the newer ones of node `a`";
        assert!(found.contains(words), "{found}");
    }
    assert_eq!(older(&cluster).await, ["b", "c"]);
    let is_it = |line: &str| {
        line.contains("health condition began") && line.contains("differ from the newer ones")
    };
    let process = &cluster.nodes[1].process;
    process.line_where("the warning in the log", is_it);

    cluster.ask("b", &["reload"]).await;
    become_different(&cluster, [1, 1, 2]).await;
    cluster.ask("c", &["reload"]).await;
    become_different(&cluster, [0, 0, 0]).await;
    for node in &cluster.nodes {
        let found = warnings(node).await;
        assert!(!found.contains("differ"), "{found}");
    }
    assert_eq!(cluster.sql(recorded), "3 1");

    // A node of an earlier release records no settings.
    set_price(&cluster.installation, 800);
    cluster.ask("a", &["reload"]).await;
    cluster.ask("b", &["reload"]).await;
    become_different(&cluster, [1, 1, 2]).await;
    cluster
        .sql("DELETE FROM node_settings WHERE node_id = (SELECT id FROM nodes WHERE name = 'c')");
    become_different(&cluster, [0, 0, 0]).await;
    assert_eq!(older(&cluster).await, [""; 0]);
    let nodes = cluster.ask("a", &["nodes"]).await;
    let nodes = nodes.as_array().expect("a list").iter();
    let unknown: Vec<_> = nodes
        .filter(|node| node["state"] == "running" && node["settings"] == Value::Null)
        .map(|node| &node["name"])
        .collect();
    assert_eq!(unknown, ["c"]);
    cluster.audit();
}
