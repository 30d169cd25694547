//! Two nodes with one payment, where no node of the chain is configured. The single flight is of one process: the buyer's program repeats its
//! request at another node, or another node becomes the leader and reconciles what is open.
//!
//! A second call of `/settle` beside the first had the answer that the nonce is used, or that the wallet has no money. It was stored, and the
//! success of the first call could not be recorded any more: the buyer had paid and had no plan, or was offered to pay again.

use tollgate_pay::x402::PurchaseOutcome;
use tollgate_store::AuthorizationState;
use tollgate_testing::facilitator::{Effect, Fault, Operation as Call};
use tollgate_testing::{Gate, Wallet};

use crate::support::process::ACCOUNT;
use crate::testbed::TestBed;
use crate::{granted, is_processing, paid_once};

#[test]
fn a_payment_that_another_node_submits_is_not_submitted_beside_it() {
    let mut bed = TestBed::of_several();
    let payment = bed.payment(&Wallet::new(1), 1);
    let gate = bed.facilitator.gate();
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::HoldAfter));
    let presented = bed.present_elsewhere(&payment, None);
    bed.reached(&gate, 1);
    for secs in [0, 3, 60] {
        bed.advance(secs);
        is_processing(bed.present(ACCOUNT, &payment));
        assert!(bed.ask_from_paypal(ACCOUNT).is_open_elsewhere);
        bed.recover();
        assert_eq!(bed.facilitator.calls(Call::Settle), 1, "after {secs} s");
    }
    gate.open();
    granted(Some(bed.end(presented)));
    paid_once(&bed);
}

#[test]
fn a_payment_whose_node_has_crashed_is_reconciled_after_the_time_of_a_call() {
    let mut bed = TestBed::of_several();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::HoldAfter));
    bed.facilitator.remember();
    let presented = bed.present_elsewhere(&payment, None);
    bed.reached(&bed.facilitator.gate(), 1);
    presented.abort();
    bed.advance(120);
    assert_eq!(bed.reconcile_due(), Some(1));
    paid_once(&bed);
}

#[test]
fn a_success_is_granted_although_another_node_has_stored_something_else_meanwhile() {
    let mut bed = TestBed::of_several();
    let payment = bed.payment(&Wallet::new(1), 1);
    let gate = bed.facilitator.gate();
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::HoldAfter));
    let presented = bed.present_elsewhere(&payment, None);
    bed.reached(&gate, 1);
    // Longer than a call takes: the other node has stalled, and continues later.
    bed.advance(100);
    is_processing(bed.present(ACCOUNT, &payment));
    assert_eq!(bed.facilitator.calls(Call::Settle), 2, "the nonce is used");
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Unknown));
    gate.open();
    granted(Some(bed.end(presented)));
    paid_once(&bed);
}

#[test]
fn a_refusal_of_a_call_that_was_not_the_only_one_shows_no_offer() {
    let mut bed = TestBed::of_several();
    let payment = bed.payment(&Wallet::new(1), 1);
    let delay = Gate::new();
    let presented = bed.present_elsewhere(&payment, Some(&delay));
    bed.reached(&delay, 1);
    bed.advance(100);
    // The call of this node is executed, and its answer takes longer than that to the late call of the other one.
    let gate = bed.facilitator.gate();
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::HoldAfter));
    let second = bed.present_elsewhere(&payment, None);
    bed.reached(&gate, 1);
    let refuse = Effect::Refuse("insufficient_funds".to_owned(), 200);
    bed.facilitator.fault(Fault::once(Call::Settle, refuse));
    delay.open();
    assert_eq!(bed.end(presented), PurchaseOutcome::Processing);
    is_processing(bed.ask(ACCOUNT));
    gate.open();
    granted(Some(bed.end(second)));
    paid_once(&bed);
}

/// The key stays claimed until the node that has claimed it is recovered, which takes minutes.
#[test]
fn a_settled_payment_is_answered_although_another_node_has_claimed_the_key_and_is_gone() {
    let mut bed = TestBed::of_several();
    let payment = bed.payment(&Wallet::new(1), 1);
    let gate = bed.facilitator.gate();
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::HoldAfter));
    bed.facilitator.remember();
    let gone = bed.present_elsewhere_with_key(&payment, "key");
    bed.reached(&gate, 1);
    bed.advance(120);
    let in_progress = PurchaseOutcome::InProgress;
    assert_eq!(bed.present_with_key(&payment, "key"), in_progress);
    assert_eq!(bed.reconcile_due(), Some(1));
    for _ in 0..2 {
        granted(Some(bed.present_with_key(&payment, "key")));
    }
    let other = bed.payment(&Wallet::new(1), 2);
    assert_eq!(
        bed.present_with_key(&other, "key"),
        PurchaseOutcome::OtherRequest
    );
    gate.open();
    granted(Some(bed.end(gone)));
    paid_once(&bed);
}
