//! The admin API at one of several gateways: shows every gateway, recovers an ended gateway, and audits the common books.

use serde_json::{Value, json};
use tollgate_testing::{Client, Postgres, Script};

use super::nodes::Cluster;
use crate::rig::{CHAT, SECRETS, chat};

const TOKEN: &str = "7b3e0f5ad1c94826b5f0c7d39e12a864";

#[tokio::test]
async fn the_admin_api_shows_the_nodes_and_recovers_one_that_was_killed() {
    SECRETS.used("a token of the admin API of several gateways", TOKEN);
    let settings = "[[admin.token]]\nname = 'ops'\nrole = 'operate'\ntoken_env = 'ADMIN_TOKEN'\n";
    let url = Postgres::shared().database();
    let mut cluster = Cluster::with(&url, "", settings, &[("ADMIN_TOKEN", TOKEN)]).await;
    let api = Client::new(&cluster.nodes[0].admin_url).with_key(TOKEN);
    let recover = async |node: &str| {
        let path = format!("/admin/v1/nodes/{node}/recover");
        api.post(&path, &json!({})).await
    };
    let provider = &cluster.installation.provider;
    provider.script(Script::hold(2, "middle").once());
    let mut stream = cluster.client(1).stream(CHAT, &chat(true)).await;
    stream.next_event().await.expect("an event before the gate");
    cluster.nodes[1].process.kill();

    let running = recover("c").await;
    assert_eq!(running.status, 409, "{}", running.text());
    assert_eq!(running.json()["error"]["code"], "admin.conflict");
    let reason = running.json()["error"]["message"].to_string();
    assert!(reason.contains("node `c` runs, as process"), "{reason}");
    let unknown = recover("d").await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    let recovered = recover("b").await;
    assert_eq!(recovered.status, 200, "{}", recovered.text());
    let shown = api.get("/admin/v1/nodes").await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    for answer in [recovered, shown] {
        let nodes = answer.json();
        let states = nodes["data"].as_array().expect("a list").iter();
        let states = states.filter(|node| node["name"] != Value::Null);
        let mut states: Vec<_> = states
            .map(|node| format!("{} {}", node["name"], node["state"]))
            .collect();
        states.sort();
        let expected = ["\"a\" \"running\"", "\"b\" \"ended\"", "\"c\" \"running\""];
        assert_eq!(states, expected);
    }
    let (_, held) = cluster.balance(&cluster.installation.account).await;
    assert_eq!(held, 0, "what the killed node held is returned");

    let audit = api.post("/admin/v1/audit", &json!({})).await;
    assert_eq!(audit.status, 200, "{}", audit.text());
    let report = audit.json();
    assert_eq!(
        (&report["clean"], &report["open_holds"]),
        (&json!(true), &json!(0))
    );
    let log = api.get("/admin/v1/audit-log").await.json();
    let acts = log["data"].as_array().expect("a page").iter();
    let acts: Vec<_> = acts
        .filter(|record| record["action"] == "node_recover")
        .map(|record| format!("{} {}", record["subject"], record["outcome"]))
        .collect();
    let expected = ["\"b\" \"done\"", "\"d\" \"refused\"", "\"c\" \"refused\""];
    assert_eq!(acts, expected, "newest first");
    cluster.installation.provider.gate("middle").open();
    cluster.audit();
}
