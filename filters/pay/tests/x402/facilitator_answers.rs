//! Answers of the facilitator against states of the chain: what the buyer gets, what moves, and what is granted.

use tollgate_evm::{Address, Authorization};
use tollgate_pay::x402::PurchaseOutcome;
use tollgate_store::AuthorizationState;
use tollgate_testing::Wallet;
use tollgate_testing::facilitator::{Effect, Fault, Operation as Call};

use crate::support::process::{ACCOUNT, OTHER_ACCOUNT};
use crate::testbed::TestBed;
use crate::{granted, is_processing, paid_once};

const WHY: &str = "insufficient_funds";

fn refused_after(effect: fn(String) -> Effect) -> Fault {
    Fault::once(Call::Settle, effect(WHY.to_owned()))
}

fn is_not_final(outcome: Option<PurchaseOutcome>) {
    match outcome {
        Some(PurchaseOutcome::NotFinal { why, secs }) => {
            assert_eq!(why, WHY);
            assert!((1..=421).contains(&secs), "{secs}");
        }
        other => panic!("{other:?}"),
    }
}

/// The chain as its node reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Current,
    Lagging,
    Down,
    OfAnotherChain,
}

impl Node {
    fn set(self, bed: &TestBed) {
        match self {
            Node::Current => {}
            Node::Lagging => bed.facilitator.lag(100),
            Node::Down => {
                let down = Fault::once(Call::Rpc, Effect::LoseCall);
                bed.facilitator.fault(down.times(1_000_000));
            }
            Node::OfAnotherChain => bed.facilitator.be_of_chain(1),
        }
    }

    fn recover(bed: &TestBed) {
        bed.facilitator.no_faults();
        bed.facilitator.lag(0);
        bed.facilitator.be_of_chain(8_453);
    }
}

/// Every answer with every state of the node: the plan is activated when the chain shows the transfer and not before, no offer is shown
/// meanwhile, and at the end there is one transfer and one period.
#[test]
fn for_every_facilitator_answer_the_plan_is_granted_when_the_chain_shows_the_transfer() {
    let why = || WHY.to_owned();
    // Whether the transfer is on the chain when the facilitator has answered.
    for (effect, settles) in [
        (None, true),
        (Some(Effect::SettleThenRefuse(why())), true),
        (Some(Effect::RefuseAfter(why())), true),
        (Some(Effect::LoseAnswer), true),
        (Some(Effect::NoTransaction), true),
        (Some(Effect::SubmitThenRefuse(why())), false),
        (Some(Effect::Refuse(why(), 200)), false),
        (Some(Effect::Phantom), false),
        (Some(Effect::OldTransaction), false),
        (Some(Effect::Reverted), false),
    ] {
        for node in [
            Node::Current,
            Node::Lagging,
            Node::Down,
            Node::OfAnotherChain,
        ] {
            let mut bed = TestBed::new();
            // An older payment of another account, whose transaction can be named.
            let older = bed.payment(&Wallet::new(2), 9);
            granted(bed.present(OTHER_ACCOUNT, &older));
            node.set(&bed);
            if let Some(effect) = &effect {
                let fault = Fault::once(Call::Settle, effect.clone());
                bed.facilitator.fault(fault);
            }
            let case = format!("{effect:?}, node {node:?}");
            let payment = bed.payment(&Wallet::new(1), 1);
            let outcome = bed.present(ACCOUNT, &payment);
            let is_given = settles && node == Node::Current;
            match outcome {
                Some(PurchaseOutcome::Done(_)) => assert!(is_given, "{case}"),
                Some(PurchaseOutcome::Processing | PurchaseOutcome::NotFinal { .. }) => {
                    assert!(!is_given, "{case}")
                }
                outcome => panic!("{case}: {outcome:?}"),
            }
            assert_eq!(bed.payments(ACCOUNT), usize::from(is_given), "{case}");
            if !is_given {
                let asked = bed.ask(ACCOUNT);
                let shows_none = matches!(
                    asked,
                    Some(PurchaseOutcome::Processing | PurchaseOutcome::NotFinal { .. })
                );
                assert!(shows_none, "{case}: {asked:?}");
                let other = bed.payment(&Wallet::new(1), 2);
                let asked = bed.present(ACCOUNT, &other);
                let takes_none = matches!(
                    asked,
                    Some(PurchaseOutcome::Processing | PurchaseOutcome::NotFinal { .. })
                );
                assert!(takes_none, "{case}: {asked:?}");
            }
            Node::recover(&bed);
            bed.facilitator.mine(true);
            bed.advance(5);
            granted(bed.present(ACCOUNT, &payment));
            assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (2, 1), "{case}");
            bed.check_books();
        }
    }
}

