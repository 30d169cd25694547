//! Signed transfers through crashes, lost messages, clock jumps and chain reorganizations.

mod answers;
mod shop;
mod storm;

use std::time::Duration;

use serde_json::Value;
use tollgate_evm::{Address, Authorization, Nonce};
use tollgate_pay::x402::{Operation, Payment, Told};
use tollgate_store::AuthorizationState;
use tollgate_testing::Wallet;
use tollgate_testing::facilitator::{Effect, Fault, Operation as Call, merchant};
use tollgate_testing::wallet::encoded;

use shop::{ANOTHER, Death, ME, Shop};

/// The body of an answer that grants the plan.
fn given(told: Option<Told>) -> Value {
    match told {
        Some(Told::Done(answer)) => {
            assert_eq!(answer.status, 200);
            serde_json::from_slice(&answer.body).expect("JSON")
        }
        other => panic!("{other:?}"),
    }
}

fn is_processing(told: Option<Told>) {
    assert_eq!(told, Some(Told::Processing));
}

/// Invariant of every scenario: the books balance, the merchant was paid once, and the buyer has the plan for it.
fn paid_once(shop: &Shop) {
    assert_eq!(shop.transfers(), 1, "one transfer");
    assert_eq!(shop.payments(ME), 1, "one paid period");
    assert_eq!(shop.days_left(ME), Some(30));
    assert!(!shop.has_open());
    shop.check_books();
}

#[test]
fn a_process_killed_at_any_point_sells_once_to_the_buyer_who_asks_again() {
    for death in [
        Death::Before(Operation::Verify),
        Death::After(Operation::Verify),
        Death::Before(Operation::Settle),
        Death::After(Operation::Settle),
    ] {
        for recovers in [true, false] {
            let mut shop = Shop::new();
            let payment = shop.payment(&Wallet::new(1), 1);
            shop.die(death);
            assert_eq!(shop.bring(ME, &payment), None, "{death:?}: it dies");
            let sent = matches!(death, Death::Before(call) | Death::After(call) if call == Operation::Settle);
            let state = match sent {
                true => AuthorizationState::Settling,
                false => AuthorizationState::Seen,
            };
            assert_eq!(shop.state(&payment), Some(state), "{death:?}");
            if sent {
                is_processing(shop.ask(ME));
            }
            if recovers {
                shop.recover();
            }
            let answer = given(shop.bring(ME, &payment));
            assert_eq!(answer["success"], true, "{death:?}");
            assert_eq!(answer["already_active"], recovers && sent, "{death:?}");
            paid_once(&shop);
        }
    }
}

#[test]
fn a_process_killed_after_the_transfer_gives_the_plan_to_a_buyer_who_never_asks_again() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.die(Death::After(Operation::Settle));
    assert_eq!(shop.bring(ME, &payment), None);
    shop.recover();
    paid_once(&shop);
    // Or later, when it is due.
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.die(Death::After(Operation::Settle));
    assert_eq!(shop.bring(ME, &payment), None);
    shop.advance(180);
    assert_eq!(shop.turn(), Some(1));
    paid_once(&shop);
}

#[test]
fn an_answer_that_nobody_waits_for_any_more_is_given_again() {
    let mut shop = Shop::impatient(Duration::from_millis(50));
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::Hold));
    // The buyer is asked to retry, and the transfer continues.
    is_processing(shop.bring(ME, &payment));
    let gate = shop.facilitator.gate();
    shop.until(|_| gate.arrived() == 1);
    is_processing(shop.ask(ME));
    gate.open();
    let told = loop {
        match shop.bring(ME, &payment) {
            Some(Told::Processing) => {}
            told => break told,
        }
    };
    given(told);
    assert_eq!(shop.facilitator.calls(Call::Settle), 1);
    paid_once(&shop);
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.bring_and_leave(ME, &payment);
    given(shop.bring(ME, &payment));
    assert_eq!(shop.facilitator.calls(Call::Settle), 1);
    paid_once(&shop);
}

