//! Connections whose other end is gone without a sign: an address that has moved to another server, a firewall that has forgotten them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_store::{ChangeRow, Effect, Observer, Part, ReadError, Store};
use tollgate_testing::Postgres;

use super::nodes::{assert_posted, node, shared, shared_account, take, total};
use super::proxy::Proxy;
use super::sent::{submit, until};
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
    let found = read.recv_timeout(Duration::from_secs(240));
    assert_eq!(found, Ok(true), "read by a new connection");
    assert_eq!(proxy.cuts(), 1, "the other idle ones were not tried");
    assert!(store.failure().is_none());
}

/// What a take sends first when it has the answer of the database.
const ROW: &str = "WITH f AS (SELECT 1 FROM nodes WHERE id = $1 AND epoch = $2 FOR SHARE),";

/// How many connections have locked what nodes share.
const HAS_LOCKED: &str = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
    WHERE datname = current_database() AND relation = 'cluster'::regclass AND mode = 'RowShareLock'";

/// Longer than the server waits, and much shorter than the 30 seconds for which a node waits for an answer.
const FREED_WITHIN: Duration = Duration::from_secs(15);

/// A take locks the row that all nodes share. Its node is paused before it commits, or its network is gone: the server ends the transaction when it
/// has been idle for `IDLE_MAX`, 5 s, long before the node itself gives its connection up.
#[test]
fn a_node_that_falls_silent_inside_a_take_delays_others_until_the_server_ends_its_transaction() {
    const CREDIT: i64 = 100;
    let server = Postgres::shared();
    let direct = server.database();
    let database = direct.rsplit('/').next().expect("a name");
    shared_account(database, CREDIT);
    let proxy = Proxy::start(server.folder());
    let (a, b) = (node(&proxy.url(database), "a"), node(&direct, "b"));
    // Its statements are prepared: what is sent after the answer to the take is one message.
    write(&a, [take(10, 1)]).expect("credit");
    let clock = Clock::system();
    proxy.silence_at(ROW);
    let silent = submit(&a, take(11, 60));
    until("the take is not under way", || {
        server.run(database, HAS_LOCKED) == "1"
    });
    let began = clock.elapsed();
    write(&b, [take(12, 30)]).expect("the other node takes");
    let waited = clock.elapsed() - began;
    assert!(waited < FREED_WITHIN, "it waited for {waited:?}");
    let locked = server.run(database, HAS_LOCKED);
    assert_eq!(locked, "0", "the connection of the node is ended");
    assert_eq!(shared(database), CREDIT - 1 - 30, "the take has no effect");
    assert!(silent.try_recv().is_err(), "it is not decided");
    // The node finds that its connection is lost, and takes again.
    proxy.end_kept();
    assert!(matches!(silent.recv(), Ok(Ok(_))));
    assert_eq!(shared(database), CREDIT - 1 - 30 - 60);
    assert_eq!((total(&a), total(&b)), (CREDIT, CREDIT));
    assert_posted(&b);
}
