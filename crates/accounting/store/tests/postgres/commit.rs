//! Commits whose connection is lost, whose server crashes, or whose node has been opened again: nothing is lost, nothing is written twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate_money::{AccountId, CredentialId, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::postgres::{self, DatabaseUrl};
use tollgate_store::{
    Admission, CommitError, CredentialKind, Endpoint, EntryKind, Failure, FailureKind,
    NewCredential, Part, Receipt, Refusal, RootSecret, Store, UnitOfWork, UsageFlags, UsageRecord,
    commit,
};
use tollgate_testing::Postgres;

use super::proxy::{Cut, Proxy};
use super::suite::support::{account, account_of, new_account, operation, time, wait, write};

/// The statements of a commit of ledger parts alone, and of one of other parts.
const ROW: &str = "WITH f AS (SELECT 1 FROM nodes WHERE id = $1 AND epoch = $2 FOR SHARE),";
const FENCE: &str = "UPDATE node_marks\n    SET commits = CASE WHEN";

fn open(url: &str) -> Arc<dyn Store> {
    postgres::open(options(url)).expect("the store opens")
}

pub(super) fn options(url: &str) -> postgres::Options {
    let url = DatabaseUrl::parse(url).expect("an address");
    postgres::Options::new(url, time(1), RootSecret([7; 32]))
}

/// Adds one to the credit of account 1.
pub(super) fn grant(number: u8) -> Part {
    Part::Ledger(LedgerPart::Credit {
        operation: operation(number),
        account: account(1),
        kind: EntryKind::Grant,
        amount: Micros::new(1),
        reference: Arc::from(number.to_string()),
        at: time(2),
    })
}

pub(super) fn charge(operation: OperationId, account: AccountId) -> Part {
    Part::Ledger(LedgerPart::Charge {
        operation,
        account,
        charged: Micros::new(1),
        written_off: Micros::ZERO,
        price_version: None,
        usage: usage(),
        at: time(3),
    })
}

fn usage() -> UsageRecord {
    UsageRecord {
        credential: None,
        endpoint: Endpoint::Completions,
        model: Arc::from("small"),
        upstream: None,
        prompt_tokens: 1,
        completion_tokens: 1,
        flags: UsageFlags::STREAMED,
        http_status: 200,
        ttfb_us: None,
        total_us: None,
    }
}

pub(super) fn available(store: &Arc<dyn Store>) -> i64 {
    let row = store
        .account(account(1))
        .expect("a read")
        .expect("it is there");
    row.available.get()
}

