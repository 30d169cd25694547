//! Connections whose other end is gone without a sign: an address that has moved to another server, a firewall that has forgotten them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tollgate_store::{ChangeRow, Effect, Observer, Part, ReadError, Store};
use tollgate_testing::Postgres;

use super::nodes::node;
use super::proxy::Proxy;
use super::suite::support::{account, new_account, write};

/// Reads an account for each change, as the ledger does.
struct Reader {
    store: Arc<dyn Store>,
    read: SyncSender<bool>,
}

impl Observer for Reader {
    fn committed(&self, _: &Part, _: Effect) {}

    fn changed(&self, _: &ChangeRow) -> Result<(), ReadError> {
        let row = self.store.account(account(1))?;
        let _ = self.read.send(row.is_some());
        Ok(())
    }
}

fn follow(store: &Arc<dyn Store>) -> Receiver<bool> {
    let (sender, read) = sync_channel(8);
    store.observe(Arc::new(Reader {
        store: store.clone(),
        read: sender,
    }));
    store.follow_changes();
    read
}

/// Observers read by the pool in the thread of the feed. Each silent connection of it cost the time limit of a read, 30 s, and the node answered
/// no request with a key meanwhile.
#[test]
fn a_node_whose_idle_connections_are_silent_follows_the_feed_after_one_short_wait() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name");
    let other = node(&direct, "a");
    let proxy = Proxy::start(Postgres::shared().folder());
    let store = node(&proxy.url(database), "b");
    // Three connections at once, which are idle afterwards.
    let snapshots: Vec<_> = (0..3).map(|_| store.snapshot().expect("one")).collect();
    drop(snapshots);
    let read = follow(&store);
    proxy.silence_at("BEGIN ISOLATION LEVEL REPEATABLE READ");
    write(&other, [new_account(1)]).expect("an account");
    let found = read.recv_timeout(Duration::from_secs(20));
    assert_eq!(found, Ok(true), "read by a new connection");
    assert_eq!(proxy.cuts(), 1, "the other idle ones were not tried");
    assert!(store.failure().is_none());
}
