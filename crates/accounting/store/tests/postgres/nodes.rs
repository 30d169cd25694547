//! Several nodes: commits that lose their connection, and nodes that write the same rows at once.

use std::sync::Arc;
use std::time::Duration;

use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, OperationId, SpendingCap};
use tollgate_store::entries::LedgerPart;
use tollgate_store::postgres::{self, DatabaseUrl, NodeRole, Options};
use tollgate_store::{
    Admission, AllotmentPart, Answer, Budget, CommitError, CredentialKind, EntryKind, KeyCap,
    NewCredential, OpenError, Part, Receipt, Refusal, RootSecret, Store, TakeResult, UnitOfWork,
};
use tollgate_testing::Postgres;

use super::commit::Blocker;
use super::feed::await_number;
use super::open::is_waiting;
use super::proxy::{Cut, Proxy};
use super::sent::{records, submit, until};
use super::suite::support::{account, new_account, time, write};

/// The statements of a commit that takes a part of a cap.
const CAP_STATEMENTS: [&str; 7] = [
    "BEGIN",
    "UPDATE node_marks\n    SET commits = CASE WHEN",
    "SELECT number FROM cluster",
    "SELECT node_id, granted, spent FROM cap_allotments",
    "UPDATE cap_allotments SET recall",
    "UPDATE cap_allotments SET granted",
    "COMMIT",
];

/// The statements of a commit that takes credit, up to the start of each.
const STATEMENTS: [&str; 8] = [
    "BEGIN",
    "UPDATE node_marks\n    SET commits = CASE WHEN",
    "SELECT number FROM cluster",
    "INSERT INTO allotments",
    "WITH v (id, moved)",
    "WITH f AS (SELECT 1 FROM nodes WHERE id = $1 AND epoch = $2 FOR SHARE),",
    "UPDATE node_marks\n    SET commits = (SELECT CAST($2",
    "COMMIT",
];

fn options(url: &str, name: &str, role: NodeRole) -> Options {
    let url = DatabaseUrl::parse(url).expect("an address");
    Options {
        node_name: name.to_owned(),
        role,
        ..Options::new(url, time(1), RootSecret([7; 32]))
    }
}

pub(super) fn node(url: &str, name: &str) -> Arc<dyn Store> {
    postgres::open(options(url, name, NodeRole::OneOfMany)).expect("the store opens")
}

pub(super) fn numbered(number: u64) -> OperationId {
    OperationId::from_parts(number, [3; 10])
}

pub(super) fn take(number: u64, amount: i64) -> Part {
    Part::Allotment(AllotmentPart::Take {
        operation: numbered(number),
        budget: Budget::Account(account(1)),
        need: Micros::new(amount),
        target: Micros::new(amount),
        is_owed: false,
        at: time(2),
    })
}

pub(super) fn give(number: u64, amount: i64) -> Part {
    Part::Allotment(AllotmentPart::Return {
        operation: numbered(number),
        budget: Budget::Account(account(1)),
        amount: Micros::new(amount),
        answer: Answer::None,
        at: time(2),
    })
}

/// Gives back all that the node has.
fn give_all(number: u64, amount: i64) -> Part {
    Part::Allotment(AllotmentPart::Return {
        operation: numbered(number),
        budget: Budget::Account(account(1)),
        amount: Micros::new(amount),
        answer: Answer::Nothing,
        at: time(2),
    })
}

pub(super) fn grant(number: u64, reference: &str, amount: i64) -> Part {
    Part::Ledger(LedgerPart::Credit {
        operation: numbered(number),
        account: account(1),
        kind: EntryKind::Grant,
        amount: Micros::new(amount),
        reference: Arc::from(reference),
        at: time(2),
    })
}

/// An account with a shared balance.
pub(super) fn shared_account(database: &str, balance: i64) {
    let url = Postgres::shared().url(database);
    let first = node(&url, "first");
    write(&first, [new_account(1)]).expect("an account");
    write(&first, [grant(1, "first", balance)]).expect("credit");
    write(&first, [give(2, balance)]).expect("it is shared");
    first.close();
}

pub(super) fn shared(database: &str) -> i64 {
    let sql = "SELECT available FROM accounts";
    let found = Postgres::shared().run(database, sql);
    found.parse().expect("a number")
}

