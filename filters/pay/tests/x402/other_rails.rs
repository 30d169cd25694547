//! Other rails beside signed transfers: their questions are no attempts, and a rail that does not answer delays no buyer.

use std::time::Duration;

use tollgate_evm::{Address, Authorization};
use tollgate_pay::x402::{PurchaseOutcome, X402Event};
use tollgate_store::AuthorizationState;
use tollgate_testing::Wallet;
use tollgate_testing::facilitator::{Effect, Fault, Operation as Call};

use crate::support::process::ACCOUNT;
use crate::testbed::TestBed;

/// Another rail asks as often as its buyers repeat their requests.
#[test]
fn a_question_of_another_rail_is_no_attempt_and_raises_no_alert() {
    let mut bed = TestBed::without_node();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseAnswer));
    bed.present(ACCOUNT, &payment);
    let before = bed.schedule(ACCOUNT);
    // Expired long ago.
    bed.advance(3_600);
    for _ in 0..5 {
        bed.advance(2);
        assert!(bed.ask_from_paypal(ACCOUNT).money_may_move());
    }
    assert_eq!(bed.schedule(ACCOUNT), before);
    assert_eq!(bed.count(X402Event::Stuck), 0);
    bed.advance(2);
    assert_eq!(bed.reconcile_due(), Some(1), "it has stayed due");
    assert_eq!(bed.schedule(ACCOUNT).0, before.0 + 1);
    assert_eq!(bed.count(X402Event::Stuck), 1, "the worker raises it");
}

/// The time of the second lookup is part of the proof that a payment is void.
#[test]
fn a_question_of_another_rail_does_not_shorten_the_proof_that_a_payment_is_void() {
    let mut bed = TestBed::new();
    let wallet = Wallet::new(1);
    let payment = bed.payment(&wallet, 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::Phantom));
    bed.present(ACCOUNT, &payment);
    assert!(bed.facilitator.submit(&Authorization {
        to: Address([9; 20]),
        ..bed.transfer(&wallet, 1)
    }));
    bed.advance(30);
    for _ in 0..5 {
        assert!(bed.ask_from_paypal(ACCOUNT).money_may_move());
        bed.advance(30);
        assert_eq!(bed.reconcile_due(), Some(0), "its block may be replaced");
    }
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Unknown));
    bed.advance(300);
    assert!(!bed.ask_from_paypal(ACCOUNT).money_may_move());
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Dead));
}

/// A refusal is answered after the other rails were asked, within the same bound.
#[test]
fn a_refused_buyer_waits_no_longer_for_a_silent_rail_than_for_the_facilitator() {
    let wait = Duration::from_millis(100);
    let bed = TestBed::with_wait(wait);
    let payment = bed.payment(&Wallet::new(1), 1);
    let _rail = bed.add_silent_rail();
    let refuse = Effect::Refuse("insufficient_funds".to_owned(), 200);
    bed.facilitator.fault(Fault::once(Call::Verify, refuse));
    // Well below the time after which the rail alone would be given up.
    let outcome = bed.present_within(&payment, 20 * wait);
    assert_eq!(outcome, Some(PurchaseOutcome::Processing));
}

/// A buyer's program presents its payment until it is answered.
#[test]
fn a_repeated_payment_is_no_attempt_and_raises_no_alert() {
    let mut bed = TestBed::without_node();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseAnswer));
    bed.present(ACCOUNT, &payment);
    let before = bed.schedule(ACCOUNT);
    bed.advance(3_600);
    for _ in 0..5 {
        bed.advance(2);
        bed.present(ACCOUNT, &payment);
    }
    assert_eq!(bed.schedule(ACCOUNT), before);
    assert_eq!(bed.count(X402Event::Stuck), 0);
    bed.advance(2);
    assert_eq!(bed.reconcile_due(), Some(1), "it has stayed due");
    assert_eq!(bed.count(X402Event::Stuck), 1, "the worker raises it");
}
