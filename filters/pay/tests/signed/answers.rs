//! Answers of the facilitator against states of the chain: what the buyer gets, what moves, and what is granted.

use tollgate_evm::{Address, Authorization};
use tollgate_pay::x402::Told;
use tollgate_store::AuthorizationState;
use tollgate_testing::Wallet;
use tollgate_testing::facilitator::{Effect, Fault, Operation as Call};

use crate::shop::{ANOTHER, ME, Shop};
use crate::{given, is_processing, paid_once};

const WHY: &str = "insufficient_funds";

fn refused_after(effect: fn(String) -> Effect) -> Fault {
    Fault::once(Call::Settle, effect(WHY.to_owned()))
}

fn is_not_final(told: Option<Told>) {
    match told {
        Some(Told::NotFinal { why, secs }) => {
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
    fn set(self, shop: &Shop) {
        match self {
            Node::Current => {}
            Node::Lagging => shop.facilitator.lag(100),
            Node::Down => {
                let down = Fault::once(Call::Rpc, Effect::LoseCall);
                shop.facilitator.fault(down.times(1_000_000));
            }
            Node::OfAnotherChain => shop.facilitator.be_of_chain(1),
        }
    }

    fn recover(shop: &Shop) {
        shop.facilitator.no_faults();
        shop.facilitator.lag(0);
        shop.facilitator.be_of_chain(8_453);
    }
}

/// Every answer with every state of the node: the plan is activated when the chain shows the transfer and not before, no offer is shown
/// meanwhile, and at the end there is one transfer and one period.
#[test]
fn whatever_the_facilitator_answers_the_plan_is_given_when_the_chain_shows_the_transfer() {
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
            let mut shop = Shop::new();
            // An older payment of another account, whose transaction can be named.
            let older = shop.payment(&Wallet::new(2), 9);
            given(shop.bring(ANOTHER, &older));
            node.set(&shop);
            if let Some(effect) = &effect {
                let fault = Fault::once(Call::Settle, effect.clone());
                shop.facilitator.fault(fault);
            }
            let case = format!("{effect:?}, node {node:?}");
            let payment = shop.payment(&Wallet::new(1), 1);
            let told = shop.bring(ME, &payment);
            let is_given = settles && node == Node::Current;
            match told {
                Some(Told::Done(_)) => assert!(is_given, "{case}"),
                Some(Told::Processing | Told::NotFinal { .. }) => assert!(!is_given, "{case}"),
                told => panic!("{case}: {told:?}"),
            }
            assert_eq!(shop.payments(ME), usize::from(is_given), "{case}");
            if !is_given {
                let asked = shop.ask(ME);
                let shows_none = matches!(asked, Some(Told::Processing | Told::NotFinal { .. }));
                assert!(shows_none, "{case}: {asked:?}");
                let other = shop.payment(&Wallet::new(1), 2);
                let asked = shop.bring(ME, &other);
                let takes_none = matches!(asked, Some(Told::Processing | Told::NotFinal { .. }));
                assert!(takes_none, "{case}: {asked:?}");
            }
            Node::recover(&shop);
            shop.facilitator.mine(true);
            shop.advance(5);
            given(shop.bring(ME, &payment));
            assert_eq!((shop.transfers(), shop.payments(ME)), (2, 1), "{case}");
            shop.check_books();
        }
    }
}

#[test]
fn a_refused_payment_holds_its_account_until_the_chain_takes_it_no_more() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(refused_after(|why| Effect::Refuse(why, 200)));
    is_not_final(shop.bring(ME, &payment));
    // After the refusal it is looked up, and not submitted again without a request.
    for _ in 0..6 {
        shop.advance(60);
        assert_eq!(shop.turn(), Some(1));
        is_not_final(shop.ask(ME));
    }
    assert_eq!(shop.facilitator.calls(Call::Settle), 1);
    shop.advance(61);
    assert_eq!(shop.turn(), Some(1));
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Dead));
    assert_eq!(shop.ask(ME), Some(Told::Offer));
    assert_eq!((shop.transfers(), shop.payments(ME)), (0, 0));
    let next = shop.payment(&Wallet::new(1), 2);
    given(shop.bring(ME, &next));
    paid_once(&shop);
}