/// Every commit follows the one before it.
pub(super) fn assert_chained(store: &Arc<dyn Store>) {
    let snapshot = store.snapshot().expect("a snapshot");
    let mut previous = [0; 32];
    let mut count = 0;
    snapshot
        .batches(&mut |rows| {
            assert_eq!(rows.seal.previous, previous);
            assert_eq!(
                rows.seal.reseal(&rows.body).expect("a body").hash,
                rows.seal.hash
            );
            previous = rows.seal.hash;
            count += 1;
        })
        .expect("a journal");
    assert!(count > 0);
    let mut wrong = Vec::new();
    snapshot
        .posting_differences(&mut |account| wrong.push(account))
        .expect("a comparison");
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A store with an account that has 100, through a proxy.
fn behind_proxy() -> (Proxy, Arc<dyn Store>, String) {
    behind_proxy_with(&|_| {})
}

/// The same with other options.
pub(super) fn behind_proxy_with(
    change: &dyn Fn(&mut postgres::Options),
) -> (Proxy, Arc<dyn Store>, String) {
    let server = Postgres::shared();
    let proxy = Proxy::start(server.folder());
    let direct = server.database();
    let database = direct.rsplit('/').next().expect("a name").to_owned();
    let mut options = options(&proxy.url(&database));
    change(&mut options);
    let store = postgres::open(options).expect("the store opens");
    write(&store, [new_account(1)]).expect("an account");
    for number in 100..200 {
        write(&store, [grant(number)]).expect("credit");
    }
    (proxy, store, database)
}

#[test]
fn a_connection_that_is_cut_at_any_statement_of_a_commit_loses_and_doubles_nothing() {
    let (proxy, store, database) = behind_proxy();
    let mut expected = 100;
    let mut cuts = 0;
    for (number, cut) in [Cut::Before, Cut::After].into_iter().enumerate() {
        for (index, statement) in [
            ROW,
            FENCE,
            "BEGIN",
            "INSERT INTO credit_references",
            "COMMIT",
        ]
        .into_iter()
        .enumerate()
        {
            let number = u8::try_from(10 * number + index).expect("few");
            proxy.cut_at(statement, cut);
            let before = proxy.cuts();
            // A charge alone is one statement; with a credit the commit is a transaction.
            let part = match statement {
                ROW => {
                    expected -= 1;
                    charge(operation(number), account(1))
                }
                _ => {
                    expected += 1;
                    grant(number)
                }
            };
            let receipt = write(&store, [part]).expect("it is durable");
            assert_eq!(receipt, Receipt::default(), "{statement} {cut:?}");
            assert_eq!(proxy.cuts(), before + 1, "{statement} {cut:?}");
            cuts += 1;
            assert_eq!(available(&store), expected, "{statement} {cut:?}");
        }
    }
    assert_eq!(proxy.cuts(), cuts);
    assert!(proxy.connections() > cuts);
    write(&store, [grant(99)]).expect("it goes on");
    assert_eq!(available(&store), expected + 1);
    assert_chained(&store);
    store.close();
    drop(store);
    let store = open(&Postgres::shared().url(&database));
    assert_eq!(available(&store), expected + 1);
    assert_chained(&store);
}

/// A commit that inserts into this table waits for a lock that a session may hold.
const SLOW_COMMIT: &str = "
    CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON credit_references DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait()";

/// The server is still at work on the lost statement while the writer asks for its outcome.
#[test]
fn a_statement_that_the_server_still_runs_is_not_taken_for_lost() {
    for (statement, part, lock, expected) in [
        (
            ROW,
            charge(operation(1), account(1)),
            "LOCK TABLE journal IN SHARE MODE",
            99,
        ),
        (
            "COMMIT",
            grant(1),
            "DO 'BEGIN PERFORM pg_advisory_lock(1); END'",
            101,
        ),
    ] {
        let (proxy, store, database) = behind_proxy();
        let server = Postgres::shared();
        server.run(&database, SLOW_COMMIT);
        let mut blocker = Blocker::lock(&database, lock);
        proxy.cut_at(statement, Cut::During);
        let writing = {
            let store = store.clone();
            std::thread::spawn(move || write(&store, [part]))
        };
        // The lost statement waits, and what the writer has sent since.
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while server.run(&database, waiting) != "2" {
            assert!(!writing.is_finished(), "{statement}: it did not wait");
        }
        blocker.release();
        let receipt = writing.join().expect("no panic").expect("it is durable");
        assert_eq!(receipt, Receipt::default());
        assert_eq!(available(&store), expected, "{statement}");
        assert_chained(&store);
    }
}

/// A session that holds a lock.
pub(super) struct Blocker(Option<std::process::Child>);

impl Blocker {
    pub(super) fn lock(database: &str, statement: &str) -> Blocker {
        use std::io::{BufRead as _, BufReader, Write as _};
        let server = Postgres::shared();
        let mut command = std::process::Command::new("psql");
        command
            .args(["-XAtq", "-U", "test", "-d", database, "-h"])
            .arg(server.folder());
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut child = command.spawn().expect("psql runs");
        let input = child.stdin.as_mut().expect("a pipe");
        writeln!(input, "BEGIN; {statement}; SELECT 'locked';").expect("it reads");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "locked\n");
        Blocker(Some(child))
    }

    /// Sends a statement without a wait for its end.
    pub(super) fn send(&mut self, statement: &str) {
        use std::io::Write as _;
        let child = self.0.as_mut().expect("it is not released");
        let input = child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{statement};").expect("it reads");
    }

    /// The end of the input ends the session, and its transaction.
    pub(super) fn release(&mut self) {
        if let Some(mut child) = self.0.take() {
            drop(child.stdin.take());
            child.wait().expect("it ends");
        }
    }
}

impl Drop for Blocker {
    fn drop(&mut self) {
        self.release();
    }
}

#[test]
fn a_server_that_crashes_under_load_loses_and_doubles_nothing() {
    const UNITS: usize = 400;
    let mut server = Postgres::start();
    let url = server.database();
    let store = open(&url);
    write(&store, [new_account(1)]).expect("an account");
    let credit = LedgerPart::Credit {
        operation: operation(255),
        account: account(1),
        kind: EntryKind::Grant,
        amount: Micros::new(1_000_000),
        reference: Arc::from("all"),
        at: time(2),
    };
    write(&store, [Part::Ledger(credit)]).expect("credit");
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                for number in 0..UNITS / 4 {
                    let mut id = [thread; 16];
                    id[..8].copy_from_slice(&number.to_be_bytes());
                    let id = OperationId::from_bytes(id);
                    // Every fifth commit is a transaction.
                    let part = match number % 5 {
                        0 => Part::Ledger(LedgerPart::Credit {
                            operation: id,
                            account: account(1),
                            kind: EntryKind::Grant,
                            amount: Micros::new(10),
                            reference: Arc::from(format!("{thread} {number}")),
                            at: time(3),
                        }),
                        _ => charge(id, account(1)),
                    };
                    write(store, [part]).expect("it is durable");
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for crash in 1..=2 {
            while done.load(Ordering::SeqCst) < crash * UNITS / 4 {
                assert!(store.failure().is_none(), "{:?}", store.failure());
                std::thread::yield_now();
            }
            server.crash_and_restart();
        }
    });
    let grants = UNITS / 5;
    let expected = 1_000_000 + 10 * grants - (UNITS - grants);
    assert_eq!(available(&store), i64::try_from(expected).expect("small"));
    assert_chained(&store);
    // The store ends before its server.
    store.close();
}