#[test]
fn a_refused_payment_blocks_its_account_until_it_has_expired_on_the_chain() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(refused_after(|why| Effect::Refuse(why, 200)));
    is_not_final(bed.present(ACCOUNT, &payment));
    // After the refusal it is looked up, and not submitted again without a request.
    for _ in 0..6 {
        bed.advance(60);
        assert_eq!(bed.reconcile_due(), Some(1));
        is_not_final(bed.ask(ACCOUNT));
    }
    assert_eq!(bed.facilitator.calls(Call::Settle), 1);
    bed.advance(61);
    assert_eq!(bed.reconcile_due(), Some(1));
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Dead));
    assert_eq!(bed.ask(ACCOUNT), Some(PurchaseOutcome::Offer));
    assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (0, 0));
    let next = bed.payment(&Wallet::new(1), 2);
    granted(bed.present(ACCOUNT, &next));
    paid_once(&bed);
}

#[test]
fn a_refused_payment_that_is_presented_again_is_submitted_again() {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(refused_after(|why| Effect::Refuse(why, 200)).times(2));
    is_not_final(bed.present(ACCOUNT, &payment));
    bed.advance(2);
    is_not_final(bed.present(ACCOUNT, &payment));
    bed.advance(2);
    granted(bed.present(ACCOUNT, &payment));
    assert_eq!(bed.facilitator.calls(Call::Settle), 3);
    paid_once(&bed);
}

#[test]
fn a_refusal_of_verify_does_not_count_for_a_used_nonce_and_is_not_final_while_the_chain_is_unreadable()
 {
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    // The facilitator checks the balance before the nonce.
    let refuse = || Fault::once(Call::Verify, Effect::Refuse(WHY.to_owned(), 200));
    bed.facilitator.fault(refuse());
    bed.facilitator
        .fault(Fault::once(Call::Rpc, Effect::LoseCall));
    assert_eq!(
        bed.present(ACCOUNT, &payment),
        Some(PurchaseOutcome::Unavailable)
    );
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Seen));
    bed.facilitator.fault(refuse());
    assert!(bed.facilitator.submit(&bed.transfer(&Wallet::new(1), 1)));
    granted(bed.present(ACCOUNT, &payment));
    paid_once(&bed);
    // An unused one is refused, and does not block the account.
    let mut bed = TestBed::new();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator.fault(refuse());
    is_refused(bed.present(ACCOUNT, &payment), true);
    assert_eq!(bed.ask(ACCOUNT), Some(PurchaseOutcome::Offer));
    // It settles all the same, submitted by the facilitator that was only asked to verify it: presented again it is the purchase.
    assert!(bed.facilitator.submit(&bed.transfer(&Wallet::new(1), 1)));
    granted(bed.present(ACCOUNT, &payment));
    paid_once(&bed);
}

/// Without a node the facilitator is trusted. A payment that it refused after submission is kept for the operator, and checked again.
#[test]
fn without_a_node_a_refused_payment_is_kept_and_checked_again_when_it_is_presented() {
    let mut bed = TestBed::without_node();
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(refused_after(Effect::SettleThenRefuse));
    let outcome = bed.present(ACCOUNT, &payment);
    match &outcome {
        Some(PurchaseOutcome::Refused {
            why,
            failure: Some(_),
            is_proven: false,
        }) => assert_eq!(why, WHY),
        _ => panic!("{outcome:?}"),
    }
    assert_eq!(
        bed.state(&payment),
        Some(AuthorizationState::RefusedAfterSubmit)
    );
    assert!(bed.has_open(), "the operator finds it");
    assert_eq!(
        bed.ask(ACCOUNT),
        Some(PurchaseOutcome::Offer),
        "the facilitator is believed"
    );
    // The facilitator remembers its settlements: the same payment is the purchase.
    bed.facilitator.remember();
    granted(bed.present(ACCOUNT, &payment));
    paid_once(&bed);
}

#[test]
fn without_a_node_a_refused_payment_is_not_submitted_again_beside_another_one() {
    let mut bed = TestBed::without_node();
    let first = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(refused_after(|why| Effect::Refuse(why, 200)));
    is_refused(bed.present(ACCOUNT, &first), false);
    let second = bed.payment(&Wallet::new(1), 2);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::Pending(200)).times(2));
    is_processing(bed.present(ACCOUNT, &second));
    is_processing(bed.present(ACCOUNT, &first));
    assert_eq!(bed.facilitator.mine(true), 1);
    bed.facilitator.remember();
    bed.advance(5);
    granted(bed.present(ACCOUNT, &second));
    // With the plan active it stays unspent.
    assert_eq!(
        granted(bed.present(ACCOUNT, &first))["already_active"],
        true
    );
    assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (1, 1));
}