#[test]
fn a_refused_payment_that_is_presented_again_is_submitted_again() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(refused_after(|why| Effect::Refuse(why, 200)).times(2));
    is_not_final(shop.bring(ME, &payment));
    shop.advance(2);
    is_not_final(shop.bring(ME, &payment));
    shop.advance(2);
    given(shop.bring(ME, &payment));
    assert_eq!(shop.facilitator.calls(Call::Settle), 3);
    paid_once(&shop);
}

#[test]
fn a_refusal_of_verify_is_none_when_the_authorization_is_used_and_not_final_while_the_chain_cannot_be_read()
 {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    // The facilitator checks the balance before the nonce.
    let refuse = || Fault::once(Call::Verify, Effect::Refuse(WHY.to_owned(), 200));
    shop.facilitator.fault(refuse());
    shop.facilitator
        .fault(Fault::once(Call::Rpc, Effect::LoseCall));
    assert_eq!(shop.bring(ME, &payment), Some(Told::Unavailable));
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Seen));
    shop.facilitator.fault(refuse());
    assert!(shop.facilitator.submit(&shop.transfer(&Wallet::new(1), 1)));
    given(shop.bring(ME, &payment));
    paid_once(&shop);
    // An unused one is refused, and does not block the account.
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator.fault(refuse());
    let told = shop.bring(ME, &payment);
    assert!(
        matches!(
            told,
            Some(Told::Refused {
                is_proven: true,
                ..
            })
        ),
        "{told:?}"
    );
    assert_eq!(shop.ask(ME), Some(Told::Offer));
    // It settles all the same, submitted by the facilitator that was only asked to verify it: presented again it is the purchase.
    assert!(shop.facilitator.submit(&shop.transfer(&Wallet::new(1), 1)));
    given(shop.bring(ME, &payment));
    paid_once(&shop);
}

/// Without a node the facilitator is trusted. A payment that it refused after submission is kept for the operator, and checked again.
#[test]
fn without_a_node_a_refused_payment_is_kept_and_checked_again_when_it_is_presented() {
    let mut shop = Shop::without_node();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(refused_after(Effect::SettleThenRefuse));
    let told = shop.bring(ME, &payment);
    match &told {
        Some(Told::Refused {
            why,
            failure: Some(_),
            is_proven: false,
        }) => assert_eq!(why, WHY),
        _ => panic!("{told:?}"),
    }
    assert_eq!(
        shop.state(&payment),
        Some(AuthorizationState::RefusedAfterSubmit)
    );
    assert!(shop.has_open(), "the operator finds it");
    assert_eq!(
        shop.ask(ME),
        Some(Told::Offer),
        "the facilitator is believed"
    );
    // The facilitator remembers its settlements: the same payment is the purchase.
    shop.facilitator.remember();
    given(shop.bring(ME, &payment));
    paid_once(&shop);
}

#[test]
fn without_a_node_a_refused_payment_is_not_submitted_again_beside_another_one() {
    let mut shop = Shop::without_node();
    let first = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(refused_after(|why| Effect::Refuse(why, 200)));
    let told = shop.bring(ME, &first);
    assert!(
        matches!(
            told,
            Some(Told::Refused {
                is_proven: false,
                ..
            })
        ),
        "{told:?}"
    );
    let second = shop.payment(&Wallet::new(1), 2);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::Pending(200)).times(2));
    is_processing(shop.bring(ME, &second));
    is_processing(shop.bring(ME, &first));
    assert_eq!(shop.facilitator.mine(true), 1);
    shop.facilitator.remember();
    shop.advance(5);
    given(shop.bring(ME, &second));
    // With the plan active it stays unspent.
    assert_eq!(given(shop.bring(ME, &first))["already_active"], true);
    assert_eq!((shop.transfers(), shop.payments(ME)), (1, 1));
}

