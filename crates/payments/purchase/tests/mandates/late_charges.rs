//! Charges that are listed late, made too late, or not refunded.

use tollgate_purchase::mandates::{ChargeStatus, MandateEvent, OpenError, Status, Verified};
use tollgate_store::MandateState;

use crate::support::process::DAY;
use crate::support::recurring_provider::{Fault, Funding, MONTH};
use crate::testbed::{ACCOUNT, TestBed};

#[test]
fn a_payment_reported_before_the_end_is_recorded_when_it_is_listed() {
    // Ended before the first reconciliation, or after a provisional day.
    for is_seen_before in [false, true] {
        let mut bed = TestBed::new();
        let id = bed.opened();
        bed.provider.change(id, |made| made.unlisted = u32::MAX);
        bed.provider.approve(id);
        if is_seen_before {
            bed.verify(id);
        }
        bed.provider.set(id, Status::Cancelled);
        bed.pass(3);
        assert_eq!(bed.count(MandateEvent::Advanced), 1);
        assert_eq!(bed.row(id).state, MandateState::Ended);
        bed.provider.change(id, |made| made.unlisted = 0);
        bed.pass(2);
        assert_eq!(bed.payments().len(), 1);
        assert!(bed.state().is_active());
        bed.check_books();
    }
}

#[test]
fn a_duplicate_payment_with_a_provisional_day_is_refunded_when_it_is_listed() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.change(id, |made| made.unlisted = u32::MAX);
    bed.provider.approve(id);
    bed.verify(id);
    bed.pass(2);
    assert!(!bed.state().is_active(), "the day is over");
    bed.transfer("0xabc");
    bed.pass(2);
    assert_eq!(
        bed.row(id).state,
        MandateState::Duplicate,
        "it is waited for"
    );
    bed.provider.change(id, |made| made.unlisted = 0);
    bed.pass(2);
    assert_eq!(bed.row(id).state, MandateState::Over);
    assert!(bed.provider.kept().is_empty());
}

#[test]
fn a_payment_listed_after_the_cancellation_is_refunded() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.change(id, |made| {
        made.funding = Funding::Slow;
        made.unlisted = u32::MAX;
    });
    bed.provider.approve(id);
    bed.verify(id);
    bed.run(|processor| async move { processor.cancel(ACCOUNT).await });
    bed.pass(1);
    assert_eq!(
        bed.row(id).state,
        MandateState::Over,
        "nothing is known of it"
    );
    bed.provider.resolve(id, true);
    bed.provider.change(id, |made| made.unlisted = 0);
    bed.pass(3);
    assert!(bed.provider.kept().is_empty(), "it went back");
    assert!(!bed.state().is_active());
    bed.check_books();
}

#[test]
fn a_charge_made_after_the_cancellation_is_refunded() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider.advance(MONTH - DAY);
    bed.provider.faults([Fault::Unavailable; 8]);
    bed.run(|processor| async move { processor.cancel(ACCOUNT).await });
    assert_eq!(bed.row(id).state, MandateState::CancelAtEnd);
    bed.provider.advance(2 * DAY);
    assert_eq!(
        bed.provider.kept().len(),
        2,
        "the provider has not received the cancellation"
    );
    bed.pass(1);
    assert_eq!(bed.row(id).state, MandateState::Ended);
    assert_eq!(bed.payments().len(), 1);
    bed.check_books();
}

#[test]
fn a_refused_refund_does_not_block_the_next_charge() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider.advance(DAY);
    let now = bed.provider.now();
    bed.provider.refuse_refunds();
    bed.provider.change(id, |made| {
        let mut second = made.charges[0].clone();
        second.id = String::from("T-SECOND");
        second.at = now;
        made.charges.push(second);
    });
    bed.pass(32);
    assert_eq!(bed.payments().len(), 2, "the next month was bought");
    assert!(bed.state().is_active());
    bed.run(|processor| async move { processor.cancel(ACCOUNT).await });
    bed.pass(40);
    assert_eq!(bed.provider.of(id).expect("made").status, Status::Cancelled);
    assert_eq!(bed.row(id).state, MandateState::Ended);
    assert_eq!(bed.payments().len(), 2, "nothing more was charged");
}

#[test]
fn a_suspended_subscription_can_be_cancelled() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider
        .change(id, |made| made.funding = Funding::Empty);
    bed.pass(45);
    assert_eq!(bed.provider.of(id).expect("made").status, Status::Suspended);
    let left = bed.run(|processor| async move { processor.cancel(ACCOUNT).await });
    assert!(matches!(left, Some(Ok(_))), "{left:?}");
    assert_eq!(bed.provider.of(id).expect("made").status, Status::Cancelled);
    assert_eq!(bed.row(id).state, MandateState::Ended);
}

#[test]
fn without_a_plan_no_mandate_is_created_and_existing_ones_are_charged_and_cancelled() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.unplan();
    bed.pass(31);
    assert_eq!(bed.payments().len(), 2);
    assert!(bed.state().is_active());
    let left = bed.run(|processor| async move { processor.cancel(ACCOUNT).await });
    assert!(matches!(left, Some(Ok(_))), "{left:?}");
    assert_eq!(bed.provider.of(id).expect("made").status, Status::Suspended);
    bed.pass(40);
    assert_eq!(bed.provider.of(id).expect("made").status, Status::Cancelled);
    let open = bed.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Closed(_))), "{open:?}");
    bed.check_books();
}

#[test]
fn a_charge_waits_for_a_pending_signed_transfer() {
    // The transfer settles, is refused, or stays pending.
    for (settles, dies) in [(true, false), (false, true), (false, false)] {
        let mut bed = TestBed::new();
        let id = bed.opened();
        bed.sign(DAY / 24);
        bed.provider.approve(id);
        let verified = bed.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Unpaid(_)), "{verified:?}");
        assert!(bed.payments().is_empty(), "nothing is bought yet");
        if settles || dies {
            bed.clear(settles);
        }
        if settles {
            bed.transfer("0xabc");
        }
        bed.pass(1);
        let charge = &bed.provider.of(id).expect("made").charges[0];
        assert_eq!(bed.payments().len(), 1);
        assert!(bed.state().is_active());
        if settles {
            assert_eq!(charge.status, ChargeStatus::Returned);
            assert_eq!(bed.row(id).state, MandateState::Over);
        } else {
            assert_eq!(charge.status, ChargeStatus::Completed);
            assert_eq!(bed.row(id).state, MandateState::Active);
            bed.check_books();
        }
    }
}
