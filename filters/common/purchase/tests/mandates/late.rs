//! Charges that are listed late, made too late, or not given back.

use tollgate_purchase::mandates::{ChargeStatus, OpenError, Status, Verified};
use tollgate_store::MandateState;

use crate::shop::{ACCOUNT, Shop};
use crate::world::{DAY, Fault, MONTH, Purse};

#[test]
fn a_payment_that_was_told_and_ended_is_found_when_it_is_listed() {
    // Ended before anybody looked, or after a day was given for it.
    for is_seen_before in [false, true] {
        let mut shop = Shop::new();
        let id = shop.opened();
        shop.world.change(id, |made| made.unlisted = u32::MAX);
        shop.world.approve(id);
        if is_seen_before {
            shop.verify(id);
        }
        shop.world.set(id, Status::Cancelled);
        shop.pass(3);
        assert_eq!(shop.counts().advanced, 1);
        assert_eq!(shop.row(id).state, MandateState::Ended);
        shop.world.change(id, |made| made.unlisted = 0);
        shop.pass(2);
        assert_eq!(shop.payments().len(), 1);
        assert!(shop.standing().is_active());
        shop.check_books();
    }
}

#[test]
fn an_unwanted_payment_for_which_a_day_was_given_goes_back_when_it_is_listed() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.change(id, |made| made.unlisted = u32::MAX);
    shop.world.approve(id);
    shop.verify(id);
    shop.pass(2);
    assert!(!shop.standing().is_active(), "the day is over");
    shop.transfer("0xabc");
    shop.pass(2);
    assert_eq!(
        shop.row(id).state,
        MandateState::Surplus,
        "it is waited for"
    );
    shop.world.change(id, |made| made.unlisted = 0);
    shop.pass(2);
    assert_eq!(shop.row(id).state, MandateState::Over);
    assert!(shop.world.kept().is_empty());
}

#[test]
fn a_payment_that_is_listed_after_its_owner_left_goes_back() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.change(id, |made| {
        made.purse = Purse::Slow;
        made.unlisted = u32::MAX;
    });
    shop.world.approve(id);
    shop.verify(id);
    shop.at_desk(|desk| async move { desk.cancel(ACCOUNT).await });
    shop.pass(1);
    assert_eq!(
        shop.row(id).state,
        MandateState::Over,
        "nothing is known of it"
    );
    shop.world.resolve(id, true);
    shop.world.change(id, |made| made.unlisted = 0);
    shop.pass(3);
    assert!(shop.world.kept().is_empty(), "it went back");
    assert!(!shop.standing().is_active());
    shop.check_books();
}

#[test]
fn a_charge_that_was_made_after_its_owner_left_goes_back() {
    let mut shop = Shop::new();
    let id = shop.paid();
    shop.world.advance(MONTH - DAY);
    shop.world.faults([Fault::Unavailable; 8]);
    shop.at_desk(|desk| async move { desk.cancel(ACCOUNT).await });
    assert_eq!(shop.row(id).state, MandateState::Leaving);
    shop.world.advance(2 * DAY);
    assert_eq!(
        shop.world.kept().len(),
        2,
        "the provider has not heard of it"
    );
    shop.pass(1);
    assert_eq!(shop.row(id).state, MandateState::Ended);
    assert_eq!(shop.payments().len(), 1);
    shop.check_books();
}

#[test]
fn a_charge_that_the_provider_does_not_give_back_is_in_nobodys_way() {
    let mut shop = Shop::new();
    let id = shop.paid();
    shop.world.advance(DAY);
    let now = shop.world.now();
    shop.world.refuse_refunds();
    shop.world.change(id, |made| {
        let mut second = made.charges[0].clone();
        second.id = String::from("T-SECOND");
        second.at = now;
        made.charges.push(second);
    });
    shop.pass(32);
    assert_eq!(shop.payments().len(), 2, "the next month was bought");
    assert!(shop.standing().is_active());
    shop.at_desk(|desk| async move { desk.cancel(ACCOUNT).await });
    shop.pass(1);
    assert_eq!(shop.world.of(id).expect("made").status, Status::Cancelled);
    assert_eq!(shop.row(id).state, MandateState::Ended);
}

#[test]
fn a_subscription_that_the_provider_stopped_can_be_ended() {
    let mut shop = Shop::new();
    let id = shop.paid();
    shop.world.change(id, |made| made.purse = Purse::Empty);
    shop.pass(45);
    assert_eq!(shop.world.of(id).expect("made").status, Status::Suspended);
    let left = shop.at_desk(|desk| async move { desk.cancel(ACCOUNT).await });
    assert!(matches!(left, Some(Ok(_))), "{left:?}");
    assert_eq!(shop.world.of(id).expect("made").status, Status::Cancelled);
    assert_eq!(shop.row(id).state, MandateState::Ended);
}

#[test]
fn without_a_plan_nothing_is_begun_and_what_there_is_is_paid_and_can_be_ended() {
    let mut shop = Shop::new();
    let id = shop.paid();
    shop.unplan();
    shop.pass(31);
    assert_eq!(shop.payments().len(), 2);
    assert!(shop.standing().is_active());
    let left = shop.at_desk(|desk| async move { desk.cancel(ACCOUNT).await });
    assert!(matches!(left, Some(Ok(_))), "{left:?}");
    assert_eq!(shop.world.of(id).expect("made").status, Status::Cancelled);
    shop.pass(40);
    let open = shop.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Closed(_))), "{open:?}");
    shop.check_books();
}

#[test]
fn a_charge_beside_a_signed_transfer_waits_until_that_is_clear() {
    // The transfer buys the plan, dies, or is never heard of again.
    for (settles, dies) in [(true, false), (false, true), (false, false)] {
        let mut shop = Shop::new();
        let id = shop.opened();
        shop.sign(DAY / 24);
        shop.world.approve(id);
        let verified = shop.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Unpaid(_)), "{verified:?}");
        assert!(shop.payments().is_empty(), "nothing is bought yet");
        if settles || dies {
            shop.clear(settles);
        }
        if settles {
            shop.transfer("0xabc");
        }
        shop.pass(1);
        let charge = &shop.world.of(id).expect("made").charges[0];
        assert_eq!(shop.payments().len(), 1);
        assert!(shop.standing().is_active());
        if settles {
            assert_eq!(charge.status, ChargeStatus::Returned);
            assert_eq!(shop.row(id).state, MandateState::Over);
        } else {
            assert_eq!(charge.status, ChargeStatus::Completed);
            assert_eq!(shop.row(id).state, MandateState::Active);
            shop.check_books();
        }
    }
}