#[test]
fn a_node_that_comes_late_finds_a_refused_payment_that_was_settled() {
    let mut shop = Shop::without_node();
    let first = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(refused_after(Effect::SettleThenRefuse));
    let told = shop.bring(ME, &first);
    assert!(
        matches!(
            told,
            Some(Told::Refused {
                is_proven: false,
                ..
            })
        ),
        "{told:?}"
    );
    // The effect of a false refusal without a node: the second payment is a second transfer.
    let second = shop.payment(&Wallet::new(1), 2);
    given(shop.bring(ME, &second));
    // A payment that was never settled is over once it has expired on the chain.
    let theirs = shop.payment(&Wallet::new(3), 1);
    shop.facilitator
        .fault(refused_after(|why| Effect::Refuse(why, 200)));
    let told = shop.bring(ANOTHER, &theirs);
    assert!(
        matches!(
            told,
            Some(Told::Refused {
                is_proven: false,
                ..
            })
        ),
        "{told:?}"
    );
    shop.set_node(true);
    shop.restart();
    shop.recover();
    assert_eq!(
        (shop.transfers(), shop.payments(ME)),
        (2, 2),
        "both periods are given"
    );
    assert_eq!(shop.days_left(ME), Some(60));
    assert_eq!(
        shop.state(&theirs),
        Some(AuthorizationState::RefusedAfterSubmit)
    );
    shop.advance(600);
    shop.turn();
    assert_eq!(shop.state(&theirs), Some(AuthorizationState::Dead));
    assert!(!shop.has_open());
    shop.check_books();
}

#[test]
fn without_a_node_a_transaction_that_has_paid_for_another_payment_gives_nothing() {
    let mut shop = Shop::without_node();
    let theirs = shop.payment(&Wallet::new(2), 1);
    given(shop.bring(ANOTHER, &theirs));
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::OldTransaction));
    is_processing(shop.bring(ME, &payment));
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Unknown));
    assert_eq!((shop.payments(ME), shop.days_left(ME)), (0, None));
    shop.advance(5);
    given(shop.bring(ME, &payment));
    assert_eq!((shop.transfers(), shop.payments(ME)), (2, 1));
    shop.check_books();
}

/// One transaction may settle several payments: each counts by its own transfer in it.
#[test]
fn two_transfers_in_one_transaction_are_two_purchases() {
    let mut shop = Shop::new();
    let (one, other) = (Wallet::new(1), Wallet::new(2));
    let payments = [shop.payment(&one, 1), shop.payment(&other, 2)];
    let transfers = [shop.transfer(&one, 1), shop.transfer(&other, 2)];
    assert!(shop.facilitator.submit_together(&transfers));
    given(shop.bring(ME, &payments[0]));
    given(shop.bring(ANOTHER, &payments[1]));
    assert_eq!((shop.payments(ME), shop.payments(ANOTHER)), (1, 1));
    shop.check_books();
}