pub(super) fn total(store: &Arc<dyn Store>) -> i64 {
    let row = store.account(account(1)).expect("a read");
    row.expect("it is there").available.get()
}

pub(super) fn assert_posted(store: &Arc<dyn Store>) {
    let snapshot = store.snapshot().expect("a snapshot");
    let mut wrong = Vec::new();
    snapshot
        .posting_differences(&mut |account| wrong.push(account))
        .expect("a comparison");
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn releases_that_know_of_one_node_only_are_kept_out_once_there_were_several() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name");
    let compatible = || {
        let sql = "SELECT v FROM meta WHERE k = 'compatible'";
        Postgres::shared().run(database, sql)
    };
    let url = DatabaseUrl::parse(&direct).expect("an address");
    let alone = || Options::new(url.clone(), time(1), RootSecret([7; 32]));
    postgres::open(alone()).expect("the store opens").close();
    assert_eq!(compatible(), "12");
    node(&direct, "a").close();
    assert_eq!(compatible(), "17");
    postgres::open(alone()).expect("the store opens").close();
    assert_eq!(
        compatible(),
        "17",
        "the journals of the nodes are still there"
    );
}

/// They are written together, at the end of the commit or before something that reads them.
#[test]
fn moves_of_one_commit_count_in_their_order() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name");
    shared_account(database, 100);
    let a = node(&direct, "a");
    let is_open = || {
        let sql = "SELECT recall FROM allotments JOIN nodes ON nodes.id = node_id WHERE name = 'a'";
        let recall: i64 = Postgres::shared()
            .run(database, sql)
            .parse()
            .expect("one row");
        recall != i64::MAX
    };
    for (parts, left, open) in [
        (vec![take(10, 30), give_all(11, 30), take(12, 5)], 95, true),
        (vec![take(13, 6), give_all(14, 11)], 100, false),
        (vec![take(15, 60), take(16, 40), give(17, 100)], 100, true),
        (
            vec![give_all(18, 0), take(19, 1), give_all(20, 1)],
            100,
            false,
        ),
    ] {
        write(&a, parts).expect("it fits");
        assert_eq!((shared(database), is_open()), (left, open));
    }
    // What one take of a commit has, the next does not.
    let short = write(&a, [take(21, 60), take(22, 41)]).expect("it is decided");
    assert!(
        matches!(short.taken, Some(TakeResult::Amount { .. })),
        "{short:?}"
    );
    assert_eq!(shared(database), 40);
    write(&a, [give_all(23, 60)]).expect("it is returned");
    // A unit that is refused leaves nothing of its moves, and those of the next count.
    let refused = write(&a, [take(24, 50), take(24, 1)]).expect_err("one operation twice");
    assert!(
        matches!(refused, Refusal::OperationExists(_)),
        "{refused:?}"
    );
    assert_eq!(shared(database), 100);
    assert_eq!(total(&a), 100);
    assert_posted(&a);
    a.close();
}

/// Other nodes wait meanwhile.
#[test]
fn what_nodes_share_is_locked_for_two_round_trips() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name").to_owned();
    shared_account(&database, 100);
    let proxy = Proxy::start(Postgres::shared().folder());
    let store = node(&proxy.url(&database), "a");
    let waits = |part: Part| {
        write(&store, [part]).expect("it is durable");
        proxy.waits_with_lock()
    };
    // The first of each prepare their statements.
    waits(take(10, 1));
    waits(give(11, 1));
    assert_eq!(
        waits(take(12, 1)),
        2,
        "for what is shared, for the commit with its writes"
    );
    assert_eq!(waits(give(13, 1)), 1, "for the commit with its writes");
    store.close();
    assert_eq!(shared(&database), 100);
}

/// There are hundreds at once, and requests at all nodes would wait for each other's.
#[test]
fn refused_requests_and_uses_of_keys_are_recorded_while_another_node_has_locked_what_nodes_share() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name").to_owned();
    shared_account(&database, 100);
    let store = node(&direct, "a");
    write(&store, [capped_key(10)]).expect("a key");
    let lock = "DO 'BEGIN PERFORM number FROM cluster WHERE id = 1 FOR UPDATE; END'";
    let mut other = Blocker::lock(&database, lock);
    for part in records() {
        let answer = submit(&store, part).recv_timeout(Duration::from_secs(240));
        assert!(matches!(answer, Ok(Ok(_))), "{answer:?}");
    }
    let recorded = "SELECT used_at, requests FROM credentials, refusals";
    let at = time(5).as_micros();
    assert_eq!(
        Postgres::shared().run(&database, recorded),
        format!("{at}|3")
    );
    other.release();
    store.close();
}