#[test]
fn a_payment_that_was_never_sent_is_over_when_the_chain_has_passed_its_end() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall).times(1_000));
    is_processing(shop.bring(ME, &payment));
    for _ in 0..4 {
        shop.advance(60);
        shop.turn();
        is_processing(shop.ask(ME));
    }
    // Expired, and within the grace period of two minutes.
    shop.advance(120);
    shop.turn();
    is_processing(shop.bring(ME, &payment));
    shop.advance(120);
    let over = shop.bring(ME, &payment);
    assert!(
        matches!(
            over,
            Some(Told::Refused {
                failure: Some(_),
                ..
            })
        ),
        "{over:?}"
    );
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Dead));
    assert_eq!(shop.ask(ME), Some(Told::Offer), "and another may be made");
    shop.facilitator.no_faults();
    let next = shop.payment(&Wallet::new(1), 2);
    given(shop.bring(ME, &next));
    paid_once(&shop);
}

#[test]
fn our_clock_alone_never_ends_a_payment() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::Pending(200)));
    is_processing(shop.bring(ME, &payment));
    // An hour ahead: expired by our clock, not by the chain's.
    shop.jump(3_600);
    shop.turn();
    is_processing(shop.bring(ME, &payment));
    is_processing(shop.ask(ME));
    assert_eq!(shop.facilitator.mine(true), 1);
    shop.jump(3_700);
    given(shop.bring(ME, &payment));
    assert_eq!((shop.transfers(), shop.payments(ME)), (1, 1));
}

#[test]
fn a_payment_that_was_made_void_is_over_at_once() {
    let mut shop = Shop::new();
    let wallet = Wallet::new(1);
    let payment = shop.payment(&wallet, 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall));
    shop.facilitator
        .fault(Fault::once(Call::Rpc, Effect::LoseCall));
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall));
    is_processing(shop.bring(ME, &payment));
    shop.facilitator.cancel(wallet.address(), Nonce([1; 32]));
    shop.advance(30);
    assert_eq!(shop.turn(), Some(1));
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Dead));
    assert_eq!(shop.ask(ME), Some(Told::Offer));
    assert_eq!((shop.transfers(), shop.payments(ME)), (0, 0));
}

#[test]
fn without_proof_a_payment_stays_unclear_for_as_long_as_it_takes() {
    let mut shop = Shop::without_node();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseAnswer));
    is_processing(shop.bring(ME, &payment));
    for _ in 0..50 {
        shop.advance(3_600);
        shop.turn();
        is_processing(shop.ask(ME));
    }
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Unknown));
    assert_eq!((shop.transfers(), shop.payments(ME)), (1, 0));
    // The facilitator remembers at last.
    shop.facilitator.remember();
    shop.advance(5);
    given(shop.bring(ME, &payment));
    paid_once(&shop);
}

#[test]
fn a_node_of_another_chain_proves_nothing() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall).times(1_000));
    is_processing(shop.bring(ME, &payment));
    // A node that answers like one of the right chain, and is of another chain.
    shop.facilitator.be_of_chain(84_532);
    shop.advance(900);
    shop.turn();
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Unknown));
    is_processing(shop.ask(ME));
    // A node whose answers cannot be parsed.
    shop.facilitator.be_of_chain(8_453);
    shop.facilitator
        .fault(Fault::once(Call::Rpc, Effect::Nonsense).times(2));
    shop.advance(3_600);
    shop.turn();
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Unknown));
    shop.advance(3_600);
    shop.turn();
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Dead));
}

