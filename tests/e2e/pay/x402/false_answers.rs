//! A facilitator whose answers are false, late or missing, beside a node of the chain that has the truth, late or not at all.

use tollgate_testing::facilitator::{Effect, Fault, Operation};
use tollgate_testing::{Answer, Wallet, within};

use super::{Shop, is, now};

/// Buys as a stock client does: it signs whatever offer it is shown, twice at most for one purchase.
async fn buys_as_a_stock_client(shop: &Shop) -> Answer {
    let first = shop.payment(1).await;
    let answer = shop.bring(&first).await;
    match answer.header("payment-required") {
        None => answer,
        Some(offer) => {
            let second = shop.wallet.pay(offer, [2; 32], now());
            shop.bring(&second).await
        }
    }
}

/// Submits a payment again until it has bought something.
async fn until_paid(shop: &Shop, payment: &str) -> Answer {
    let mut often = tokio::time::interval(std::time::Duration::from_millis(500));
    let paid = async {
        loop {
            often.tick().await;
            let answer = shop.bring(payment).await;
            if answer.status == 200 {
                return answer;
            }
            is_not_final(&answer);
        }
    };
    within("the plan", paid).await
}

/// Checks that an answer shows no offer and asks for the same request again.
fn is_not_final(answer: &Answer) {
    is(
        answer,
        503,
        "payment_route_unavailable",
        "processing",
        "retry_same",
    );
    assert_eq!(answer.header("payment-required"), None, "no offer");
    assert_eq!(answer.header("payment-response"), None);
    assert!(answer.header("retry-after").is_some());
}

#[tokio::test]
async fn a_false_refusal_does_not_make_a_stock_client_pay_twice() {
    for why in ["insufficient_funds", "invalid_payload", "sanctions_kyt"] {
        let shop = Shop::open().await;
        let refuse = Effect::SettleThenRefuse(why.to_owned());
        shop.facilitator
            .fault(Fault::once(Operation::Settle, refuse));
        let bought = buys_as_a_stock_client(&shop).await;
        assert_eq!(shop.transfers(), 1, "{why}: paid once");
        assert_eq!(bought.status, 200, "{why}: {}", bought.text());
        assert!(bought.header("payment-response").is_some(), "{why}");
        assert_eq!(shop.ask().await.json()["already_active"], true);
        shop.close().await;
    }
}

#[tokio::test]
async fn a_refused_payment_that_settles_later_is_the_purchase() {
    let shop = Shop::open().await;
    let refuse = Effect::SubmitThenRefuse("insufficient_funds".to_owned());
    shop.facilitator
        .fault(Fault::once(Operation::Settle, refuse));
    let first = shop.payment(1).await;
    let other = shop.payment(2).await;
    let refused = shop.bring(&first).await;
    is_not_final(&refused);
    let detail = refused.json()["detail"].to_string();
    for said in ["insufficient_funds", "same request", "seconds"] {
        assert!(detail.contains(said), "{said}: {detail}");
    }
    // Neither an offer nor another payment while the first one can still be settled.
    is_not_final(&shop.ask().await);
    is_not_final(&shop.bring(&other).await);
    assert_eq!(shop.facilitator.calls(Operation::Verify), 1);
    assert_eq!(shop.facilitator.mine(true), 1);
    shop.clear().await;
    assert_eq!(shop.ask().await.json()["already_active"], true);
    let again = shop.bring(&first).await;
    assert!(again.header("payment-response").is_some());
    assert_eq!(shop.transfers(), 1);
    shop.close().await;
}

#[tokio::test]
async fn a_success_with_an_invented_transaction_gives_nothing() {
    for effect in [Effect::Phantom, Effect::Reverted] {
        let shop = Shop::open().await;
        shop.facilitator
            .fault(Fault::once(Operation::Settle, effect.clone()));
        let payment = shop.payment(1).await;
        is_not_final(&shop.bring(&payment).await);
        assert_eq!(shop.payments(), 0, "{effect:?}");
        // It was never submitted: the second submission is the transfer.
        let paid = until_paid(&shop, &payment).await;
        assert!(paid.header("payment-response").is_some());
        assert_eq!(shop.transfers(), 1, "{effect:?}");
        shop.close().await;
    }
}

