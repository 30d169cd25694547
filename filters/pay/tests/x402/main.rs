//! Signed transfers through crashes, lost messages, clock jumps and chain reorganizations.

mod facilitator_answers;
mod other_nodes;
mod other_rails;
mod random;
#[path = "../../../../crates/payments/purchase/tests/support/mod.rs"]
mod support;
mod testbed;

use std::time::Duration;

use serde_json::Value;
use tollgate_evm::{Address, Authorization, Nonce};
use tollgate_pay::x402::{Operation, Payment, PurchaseOutcome};
use tollgate_store::AuthorizationState;
use tollgate_testing::Wallet;
use tollgate_testing::facilitator::{Effect, Fault, Operation as Call, merchant};
use tollgate_testing::wallet::encoded;

use support::process::{ACCOUNT, OTHER_ACCOUNT};
use testbed::{Crash, TestBed};

/// The body of an answer that grants the plan.
fn granted(outcome: Option<PurchaseOutcome>) -> Value {
    match outcome {
        Some(PurchaseOutcome::Done(answer)) => {
            assert_eq!(answer.status, 200);
            serde_json::from_slice(&answer.body).expect("JSON")
        }
        other => panic!("{other:?}"),
    }
}

fn is_processing(outcome: Option<PurchaseOutcome>) {
    assert_eq!(outcome, Some(PurchaseOutcome::Processing));
}

/// Invariant of every scenario: the books balance, the merchant was paid once, and the buyer has the plan for it.
fn paid_once(bed: &TestBed) {
    assert_eq!(bed.transfers(), 1, "one transfer");
    assert_eq!(bed.payments(ACCOUNT), 1, "one paid period");
    assert_eq!(bed.days_left(ACCOUNT), Some(30));
    assert!(!bed.has_open());
    bed.check_books();
}

#[test]
fn a_purchase_repeated_after_a_crash_at_any_point_is_one_purchase() {
    for crash in [
        Crash::Before(Operation::Verify),
        Crash::After(Operation::Verify),
        Crash::Before(Operation::Settle),
        Crash::After(Operation::Settle),
    ] {
        for recovers in [true, false] {
            let mut bed = TestBed::new();
            let payment = bed.payment(&Wallet::new(1), 1);
            bed.crash(crash);
            assert_eq!(bed.present(ACCOUNT, &payment), None, "{crash:?}: it dies");
            let sent = matches!(crash, Crash::Before(call) | Crash::After(call) if call == Operation::Settle);
            let state = match sent {
                true => AuthorizationState::Settling,
                false => AuthorizationState::Seen,
            };
            assert_eq!(bed.state(&payment), Some(state), "{crash:?}");
            if sent {
                is_processing(bed.ask(ACCOUNT));
            }
            if recovers {
                bed.recover();
            }
            let answer = granted(bed.present(ACCOUNT, &payment));
            assert_eq!(answer["success"], true, "{crash:?}");
            assert_eq!(answer["already_active"], recovers && sent, "{crash:?}");
            paid_once(&bed);
        }
    }
}

#[test]
fn a_crash_after_the_transfer_grants_the_plan_without_another_request() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.crash(Crash::After(Operation::Settle));
    assert_eq!(bed.present(ACCOUNT, &payment), None);
    bed.recover();
    paid_once(&bed);
    // Or later, when it is due.
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.crash(Crash::After(Operation::Settle));
    assert_eq!(bed.present(ACCOUNT, &payment), None);
    bed.advance(180);
    assert_eq!(bed.reconcile_due(), Some(1));
    paid_once(&bed);
}

