//! Errors of the server by their SQLSTATE: which are waited for, which refuse one unit, and which end the node. The README of the crate has the table.

use std::sync::Arc;
use std::time::Duration;

use tollgate_store::postgres::{self, DatabaseUrl, NodeRole, Options};
use tollgate_store::{
    CommitError, Failure, FailureKind, OpenError, OutageTimes, Part, Receipt, Refusal, RootSecret,
    Store, SubmitError,
};
use tollgate_testing::{Postgres, RaisedAt, RaisedErrors};

use super::commit::{assert_chained, available, charge, grant};
use super::feed::await_number;
use super::sent::{submit, until};
use super::suite::support::{account, new_account, operation, stop_writer, time, write};

const ROLES: [NodeRole; 2] = [NodeRole::Alone, NodeRole::OneOfMany];

/// At least one of each class that passes by itself, or that another attempt passes.
const PASSING: [&str; 21] = [
    "08000", "08006", "25006", "25P03", "53000", "53100", "53200", "53300", "53400", "57014",
    "57P01", "57P03", "58000", "58030", "40001", "40003", "40P01", "55P03", "55006", "0A000",
    "26000",
];

/// At least one of each class that a trigger can raise and that ends the node.
const FINAL: [(&str, FailureKind); 16] = [
    ("03000", FailureKind::Io),
    ("0B000", FailureKind::Io),
    ("21000", FailureKind::Io),
    ("23514", FailureKind::Inconsistent),
    ("25001", FailureKind::Io),
    ("2D000", FailureKind::Io),
    ("38000", FailureKind::Io),
    ("42501", FailureKind::Io),
    ("42P01", FailureKind::Io),
    ("44000", FailureKind::Inconsistent),
    ("58P01", FailureKind::Io),
    ("F0000", FailureKind::Io),
    ("HV000", FailureKind::Io),
    ("P0001", FailureKind::Io),
    ("XX001", FailureKind::Damaged),
    ("XX002", FailureKind::Damaged),
];

fn options(url: &str, role: NodeRole) -> Options {
    Options {
        role,
        node_name: String::from("a"),
        ..Options::new(
            DatabaseUrl::parse(url).expect("an address"),
            time(1),
            RootSecret([7; 32]),
        )
    }
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("a name")
}

/// A store with an account that has 100.
fn store(role: NodeRole) -> (Arc<dyn Store>, String) {
    let url = Postgres::shared().database();
    let store = postgres::open(options(&url, role)).expect("the store opens");
    write(&store, [new_account(1)]).expect("an account");
    write(&store, (100..200).map(grant)).expect("credit");
    (store, url)
}

fn until_raised(errors: &RaisedErrors, store: &Arc<dyn Store>, count: u64, case: &str) {
    until(case, || {
        assert!(store.failure().is_none(), "{case}: {:?}", store.failure());
        errors.count() >= count
    });
}

#[test]
fn a_commit_that_the_server_refuses_for_a_cause_that_passes_is_made_once_when_it_has_passed() {
    for role in ROLES {
        for at in [RaisedAt::Write, RaisedAt::Commit] {
            let (store, url) = store(role);
            let errors = RaisedErrors::of(database(&url), "journal", at);
            let mut expected = 100;
            let mut number = 0;
            for code in PASSING {
                // One statement, and a transaction.
                for is_charge in [true, false] {
                    number += 1;
                    let case = format!("{role:?} {at:?} {code} {is_charge}");
                    let part = match is_charge {
                        true => charge(operation(number), account(1)),
                        false => grant(number),
                    };
                    expected += if is_charge { -1 } else { 1 };
                    let before = errors.count();
                    errors.raise(code);
                    let answer = submit(&store, part);
                    until_raised(&errors, &store, before + 3, &case);
                    assert!(answer.try_recv().is_err(), "{case}: it is not durable");
                    errors.stop();
                    let receipt = answer.recv().expect("an answer");
                    assert_eq!(receipt.ok(), Some(Receipt::default()), "{case}");
                    assert_eq!(available(&store), expected, "{case}");
                }
            }
            assert_chained(&store);
            store.close();
        }
    }
}

