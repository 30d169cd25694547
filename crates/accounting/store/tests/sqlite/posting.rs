//! The journal's unposted tail: refused units, starts, and other nodes must neither lose nor double any of it.

use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};

use rusqlite::Connection;
use tollgate_clock::Timestamp;
use tollgate_money::Micros;
use tollgate_store::entries::LedgerPart;
use tollgate_store::sqlite::Options;
use tollgate_store::{
    AccountRow, Admission, CommitError, Endpoint, EntryKind, LedgerLine, OpenHold, PageCursor,
    Part, Reader, Receipt, Refusal, RequestsQuery, Statement, Store, UnitOfWork, UsageFlags,
    UsageRecord, UsageRow, UsageTotal,
};

use super::suite::support::{
    account, new_account, open_as, operation, options, stop_writer, write,
};

/// So many that records are posted only at a close and at a start.
const NEVER: usize = 1 << 16;

/// So few that every commit is posted.
const AT_ONCE: usize = 1;

const NODE: i64 = 1;

fn open(folder: &Path, node: i64, post_records: usize) -> Arc<dyn Store> {
    let options = Options {
        node,
        post_records,
        ..options()
    };
    open_as(folder, options)
}

/// Writes each part in its own commit.
fn write_each(store: &Arc<dyn Store>, parts: impl IntoIterator<Item = Part>) {
    for part in parts {
        write(store, [part]).expect("it is written");
    }
}

/// The files of a store as they are when its process is killed now.
fn killed(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for name in ["t.db", "t.db-wal"] {
        fs::copy(folder.join(name), copy.path().join(name)).expect("the store has both");
    }
    copy
}

/// Number of unposted commits.
fn rows_in_tail(folder: &Path) -> i64 {
    let connection = Connection::open(folder.join("t.db")).expect("the file opens");
    let sql =
        "SELECT count(*) FROM journal j JOIN nodes n ON n.id = j.id >> 56 WHERE j.id > n.posted";
    connection
        .query_row(sql, [], |row| row.get(0))
        .expect("a count")
}

// The record whose time is given by the operation's number, with the number of the account before the amount.

fn grant(number: u8, account_number: u8, amount: i64) -> Part {
    Part::Ledger(LedgerPart::Credit {
        operation: operation(number),
        account: account(account_number),
        kind: EntryKind::Grant,
        amount: Micros::new(amount),
        reference: Arc::from(format!("grant {number}")),
        at: Timestamp::from_micros(i64::from(number) * 10),
    })
}

fn hold(number: u8, account_number: u8, amount: i64) -> Part {
    Part::Ledger(LedgerPart::Hold {
        operation: operation(number),
        account: account(account_number),
        amount: Micros::new(amount),
        price_version: Some(3),
        at: Timestamp::from_micros(i64::from(number) * 10),
        expires_at: Timestamp::from_micros(10_000),
    })
}

fn settle(number: u8, account_number: u8, held: i64, charged: i64) -> Part {
    Part::Ledger(LedgerPart::Settle {
        operation: operation(number),
        account: account(account_number),
        held: Micros::new(held),
        charged: Micros::new(charged),
        written_off: Micros::ZERO,
        price_version: Some(3),
        usage: usage(),
        at: Timestamp::from_micros(i64::from(number) * 10 + 5),
    })
}

fn release(number: u8, account_number: u8, held: i64) -> Part {
    Part::Ledger(LedgerPart::Release {
        operation: operation(number),
        account: account(account_number),
        held: Micros::new(held),
        at: Timestamp::from_micros(i64::from(number) * 10 + 5),
    })
}

fn charge(number: u8, account_number: u8, charged: i64) -> Part {
    Part::Ledger(LedgerPart::Charge {
        operation: operation(number),
        account: account(account_number),
        charged: Micros::new(charged),
        written_off: Micros::ZERO,
        price_version: None,
        usage: usage(),
        at: Timestamp::from_micros(i64::from(number) * 10),
    })
}

fn usage() -> UsageRecord {
    UsageRecord {
        credential: None,
        endpoint: Endpoint::Chat,
        model: Arc::from("small"),
        upstream: Some(Arc::from("provider")),
        prompt_tokens: 3,
        completion_tokens: 5,
        flags: UsageFlags::NONE,
        http_status: 200,
        ttfb_us: None,
        total_us: Some(20),
    }
}

