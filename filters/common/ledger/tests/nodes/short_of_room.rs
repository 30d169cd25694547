//! Nodes whose database has no memory or no room for a while: they wait for it, and each request is charged once.

use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate_testing::{RaisedAt, RaisedErrors};

use super::*;

const REQUESTS: u64 = 240;

/// Ends a request on one of the nodes.
async fn charge(ledger: &Ledger, account: AccountId, number: u64) {
    let hold = loop {
        match ledger
            .acquire(request(account, number, 100), true, |_| None)
            .await
        {
            // The node waits for its database: its client gets 503, and tries again.
            Err(HoldError::CutOff | HoldError::CreditUnavailable { .. }) => {
                tokio::task::yield_now().await;
            }
            placed => break placed.expect("there is credit"),
        }
    };
    let settled = hold.settle(settle(number as i64 % 7)).await;
    assert_eq!(
        settled.expect("it is durable").charged.get(),
        number as i64 % 7
    );
}

/// Three nodes ended together when one insert in twenty found no memory for four seconds.
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
        let ended = Arc::new(AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..12 {
            let ledger = nodes[worker as usize % 3].ledger.clone();
            let ended = Arc::clone(&ended);
            let work = async move {
                for number in (worker..REQUESTS).step_by(12) {
                    charge(&ledger, account, number).await;
                    ended.fetch_add(1, Ordering::SeqCst);
                }
            };
            tasks.spawn_on(work, runtime.handle());
        }
        let all = REQUESTS as usize;
        eventually("half of them have ended", || {
            ended.load(Ordering::SeqCst) > all / 2
        });
        let before = errors.count();
        errors.raise("53100");
        eventually("each node has met the full disk", || {
            errors.count() > before + 12
        });
        errors.stop();
        runtime.block_on(tasks.join_all());
        assert_eq!(ended.load(Ordering::SeqCst), all);
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
