//! Mandates against a provider that loses calls and answers, and a process that dies at any of them.

mod again;
mod checkouts;
#[path = "../faults/mod.rs"]
mod faults;
mod late;
mod random;
mod shop;
mod world;

use std::sync::Arc;

use shop::Shop;
use tollgate_money::Usd;
use tollgate_purchase::mandates::{
    Beside, CancelError, ChargeStatus, OpenError, Status, Verified, VerifyError,
};
use tollgate_purchase::plan::{PRICE, PayOutcome};
use tollgate_store::{
    Endpoint, IdempotencyKey, IdempotencyPart, KeptAnswer, MandateState, Part, SubscriptionStatus,
};
use world::{DAY, Fault, MONTH, Purse};

const FAULTS: [Fault; 5] = [
    Fault::AnswerLost,
    Fault::CallLost,
    Fault::Unavailable,
    Fault::DeathBefore,
    Fault::DeathAfter,
];

#[test]
fn a_mandate_that_goes_well_is_paid_each_month_and_every_charge_counts_once() {
    let mut shop = Shop::new();
    let row = shop.open().expect("alive").expect("is offered");
    assert_eq!(row.state, MandateState::Open);
    assert!(row.approve_url.is_some());
    assert_eq!(
        &*row.return_url,
        format!("https://example.com/back/{}", row.id)
    );
    let again = shop.open().expect("alive").expect("is offered");
    assert_eq!(row, again, "asked again it is the same one");
    let verified = shop.verify(row.id).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Waiting(_)), "{verified:?}");
    shop.world.approve(row.id);
    let agreed_at = shop.world.now();
    for _ in 0..3 {
        let verified = shop.verify(row.id).expect("alive").expect("answered");
        let Verified::Paid(subscription, mandate) = verified else {
            panic!("{verified:?}");
        };
        assert_eq!(subscription.period_end, agreed_at + MONTH + DAY);
        assert!(subscription.renews);
        assert_eq!(mandate.activated_at, Some(agreed_at));
    }
    assert!(matches!(
        shop.open().expect("alive"),
        Err(OpenError::AlreadyActive(_))
    ));
    shop.pass(95);
    assert_eq!(shop.payments().len(), 4);
    assert!(shop.standing().is_active());
    assert_eq!(
        shop.row(row.id).activated_at,
        Some(agreed_at),
        "the first time stays"
    );
    shop.check_books();
}

#[test]
fn what_stands_beside_a_payment_is_written_with_it_or_neither_is() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.approve(id);
    // An answer for a name that nobody has claimed is refused.
    let refused: Beside = Arc::new(|subscription, mandate| {
        assert_eq!(Some(&subscription.reference), mandate.provider_ref.as_ref());
        assert!(mandate.activated_at.is_some());
        vec![Part::Idempotency(Box::new(IdempotencyPart::Keep {
            key: IdempotencyKey {
                account: subscription.account,
                endpoint: Endpoint::Mpp,
                key: Arc::from("k"),
            },
            locked_until: 1,
            answer: KeptAnswer {
                status: 200,
                headers: Arc::from(""),
                body: None,
            },
        }))]
    });
    let verified = shop.at_desk(|desk| async move { desk.verify_with(id, Some(refused)).await });
    let verified = verified.expect("alive");
    assert!(
        matches!(verified, Err(VerifyError::Plan(_))),
        "{verified:?}"
    );
    assert!(shop.payments().is_empty());
    assert!(!shop.standing().is_active());
    let verified = shop.verify(id).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Paid(..)), "{verified:?}");
    assert_eq!(shop.payments().len(), 1);
    shop.check_books();
}

#[test]
fn a_subscription_whose_making_was_lost_is_made_once() {
    for fault in FAULTS {
        let mut shop = Shop::new();
        shop.world.faults([fault]);
        let lost = shop.open();
        assert!(!matches!(lost, Some(Ok(_))), "{fault:?}");
        shop.opened();
        assert_eq!(shop.world.all().len(), 1, "{fault:?}");
        assert_eq!(shop.rows().len(), 1, "{fault:?}");
    }
}

/// The process dies, or the answer is lost, at every call of a first payment in turn: the buyer pays once and has the plan once, without
/// doing anything more.
#[test]
fn whatever_is_lost_after_the_buyer_agreed_the_plan_comes_once() {
    for fault in FAULTS {
        for at in 0..3 {
            let mut shop = Shop::new();
            let id = shop.opened();
            shop.world.approve(id);
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            shop.world.faults(faults);
            shop.verify(id);
            shop.pass(1);
            let what = format!("{fault:?} at call {at}");
            assert_eq!(shop.row(id).state, MandateState::Active, "{what}");
            assert!(shop.standing().is_active(), "{what}");
            assert_eq!(shop.payments().len(), 1, "{what}");
            shop.check_books();
        }
    }
}

