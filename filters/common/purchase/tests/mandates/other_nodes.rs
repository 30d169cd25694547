//! Two nodes that work on one mandate: the lock of an account is of one process, and versions of the row keep the nodes apart.

use tollgate_purchase::mandates::Status;
use tollgate_store::MandateState;

use crate::testbed::{ACCOUNT, TestBed};

#[test]
fn a_cancellation_after_a_slow_resumption_of_another_node_stays() {
    let mut bed = TestBed::new();
    let id = bed.left();
    // Read, charges, activate.
    let resumed = bed.run_elsewhere(
        2,
        |mandates| async move { mandates.resume(ACCOUNT).await },
        |bed| {
            assert_eq!(bed.row(id).state, MandateState::Resuming);
            let left = bed.cancel_plan().expect("alive").expect("cancelled");
            assert_eq!(left.state, MandateState::CancelAtEnd);
        },
    );
    assert_eq!(bed.row(id).state, MandateState::CancelAtEnd, "{resumed:?}");
    assert_eq!(bed.status_of(id), Status::Suspended);
    assert!(bed.row(id).cancel_requested_at.is_some());
    assert!(!bed.state().subscription.expect("paid").renews);
    bed.pass(60);
    assert_eq!(bed.payments().len(), 1, "it is charged no more");
    bed.check_books();
}

#[test]
fn a_resumption_after_a_slow_cancellation_of_another_node_stays() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.pass(10);
    // Read, charges, suspend, read.
    let left = bed.run_elsewhere(
        3,
        |mandates| async move { mandates.cancel(ACCOUNT).await },
        |bed| {
            assert_eq!(bed.status_of(id), Status::Suspended);
            let resumed = bed.resume_plan().expect("alive").expect("resumed");
            assert_eq!(resumed.state, MandateState::Active);
        },
    );
    assert_eq!(bed.row(id).state, MandateState::Active, "{left:?}");
    assert_eq!(bed.status_of(id), Status::Active);
    assert!(bed.state().subscription.expect("paid").renews);
    bed.pass(25);
    assert_eq!(bed.payments().len(), 2, "it is charged as before");
    bed.check_books();
}
