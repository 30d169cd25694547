//! Retention: old commits are exported and removed, and the rest of the books is unchanged. On both engines.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use support::{NOW, account, operation, wait};
use tollgate_clock::Timestamp;
use tollgate_ledger::Ledger;
use tollgate_ledger::audit::audit;
use tollgate_money::{AccountId, CredentialId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::postgres::{self, DatabaseUrl, NodeRole};
use tollgate_store::retention::{
    ClosedMonth, Retention, RetentionError, closed_months, first_kept, overdue, verify_exports,
};
use tollgate_store::{
    Admission, BatchRows, CacheScope, CarryPart, CommitError, Endpoint, EntryKind, NewAccount,
    Part, Reader, Receipt, Refusal, RootSecret, Store, UnitOfWork, UsageDay, UsageFlags,
    UsageRecord, commit, sqlite,
};
use tollgate_testing::Postgres;

const DAY: i64 = 86_400_000_000;
/// Accounts with requests.
const ACCOUNTS: u64 = 3;
/// Days of history, from 14 November on.
const DAYS: i64 = 60;

/// A store of either engine.
enum Engine {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Engine {
    fn both(folder: &Path) -> [Engine; 2] {
        [
            Engine::Sqlite(folder.join("t.db")),
            Engine::Postgres(Postgres::shared().database()),
        ]
    }

    fn postgres_options(url: &str) -> postgres::Options {
        let url = DatabaseUrl::parse(url).expect("an address");
        postgres::Options {
            post_records: 64,
            ..postgres::Options::new(url, NOW, RootSecret([7; 32]))
        }
    }

    fn sqlite_options() -> sqlite::Options {
        sqlite::Options {
            post_records: 64,
            ..support::options()
        }
    }

    fn open(&self) -> Arc<dyn Store> {
        match self {
            Engine::Sqlite(path) => sqlite::open(path, Engine::sqlite_options()),
            Engine::Postgres(url) => postgres::open(Engine::postgres_options(url)),
        }
        .expect("the store opens")
    }

    fn rebuild(&self) {
        match self {
            Engine::Sqlite(path) => sqlite::rebuild_postings(path, Engine::sqlite_options()),
            Engine::Postgres(url) => postgres::rebuild_postings(&Engine::postgres_options(url)),
        }
        .expect("what is derived is rebuilt");
    }

    fn execute(&self, statement: &str) {
        match self {
            Engine::Sqlite(path) => {
                let file = rusqlite::Connection::open(path).expect("the file");
                file.execute_batch(statement).expect("it runs");
            }
            Engine::Postgres(url) => {
                let database = url.rsplit('/').next().expect("a name");
                Postgres::shared().run(database, statement);
            }
        }
    }
}

fn day(day: i64) -> Timestamp {
    Timestamp::from_micros(NOW.as_micros() + day * DAY)
}

fn write(store: &Arc<dyn Store>, parts: Vec<Part>) -> Result<Receipt, Refusal> {
    let unit = UnitOfWork::of_all(parts, Admission::Always);
    match wait(commit(&**store, unit)) {
        Ok(receipt) => Ok(receipt),
        Err(CommitError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

fn grant(number: u64, payer: AccountId, at: Timestamp) -> Part {
    Part::Ledger(LedgerPart::Credit {
        operation: operation(number),
        account: payer,
        kind: EntryKind::Grant,
        amount: Micros::new(1_000_000),
        reference: Arc::from(format!("grant {number}")),
        at,
    })
}

fn hold(number: u64, payer: AccountId, at: Timestamp) -> Part {
    Part::Ledger(LedgerPart::Hold {
        operation: operation(number),
        account: payer,
        amount: Micros::new(100),
        price_version: None,
        at,
        expires_at: at,
    })
}

fn usage(number: u64) -> UsageRecord {
    UsageRecord {
        credential: Some(CredentialId::from_bytes([(number % 2) as u8; 16])),
        endpoint: Endpoint::Chat,
        model: Arc::from(["small", "large"][(number % 3 / 2) as usize]),
        upstream: Some(Arc::from("provider")),
        prompt_tokens: 3,
        completion_tokens: number % 50,
        flags: UsageFlags::NONE,
        http_status: 200,
        ttfb_us: None,
        total_us: None,
    }
}

fn settle(number: u64, payer: AccountId, at: Timestamp) -> Part {
    Part::Ledger(LedgerPart::Settle {
        operation: operation(number),
        account: payer,
        held: Micros::new(100),
        charged: Micros::new((number % 100) as i64),
        written_off: Micros::new((number % 2) as i64),
        price_version: None,
        usage: usage(number),
        at,
    })
}

fn new_account(id: AccountId) -> Part {
    Part::CreateAccount(Box::new(NewAccount {
        id,
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: NOW,
    }))
}

/// Requests of the accounts over the days, and one hold that stays open. Some requests begin in one month and end in the next month.
fn fill(store: &Arc<dyn Store>) {
    fill_from(store, 0);
}

/// [`fill`] for other accounts and operations, with numbers from `first` on.
fn fill_from(store: &Arc<dyn Store>, first: u64) {
    let account = |number: u64| account(first + number);
    for number in 0..ACCOUNTS {
        write(store, vec![new_account(account(number))]).expect("an account");
        write(store, vec![grant(first + number, account(number), NOW)]).expect("credit");
    }
    write(store, vec![hold(first + 999_999, account(0), NOW)]).expect("it stays open");
    let mut number = first + 1000;
    for today in 0..DAYS {
        for each in 0..6 {
            number += 1;
            let (payer, at) = (account(each % ACCOUNTS), day(today));
            write(store, vec![hold(number, payer, at)]).expect("a hold");
            // The operation before the last operation ends here, so that a hold is open from one day to the next.
            let begun = number - 2;
            if begun > first + 1000 {
                let payer = account((begun - first - 1001) % 6 % ACCOUNTS);
                let end = match begun % 5 {
                    0 => Part::Ledger(LedgerPart::Release {
                        operation: operation(begun),
                        account: payer,
                        held: Micros::new(100),
                        at,
                    }),
                    _ => settle(begun, payer, at),
                };
                write(store, vec![end]).expect("its end");
            }
        }
        if today % 7 == 0 {
            let number = first + 500_000 + today as u64;
            write(store, vec![grant(number, account(1), day(today))]).expect("credit");
        }
    }
}

/// The view of owners and operators, unchanged by retention.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    accounts: BTreeMap<AccountId, (Micros, Micros)>,
    days: Vec<Vec<UsageDay>>,
    spent: Vec<Micros>,
    newest: Vec<Vec<tollgate_store::UsageRow>>,
    sums: tollgate_ledger::audit::Sums,
    written_off: Micros,
    open_holds: u64,
}

fn seen(read: &Reader) -> Seen {
    let report = audit(read).expect("the audit runs");
    let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(report.clean(), "{}", violations.join("\n"));
    let mut accounts = BTreeMap::new();
    read.accounts(&mut |row| {
        accounts.insert(row.id, (row.available, row.held));
    })
    .expect("accounts");
    let (from, to) = (Timestamp::MIN, Timestamp::MAX);
    let each = || (0..ACCOUNTS).map(account);
    Seen {
        accounts,
        days: each()
            .map(|payer| read.usage_days(payer, from, to).expect("days"))
            .collect(),
        spent: each()
            .map(|payer| {
                let key = CredentialId::from_bytes([1; 16]);
                read.credential_spent(payer, key, from).expect("a sum")
            })
            .collect(),
        newest: each()
            .map(|account| {
                let wanted = tollgate_store::RequestsQuery {
                    account,
                    from: day(DAYS - 5),
                    to,
                    model: None,
                    credential: None,
                    cursor: tollgate_store::PageCursor::Newest,
                    limit: 100,
                };
                read.requests(&wanted).expect("requests")
            })
            .collect(),
        sums: report.sums,
        written_off: report.usage_written_off,
        open_holds: report.open_holds,
    }
}

fn commits(read: &Reader) -> u64 {
    let journals = read.retained().expect("the nodes");
    let of_node = |node| {
        read.commits_after(node, None, usize::MAX >> 1)
            .expect("commits")
    };
    journals
        .iter()
        .map(|journal| of_node(journal.node).len() as u64)
        .sum()
}

/// Runs the retention up to `steps` uninterrupted steps.
fn retain(
    store: &Arc<dyn Store>,
    folder: &Path,
    before: Timestamp,
    steps: u64,
) -> Result<Vec<ClosedMonth>, RetentionError> {
    retain_reporting(store, folder, before, steps, &mut |_| {})
}

/// [`retain`], with reports of the number of removed commits after each removal.
fn retain_reporting(
    store: &Arc<dyn Store>,
    folder: &Path,
    before: Timestamp,
    steps: u64,
    report: &mut dyn FnMut(u64),
) -> Result<Vec<ClosedMonth>, RetentionError> {
    static NUMBER: AtomicU64 = AtomicU64::new(2_000_000);
    let asked = AtomicU64::new(0);
    let retention = Retention {
        store: &**store,
        folder,
        before,
        now: &|| day(DAYS),
        new_operation: &|| operation(NUMBER.fetch_add(1, Relaxed)),
        is_stopped: &|| asked.fetch_add(1, Relaxed) >= steps,
    };
    retention.run(&mut |_, commits| report(commits))
}

#[test]
fn the_first_kept_month_is_counted_in_calendar_months() {
    let time = |text: &str| Timestamp::from_rfc3339(text).expect("a time");
    for (now, months, first) in [
        ("2024-01-31T23:59:59Z", 1, "2023-12-01T00:00:00Z"),
        ("2024-01-01T00:00:00Z", 12, "2023-01-01T00:00:00Z"),
        ("2024-03-31T12:00:00Z", 25, "2022-02-01T00:00:00Z"),
    ] {
        assert_eq!(first_kept(time(now), months), time(first), "{now}");
    }
}

#[test]
fn books_are_the_same_without_their_closed_months() {
    let folder = tempfile::tempdir().expect("a folder");
    for (place, engine) in Engine::both(folder.path()).into_iter().enumerate() {
        let exports = folder.path().join(format!("exports-{place}"));
        std::fs::create_dir(&exports).expect("a folder");
        let store = engine.open();
        fill(&store);
        let before = seen(&store);
        let all = commits(&store);
        // December is the first kept month.
        let december = first_kept(day(DAYS), 1);
        let planned = closed_months(&store, december).expect("a dry run");
        let overdue = |months| overdue(&store, day(DAYS), months).expect("it can be read");
        let january = first_kept(day(DAYS), 0);
        assert_eq!(overdue(1), Some(day(DAYS).duration_since(january)));
        assert_eq!(overdue(2), None, "November is kept until February");
        let done = retain(&store, &exports, december, u64::MAX).expect("it runs");
        assert_eq!(done.len(), 1, "November: {done:?}");
        assert_eq!(overdue(1), None, "nothing waits");
        assert_eq!(
            overdue(0),
            Some(day(DAYS).duration_since(january)),
            "December"
        );
        assert_eq!(
            (done[0].commits, done[0].bytes),
            (planned[0].commits, planned[0].bytes)
        );
        assert!(done[0].commits > 100, "{done:?}");
        assert_eq!(seen(&store), before);
        // The record of the removal is one further commit.
        assert!(commits(&store) <= all - done[0].commits + 2);
        let replayed = verify_exports(&store, &exports).expect("the files are whole");
        assert!(replayed.is_carried, "the files explain what is carried");
        assert_eq!(replayed.commits, done[0].commits);

        // A credit is booked once, even after the removal of its first booking.
        let again = write(&store, vec![grant(0, account(0), NOW)]).expect("a repetition");
        assert!(again.repeated.is_some(), "not booked a second time");
        // A hold of a removed commit ends normally.
        let end = settle(999_999, account(0), day(DAYS));
        write(&store, vec![end]).expect("it is open");
        let after = seen(&store);
        assert_eq!(after.open_holds, before.open_holds - 1);
        store.close();
        drop(store);

        engine.rebuild();
        let store = engine.open();
        assert_eq!(seen(&store), after, "what is derived is derived again");
        // The next months, on top of rebuilt pages: the last posted commit stays.
        let done = retain(&store, &exports, day(DAYS + 1), u64::MAX).expect("it runs");
        assert!(done.len() >= 2, "December and January: {done:?}");
        let rest = seen(&store);
        assert_eq!((&rest.accounts, &rest.days), (&after.accounts, &after.days));
        assert_eq!((rest.sums, rest.spent), (after.sums, after.spent));
        let replayed = verify_exports(&store, &exports).expect("the files are whole");
        assert!(replayed.is_carried, "all months");
        store.close();

        // A gateway starts on the remainder, and releases open holds.
        let store = engine.open();
        let (ledger, _) = Ledger::start(store.clone(), day(DAYS + 1)).expect("it starts");
        drop(ledger);
        assert_eq!(seen(&store).open_holds, 0);
        store.close();
    }
}

/// One commit with a wrong date kept every later month in the database until the date.
#[test]
fn a_commit_that_a_wrong_clock_has_dated_is_removed_with_those_around_it_and_removes_none() {
    let folder = tempfile::tempdir().expect("a folder");
    for (place, engine) in Engine::both(folder.path()).into_iter().enumerate() {
        let exports = folder.path().join(format!("exports-{place}"));
        std::fs::create_dir(&exports).expect("a folder");
        let store = engine.open();
        let payer = account(100);
        let credit = |number: u64, at| write(&store, vec![grant(number, payer, at)]);
        write(&store, vec![new_account(payer)]).expect("an account");
        for number in 100..110 {
            credit(number, day(400)).expect("credit of next year");
        }
        fill(&store);
        for number in 110..120 {
            credit(number, NOW).expect("credit of a month that is removed");
        }
        for number in 120..220 {
            credit(number, day(DAYS)).expect("credit");
        }
        let before = seen(&store);
        let december = first_kept(day(DAYS), 1);
        let overdue = |months| overdue(&store, day(DAYS), months).expect("it can be read");
        let january = first_kept(day(DAYS), 0);
        assert_eq!(overdue(1), Some(day(DAYS).duration_since(january)));
        let planned = closed_months(&store, december).expect("a dry run");
        let done = retain(&store, &exports, december, u64::MAX).expect("it runs");
        let months = |all: &[ClosedMonth]| -> Vec<_> {
            let each = all.iter().map(|one| (one.month.clone(), one.commits));
            each.collect()
        };
        assert_eq!(months(&done), months(&planned));
        assert_eq!(done.len(), 1, "{done:?}");
        assert_eq!(done[0].month, "2023-11", "{done:?}");
        let file = done[0].file.as_ref().expect("a file");
        let name = file.file_name().expect("a name").to_string_lossy();
        assert!(name.contains("-2023-11-"), "{name}");
        let left = commits_of(&store);
        let first = left.first().expect("those since December");
        assert_eq!(first_kept(first.seal.at, 0), december);
        let of_november = left.iter().filter(|one| one.seal.at < december);
        assert_eq!(of_november.count(), 10, "they are between others that stay");
        assert!(left.iter().all(|one| one.seal.at <= day(DAYS)));
        assert_eq!(overdue(1), None, "nothing waits");
        assert_eq!(seen(&store), before);
        let replayed = verify_exports(&store, &exports).expect("the files are whole");
        assert!(replayed.is_carried, "the file explains what is carried");
        store.close();
    }
}

/// The commits of the only node.
fn commits_of(read: &Reader) -> Vec<BatchRows> {
    let journals = read.retained().expect("the nodes");
    let commits = read.commits_after(journals[0].node, None, usize::MAX >> 1);
    commits.expect("commits")
}

#[test]
fn a_run_that_stops_anywhere_is_continued_by_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let engine = Engine::Sqlite(path.clone());
    let store = engine.open();
    fill(&store);
    let before = seen(&store);
    store.close();
    let december = first_kept(day(DAYS), 1);
    let count = closed_months(&store, december).expect("a dry run")[0].commits;
    // During the write of the file, and before and after each removal. The test has more than one removal, of at most 512 commits each.
    for steps in [0, 1, count - 1, count, count + 1] {
        let copy = folder.path().join(format!("{steps}.db"));
        sqlite::backup(&path, &copy).expect("a copy");
        let exports = folder.path().join(format!("exports-{steps}"));
        std::fs::create_dir(&exports).expect("a folder");
        let engine = Engine::Sqlite(copy);
        let store = engine.open();
        let stopped = retain(&store, &exports, december, steps);
        let is_complete = steps > count;
        match stopped {
            Err(RetentionError::Stopped) => assert!(!is_complete, "after {steps}"),
            other => assert!(other.is_ok() && is_complete, "after {steps}: {other:?}"),
        }
        assert_eq!(seen(&store), before, "after {steps}");
        let replayed = verify_exports(&store, &exports).expect("the files are whole");
        assert!(replayed.is_carried, "after {steps}");
        // Like a killed process.
        std::mem::forget(store);
        let copy = folder.path().join(format!("{steps}-killed.db"));
        let Engine::Sqlite(killed) = &engine else {
            unreachable!()
        };
        sqlite::backup(killed, &copy).expect("a copy of what is durable");
        let store = Engine::Sqlite(copy).open();
        retain(&store, &exports, december, u64::MAX).expect("the rest");
        assert_eq!(seen(&store), before, "after {steps} and the rest");
        let replayed = verify_exports(&store, &exports).expect("the files are whole");
        assert!(replayed.is_carried, "after {steps} and the rest");
        store.close();
    }
}

#[test]
fn the_export_files_of_another_store_are_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let december = first_kept(day(DAYS), 1);
    let filled = |name: &str, first: u64| {
        let store = Engine::Sqlite(folder.path().join(name)).open();
        fill_from(&store, first);
        store
    };
    let (one, other) = (filled("one.db", 0), filled("other.db", 2_000_000));
    let months = retain(&one, folder.path(), december, u64::MAX).expect("it is exported");
    let file = months[0].file.as_ref().expect("a file");
    let before = std::fs::read(file).expect("the file");
    let refused = retain(&other, folder.path(), december, u64::MAX);
    let refused = refused.expect_err("it has the same name").to_string();
    assert!(refused.contains("`store.exports`"), "{refused}");
    assert_eq!(std::fs::read(file).expect("the file"), before);
    one.close();
    other.close();
}

#[test]
fn a_removal_ends_when_it_has_the_commits_of_some_accounts() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Engine::Sqlite(folder.path().join("t.db")).open();
    for number in 1_000..1_100 {
        let parts = vec![
            new_account(account(number)),
            grant(800_000 + number, account(number), NOW),
        ];
        write(&store, parts).expect("an account with credit");
    }
    fill(&store);
    let mut removals = Vec::new();
    let december = first_kept(day(DAYS), 1);
    retain_reporting(&store, folder.path(), december, u64::MAX, &mut |commits| {
        removals.push(commits);
    })
    .expect("the month is removed");
    assert_eq!(removals[..4], [0, 32, 64, 96]);
    store.close();
}

/// The removal of a node's commits up to `last`.
fn carry(last: &BatchRows) -> Part {
    let seal = &last.seal;
    Part::Carry(Box::new(CarryPart {
        operation: operation(3_000_000 + seal.number as u64),
        last: (seal.node, seal.epoch, seal.number),
        hash: seal.hash,
        at: day(DAYS),
    }))
}

/// The last posted commit of a node, and the later commits.
fn live_commits(store: &Reader, node: i64) -> Vec<BatchRows> {
    let mut journals = store.retained().expect("the nodes").into_iter();
    let journal = journals.find(|one| one.node == node).expect("the node");
    let mut all = store.commits_after(node, None, 4000).expect("commits");
    all.retain(|one| Some((one.seal.epoch, one.seal.number)) >= journal.posted);
    assert!(!all.is_empty() && journal.posted.is_some());
    all
}

#[test]
fn a_commit_is_removed_only_when_it_is_posted_and_another_posted_one_follows() {
    let folder = tempfile::tempdir().expect("a folder");
    for engine in Engine::both(folder.path()) {
        let store = engine.open();
        fill(&store);
        let (before, all) = (seen(&store), commits(&store));
        let node = store.retained().expect("the node")[0].node;
        for live in live_commits(&store, node) {
            let refused = write(&store, vec![carry(&live)]);
            assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
        }
        assert_eq!((seen(&store), commits(&store)), (before, all));
        // After an upgrade from a release without the usage of days, the usage of days is posted late.
        let marks = match engine {
            Engine::Sqlite(_) => "nodes",
            Engine::Postgres(_) => "node_marks",
        };
        engine.execute(&format!("UPDATE {marks} SET days_posted = 0"));
        let first = store.commits_after(node, None, 1).expect("commits");
        let refused = write(&store, vec![carry(&first[0])]);
        assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
        store.close();
    }
}

#[test]
fn of_each_node_only_what_it_has_posted_is_removed_by_whichever_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = Postgres::shared().database();
    let node = |name: &str| {
        let store = postgres::open(postgres::Options {
            node_name: name.to_owned(),
            role: NodeRole::OneOfMany,
            ..Engine::postgres_options(&url)
        });
        store.expect("the store opens")
    };
    let nodes = ["a", "b"].map(node);
    fill(&nodes[0]);
    fill_from(&nodes[1], 10_000_000);
    let before = seen(&nodes[0]);
    let numbers: Vec<i64> = (nodes[0].retained().expect("the nodes").iter())
        .map(|journal| journal.node)
        .collect();
    assert_eq!(numbers.len(), 2, "{numbers:?}");
    // A commit with a smaller number than the posted commits of the other node is not older.
    for number in &numbers {
        for live in live_commits(&nodes[0], *number) {
            let refused = write(&nodes[0], vec![carry(&live)]);
            assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
        }
    }
    let december = first_kept(day(DAYS), 1);
    let months = closed_months(&nodes[0], december).expect("a dry run");
    let done = retain(&nodes[0], folder.path(), december, u64::MAX).expect("it runs");
    assert_eq!(done.len(), 2, "November of each: {done:?}");
    let commits_of = |list: &[ClosedMonth]| -> Vec<_> {
        (list.iter().map(|month| (month.node, month.commits))).collect()
    };
    assert_eq!(commits_of(&done), commits_of(&months));
    for journal in nodes[0].retained().expect("the nodes") {
        let left = nodes[0].commits_after(journal.node, None, 4000);
        let left = left.expect("commits");
        let first = &left.first().expect("those since December").seal;
        assert!(first.at >= december, "{first:?}");
        let carried = journal.carried.expect("November").commits;
        assert_eq!(first.number as u64, carried + 1, "none is missing");
    }
    assert_eq!(seen(&nodes[0]), before);
    let replayed = verify_exports(&nodes[0], folder.path()).expect("the files are whole");
    assert!(replayed.is_carried, "the files of both");
    // Each node goes on after its last commit.
    for (store, number) in nodes.iter().zip([20_000_000, 20_000_001]) {
        write(store, vec![grant(number, account(0), day(DAYS))]).expect("credit");
        seen(store);
        assert!(store.failure().is_none());
    }
}

