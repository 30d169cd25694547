//! A second mandate after a failed charge, and the limit on new ones.

use std::time::Duration;

use tollgate_purchase::mandates::{MandateEvent, OpenError, Status, Verified};
use tollgate_store::MandateState;

use crate::support::process::DAY;
use crate::support::recurring_provider::{Fault, Funding};
use crate::testbed::{ACCOUNT, TestBed};

#[test]
fn a_failed_first_charge_is_past_due_and_does_not_block_another_offer() {
    let mut bed = TestBed::new();
    let failed = bed.opened();
    bed.provider
        .change(failed, |made| made.funding = Funding::Empty);
    bed.provider.approve(failed);
    let verified = bed.verify(failed).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Unpaid(_)), "{verified:?}");
    assert_eq!(bed.count(MandateEvent::PastDue), 1);
    assert!(!bed.state().money_may_move(), "another way is open");
    let again = bed.opened();
    assert_ne!(failed, again, "another is offered");
    assert_eq!(
        bed.row(failed).state,
        MandateState::Agreed,
        "and the first one stays until that is agreed to"
    );
    bed.provider
        .change(failed, |made| made.funding = Funding::Instant);
    bed.provider.approve(again);
    bed.pass(8);
    assert_eq!(bed.row(again).state, MandateState::Active);
    assert_eq!(
        bed.provider.of(failed).expect("made").status,
        Status::Cancelled
    );
    assert_eq!(bed.payments().len(), 1);
    bed.check_books();
}

#[test]
fn opening_another_does_not_end_a_mandate_that_may_still_be_paid() {
    let mut bed = TestBed::new();
    let old = bed.paid();
    bed.provider
        .change(old, |made| made.funding = Funding::Empty);
    bed.pass(33);
    assert!(!bed.state().is_active());
    // Creating the other one fails; then it is created and not agreed to.
    bed.provider
        .faults([Fault::None, Fault::None, Fault::Unavailable]);
    let open = bed.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Provider(_))), "{open:?}");
    bed.opened();
    bed.provider
        .change(old, |made| made.funding = Funding::Instant);
    bed.pass(4);
    assert_eq!(bed.row(old).state, MandateState::Active);
    assert_eq!(bed.provider.of(old).expect("made").status, Status::Active);
    assert!(bed.state().is_active());
    assert_eq!(bed.payments().len(), 2);
    bed.check_books();
}

#[test]
fn nothing_is_offered_while_a_late_charge_is_pending() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider.change(id, |made| made.funding = Funding::Slow);
    bed.pass(33);
    assert!(!bed.state().is_active());
    let open = bed.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Processing(_))), "{open:?}");
    bed.provider.resolve(id, true);
    bed.pass(1);
    assert!(bed.state().is_active());
    bed.check_books();
}

#[test]
fn a_recently_cancelled_offer_is_reopened() {
    let mut bed = TestBed::new();
    let first = bed.opened();
    for _ in 0..20 {
        bed.run(|processor| async move { processor.cancel(ACCOUNT).await });
        assert_eq!(bed.opened(), first);
    }
    assert_eq!(bed.provider.all().len(), 1);
    bed.provider.approve(first);
    let verified = bed.verify(first).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Paid(..)), "{verified:?}");
    bed.check_books();
}

#[test]
fn an_account_creates_a_bounded_number_of_mandates_per_day() {
    let mut bed = TestBed::new();
    for _ in 0..30 {
        if let Some(Ok(row)) = bed.open() {
            bed.provider.lose(row.id);
            bed.verify(row.id);
        }
    }
    assert_eq!(bed.rows().len(), 10);
    let open = bed.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Closed(_))), "{open:?}");
    bed.provider.advance(DAY + Duration::from_micros(1));
    bed.opened();
}

#[test]
fn a_mandate_of_another_environment_stays_unchanged() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.move_to("elsewhere");
    let was = bed.provider.now();
    // That environment does not know it.
    bed.provider.faults([]);
    bed.pass(2);
    assert_eq!(bed.row(id).state, MandateState::Open);
    assert!(bed.count(MandateEvent::Stuck) > 0);
    bed.move_to("test");
    bed.provider.approve(id);
    bed.pass(2);
    assert_eq!(bed.row(id).state, MandateState::Active);
    assert!(bed.row(id).paid_at.is_some_and(|at| at > was));
    bed.check_books();
}

#[test]
fn an_operators_cancellation_reaches_the_provider_by_reconciliation() {
    let mut bed = TestBed::new();
    assert!(bed.leave().is_none(), "there is nothing to end");
    let id = bed.paid();
    let left = bed.leave().expect("it is charged");
    assert_eq!(left.state, MandateState::CancelPending);
    assert!(!bed.state().subscription.expect("paid").renews);
    assert_eq!(bed.provider.of(id).expect("made").status, Status::Active);
    bed.pass(1);
    assert_eq!(bed.provider.of(id).expect("made").status, Status::Cancelled);
    assert!(bed.leave().is_none());
    bed.check_books();
}