#[test]
fn an_attempt_outlives_its_request_and_its_answer_is_returned_later() {
    let mut bed = TestBed::with_wait(Duration::from_millis(50));
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::Hold));
    // The buyer is asked to retry, and the transfer continues.
    is_processing(bed.present(ACCOUNT, &payment));
    let gate = bed.facilitator.gate();
    bed.until(|_| gate.arrived() == 1);
    is_processing(bed.ask(ACCOUNT));
    gate.open();
    let outcome = loop {
        match bed.present(ACCOUNT, &payment) {
            Some(PurchaseOutcome::Processing) => {}
            outcome => break outcome,
        }
    };
    granted(outcome);
    assert_eq!(bed.facilitator.calls(Call::Settle), 1);
    paid_once(&bed);
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.present_and_disconnect(&payment);
    granted(bed.present(ACCOUNT, &payment));
    assert_eq!(bed.facilitator.calls(Call::Settle), 1);
    paid_once(&bed);
}

#[test]
fn a_payment_that_was_never_submitted_is_dead_when_it_has_expired_on_the_chain() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall).times(1_000));
    is_processing(bed.present(ACCOUNT, &payment));
    for _ in 0..4 {
        bed.advance(60);
        bed.reconcile_due();
        is_processing(bed.ask(ACCOUNT));
    }
    // Expired, and within the grace period of two minutes.
    bed.advance(120);
    bed.reconcile_due();
    is_processing(bed.present(ACCOUNT, &payment));
    bed.advance(120);
    let over = bed.present(ACCOUNT, &payment);
    assert!(
        matches!(
            over,
            Some(PurchaseOutcome::Refused {
                failure: Some(_),
                ..
            })
        ),
        "{over:?}"
    );
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Dead));
    assert_eq!(
        bed.ask(ACCOUNT),
        Some(PurchaseOutcome::Offer),
        "and another may be made"
    );
    bed.facilitator.no_faults();
    let next = bed.payment(&Wallet::new(1), 2);
    granted(bed.present(ACCOUNT, &next));
    paid_once(&bed);
}

#[test]
fn the_gateways_clock_alone_never_ends_a_payment() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::Pending(200)));
    is_processing(bed.present(ACCOUNT, &payment));
    // An hour ahead: expired by our clock, not by the chain's.
    bed.jump(3_600);
    bed.reconcile_due();
    is_processing(bed.present(ACCOUNT, &payment));
    is_processing(bed.ask(ACCOUNT));
    assert_eq!(bed.facilitator.mine(true), 1);
    bed.jump(3_700);
    granted(bed.present(ACCOUNT, &payment));
    assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (1, 1));
}

#[test]
fn a_cancelled_authorization_is_dead_at_once() {
    let mut bed = TestBed::new();
    let wallet = Wallet::new(1);
    let payment = bed.payment(&wallet, 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall));
    bed.facilitator
        .fault(Fault::once(Call::Rpc, Effect::LoseCall));
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall));
    is_processing(bed.present(ACCOUNT, &payment));
    bed.facilitator.cancel(wallet.address(), Nonce([1; 32]));
    bed.advance(30);
    assert_eq!(bed.reconcile_due(), Some(1));
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Dead));
    assert_eq!(bed.ask(ACCOUNT), Some(PurchaseOutcome::Offer));
    assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (0, 0));
}

#[test]
fn without_proof_a_payment_stays_open() {
    let mut bed = TestBed::without_node();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseAnswer));
    is_processing(bed.present(ACCOUNT, &payment));
    for _ in 0..50 {
        bed.advance(3_600);
        bed.reconcile_due();
        is_processing(bed.ask(ACCOUNT));
    }
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Unknown));
    assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (1, 0));
    // The facilitator remembers at last.
    bed.facilitator.remember();
    bed.advance(5);
    granted(bed.present(ACCOUNT, &payment));
    paid_once(&bed);
}

/// Another rail saw an open row until the schedule came round, and could offer nothing meanwhile.
#[test]
fn a_transfer_whose_answer_was_lost_is_looked_up_when_another_rail_asks() {
    let mut bed = TestBed::without_node();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseAnswer));
    is_processing(bed.present(ACCOUNT, &payment));
    bed.facilitator.remember();
    let calls = bed.facilitator.calls(Call::Settle);
    assert!(bed.ask_from_paypal(ACCOUNT).money_may_move());
    let same = bed.facilitator.calls(Call::Settle);
    assert_eq!(same, calls, "it was looked up a moment ago");
    // Not yet due by the schedule.
    bed.advance(1);
    assert_eq!(bed.ask_from_paypal(OTHER_ACCOUNT).active(), None);
    let state = bed.ask_from_paypal(ACCOUNT);
    assert!(state.is_active() && !state.money_may_move(), "{state:?}");
    paid_once(&bed);
}