/// Twenty attempts were all that a transaction of one of several nodes had.
#[test]
fn a_conflict_that_lasts_is_tried_again_for_as_long_as_a_lost_connection_is() {
    for role in ROLES {
        let (store, url) = store(role);
        let errors = RaisedErrors::of(database(&url), "journal", RaisedAt::Write);
        errors.raise("40001");
        let answer = submit(&store, grant(1));
        let attempts = match role {
            NodeRole::OneOfMany => 23,
            _ => 5,
        };
        until_raised(&errors, &store, attempts, "it is tried again");
        errors.stop();
        assert!(answer.recv().expect("an answer").is_ok());
        assert_eq!(available(&store), 101);
        assert_chained(&store);
        store.close();
    }
}

/// Three nodes ended when one insert in twenty found no memory.
#[test]
fn commits_of_which_some_find_no_memory_or_room_are_each_made_once() {
    for (at, table) in [
        (RaisedAt::Write, "journal"),
        (RaisedAt::Commit, "journal"),
        (RaisedAt::Write, "node_marks"),
        (RaisedAt::Write, "postings"),
        (RaisedAt::Write, "accounts"),
    ] {
        let (store, url) = store(NodeRole::OneOfMany);
        store.close();
        drop(store);
        let posts_at_once = Options {
            post_records: 1,
            ..options(&url, NodeRole::OneOfMany)
        };
        let store = postgres::open(posts_at_once).expect("it opens");
        let errors = RaisedErrors::of(database(&url), table, at);
        errors.raise_at_one_in("53200", 4);
        let mut answers = Vec::new();
        for number in 0..60 {
            let part = match number % 5 {
                0 => grant(number),
                _ => charge(operation(number), account(1)),
            };
            answers.push(submit(&store, part));
        }
        for answer in answers {
            let answer = answer.recv().expect("an answer");
            assert_eq!(answer.ok(), Some(Receipt::default()), "{table} {at:?}");
        }
        errors.stop();
        assert_eq!(available(&store), 100 + 12 - 48, "{table} {at:?}");
        assert_chained(&store);
        store.close();
    }
}

#[test]
fn an_error_that_does_not_pass_ends_the_node() {
    for (code, kind) in FINAL {
        let (store, url) = store(NodeRole::OneOfMany);
        let errors = RaisedErrors::of(database(&url), "journal", RaisedAt::Write);
        errors.raise(code);
        let answer = submit(&store, charge(operation(1), account(1)));
        let failure = stopped(answer.recv().expect("an answer"));
        assert_eq!(failure.kind, kind, "{code}: {failure}");
        assert_eq!(errors.count(), 1, "{code}");
        assert!(failure.to_string().contains(code), "{failure}");
        store.close();
    }
}

fn stopped(answer: Result<Receipt, CommitError>) -> Failure {
    match answer {
        Err(CommitError::Stopped(failure)) => failure,
        other => panic!("it is not stopped: {other:?}"),
    }
}

#[test]
fn a_database_that_stays_full_ends_the_node_after_the_grace_and_the_text_says_what_to_do() {
    for role in ROLES {
        let (store, url) = store(role);
        store.close();
        drop(store);
        let short = Options {
            outage: OutageTimes {
                grace: Duration::from_millis(300),
                ..OutageTimes::default()
            },
            ..options(&url, role)
        };
        let store = postgres::open(short).expect("it opens");
        let errors = RaisedErrors::of(database(&url), "journal", RaisedAt::Write);
        errors.raise("53100");
        let answer = submit(&store, grant(1));
        let failure = stopped(answer.recv().expect("an answer"));
        assert_eq!(failure.kind, FailureKind::DiskFull, "{failure}");
        let text = failure.to_string();
        assert!(text.contains("free space"), "{text}");
        assert!(errors.count() > 2, "it waits");
        store.close();
    }
}