/// Its rows are those of thousands of accounts, and no other node waits while they are written.
#[test]
fn a_posting_locks_what_nodes_share_after_its_rows_are_written() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name").to_owned();
    shared_account(&database, 100);
    let store = node(&direct, "a");
    write(&store, [take(10, 10)]).expect("it is durable");
    let lock = "DO 'BEGIN PERFORM number FROM cluster WHERE id = 1 FOR UPDATE; END'";
    let mut other = Blocker::lock(&database, lock);
    let closing = std::thread::spawn(move || store.close());
    let written_and_waits = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
        WHERE l.relation = 'allotments'::regclass AND l.mode = 'RowExclusiveLock' AND a.wait_event_type = 'Lock'";
    await_number(&database, written_and_waits, 1);
    let posted = "SELECT count(*) FROM allotments WHERE available > 0";
    assert_eq!(
        Postgres::shared().run(&database, posted),
        "0",
        "it is not visible yet"
    );
    other.release();
    closing.join().expect("no panic");
    assert_eq!(Postgres::shared().run(&database, posted), "1");
}

/// A commit that moves credit or a part of a cap waits for a lock that a session may hold.
const SLOW_COMMIT: &str = "
    CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER wait AFTER UPDATE ON accounts DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait();
    CREATE CONSTRAINT TRIGGER wait AFTER INSERT OR UPDATE ON cap_allotments DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait()";

/// A node whose connections can be cut.
struct Linked {
    database: String,
    proxy: Proxy,
    store: Arc<dyn Store>,
}

impl Linked {
    /// One with a shared account that has this credit.
    fn with(balance: i64) -> Linked {
        let server = Postgres::shared();
        let direct = server.database();
        let database = direct.rsplit('/').next().expect("a name").to_owned();
        shared_account(&database, balance);
        server.run(&database, SLOW_COMMIT);
        let proxy = Proxy::start(server.folder());
        let store = node(&proxy.url(&database), "a");
        Linked {
            database,
            proxy,
            store,
        }
    }

    /// Writes a unit whose connection is cut at a statement.
    fn write(&self, parts: Vec<Part>, statement: &str, cut: Cut) -> Receipt {
        let what = format!("{statement} {cut:?}");
        let before = self.proxy.cuts();
        self.proxy.cut_at(statement, cut);
        let written = match cut {
            Cut::During => self.write_during(parts, statement),
            _ => write(&self.store, parts),
        };
        assert_eq!(self.proxy.cuts(), before + 1, "{what}");
        written.unwrap_or_else(|error| panic!("{what}: {error:?}"))
    }

    /// The server keeps the transaction open, or its `COMMIT` waits, until the next attempt waits for the row of the node, which the fence has locked.
    fn write_during(&self, parts: Vec<Part>, statement: &str) -> Result<Receipt, Refusal> {
        let server = Postgres::shared();
        let events = match statement {
            // Nothing is locked yet, so the next attempt comes as far as its own `COMMIT`.
            "BEGIN" => "'transactionid', 'tuple', 'advisory'",
            _ => "'transactionid', 'tuple'",
        };
        let waiting = format!(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event IN ({events})"
        );
        std::thread::scope(|scope| {
            let lock = "DO 'BEGIN PERFORM pg_advisory_lock(1); END'";
            let mut blocker = Blocker::lock(&self.database, lock);
            let writing = scope.spawn(|| write(&self.store, parts));
            until(
                &format!("{statement}: the next attempt does not wait"),
                || server.run(&self.database, &waiting) == "t",
            );
            blocker.release();
            self.proxy.end_kept();
            writing.join().expect("no panic")
        })
    }
}