#[test]
fn a_transfer_in_progress_blocks_other_rails_and_is_not_waited_for() {
    let bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    assert!(
        bed.ask_from_paypal_during_submission(&payment)
            .is_open_elsewhere
    );
    let state = bed.ask_from_paypal(ACCOUNT);
    assert!(state.is_active() && !state.money_may_move(), "{state:?}");
    paid_once(&bed);
}

#[test]
fn a_node_of_another_chain_proves_nothing() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall).times(1_000));
    is_processing(bed.present(ACCOUNT, &payment));
    // A node that answers like one of the right chain, and is of another chain.
    bed.facilitator.be_of_chain(84_532);
    bed.advance(900);
    bed.reconcile_due();
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Unknown));
    is_processing(bed.ask(ACCOUNT));
    // A node whose answers cannot be parsed.
    bed.facilitator.be_of_chain(8_453);
    bed.facilitator
        .fault(Fault::once(Call::Rpc, Effect::Nonsense).times(2));
    bed.advance(3_600);
    bed.reconcile_due();
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Unknown));
    bed.advance(3_600);
    bed.reconcile_due();
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Dead));
}

#[test]
fn a_transfer_pays_for_one_nonce_of_its_transaction() {
    let mut bed = TestBed::new();
    let wallet = Wallet::new(1);
    // Authorizations that the wallet signs for us, nonce by nonce; and a transaction that it submitted itself: one transfer to us, and the
    // other nonces used without payment.
    let payments: Vec<_> = (1..=4).map(|nonce| bed.payment(&wallet, nonce)).collect();
    let transfer = |nonce: u8, to: Address, value: u64| Authorization {
        from: wallet.address(),
        to,
        value: value.into(),
        valid_after: 0.into(),
        valid_before: (bed.now() + 300).into(),
        nonce: Nonce([nonce; 32]),
    };
    let own = wallet.address();
    assert!(bed.facilitator.submit_together(&[
        transfer(1, own, 0),
        transfer(2, merchant(), 199_000_000),
        transfer(3, own, 0),
        transfer(4, own, 0),
    ]));
    for (payment, account) in [(0, OTHER_ACCOUNT), (2, OTHER_ACCOUNT), (3, OTHER_ACCOUNT)] {
        let outcome = bed.present(account, &payments[payment]);
        assert!(
            matches!(outcome, Some(PurchaseOutcome::Refused { .. })),
            "{outcome:?}"
        );
        assert_eq!(
            bed.state(&payments[payment]),
            Some(AuthorizationState::Dead)
        );
    }
    assert_eq!(bed.days_left(OTHER_ACCOUNT), None);
    granted(bed.present(ACCOUNT, &payments[1]));
    assert_eq!((bed.payments(ACCOUNT), bed.payments(OTHER_ACCOUNT)), (1, 0));
    bed.check_books();
}

#[test]
fn a_node_configured_later_finds_an_old_payment() {
    let mut bed = TestBed::without_node();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseAnswer));
    is_processing(bed.present(ACCOUNT, &payment));
    bed.advance(20 * 86_400);
    bed.reconcile_due();
    is_processing(bed.ask(ACCOUNT));
    // It also searches only few blocks in one call.
    bed.facilitator.look_through(300);
    bed.set_node(true);
    bed.restart();
    bed.recover();
    paid_once(&bed);
}