#[test]
fn one_transfer_pays_for_one_number_however_many_share_its_transaction() {
    let mut shop = Shop::new();
    let wallet = Wallet::new(1);
    // Authorizations that the wallet signs for us, nonce by nonce; and a transaction that it submitted itself: one transfer to us, and the
    // other nonces used without payment.
    let payments: Vec<_> = (1..=4).map(|nonce| shop.payment(&wallet, nonce)).collect();
    let transfer = |nonce: u8, to: Address, value: u64| Authorization {
        from: wallet.address(),
        to,
        value: value.into(),
        valid_after: 0.into(),
        valid_before: (shop.now() + 300).into(),
        nonce: Nonce([nonce; 32]),
    };
    let own = wallet.address();
    assert!(shop.facilitator.submit_together(&[
        transfer(1, own, 0),
        transfer(2, merchant(), 199_000_000),
        transfer(3, own, 0),
        transfer(4, own, 0),
    ]));
    for (payment, account) in [(0, ANOTHER), (2, ANOTHER), (3, ANOTHER)] {
        let told = shop.bring(account, &payments[payment]);
        assert!(matches!(told, Some(Told::Refused { .. })), "{told:?}");
        assert_eq!(
            shop.state(&payments[payment]),
            Some(AuthorizationState::Dead)
        );
    }
    assert_eq!(shop.days_left(ANOTHER), None);
    given(shop.bring(ME, &payments[1]));
    assert_eq!((shop.payments(ME), shop.payments(ANOTHER)), (1, 0));
    shop.check_books();
}

#[test]
fn a_node_that_comes_late_finds_a_payment_of_long_ago() {
    let mut shop = Shop::without_node();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseAnswer));
    is_processing(shop.bring(ME, &payment));
    shop.advance(20 * 86_400);
    shop.turn();
    is_processing(shop.ask(ME));
    // It also searches only few blocks in one call.
    shop.facilitator.look_through(300);
    shop.set_node(true);
    shop.restart();
    shop.recover();
    paid_once(&shop);
}

#[test]
fn a_payment_that_was_never_on_the_chain_as_it_was_called_settled_gives_nothing() {
    for canceled in [true, false] {
        let mut shop = Shop::new();
        let wallet = Wallet::new(1);
        let payment = shop.payment(&wallet, 1);
        shop.facilitator
            .fault(Fault::once(Call::Settle, Effect::Phantom));
        is_processing(shop.bring(ME, &payment));
        assert_eq!(shop.payments(ME), 0);
        match canceled {
            true => shop.facilitator.cancel(wallet.address(), Nonce([1; 32])),
            false => assert!(shop.facilitator.submit(&Authorization {
                from: wallet.address(),
                to: wallet.address(),
                value: 1.into(),
                valid_after: 0.into(),
                valid_before: (shop.now() + 300).into(),
                nonce: Nonce([1; 32]),
            })),
        }
        // The facilitator says otherwise: it is over when a second lookup agrees.
        for state in [AuthorizationState::Unknown, AuthorizationState::Dead] {
            shop.advance(301);
            assert_eq!(shop.turn(), Some(1));
            assert_eq!(shop.state(&payment), Some(state), "canceled: {canceled}");
        }
        assert_eq!(shop.days_left(ME), None, "canceled: {canceled}");
        assert_eq!(shop.payments(ME), 0);
        assert_eq!(shop.ask(ME), Some(Told::Offer));
        shop.check_books();
    }
}

#[test]
fn who_did_not_sign_a_payment_gets_nothing_for_what_the_chain_shows_of_it() {
    let mut shop = Shop::new();
    let wallet = Wallet::new(1);
    let payment = shop.payment(&wallet, 1);
    // A wallet has paid the merchant without this gateway, which is public on the chain, and another account claims the payment.
    assert!(shop.facilitator.submit(&Authorization {
        from: wallet.address(),
        to: merchant(),
        value: 199_000_000.into(),
        valid_after: 0.into(),
        valid_before: (shop.now() + 300).into(),
        nonce: Nonce([1; 32]),
    }));
    let mut forged = payment.whole().clone();
    let stranger = shop.payment(&Wallet::new(2), 1);
    forged["payload"]["signature"] = stranger.whole()["payload"]["signature"].clone();
    let forged = Payment::read(encoded(&forged).as_bytes()).expect("a payment");
    // The published facilitator checks the nonce before the signature.
    shop.facilitator.fault(Fault::once(
        Call::Verify,
        Effect::Refuse("invalid_exact_evm_nonce_already_used".to_owned(), 200),
    ));
    assert_eq!(shop.bring(ANOTHER, &forged), Some(Told::Unavailable));
    assert_eq!(shop.state(&forged), Some(AuthorizationState::Seen));
    assert_eq!(shop.ask(ANOTHER), Some(Told::Offer), "nothing is open");
    assert_eq!(shop.payments(ANOTHER), 0);
}

