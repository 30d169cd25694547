//! False, late or missing answers of the facilitator, with correct, late or missing answers of a chain node.

use tollgate_testing::facilitator::{Effect, Fault, Operation};
use tollgate_testing::{Answer, Wallet, within};

use super::{X402Rig, is, now};

/// Buys like a stock client. The client signs any shown offer, at most twice for a purchase.
async fn buys_as_a_stock_client(fixture: &X402Rig) -> Answer {
    let first = fixture.payment(1).await;
    let answer = fixture.submit(&first).await;
    match answer.header("payment-required") {
        None => answer,
        Some(offer) => {
            let second = fixture.wallet.pay(offer, [2; 32], now());
            fixture.submit(&second).await
        }
    }
}

/// Submits a payment again until a purchase is complete.
async fn until_paid(fixture: &X402Rig, payment: &str) -> Answer {
    let mut often = tokio::time::interval(std::time::Duration::from_millis(500));
    let paid = async {
        loop {
            often.tick().await;
            let answer = fixture.submit(payment).await;
            if answer.status == 200 {
                return answer;
            }
            is_not_final(&answer);
        }
    };
    within("the plan", paid).await
}

/// Checks an answer without an offer, and with the retry action to repeat the request.
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
        let fixture = X402Rig::open().await;
        let refuse = Effect::SettleThenRefuse(why.to_owned());
        fixture
            .facilitator
            .fault(Fault::once(Operation::Settle, refuse));
        let bought = buys_as_a_stock_client(&fixture).await;
        assert_eq!(fixture.transfers(), 1, "{why}: paid once");
        assert_eq!(bought.status, 200, "{why}: {}", bought.text());
        assert!(bought.header("payment-response").is_some(), "{why}");
        assert_eq!(fixture.ask().await.json()["already_active"], true);
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_refused_payment_that_settles_later_is_the_purchase() {
    let fixture = X402Rig::open().await;
    let refuse = Effect::SubmitThenRefuse("insufficient_funds".to_owned());
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, refuse));
    let first = fixture.payment(1).await;
    let other = fixture.payment(2).await;
    let refused = fixture.submit(&first).await;
    is_not_final(&refused);
    let detail = refused.json()["detail"].to_string();
    for said in ["insufficient_funds", "same request", "seconds"] {
        assert!(detail.contains(said), "{said}: {detail}");
    }
    // Neither an offer nor another payment while the first payment can still be settled.
    is_not_final(&fixture.ask().await);
    is_not_final(&fixture.submit(&other).await);
    assert_eq!(fixture.facilitator.calls(Operation::Verify), 1);
    assert_eq!(fixture.facilitator.mine(true), 1);
    fixture.clear().await;
    assert_eq!(fixture.ask().await.json()["already_active"], true);
    let again = fixture.submit(&first).await;
    assert!(again.header("payment-response").is_some());
    assert_eq!(fixture.transfers(), 1);
    fixture.close().await;
}

