//! Nodes that start at once: on an empty database, on the remains of an earlier run, on a restored database, and two nodes with a common
//! name.

use tollgate_testing::{Postgres, Script};

use super::installation::ended;
use super::nodes::Cluster;
use crate::rig::{CHAT, PRICE_OF_A_CHAT, chat};

const CREDITS: i64 = 1_000_000_000;

/// Expects a whole answer of every node.
async fn each_serves(cluster: &Cluster) {
    for node in 0..cluster.nodes.len() {
        let answer = cluster.client(node).post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "node {node}: {}", answer.text());
    }
}

/// The shared rows are rebuilt: a running node would continue with credit that no longer belongs to the node.
#[tokio::test]
async fn derived_rows_are_rebuilt_only_while_no_node_runs() {
    let mut cluster = Cluster::start().await;
    each_serves(&cluster).await;
    cluster.nodes[1].process.signal("TERM");
    ended(&mut cluster.nodes[1].process).await;
    let words = ["audit", "--fix-derived"];
    let mut refused = cluster.installation.spawn(cluster.command("b", &words));
    let status = ended(&mut refused).await;
    let output = refused.output();
    assert_eq!(status.code(), Some(2), "{output}");
    assert!(output.contains("is in use by process"), "{output}");
    for node in [0, 2] {
        let answer = cluster.client(node).post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "node {node}: {}", answer.text());
    }
    // An audit is read-only, and runs beside the nodes.
    let report = cluster.ask("b", &["audit"]).await;
    assert_eq!(report["clean"], true, "{report}");
    for node in [0, 2] {
        cluster.nodes[node].process.signal("TERM");
        ended(&mut cluster.nodes[node].process).await;
    }
    let report = cluster.ask("b", &words).await;
    assert_eq!(report["clean"], true, "{report}");
    cluster.nodes.clear();
    cluster.serve_all().await;
    each_serves(&cluster).await;
    let account = cluster.installation.account.clone();
    let left = CREDITS - 8 * PRICE_OF_A_CHAT;
    assert_eq!(cluster.balance(&account).await, (left, 0));
    cluster.audit();
}

#[tokio::test]
async fn three_nodes_that_start_at_once_make_the_store_of_an_empty_database() {
    let first = Postgres::shared().database();
    let empty = Postgres::shared().database();
    let mut cluster = Cluster::stopped(&first, "", "", &[]).await;
    let text = std::fs::read_to_string(&cluster.installation.config).expect("the settings");
    let text = text.replace(&first, &empty);
    std::fs::write(&cluster.installation.config, text).expect("the folder takes files");
    cluster.installation.postgres = Some(empty);
    cluster.serve_all().await;
    let (account, key) = cluster.installation_account("5").await;
    (cluster.installation.account, cluster.installation.key) = (account.clone(), key);
    each_serves(&cluster).await;
    let left = 5_000_000 - 3 * PRICE_OF_A_CHAT;
    assert_eq!(cluster.balance(&account).await, (left, 0));
    let nodes = cluster.ask("b", &["nodes"]).await;
    assert_eq!(nodes.as_array().expect("a list").len(), 3, "{nodes}");
    cluster.audit();
}

