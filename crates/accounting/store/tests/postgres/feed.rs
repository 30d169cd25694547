//! The feed of changes: what nodes learn of each other from the database.

use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_store::postgres::{self, DatabaseUrl, Options};
use tollgate_store::{Part, RootSecret};
use tollgate_testing::Postgres;

use super::nodes::node;
use super::suite::support::{new_account, time, write};

/// Readers have one cursor: a change with a smaller number never appears after one with a greater.
#[test]
fn changes_of_all_nodes_have_numbers_in_the_order_of_their_commits() {
    let direct = Postgres::shared().database();
    let (a, b) = (node(&direct, "a"), node(&direct, "b"));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut last = 0;
            let mut seen = 0;
            while seen < 100 {
                let sql = format!(
                    "SELECT coalesce(string_agg(number::text, ',' ORDER BY number), '') FROM changes WHERE number > {last}"
                );
                let database = direct.rsplit('/').next().expect("a name");
                let found = Postgres::shared().run(database, &sql);
                for number in found.split(',').filter(|number| !number.is_empty()) {
                    let number: i64 = number.parse().expect("a number");
                    assert_eq!(number, last + 1, "none was missing when it was read");
                    last = number;
                    seen += 1;
                }
            }
        });
        for (store, from) in [(&a, 1), (&b, 101)] {
            scope.spawn(move || {
                for number in from..from + 50 {
                    write(store, [new_account(number)]).expect("an account");
                }
            });
        }
        reading.join().expect("no panic");
    });
}

/// For how long a lease or a feed is waited for.
const WAIT: Duration = Duration::from_secs(30);

/// A number that a query has, once it is what is expected.
pub(super) fn await_number(database: &str, sql: &str, expected: i64) {
    let clock = Clock::system();
    let limit = clock.elapsed() + WAIT;
    loop {
        let found: i64 = Postgres::shared()
            .run(database, sql)
            .parse()
            .expect("a number");
        if found == expected {
            return;
        }
        assert!(clock.elapsed() < limit, "{sql}: {found}, not {expected}");
    }
}

#[test]
fn a_change_is_removed_once_every_node_has_read_it() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name");
    let (a, b) = (node(&direct, "a"), node(&direct, "b"));
    let changes = "SELECT count(*) FROM changes";
    let all_have_read =
        "SELECT count(*) FROM leases l, cluster c WHERE l.node >= 16 AND l.feed = c.number";
    a.follow_changes();
    for number in 1..=10 {
        write(&a, [new_account(number)]).expect("an account");
    }
    await_number(database, all_have_read, 1);
    write(&a, [Part::PruneChanges]).expect("what the other node needs stays");
    await_number(database, changes, 10);
    b.follow_changes();
    await_number(database, all_have_read, 2);
    write(&b, [Part::PruneChanges]).expect("both have read them");
    await_number(database, changes, 0);
    // One that starts needs none of them, and the feed goes on.
    let c = node(&direct, "c");
    c.follow_changes();
    write(&b, [new_account(11)]).expect("an account");
    await_number(database, all_have_read, 3);
    for store in [&a, &b, &c] {
        assert!(store.failure().is_none());
    }
}

/// Also where all changes are removed, so that it finds none.
#[test]
fn a_node_that_has_not_read_a_removed_change_stops() {
    for later in [0, 1] {
        let direct = Postgres::shared().database();
        let database = direct.rsplit('/').next().expect("a name");
        let (a, b) = (node(&direct, "a"), node(&direct, "b"));
        write(&a, [new_account(1)]).expect("an account");
        let removed = "DELETE FROM changes; UPDATE cluster SET pruned = number";
        Postgres::shared().run(database, removed);
        for number in 0..later {
            write(&a, [new_account(2 + number)]).expect("an account");
        }
        b.follow_changes();
        let clock = Clock::system();
        let limit = clock.elapsed() + WAIT;
        while b.failure().is_none() {
            assert!(clock.elapsed() < limit, "with {later} later changes");
            std::thread::yield_now();
        }
    }
}

/// After a failover to a standby that lacked the last commits. Changes that came then had the numbers of those, and it read none of them.
#[test]
fn a_node_that_has_read_changes_which_the_database_lacks_stops() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name");
    let a = node(&direct, "a");
    write(&a, [new_account(1)]).expect("an account");
    let b = node(&direct, "b");
    let lost = "DELETE FROM changes; UPDATE cluster SET number = number - 1";
    Postgres::shared().run(database, lost);
    b.follow_changes();
    let clock = Clock::system();
    let limit = clock.elapsed() + WAIT;
    while b.failure().is_none() {
        assert!(clock.elapsed() < limit, "it goes on");
        std::thread::yield_now();
    }
}

#[test]
fn a_gateway_that_is_alone_writes_no_changes() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name");
    let url = DatabaseUrl::parse(&direct).expect("an address");
    let store = postgres::open(Options::new(url, time(1), RootSecret([7; 32])));
    let store = store.expect("the store opens");
    write(&store, [new_account(1)]).expect("an account");
    await_number(database, "SELECT count(*) FROM changes", 0);
    assert!(store.size().expect("a size").bytes > 1_000_000);
}
