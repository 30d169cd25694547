//! A spool that comes back after retention has removed the journal of its time. Its charges were not found in the remaining journal, and
//! were made a second time. Now the log names the charges, and the start does not repeat the charges.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_ledger::Settle;
use tollgate_store::postgres::{NodeRole, Options};
use tollgate_store::retention::Retention;
use tollgate_testing::tempdir;

use super::support::{account_with, credit_of, operation, settle};
use super::{Fixture, Node, assert_books, audit, start, wait};

/// The first instants of the two months after the month of the charges.
const NEXT_MONTH: Timestamp = Timestamp::from_secs(1_701_388_800);
const THIRD_MONTH: Timestamp = Timestamp::from_secs(1_704_067_200);

const DAY: Duration = Duration::from_secs(86_400);

/// Removes the month of the charges.
fn remove_month(node: &Node, folder: &std::path::Path) {
    static NUMBER: AtomicU64 = AtomicU64::new(2_000_000);
    let retention = Retention {
        store: &*node.store,
        folder,
        before: NEXT_MONTH,
        now: &|| THIRD_MONTH,
        new_operation: &|| operation(NUMBER.fetch_add(1, Relaxed)),
        is_stopped: &|| false,
    };
    retention.run(&mut |_, _| {}).expect("it runs");
    let report = audit(&node.store).expect("the audit runs");
    assert!(report.removed_commits > 10, "{}", report.removed_commits);
}

#[test]
fn a_charge_whose_commit_may_have_been_removed_by_retention_is_not_made_again() {
    let fixture = Fixture::new();
    let restart = || {
        start(Options {
            post_records: 7,
            ..fixture.options("a", NodeRole::OneOfMany)
        })
    };
    let node = restart();
    let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    let hold = node.hold(account, 1, 100);
    fixture.link.cut();
    node.settled(hold, 70).expect("it is in the spool");
    node.die();
    fixture.link.restore();
    let copy = std::fs::read(fixture.file()).expect("the spool");
    let node = restart();
    // The last posted commit stays.
    for number in 0..30 {
        let credit = credit_of(account, 1, &format!("credit {number}"), 100 + number);
        wait(node.ledger.grant(credit)).expect("it is booked");
    }
    node.ledger.return_all();
    node.store.close();
    let node = restart();
    let exports = tempdir().expect("a folder");
    remove_month(&node, exports.path());
    assert_books(&node.store, account, 960);
    node.store.close();

    let mut again = std::fs::read(fixture.file()).expect("the spool");
    again.extend_from_slice(&copy[512..]);
    std::fs::write(fixture.file(), again).expect("it is there again");
    let node = restart();
    node.ledger.return_all();
    assert_books(&node.store, account, 960);
    node.store.close();
}

/// All charges of a year would have been lost: the wrong date of one commit counted as the date of the whole removal.
#[test]
fn a_charge_is_made_after_retention_has_removed_a_commit_that_a_wrong_clock_has_dated_later() {
    let fixture = Fixture::new();
    let restart = || {
        start(Options {
            post_records: 7,
            ..fixture.options("a", NodeRole::OneOfMany)
        })
    };
    let node = restart();
    let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    for number in 0..30 {
        let mut credit = credit_of(account, 1, &format!("credit {number}"), 100 + number);
        if number == 0 {
            credit.at = THIRD_MONTH + DAY * 400;
        }
        wait(node.ledger.grant(credit)).expect("it is booked");
    }
    node.ledger.return_all();
    node.store.close();
    let node = restart();
    let exports = tempdir().expect("a folder");
    remove_month(&node, exports.path());
    let hold = node.hold(account, 1, 100);
    fixture.link.cut();
    let charge = Settle {
        at: THIRD_MONTH,
        ..settle(70)
    };
    node.settled_as(hold, charge).expect("it is in the spool");
    node.die();
    fixture.link.restore();
    let node = restart();
    node.ledger.return_all();
    assert_books(&node.store, account, 960);
    node.store.close();
}
