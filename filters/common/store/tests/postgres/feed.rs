//! What nodes learn of each other from the database: the feed of changes, and the settings of the others.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_store::postgres::{self, DatabaseUrl, Options};
use tollgate_store::{OtherSettings, Part, RootSecret, Store};
use tollgate_testing::Postgres;

use super::nodes::node;
use super::sent::until;
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

/// A node learns of the others with the renewal of its lease.
#[test]
fn nodes_know_which_of_them_have_other_settings_and_which_are_newer() {
    let url = Postgres::shared().database();
    let database = url.rsplit('/').next().expect("a name");
    let run = |sql: &str| Postgres::shared().run(database, sql);
    let other = |node: &str, are_newer| {
        vec![OtherSettings {
            node: node.to_owned(),
            are_newer,
        }]
    };
    // Each look asks the server.
    let becomes = |store: &Arc<dyn Store>, expected: Vec<OtherSettings>| {
        until("others are found", || {
            run("SELECT 1");
            store.other_settings() == expected
        });
    };
    let of_a = "SELECT epoch, digest, since FROM node_settings s WHERE EXISTS (SELECT 1 FROM nodes WHERE id = s.node_id AND name = 'a')";
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    a.record_settings("1-one");
    b.record_settings("1-one");
    until("both are recorded", || {
        run("SELECT count(*) FROM node_settings") == "2"
    });
    b.record_settings("1-two");
    becomes(&a, other("b", true));
    becomes(&b, other("a", false));

    let before = run(of_a);
    a.close();
    becomes(&b, vec![]);
    // It starts again with the settings that it had, which are no newer by that.
    let again = node(&url, "a");
    again.record_settings("1-one");
    becomes(&b, other("a", false));
    let after = run(of_a);
    let parts = |row: &str| {
        row.split_once('|')
            .map(|(epoch, rest)| (epoch.to_owned(), rest.to_owned()))
    };
    let (earlier, before) = parts(&before).expect("a row");
    let (later, after) = parts(&after).expect("a row");
    assert_ne!(earlier, later);
    assert_eq!(before, after, "since when it has had them");

    // As where it was started as an earlier release, which records nothing.
    run("UPDATE node_settings SET epoch = epoch - 1 WHERE digest = '1-one'");
    becomes(&b, vec![]);
    again.record_settings("1-two");
    until("it has those of the other", || {
        run("SELECT count(*) FROM node_settings WHERE digest = '1-two'") == "2"
    });
    becomes(&again, vec![]);
    becomes(&b, vec![]);
    again.close();
    b.close();
}