#[test]
fn a_reported_settlement_that_the_chain_never_shows_grants_nothing() {
    for canceled in [true, false] {
        let mut bed = TestBed::new();
        let wallet = Wallet::new(1);
        let payment = bed.payment(&wallet, 1);
        bed.facilitator
            .fault(Fault::once(Call::Settle, Effect::Phantom));
        is_processing(bed.present(ACCOUNT, &payment));
        assert_eq!(bed.payments(ACCOUNT), 0);
        match canceled {
            true => bed.facilitator.cancel(wallet.address(), Nonce([1; 32])),
            false => assert!(bed.facilitator.submit(&Authorization {
                from: wallet.address(),
                to: wallet.address(),
                value: 1.into(),
                valid_after: 0.into(),
                valid_before: (bed.now() + 300).into(),
                nonce: Nonce([1; 32]),
            })),
        }
        // The facilitator says otherwise: it is over when a second lookup agrees.
        for state in [AuthorizationState::Unknown, AuthorizationState::Dead] {
            bed.advance(301);
            assert_eq!(bed.reconcile_due(), Some(1));
            assert_eq!(bed.state(&payment), Some(state), "canceled: {canceled}");
        }
        assert_eq!(bed.days_left(ACCOUNT), None, "canceled: {canceled}");
        assert_eq!(bed.payments(ACCOUNT), 0);
        assert_eq!(bed.ask(ACCOUNT), Some(PurchaseOutcome::Offer));
        bed.check_books();
    }
}

#[test]
fn a_transfer_on_the_chain_grants_nothing_for_a_forged_signature() {
    let mut bed = TestBed::new();
    let wallet = Wallet::new(1);
    let payment = bed.payment(&wallet, 1);
    // A wallet has paid the merchant without this gateway, which is public on the chain, and another account claims the payment.
    assert!(bed.facilitator.submit(&Authorization {
        from: wallet.address(),
        to: merchant(),
        value: 199_000_000.into(),
        valid_after: 0.into(),
        valid_before: (bed.now() + 300).into(),
        nonce: Nonce([1; 32]),
    }));
    let mut forged = payment.whole().clone();
    let stranger = bed.payment(&Wallet::new(2), 1);
    forged["payload"]["signature"] = stranger.whole()["payload"]["signature"].clone();
    let forged = Payment::read(encoded(&forged).as_bytes()).expect("a payment");
    // The published facilitator checks the nonce before the signature.
    bed.facilitator.fault(Fault::once(
        Call::Verify,
        Effect::Refuse("invalid_exact_evm_nonce_already_used".to_owned(), 200),
    ));
    assert_eq!(
        bed.present(OTHER_ACCOUNT, &forged),
        Some(PurchaseOutcome::Unavailable)
    );
    assert_eq!(bed.state(&forged), Some(AuthorizationState::Seen));
    assert_eq!(
        bed.ask(OTHER_ACCOUNT),
        Some(PurchaseOutcome::Offer),
        "nothing is open"
    );
    assert_eq!(bed.payments(OTHER_ACCOUNT), 0);
}

/// The money has moved already, so an open purchase on another rail does not keep it from being recorded.
#[test]
fn a_used_authorization_is_granted_while_another_rail_has_a_purchase_open() {
    let mut bed = TestBed::new();
    let wallet = Wallet::new(1);
    let payment = bed.payment(&wallet, 1);
    let _rail = bed.add_open_rail();
    let other = bed.payment(&Wallet::new(2), 2);
    is_processing(bed.present(ACCOUNT, &other));
    assert_eq!(bed.transfers(), 0, "one that has moved nothing waits");
    assert!(bed.facilitator.submit(&Authorization {
        from: wallet.address(),
        to: merchant(),
        value: 199_000_000.into(),
        valid_after: 0.into(),
        valid_before: (bed.now() + 300).into(),
        nonce: Nonce([1; 32]),
    }));
    granted(bed.present(ACCOUNT, &payment));
    paid_once(&bed);
}

#[test]
fn a_graceful_shutdown_records_a_transfer_in_progress() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseAnswer));
    bed.present_and_disconnect(&payment);
    bed.drain_and_restart();
    let state = bed.state(&payment);
    assert!(
        !matches!(
            state,
            None | Some(AuthorizationState::Seen | AuthorizationState::Settling)
        ),
        "{state:?}"
    );
    granted(bed.present(ACCOUNT, &payment));
    paid_once(&bed);
}

