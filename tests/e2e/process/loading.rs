//! The memory content of a start, and accounts used by an earlier run or at another node.

use http::StatusCode;
use tollgate_testing::{Client, RawClient, within};

use super::installation::{Installation, ended};
use super::nodes::Cluster;
use crate::rig::{CHAT, PRICE_OF_A_CHAT, audited, chat};

const CREDITS: i64 = 1_000_000_000;

#[tokio::test]
async fn a_gateway_starts_without_accounts_and_charges_those_of_earlier_runs() {
    let installation = Installation::new("").await;
    for number in 0..5 {
        let made = installation.ask(&["account", "create"]).await;
        assert!(made["id"].is_string(), "{number}: {made}");
    }
    for run in 1..=3 {
        let mut serving = installation.serve().await;
        assert_eq!(serving.metric("tollgate_accounts").await, 0, "run {run}");
        let answer = serving
            .client(&installation)
            .post(CHAT, &chat(run == 2))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(serving.metric("tollgate_accounts").await, 1, "run {run}");
        serving.process.signal("TERM");
        assert_eq!(ended(&mut serving.process).await.code(), Some(0));
        let sums = audited(&installation.database()).sums;
        assert_eq!(sums.spent.get(), run * PRICE_OF_A_CHAT);
        assert_eq!(sums.available.get(), CREDITS - run * PRICE_OF_A_CHAT);
    }
}

/// Nodes load the account at the first use. No node has the account from the start, not even after a kill of an earlier run with credit of
/// the account.
#[tokio::test]
async fn nodes_load_an_account_when_it_is_used_also_after_a_kill() {
    let mut cluster = Cluster::start().await;
    let (account, key) = cluster.installation_account("5").await;
    let mut spent = 0;
    for round in 0..2 {
        for node in &cluster.nodes {
            let client = Client::new(&node.url).with_key(&key);
            for stream in [true, false] {
                let answer = client.stream(CHAT, &chat(stream)).await.whole().await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                spent += PRICE_OF_A_CHAT;
            }
        }
        assert_eq!(cluster.balance(&account).await, (5_000_000 - spent, 0));
        for (node, name) in super::nodes::NAMES.into_iter().enumerate() {
            match round {
                0 if node == 1 => cluster.nodes[node].process.kill(),
                _ => cluster.nodes[node].process.signal("TERM"),
            }
            ended(&mut cluster.nodes[node].process).await;
            let again = cluster.serve(name).await;
            let has_some = u64::from(round == 0 && node == 1);
            let known = again.metric("tollgate_accounts").await;
            assert!(known <= has_some, "{name} has {known} accounts in memory");
            cluster.nodes[node] = again;
        }
    }
    assert_eq!(cluster.balance(&account).await, (5_000_000 - spent, 0));
    cluster.audit();
}

/// A node does not know grants by other nodes, except for a moment after a read of the database.
#[tokio::test]
async fn a_node_reads_no_body_of_an_account_that_has_just_been_refused_for_it_has_nothing() {
    let cluster = Cluster::start().await;
    let (account, key) = cluster.installation_account("0").await;
    let node = &cluster.nodes[0];
    let client = Client::new(&node.url).with_key(&key);
    let address = node.url.trim_start_matches("http://");
    let address = address.parse().expect("an address");
    // The other nodes answer a recall first; a busy machine may take longer than the moment.
    let is_refused_on_the_head = async {
        loop {
            let refused = client.post(CHAT, &chat(false)).await;
            assert!([402, 503].contains(&refused.status), "{}", refused.text());
            let mut raw = RawClient::connect(address).await;
            let head = format!(
                "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
                 Content-Length: 1048576\r\nExpect: 100-continue\r\n\r\n"
            );
            raw.send(head).await;
            let head = raw.read_head().await;
            if head.status() != StatusCode::CONTINUE {
                return raw.read_body(&head).await;
            }
        }
    };
    let answer = within("a refusal on the head", is_refused_on_the_head).await;
    let answer: serde_json::Value = serde_json::from_slice(&answer).expect("the envelope");
    assert_eq!(answer["error"]["code"], "insufficient_credits", "{answer}");
    cluster.grant("b", &account, "5").await;
    // The refusal is forgotten after the node has read the grant, or after a moment.
    let is_served = async { while client.post(CHAT, &chat(false)).await.status != 200 {} };
    within("a request that the grant pays", is_served).await;
    cluster.audit();
}
