//! Caps of keys in months with removed commits.

use tollgate_store::retention::Retention;

use super::caps::*;
use super::*;

/// Removes older commits; returns the total number of removed commits.
fn remove(node: &Node, folder: &std::path::Path, before: Timestamp) -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let retention = Retention {
        store: &*node.store,
        folder,
        before,
        now: &|| THIRD_MONTH,
        new_operation: &|| operation_at(THIRD_MONTH, NUMBER.fetch_add(1, Relaxed)),
        is_stopped: &|| false,
    };
    retention.run(&mut |_, _| {}).expect("it runs");
    let report = audit(&node.store).expect("the audit runs");
    report.removed_commits
}

/// A charge of 1 December for a request of November counts in November. After the removal of both months only the totals of days are left,
/// with the charge in December. The audit found that the counted spending of both caps differs from the charges.
#[test]
fn the_audit_compares_the_caps_of_months_that_are_not_removed() {
    let server = Postgres::shared();
    let url = server.database();
    let folder = tempfile::tempdir().expect("a folder");
    let a = node(&url, "a");
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    let hold = wait(a.reserve(CapPeriod::Month, account, 1, 400)).expect("it is allowed");
    a.charge(account, 3, 400, NEXT_MONTH, Some(hold));
    let wanted = HoldRequest {
        operation: operation_at(NEXT_MONTH, 5),
        at: NEXT_MONTH,
        ..request(account, 5, 100)
    };
    let unused = wait(
        a.ledger
            .hold_cap((KEY, of(CapPeriod::Month)), wanted, |_| None)
            .finish(),
    );
    unused
        .expect("a month of its own")
        .settle(Micros::ZERO, NEXT_MONTH);
    // The last posted page stays, and must not be this page.
    for number in 0..30 {
        let mut credit = credit_of(account, 1, &format!("credit {number}"), 100 + number);
        credit.at = NEXT_MONTH;
        wait(a.ledger.grant(credit)).expect("it is booked");
    }
    a.close();
    let a = node(&url, "a");
    assert_balanced(&a.store);

    let of_november = remove(&a, folder.path(), NEXT_MONTH);
    assert!(of_november > 0);
    assert_balanced(&a.store);
    let database = url.rsplit('/').next().expect("a name");
    let change_last_month = |by: &str| {
        let month = "(SELECT max(month) FROM cap_allotments)";
        let sql = format!("UPDATE cap_allotments SET spent = spent {by} WHERE month = {month}");
        server.run(database, &sql);
    };
    change_last_month("+ 1");
    let report = audit(&a.store).expect("the audit runs");
    assert!(!report.clean(), "December is compared");
    change_last_month("- 1");
    assert!(remove(&a, folder.path(), THIRD_MONTH) > of_november);
    assert_balanced(&a.store);
}

/// The caps of all months up to the date of the wrong clock were not compared.
#[test]
fn the_audit_compares_caps_when_a_commit_is_removed_that_a_wrong_clock_has_dated_later() {
    let server = Postgres::shared();
    let url = server.database();
    let folder = tempfile::tempdir().expect("a folder");
    let a = node(&url, "a");
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    for number in 0..60 {
        let mut credit = credit_of(account, 1, &format!("credit {number}"), 100 + number);
        credit.at = match number {
            0 => THIRD_MONTH + Duration::from_secs(400 * 86_400),
            1..30 => NOW,
            _ => NEXT_MONTH,
        };
        wait(a.ledger.grant(credit)).expect("it is booked");
    }
    let wanted = HoldRequest {
        operation: operation_at(THIRD_MONTH, 5),
        at: THIRD_MONTH,
        ..request(account, 5, 100)
    };
    let kept = wait(
        a.ledger
            .hold_cap((KEY, of(CapPeriod::Month)), wanted, |_| None)
            .finish(),
    );
    drop(kept.expect("a month of its own"));
    a.close();
    let a = node(&url, "a");
    assert!(remove(&a, folder.path(), NEXT_MONTH) > 20);
    assert_balanced(&a.store);
    let database = url.rsplit('/').next().expect("a name");
    server.run(database, "UPDATE cap_allotments SET spent = spent + 1");
    let report = audit(&a.store).expect("the audit runs");
    assert!(!report.clean(), "January is compared");
    a.close();
}
