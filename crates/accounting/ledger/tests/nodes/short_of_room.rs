//! Nodes whose database is short of memory or disk space for a while: the nodes wait for the database, and each request is charged once.

use tollgate_testing::{RaisedAt, RaisedErrors};

use super::*;

const REQUESTS: u64 = 240;
const WORKERS: usize = 12;

/// Ends a request on one of the nodes.
async fn charge(ledger: &Ledger, account: AccountId, number: u64) {
    let mut again = tokio::time::interval(Duration::from_millis(10));
    let hold = loop {
        again.tick().await;
        match ledger
            .hold(request(account, number, 100), |_| None)
            .finish()
            .await
        {
            // The node waits for its database: its client gets 503, and tries again.
            Err(HoldError::CutOff | HoldError::CreditUnavailable { .. }) => {}
            placed => break placed.expect("there is credit"),
        }
    };
    let settled = hold.settle(settle(number as i64 % 7)).await;
    assert_eq!(
        settled.expect("it is durable").charged.get(),
        number as i64 % 7
    );
}

/// Ends requests on the nodes in turn, with some concurrent requests.
fn charge_all(
    runtime: &tokio::runtime::Runtime,
    nodes: &[Node; 3],
    account: AccountId,
    numbers: std::ops::Range<u64>,
) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..WORKERS {
        let ledger = nodes[worker % nodes.len()].ledger.clone();
        let own = numbers.clone().skip(worker).step_by(WORKERS);
        let work = async move {
            for number in own {
                charge(&ledger, account, number).await;
            }
        };
        tasks.spawn_on(work, runtime.handle());
    }
    tasks
}

/// Three nodes stopped when one insert in twenty was short of memory for four seconds.
#[test]
fn three_nodes_whose_database_is_short_of_memory_and_then_of_room_charge_each_request_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    for at in [RaisedAt::Write, RaisedAt::Commit] {
        let url = Postgres::shared().database();
        let database = url.rsplit('/').next().expect("a name");
        let nodes = ["a", "b", "c"].map(|name| node(&url, name));
        let account = account_with(&nodes[0].store, &nodes[0].ledger, 1, 1_000_000, 0);
        for node in &nodes[1..] {
            node.has_account(account);
        }
        let errors = RaisedErrors::of(database, "journal", at);
        errors.raise_at_one_in("53200", 20);
        let first = charge_all(&runtime, &nodes, account, 0..REQUESTS / 2);
        runtime.block_on(first.join_all());
        errors.raise("53100");
        let before = errors.count();
        let rest = charge_all(&runtime, &nodes, account, REQUESTS / 2..REQUESTS);
        eventually("each node has met the full disk", || {
            errors.count() >= before + 3
        });
        errors.stop();
        runtime.block_on(rest.join_all());
        for node in &nodes {
            assert!(node.store.failure().is_none(), "{at:?}");
        }
        let charged: u64 = (0..REQUESTS).map(|number| number % 7).sum();
        let left = 1_000_000 - charged as i64;
        let [a, b, c] = nodes;
        eventually("the charges are there", || {
            available(&a.store, account) == left
        });
        assert_balanced(&b.store);
        for node in [a, b, c] {
            node.close();
        }
        let alone = open(&url, "alone", NodeRole::Alone);
        assert_balanced(&alone.store);
        assert_eq!(available(&alone.store, account), left);
        alone.store.close();
    }
}