#[test]
fn a_take_whose_connection_is_cut_at_any_statement_takes_once() {
    let linked = Linked::with(1_000);
    let (database, store) = (&linked.database, &linked.store);
    let mut left = 1_000;
    let mut number = 10;
    for cut in [Cut::Before, Cut::During, Cut::After] {
        for statement in STATEMENTS {
            let what = format!("{statement} {cut:?}");
            let receipt = linked.write(vec![take(number, 7)], statement, cut);
            left -= 7;
            assert!(
                matches!(receipt.taken, Some(TakeResult::Amount { amount, .. }) if amount == Micros::new(7)),
                "{what}: {receipt:?}"
            );
            assert_eq!(shared(database), left, "{what}");
            if statement != "INSERT INTO allotments" {
                linked.write(vec![give(number + 1, 3)], statement, cut);
                left += 3;
                assert_eq!(shared(database), left, "{what}, returned");
            }
            assert_eq!(total(store), 1_000, "{what}");
            number += 2;
        }
    }
    write(store, [give(number, 1_000 - left)]).expect("all of it");
    assert_eq!(shared(database), 1_000);
    assert_posted(store);
    store.close();
    let again = node(&Postgres::shared().url(database), "a");
    assert_eq!(total(&again), 1_000);
    let mut rows = Vec::new();
    again
        .allotments(again.node(), &mut |row| rows.push(row))
        .expect("a read");
    assert!(rows.is_empty(), "{rows:?}");
    assert_posted(&again);
}

/// A unit of several parts has a savepoint, which is lost with the connection.
#[test]
fn a_unit_whose_connection_is_cut_at_any_statement_is_written_once() {
    const ROUNDS: i64 = 3 * (STATEMENTS.len() as i64 + 2);
    let linked = Linked::with(7 * ROUNDS);
    let (mut number, mut taken) = (10, 0);
    for cut in [Cut::Before, Cut::During, Cut::After] {
        for statement in STATEMENTS.into_iter().chain(["SAVEPOINT", "RELEASE"]) {
            let what = format!("{statement} {cut:?}");
            let unit = vec![take(number, 3), take(number + 1, 4)];
            linked.write(unit, statement, cut);
            number += 2;
            taken += 7;
            assert_eq!(shared(&linked.database), 7 * ROUNDS - taken, "{what}");
            assert_eq!(total(&linked.store), 7 * ROUNDS, "{what}");
        }
    }
    assert_posted(&linked.store);
}

fn of_cap() -> KeyCap {
    KeyCap::of(credential(), CapPeriod::Month, numbered(1))
}

pub(super) fn take_of_cap(number: u64, amount: i64) -> Part {
    Part::Allotment(AllotmentPart::Take {
        operation: numbered(number),
        budget: Budget::Cap(of_cap()),
        need: Micros::new(amount),
        target: Micros::new(amount),
        is_owed: false,
        at: time(2),
    })
}

fn give_of_cap(number: u64, amount: i64) -> Part {
    Part::Allotment(AllotmentPart::Return {
        operation: numbered(number),
        budget: Budget::Cap(of_cap()),
        amount: Micros::new(amount),
        answer: Answer::None,
        at: time(2),
    })
}

pub(super) fn credential() -> CredentialId {
    CredentialId::from_bytes([9; 16])
}

/// A key whose requests may cost so much in a month.
pub(super) fn capped_key(max: i64) -> Part {
    numbered_key(9, account(1), max)
}

/// The same of another number and account.
pub(super) fn numbered_key(number: u8, account: AccountId, max: i64) -> Part {
    Part::InsertCredential(Box::new(NewCredential {
        id: CredentialId::from_bytes([number; 16]),
        hash: [number; 32],
        kind: CredentialKind::ApiKey,
        account,
        client_id: None,
        grant_id: None,
        resource: 1,
        scopes: 1,
        label: None,
        hint: None,
        models: None,
        spending_cap: Some(SpendingCap {
            max: Micros::new(max),
            period: CapPeriod::Month,
        }),
        created_at: time(1),
        expires_at: None,
    }))
}

/// What the nodes were granted of the cap together.
fn granted(database: &str) -> i64 {
    let sql = "SELECT coalesce(sum(granted), 0) FROM cap_allotments";
    let found = Postgres::shared().run(database, sql);
    found.parse().expect("a number")
}

