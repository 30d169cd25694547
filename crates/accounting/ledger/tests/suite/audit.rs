//! The audit against manipulated ledgers, with one edit each.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{database, engine, open};
use crate::support::*;
use tollgate_ledger::audit::{Report, audit};
use tollgate_ledger::{Charge, Credit};
use tollgate_money::{Micros, OperationId, PaymentId, SubscriptionId, Usd};
use tollgate_store::{
    Admission, AuditEvent, AuditOutcome, EntryKind, Part, PaymentRow, PaymentStatus, PlanPart,
    Route, Store, SubscriptionRow, SubscriptionStatus, UnitOfWork, commit, flush, plan_reference,
};

/// A plan paid for once, with a credit of 5.
fn buys_the_plan(store: &dyn Store) {
    let end = NOW + Duration::from_secs(1);
    let subscription = SubscriptionRow {
        id: SubscriptionId::from_bytes([1; 16]),
        account: account(1),
        route: Route::X402,
        reference: Arc::from("0xab"),
        status: SubscriptionStatus::Active,
        period_start: NOW,
        period_end: end,
        extra: Duration::ZERO,
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
        owed: None,
        attempts: 0,
        next_attempt_at: None,
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
    wait(commit(store, UnitOfWork::of_all(parts, Admission::Always))).expect("it is durable");
}

/// Records an act of an operator.
fn records_an_act(store: &dyn Store) {
    let event = AuditEvent {
        at: NOW,
        actor: Arc::from("token ops"),
        action: Arc::from("account_class"),
        subject: Some(Arc::from(account(1).to_string())),
        request: Arc::from("req_1"),
        outcome: AuditOutcome::Done,
        detail: Arc::from("{}"),
    };
    let unit = UnitOfWork::of(Part::Audit(Box::new(event)), Admission::Normal);
    wait(commit(store, unit)).expect("it is durable");
}

/// A ledger with an example of each operation: a credit, a settlement below its hold and one beyond its hold, a release, a charge, a free
/// request, an open hold, a paid plan, and a previous run.
fn whole_books() -> tempfile::TempDir {
    static BOOKS: OnceLock<tempfile::TempDir> = OnceLock::new();
    database::copy(BOOKS.get_or_init(make_books).path())
}

fn make_books() -> tempfile::TempDir {
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
                .hold(request(payer, run * 100 + number, 40), |_| None)
                .now()
                .expect("it is alone")
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
            wait(ledger.charge(charge).expect("the queue has capacity")).expect("it is durable");
        }
        if run == 0 {
            buys_the_plan(&*store);
        }
        // Dropped with the process: the next run releases the first hold, and the second hold stays open.
        std::mem::forget(hold(2));
        wait(flush(&*store)).expect("everything is durable");
        records_an_act(&*store);
        store.close();
    }
    folder
}

fn report_of(folder: &tempfile::TempDir) -> Report {
    let reader = engine::open_read(folder.path());
    audit(&reader).expect("the audit runs")
}

/// Edits the ledger as with a database shell.
fn report_after(edit: &str) -> Report {
    let folder = whole_books();
    database::edit(folder.path(), edit);
    report_of(&folder)
}

/// The start of a record's fields: after its length, kind, operation, account and time.
const FIELDS: usize = 2 + 1 + 16 + 16 + 8;

/// The replacement of a record.
type Edit = fn(Vec<u8>) -> Vec<Vec<u8>>;

/// Edits the packed records of one operation: `edit` returns the replacement of a record.
fn report_of_edited(operation: OperationId, edit: Edit) -> Report {
    let folder = whole_books();
    for (id, body) in database::bodies(folder.path()) {
        let (mut edited, mut rest) = head_of(&body);
        while !rest.is_empty() {
            let length = 2 + usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            let record = rest.drain(..length).collect::<Vec<u8>>();
            if record[3..19] == operation.as_bytes()[..] {
                edit(record)
                    .into_iter()
                    .flatten()
                    .for_each(|byte| edited.push(byte));
            } else {
                edited.extend(record);
            }
        }
        let body = engine::bytes(&edited);
        let update = format!("UPDATE journal SET body = {body} WHERE id = {id}");
        engine::execute(folder.path(), &update);
    }
    report_of(&folder)
}

/// Splits a body: the bytes before the records, and the records. All numbers in the head are below 128.
fn head_of(body: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut end = 2;
    for _ in 0..body[1] {
        end += 1 + usize::from(body[end]);
    }
    (body[..end].to_vec(), body[end..].to_vec())
}

fn seen(report: &Report) -> Vec<String> {
    report.violations.iter().map(ToString::to_string).collect()
}