#[tokio::test]
async fn a_success_with_an_invented_transaction_gives_nothing() {
    for effect in [Effect::Phantom, Effect::Reverted] {
        let fixture = X402Rig::open().await;
        fixture
            .facilitator
            .fault(Fault::once(Operation::Settle, effect.clone()));
        let payment = fixture.payment(1).await;
        is_not_final(&fixture.submit(&payment).await);
        assert_eq!(fixture.payments(), 0, "{effect:?}");
        // The payment was never submitted: the second submission is the transfer.
        let paid = until_paid(&fixture, &payment).await;
        assert!(paid.header("payment-response").is_some());
        assert_eq!(fixture.transfers(), 1, "{effect:?}");
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_success_with_the_transaction_of_another_payment_gives_nothing() {
    for node in [true, false] {
        let fixture = match node {
            true => X402Rig::open().await,
            false => X402Rig::without_node().await,
        };
        let other = fixture.rig.new_account("free", 0).await;
        let (_, key) = fixture.rig.new_key(other, |_| {}).await;
        let client = tollgate_testing::Client::new(&fixture.rig.url()).with_key(&key);
        let asked = fixture.ask().await;
        let offer = asked.header("payment-required").expect("an offer");
        let theirs = Wallet::new(2).pay(offer, [2; 32], now());
        let bought = super::submit(&client, &theirs, &serde_json::json!({})).await;
        assert_eq!(bought.status, 200, "{}", bought.text());
        let lie = Fault::once(Operation::Settle, Effect::OldTransaction);
        fixture.facilitator.fault(lie.times(2));
        let payment = fixture.payment(1).await;
        let answer = fixture.submit(&payment).await;
        assert_eq!(fixture.payments(), 0, "node: {node}: {}", answer.text());
        is_not_final(&answer);
        let paid = until_paid(&fixture, &payment).await;
        assert!(paid.header("payment-response").is_some());
        assert_eq!(
            (fixture.transfers(), fixture.payments()),
            (2, 1),
            "node: {node}"
        );
        fixture.rig.finish().await;
    }
}

#[tokio::test]
async fn a_slow_facilitator_is_not_waited_for_when_the_chain_has_the_transfer() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    // The facilitator submits, and does not answer before the release by the test.
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::HoldAfter));
    let paid = within("the plan", fixture.submit(&payment)).await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    assert!(paid.header("payment-response").is_some());
    fixture.facilitator.gate().open();
    fixture.close().await;
}

#[tokio::test]
async fn a_payment_presented_again_is_answered_by_the_chain_and_not_submitted_again() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::LoseAnswer));
    // The node is down for the first lookups.
    fixture
        .facilitator
        .fault(Fault::once(Operation::Rpc, Effect::Status(503)).times(2));
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::Status(503)));
    is_not_final(&fixture.submit(&payment).await);
    let submitted = fixture.facilitator.calls(Operation::Settle);
    until_paid(&fixture, &payment).await;
    assert_eq!(fixture.facilitator.calls(Operation::Settle), submitted);
    fixture.close().await;
}

#[tokio::test]
async fn a_node_a_block_behind_is_waited_for_and_one_far_behind_decides_nothing() {
    let fixture = X402Rig::open().await;
    fixture.facilitator.lag(1);
    let payment = fixture.payment(1).await;
    let paid = fixture.submit(&payment).await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    fixture.close().await;

    let fixture = X402Rig::open().await;
    fixture.facilitator.lag(1_000);
    let refuse = Effect::SettleThenRefuse("insufficient_funds".to_owned());
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, refuse));
    let payment = fixture.payment(1).await;
    is_not_final(&fixture.submit(&payment).await);
    is_not_final(&fixture.ask().await);
    fixture.facilitator.lag(0);
    until_paid(&fixture, &payment).await;
    fixture.close().await;
}

#[tokio::test]
async fn while_the_node_is_down_no_answer_of_the_facilitator_is_final() {
    for effect in [
        None,
        Some(Effect::Phantom),
        Some(Effect::SettleThenRefuse("insufficient_funds".to_owned())),
        Some(Effect::Refuse("insufficient_funds".to_owned(), 200)),
    ] {
        let fixture = X402Rig::open().await;
        let down = Fault::once(Operation::Rpc, Effect::LoseCall);
        fixture.facilitator.fault(down.times(1_000_000));
        if let Some(effect) = &effect {
            let fault = Fault::once(Operation::Settle, effect.clone());
            fixture.facilitator.fault(fault);
        }
        let payment = fixture.payment(1).await;
        is_not_final(&fixture.submit(&payment).await);
        is_not_final(&fixture.ask().await);
        assert_eq!(fixture.payments(), 0, "{effect:?}");
        fixture.facilitator.no_faults();
        until_paid(&fixture, &payment).await;
        assert_eq!(fixture.transfers(), 1, "{effect:?}");
        fixture.close().await;
    }
}