#[test]
fn a_take_of_a_cap_whose_connection_is_cut_at_any_statement_takes_once() {
    let linked = Linked::with(1_000);
    let (database, store) = (&linked.database, &linked.store);
    write(store, [capped_key(1_000)]).expect("a key");
    let mut taken = 0;
    let mut number = 10;
    let mut cut = |statement: &str, cut, part: fn(u64, i64) -> Part, by: i64| {
        number += 1;
        linked.write(vec![part(number, 7)], statement, cut);
        taken += by;
        assert_eq!(granted(database), taken, "{statement} {cut:?}");
    };
    // The first makes the rows of the cap.
    cut("INSERT INTO cap_allotments", Cut::After, take_of_cap, 7);
    for when in [Cut::Before, Cut::During, Cut::After] {
        for statement in CAP_STATEMENTS {
            cut(statement, when, take_of_cap, 7);
            if statement != "UPDATE cap_allotments SET recall"
                && !statement.starts_with("SELECT node_id")
            {
                cut(statement, when, give_of_cap, -7);
                cut(statement, when, take_of_cap, 7);
            }
        }
    }
    let left = 1_000 - granted(database);
    let short = write(store, [take_of_cap(1_000, left + 1)]).expect("it is decided");
    assert!(
        matches!(short.taken, Some(TakeResult::Short { spendable, .. }) if spendable == Micros::new(left)),
        "{short:?}"
    );
    write(store, [take_of_cap(1_001, left)]).expect("all of it");
    assert_eq!(granted(database), 1_000);
}

/// A paused node that was recovered meanwhile returns nothing of what the recovery has returned for it.
#[test]
fn a_return_of_a_cap_in_an_epoch_that_is_over_changes_nothing() {
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name").to_owned();
    shared_account(&database, 1_000);
    let a = node(&direct, "a");
    write(&a, [capped_key(1_000)]).expect("a key");
    write(&a, [take_of_cap(10, 300)]).expect("it is decided");
    let number = a.node();
    let sql = format!("UPDATE nodes SET epoch = epoch + 1 WHERE id = {number}");
    Postgres::shared().run(&database, &sql);
    let unit = UnitOfWork::of(give_of_cap(11, 100), Admission::Always);
    let (sender, wait) = std::sync::mpsc::channel();
    let done = Box::new(move |result: Result<_, CommitError>| {
        sender.send(result.is_err()).expect("the test waits");
    });
    a.submit(unit, done).expect("the queue is open");
    assert!(wait.recv().expect("an answer"), "it is fenced");
    assert_eq!(granted(&database), 300);
}

/// The other node takes between the loss of a commit and its repetition: what the commit has read is not there any more.
#[test]
fn a_commit_that_is_made_again_is_decided_on_what_other_nodes_have_written() {
    const CREDIT: i64 = 10;
    let server = Postgres::shared();
    let direct = server.database();
    let database = direct.rsplit('/').next().expect("a name").to_owned();
    shared_account(&database, CREDIT);
    let proxy = Proxy::start(server.folder());
    let (a, b) = (node(&proxy.url(&database), "a"), node(&direct, "b"));
    let is_taken = |store: &Arc<dyn Store>, number, amount| {
        let receipt = write(store, [take(number, amount)]).expect("it is decided");
        matches!(receipt.taken, Some(TakeResult::Amount { .. }))
    };
    let statements = ["WITH v (id, moved)", "COMMIT"];
    let mut overtaken = 0;
    for (round, statement) in statements.into_iter().cycle().take(8).enumerate() {
        let number = 1_000 * (1 + round as u64);
        proxy.cut_at(statement, Cut::Before);
        let cuts = proxy.cuts();
        let (all, one) = std::thread::scope(|scope| {
            let all = scope.spawn(|| is_taken(&a, number, CREDIT));
            while proxy.cuts() == cuts {
                std::thread::yield_now();
            }
            let one = is_taken(&b, number + 1, 1);
            (all.join().expect("no panic"), one)
        });
        assert!(all != one, "{statement}: one of them has it");
        overtaken += usize::from(one);
        let left = if one { CREDIT - 1 } else { 0 };
        assert_eq!(shared(&database), left, "{statement}");
        match one {
            true => write(&b, [give(number + 2, 1)]),
            false => write(&a, [give(number + 2, CREDIT)]),
        }
        .expect("it is returned");
    }
    assert!(overtaken > 0, "the other node was never in between");
    assert_eq!(shared(&database), CREDIT);
    assert_eq!(total(&a), CREDIT);
    assert_posted(&b);
}