#[test]
fn a_changed_carried_row_and_a_changed_file_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    for (place, engine) in Engine::both(folder.path()).into_iter().enumerate() {
        let exports = folder.path().join(format!("exports-{place}"));
        std::fs::create_dir(&exports).expect("a folder");
        let store = engine.open();
        fill(&store);
        let december = first_kept(day(DAYS), 1);
        let done = retain(&store, &exports, december, u64::MAX).expect("it runs");
        for (damage, repaired) in [
            (
                "UPDATE carried_sums SET charged = charged - 1",
                "UPDATE carried_sums SET charged = charged + 1",
            ),
            (
                "UPDATE carried_days SET cost = cost + 1",
                "UPDATE carried_days SET cost = cost - 1",
            ),
            (
                "UPDATE carried_nodes SET commits = commits + 1",
                "UPDATE carried_nodes SET commits = commits - 1",
            ),
            (
                "UPDATE carry SET number = number + 1",
                "UPDATE carry SET number = number - 1",
            ),
            (
                "UPDATE carried_pages SET records = records + 1",
                "UPDATE carried_pages SET records = records - 1",
            ),
        ] {
            engine.execute(damage);
            let report = audit(&store).expect("the audit runs");
            assert!(!report.clean(), "{damage}");
            engine.execute(repaired);
        }
        seen(&store);
        let path = done[0].file.clone().expect("a file");
        let whole = std::fs::read(&path).expect("a file");
        for at in [whole.len() / 3, whole.len() / 2, whole.len() - 5] {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, &damaged).expect("a file");
            let found = verify_exports(&store, &exports);
            assert!(
                matches!(found, Err(RetentionError::Export(_))),
                "byte {at}: {found:?}"
            );
        }
        std::fs::write(&path, &whole[..whole.len() - 40]).expect("a file");
        let found = verify_exports(&store, &exports);
        assert!(
            matches!(found, Err(RetentionError::Export(_))),
            "cut: {found:?}"
        );
        std::fs::remove_file(&path).expect("a file");
        let replayed = verify_exports(&store, &exports).expect("no file, no error");
        assert!(!replayed.is_carried, "a file is missing");
        store.close();
    }
}