#[test]
fn a_node_configured_later_finds_a_refused_payment_that_was_settled() {
    let mut bed = TestBed::without_node();
    let first = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(refused_after(Effect::SettleThenRefuse));
    is_refused(bed.present(ACCOUNT, &first), false);
    // The effect of a false refusal without a node: the second payment is a second transfer.
    let second = bed.payment(&Wallet::new(1), 2);
    granted(bed.present(ACCOUNT, &second));
    // A payment that was never settled is over once it has expired on the chain.
    let theirs = bed.payment(&Wallet::new(3), 1);
    bed.facilitator
        .fault(refused_after(|why| Effect::Refuse(why, 200)));
    is_refused(bed.present(OTHER_ACCOUNT, &theirs), false);
    bed.set_node(true);
    bed.restart();
    bed.recover();
    assert_eq!(
        (bed.transfers(), bed.payments(ACCOUNT)),
        (2, 2),
        "both periods are given"
    );
    assert_eq!(bed.days_left(ACCOUNT), Some(60));
    assert_eq!(
        bed.state(&theirs),
        Some(AuthorizationState::RefusedAfterSubmit)
    );
    bed.advance(600);
    bed.reconcile_due();
    assert_eq!(bed.state(&theirs), Some(AuthorizationState::Dead));
    assert!(!bed.has_open());
    bed.check_books();
}

#[test]
fn without_a_node_a_transaction_that_has_paid_for_another_payment_grants_nothing() {
    let mut bed = TestBed::without_node();
    let theirs = bed.payment(&Wallet::new(2), 1);
    granted(bed.present(OTHER_ACCOUNT, &theirs));
    let payment = bed.payment(&Wallet::new(1), 1);
    bed.facilitator
        .fault(Fault::once(Call::Settle, Effect::OldTransaction));
    is_processing(bed.present(ACCOUNT, &payment));
    assert_eq!(bed.state(&payment), Some(AuthorizationState::Unknown));
    assert_eq!((bed.payments(ACCOUNT), bed.days_left(ACCOUNT)), (0, None));
    bed.advance(5);
    granted(bed.present(ACCOUNT, &payment));
    assert_eq!((bed.transfers(), bed.payments(ACCOUNT)), (2, 1));
    bed.check_books();
}

/// One transaction may settle several payments: each counts by its own transfer in it.
#[test]
fn two_transfers_in_one_transaction_are_two_purchases() {
    let mut bed = TestBed::new();
    let (one, other) = (Wallet::new(1), Wallet::new(2));
    let payments = [bed.payment(&one, 1), bed.payment(&other, 2)];
    let transfers = [bed.transfer(&one, 1), bed.transfer(&other, 2)];
    assert!(bed.facilitator.submit_together(&transfers));
    granted(bed.present(ACCOUNT, &payments[0]));
    granted(bed.present(OTHER_ACCOUNT, &payments[1]));
    assert_eq!((bed.payments(ACCOUNT), bed.payments(OTHER_ACCOUNT)), (1, 1));
    bed.check_books();
}

