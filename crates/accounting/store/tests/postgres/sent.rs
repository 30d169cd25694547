//! Commits that are sent while those before them are not durable yet, and what becomes of them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use tollgate_money::{CredentialId, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Admission, CommitError, FailureKind, OAuthPart, Part, Receipt, RefusalRow, Store, UnitOfWork,
    postgres,
};
use tollgate_testing::Postgres;

use super::commit::{
    Blocker, assert_chained, available, behind_proxy_with, charge, grant, options,
};
use super::nodes::{capped_key, credential, take, take_of_cap};
use super::proxy::Cut;
use super::suite::support::{account, operation, time, write};

const ROW: &str =
    "WITH f AS (SELECT 1 FROM nodes WHERE id = $1 AND epoch = $2 FOR SHARE),\n        p AS";

pub(super) type Answer = Result<Receipt, CommitError>;

/// Queues a unit; receives its result.
pub(super) fn submit(store: &Arc<dyn Store>, part: Part) -> Receiver<Answer> {
    submit_all(store, [part])
}

/// The same with several parts.
pub(super) fn submit_all(
    store: &Arc<dyn Store>,
    parts: impl IntoIterator<Item = Part>,
) -> Receiver<Answer> {
    let (sender, answer) = channel();
    let unit = UnitOfWork::of_all(parts, Admission::Always);
    let done = Box::new(move |answer| _ = sender.send(answer));
    store.submit(unit, done).expect("an open queue");
    answer
}

/// Whether a statement of the store waits for a lock.
fn is_blocked(database: &str) -> bool {
    let sql = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    Postgres::shared().run(database, sql) == "t"
}

pub(super) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    // Each look is a program that asks the server.
    for _ in 0..1000 {
        if holds() {
            return;
        }
    }
    panic!("{what}");
}

/// Three commits of which the server can make none durable before `blocker` is released.
fn send_three(
    rows: &dyn Fn() -> usize,
    store: &Arc<dyn Store>,
    before_last: &dyn Fn(),
    database: &str,
) -> Vec<Receiver<Answer>> {
    let sent = rows();
    let mut answers = Vec::new();
    for number in 1..=3 {
        if number == 3 {
            before_last();
        }
        answers.push(submit(store, charge(operation(number), account(1))));
        until("the commit is not sent", || {
            is_blocked(database) && rows() >= sent + usize::from(number)
        });
    }
    let is_open = |answer: &Receiver<Answer>| answer.try_recv().is_err();
    assert!(answers.iter().all(is_open), "none is durable");
    answers
}

#[test]
fn commits_are_sent_without_a_wait_for_those_before_them_and_a_lost_connection_loses_and_doubles_none()
 {
    for cut in [None, Some(Cut::Before), Some(Cut::During), Some(Cut::After)] {
        let (proxy, store, database) = behind_proxy_with(&|_| {});
        let mut blocker = Blocker::lock(&database, "LOCK TABLE journal IN SHARE MODE");
        let connections = proxy.connections();
        let arm = || cut.into_iter().for_each(|cut| proxy.cut_at(ROW, cut));
        let answers = send_three(&|| proxy.rows(), &store, &arm, &database);
        blocker.release();
        for answer in answers {
            let answer = answer.recv().expect("an answer");
            assert_eq!(answer.ok(), Some(Receipt::default()), "{cut:?}");
        }
        assert_eq!(proxy.cuts(), usize::from(cut.is_some()), "{cut:?}");
        assert!(proxy.connections() - connections >= proxy.cuts());
        assert_eq!(available(&store), 97, "{cut:?}");
        write(&store, [grant(9)]).expect("a transaction waits for them");
        assert_eq!(available(&store), 98, "{cut:?}");
        assert_chained(&store);
        store.close();
    }
}