#[test]
fn running_is_not_paid() {
    for (arrives, state) in [(true, MandateState::Active), (false, MandateState::Agreed)] {
        let mut shop = Shop::new();
        let id = shop.opened();
        shop.world.change(id, |made| made.purse = Purse::Slow);
        shop.world.approve(id);
        let verified = shop.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Unpaid(_)), "{verified:?}");
        assert!(!shop.standing().is_active());
        assert!(shop.standing().awaits_first_charge());
        let open = shop.open().expect("alive");
        assert!(matches!(open, Err(OpenError::Processing(_))), "{open:?}");
        shop.pass(4);
        assert_eq!(shop.row(id).state, MandateState::Agreed);
        shop.world.resolve(id, arrives);
        shop.pass(1);
        assert_eq!(shop.row(id).state, state, "arrives: {arrives}");
        assert_eq!(shop.standing().is_active(), arrives);
        shop.check_books();
    }
}

#[test]
fn a_payment_that_is_told_and_not_listed_is_good_for_a_day() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.approve(id);
    shop.world.change(id, |made| made.unlisted = 3);
    let verified = shop.verify(id).expect("alive").expect("answered");
    let Verified::Paid(subscription, _) = verified else {
        panic!("{verified:?}");
    };
    assert_eq!(subscription.period_end, shop.world.now() + DAY);
    assert_eq!(shop.payments().len(), 0, "nothing is noted yet");
    let approved_at = shop.world.now();
    shop.pass(1);
    assert_eq!(shop.payments().len(), 1);
    let subscription = shop.standing().subscription.expect("paid");
    assert_eq!(subscription.period_end, approved_at + MONTH + DAY);
    shop.check_books();
}

#[test]
fn a_day_is_given_once_for_a_payment_that_never_shows() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.approve(id);
    shop.world.change(id, |made| made.unlisted = u32::MAX);
    shop.verify(id);
    shop.pass(5);
    assert!(!shop.standing().is_active());
    assert_eq!(shop.counts().advanced, 1);
    shop.world.change(id, |made| made.unlisted = 0);
    shop.pass(1);
    assert!(shop.standing().is_active());
    shop.check_books();
}

#[test]
fn after_three_hours_another_is_offered_and_the_first_that_is_paid_is_kept() {
    // Which of the two the buyer agrees to, and in which order.
    for order in [[0, 1], [1, 0]] {
        let mut shop = Shop::new();
        let first = shop.opened();
        shop.world.advance(DAY / 4);
        let second = shop.opened();
        assert_ne!(first, second);
        assert_eq!(shop.row(first).state, MandateState::Dropped);
        let both = [first, second];
        let [kept, other] = order.map(|at| both[at]);
        shop.world.approve(kept);
        shop.pass(2);
        assert_eq!(shop.row(kept).state, MandateState::Active);
        assert_eq!(shop.row(other).state, MandateState::Dropped);
        shop.world.approve(other);
        shop.pass(2);
        assert_eq!(shop.row(other).state, MandateState::Over);
        let other = shop.world.of(other).expect("made");
        assert_eq!(other.status, Status::Cancelled);
        assert!(
            other
                .charges
                .iter()
                .all(|charge| charge.status == ChargeStatus::Returned)
        );
        assert_eq!(shop.payments().len(), 1);
        shop.check_books();
    }
}

#[test]
fn what_was_paid_on_the_old_one_is_found_before_another_is_offered() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.approve(id);
    shop.world.advance(DAY / 4);
    let open = shop.open().expect("alive");
    assert!(matches!(open, Err(OpenError::AlreadyActive(_))), "{open:?}");
    assert_eq!(shop.world.all().len(), 1);
    shop.check_books();
}

/// The provider stops or the process dies while a charge that nobody wants is given back: it goes back once, and the mandate ends.
#[test]
fn a_charge_that_nobody_wants_goes_back_whatever_is_lost() {
    for fault in FAULTS {
        for at in 0..7 {
            let mut shop = Shop::new();
            let id = shop.opened();
            let done = shop.transfer("0xabc");
            assert!(matches!(done, PayOutcome::New(_)));
            shop.world.approve(id);
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            shop.world.faults(faults);
            shop.verify(id);
            shop.pass(1);
            let what = format!("{fault:?} at call {at}");
            assert_eq!(shop.row(id).state, MandateState::Over, "{what}");
            let made = shop.world.of(id).expect("made");
            assert_eq!(made.status, Status::Cancelled, "{what}");
            assert_eq!(made.charges[0].status, ChargeStatus::Returned, "{what}");
            assert_eq!(shop.payments().len(), 1, "{what}");
            assert!(shop.world.kept().is_empty(), "{what}");
        }
    }
}