/// All account data that a reader gets, in a comparable order.
#[derive(Debug, PartialEq)]
struct Seen {
    accounts: Vec<AccountRow>,
    holds: Vec<OpenHold>,
    requests: Vec<UsageRow>,
    lines: Vec<LedgerLine>,
    totals: Vec<UsageTotal>,
    statements: Vec<Statement>,
}

impl Seen {
    fn by(reader: &Reader) -> Seen {
        let accounts = reader.accounts_after(None, 100).expect("a read");
        let mut seen = Seen {
            accounts: Vec::new(),
            holds: Vec::new(),
            requests: Vec::new(),
            lines: Vec::new(),
            totals: Vec::new(),
            statements: Vec::new(),
        };
        reader
            .open_holds(&mut |hold| seen.holds.push(hold))
            .expect("a read");
        seen.holds.sort_by_key(|hold| hold.operation);
        for id in accounts.iter().map(|row| row.id) {
            let wanted = RequestsQuery {
                account: id,
                from: Timestamp::from_micros(0),
                to: Timestamp::from_micros(i64::MAX),
                model: None,
                credential: None,
                cursor: PageCursor::Newest,
                limit: 100,
            };
            seen.requests
                .extend(reader.requests(&wanted).expect("a read"));
            seen.lines.extend(
                reader
                    .lines(id, Timestamp::from_micros(i64::MAX), 100)
                    .expect("a read"),
            );
            seen.totals.extend(
                reader
                    .usage_totals(id, Timestamp::UNIX_EPOCH, Timestamp::MAX)
                    .expect("a read"),
            );
            let statement = reader
                .statement(
                    id,
                    Timestamp::from_micros(100),
                    Timestamp::from_micros(10_000),
                )
                .expect("a read");
            seen.statements.push(statement.expect("an account"));
        }
        seen.accounts = accounts;
        seen
    }

    /// Available and held, by account.
    fn balances(&self) -> Vec<(i64, i64)> {
        let rows = self.accounts.iter();
        rows.map(|row| (row.available.get(), row.held.get()))
            .collect()
    }

    fn open(&self) -> Vec<u8> {
        let holds = self.holds.iter();
        holds.map(|hold| hold.operation.as_bytes()[0]).collect()
    }
}

/// Every account has the sum of its entries, and what is posted matches the journal.
fn assert_adds_up(reader: &Reader) {
    let view = reader.snapshot().expect("a view");
    let mut entries = Vec::new();
    let mut open_holds = Vec::new();
    view.operations(&mut |rows| {
        assert!(!rows.is_duplicate, "{} begins twice", rows.id);
        entries.extend(rows.entries);
        open_holds.extend(rows.hold);
    })
    .expect("a read");
    view.accounts(&mut |row| {
        let of_it = entries.iter().filter(|entry| entry.account == row.id);
        let (available, held) = of_it.fold((0, 0), |(available, held), entry| {
            (
                available + entry.d_available.get(),
                held + entry.d_held.get(),
            )
        });
        assert_eq!((row.available.get(), row.held.get()), (available, held));
        let holds = open_holds.iter().filter(|hold| hold.account == row.id);
        assert_eq!(held, holds.map(|hold| hold.amount.get()).sum::<i64>());
    })
    .expect("a read");
    view.posting_differences(&mut |account| panic!("`{account}` has other postings than records"))
        .expect("a read");
    view.batches(&mut |rows| assert_eq!(rows.seal.reseal(&rows.body), Ok(rows.seal)))
        .expect("a read");
}

#[test]
fn a_refused_unit_leaves_a_posted_hold_open() {
    for restarts in [false, true] {
        for end in [settle(10, 1, 40, 30), release(10, 1, 40)] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut store = open(folder.path(), NODE, AT_ONCE);
            write(&store, [new_account(1), grant(1, 1, 1000)]).expect("all of it");
            write_each(&store, [hold(10, 1, 40), hold(11, 1, 2)]);
            assert_eq!(rows_in_tail(folder.path()), 0, "both holds are posted");
            let refused = write(&store, [end.clone(), new_account(1)]);
            assert_eq!(refused, Err(Refusal::AccountExists(account(1))));
            assert_eq!(Seen::by(&store).open(), [10, 11]);
            // With the next posting, and with the end of another hold.
            for part in [grant(2, 1, 5), settle(11, 1, 2, 2)] {
                write(&store, [part]).expect("it is written");
                assert!(Seen::by(&store).open().contains(&10));
            }
            if restarts {
                store.close();
                store = open(folder.path(), NODE, AT_ONCE);
            }
            let seen = Seen::by(&store);
            assert_eq!((seen.open(), seen.balances()), (vec![10], vec![(963, 40)]));
            assert_adds_up(&store);
            write(&store, [end.clone()]).expect("it is still to be ended");
            let again = write(&store, [end]);
            assert_eq!(again, Err(Refusal::NoHold(operation(10))));
            assert_eq!(Seen::by(&store).open(), Vec::<u8>::new());
            assert_adds_up(&store);
        }
    }
}