/// What is under way waits for it; what would begin is refused.
#[test]
fn a_node_whose_database_is_full_admits_nothing_new_until_there_is_room() {
    let (store, url) = store(NodeRole::OneOfMany);
    store.close();
    drop(store);
    let soon = Options {
        outage: OutageTimes {
            admits_for: Duration::from_millis(2_500),
            ..OutageTimes::default()
        },
        ..options(&url, NodeRole::OneOfMany)
    };
    let store = postgres::open(soon).expect("it opens");
    let errors = RaisedErrors::of(database(&url), "journal", RaisedAt::Write);
    errors.raise("53100");
    let answer = submit(&store, charge(operation(1), account(1)));
    let is_refused = || matches!(store.admit(), Err(SubmitError::CutOff));
    until("nothing new is refused", || {
        std::thread::yield_now();
        errors.count() > 0 && is_refused()
    });
    errors.stop();
    assert!(answer.recv().expect("an answer").is_ok());
    until("it admits again", || {
        errors.count();
        store.admit().is_ok()
    });
    assert_eq!(available(&store), 99);
    store.close();
}

/// A text that the database cannot store, or an entry that is too long for an index: a client that sends it again would end one node after the other.
#[test]
fn a_value_that_the_server_refuses_is_refused_with_its_unit_alone() {
    for role in ROLES {
        for at in [RaisedAt::Write, RaisedAt::Commit] {
            for code in ["22021", "22003", "54000"] {
                let (store, url) = store(role);
                let errors = RaisedErrors::of(database(&url), "credit_references", at);
                errors.raise_at_reference(code, "2");
                let resume = stop_writer(&store);
                let mut answers = Vec::new();
                for number in 1..=3 {
                    answers.push(submit(&store, grant(number)));
                }
                answers.push(submit(&store, charge(operation(4), account(1))));
                drop(resume);
                let case = format!("{role:?} {at:?} {code}");
                for (index, answer) in answers.into_iter().enumerate() {
                    let answer = answer.recv().expect("an answer");
                    match (index, answer) {
                        (1, Err(CommitError::Refused(Refusal::Invalid(_)))) => {}
                        (1, other) => panic!("{case}: {other:?}"),
                        (_, answer) => assert_eq!(answer.ok(), Some(Receipt::default()), "{case}"),
                    }
                }
                assert_eq!(available(&store), 101, "{case}");
                assert_chained(&store);
                store.close();
            }
        }
    }
}

/// A refusal that has no unit of its own: the row of all units of the commit.
#[test]
fn a_value_of_the_journal_that_the_server_refuses_ends_the_node() {
    let (store, url) = store(NodeRole::Alone);
    let errors = RaisedErrors::of(database(&url), "journal", RaisedAt::Write);
    errors.raise("22003");
    let answer = submit(&store, charge(operation(1), account(1)));
    let failure = stopped(answer.recv().expect("an answer"));
    assert_eq!(failure.kind, FailureKind::Io, "{failure}");
}

/// Replaces tables by views whose reads raise the errors of `raised_errors`.
fn raise_in_reads_of(database: &str, tables: &[&str]) -> RaisedErrors {
    let errors = RaisedErrors::of(database, "meta", RaisedAt::Write);
    let mut statements = String::from(
        "CREATE FUNCTION may_read() RETURNS BOOLEAN VOLATILE LANGUAGE plpgsql AS $$
         DECLARE raised RECORD;
         BEGIN
             SELECT * INTO raised FROM raised_errors LIMIT 1;
             IF FOUND THEN
                 PERFORM nextval('raised_error');
                 RAISE EXCEPTION 'raised by a test' USING ERRCODE = raised.code;
             END IF;
             RETURN true;
         END $$;",
    );
    for table in tables {
        statements += &format!(
            "ALTER TABLE {table} RENAME TO {table}_rows;
             CREATE VIEW {table} AS SELECT * FROM {table}_rows WHERE may_read();"
        );
    }
    Postgres::shared().run(database, &statements);
    errors
}

