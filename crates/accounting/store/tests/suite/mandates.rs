//! Mandates: one per account at a time, changed with optimistic locking, and due when there is a notification.

use std::sync::Arc;

use tollgate_money::{AccountId, MandateId, Usd};
use tollgate_store::{MandatePart, MandateRow, MandateState, MandateSubject, Part, Refusal};

use super::support::{open_with, time, write};

const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);

fn part(part: MandatePart) -> Part {
    Part::Mandate(Box::new(part))
}

fn mandate(number: u8, state: MandateState) -> MandateRow {
    MandateRow {
        id: MandateId::from_bytes([number; 16]),
        account: ACCOUNT,
        state,
        version: 0,
        plan_id: Arc::from("P-1"),
        price: Usd::from_cents(19_900),
        create_key: Arc::from("create"),
        provider_ref: Some(Arc::from(format!("I-{number}"))),
        approve_url: None,
        return_url: Arc::from("https://example.com/back"),
        cancel_url: Arc::from("https://example.com/left"),
        agreed_at: None,
        activated_at: None,
        payment: None,
        paid_at: None,
        paid_until: None,
        advanced_for: None,
        cancel_requested_at: None,
        note: None,
        attempts: 0,
        next_attempt_at: Some(time(10)),
        notifications: 0,
        acknowledged: 0,
        created_at: time(i64::from(number)),
        updated_at: time(i64::from(number)),
    }
}

#[test]
fn an_account_has_at_most_one_offered_and_one_agreed_mandate() {
    use MandateState::{
        Active, Agreed, CancelPending, Created, Dropped, Duplicate, Ended, Open, Over,
    };
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    let first = mandate(1, Open);
    write(&store, [part(MandatePart::Begin(first.clone()))]).expect("the first");
    write(&store, [part(MandatePart::Begin(mandate(2, Agreed)))]).expect("one that is charged");
    for (number, state) in [(3, Created), (3, Open), (4, Agreed), (5, Active)] {
        let refused = write(&store, [part(MandatePart::Begin(mandate(number, state)))]);
        assert!(
            matches!(refused, Err(Refusal::MandateExists(_))),
            "{state:?}: {refused:?}"
        );
    }
    for (number, state) in [
        (6, CancelPending),
        (7, Ended),
        (8, Duplicate),
        (9, Dropped),
        (10, Over),
    ] {
        write(&store, [part(MandatePart::Begin(mandate(number, state)))]).expect("beside it");
    }
    // One replaces the other in one unit, and in no other order.
    let next = mandate(11, Created);
    let dropped = MandateRow {
        state: Dropped,
        version: 1,
        ..first
    };
    let wrong = [
        part(MandatePart::Begin(next.clone())),
        part(MandatePart::Change(dropped.clone())),
    ];
    assert!(write(&store, wrong).is_err());
    let right = [
        part(MandatePart::Change(dropped)),
        part(MandatePart::Begin(next)),
    ];
    write(&store, right).expect("one for the other");
    assert_eq!(store.mandates_in(Created).expect("readable"), 1);
    assert_eq!(store.mandates_in(Open).expect("readable"), 0);
    assert_eq!(store.mandates_of(ACCOUNT, 3).expect("readable").len(), 3);
}

#[test]
fn a_mandate_is_changed_with_optimistic_locking() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    let row = mandate(1, MandateState::Open);
    write(&store, [part(MandatePart::Begin(row.clone()))]).expect("stored");
    let change = |version| {
        let row = MandateRow {
            version,
            note: Some(Arc::from("changed")),
            ..row.clone()
        };
        write(&store, [part(MandatePart::Change(row))])
    };
    change(1).expect("the first");
    assert_eq!(change(1), Err(Refusal::MandateConflict(row.id)));
    change(2).expect("the next");
    let stored = store.mandate(row.id).expect("readable").expect("stored");
    assert_eq!(
        (stored.version, stored.note.as_deref()),
        (2, Some("changed"))
    );
}

#[test]
fn a_notified_mandate_is_due_until_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    let row = mandate(1, MandateState::Open);
    write(&store, [part(MandatePart::Begin(row.clone()))]).expect("stored");
    let due = |now| store.mandates_due(time(now), 10).expect("readable").len();
    assert_eq!((due(9), due(10)), (0, 1), "by its time");
    let rings = [
        MandateSubject::Mandate(row.id),
        MandateSubject::Subscription(Arc::from("I-1")),
        MandateSubject::Subscription(Arc::from("I-OTHER")),
        MandateSubject::Payment(Arc::from("unknown")),
    ];
    write(&store, rings.map(|ring| part(MandatePart::Notify(ring)))).expect("rung");
    let rung = store.mandate(row.id).expect("readable").expect("stored");
    assert_eq!((rung.notifications, due(0)), (2, 1), "whatever its time");
    let acknowledged = MandateRow {
        version: 1,
        acknowledged: rung.notifications,
        ..rung
    };
    write(&store, [part(MandatePart::Change(acknowledged))]).expect("acknowledged");
    assert_eq!(due(9), 0);
}
