//! What a start has in memory, and accounts that were used by an earlier run or at another node.

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

/// Nodes load the account when they are asked for it; none has it from its start, also where an earlier run was killed with credit of it.
#[tokio::test]
async fn nodes_load_an_account_when_it_is_used_also_after_a_kill() {
    let mut cluster = Cluster::start().await;
    let (account, key) = cluster.installation_account("5").await;
    let mut spent = 0;
    for round in 0..2 {
        for node in &cluster.nodes {
            let client = tollgate_testing::Client::new(&node.url).with_key(&key);
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