#[test]
fn an_intact_ledger_balances_and_is_reported_with_its_sums() {
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
fn every_edit_of_the_ledger_shows() {
    let settled = hex(30);
    let held = hex(102);
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
        ("DELETE FROM accounts", "is not an account"),
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
        // The owner's view, and the references, which prevent a second booking.
        (
            "DELETE FROM postings",
            "its postings or references are not what the journal says",
        ),
        (
            "UPDATE postings SET body = CAST(substr(body, 1, length(body) - 1) || x'7f' AS BLOB)",
            "its postings or references are not what the journal says",
        ),
        (
            "DELETE FROM credit_references WHERE amount = 5",
            "its postings or references are not what the journal says",
        ),
        (
            "UPDATE credit_references SET reference = reference || '2'",
            "its postings or references are not what the journal says",
        ),
        (
            "UPDATE postings SET at_max = 0",
            "its postings or references are not what the journal says",
        ),
        (
            "UPDATE postings SET at_min = 9",
            "its postings or references are not what the journal says",
        ),
        // The posting position: posted commits must not be counted again.
        ("UPDATE nodes SET posted = 0", "the entries add up to"),
        (
            "UPDATE nodes SET posted = posted - 1",
            "the entries add up to",
        ),
        (
            "UPDATE nodes SET posted = 0",
            "its postings or references are not what the journal says",
        ),
        (
            "DELETE FROM nodes",
            "its postings or references are not what the journal says",
        ),
        // The plan.
        (
            "UPDATE payments SET credits = credits + 1",
            "5 are booked for it",
        ),
        ("DELETE FROM payments", "0 are paid for"),
        ("DELETE FROM payments", "without a payment"),
        (
            "UPDATE subscriptions SET period_end = period_end + 1000000",
            "its plan runs for 2 seconds, and 1 are paid for",
        ),
        (
            "UPDATE accounts SET plan_until = plan_until + 1",
            "is not that of its subscription",
        ),
        (
            "UPDATE nodes SET posted = posted + 1000",
            "has posted a commit that is not in the journal",
        ),
        // History: lost, moved, cut or resealed commits.
        (
            "DELETE FROM journal WHERE (id & 15) = 2 AND (id >> 34 & 15) = 1",
            "does not follow",
        ),
        (
            "DELETE FROM journal WHERE id = (SELECT max(id) FROM journal WHERE (id >> 34 & 15) = 1)",
            "does not follow",
        ),
        (
            "DELETE FROM journal WHERE id = (SELECT max(id) FROM journal)",
            "the entries add up to",
        ),
        (
            "UPDATE journal SET hash = zeroblob(32) WHERE (id & 15) = 2",
            "does not follow",
        ),
        (
            "UPDATE journal SET hash = zeroblob(3) WHERE (id & 15) = 2",
            "was sealed over",
        ),
        (
            "UPDATE journal SET id = id + 100 WHERE (id & 15) = 2",
            "does not follow",
        ),
        (
            "UPDATE journal SET sum_avail = sum_avail + 1 WHERE (id & 15) = 2",
            "was sealed over",
        ),
        (
            "UPDATE journal SET body = substr(body, 1, length(body) - 1)",
            "ends in the middle of a record",
        ),
        (
            "UPDATE journal SET body = CAST(x'02' || substr(body, 2) AS BLOB)",
            "is of a version that this one does not know",
        ),
        // The audit log: changed or lost records, and records of another program.
        (
            "UPDATE audit_log SET actor = 'uid 1' WHERE number = 2",
            "record 2 of node 1 in the audit log was changed after it was written",
        ),
        (
            "UPDATE audit_log SET subject = NULL WHERE number = 1",
            "record 1 of node 1 in the audit log was changed",
        ),
        (
            "DELETE FROM audit_log WHERE number = 1",
            "record 2 of node 1 in the audit log is the first after record 0",
        ),
        (
            "DELETE FROM audit_log WHERE number = 1; UPDATE audit_log SET number = number - 1",
            "record 1 of node 1 in the audit log does not follow the one before it",
        ),
        (
            "INSERT INTO audit_log SELECT node, number + 2, at, actor, action, subject, request, outcome, detail, prev, hash
             FROM audit_log WHERE number = 1",
            "record 3 of node 1 in the audit log does not follow",
        ),
    ] {
        let report = report_after(edit);
        assert!(!report.clean(), "`{edit}` goes unseen");
        let seen = seen(&report);
        assert!(
            seen.iter().any(|violation| violation.contains(shows)),
            "`{edit}` should show as `{shows}`; seen: {seen:#?}"
        );
    }
}