#[test]
fn a_reference_that_two_nodes_book_at_once_is_booked_once() {
    const REFERENCES: u64 = 40;
    let direct = Postgres::shared().database();
    let database = direct.rsplit('/').next().expect("a name").to_owned();
    shared_account(&database, 1);
    let (a, b) = (node(&direct, "a"), node(&direct, "b"));
    let book = |store: &Arc<dyn Store>, from: u64| {
        let book = |number| {
            let part = grant(from + number, &format!("reference {number}"), 5);
            let receipt = write(store, [part]).expect("it is booked, or known");
            u64::from(receipt.repeated.is_none())
        };
        (0..REFERENCES).map(book).sum::<u64>()
    };
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| book(&a, 10_000));
        let two = scope.spawn(|| book(&b, 20_000));
        (one.join().expect("no panic"), two.join().expect("no panic"))
    });
    assert_eq!(one + two, REFERENCES, "{one} and {two}");
    let expected = 1 + 5 * REFERENCES as i64;
    assert_eq!((total(&a), total(&b)), (expected, expected));
    assert_posted(&a);
}

/// In an upgrade the lease was removed, and a node without one counts as ended: until the next process had it, another node could release the
/// holds of every open request. The lease is ended now, so that others leave the node alone for a minute.
#[test]
fn a_node_that_is_handed_over_is_taken_at_once_by_its_next_run_and_by_no_recovery() {
    let url = Postgres::shared().database();
    let database = url.rsplit('/').next().expect("a name");
    shared_account(database, 100);
    let a = node(&url, "a");
    write(&a, [take(10, 60)]).expect("credit");
    let lease = || {
        let options = Options::new(
            DatabaseUrl::parse(&url).expect("an address"),
            time(1),
            RootSecret([7; 32]),
        );
        let nodes = postgres::nodes(&options).expect("they can be read");
        let found = nodes.into_iter().find(|node| node.name == "a");
        let found = found.expect("it is there");
        assert!(!found.has_nothing_left, "it has credit");
        found.lease
    };
    let handover = a.hand_over().expect("it is open");
    let ended = lease().expect("it has a lease");
    assert!(ended.is_over(), "its next run waits for nothing: {ended:?}");
    assert!(!ended.may_be_recovered(), "{ended:?}");
    let next = node(&url, "a");
    assert_eq!((next.node(), next.epoch()), (a.node(), a.epoch() + 1));
    let taken = lease().expect("it has a lease");
    assert!(!taken.is_over(), "{taken:?}");
    drop(handover);
    a.close();
    assert!(
        lease().is_some_and(|it| !it.is_over()),
        "that of the next run"
    );
    next.close();
    assert_eq!(lease(), None);
}

/// The recovery of a node that stood still found its lease over, waited for a commit of the node, and took the lease that the node had renewed
/// meanwhile.
#[test]
fn a_node_that_goes_on_while_its_recovery_waits_for_a_commit_is_not_recovered() {
    let server = Postgres::shared();
    let url = server.database();
    let database = url.rsplit('/').next().expect("a name");
    shared_account(database, 100);
    let with_lease = |lease, role| {
        let mut options = options(&url, "a", role);
        options.outage.lease = lease;
        postgres::open(options)
    };
    // So long that it is renewed here alone.
    let a = with_lease(Duration::from_secs(3_600), NodeRole::OneOfMany).expect("it opens");
    write(&a, [take(10, 60)]).expect("credit");
    let renew = |until: &str| {
        let sql = format!(
            "UPDATE leases SET held_until = {until} WHERE node = {}",
            a.node()
        );
        server.run(database, &sql);
    };
    let mut commit = Blocker::lock(database, "LOCK TABLE nodes IN SHARE MODE");
    renew("0");
    std::thread::scope(|scope| {
        let recovery = NodeRole::Recovery(a.node());
        let recovery = scope.spawn(move || with_lease(Duration::from_millis(1), recovery));
        until("it waits for no commit", || {
            is_waiting(database, "INSERT INTO nodes")
        });
        renew("(EXTRACT(EPOCH FROM clock_timestamp()) + 3600) * 1000000");
        commit.release();
        match recovery.join().expect("no panic") {
            Err(OpenError::InUse { remedy, .. }) => {
                assert_eq!(remedy, "the node runs: stop it first, or leave it");
            }
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it is recovered"),
        }
    });
    write(&a, [take(11, 10)]).expect("it goes on");
    a.close();
    assert_eq!(shared(database), 30);
}
