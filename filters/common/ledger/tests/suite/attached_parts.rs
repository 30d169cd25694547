//! Credit that becomes durable together with the purchase it belongs to.

use std::sync::Arc;

use super::open;
use crate::support::{NOW, account, operation, start, wait};
use tollgate_ledger::{Credit, CreditError, Ledger};
use tollgate_money::{Micros, TopUpId, Usd};
use tollgate_store::{
    Admission, CacheScope, NewAccount, Part, Refusal, Store, TopUpPart, TopUpRow, TopUpState,
    UnitOfWork, commit,
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
    ledger
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
    // The credit is booked already: only the purchase changes.
    let again = wait(ledger.top_up_with(credit(3, 100, "capture"), change(2)));
    assert!(again.expect("it is booked").repeated);
    assert_eq!((available(), version()), (100, 2));
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