#[test]
fn a_read_that_finds_no_memory_waits_in_the_writer_and_fails_elsewhere_without_ending_the_node() {
    for role in ROLES {
        let (store, url) = store(role);
        store.close();
        drop(store);
        let errors = raise_in_reads_of(database(&url), &["accounts", "cluster"]);
        let store = postgres::open(options(&url, role)).expect("it opens");
        store.follow_changes();
        for code in ["53200", "58030", "57014", "40001", "72000"] {
            let case = format!("{role:?} {code}");
            let before = errors.count();
            errors.raise(code);
            let load = submit(&store, Part::Load(account(1)));
            until_raised(&errors, &store, before + 3, &case);
            let read = store.account(account(1));
            assert!(read.is_err(), "{case}: {read:?}");
            assert!(load.try_recv().is_err(), "{case}: it waits");
            errors.stop();
            let loaded = load.recv().expect("an answer").expect("it is loaded");
            let loaded = loaded.loaded.expect("an account");
            assert_eq!(loaded.available.get(), 100, "{case}");
            assert_eq!(available(&store), 100, "{case}");
        }
        write(&store, [new_account(2)]).expect("a change");
        if role == NodeRole::OneOfMany {
            let has_read =
                "SELECT count(*) FROM leases l, cluster c WHERE l.node >= 16 AND l.feed = c.number";
            await_number(database(&url), has_read, 1);
        }
        assert!(store.failure().is_none());
        store.close();
    }
}

#[test]
fn a_lease_that_cannot_be_renewed_for_want_of_room_is_renewed_when_there_is_some() {
    let (store, url) = store(NodeRole::OneOfMany);
    let errors = RaisedErrors::of(database(&url), "leases", RaisedAt::Write);
    errors.raise("53100");
    until("it is renewed", || errors.count() >= 2);
    errors.stop();
    let outage = store.outage().expect("the database has a server");
    let now = outage.now();
    until("it is not renewed", || {
        errors.count();
        outage.has_renewed_since(now)
    });
    assert!(store.failure().is_none());
    store.close();
}

#[test]
fn a_login_that_the_server_refuses_for_a_while_is_waited_for() {
    let server = Postgres::shared();
    server.run("postgres", "CREATE ROLE kept_out LOGIN SUPERUSER");
    let url = server.database();
    let own = url.replacen("test@", "kept_out@", 1);
    let store = postgres::open(options(&own, NodeRole::Alone)).expect("it opens");
    write(&store, [new_account(1)]).expect("an account");
    write(&store, [grant(1)]).expect("credit");
    server.run(
        "postgres",
        "ALTER ROLE kept_out NOLOGIN;
         SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'kept_out'",
    );
    let answer = submit(&store, charge(operation(2), account(1)));
    let read = store.account(account(1));
    assert!(read.is_err(), "it cannot log in: {read:?}");
    assert!(answer.try_recv().is_err(), "it waits");
    assert!(store.failure().is_none(), "{:?}", store.failure());
    server.run("postgres", "ALTER ROLE kept_out LOGIN");
    assert!(answer.recv().expect("an answer").is_ok());
    assert_eq!(available(&store), 0);
    store.close();
}

#[test]
fn a_start_that_finds_no_room_may_be_tried_again() {
    let (store, url) = store(NodeRole::Alone);
    store.close();
    drop(store);
    let errors = RaisedErrors::of(database(&url), "leases", RaisedAt::Write);
    errors.raise("53100");
    let error = match postgres::open(options(&url, NodeRole::Alone)) {
        Ok(_) => panic!("it opens"),
        Err(error) => error,
    };
    assert!(matches!(error, OpenError::Short { .. }), "{error:?}");
    assert!(error.is_transient());
    assert!(error.to_string().contains("free"), "{error}");
    errors.stop();
    let store = postgres::open(options(&url, NodeRole::Alone)).expect("there is room");
    store.close();
}