#[test]
fn a_transfer_while_a_mandate_runs_adds_its_days_and_the_mandate_goes_on() {
    let mut shop = Shop::new();
    let id = shop.paid();
    let began = shop.world.now();
    shop.transfer("0xabc");
    let end = shop.standing().subscription.expect("paid").period_end;
    assert_eq!(end, began + MONTH + DAY + 30 * DAY);
    shop.pass(32);
    assert_eq!(shop.row(id).state, MandateState::Active);
    let end = shop.standing().subscription.expect("paid").period_end;
    assert_eq!(
        end,
        began + 2 * MONTH + DAY + 30 * DAY,
        "nothing of either is lost"
    );
    assert_eq!(shop.payments().len(), 3);
}

#[test]
fn whoever_ends_it_keeps_what_is_paid_and_is_charged_no_more() {
    for fault in FAULTS {
        for at in 0..6 {
            let mut shop = Shop::new();
            let id = shop.paid();
            let end = shop.standing().subscription.expect("paid").period_end;
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            shop.world.faults(faults);
            shop.at_desk(|desk| async move { desk.cancel(shop::ACCOUNT).await });
            let what = format!("{fault:?} at call {at}");
            shop.pass(1);
            assert_eq!(shop.row(id).state, MandateState::Ended, "{what}");
            let subscription = shop.standing().subscription.expect("paid");
            assert_eq!((subscription.renews, subscription.period_end), (false, end));
            shop.pass(40);
            assert_eq!(shop.payments().len(), 1, "{what}");
            assert!(!shop.standing().is_active(), "{what}");
            shop.check_books();
        }
    }
}

#[test]
fn what_is_only_offered_or_agreed_to_can_be_left() {
    let mut shop = Shop::new();
    let nothing = shop.at_desk(|desk| async move { desk.cancel(shop::ACCOUNT).await });
    assert!(matches!(nothing, Some(Err(CancelError::Nothing))));
    let offered = shop.opened();
    let left = shop.at_desk(|desk| async move { desk.cancel(shop::ACCOUNT).await });
    assert!(matches!(left, Some(Ok(_))), "{left:?}");
    assert_eq!(shop.row(offered).state, MandateState::Dropped);
    let slow = shop.opened();
    shop.world.change(slow, |made| made.purse = Purse::Slow);
    shop.world.approve(slow);
    shop.verify(slow);
    shop.at_desk(|desk| async move { desk.cancel(shop::ACCOUNT).await });
    assert_eq!(
        shop.row(slow).state,
        MandateState::Surplus,
        "the money is on its way"
    );
    shop.world.resolve(slow, true);
    shop.pass(1);
    assert_eq!(shop.row(slow).state, MandateState::Over);
    assert!(shop.world.kept().is_empty(), "it went back");
    shop.check_books();
}

#[test]
fn a_charge_that_fails_is_told_and_one_that_follows_puts_it_right() {
    let mut shop = Shop::new();
    let id = shop.paid();
    shop.world.change(id, |made| made.purse = Purse::Empty);
    shop.pass(31);
    let subscription = shop.standing().subscription.expect("paid");
    assert_eq!(subscription.status, SubscriptionStatus::PastDue);
    assert_eq!(shop.counts().past_due, 1);
    shop.world.change(id, |made| made.purse = Purse::Full);
    shop.pass(6);
    let subscription = shop.standing().subscription.expect("paid");
    assert_eq!(subscription.status, SubscriptionStatus::Active);
    assert!(shop.standing().is_active());
    assert_eq!(shop.payments().len(), 2);
    shop.pass(30);
    assert_eq!(shop.payments().len(), 3);
    shop.check_books();
}

#[test]
fn a_mandate_that_the_provider_stopped_renews_nothing_and_makes_room() {
    let mut shop = Shop::new();
    let old = shop.paid();
    shop.world.change(old, |made| made.purse = Purse::Empty);
    shop.pass(45);
    assert_eq!(shop.world.of(old).expect("made").status, Status::Suspended);
    assert_eq!(shop.row(old).state, MandateState::Ended);
    assert!(!shop.standing().is_active());
    let new = shop.paid();
    shop.pass(1);
    assert_eq!(shop.row(new).state, MandateState::Active);
    assert_eq!(
        shop.world.of(old).expect("made").status,
        Status::Cancelled,
        "nobody can start it again beside the new one"
    );
    shop.check_books();
}

