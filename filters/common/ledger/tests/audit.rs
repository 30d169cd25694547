//! The audit against books that somebody has been at, each with one edit.

mod support;

use std::sync::Arc;

use rusqlite::Connection;
use support::*;
use tollgate_ledger::audit::{Report, audit, fix_derived};
use tollgate_ledger::{Charge, Credit};
use tollgate_money::{Micros, PaymentId, SubscriptionId, Usd};
use tollgate_store::{
    Admission, EntryKind, Part, PaymentRow, PaymentStatus, PlanPart, Route, Store, SubscriptionRow,
    SubscriptionStatus, UnitOfWork, commit, flush, plan_reference, sqlite,
};

/// A plan that was paid for once, with a credit of 5.
fn buys_the_plan(store: &dyn Store) {
    let end = NOW + 1_000_000;
    let subscription = SubscriptionRow {
        id: SubscriptionId::from_bytes([1; 16]),
        account: account(1),
        route: Route::X402,
        reference: Arc::from("0xab"),
        status: SubscriptionStatus::Active,
        period_start: NOW,
        period_end: end,
        extra: 0,
        renews: false,
        version: 0,
        created_at: NOW,
        updated_at: NOW,
    };
    let payment = PaymentRow {
        id: PaymentId::from_bytes([1; 16]),
        account: account(1),
        subscription: subscription.id,
        route: Route::X402,
        provider_ref: Arc::from("t1"),
        amount: Usd::from_cents(19_900),
        credits: Micros::new(5),
        period_start: NOW,
        period_end: end,
        status: PaymentStatus::Paid,
        receipt: None,
        at: NOW,
        returned_at: None,
    };
    let credit = Credit {
        operation: operation(900),
        account: account(1),
        amount: payment.credits,
        reference: plan_reference(payment.route, &payment.provider_ref),
        at: NOW,
    };
    let class = Arc::from("pro");
    let parts = [
        Part::Plan(Box::new(PlanPart::Pay(payment))),
        Part::Plan(Box::new(PlanPart::Put {
            row: subscription,
            class,
        })),
        credit.part(EntryKind::Grant).expect("a credit"),
    ];
    wait(commit(store, UnitOfWork::of_all(parts, Admission::Ends))).expect("it is durable");
}

/// Books with one of everything: a credit, a settlement below and one beyond its hold, a release, a charge, a free request, an open
/// hold, a plan that was paid for, and a run before this one.
fn whole_books() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for run in 0..2 {
        let store = open(folder.path());
        let ledger = start(&store);
        let payer = match run {
            0 => account_with(&store, &ledger, 1, 1000, 0),
            _ => account(1),
        };
        let hold = |number| {
            ledger
                .hold(request(payer, run * 100 + number, 40))
                .expect("there is credit")
        };
        for actual in [30, 50] {
            let mut hold = hold(actual);
            wait(hold.durable()).expect("the hold is durable");
            wait(hold.settle(settle(actual as i64))).expect("the settlement is durable");
        }
        hold(1).release(NOW);
        for amount in [0, 7] {
            let charge = Charge {
                operation: operation(run * 100 + 10 + amount),
                account: payer,
                amount: Micros::new(amount as i64),
                price_version: Some(1),
                usage: usage(),
                at: NOW,
            };
            wait(ledger.charge(charge).expect("there is room")).expect("it is durable");
        }
        if run == 0 {
            buys_the_plan(&*store);
        }
        // Dropped with the process: the next run gives the first one back, and the second one stays open.
        std::mem::forget(hold(2));
        wait(flush(&*store)).expect("everything is durable");
        store.close();
    }
    folder
}

fn report_after(edit: &str) -> Report {
    let folder = whole_books();
    let path = folder.path().join("t.db");
    let connection = Connection::open(&path).expect("the file opens");
    connection
        .execute_batch("PRAGMA ignore_check_constraints = ON")
        .and_then(|()| connection.execute_batch(edit))
        .unwrap_or_else(|error| panic!("`{edit}`: {error}"));
    drop(connection);
    let reader = sqlite::open_read(&path).expect("the store opens to be read");
    audit(&*reader).expect("the audit runs")
}

#[test]
fn whole_books_balance_and_say_what_is_in_them() {
    let report = report_after("");
    assert!(report.clean(), "{:?}", report.violations);
    assert_eq!(report.accounts, 1);
    assert_eq!(report.open_holds, 1);
    assert_eq!(
        report.usage, 8,
        "two settlements and two charges in each run"
    );
    assert_eq!(report.operations, 14);
    assert_eq!(
        (report.paid.x402, report.paid.x402_amount.cents()),
        (1, 19_900)
    );
    let sums = report.sums;
    assert_eq!(sums.granted, Micros::new(-1005));
    assert_eq!(sums.spent, Micros::new(2 * (30 + 50 + 7)));
    assert_eq!(
        (sums.held, sums.available),
        (Micros::new(40), Micros::new(791))
    );
    assert_eq!(sums.total(), Micros::ZERO);
}

