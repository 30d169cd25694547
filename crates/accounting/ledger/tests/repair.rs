//! Ledgers with concurrent writes of two processes, as versions before the fence allowed, and the repair of such ledgers.

mod support;

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use support::*;
use tollgate_ledger::audit::{Report, audit};
use tollgate_ledger::{Ledger, SettleError};
use tollgate_money::{AccountId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::sqlite::{self, Action, Lock, Options, Repair};
use tollgate_store::{Admission, EntryKind, FailureKind, Part, Store, UnitOfWork, commit, flush};

/// One of two processes on a file, as on a file system without locks.
fn process(path: &Path, fenced: bool, post_records: usize) -> (Arc<dyn Store>, Ledger) {
    let options = Options {
        lock: Some(Lock::disabled()),
        fenced,
        post_records,
        ..options()
    };
    let store = sqlite::open(path, options).expect("nothing keeps it off");
    let ledger = start(&store);
    // The process decides by the accounts in its memory.
    for number in 1..=2 {
        wait(ledger.load(account(number))).expect("it can be loaded");
    }
    (store, ledger)
}

fn report_of(path: &Path) -> Report {
    audit(&sqlite::open_read(path).expect("it opens")).expect("the audit runs")
}

fn violations_of(report: &Report) -> String {
    let lines = report.violations.iter().map(ToString::to_string);
    lines.collect::<Vec<_>>().join("\n")
}

/// Sells a number of requests of 10 and returns how many were settled.
fn sell(ledger: &Ledger, payer: AccountId, numbers: std::ops::Range<u64>) -> i64 {
    let mut sold = 0;
    wait(ledger.load(payer)).expect("it is there, or can be loaded");
    for number in numbers {
        let Ok(hold) = ledger
            .hold(request(payer, number, 10), |_| None)
            .now()
            .expect("it is alone")
        else {
            continue;
        };
        match wait(hold.settle(settle(10))) {
            Ok(settled) => sold += settled.charged.get(),
            Err(SettleError::Store { source, .. }) => {
                let stopped = [FailureKind::Fenced, FailureKind::Inconsistent];
                assert!(stopped.contains(&source.kind), "{source}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    sold
}

/// The guarantee of the fence: two processes never sell credit twice, and every acknowledged result is in the ledger.
#[test]
fn two_processes_on_one_file_sell_each_credit_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let (first_store, first) = process(&path, true, 7);
    let payer = account_with(&first_store, &first, 1, 100, 0);
    let before = sell(&first, payer, 0..3);
    // Open when the other process starts. Settled after its release by the other process.
    let mut open = first
        .hold(request(payer, 3, 10), |_| None)
        .now()
        .expect("it is alone")
        .expect("there is credit");
    wait(open.durable()).expect("the hold is durable");
    let (second_store, second) = process(&path, true, 7);
    let late = wait(open.settle(settle(10)));
    let is_fenced = |error: &SettleError| matches!(error, SettleError::Store { source, .. } if source.kind == FailureKind::Fenced);
    assert!(late.as_ref().is_err_and(is_fenced), "{late:?}");
    let sold = std::thread::scope(|scope| {
        let sold = [(&first, 100..110), (&second, 200..210)]
            .map(|(ledger, numbers)| scope.spawn(move || sell(ledger, payer, numbers)));
        sold.map(|sold| sold.join().expect("no seller panics"))
    });
    assert_eq!(sold, [0, 70], "the first sells nothing any more");
    first_store.close();
    second_store.close();
    let report = report_of(&path);
    assert!(report.clean(), "{}", violations_of(&report));
    assert_eq!(report.sums.spent.get(), before + sold[1], "as acknowledged");
}

/// A ledger of two accounts, after concurrent work of two processes without a fence. One credit is sold twice. One hold is released by the
/// second process and settled by the first process.
fn damaged(path: &Path) -> (AccountId, AccountId) {
    let (first_store, first) = process(path, false, 65_536);
    let payer = account_with(&first_store, &first, 1, 100, 0);
    let other = account_with(&first_store, &first, 2, 1000, 0);
    assert_eq!(sell(&first, other, 0..3), 30);
    let mut open = first
        .hold(request(payer, 3, 10), |_| None)
        .now()
        .expect("it is alone")
        .expect("there is credit");
    wait(open.durable()).expect("the hold is durable");
    let (second_store, second) = process(path, false, 65_536);
    assert_eq!(sell(&first, payer, 100..109), 90);
    assert_eq!(sell(&second, payer, 200..210), 100);
    assert_eq!(sell(&first, other, 300..302), 20);
    wait(open.settle(settle(7))).expect("the first knows of no release");
    for store in [&first_store, &second_store] {
        wait(flush(&**store)).expect("everything is durable");
    }
    // Like killed processes: neither process posts its tail.
    std::mem::forget((first, second, first_store, second_store));
    (payer, other)
}

fn repair(path: &Path) -> Repair {
    let options = Options {
        lock: Some(Lock::disabled()),
        ..options()
    };
    sqlite::repair(path, options).expect("it can be repaired")
}

fn available(path: &Path, account: AccountId) -> i64 {
    let reader = sqlite::open_read(path).expect("it opens");
    let row = reader.account(account).expect("a read");
    row.expect("an account").available.get()
}

#[test]
fn a_ledger_written_by_two_processes_is_repaired() {
    let folder = tempfile::tempdir().expect("a folder");
    let original = folder.path().join("original.db");
    let (payer, other) = damaged(&original);
    // The stores of the previous processes are still open in this process. The test continues on a copy of the file.
    let path = folder.path().join("t.db");
    sqlite::backup(&original, &path).expect("a copy");
    let before = report_of(&path);
    let found = violations_of(&before);
    for wrong in [
        "does not follow the one before it",
        "a Release without a hold before it",
        "go below the credit limit of 0",
    ] {
        assert!(found.contains(wrong), "no `{wrong}` in:\n{found}");
    }
    let refused = sqlite::rebuild_postings(&path, options()).expect_err("it is refused");
    assert!(
        refused.to_string().contains("`tollgate repair`"),
        "{refused}"
    );

    let done = repair(&path);
    let actions: Vec<_> = done.findings.iter().map(|one| &one.action).collect();
    // The chain of the second process starts where the first process continued. Its release is the second end of the operation. The payer
    // had 100: 97 were sold by one process, and 100 by the other process.
    assert!(
        matches!(
            actions[..],
            [Action::Reseal, Action::Quarantine(_), Action::Correct(sold_twice)]
                if *sold_twice == Micros::new(97)
        ),
        "{:?}",
        done.findings
    );
    assert_eq!(done.findings[1].operation, Some(operation(3)));
    let after = report_of(&path);
    assert!(after.clean(), "{}", violations_of(&after));
    assert_eq!(
        after.sums.spent.get(),
        30 + 20 + 97 + 100,
        "nothing that was sold is lost"
    );
    assert_eq!(after.sums.corrected.get(), -97);
    let [note] = &after.repairs[..] else {
        panic!("the journal says it once: {:?}", after.repairs);
    };
    assert!(
        note.starts_with(&format!(
            "repair {} at {}: 2 findings",
            done.epoch,
            NOW.as_micros()
        )),
        "{note}"
    );
    assert_eq!((available(&path, payer), available(&path, other)), (0, 950));
    for change in &done.accounts {
        let after = change.available_after.get();
        assert_eq!(after, available(&path, change.account));
    }

    assert_eq!(
        repair(&path).findings,
        [],
        "there is nothing left to repair"
    );
    let store = sqlite::open(&path, options()).expect("it opens");
    let ledger = start(&store);
    assert_eq!(sell(&ledger, payer, 400..401), 0, "the credit is spent");
    assert_eq!(sell(&ledger, other, 500..501), 10);
    assert_ledger_balances(&store);
}

/// Credit of an open hold comes back, so an open hold is no reason for a correction.
#[test]
fn open_holds_are_released_before_balances_are_corrected() {
    //   open holds of the first process, its sales, the correction; the second process sells the full 100
    for (held, sold, corrected) in [
        (&[100][..], 0, 0),
        (&[60, 40], 0, 0),
        (&[70], 30, 30),
        (&[], 30, 30),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let original = folder.path().join("original.db");
        let (first_store, first) = process(&original, false, 65_536);
        let payer = account_with(&first_store, &first, 1, 100, 0);
        let (second_store, second) = process(&original, false, 65_536);
        let mut open = Vec::new();
        for (number, amount) in (1..).zip(held) {
            let mut hold = first
                .hold(request(payer, number, *amount), |_| None)
                .now()
                .expect("it is alone")
                .expect("there is credit");
            wait(hold.durable()).expect("the hold is durable");
            open.push(hold);
        }
        assert_eq!(sell(&first, payer, 100..100 + sold / 10), sold as i64);
        assert_eq!(sell(&second, payer, 200..210), 100);
        for store in [&first_store, &second_store] {
            wait(flush(&**store)).expect("everything is durable");
        }
        std::mem::forget((first, second, open, first_store, second_store));
        let path = folder.path().join("t.db");
        sqlite::backup(&original, &path).expect("a copy");

        let done = repair(&path);
        let case = format!("{held:?} held, {sold} sold: {:#?}", done.findings);
        let released = done.findings.iter().filter_map(|one| match one.action {
            Action::Release(amount) => Some(amount.get()),
            _ => None,
        });
        assert_eq!(released.sum::<i64>(), held.iter().sum::<i64>(), "{case}");
        for is_started in [false, true] {
            if is_started {
                let store = sqlite::open(&path, options()).expect("it opens");
                let (_, started) =
                    Ledger::start(Arc::clone(&store), NOW).expect("the ledger starts");
                assert_eq!(started.orphans, 0, "{case}");
                store.close();
            }
            let report = report_of(&path);
            assert!(report.clean(), "{}\n{case}", violations_of(&report));
            let sums = &report.sums;
            assert_eq!((sums.held.get(), sums.available.get()), (0, 0), "{case}");
            assert_eq!(sums.corrected.get(), -corrected, "{case}");
            assert_eq!(sums.spent.get(), 100 + sold as i64, "{case}");
            assert_eq!(available(&path, payer), 0, "{case}");
        }
    }
}

/// Both processes have posted balances meanwhile. Balances and open holds differ from the journal, and one process may have stopped because
/// of the difference.
#[test]
fn a_ledger_posted_to_by_two_processes_is_repaired_with_every_acknowledged_unit() {
    let folder = tempfile::tempdir().expect("a folder");
    let original = folder.path().join("original.db");
    let (first_store, first) = process(&original, false, 7);
    let payer = account_with(&first_store, &first, 1, 300, 0);
    let other = account_with(&first_store, &first, 2, 1000, 0);
    let (second_store, second) = process(&original, false, 7);
    let mut sold = 0;
    for round in 0..6 {
        let numbers = |seller: u64| (1000 * seller + 10 * round)..(1000 * seller + 10 * round + 5);
        sold += sell(&first, payer, numbers(1)) + sell(&second, payer, numbers(2));
        sold += sell(&first, other, numbers(3)) + sell(&second, other, numbers(4));
    }
    std::mem::forget((first, second, first_store, second_store));
    let path = folder.path().join("t.db");
    sqlite::backup(&original, &path).expect("a copy");
    let before = report_of(&path);
    let found = violations_of(&before);
    assert!(found.contains("the entries add up to"), "{found}");
    assert!(
        sqlite::rebuild_postings(&path, options()).is_err(),
        "it is refused"
    );
    repair(&path);
    let after = report_of(&path);
    assert!(after.clean(), "{}", violations_of(&after));
    assert_eq!(after.sums.spent.get(), sold, "as it was acknowledged");
    assert!(
        after.sums.corrected.get() < 0,
        "more than 300 was sold of 300"
    );
}

/// A journal of two runs with lost or changed commits: the repair keeps the remainder.
#[test]
fn every_provable_commit_is_kept_by_a_repair() {
    /// The id of commit `number` of run 1.
    const RUN: &str = "((1 << 56) | (1 << 34))";
    //   edit, spent afterwards, available; of 100, with three sales of 10 in each of two runs
    for (edit, spent, free) in [
        ("", 60, 40),
        // The commit with the hold of the first sale: the settlement stays as a charge.
        ("DELETE FROM journal WHERE id = RUN + 4", 60, 40),
        // The commit of a settlement: the hold is open, and is released.
        ("DELETE FROM journal WHERE id = RUN + 5", 50, 50),
        ("DELETE FROM journal WHERE id IN (RUN + 4, RUN + 5)", 50, 50),
        // The commit of the grant: sales without credit are impossible, and are corrected.
        ("DELETE FROM journal WHERE id = RUN + 1", 60, 0),
        (
            "UPDATE journal SET body = substr(body, 1, length(body) - 1) WHERE id = RUN + 5",
            50,
            50,
        ),
        (
            "UPDATE journal SET sum_avail = sum_avail + 1 WHERE id = RUN + 5",
            50,
            50,
        ),
        (
            "UPDATE journal SET id = id + 1000 WHERE id = RUN + 5",
            50,
            50,
        ),
        (
            "DELETE FROM journal WHERE id > RUN + 5 AND id < RUN + 4096",
            50,
            50,
        ),
        (
            "DELETE FROM nodes; DELETE FROM journal WHERE id = RUN + 4",
            60,
            40,
        ),
        (
            "UPDATE nodes SET posted = 0, epoch = 1; DELETE FROM journal WHERE id = RUN + 4",
            60,
            40,
        ),
        (
            "UPDATE accounts SET available = 7; DELETE FROM holds; DELETE FROM postings; DELETE FROM journal WHERE id = RUN + 4",
            60,
            40,
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        for run in 0..2 {
            let store = sqlite::open(&path, options()).expect("it opens");
            let ledger = start(&store);
            let payer = account(1);
            if run == 0 {
                account_with(&store, &ledger, 1, 100, 0);
            }
            wait(ledger.load(payer)).expect("it can be loaded");
            for number in 0..3 {
                let mut hold = ledger
                    .hold(request(payer, run * 10 + number, 10), |_| None)
                    .now()
                    .expect("it is alone")
                    .expect("there is credit");
                wait(hold.durable()).expect("the hold is durable");
                wait(hold.settle(settle(10))).expect("it is settled");
            }
            store.close();
        }
        let connection = Connection::open(&path).expect("the file opens");
        let sql = edit.replace("RUN", RUN);
        connection
            .execute_batch(&sql)
            .unwrap_or_else(|error| panic!("`{edit}`: {error}"));
        drop(connection);
        assert_eq!(report_of(&path).clean(), edit.is_empty(), "`{edit}`");
        let done = repair(&path);
        assert_eq!(done.findings.is_empty(), edit.is_empty(), "`{edit}`");
        let after = report_of(&path);
        assert!(
            after.clean(),
            "`{edit}`: {}\n{:#?}",
            violations_of(&after),
            done.findings
        );
        let sums = (after.sums.spent.get(), available(&path, account(1)));
        assert_eq!(sums, (spent, free), "`{edit}`: {:#?}", done.findings);
        let store = sqlite::open(&path, options()).expect("it opens");
        let ledger = start(&store);
        assert_eq!(
            sell(&ledger, account(1), 100..101),
            if free == 0 { 0 } else { 10 },
            "`{edit}`"
        );
        assert_ledger_balances(&store);
    }
}

/// Only possible with two processes: both start or end one operation, or book one reference.
#[test]
fn the_first_start_end_and_booking_of_an_operation_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let original = folder.path().join("original.db");
    let (first_store, first) = process(&original, false, 65_536);
    let payer = account_with(&first_store, &first, 1, 100, 0);
    let mut hold = first
        .hold(request(payer, 1, 40), |_| None)
        .now()
        .expect("it is alone")
        .expect("there is credit");
    wait(hold.durable()).expect("the hold is durable");
    // Without the recovery, which would release the hold.
    let options = Options {
        lock: Some(Lock::disabled()),
        fenced: false,
        ..options()
    };
    let second_store = sqlite::open(&original, options).expect("nothing keeps it off");
    let settlement = |charged| LedgerPart::Settle {
        operation: operation(1),
        account: payer,
        held: Micros::new(40),
        charged: Micros::new(charged),
        written_off: Micros::ZERO,
        price_version: None,
        usage: usage(),
        at: NOW,
    };
    let charge = |charged| LedgerPart::Charge {
        operation: operation(2),
        account: payer,
        charged: Micros::new(charged),
        written_off: Micros::ZERO,
        price_version: None,
        usage: usage(),
        at: NOW,
    };
    let grant = |number, amount| LedgerPart::Credit {
        operation: operation(number),
        account: payer,
        kind: EntryKind::Grant,
        amount: Micros::new(amount),
        reference: Arc::from("order"),
        at: NOW,
    };
    let write = |store: &Arc<dyn Store>, part| {
        let unit = UnitOfWork::of(Part::Ledger(part), Admission::Always);
        wait(commit(&**store, unit)).expect("it is written");
    };
    for part in [settlement(30), charge(5), grant(3, 50)] {
        write(&first_store, part);
    }
    let connection = Connection::open(&original).expect("the file opens");
    let forget = "DELETE FROM credit_references WHERE reference = 'order'";
    connection
        .execute_batch(forget)
        .expect("as another log would have it");
    drop(connection);
    for part in [settlement(20), charge(6), grant(4, 60)] {
        write(&second_store, part);
    }
    std::mem::forget((first, hold, first_store, second_store));
    let path = folder.path().join("t.db");
    sqlite::backup(&original, &path).expect("a copy");
    assert!(!report_of(&path).clean());
    let done = repair(&path);
    let taken_out: Vec<_> = done
        .findings
        .iter()
        .filter(|one| matches!(one.action, Action::Quarantine(_)))
        .map(|one| (one.operation, &*one.what))
        .collect();
    assert_eq!(
        taken_out,
        [
            (Some(operation(1)), "ends its operation a second time"),
            (Some(operation(2)), "begins its operation a second time"),
            (
                Some(operation(4)),
                "books the reference `order` a second time"
            ),
        ]
    );
    let after = report_of(&path);
    assert!(after.clean(), "{}", violations_of(&after));
    assert_eq!(after.sums.spent.get(), 30 + 5);
    assert_eq!(available(&path, payer), 100 - 30 - 5 + 50);
}

#[test]
fn a_damaged_file_is_not_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    damaged(&folder.path().join("original.db"));
    sqlite::backup(&folder.path().join("original.db"), &path).expect("a copy");
    let mut bytes = std::fs::read(&path).expect("the file");
    let page = bytes.len() / 4096 / 2 * 4096;
    bytes[page..page + 4096].fill(0);
    std::fs::write(&path, &bytes).expect("written");
    let refused = sqlite::repair(&path, options()).expect_err("it is refused");
    assert!(
        refused.to_string().contains("put a backup in its place"),
        "{refused}"
    );
}
