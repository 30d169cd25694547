//! Checkouts.

use std::sync::Arc;

use tollgate_money::{AccountId, CheckoutId, CredentialId, MandateId, SubscriptionId};
use tollgate_store::{CheckoutPart, CheckoutRow, CheckoutState, Part, Receipt, Refusal, Store};

use super::support::{open_with, time};

const OWNER: AccountId = AccountId::from_bytes([1; 16]);
const OTHER: AccountId = AccountId::from_bytes([2; 16]);

fn write(store: &Arc<dyn Store>, part: CheckoutPart) -> Result<Receipt, Refusal> {
    super::support::write(store, [Part::Checkout(Box::new(part))])
}

fn row(number: u8, account: AccountId, state: CheckoutState) -> CheckoutRow {
    CheckoutRow {
        id: CheckoutId::from_bytes([number; 16]),
        account,
        state,
        version: 0,
        credential: Some(CredentialId::from_bytes([3; 16])),
        platform: Some(Arc::from("platform.example")),
        buyer: Some(Arc::from("{\"email\":\"a@example.com\"}")),
        mandate: None,
        asked: Some([8; 32]),
        subscription: None,
        created_at: time(100 + i64::from(number)),
        updated_at: time(100 + i64::from(number)),
        expires_at: time(1_000),
    }
}

fn begin(row: CheckoutRow) -> CheckoutPart {
    CheckoutPart::Begin {
        row,
        waiting_max: 3,
    }
}

#[test]
fn a_checkout_is_found_by_id_and_changed_with_optimistic_locking() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [OWNER, OTHER]);
    let first = row(1, OWNER, CheckoutState::Waiting);
    write(&store, begin(first.clone())).expect("a checkout");
    assert_eq!(store.checkout(first.id).expect("read"), Some(first.clone()));
    assert_eq!(
        write(&store, begin(first.clone())),
        Err(Refusal::CheckoutConflict(first.id)),
        "an id is taken once"
    );
    let changed = CheckoutRow {
        state: CheckoutState::Placing,
        version: 1,
        mandate: Some(MandateId::from_bytes([4; 16])),
        ..first.clone()
    };
    write(&store, CheckoutPart::Change(changed.clone())).expect("changed");
    assert_eq!(
        write(&store, CheckoutPart::Change(changed.clone())),
        Err(Refusal::CheckoutConflict(first.id)),
        "a change names the current version"
    );
    assert_eq!(
        store.checkout(first.id).expect("read"),
        Some(changed.clone())
    );
    let none = CheckoutId::from_bytes([9; 16]);
    assert_eq!(store.checkout(none).expect("read"), None);
    assert_eq!(store.checkouts_of(OWNER, 9).expect("read"), [changed]);
    assert_eq!(store.checkouts_of(OTHER, 9).expect("read"), []);
}

#[test]
fn a_plan_completes_every_checkout_that_waits_for_its_owner_and_no_other() {
    use CheckoutState::{Canceled, Completed, Incomplete, Placing, Ready, Waiting};
    let subscription = SubscriptionId::from_bytes([5; 16]);
    //  state, account, at, the result
    for (state, account, at, expected) in [
        (Waiting, OWNER, 999, Completed),
        (Waiting, OWNER, 1_000, Waiting),
        (Ready, OWNER, 5_000, Completed),
        (Placing, OWNER, 5_000, Completed),
        (Incomplete, OWNER, 999, Incomplete),
        (Canceled, OWNER, 999, Canceled),
        (Waiting, OTHER, 999, Waiting),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open_with(folder.path(), [OWNER, OTHER]);
        let before = row(1, account, state);
        write(&store, begin(before.clone())).expect("a checkout");
        let complete = CheckoutPart::Complete {
            account: OWNER,
            subscription,
            at: time(at),
        };
        write(&store, complete).expect("done");
        let after = store.checkout(before.id).expect("read").expect("there");
        assert_eq!(after.state, expected, "{state:?} at {at}");
        let is_completed = expected == Completed;
        assert_eq!(after.subscription, is_completed.then_some(subscription));
        assert_eq!(after.version, i64::from(is_completed));
    }
}

#[test]
fn the_newest_waiting_checkouts_are_kept_and_old_ones_are_deleted() {
    use CheckoutState::{Canceled, Placing, Waiting};
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [OWNER, OTHER]);
    write(&store, begin(row(1, OWNER, Placing))).expect("a checkout");
    write(&store, begin(row(2, OTHER, Waiting))).expect("a checkout");
    for number in 3..=7 {
        write(&store, begin(row(number, OWNER, Waiting))).expect("a checkout");
    }
    let states = |account| -> Vec<(u8, CheckoutState)> {
        let rows = store.checkouts_of(account, 10).expect("read");
        let rows = rows.into_iter();
        rows.map(|row| (row.id.as_bytes()[0], row.state)).collect()
    };
    assert_eq!(
        states(OWNER),
        [
            (7, Waiting),
            (6, Waiting),
            (5, Waiting),
            (4, Canceled),
            (3, Canceled),
            (1, Placing)
        ]
    );
    assert_eq!(states(OTHER), [(2, Waiting)]);
    let forget = CheckoutPart::Forget {
        before: time(103),
        limit: 10,
    };
    write(&store, forget).expect("done");
    assert_eq!(states(OTHER), []);
    assert_eq!(states(OWNER).len(), 5, "the first is gone");
}