#[test]
fn every_edit_of_the_books_shows() {
    let settled = hex(30);
    let held = hex(102);
    let free = hex(10);
    let charged = hex(17);
    for (edit, shows) in [
        // Balances.
        (
            "UPDATE accounts SET available = available + 1",
            "the entries add up to",
        ),
        (
            "UPDATE accounts SET held = held + 1",
            "the open holds add up to",
        ),
        (
            "UPDATE accounts SET available = available - 5000",
            "below the credit limit",
        ),
        ("DELETE FROM accounts", "is no account"),
        // Holds.
        (&format!("DELETE FROM holds WHERE id = {held}"), "not open"),
        (
            &format!("UPDATE holds SET amount = 41 WHERE id = {held}"),
            "not what its entry says",
        ),
        (
            &format!("UPDATE holds SET id = {settled}"),
            "has ended, or never began",
        ),
        // Operations.
        (
            &format!("DELETE FROM entries WHERE op_id = {settled} AND phase = 0"),
            "without a hold before it",
        ),
        (
            &format!(
                "UPDATE entries SET d_held = -39, d_avail = 9 WHERE op_id = {settled} AND phase = 1"
            ),
            "ends a Hold",
        ),
        (
            &format!("UPDATE entries SET contra = 3 WHERE op_id = {charged}"),
            "no entry that is ever made",
        ),
        (
            &format!("UPDATE entries SET d_avail = 7 WHERE op_id = {charged}"),
            "no entry that is ever made",
        ),
        // Usage.
        (
            &format!("DELETE FROM usage WHERE op_id = {settled}"),
            "without a usage record",
        ),
        (
            &format!("UPDATE usage SET cost = cost + 1 WHERE op_id = {settled}"),
            "a usage record of",
        ),
        (
            &format!("UPDATE usage SET cost = 1 WHERE op_id = {free}"),
            "without a charge",
        ),
        (
            &format!("UPDATE usage SET writeoff = -1 WHERE op_id = {charged}"),
            "a usage record of",
        ),
        // The plan.
        (
            "UPDATE payments SET credits = credits + 1",
            "5 are booked for it",
        ),
        ("DELETE FROM payments", "0 are paid for"),
        ("DELETE FROM payments", "which nobody paid for"),
        (
            "UPDATE subscriptions SET period_end = period_end + 1000000",
            "its plan runs for 2 seconds, and 1 are paid for",
        ),
        (
            "UPDATE accounts SET plan_until = plan_until + 1",
            "is not that of its subscription",
        ),
        // History: edits that keep every sum, and lost commits.
        (
            &format!("UPDATE entries SET at = at + 1 WHERE op_id = {charged}"),
            "was sealed over",
        ),
        (
            &format!(
                "UPDATE entries SET ref = ref || 'x' WHERE ref IS NOT NULL AND op_id <> {charged}"
            ),
            "was sealed over",
        ),
        (
            "DELETE FROM seals WHERE n = 2 AND epoch = 1",
            "has entries and no seal",
        ),
        (
            "UPDATE seals SET hash = zeroblob(32) WHERE n = 2 AND epoch = 1",
            "does not follow",
        ),
        (
            "DELETE FROM seals WHERE n = 3; DELETE FROM entries WHERE batch = 3",
            "does not follow",
        ),
        (
            "UPDATE entries SET batch = 2 WHERE batch = 3 AND epoch = 1",
            "was sealed over",
        ),
    ] {
        let report = report_after(edit);
        assert!(!report.clean(), "`{edit}` goes unseen");
        let seen: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
        assert!(
            seen.iter().any(|violation| violation.contains(shows)),
            "`{edit}` should show as `{shows}`; seen: {seen:#?}"
        );
    }
}

#[test]
fn derived_balances_are_rewritten_from_the_entries_and_nothing_else_is() {
    let folder = whole_books();
    let path = folder.path().join("t.db");
    let connection = Connection::open(&path).expect("the file opens");
    connection
        .execute_batch("UPDATE accounts SET available = available + 500, held = held + 3")
        .expect("the edit");
    drop(connection);
    let store = open(folder.path());
    let before = audit(&*store).expect("the audit runs");
    assert_eq!(before.derived_differences.len(), 1);
    let fixed = fix_derived(&*store, NOW).expect("it is rewritten");
    assert_eq!(fixed, before.derived_differences);
    assert_eq!(fixed[0].stored, (Micros::new(1291), Micros::new(43)));
    assert_eq!(fixed[0].summed, (Micros::new(791), Micros::new(40)));
    assert_books_balance(&store);
    let after = audit(&*store).expect("the audit runs");
    assert_eq!((after.entries, after.seals), (before.entries, before.seals));
    assert!(
        fix_derived(&*store, NOW).expect("nothing to do").is_empty(),
        "a second time there is nothing to rewrite"
    );
    drop(Arc::clone(&store));
}

/// The audit of a store that serves looks at one instant: commits that come meanwhile are no differences.
#[test]
fn an_audit_beside_work_sees_one_instant() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let ledger = start(&store);
    let payer = account_with(&store, &ledger, 1, 1_000_000, 0);
    std::thread::scope(|scope| {
        let working = &ledger;
        let worker = scope.spawn(move || {
            for number in 0..3000 {
                let hold = working
                    .hold(request(payer, number, 10))
                    .expect("there is credit");
                let settlement = hold.settle(settle(3));
                if number % 50 == 0 {
                    wait(settlement).expect("it is durable");
                }
            }
        });
        let reader = sqlite::open_read(&folder.path().join("t.db")).expect("it opens beside");
        let mut audits = 0;
        while !worker.is_finished() || audits == 0 {
            let report = audit(&*reader).expect("the audit runs");
            assert!(report.clean(), "{:?}", report.violations);
            audits += 1;
        }
    });
    assert_books_balance(&store);
}

fn hex(number: u64) -> String {
    let bytes = operation(number);
    let digits: String = bytes
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("x'{digits}'")
}