#[test]
fn an_error_on_one_payment_suspends_offers_until_the_next_health_check() {
    let mut bed = TestBed::new();
    bed.run();
    bed.until(|processor| processor.is_available());
    bed.facilitator
        .fault(Fault::once(Call::Verify, Effect::Status(500)));
    let payment = bed.payment(&Wallet::new(1), 1);
    assert_eq!(
        bed.present(ACCOUNT, &payment),
        Some(PurchaseOutcome::Unavailable)
    );
    bed.until(|processor| processor.is_available());
    assert_eq!(bed.facilitator.calls(Call::Supported), 2);
}

#[test]
fn a_payment_presented_during_its_reconciliation_gets_the_reconciled_outcome() {
    // Reconciliation finds that it is over, and another protocol has activated the plan meanwhile: no offer.
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall).times(2));
    is_processing(bed.present(ACCOUNT, &payment));
    bed.advance(600);
    let outcome = bed.present_during_reconciliation(&payment, "one", |bed| {
        // After its expiry it is not submitted, whatever the facilitator does.
        bed.charged_by_paypal(ACCOUNT, 31);
    });
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Dead));
    assert_eq!(granted(Some(outcome))["already_active"], true);
    // Reconciliation finds that it has paid: the answer is stored under the idempotency key of the waiting request.
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall).times(2));
    is_processing(bed.present(ACCOUNT, &payment));
    bed.advance(60);
    let outcome = bed.present_during_reconciliation(&payment, "one", |_| {});
    granted(Some(outcome));
    let other = bed.payment(&Wallet::new(1), 2);
    assert_eq!(
        bed.present_with_key(&other, "one"),
        PurchaseOutcome::OtherRequest,
        "the name stands for the first payment"
    );
    paid_once(&bed);
}

#[test]
fn a_plan_near_its_end_is_extended_from_the_end_of_the_paid_time() {
    let mut bed = TestBed::new();
    let wallet = Wallet::new(1);
    let first = bed.payment(&wallet, 1);
    granted(bed.present(ACCOUNT, &first));
    bed.advance(22 * 86_400);
    let early = bed.payment(&wallet, 2);
    assert_eq!(
        granted(bed.present(ACCOUNT, &early))["already_active"],
        true
    );
    assert_eq!(bed.transfers(), 1, "it stays unspent");
    bed.advance(2 * 86_400);
    assert_eq!(
        bed.ask(ACCOUNT),
        Some(PurchaseOutcome::Offer),
        "its end is near"
    );
    let next = bed.payment(&wallet, 3);
    assert_eq!(
        granted(bed.present(ACCOUNT, &next))["already_active"],
        false
    );
    assert_eq!(bed.days_left(ACCOUNT), Some(36), "behind what was paid");
    assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (2, 2));
    assert_eq!(granted(bed.ask(ACCOUNT))["already_active"], true);
    bed.check_books();
}

#[test]
fn a_plan_that_paypal_renews_is_not_sold_by_transfer() {
    let mut bed = TestBed::new();
    bed.charged_by_paypal(ACCOUNT, 3);
    let payment = bed.payment(&Wallet::new(1), 1);
    assert_eq!(granted(bed.ask(ACCOUNT))["already_active"], true);
    assert_eq!(
        granted(bed.present(ACCOUNT, &payment))["already_active"],
        true
    );
    assert_eq!(bed.transfers(), 0, "it stays unspent");
}

#[test]
fn a_settled_transfer_adds_its_days_to_a_charge_that_came_meanwhile() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::Pending(200)));
    is_processing(bed.present(ACCOUNT, &payment));
    // A charge by PayPal arrives while the transfer is pending.
    bed.charged_by_paypal(ACCOUNT, 31);
    is_processing(bed.ask(ACCOUNT));
    assert_eq!(bed.facilitator.mine(true), 1);
    bed.advance(5);
    granted(bed.present(ACCOUNT, &payment));
    assert_eq!(bed.days_left(ACCOUNT), Some(61));
    assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (1, 1));
    bed.check_books();
}