#[test]
fn an_operation_of_a_refused_unit_may_start_again() {
    for post_records in [NEVER, AT_ONCE] {
        for together in [false, true] {
            for begin in [hold(10, 1, 40), charge(10, 1, 40)] {
                let folder = tempfile::tempdir().expect("a folder");
                let store = open(folder.path(), NODE, post_records);
                write(&store, [new_account(1), grant(1, 1, 1000)]).expect("all of it");
                let units = [
                    vec![begin.clone(), new_account(1)],
                    vec![begin.clone()],
                    vec![begin.clone()],
                ];
                let answers = match together {
                    false => units.map(|parts| write(&store, parts)).to_vec(),
                    true => write_together(&store, units),
                };
                assert_eq!(
                    answers,
                    [
                        Err(Refusal::AccountExists(account(1))),
                        Ok(Receipt::default()),
                        Err(Refusal::OperationExists(operation(10))),
                    ]
                );
                assert_eq!(Seen::by(&store).balances()[0].0, 960, "it is taken once");
                assert_adds_up(&store);
            }
        }
    }
}

/// The results of units that are written in one commit.
fn write_together<const N: usize>(
    store: &Arc<dyn Store>,
    units: [Vec<Part>; N],
) -> Vec<Result<Receipt, Refusal>> {
    let resume = stop_writer(store);
    let (sender, answers) = mpsc::channel();
    for parts in units {
        let sender = sender.clone();
        let done = Box::new(move |answer| sender.send(answer).expect("the test waits"));
        store
            .submit(UnitOfWork::of_all(parts, Admission::Always), done)
            .expect("the queue is open");
    }
    drop(resume);
    let answers = answers.iter().take(N).map(|answer| match answer {
        Err(CommitError::Refused(refusal)) => Err(refusal),
        answer => Ok(answer.expect("the store continues")),
    });
    answers.collect()
}

/// Two accounts, with two holds that are posted; the rest is not.
fn with_a_tail(folder: &Path) -> Arc<dyn Store> {
    let store = open(folder, NODE, NEVER);
    write(&store, [new_account(1), new_account(2), grant(1, 1, 1000)]).expect("all of it");
    write_each(&store, [hold(10, 1, 40), hold(11, 1, 5)]);
    store.close();
    let store = open(folder, NODE, NEVER);
    assert_eq!(rows_in_tail(folder), 0, "an end posts what there is");
    write_each(
        &store,
        [
            settle(10, 1, 40, 30),
            hold(12, 1, 7),
            hold(13, 1, 9),
            release(13, 1, 9),
            hold(14, 1, 9),
            settle(14, 1, 9, 11),
            grant(15, 2, 500),
            charge(16, 2, 100),
            charge(17, 1, 0),
        ],
    );
    assert_eq!(rows_in_tail(folder), 9, "the rest stays where it is");
    store
}

