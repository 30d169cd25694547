//! Credit that becomes durable together with its purchase.

use std::sync::Arc;

use super::open;
use super::testbed::{bed, options};
use crate::support::{NOW, account, operation, request, settle, start, wait};
use tollgate_ledger::{AttachedPart, Credit, CreditError, HoldError, Ledger, SettleError};
use tollgate_money::{CapPeriod, CredentialId, Micros, SpendingCap, TopUpId, Usd};
use tollgate_store::{
    Admission, CacheScope, NewAccount, Part, Refusal, Store, TopUpPart, TopUpRow, TopUpState,
    UnitOfWork, commit, commit_blocking,
};

fn row(version: i64) -> TopUpRow {
    TopUpRow {
        id: TopUpId::from_bytes([3; 16]),
        account: account(1),
        state: TopUpState::Captured,
        version,
        price: Usd::from_cents(100),
        credits: Micros::new(100),
        create_key: Arc::from("k"),
        order: None,
        approve_url: None,
        capture_key: None,
        capture: None,
        declines: 0,
        returned: Usd::ZERO,
        taken_back: Micros::ZERO,
        owed: Micros::ZERO,
        note: None,
        attempts: 0,
        next_attempt_at: None,
        notifications: 0,
        acknowledged: 0,
        created_at: NOW,
        updated_at: NOW,
    }
}

fn change(version: i64) -> Part {
    Part::TopUp(Box::new(TopUpPart::Change(row(version))))
}

fn credit(number: u64, amount: i64, reference: &str) -> Credit {
    Credit {
        operation: operation(number),
        account: account(1),
        amount: Micros::new(amount),
        reference: Arc::from(reference),
        at: NOW,
    }
}

fn ledger_with_purchase(store: &Arc<dyn Store>) -> Ledger {
    let ledger = start(store);
    make_purchase(store);
    ledger
}

/// Makes an account and its purchase, once the ledger observes the store.
fn make_purchase(store: &Arc<dyn Store>) {
    let made = NewAccount {
        id: account(1),
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: NOW,
    };
    let begun = TopUpPart::Begin(row(0));
    let parts = [
        Part::CreateAccount(Box::new(made)),
        Part::TopUp(Box::new(begun)),
    ];
    wait(commit(
        &**store,
        UnitOfWork::of_all(parts, Admission::Normal),
    ))
    .expect("stored");
}

#[test]
fn credit_and_its_purchase_are_written_together_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let ledger = ledger_with_purchase(&store);
    let available = || ledger.available(account(1)).expect("an account").get();
    let version = || {
        let row = store.top_up(row(0).id).expect("readable");
        row.expect("stored").version
    };
    let moved = wait(ledger.top_up_with(credit(1, 100, "capture"), change(5)));
    assert!(
        matches!(
            &moved,
            Err(CreditError::Conflict(Refusal::TopUpConflict(_)))
        ),
        "{moved:?}"
    );
    assert_eq!((available(), version()), (0, 0), "nothing of it happened");
    let booked = wait(ledger.top_up_with(credit(2, 100, "capture"), change(1)));
    assert!(!booked.expect("it is booked").repeated);
    assert_eq!((available(), version()), (100, 1));
    // The credit is already booked: only the purchase changes.
    let again = wait(ledger.top_up_with(credit(3, 100, "capture"), change(2)));
    assert!(again.expect("it is booked").repeated);
    assert_eq!((available(), version()), (100, 2));
}

/// Owed credits were spendable until taken back.
#[test]
fn credits_that_a_returned_payment_owes_are_not_spendable() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let mut ledger = ledger_with_purchase(&store);
    let owing = |version, owed| {
        let owed = Micros::new(owed);
        let row = TopUpRow {
            owed,
            ..row(version)
        };
        vec![Part::TopUp(Box::new(TopUpPart::Change(row)))]
    };
    wait(ledger.top_up_with(credit(1, 100, "capture"), change(1))).expect("it is booked");
    let hold = ledger
        .hold(request(account(1), 11, 80), |_| None)
        .now()
        .expect("it is alone")
        .expect("it fits");
    let returned = ledger.take_back(credit(2, -20, "returned"), owing(2, 80));
    wait(returned).expect("what is not held");
    hold.release(NOW);
    for is_started_again in [false, true] {
        if is_started_again {
            store.close();
            drop((store, ledger));
            store = open(folder.path());
            ledger = start(&store);
            wait(ledger.load(account(1))).expect("it is loaded");
        }
        assert_eq!(ledger.available(account(1)), Some(Micros::new(80)));
        let held = ledger
            .hold(request(account(1), 12, 1), |_| None)
            .now()
            .expect("it is alone");
        assert!(
            matches!(held, Err(HoldError::InsufficientCredit { available, .. }) if available == Micros::ZERO),
            "{held:?}"
        );
        let other = wait(ledger.correct_with(credit(3, -1, "other"), Vec::new()));
        assert!(other.is_err(), "{other:?}");
    }
    // Incoming credit goes to the debt first.
    wait(ledger.top_up_with(credit(4, 30, "more"), owing(3, 80).remove(0))).expect("it is booked");
    drop(
        ledger
            .hold(request(account(1), 13, 30), |_| None)
            .now()
            .expect("it is alone")
            .expect("30 are not owed"),
    );
    assert!(
        ledger
            .hold(request(account(1), 14, 31), |_| None)
            .now()
            .expect("it is alone")
            .is_err()
    );
    wait(ledger.take_back(credit(5, -80, "returned/80"), owing(4, 0))).expect("it is owed");
    assert!(
        ledger
            .hold(request(account(1), 15, 30), |_| None)
            .now()
            .expect("it is alone")
            .is_ok()
    );
}