/// A later run takes the node over while they are on their way.
#[test]
fn of_commits_that_were_sent_none_is_durable_after_one_that_is_fenced() {
    let (proxy, store, database) = behind_proxy_with(&|_| {});
    let server = Postgres::shared();
    let count = "SELECT count(*) FROM journal";
    let before = server.run(&database, count);
    let mut blocker = Blocker::lock(&database, "LOCK TABLE journal IN SHARE MODE");
    let answers = send_three(&|| proxy.rows(), &store, &|| {}, &database);
    server.run(&database, "UPDATE nodes SET epoch = epoch + 1");
    blocker.release();
    for answer in answers {
        match answer.recv().expect("an answer") {
            Err(CommitError::Stopped(failure)) => assert_eq!(failure.kind, FailureKind::Fenced),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.run(&database, count), before);
}

/// Posts after every commit.
fn posts_at_once(options: &mut postgres::Options) {
    options.post_records = 1;
}

const POSTED: &str = "SELECT posted = (SELECT max(id) FROM journal) FROM node_marks";

#[test]
fn a_posting_that_is_cut_anywhere_is_made_once() {
    for (cut, is_whole) in [
        (Cut::Before, true),
        (Cut::During, true),
        (Cut::After, true),
        (Cut::During, false),
    ] {
        for statement in [
            "UPDATE node_marks\n    SET commits = CASE WHEN",
            "INSERT INTO postings",
            "UPDATE node_marks SET posted",
            "COMMIT",
        ] {
            let (proxy, store, database) = behind_proxy_with(&posts_at_once);
            let server = Postgres::shared();
            let post = |number| {
                let part = charge(operation(number), account(1));
                write(&store, [part]).expect("it is durable");
                until("it is not posted", || server.run(&database, POSTED) == "t");
            };
            // The first prepares its statements, for which what was queued before each is sent.
            if !is_whole {
                until("it is not posted", || server.run(&database, POSTED) == "t");
                proxy.cut_at(statement, cut);
            }
            post(1);
            if is_whole {
                proxy.cut_at(statement, cut);
            }
            post(2);
            post(3);
            assert_eq!(proxy.cuts(), 1, "{statement} {cut:?}");
            assert_eq!(available(&store), 97, "{statement} {cut:?}");
            let pages = "SELECT count(*) FROM (SELECT DISTINCT account_id, id FROM postings) p";
            assert_eq!(server.run(&database, pages), "103", "{statement} {cut:?}");
            assert_chained(&store);
            store.close();
        }
    }
}

/// Which of several has taken effect would not be known.
#[test]
fn of_two_postings_that_are_due_at_once_each_is_made_once_after_a_lost_connection() {
    let (proxy, store, database) = behind_proxy_with(&posts_at_once);
    let server = Postgres::shared();
    write(&store, [charge(operation(1), account(1))]).expect("it is durable");
    until("it is not posted", || server.run(&database, POSTED) == "t");
    let mut blocker = Blocker::lock(&database, "LOCK TABLE journal IN SHARE MODE");
    let (rows, commits) = (proxy.rows(), proxy.commits());
    let first = submit(&store, charge(operation(2), account(1)));
    until("the posting is not sent", || {
        is_blocked(&database) && proxy.commits() > commits
    });
    proxy.cut_at("COMMIT", Cut::During);
    let second = submit(&store, charge(operation(3), account(1)));
    until("the commit is not sent", || {
        is_blocked(&database) && proxy.rows() >= rows + 2
    });
    // A second posting would be sent at once after it, and is made by the server when the look has ended.
    assert!(is_blocked(&database));
    blocker.release();
    for answer in [first, second] {
        let answer = answer.recv().expect("an answer");
        assert_eq!(answer.ok(), Some(Receipt::default()));
    }
    write(&store, [charge(operation(4), account(1))]).expect("it goes on");
    until("it is not posted", || server.run(&database, POSTED) == "t");
    assert_eq!(proxy.cuts(), 1);
    assert_eq!(available(&store), 96);
    assert_chained(&store);
    store.close();
}

#[test]
fn a_posting_of_a_run_whose_node_has_a_later_epoch_changes_nothing() {
    let (_proxy, store, database) = behind_proxy_with(&posts_at_once);
    let server = Postgres::shared();
    // Its statements are prepared, for which the server would be waited for.
    write(&store, [charge(operation(1), account(1))]).expect("it is durable");
    until("it is not posted", || server.run(&database, POSTED) == "t");
    let pages = "SELECT count(*) FROM postings";
    let before = server.run(&database, pages);
    // What the fence writes.
    let mut blocker = Blocker::lock(&database, "LOCK TABLE node_marks IN SHARE MODE");
    write(&store, [charge(operation(2), account(1))]).expect("it is durable");
    until("the posting does not wait", || is_blocked(&database));
    server.run(&database, "UPDATE nodes SET epoch = epoch + 1");
    blocker.release();
    let stopped = || store.failure().map(|failure| failure.kind);
    until("it has not stopped", || {
        server.run(&database, pages);
        stopped().is_some()
    });
    assert_eq!(stopped(), Some(FailureKind::Fenced));
    assert_eq!(server.run(&database, pages), before);
    assert_eq!(server.run(&database, POSTED), "f");
    let reader = postgres::open_read(&options(&server.url(&database))).expect("it opens");
    let row = reader
        .account(account(1))
        .expect("a read")
        .expect("it is there");
    assert_eq!(row.available.get(), 98, "a reader adds what is not posted");
}

/// The server goes on with what was sent behind a statement that fails while the connection lives: it posted a row that is not in the journal.
#[test]
fn a_posting_changes_nothing_when_the_row_that_was_sent_before_it_fails() {
    let (proxy, store, database) = behind_proxy_with(&posts_at_once);
    let server = Postgres::shared();
    // Its statements are prepared, for which the server would be waited for.
    write(&store, [charge(operation(1), account(1))]).expect("it is durable");
    until("it is not posted", || server.run(&database, POSTED) == "t");
    server.run(
        &database,
        "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION USING ERRCODE = ''XX000''; END';
         CREATE TRIGGER broken BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION broken()",
    );
    let mut blocker = Blocker::lock(&database, "LOCK TABLE journal IN SHARE MODE");
    let commits = proxy.commits();
    let answer = submit(&store, charge(operation(2), account(1)));
    until("the posting is not sent", || {
        is_blocked(&database) && proxy.commits() > commits
    });
    blocker.release();
    match answer.recv().expect("an answer") {
        Err(CommitError::Stopped(failure)) => assert_eq!(failure.kind, FailureKind::Io),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.run(&database, POSTED), "t");
    let reader = postgres::open_read(&options(&server.url(&database))).expect("it opens");
    let row = reader.account(account(1)).expect("a read");
    assert_eq!(row.expect("it is there").available.get(), 99);
}

/// A charge of the key whose spending is capped.
fn charge_of_key(number: u8) -> Part {
    // It began in the month of the cap.
    let operation = OperationId::from_parts(u64::from(number), [8; 10]);
    match charge(operation, account(1)) {
        Part::Ledger(LedgerPart::Charge {
            operation,
            account,
            charged,
            written_off,
            price_version,
            mut usage,
            at,
        }) => {
            usage.credential = Some(credential());
            Part::Ledger(LedgerPart::Charge {
                operation,
                account,
                charged,
                written_off,
                price_version,
                usage,
                at,
            })
        }
        other => panic!("{other:?}"),
    }
}

/// Also after a start, for which the row of the cap is there already.
#[test]
fn a_posting_at_one_of_several_nodes_counts_what_a_capped_key_was_charged_without_a_wait() {
    let one_of_many = |options: &mut postgres::Options| {
        options.node_name = "a".to_owned();
        options.role = postgres::NodeRole::OneOfMany;
        posts_at_once(options);
    };
    let (proxy, store, database) = behind_proxy_with(&one_of_many);
    let server = Postgres::shared();
    let posted_after = |answer: Receiver<Answer>| {
        let answer = answer.recv().expect("an answer");
        assert_eq!(answer.ok(), Some(Receipt::default()));
        until("it is not posted", || server.run(&database, POSTED) == "t");
        server.run(
            &database,
            "SELECT node_id, spent FROM cap_allotments ORDER BY node_id",
        )
    };
    write(&store, [capped_key(1_000)]).expect("a key");
    write(&store, [take(1_000, 50)]).expect("credit of this node");
    assert_eq!(posted_after(submit(&store, charge_of_key(1))), "", "no row");
    write(&store, [take_of_cap(1_001, 20)]).expect("a row of the cap");
    let node = store.node();
    let spent = |here: i64| format!("0|1\n{node}|{here}");
    // Its statements are prepared, for which the server is waited for.
    assert_eq!(posted_after(submit(&store, charge_of_key(2))), spent(1));
    let mut blocker = Blocker::lock(&database, "LOCK TABLE journal IN SHARE MODE");
    let commits = proxy.commits();
    let answer = submit(&store, charge_of_key(3));
    until("the posting is not sent", || {
        is_blocked(&database) && proxy.commits() > commits
    });
    blocker.release();
    assert_eq!(posted_after(answer), spent(2));
    store.close();
    let mut again = options(&proxy.url(&database));
    one_of_many(&mut again);
    let store = postgres::open(again).expect("it opens again");
    assert_eq!(posted_after(submit(&store, charge_of_key(4))), spent(3));
    assert_chained(&store);
    store.close();
}

/// Three refused requests of an account, whose row adds to what it counts, and the use of a key.
pub(super) fn records() -> [Part; 2] {
    let refused = RefusalRow {
        id: OperationId::from_parts(1, [8; 10]),
        account: account(1),
        credential: None,
        model: None,
        status: 402,
        code: Arc::from("insufficient_credit"),
        total_us: None,
        requests: 3,
        at: time(5),
    };
    let uses = vec![(CredentialId::from_bytes([9; 16]), time(5))];
    [
        Part::RecordRefusals(vec![refused]),
        Part::OAuth(Box::new(OAuthPart::NoteUses(uses))),
    ]
}

#[test]
fn records_that_are_cut_anywhere_are_made_once_and_commits_go_on_after_them() {
    let (proxy, store, database) = behind_proxy_with(&|_| {});
    let server = Postgres::shared();
    let refused = || {
        let found = server.run(&database, "SELECT coalesce(sum(requests), 0) FROM refusals");
        found.parse::<u64>().expect("a number")
    };
    // Their statements are prepared, for which what was queued before each is sent.
    write(&store, records()).expect("they are durable");
    let mut expected = refused();
    assert_eq!(expected, 3);
    for cut in [Cut::Before, Cut::During, Cut::After] {
        for statement in [
            "UPDATE node_marks\n    SET commits = CASE WHEN",
            "INSERT INTO refusals",
            "UPDATE credentials AS c",
            "COMMIT",
        ] {
            proxy.cut_at(statement, cut);
            let cuts = proxy.cuts();
            let mut answers = Vec::new();
            for part in records() {
                answers.push(submit(&store, part));
            }
            let number = u8::try_from(cuts).expect("a few") + 1;
            answers.push(submit(&store, charge(operation(number), account(1))));
            for answer in answers {
                let answer = answer.recv().expect("an answer");
                assert_eq!(answer.ok(), Some(Receipt::default()), "{statement} {cut:?}");
            }
            expected += 3;
            assert_eq!(proxy.cuts(), cuts + 1, "{statement} {cut:?}");
            assert_eq!(refused(), expected, "{statement} {cut:?}");
            assert_eq!(
                available(&store),
                100 - i64::from(number),
                "{statement} {cut:?}"
            );
        }
    }
    assert_chained(&store);
    store.close();
}

/// A deadlock with a node that revokes keys, for example. The row that follows is not prepared on a new connection.
#[test]
fn records_that_a_deadlock_has_ended_are_made_again_with_the_commits_after_them() {
    let (proxy, store, database) = behind_proxy_with(&|_| {});
    write(&store, [capped_key(10)]).expect("a key");
    let [refused, used] = records();
    write(&store, [charge(operation(1), account(1))]).expect("its balance is in memory");
    // The one that has waited for so long looks for a deadlock: the store, which waits first, also on a busy machine.
    let set = format!("ALTER DATABASE {database} SET deadlock_timeout = '3s'");
    Postgres::shared().run("postgres", &set);
    proxy.cut_at("COMMIT", Cut::Before);
    write(&store, [used.clone()]).expect("its statements are prepared on a new connection");
    assert_eq!(proxy.cuts(), 1);
    let lock = "DO 'BEGIN UPDATE credentials SET used_at = 1; END'";
    let mut other = Blocker::lock(&database, lock);
    let connections = proxy.connections();
    let recorded = submit(&store, used);
    until("it does not wait", || is_blocked(&database));
    let charged = submit(&store, charge(operation(2), account(1)));
    other.send("UPDATE node_marks SET commits = commits");
    until("none has ended", || {
        let sql = "SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = current_database()";
        Postgres::shared().run(&database, sql) == "t"
    });
    other.release();
    for answer in [recorded, charged, submit(&store, refused)] {
        let answer = answer.recv().expect("an answer");
        assert_eq!(answer.ok(), Some(Receipt::default()));
    }
    assert!(proxy.connections() > connections, "it was not the victim");
    assert_eq!(available(&store), 98);
    let used_at = Postgres::shared().run(&database, "SELECT used_at FROM credentials");
    assert_eq!(used_at, time(5).as_micros().to_string());
    assert_chained(&store);
    store.close();
}
