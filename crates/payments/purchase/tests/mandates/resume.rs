//! A plan that its owner has cancelled and resumes: the subscription is suspended at the provider in between, and charged as before after.

use std::time::Duration;

use tollgate_money::MandateId;
use tollgate_purchase::mandates::{ChangeError, ChargeStatus, Status};
use tollgate_store::{MandateRow, MandateState};

use crate::FAULTS;
use crate::support::process::DAY;
use crate::support::recurring_provider::{Fault, Funding, MONTH};
use crate::testbed::{ACCOUNT, TestBed};

const HOUR: Duration = Duration::from_hours(1);
const MINUTE: Duration = Duration::from_mins(1);

impl TestBed {
    pub(crate) fn cancel_plan(&mut self) -> Option<Result<MandateRow, ChangeError>> {
        self.run(|mandates| async move { mandates.cancel(ACCOUNT).await })
    }

    pub(crate) fn resume_plan(&mut self) -> Option<Result<MandateRow, ChangeError>> {
        self.run(|mandates| async move { mandates.resume(ACCOUNT).await })
    }

    /// A mandate that its owner has cancelled ten days after its payment.
    pub(crate) fn left(&mut self) -> MandateId {
        let id = self.paid();
        self.pass(10);
        self.cancel_plan().expect("alive").expect("cancelled");
        assert_eq!(self.status_of(id), Status::Suspended);
        id
    }

    pub(crate) fn status_of(&self, id: MandateId) -> Status {
        self.provider.of(id).expect("made").status
    }
}

fn is_nothing(resumed: &Option<Result<MandateRow, ChangeError>>) -> bool {
    matches!(resumed, Some(Err(ChangeError::Nothing)))
}

/// Whichever call is lost, and wherever the process is killed: nothing is charged while it is cancelled, and once each month after.
#[test]
fn a_resumed_mandate_is_charged_as_before_despite_any_fault() {
    for fault in FAULTS {
        for at in 0..6 {
            let what = format!("{fault:?} at call {at}");
            let mut bed = TestBed::new();
            let id = bed.left();
            bed.pass(5);
            assert!(!bed.state().subscription.expect("paid").renews, "{what}");
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            bed.provider.faults(faults);
            bed.resume_plan();
            bed.pass(1);
            // The request is stored before any call, so a crash does not lose it.
            assert_eq!(bed.row(id).state, MandateState::Active, "{what}");
            assert_eq!(bed.status_of(id), Status::Active, "{what}");
            assert!(bed.state().subscription.expect("paid").renews, "{what}");
            assert_eq!(bed.payments().len(), 1, "{what}: nothing was due");
            for _ in 0..30 {
                bed.pass(1);
                assert!(bed.state().is_active(), "{what}: without a gap");
            }
            assert_eq!(bed.payments().len(), 2, "{what}");
            bed.check_books();
        }
    }
}

#[test]
fn a_mandate_can_be_cancelled_and_resumed_again_and_again() {
    let mut bed = TestBed::new();
    let id = bed.left();
    for _ in 0..3 {
        for _ in 0..2 {
            let resumed = bed.resume_plan().expect("alive").expect("resumed");
            assert_eq!(resumed.state, MandateState::Active);
            if bed.state().resumable_until().is_none() {
                break;
            }
        }
        assert!(is_nothing(&bed.resume_plan()), "it runs");
        for _ in 0..2 {
            let left = bed.cancel_plan().expect("alive").expect("cancelled");
            assert_eq!(left.state, MandateState::CancelAtEnd);
        }
        assert_eq!(bed.status_of(id), Status::Suspended);
    }
    // Requested again while the provider does not answer.
    bed.provider.faults([Fault::Unavailable; 8]);
    for _ in 0..2 {
        let resumed = bed.resume_plan().expect("alive");
        assert!(
            matches!(resumed, Err(ChangeError::UnderWay(_))),
            "{resumed:?}"
        );
        assert_eq!(bed.row(id).state, MandateState::Resuming);
    }
    bed.pass(1);
    assert_eq!(bed.row(id).state, MandateState::Active);
    // And cancelled before the provider has answered a request to resume.
    bed.cancel_plan();
    bed.provider.faults([Fault::Unavailable; 8]);
    bed.resume_plan();
    bed.provider.faults([]);
    bed.cancel_plan();
    assert_eq!(bed.status_of(id), Status::Suspended);
    bed.pass(40);
    assert_eq!(bed.payments().len(), 1);
    bed.check_books();
}

#[test]
fn a_mandate_is_cancelled_at_the_provider_when_its_period_ends_and_not_resumed_after() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.cancel_plan();
    bed.provider.advance(MONTH - DAY / 24);
    assert!(bed.state().resumable_until().is_some());
    // The next charge would have been due: only the day of grace is left.
    bed.provider.advance(DAY / 12);
    assert!(bed.state().is_active());
    assert!(bed.state().resumable_until().is_none());
    assert!(is_nothing(&bed.resume_plan()));
    assert_eq!(bed.status_of(id), Status::Suspended);
    bed.pass(1);
    assert_eq!(bed.status_of(id), Status::Cancelled);
    assert_eq!(bed.row(id).state, MandateState::Ended);
    assert_eq!(bed.payments().len(), 1);
    bed.check_books();
}