/// The second node failed on finding a recovery begun by the first node.
#[tokio::test]
async fn nodes_that_start_at_once_recover_what_a_killed_run_has_left() {
    let mut cluster = Cluster::stopped(&Postgres::shared().database(), "", "", &[]).await;
    let account = cluster.installation.account.clone();
    let provider = &cluster.installation.provider;
    // The remains of a single gateway: an open hold, and credit wholly in the gateway's ledger.
    provider.script(Script::hold(2, "alone").once());
    let mut alone = cluster.installation.serve().await;
    let client = alone.client(&cluster.installation);
    let mut stream = client.stream(CHAT, &chat(true)).await;
    stream.next_event().await.expect("an event before the gate");
    alone.process.kill();
    cluster.serve_all().await;
    each_serves(&cluster).await;
    assert_eq!(
        cluster.balance(&account).await,
        (CREDITS - 3 * PRICE_OF_A_CHAT, 0)
    );

    // Of nodes: open holds and allotments.
    for (node, gate) in ["a", "b", "c"].into_iter().enumerate() {
        let provider = &cluster.installation.provider;
        provider.script(Script::hold(2, gate).once());
        let mut stream = cluster.client(node).stream(CHAT, &chat(true)).await;
        stream.next_event().await.expect("an event before the gate");
    }
    for node in &mut cluster.nodes {
        node.process.kill();
    }
    cluster.serve_all().await;
    each_serves(&cluster).await;
    assert_eq!(
        cluster.balance(&account).await,
        (CREDITS - 6 * PRICE_OF_A_CHAT, 0)
    );

    let installation = &cluster.installation;
    let mut second = installation.spawn(cluster.command("b", &["serve"]));
    assert_eq!(ended(&mut second).await.code(), Some(1));
    let (output, holder) = (second.output(), cluster.nodes[1].process.id());
    let says = format!(
        "runs already, as process {holder}; stop that gateway first, or give this one another `store.node`"
    );
    assert!(
        output.contains("node `b` of ") && output.contains(&says),
        "{output}"
    );
    each_serves(&cluster).await;
    for gate in ["alone", "a", "b", "c"] {
        cluster.installation.provider.gate(gate).open();
    }
    cluster.audit();
}

/// `pg_dump` reads a consistent state while nodes serve: with holds of streams, and credit at every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_start_on_a_dump_that_was_made_while_they_served() {
    let server = Postgres::shared();
    let database = server.database();
    let mut cluster = Cluster::with(&database, "", "", &[]).await;
    let account = cluster.installation.account.clone();
    let provider = &cluster.installation.provider;
    provider.script(Script::hold(2, "middle").times(3));
    let mut streams = Vec::new();
    for node in 0..cluster.nodes.len() {
        let mut stream = cluster.client(node).stream(CHAT, &chat(true)).await;
        stream.next_event().await.expect("an event before the gate");
        streams.push(stream);
    }
    each_serves(&cluster).await;
    let dumped = server.restored(database.rsplit('/').next().expect("a name"));
    cluster.installation.provider.gate("middle").open();
    for mut stream in streams {
        let (events, _) = stream.rest().await;
        assert!(events.last().is_some_and(|event| event.is_done()));
    }
    each_serves(&cluster).await;
    let keys = ["key", "list", "--account", &account];
    let keys = cluster.ask("b", &keys).await;
    let key = keys[0]["id"].as_str().expect("an id").to_owned();
    cluster.ask("c", &["key", "revoke", "--key", &key]).await;
    let undone = cluster.ask("a", &["compare", &dumped]).await;
    assert_eq!(undone.as_array().map(Vec::len), Some(1), "{undone}");
    assert_eq!(undone[0]["effect"], "key_valid_again", "{undone}");
    assert_eq!(undone[0]["subject"], key, "{undone}");
    for node in &mut cluster.nodes {
        node.process.signal("TERM");
        assert_eq!(ended(&mut node.process).await.code(), Some(0));
    }
    cluster.nodes.clear();

    let text = std::fs::read_to_string(&cluster.installation.config).expect("the settings");
    let text = text.replace(&database, &dumped);
    std::fs::write(&cluster.installation.config, text).expect("the folder takes files");
    cluster.installation.postgres = Some(dumped);
    let audit = cluster.ask("a", &["audit"]).await;
    assert_eq!(audit["clean"], true, "{audit}");
    cluster.serve_all().await;
    each_serves(&cluster).await;
    let left = CREDITS - 6 * PRICE_OF_A_CHAT;
    assert_eq!(cluster.balance(&account).await, (left, 0));
    cluster.audit();
}