/// Nine payments of which eight were submitted and refused: the rows that a buyer leaves behind have a bound and an end.
#[test]
fn without_a_node_eight_payments_of_an_account_may_be_refused_in_a_day_and_each_is_kept_for_a_month()
 {
    let mut bed = TestBed::without_node();
    let wallet = Wallet::new(1);
    let mut refused = Vec::new();
    let refuse = |bed: &TestBed| {
        let fault = refused_after(|why| Effect::Refuse(why, 200));
        bed.facilitator.fault(fault);
    };
    for nonce in 1..=8 {
        let payment = bed.payment(&wallet, nonce);
        refuse(&bed);
        is_refused(bed.present(ACCOUNT, &payment), false);
        refused.push(payment);
        bed.advance(1);
    }
    let next = bed.payment(&wallet, 9);
    let outcome = bed.present(ACCOUNT, &next);
    let Some(PurchaseOutcome::TooManyRefused(wait)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(wait.as_secs(), 86_400 - 8, "until the first is a day old");
    assert_eq!(bed.facilitator.calls(Call::Settle), 8, "not submitted");
    assert_eq!(bed.state(&next), Some(AuthorizationState::Seen));
    // One of the eight adds nothing, and is looked at as before. Another account has its own eight.
    refuse(&bed);
    is_refused(bed.present(ACCOUNT, &refused[0]), false);
    let theirs = bed.payment(&Wallet::new(2), 1);
    granted(bed.present(OTHER_ACCOUNT, &theirs));
    bed.advance(wait.as_secs() + 1);
    let later = bed.payment(&wallet, 10);
    granted(bed.present(ACCOUNT, &later));
    // The first ended 300 s after it was signed; that was a day ago.
    bed.advance(29 * 86_400);
    bed.delete_expired();
    assert_eq!(
        bed.state(&refused[0]),
        Some(AuthorizationState::RefusedAfterSubmit)
    );
    bed.advance(310);
    bed.delete_expired();
    for payment in &refused {
        assert_eq!(bed.state(payment), None);
    }
    assert_eq!(bed.state(&later), Some(AuthorizationState::Settled));
    assert!(!bed.has_open());
}

#[test]
fn payments_left_open_by_an_earlier_run_are_looked_up_a_few_at_a_time() {
    let mut bed = TestBed::without_node();
    for (account, wallet) in [(ACCOUNT, 1), (OTHER_ACCOUNT, 2)] {
        for nonce in 1..=8 {
            let payment = bed.payment(&Wallet::new(wallet), nonce);
            bed.facilitator
                .fault(refused_after(|why| Effect::Refuse(why, 200)));
            is_refused(bed.present(account, &payment), false);
        }
    }
    bed.set_node(true);
    bed.restart();
    bed.advance(600);
    assert_eq!(bed.recover_against_a_held_node(8), 8);
    assert!(!bed.has_open(), "all sixteen are over");
}

/// Another signature for the nonce of a payment: what is said about the money is what is known of that payment.
#[test]
fn another_signature_for_a_submitted_nonce_gets_no_statement_that_nothing_was_charged() {
    let wallet = Wallet::new(1);
    let twin_after = |bed: &mut TestBed, secs| {
        bed.advance(secs);
        let twin = bed.payment(&wallet, 1);
        bed.present(ACCOUNT, &twin)
    };
    // Submitted, refused, and settled all the same.
    let mut bed = TestBed::without_node();
    let payment = bed.payment(&wallet, 1);
    bed.facilitator
        .fault(refused_after(Effect::SettleThenRefuse));
    is_refused(bed.present(ACCOUNT, &payment), false);
    is_refused(twin_after(&mut bed, 5), false);
    // Settled, and what it paid for is over.
    let mut bed = TestBed::new();
    let payment = bed.payment(&wallet, 1);
    granted(bed.present(ACCOUNT, &payment));
    is_refused(twin_after(&mut bed, 31 * 86_400), false);
    // Refused before it was submitted: there is nothing to look up.
    let mut bed = TestBed::new();
    let payment = bed.payment(&wallet, 1);
    let refuse = Effect::Refuse(WHY.to_owned(), 200);
    bed.facilitator.fault(Fault::once(Call::Verify, refuse));
    bed.present(ACCOUNT, &payment);
    is_refused(twin_after(&mut bed, 5), true);
}

fn is_refused(outcome: Option<PurchaseOutcome>, proven: bool) {
    match outcome {
        Some(PurchaseOutcome::Refused { is_proven, .. }) => assert_eq!(is_proven, proven),
        other => panic!("{other:?}"),
    }
}

/// A payment that the facilitator reports as settled while the latest block has something else for its number.
#[test]
fn a_reported_success_that_looks_void_is_dead_when_a_later_lookup_agrees() {
    for stays in [true, false] {
        let mut bed = TestBed::new();
        let wallet = Wallet::new(1);
        let payment = bed.payment(&wallet, 1);
        let right = bed.transfer(&wallet, 1);
        bed.facilitator
            .fault(Fault::once(Call::Settle, Effect::Phantom));
        is_processing(bed.present(ACCOUNT, &payment));
        assert!(bed.facilitator.submit(&Authorization {
            to: Address([9; 20]),
            ..right.clone()
        }));
        bed.advance(30);
        assert_eq!(bed.reconcile_due(), Some(1));
        assert_eq!(
            bed.state(&payment),
            Some(AuthorizationState::Unknown),
            "its block may be replaced"
        );
        is_processing(bed.ask(ACCOUNT));
        // Presented again before that is known: it is neither over nor put off.
        bed.advance(60);
        is_processing(bed.present(ACCOUNT, &payment));
        if !stays {
            assert!(bed.facilitator.undo());
            assert!(bed.facilitator.submit(&right));
        }
        bed.advance(240);
        assert_eq!(bed.reconcile_due(), Some(1));
        match stays {
            true => {
                assert_eq!(bed.state(&payment), Some(AuthorizationState::Dead));
                assert_eq!(bed.ask(ACCOUNT), Some(PurchaseOutcome::Offer));
                assert_eq!(bed.payments(ACCOUNT), 0);
            }
            false => paid_once(&bed),
        }
    }
}