#[test]
fn a_correction_is_undone_when_its_purchase_changed_concurrently() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let ledger = ledger_with_purchase(&store);
    wait(ledger.top_up_with(credit(1, 100, "capture"), change(1))).expect("it is booked");
    let moved = wait(ledger.correct_with(credit(2, -40, "refund"), vec![change(1)]));
    assert!(matches!(moved, Err(CreditError::Conflict(_))), "{moved:?}");
    assert_eq!(ledger.available(account(1)), Some(Micros::new(100)));
    wait(ledger.correct_with(credit(3, -40, "refund"), vec![change(2)])).expect("it is booked");
    assert_eq!(ledger.available(account(1)), Some(Micros::new(60)));
    let again = wait(ledger.correct_with(credit(4, -40, "refund"), vec![change(3)]));
    assert!(again.expect("it is booked").repeated);
    assert_eq!(
        ledger.available(account(1)),
        Some(Micros::new(60)),
        "taken once"
    );
}

#[test]
fn what_a_refused_settlement_would_leave_of_its_hold_is_decided_on_after_its_release_only() {
    let bed = bed(options());
    let ledger = &bed.ledger;
    make_purchase(&bed.store);
    wait(ledger.top_up_with(credit(1, 100, "capture"), change(1))).expect("it is booked");
    let mut hold = ledger
        .hold(request(account(1), 2, 100), |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");
    wait(hold.durable()).expect("it is durable");
    let resume = bed.stop_writer();
    let settlement = hold.settle_with(settle(30), Some(AttachedPart::new(|_| change(1))));
    assert_eq!(settlement.settled().available, Micros::new(70));
    let early = ledger
        .hold(request(account(1), 3, 60), |_| None)
        .now()
        .expect("it is alone");
    assert!(
        matches!(early, Err(HoldError::InsufficientCredit { .. })),
        "{early:?}"
    );
    drop(resume);
    let refused = wait(settlement);
    assert!(
        matches!(refused, Err(SettleError::Refused { .. })),
        "{refused:?}"
    );
    let mut all = ledger
        .hold(request(account(1), 4, 100), |_| None)
        .now()
        .expect("it is alone")
        .expect("all of it");
    wait(all.durable()).expect("the store has it too");
    let kept = all.settle_with(settle(30), Some(AttachedPart::new(|_| change(2))));
    wait(kept).expect("it is durable");
    assert_eq!(bed.balance(account(1)), (70, 0));
    assert!(bed.store.failure().is_none());
}

#[test]
fn a_settlement_without_a_waiting_client_counts_against_its_cap_unless_the_store_refuses_it() {
    let bed = bed(options());
    let ledger = &bed.ledger;
    make_purchase(&bed.store);
    wait(ledger.top_up_with(credit(1, 100, "capture"), change(1))).expect("it is booked");
    let key = CredentialId::from_bytes([9; 16]);
    let cap = SpendingCap {
        max: Micros::new(50),
        period: CapPeriod::Total,
    };
    wait(ledger.load_spending((key, account(1)), cap, NOW)).expect("a read");
    let left = || {
        let wanted = request(account(1), 9, 51).in_memory();
        let refused = ledger.hold_cap((key, cap), wanted, |_| None).now();
        match refused.expect("it is alone") {
            Err(HoldError::InsufficientCredit { available, .. }) => available.get(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(left(), 50);
    // The first part is out of date, and refused; the second is accepted.
    for (number, version, counted) in [(2, 1, 50), (3, 2, 20)] {
        let wanted = request(account(1), number, 40);
        let reserved = ledger.hold_cap((key, cap), wanted, |_| None).now();
        let reserved = reserved.expect("it is alone").expect("it is left");
        let hold = ledger.hold(wanted, |_| None).now();
        let mut hold = hold.expect("it is alone").expect("credit");
        wait(hold.durable()).expect("it is durable");
        assert_eq!(left(), 10, "reserved");
        let resume = bed.stop_writer();
        let part = AttachedPart::new(move |_| change(version));
        let mut settlement = hold.settle_with(settle(30), Some(part));
        ledger.count(&mut settlement, key, Some(reserved), NOW);
        drop(settlement);
        assert_eq!(left(), 20, "counted at once");
        drop(resume);
        flush(&bed.store);
        assert_eq!(left(), counted, "part {version}");
    }
}

/// Waits until earlier units are durable or refused.
fn flush(store: &Arc<dyn Store>) {
    let unit = UnitOfWork::of_all([], Admission::Always);
    commit_blocking(&**store, unit).expect("it is durable");
}