#[test]
fn an_end_that_was_ordered_lets_a_transfer_under_way_come_into_the_books() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseAnswer));
    shop.bring_and_leave(ME, &payment);
    shop.end_and_restart();
    let state = shop.state(&payment);
    assert!(
        !matches!(
            state,
            None | Some(AuthorizationState::Seen | AuthorizationState::Settling)
        ),
        "{state:?}"
    );
    given(shop.bring(ME, &payment));
    paid_once(&shop);
}

#[test]
fn a_payment_over_which_the_facilitator_stumbles_closes_the_desk_for_a_moment_only() {
    let mut shop = Shop::new();
    shop.run();
    shop.until(|desk| desk.is_open());
    shop.facilitator
        .fault(Fault::once(Call::Verify, Effect::Status(500)));
    let payment = shop.payment(&Wallet::new(1), 1);
    assert_eq!(shop.bring(ME, &payment), Some(Told::Unavailable));
    shop.until(|desk| desk.is_open());
    assert_eq!(shop.facilitator.calls(Call::Supported), 2);
}

#[test]
fn who_brings_a_payment_into_a_look_is_told_what_stands_then() {
    // Reconciliation finds that it is over, and another protocol has activated the plan meanwhile: no offer.
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall).times(2));
    is_processing(shop.bring(ME, &payment));
    shop.advance(600);
    let told = shop.bring_into_a_look(ME, &payment, "one", |shop| {
        // After its expiry it is not submitted, whatever the facilitator does.
        shop.charged_by_paypal(ME, 31);
    });
    assert_eq!(shop.state(&payment), Some(AuthorizationState::Dead));
    assert_eq!(given(Some(told))["already_active"], true);
    // Reconciliation finds that it has paid: the answer is stored under the idempotency key of the waiting request.
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::LoseCall).times(2));
    is_processing(shop.bring(ME, &payment));
    shop.advance(60);
    let told = shop.bring_into_a_look(ME, &payment, "one", |_| {});
    given(Some(told));
    let other = shop.payment(&Wallet::new(1), 2);
    assert_eq!(
        shop.bring_named(ME, &other, "one"),
        Told::OtherRequest,
        "the name stands for the first payment"
    );
    paid_once(&shop);
}

#[test]
fn a_plan_near_its_end_is_renewed_behind_what_is_paid_and_not_before() {
    let mut shop = Shop::new();
    let wallet = Wallet::new(1);
    let first = shop.payment(&wallet, 1);
    given(shop.bring(ME, &first));
    shop.advance(22 * 86_400);
    let early = shop.payment(&wallet, 2);
    assert_eq!(given(shop.bring(ME, &early))["already_active"], true);
    assert_eq!(shop.transfers(), 1, "it stays unspent");
    shop.advance(2 * 86_400);
    assert_eq!(shop.ask(ME), Some(Told::Offer), "its end is near");
    let next = shop.payment(&wallet, 3);
    assert_eq!(given(shop.bring(ME, &next))["already_active"], false);
    assert_eq!(shop.days_left(ME), Some(36), "behind what was paid");
    assert_eq!((shop.transfers(), shop.payments(ME)), (2, 2));
    assert_eq!(given(shop.ask(ME))["already_active"], true);
    shop.check_books();
}

#[test]
fn a_plan_that_paypal_renews_is_not_sold_beside() {
    let mut shop = Shop::new();
    shop.charged_by_paypal(ME, 3);
    let payment = shop.payment(&Wallet::new(1), 1);
    assert_eq!(given(shop.ask(ME))["already_active"], true);
    assert_eq!(given(shop.bring(ME, &payment))["already_active"], true);
    assert_eq!(shop.transfers(), 0, "it stays unspent");
}