#[test]
fn a_start_replays_the_unposted_tail() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = with_a_tail(folder.path());
    let before = Seen::by(&store);
    assert_eq!(before.balances(), [(947, 12), (400, 0)]);
    assert_eq!(before.open(), [11, 12]);
    let requests = before.requests.iter();
    let requests: Vec<_> = requests
        .map(|row| {
            (
                row.operation.as_bytes()[0],
                row.at.as_micros(),
                row.cost.get(),
            )
        })
        .collect();
    assert_eq!(
        requests,
        [(17, 170, 0), (14, 145, 11), (10, 105, 30), (16, 160, 100)]
    );
    let lines = before.lines.iter();
    let lines: Vec<_> = lines
        .map(|line| line.entry.operation.as_bytes()[0])
        .collect();
    assert_eq!(lines, [14, 10, 1, 16, 15], "newest first, by account");
    let spent: Vec<_> = before
        .statements
        .iter()
        .map(|statement| {
            let spending = statement.spending.iter().map(|day| day.cost.get());
            (spending.sum::<i64>(), statement.credits.len())
        })
        .collect();
    assert_eq!(spent, [(41, 0), (100, 1)]);
    assert_eq!(before.statements[0].older, Some(Timestamp::from_micros(10)));
    let requests = before.totals.iter().map(|total| total.requests);
    assert_eq!(requests.collect::<Vec<_>>(), [3, 1]);
    assert_adds_up(&store);

    let copy = killed(folder.path());
    for _ in 0..2 {
        let after = open(copy.path(), NODE, NEVER);
        assert_eq!(rows_in_tail(copy.path()), 0, "none is replayed twice");
        assert_eq!(Seen::by(&after), before);
        assert_adds_up(&after);
        for begun in [10, 11, 12, 13, 14, 15, 16, 17] {
            let again = write(&after, [hold(begun, 1, 1)]);
            assert_eq!(again, Err(Refusal::OperationExists(operation(begun))));
        }
        for ended in [settle(10, 1, 40, 30), release(13, 1, 9), release(14, 1, 9)] {
            assert!(matches!(write(&after, [ended]), Err(Refusal::NoHold(_))));
        }
        let granted = write(&after, [grant(15, 2, 500)]).expect("the same reference");
        assert_eq!(granted.repeated, Some(operation(15)));
        after.close();
    }
    let after = open(copy.path(), NODE, NEVER);
    write_each(&after, [settle(11, 1, 5, 5), settle(12, 1, 7, 2)]);
    let seen = Seen::by(&after);
    assert_eq!(
        (seen.open(), seen.balances()),
        (vec![], vec![(952, 0), (400, 0)])
    );
    assert_adds_up(&after);
}

#[test]
fn an_operation_of_the_run_before_is_refused_after_a_restart() {
    for post_records in [NEVER, AT_ONCE] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut store = open(folder.path(), NODE, post_records);
        write(&store, [new_account(1), grant(1, 1, 1000)]).expect("all of it");
        write_each(
            &store,
            [
                hold(10, 1, 40),
                settle(10, 1, 40, 30),
                hold(11, 1, 40),
                release(11, 1, 40),
                hold(12, 1, 40),
                charge(13, 1, 7),
                charge(14, 1, 0),
            ],
        );
        for _ in 0..3 {
            store.close();
            store = open(folder.path(), NODE, post_records);
            for number in [1, 10, 11, 12, 13, 14] {
                let mut other_reference = grant(number, 1, 3);
                if let Part::Ledger(LedgerPart::Credit { reference, .. }) = &mut other_reference {
                    *reference = Arc::from("another");
                }
                for begin in [hold(number, 1, 1), charge(number, 1, 1), other_reference] {
                    let again = write(&store, [begin]);
                    assert_eq!(again, Err(Refusal::OperationExists(operation(number))));
                }
            }
            assert_eq!(Seen::by(&store).balances(), [(923, 40)]);
        }
        assert_adds_up(&store);
    }
}

#[test]
fn another_node_posts_its_own_rows_only() {
    for post_records in [NEVER, AT_ONCE] {
        let first = tempfile::tempdir().expect("a folder");
        let store = with_a_tail(first.path());
        let before = Seen::by(&store);
        let folder = killed(first.path());
        let second = open(folder.path(), 2, post_records);
        let seen = Seen::by(&second);
        assert_eq!(seen.balances(), before.balances());
        assert_eq!(seen, before);
        assert_adds_up(&second);
        write_each(
            &second,
            [
                grant(50, 1, 100),
                hold(51, 1, 3),
                grant(52, 2, 10),
                charge(53, 2, 1),
            ],
        );
        for theirs in [settle(11, 1, 5, 5), release(12, 1, 7)] {
            let refused = write(&second, [theirs]);
            assert!(matches!(refused, Err(Refusal::NoHold(_))), "{refused:?}");
        }
        let more = [(1044, 15), (409, 0)];
        assert_eq!(Seen::by(&second).balances(), more);
        assert_adds_up(&second);
        second.close();
        for node in [NODE, 2, NODE] {
            let store = open(folder.path(), node, post_records);
            let seen = Seen::by(&store);
            assert_eq!(seen.balances(), more, "with node {node} on it");
            assert_eq!(seen.open(), [11, 12, 51], "with node {node} on it");
            assert_adds_up(&store);
            store.close();
        }
    }
}
