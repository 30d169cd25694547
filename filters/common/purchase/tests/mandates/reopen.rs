//! Another mandate beside one that cannot be collected, and no more of them than are of use.

use tollgate_purchase::mandates::{OpenError, Status, Verified};
use tollgate_store::MandateState;

use crate::provider::{DAY, Fault, Funding};
use crate::testbed::{ACCOUNT, TestBed};

#[test]
fn a_first_charge_that_fails_is_told_and_locks_nobody_out() {
    let mut bed = TestBed::new();
    let failed = bed.opened();
    bed.provider
        .change(failed, |made| made.funding = Funding::Empty);
    bed.provider.approve(failed);
    let verified = bed.verify(failed).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Unpaid(_)), "{verified:?}");
    assert_eq!(bed.counts().past_due, 1);
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
fn asking_for_another_ends_nothing_that_may_still_be_paid() {
    let mut bed = TestBed::new();
    let old = bed.paid();
    bed.provider
        .change(old, |made| made.funding = Funding::Empty);
    bed.pass(33);
    assert!(!bed.state().is_active());
    // The other one cannot be made, and then it is made and not agreed to.
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
fn nothing_is_offered_while_a_late_charge_is_on_its_way() {
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
fn what_was_left_a_moment_ago_is_offered_again() {
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
fn an_account_begins_no_more_than_are_of_use_in_a_day() {
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
    bed.provider.advance(DAY + 1);
    bed.opened();
}

#[test]
fn nothing_is_concluded_about_a_mandate_at_another_address_of_the_provider() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.move_to("elsewhere");
    let was = bed.provider.now();
    // There nobody knows it.
    bed.provider.faults([]);
    bed.pass(2);
    assert_eq!(bed.row(id).state, MandateState::Open);
    assert!(bed.counts().stuck > 0);
    bed.move_to("test");
    bed.provider.approve(id);
    bed.pass(2);
    assert_eq!(bed.row(id).state, MandateState::Active);
    assert!(bed.row(id).paid_at.is_some_and(|at| at > was));
    bed.check_books();
}

#[test]
fn what_an_operator_ends_is_ended_at_the_provider_by_reconciliation() {
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