/// The failure that a unit has stopped the store with.
fn stopped(store: &Arc<dyn Store>, part: Part) -> Failure {
    match wait(commit(&**store, UnitOfWork::of(part, Admission::Always))) {
        Err(CommitError::Stopped(failure)) => failure,
        other => panic!("it is not stopped: {other:?}"),
    }
}

#[test]
fn a_run_whose_node_has_a_later_epoch_writes_nothing_more() {
    for part in [charge(operation(1), account(1)), grant(1), new_account(2)] {
        let (_proxy, store, database) = behind_proxy();
        let server = Postgres::shared();
        let count = "SELECT (SELECT count(*) FROM journal) + (SELECT count(*) FROM accounts)";
        let before = server.run(&database, count);
        server.run(&database, "UPDATE nodes SET epoch = epoch + 1");
        let failure = stopped(&store, part);
        assert_eq!(failure.kind, FailureKind::Fenced, "{failure}");
        assert_eq!(server.run(&database, count), before);
    }
}

#[test]
fn a_commit_after_lost_history_is_refused() {
    for part in [charge(operation(1), account(1)), grant(1)] {
        let (_proxy, store, database) = behind_proxy();
        let server = Postgres::shared();
        let last = "(SELECT max(id) FROM journal)";
        server.run(&database, &format!("DELETE FROM journal WHERE id = {last}"));
        let count =
            "SELECT (SELECT count(*) FROM journal) + (SELECT count(*) FROM credit_references)";
        let before = server.run(&database, count);
        let failure = stopped(&store, part);
        assert_eq!(failure.kind, FailureKind::Fenced, "{failure}");
        assert_eq!(
            server.run(&database, count),
            before,
            "nothing without its row"
        );
    }
}

#[test]
fn a_text_that_the_database_cannot_store_is_refused_and_the_store_goes_on() {
    let (_proxy, store, _) = behind_proxy();
    let credit = Part::Ledger(LedgerPart::Credit {
        operation: operation(1),
        account: account(1),
        kind: EntryKind::Grant,
        amount: Micros::new(1),
        reference: Arc::from("a\0b"),
        at: time(2),
    });
    match write(&store, [credit]) {
        Err(Refusal::Invalid(problem)) => assert!(problem.contains("NUL"), "{problem}"),
        other => panic!("{other:?}"),
    }
    write(&store, [grant(1)]).expect("it goes on");
    assert_eq!(available(&store), 101);
    assert_chained(&store);
}

#[test]
fn a_result_of_many_rows_is_read_whole_inside_and_outside_of_a_transaction() {
    const MANY: u32 = 5_000;
    let url = Postgres::shared().database();
    let store = open(&url);
    let id = |number: u32| {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        id
    };
    let accounts = (0..MANY).map(|number| account_of(AccountId::from_bytes(id(number))));
    write(&store, accounts).expect("accounts");
    let mut found = 0;
    store
        .accounts(&mut |_| found += 1)
        .expect("a read of one snapshot");
    assert_eq!(found, MANY);
    let credentials = (0..MANY).map(|number| {
        Part::InsertCredential(Box::new(NewCredential {
            id: CredentialId::from_bytes(id(number)),
            hash: id(number).repeat(2).try_into().expect("32 bytes"),
            kind: CredentialKind::ApiKey,
            account: AccountId::from_bytes(id(number)),
            client_id: None,
            grant_id: None,
            resource: 1,
            scopes: 1,
            label: None,
            hint: None,
            models: None,
            spending_cap: None,
            created_at: time(1),
            expires_at: None,
        }))
    });
    write(&store, credentials).expect("credentials");
    let mut found = 0;
    store
        .credentials(time(1), &mut |_| found += 1)
        .expect("a read by one statement");
    assert_eq!(found, MANY);
}
