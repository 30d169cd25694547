//! Two nodes that work on one mandate: the lock of an account is of one process, and versions of the row keep the nodes apart.

use std::time::Duration;

use tollgate_purchase::mandates::{ChangeError, Status};
use tollgate_store::MandateState;

use crate::support::recurring_provider::Fault;
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

/// Also where the node of the resumption is notified of the suspension first, where it cannot be activated again at once, and where the node that
/// has suspended it learns nothing more: that was known to this node alone, and the plan ended with its period.
#[test]
fn a_suspension_that_takes_effect_after_a_resumption_at_another_node_is_undone() {
    for is_notified in [false, true] {
        // Charges; read and charges for the stored row; activate.
        let activated = vec![Fault::None; 4];
        let later = [vec![Fault::None; 3], vec![Fault::Unavailable]].concat();
        for faults in [activated, later, vec![Fault::Unavailable; 2]] {
            let what = format!("{faults:?}, notified: {is_notified}");
            let mut bed = TestBed::new();
            let id = bed.paid();
            bed.pass(10);
            bed.provider.faults([Fault::Unavailable]);
            let left = bed.cancel_plan().expect("alive");
            assert!(matches!(left, Err(ChangeError::UnderWay(_))), "{left:?}");
            bed.provider.advance(Duration::from_secs(5));
            // The worker's read, charges, suspend.
            let due = bed.run_elsewhere(
                2,
                |mandates| async move { mandates.reconcile_due().await },
                |bed| {
                    let resumed = bed.resume_plan().expect("alive").expect("resumed");
                    assert_eq!(resumed.state, MandateState::Active, "{what}");
                    // The worker's read after the suspension.
                    bed.provider.faults([Fault::Hold]);
                    bed.provider.release();
                    bed.wait_for_held_call();
                    if is_notified {
                        bed.verify(id).expect("alive").expect("answered");
                        assert_eq!(bed.status_of(id), Status::Active, "{what}");
                    }
                    bed.provider.faults(faults);
                },
            );
            assert_eq!(due, 1, "{what}");
            bed.provider.faults([]);
            bed.provider.advance(Duration::from_mins(2));
            bed.pass(1);
            assert_eq!(bed.row(id).state, MandateState::Active, "{what}");
            assert_eq!(bed.status_of(id), Status::Active, "{what}");
            assert!(bed.state().subscription.expect("paid").renews, "{what}");
            bed.pass(25);
            assert_eq!(bed.payments().len(), 2, "{what}: it is charged as before");
            bed.check_books();
        }
    }
}