#[test]
fn a_payment_counts_for_the_account_that_presented_it_first() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.crash(Crash::After(Operation::Settle));
    assert_eq!(bed.present(ACCOUNT, &payment), None);
    assert_eq!(
        bed.present(OTHER_ACCOUNT, &payment),
        Some(PurchaseOutcome::UsedByAnother)
    );
    assert_eq!(bed.ask(OTHER_ACCOUNT), Some(PurchaseOutcome::Offer));
    granted(bed.present(ACCOUNT, &payment));
    assert_eq!(
        bed.present(OTHER_ACCOUNT, &payment),
        Some(PurchaseOutcome::UsedByAnother)
    );
    assert_eq!(bed.payments(OTHER_ACCOUNT), 0);
    paid_once(&bed);
}

#[test]
fn a_settled_payment_is_looked_up_again_when_its_block_is_final() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    granted(bed.present(ACCOUNT, &payment));
    assert_eq!(bed.reconcile_due(), Some(0), "not yet");
    bed.advance(301);
    assert_eq!(bed.reconcile_due(), Some(1));
    bed.advance(3_600);
    assert_eq!(bed.reconcile_due(), Some(0), "once");
    paid_once(&bed);
}

#[test]
fn a_transfer_that_was_reorganized_out_is_submitted_again_while_it_is_valid() {
    let mut bed = TestBed::new();
    // Signed for long enough to be submitted again.
    let offer = testbed::offer();
    let mut signed = Wallet::new(1).payment(&offer, [1; 32], bed.now());
    let longer = Authorization {
        from: Wallet::new(1).address(),
        to: tollgate_testing::facilitator::merchant(),
        value: 199_000_000.into(),
        valid_after: 0.into(),
        valid_before: (bed.now() + 890).into(),
        nonce: Nonce([1; 32]),
    };
    signed["payload"] = Wallet::new(1).signed(&offer, &longer)["payload"].clone();
    let text = tollgate_testing::wallet::encoded(&signed);
    let payment = Payment::read(text.as_bytes()).expect("a payment");
    granted(bed.present(ACCOUNT, &payment));
    assert!(bed.facilitator.undo());
    bed.advance(301);
    assert_eq!(bed.reconcile_due(), Some(1));
    bed.advance(61);
    assert_eq!(bed.reconcile_due(), Some(1));
    paid_once(&bed);
}

#[test]
fn a_grant_is_revoked_when_its_transfer_can_no_longer_be_included() {
    for canceled in [true, false] {
        let mut bed = TestBed::new();
        let wallet = Wallet::new(1);
        let payment = bed.payment(&wallet, 1);
        granted(bed.present(ACCOUNT, &payment));
        assert!(bed.facilitator.undo());
        if canceled {
            bed.facilitator.cancel(wallet.address(), Nonce([1; 32]));
        }
        bed.facilitator
            .fault(Fault::once(Call::Settle, Effect::LoseCall).times(1_000));
        bed.advance(500);
        assert_eq!(bed.reconcile_due(), Some(1));
        assert_eq!(bed.state(&payment), Some(AuthorizationState::Dead));
        assert_eq!(bed.days_left(ACCOUNT), None, "canceled: {canceled}");
        assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (0, 0));
        assert_eq!(bed.ask(ACCOUNT), Some(PurchaseOutcome::Offer));
        bed.check_books();
    }
}

#[test]
fn stored_payments_are_encrypted() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    let signature = payment.whole()["payload"]["signature"]
        .as_str()
        .expect("a signature")
        .to_owned();
    bed.crash(Crash::Before(Operation::Settle));
    assert_eq!(bed.present(ACCOUNT, &payment), None);
    let disk = bed.on_disk();
    let digits = signature.trim_start_matches("0x").as_bytes();
    assert!(!disk.windows(digits.len()).any(|part| part == digits));
    granted(bed.present(ACCOUNT, &payment));
}