#[test]
fn money_that_has_moved_adds_its_days_to_what_came_meanwhile() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.facilitator
        .fault(Fault::once(Call::Settle, Effect::Pending(200)));
    is_processing(shop.bring(ME, &payment));
    // A charge by PayPal arrives while the transfer is pending.
    shop.charged_by_paypal(ME, 31);
    is_processing(shop.ask(ME));
    assert_eq!(shop.facilitator.mine(true), 1);
    shop.advance(5);
    given(shop.bring(ME, &payment));
    assert_eq!(shop.days_left(ME), Some(61));
    assert_eq!((shop.transfers(), shop.payments(ME)), (1, 1));
    shop.check_books();
}

#[test]
fn a_payment_is_one_accounts_whatever_another_brings() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    shop.die(Death::After(Operation::Settle));
    assert_eq!(shop.bring(ME, &payment), None);
    assert_eq!(shop.bring(ANOTHER, &payment), Some(Told::UsedByAnother));
    assert_eq!(shop.ask(ANOTHER), Some(Told::Offer));
    given(shop.bring(ME, &payment));
    assert_eq!(shop.bring(ANOTHER, &payment), Some(Told::UsedByAnother));
    assert_eq!(shop.payments(ANOTHER), 0);
    paid_once(&shop);
}

#[test]
fn a_settled_payment_is_looked_at_once_more_when_its_block_is_old() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    given(shop.bring(ME, &payment));
    assert_eq!(shop.turn(), Some(0), "not yet");
    shop.advance(301);
    assert_eq!(shop.turn(), Some(1));
    shop.advance(3_600);
    assert_eq!(shop.turn(), Some(0), "once");
    paid_once(&shop);
}

#[test]
fn a_transfer_whose_block_did_not_stay_is_sent_again_while_it_can_be() {
    let mut shop = Shop::new();
    // Signed for long enough to be submitted again.
    let offer = shop::offer();
    let mut signed = Wallet::new(1).payment(&offer, [1; 32], shop.now());
    let longer = Authorization {
        from: Wallet::new(1).address(),
        to: tollgate_testing::facilitator::merchant(),
        value: 199_000_000.into(),
        valid_after: 0.into(),
        valid_before: (shop.now() + 890).into(),
        nonce: Nonce([1; 32]),
    };
    signed["payload"] = Wallet::new(1).signed(&offer, &longer)["payload"].clone();
    let text = tollgate_testing::wallet::encoded(&signed);
    let payment = Payment::read(text.as_bytes()).expect("a payment");
    given(shop.bring(ME, &payment));
    assert!(shop.facilitator.undo());
    shop.advance(301);
    assert_eq!(shop.turn(), Some(1));
    shop.advance(61);
    assert_eq!(shop.turn(), Some(1));
    paid_once(&shop);
}

#[test]
fn what_a_transfer_gave_is_taken_back_when_it_can_never_be_in_a_block_again() {
    for canceled in [true, false] {
        let mut shop = Shop::new();
        let wallet = Wallet::new(1);
        let payment = shop.payment(&wallet, 1);
        given(shop.bring(ME, &payment));
        assert!(shop.facilitator.undo());
        if canceled {
            shop.facilitator.cancel(wallet.address(), Nonce([1; 32]));
        }
        shop.facilitator
            .fault(Fault::once(Call::Settle, Effect::LoseCall).times(1_000));
        shop.advance(500);
        assert_eq!(shop.turn(), Some(1));
        assert_eq!(shop.state(&payment), Some(AuthorizationState::Dead));
        assert_eq!(shop.days_left(ME), None, "canceled: {canceled}");
        assert_eq!((shop.transfers(), shop.payments(ME)), (0, 0));
        assert_eq!(shop.ask(ME), Some(Told::Offer));
        shop.check_books();
    }
}

#[test]
fn what_moves_money_is_not_readable_in_the_store() {
    let mut shop = Shop::new();
    let payment = shop.payment(&Wallet::new(1), 1);
    let signature = payment.whole()["payload"]["signature"]
        .as_str()
        .expect("a signature")
        .to_owned();
    shop.die(Death::Before(Operation::Settle));
    assert_eq!(shop.bring(ME, &payment), None);
    let disk = shop.on_disk();
    let digits = signature.trim_start_matches("0x").as_bytes();
    assert!(!disk.windows(digits.len()).any(|part| part == digits));
    given(shop.bring(ME, &payment));
}