#[test]
fn a_mandate_that_its_buyer_cancelled_at_the_provider_is_not_resumed() {
    // Whether or not that is known before its owner asks.
    for is_known in [true, false] {
        let mut bed = TestBed::new();
        let id = bed.left();
        bed.provider.set(id, Status::Cancelled);
        if is_known {
            bed.verify(id);
            assert!(bed.state().resumable_until().is_none());
        }
        let resumed = bed.resume_plan();
        assert_eq!(is_nothing(&resumed), is_known, "{resumed:?}");
        assert_eq!(bed.row(id).state, MandateState::Ended);
        assert!(!bed.state().subscription.expect("paid").renews);
        bed.pass(40);
        assert_eq!(bed.payments().len(), 1);
        bed.check_books();
    }
}

#[test]
fn a_mandate_that_the_provider_has_suspended_is_not_resumed() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider
        .change(id, |made| made.funding = Funding::Empty);
    bed.pass(45);
    assert_eq!(bed.status_of(id), Status::Suspended);
    assert!(is_nothing(&bed.resume_plan()));
    // Also one that the merchant has suspended, within the paid period: its cancellation is final.
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider.set(id, Status::Suspended);
    bed.verify(id);
    assert!(is_nothing(&bed.resume_plan()));
    bed.cancel_plan();
    assert_eq!(bed.status_of(id), Status::Cancelled);
    assert!(is_nothing(&bed.resume_plan()));
}

/// One that takes effect soon after was requested before, by a node that may be gone by now. The merchant's own is not undone.
#[test]
fn a_suspension_is_undone_within_an_hour_of_a_resumption() {
    let mut bed = TestBed::new();
    let id = bed.left();
    bed.resume_plan().expect("alive").expect("resumed");
    bed.provider.set(id, Status::Suspended);
    bed.provider.advance(2 * MINUTE);
    bed.pass(0);
    assert_eq!(bed.row(id).state, MandateState::Active);
    assert_eq!(bed.status_of(id), Status::Active);
    bed.provider.advance(HOUR - 2 * MINUTE);
    bed.provider.set(id, Status::Suspended);
    bed.verify(id);
    assert_eq!(bed.row(id).state, MandateState::Ended);
    assert_eq!(bed.status_of(id), Status::Suspended);
    bed.check_books();
}

#[test]
fn a_plan_that_a_transfer_has_extended_is_not_resumed() {
    let mut bed = TestBed::new();
    let id = bed.left();
    bed.transfer("0xabc");
    assert!(bed.state().resumable_until().is_none());
    assert!(is_nothing(&bed.resume_plan()), "it would be paid twice");
    bed.pass(2);
    assert_eq!(bed.status_of(id), Status::Cancelled);
    bed.pass(30);
    assert_eq!(bed.provider.kept().len(), 1);
    assert!(bed.state().is_active(), "by the transfer");
    bed.check_books();
}

#[test]
fn what_the_provider_does_not_resume_stays_cancelled() {
    // Refused, or without an answer until the paid period has ended.
    for is_refused in [true, false] {
        let mut bed = TestBed::new();
        let id = bed.left();
        if is_refused {
            bed.provider.change(id, |made| made.failures = 3);
            bed.resume_plan();
        } else {
            bed.provider.faults([Fault::Unavailable; 8]);
            bed.resume_plan();
            assert!(bed.state().subscription.expect("paid").renews);
            bed.provider.faults([]);
            bed.provider.advance(MONTH);
            bed.pass(1);
        }
        assert!(!bed.state().subscription.expect("paid").renews);
        assert_ne!(bed.status_of(id), Status::Active);
        bed.pass(30);
        assert_eq!(bed.row(id).state, MandateState::Ended);
        assert_eq!(bed.status_of(id), Status::Cancelled);
        assert_eq!(bed.payments().len(), 1);
        bed.check_books();
    }
}

/// It must not be charged again: what cannot be suspended is cancelled.
#[test]
fn a_mandate_that_the_provider_does_not_suspend_is_cancelled_at_once() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider
        .change(id, |made| made.refuses_suspension = true);
    bed.cancel_plan();
    assert_eq!(bed.status_of(id), Status::Cancelled);
    assert_eq!(bed.row(id).state, MandateState::Ended);
    assert!(is_nothing(&bed.resume_plan()));
    assert!(bed.state().is_active(), "the paid period stays");
    bed.check_books();
}

#[test]
fn a_payment_that_is_returned_ends_a_cancelled_mandate_for_good() {
    let mut bed = TestBed::new();
    let id = bed.left();
    bed.provider.change(id, |made| {
        made.charges[0].status = ChargeStatus::Returned;
    });
    bed.verify(id);
    assert_eq!(bed.status_of(id), Status::Cancelled);
    assert!(is_nothing(&bed.resume_plan()));
    assert!(!bed.state().is_active());
    bed.check_books();
}