/// Nine payments of which eight were submitted and refused: the rows that a buyer leaves behind have a bound and an end.
#[test]
fn without_a_node_so_many_payments_of_an_account_are_refused_in_a_day_and_each_is_kept_for_a_month()
{
    let mut shop = Shop::without_node();
    let wallet = Wallet::new(1);
    let mut refused = Vec::new();
    let refuse = |shop: &Shop| {
        let fault = refused_after(|why| Effect::Refuse(why, 200));
        shop.facilitator.fault(fault);
    };
    for nonce in 1..=8 {
        let payment = shop.payment(&wallet, nonce);
        refuse(&shop);
        is_not_proven(&shop.bring(ME, &payment));
        refused.push(payment);
        shop.advance(1);
    }
    let next = shop.payment(&wallet, 9);
    let told = shop.bring(ME, &next);
    let Some(Told::TooManyRefused(wait)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(wait.as_secs(), 86_400 - 8, "until the first is a day old");
    assert_eq!(shop.facilitator.calls(Call::Settle), 8, "not submitted");
    assert_eq!(shop.state(&next), Some(AuthorizationState::Seen));
    // One of the eight adds nothing, and is looked at as before. Another account has its own eight.
    refuse(&shop);
    is_not_proven(&shop.bring(ME, &refused[0]));
    let theirs = shop.payment(&Wallet::new(2), 1);
    given(shop.bring(ANOTHER, &theirs));
    shop.advance(wait.as_secs() + 1);
    let later = shop.payment(&wallet, 10);
    given(shop.bring(ME, &later));
    // The first ended 300 s after it was signed; that was a day ago.
    shop.advance(29 * 86_400);
    shop.forget();
    assert_eq!(
        shop.state(&refused[0]),
        Some(AuthorizationState::RefusedAfterSubmit)
    );
    shop.advance(310);
    shop.forget();
    for payment in &refused {
        assert_eq!(shop.state(payment), None);
    }
    assert_eq!(shop.state(&later), Some(AuthorizationState::Settled));
    assert!(!shop.has_open());
}

#[test]
fn what_an_earlier_run_left_is_looked_up_a_few_at_a_time() {
    let mut shop = Shop::without_node();
    for (account, wallet) in [(ME, 1), (ANOTHER, 2)] {
        for nonce in 1..=8 {
            let payment = shop.payment(&Wallet::new(wallet), nonce);
            shop.facilitator
                .fault(refused_after(|why| Effect::Refuse(why, 200)));
            is_not_proven(&shop.bring(account, &payment));
        }
    }
    shop.set_node(true);
    shop.restart();
    shop.advance(600);
    assert_eq!(shop.recover_against_a_held_node(8), 8);
    assert!(!shop.has_open(), "all sixteen are over");
}

/// Another signature for the nonce of a payment: what is said about the money is what is known of that payment.
#[test]
fn another_signature_for_a_nonce_that_was_submitted_is_not_told_that_nothing_was_charged() {
    let wallet = Wallet::new(1);
    let twin_after = |shop: &mut Shop, secs| {
        shop.advance(secs);
        let twin = shop.payment(&wallet, 1);
        shop.bring(ME, &twin)
    };
    // Submitted, refused, and settled all the same.
    let mut shop = Shop::without_node();
    let payment = shop.payment(&wallet, 1);
    shop.facilitator
        .fault(refused_after(Effect::SettleThenRefuse));
    is_not_proven(&shop.bring(ME, &payment));
    is_not_proven(&twin_after(&mut shop, 5));
    // Settled, and what it paid for is over.
    let mut shop = Shop::new();
    let payment = shop.payment(&wallet, 1);
    given(shop.bring(ME, &payment));
    is_not_proven(&twin_after(&mut shop, 31 * 86_400));
    // Refused before it was submitted: there is nothing to look up.
    let mut shop = Shop::new();
    let payment = shop.payment(&wallet, 1);
    let refuse = Effect::Refuse(WHY.to_owned(), 200);
    shop.facilitator.fault(Fault::once(Call::Verify, refuse));
    shop.bring(ME, &payment);
    let told = twin_after(&mut shop, 5);
    assert!(
        matches!(
            told,
            Some(Told::Refused {
                is_proven: true,
                ..
            })
        ),
        "{told:?}"
    );
}

fn is_not_proven(told: &Option<Told>) {
    assert!(
        matches!(
            told,
            Some(Told::Refused {
                is_proven: false,
                ..
            })
        ),
        "{told:?}"
    );
}

/// A payment that the facilitator reports as settled while the latest block has something else for its number.
#[test]
fn a_reported_success_that_looks_void_is_over_when_a_later_lookup_agrees() {
    for stays in [true, false] {
        let mut shop = Shop::new();
        let wallet = Wallet::new(1);
        let payment = shop.payment(&wallet, 1);
        let right = shop.transfer(&wallet, 1);
        shop.facilitator
            .fault(Fault::once(Call::Settle, Effect::Phantom));
        is_processing(shop.bring(ME, &payment));
        assert!(shop.facilitator.submit(&Authorization {
            to: Address([9; 20]),
            ..right.clone()
        }));
        shop.advance(30);
        assert_eq!(shop.turn(), Some(1));
        assert_eq!(
            shop.state(&payment),
            Some(AuthorizationState::Unknown),
            "its block may be replaced"
        );
        is_processing(shop.ask(ME));
        // Presented again before that is known: it is neither over nor put off.
        shop.advance(60);
        is_processing(shop.bring(ME, &payment));
        if !stays {
            assert!(shop.facilitator.undo());
            assert!(shop.facilitator.submit(&right));
        }
        shop.advance(240);
        assert_eq!(shop.turn(), Some(1));
        match stays {
            true => {
                assert_eq!(shop.state(&payment), Some(AuthorizationState::Dead));
                assert_eq!(shop.ask(ME), Some(Told::Offer));
                assert_eq!(shop.payments(ME), 0);
            }
            false => paid_once(&shop),
        }
    }
}