#[test]
fn every_edit_of_a_record_shows() {
    let (settled, charged) = (operation(30), operation(17));
    //   name, operation, edit, violation
    let edits: [(&str, OperationId, Edit, &str); 8] = [
        (
            "a hold taken out",
            settled,
            |record| if record[2] == 1 { vec![] } else { vec![record] },
            "without a hold before it",
        ),
        (
            "another hold ended",
            settled,
            |mut record| {
                if record[2] == 2 {
                    record[FIELDS] -= 2;
                }
                vec![record]
            },
            "ends a Hold",
        ),
        (
            "a charge that gives",
            charged,
            |mut record| {
                record[FIELDS] -= 1;
                vec![record]
            },
            "no entry that is ever made",
        ),
        (
            "a charge taken twice",
            charged,
            |record| vec![record.clone(), record],
            "begins a second time",
        ),
        (
            "less than nothing written off",
            charged,
            |mut record| {
                record[FIELDS + 1] += 1;
                vec![record]
            },
            "a usage record of",
        ),
        (
            "another time",
            charged,
            |mut record| {
                record[FIELDS - 8] ^= 1;
                vec![record]
            },
            "was sealed over",
        ),
        (
            "another duration",
            charged,
            |mut record| {
                *record.last_mut().expect("a byte") ^= 1;
                vec![record]
            },
            "was sealed over",
        ),
        (
            "a kind of no version",
            charged,
            |mut record| {
                record[2] = 200;
                vec![record]
            },
            "of a kind that this version does not know",
        ),
    ];
    for (what, whose, edit, shows) in edits {
        let report = report_of_edited(whose, edit);
        let seen = seen(&report);
        assert!(
            seen.iter().any(|violation| violation.contains(shows)),
            "{what} should show as `{shows}`; seen: {seen:#?}"
        );
    }
    let untouched = report_of_edited(charged, |record| vec![record]);
    assert!(untouched.clean(), "{:?}", untouched.violations);
}

#[test]
fn everything_derived_is_rebuilt_from_the_journal_and_nothing_else_changes() {
    for edit in [
        "",
        "UPDATE accounts SET available = available + 500, held = held + 3",
        // Damage that prevents every start.
        "UPDATE accounts SET available = -5000; UPDATE nodes SET posted = 0",
        "DELETE FROM holds",
        "DELETE FROM postings",
        "UPDATE postings SET body = x'0100', at_max = 5",
        "DELETE FROM credit_references",
        "UPDATE credit_references SET amount = amount + 1",
    ] {
        let folder = whole_books();
        let before = report_of(&folder);
        database::edit(folder.path(), edit);
        assert_eq!(report_of(&folder).clean(), edit.is_empty(), "`{edit}`");
        database::rebuild_postings(folder.path()).expect("it is rebuilt");
        assert_eq!(report_of(&folder), before, "`{edit}`");
        let store = open(folder.path());
        let (_, started) =
            tollgate_ledger::Ledger::start(Arc::clone(&store), NOW).expect("the ledger starts");
        assert_eq!(started.orphans, 1, "`{edit}`: the open hold is given back");
        assert_ledger_balances(&store);
    }
}

#[test]
fn nothing_is_rebuilt_from_a_journal_that_differs_from_its_seals() {
    for edit in [
        "UPDATE journal SET body = substr(body, 1, length(body) - 1) WHERE (id & 15) = 2",
        "UPDATE journal SET sum_avail = sum_avail + 1 WHERE (id & 15) = 2",
        "DELETE FROM journal WHERE (id & 15) = 2",
    ] {
        let folder = whole_books();
        let edit = format!("UPDATE accounts SET available = available + 500; {edit}");
        database::edit(folder.path(), &edit);
        let balance = || engine::number(folder.path(), "SELECT available FROM accounts");
        let before = balance();
        let refused = database::rebuild_postings(folder.path()).expect_err("it is refused");
        assert!(
            refused.to_string().contains("from its seal"),
            "`{edit}`: {refused}"
        );
        assert_eq!(balance(), before, "`{edit}`: and unchanged");
    }
}

/// The audit of a running store reads one snapshot: concurrent commits are no differences.
#[test]
fn an_audit_during_writes_sees_one_snapshot() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let ledger = start(&store);
    let payer = account_with(&store, &ledger, 1, 1_000_000, 0);
    std::thread::scope(|scope| {
        let working = &ledger;
        let worker = scope.spawn(move || {
            for number in 0..3000 {
                let hold = working
                    .hold(request(payer, number, 10), |_| None)
                    .now()
                    .expect("it is alone")
                    .expect("there is credit");
                let settlement = hold.settle(settle(3));
                if number % 50 == 0 {
                    wait(settlement).expect("it is durable");
                }
            }
        });
        let reader = engine::open_read(folder.path());
        let mut audits = 0;
        while !worker.is_finished() || audits == 0 {
            let report = audit(&reader).expect("the audit runs");
            assert!(report.clean(), "{:?}", report.violations);
            audits += 1;
        }
    });
    assert_ledger_balances(&store);
}

fn hex(number: u64) -> String {
    format!(
        "x'{:x}'",
        base16ct::HexDisplay(operation(number).as_bytes())
    )
}