#[tokio::test]
async fn a_success_with_the_transaction_of_another_payment_gives_nothing() {
    for node in [true, false] {
        let shop = match node {
            true => Shop::open().await,
            false => Shop::without_node().await,
        };
        let other = shop.rig.new_account("free", 0).await;
        let (_, key) = shop.rig.new_key(other, |_| {}).await;
        let client = tollgate_testing::Client::new(&shop.rig.url()).with_key(&key);
        let asked = shop.ask().await;
        let offer = asked.header("payment-required").expect("an offer");
        let theirs = Wallet::new(2).pay(offer, [2; 32], now());
        let bought = super::bring(&client, &theirs, &serde_json::json!({})).await;
        assert_eq!(bought.status, 200, "{}", bought.text());
        let lie = Fault::once(Operation::Settle, Effect::OldTransaction);
        shop.facilitator.fault(lie.times(2));
        let payment = shop.payment(1).await;
        let answer = shop.bring(&payment).await;
        assert_eq!(shop.payments(), 0, "node: {node}: {}", answer.text());
        is_not_final(&answer);
        let paid = until_paid(&shop, &payment).await;
        assert!(paid.header("payment-response").is_some());
        assert_eq!((shop.transfers(), shop.payments()), (2, 1), "node: {node}");
        shop.rig.finish().await;
    }
}

#[tokio::test]
async fn a_slow_facilitator_is_not_waited_for_when_the_chain_has_the_transfer() {
    let shop = Shop::open().await;
    let payment = shop.payment(1).await;
    // It submits, and does not answer before the test lets it.
    shop.facilitator
        .fault(Fault::once(Operation::Settle, Effect::HoldAfter));
    let paid = within("the plan", shop.bring(&payment)).await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    assert!(paid.header("payment-response").is_some());
    shop.facilitator.gate().open();
    shop.close().await;
}

#[tokio::test]
async fn a_payment_presented_again_is_answered_by_the_chain_and_not_submitted_again() {
    let shop = Shop::open().await;
    let payment = shop.payment(1).await;
    shop.facilitator
        .fault(Fault::once(Operation::Settle, Effect::LoseAnswer));
    // The node is down for the first lookups.
    shop.facilitator
        .fault(Fault::once(Operation::Rpc, Effect::Status(503)).times(2));
    shop.facilitator
        .fault(Fault::once(Operation::Settle, Effect::Status(503)));
    is_not_final(&shop.bring(&payment).await);
    let submitted = shop.facilitator.calls(Operation::Settle);
    until_paid(&shop, &payment).await;
    assert_eq!(shop.facilitator.calls(Operation::Settle), submitted);
    shop.close().await;
}

#[tokio::test]
async fn a_node_a_block_behind_is_waited_for_and_one_far_behind_decides_nothing() {
    let shop = Shop::open().await;
    shop.facilitator.lag(1);
    let payment = shop.payment(1).await;
    let paid = shop.bring(&payment).await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    shop.close().await;

    let shop = Shop::open().await;
    shop.facilitator.lag(1_000);
    let refuse = Effect::SettleThenRefuse("insufficient_funds".to_owned());
    shop.facilitator
        .fault(Fault::once(Operation::Settle, refuse));
    let payment = shop.payment(1).await;
    is_not_final(&shop.bring(&payment).await);
    is_not_final(&shop.ask().await);
    shop.facilitator.lag(0);
    until_paid(&shop, &payment).await;
    shop.close().await;
}

#[tokio::test]
async fn while_the_node_is_down_no_answer_of_the_facilitator_is_final() {
    for effect in [
        None,
        Some(Effect::Phantom),
        Some(Effect::SettleThenRefuse("insufficient_funds".to_owned())),
        Some(Effect::Refuse("insufficient_funds".to_owned(), 200)),
    ] {
        let shop = Shop::open().await;
        let down = Fault::once(Operation::Rpc, Effect::LoseCall);
        shop.facilitator.fault(down.times(1_000_000));
        if let Some(effect) = &effect {
            let fault = Fault::once(Operation::Settle, effect.clone());
            shop.facilitator.fault(fault);
        }
        let payment = shop.payment(1).await;
        is_not_final(&shop.bring(&payment).await);
        is_not_final(&shop.ask().await);
        assert_eq!(shop.payments(), 0, "{effect:?}");
        shop.facilitator.no_faults();
        until_paid(&shop, &payment).await;
        assert_eq!(shop.transfers(), 1, "{effect:?}");
        shop.close().await;
    }
}
