//! Another mandate beside one that cannot be collected, and no more of them than are of use.

use tollgate_purchase::mandates::{OpenError, Status, Verified};
use tollgate_store::MandateState;

use crate::shop::{ACCOUNT, Shop};
use crate::world::{DAY, Fault, Purse};

#[test]
fn a_first_charge_that_fails_is_told_and_locks_nobody_out() {
    let mut shop = Shop::new();
    let failed = shop.opened();
    shop.world.change(failed, |made| made.purse = Purse::Empty);
    shop.world.approve(failed);
    let verified = shop.verify(failed).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Unpaid(_)), "{verified:?}");
    assert_eq!(shop.counts().past_due, 1);
    assert!(!shop.standing().money_may_move(), "another way is open");
    let again = shop.opened();
    assert_ne!(failed, again, "another is offered");
    assert_eq!(
        shop.row(failed).state,
        MandateState::Agreed,
        "and the first one stays until that is agreed to"
    );
    shop.world.change(failed, |made| made.purse = Purse::Full);
    shop.world.approve(again);
    shop.pass(8);
    assert_eq!(shop.row(again).state, MandateState::Active);
    assert_eq!(
        shop.world.of(failed).expect("made").status,
        Status::Cancelled
    );
    assert_eq!(shop.payments().len(), 1);
    shop.check_books();
}

#[test]
fn asking_for_another_ends_nothing_that_may_still_be_paid() {
    let mut shop = Shop::new();
    let old = shop.paid();
    shop.world.change(old, |made| made.purse = Purse::Empty);
    shop.pass(33);
    assert!(!shop.standing().is_active());
    // The other one cannot be made, and then it is made and not agreed to.
    shop.world
        .faults([Fault::None, Fault::None, Fault::Unavailable]);
    let open = shop.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Provider(_))), "{open:?}");
    shop.opened();
    shop.world.change(old, |made| made.purse = Purse::Full);
    shop.pass(4);
    assert_eq!(shop.row(old).state, MandateState::Active);
    assert_eq!(shop.world.of(old).expect("made").status, Status::Active);
    assert!(shop.standing().is_active());
    assert_eq!(shop.payments().len(), 2);
    shop.check_books();
}

#[test]
fn nothing_is_offered_while_a_late_charge_is_on_its_way() {
    let mut shop = Shop::new();
    let id = shop.paid();
    shop.world.change(id, |made| made.purse = Purse::Slow);
    shop.pass(33);
    assert!(!shop.standing().is_active());
    let open = shop.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Processing(_))), "{open:?}");
    shop.world.resolve(id, true);
    shop.pass(1);
    assert!(shop.standing().is_active());
    shop.check_books();
}

#[test]
fn what_was_left_a_moment_ago_is_offered_again() {
    let mut shop = Shop::new();
    let first = shop.opened();
    for _ in 0..20 {
        shop.at_desk(|desk| async move { desk.cancel(ACCOUNT).await });
        assert_eq!(shop.opened(), first);
    }
    assert_eq!(shop.world.all().len(), 1);
    shop.world.approve(first);
    let verified = shop.verify(first).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Paid(..)), "{verified:?}");
    shop.check_books();
}

#[test]
fn an_account_begins_no_more_than_are_of_use_in_a_day() {
    let mut shop = Shop::new();
    for _ in 0..30 {
        if let Some(Ok(row)) = shop.open() {
            shop.world.lose(row.id);
            shop.verify(row.id);
        }
    }
    assert_eq!(shop.rows().len(), 10);
    let open = shop.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Closed(_))), "{open:?}");
    shop.world.advance(DAY + 1);
    shop.opened();
}

#[test]
fn nothing_is_concluded_about_a_mandate_at_another_address_of_the_provider() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.move_to("elsewhere");
    let was = shop.world.now();
    // There nobody knows it.
    shop.world.faults([]);
    shop.pass(2);
    assert_eq!(shop.row(id).state, MandateState::Open);
    assert!(shop.counts().stuck > 0);
    shop.move_to("test");
    shop.world.approve(id);
    shop.pass(2);
    assert_eq!(shop.row(id).state, MandateState::Active);
    assert!(shop.row(id).paid_at.is_some_and(|at| at > was));
    shop.check_books();
}

#[test]
fn what_an_operator_ends_is_ended_at_the_provider_by_the_desk() {
    let mut shop = Shop::new();
    assert!(shop.leave().is_none(), "there is nothing to end");
    let id = shop.paid();
    let left = shop.leave().expect("it is charged");
    assert_eq!(left.state, MandateState::Leaving);
    assert!(!shop.standing().subscription.expect("paid").renews);
    assert_eq!(shop.world.of(id).expect("made").status, Status::Active);
    shop.pass(1);
    assert_eq!(shop.world.of(id).expect("made").status, Status::Cancelled);
    assert!(shop.leave().is_none());
    shop.check_books();
}