#[test]
fn a_mandate_that_lapsed_makes_room_before_the_provider_has_given_up() {
    let mut shop = Shop::new();
    let old = shop.paid();
    shop.world.change(old, |made| made.purse = Purse::Empty);
    shop.pass(33);
    assert!(!shop.standing().is_active());
    let new = shop.opened();
    shop.world.change(old, |made| made.purse = Purse::Full);
    shop.world.approve(new);
    shop.pass(8);
    assert_eq!(shop.row(new).state, MandateState::Active);
    assert_eq!(shop.world.of(old).expect("made").status, Status::Cancelled);
    assert_eq!(shop.payments().len(), 2);
    shop.check_books();
}

#[test]
fn money_that_went_back_ends_its_period_and_the_charging() {
    let mut shop = Shop::new();
    let id = shop.paid();
    shop.world
        .change(id, |made| made.charges[0].status = ChargeStatus::Returned);
    shop.pass(2);
    assert!(!shop.standing().is_active());
    assert_eq!(shop.row(id).state, MandateState::Ended);
    assert_eq!(shop.world.of(id).expect("made").status, Status::Cancelled);
    assert_eq!(shop.counts().returned, 1);
    shop.check_books();
}

#[test]
fn months_that_nobody_looked_at_are_found() {
    let mut shop = Shop::new();
    let id = shop.paid();
    shop.world.advance(3 * MONTH + DAY);
    assert!(!shop.standing().is_active());
    shop.pass(1);
    assert!(shop.standing().is_active());
    assert_eq!(shop.payments().len(), 4);
    assert_eq!(shop.row(id).state, MandateState::Active);
    shop.check_books();
}

#[test]
fn a_subscription_that_was_paid_and_ended_before_anybody_looked_gives_its_month() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.approve(id);
    shop.world
        .change(id, |made| made.status = Status::Cancelled);
    let verified = shop.verify(id).expect("alive").expect("answered");
    let Verified::Paid(subscription, row) = verified else {
        panic!("{verified:?}");
    };
    assert_eq!(row.state, MandateState::Ended);
    assert!(!subscription.renews);
    assert!(subscription.period_end >= shop.world.now() + 28 * DAY);
    shop.check_books();
}

#[test]
fn another_price_than_was_agreed_goes_back() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world
        .change(id, |made| made.price = Usd::from_cents(24_900));
    shop.world.approve(id);
    let verified = shop.verify(id).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Over(_)), "{verified:?}");
    shop.pass(1);
    assert_eq!(shop.row(id).state, MandateState::Over);
    assert!(shop.world.kept().is_empty());
    assert!(!shop.standing().is_active());
    shop.check_books();
}

#[test]
fn a_second_charge_for_one_month_goes_back_and_the_mandate_stays() {
    let mut shop = Shop::new();
    let id = shop.paid();
    shop.world.advance(DAY);
    let now = shop.world.now();
    shop.world.change(id, |made| {
        let mut second = made.charges[0].clone();
        second.id = String::from("T-SECOND");
        second.at = now;
        made.charges.push(second);
    });
    shop.pass(2);
    assert_eq!(shop.row(id).state, MandateState::Active);
    assert_eq!(shop.world.kept().len(), 1);
    shop.pass(30);
    assert_eq!(shop.payments().len(), 2);
    shop.check_books();
}

#[test]
fn a_subscription_of_somebody_else_gives_nothing_and_is_not_touched() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.approve(id);
    shop.world
        .change(id, |made| made.mandate = String::from("mandate_of_another"));
    shop.verify(id);
    assert!(!shop.standing().is_active());
    assert_eq!(shop.counts().stuck, 1);
    assert_eq!(shop.world.all()[0].status, Status::Active);
}

#[test]
fn what_is_gone_before_anybody_agreed_makes_room() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.lose(id);
    for _ in 0..2 {
        let verified = shop.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Over(_)), "{verified:?}");
        assert_eq!(
            shop.row(id).state,
            MandateState::Dropped,
            "not believed at once"
        );
    }
    assert_ne!(shop.opened(), id);
    shop.pass(1);
    assert_eq!(shop.row(id).state, MandateState::Over, "twice");
}

#[test]
fn a_plan_that_was_changed_at_the_provider_is_not_sold() {
    let mut shop = Shop::new();
    shop.world.reprice(Some(Usd::from_cents(100)));
    let open = shop.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Closed(_))), "{open:?}");
    assert!(shop.world.all().is_empty());
    shop.world.reprice(Some(PRICE));
    shop.world.advance(60 * 1_000_000);
    shop.opened();
}

#[test]
fn a_status_that_lags_behind_changes_nothing_but_the_time() {
    let mut shop = Shop::new();
    let id = shop.opened();
    shop.world.change(id, |made| made.lag = 3);
    shop.world.approve(id);
    for _ in 0..3 {
        let verified = shop.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Waiting(_)), "{verified:?}");
    }
    let verified = shop.verify(id).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Paid(..)), "{verified:?}");
    shop.check_books();
}
