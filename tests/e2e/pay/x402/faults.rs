//! Faults of the facilitator and of connections: afterwards the buyer has the plan or the money.

use serde_json::json;
use tollgate_testing::facilitator::{Effect, Fault, Operation};
use tollgate_testing::wallet::decoded;
use tollgate_testing::within;

use super::{X402Rig, is};

/// Brings a payment until the answer is no 503 any more.
async fn until_clear(fixture: &X402Rig, payment: &str) -> tollgate_testing::Answer {
    let mut often = tokio::time::interval(std::time::Duration::from_millis(50));
    let clear = async {
        loop {
            often.tick().await;
            let answer = fixture.submit(payment).await;
            if answer.status != 503 {
                return answer;
            }
            assert_eq!(
                answer.header("payment-required"),
                None,
                "no offer meanwhile"
            );
            assert!(answer.header("retry-after").is_some());
        }
    };
    within("the end of what is unclear", clear).await
}

#[tokio::test]
async fn a_lost_settle_response_is_reconciled_from_the_chain() {
    for effect in [
        Effect::LoseAnswer,
        Effect::FailAfter,
        Effect::StrangePayer,
        Effect::StrangeNetwork,
        Effect::NoTransaction,
        Effect::Nonsense,
        Effect::Flood,
        Effect::RefuseAfter("insufficient_funds".to_owned()),
        Effect::RefuseAfter("unexpected_settle_error".to_owned()),
    ] {
        let fixture = X402Rig::open().await;
        let payment = fixture.payment(1).await;
        fixture
            .facilitator
            .fault(Fault::once(Operation::Settle, effect.clone()));
        // The second lookup is part of the first request: the nonce is used, and the chain shows the transfer.
        let paid = until_clear(&fixture, &payment).await;
        assert_eq!(paid.status, 200, "{effect:?}: {}", paid.text());
        assert!(paid.header("payment-response").is_some(), "{effect:?}");
        assert_eq!(fixture.transfers(), 1, "{effect:?}");
        fixture.close().await;
    }
}

#[tokio::test]
async fn without_a_node_a_repeated_settle_reconciles_a_lost_response() {
    let fixture = X402Rig::without_node().await;
    fixture.facilitator.remember();
    let payment = fixture.payment(1).await;
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::LoseAnswer));
    assert_eq!(until_clear(&fixture, &payment).await.status, 200);
    assert_eq!(fixture.transfers(), 1);
    fixture.close().await;
}

#[tokio::test]
async fn without_a_node_a_success_that_names_the_payment_in_another_way_is_a_success() {
    for members in [
        json!({"payer": ""}),
        json!({"payer": null}),
        json!({"network": null}),
        json!({"network": ""}),
        json!({"network": "base"}),
        json!({"network": "8453", "payer": ""}),
        json!({"network": 8453}),
    ] {
        let fixture = X402Rig::without_node().await;
        let payment = fixture.payment(1).await;
        let effect = Effect::AnswerWith(members.as_object().expect("an object").clone());
        fixture
            .facilitator
            .fault(Fault::once(Operation::Settle, effect));
        let paid = fixture.submit(&payment).await;
        assert_eq!(paid.status, 200, "{members}: {}", paid.text());
        let receipt = decoded(paid.header("payment-response").expect("a receipt"));
        assert_eq!(receipt["network"], "eip155:8453", "{members}");
        let payer = receipt["payer"]
            .as_str()
            .expect("the wallet of the payment");
        let wallet = fixture.wallet.address().to_string();
        assert!(payer.eq_ignore_ascii_case(&wallet), "{members}: {payer}");
        assert_eq!(fixture.facilitator.calls(Operation::Settle), 1, "{members}");
        fixture.close().await;
    }
}

#[tokio::test]
async fn without_a_node_a_success_that_names_another_payment_stays_unclear() {
    for members in [
        json!({"network": "base-sepolia"}),
        json!({"network": "eip155:1"}),
        json!({"network": "a network of tomorrow"}),
        json!({"payer": "0x0909090909090909090909090909090909090909"}),
        json!({"transaction": null}),
    ] {
        let fixture = X402Rig::without_node().await;
        let payment = fixture.payment(1).await;
        let effect = Effect::AnswerWith(members.as_object().expect("an object").clone());
        fixture
            .facilitator
            .fault(Fault::once(Operation::Settle, effect));
        let unclear = fixture.submit(&payment).await;
        is(
            &unclear,
            503,
            "payment_route_unavailable",
            "processing",
            "retry_same",
        );
        assert_eq!(fixture.payments(), 0, "{members}");
        fixture.rig.finish().await;
    }
}

#[tokio::test]
async fn an_unexplained_payment_stays_unclear_and_blocks_offers() {
    let fixture = X402Rig::without_node().await;
    let (payment, other) = (fixture.payment(1).await, fixture.payment(2).await);
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::LoseAnswer));
    for _ in 0..3 {
        let unclear = fixture.submit(&payment).await;
        is(
            &unclear,
            503,
            "payment_route_unavailable",
            "processing",
            "retry_same",
        );
        for answer in [fixture.ask().await, fixture.submit(&other).await] {
            is(
                &answer,
                503,
                "payment_route_unavailable",
                "processing",
                "retry_same",
            );
            assert_eq!(answer.header("payment-required"), None);
            assert!(answer.header("retry-after").is_some());
        }
    }
    assert_eq!(fixture.transfers(), 1);
    assert_eq!(
        fixture.payments(),
        0,
        "it is not known, so nothing was given"
    );
    fixture.rig.finish().await;
}

#[tokio::test]
async fn an_unsubmitted_transfer_is_submitted_again_unchanged() {
    let refused = |why: &str, status| Effect::Refuse(why.to_owned(), status);
    for effect in [
        Effect::LoseCall,
        Effect::Status(503),
        Effect::Status(429),
        Effect::Status(401),
        Effect::ElsewhereRedirect,
        refused("unexpected_settle_error", 500),
        refused("invalid_exact_evm_transaction_failed", 200),
        refused("invalid_transaction_state", 200),
        refused("nonce too low: next nonce 5, tx nonce 4", 500),
        refused("a_reason_of_tomorrow", 400),
        // A failed simulation is no proof about an earlier attempt.
        refused("invalid_exact_evm_transaction_simulation_failed", 200),
    ] {
        let fixture = X402Rig::open().await;
        let payment = fixture.payment(1).await;
        fixture
            .facilitator
            .fault(Fault::once(Operation::Settle, effect.clone()));
        let paid = until_clear(&fixture, &payment).await;
        assert_eq!(paid.status, 200, "{effect:?}: {}", paid.text());
        let asked = fixture.facilitator.asked(Operation::Settle);
        assert!(asked.len() >= 2, "{effect:?}");
        assert!(
            asked.iter().all(|one| *one == asked[0]),
            "{effect:?}: with the same words"
        );
        assert_eq!(fixture.transfers(), 1, "{effect:?}");
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_pending_transfer_is_awaited() {
    for status in [500, 200, 202] {
        let fixture = X402Rig::open().await;
        let payment = fixture.payment(1).await;
        fixture
            .facilitator
            .fault(Fault::once(Operation::Settle, Effect::Pending(status)));
        let waiting = fixture.submit(&payment).await;
        is(
            &waiting,
            503,
            "payment_route_unavailable",
            "processing",
            "retry_same",
        );
        assert_eq!(fixture.ask().await.status, 503, "no offer meanwhile");
        assert_eq!(fixture.facilitator.mine(true), 1);
        let paid = until_clear(&fixture, &payment).await;
        assert_eq!(paid.status, 200, "{status}: {}", paid.text());
        assert_eq!(fixture.transfers(), 1, "{status}");
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_dropped_transaction_is_submitted_again() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::Pending(200)));
    assert_eq!(fixture.submit(&payment).await.status, 503);
    assert_eq!(fixture.facilitator.mine(false), 0);
    assert_eq!(until_clear(&fixture, &payment).await.status, 200);
    assert_eq!(fixture.transfers(), 1);
    fixture.close().await;
}

#[tokio::test]
async fn the_plan_is_activated_without_another_request() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::LoseAnswer));
    fixture
        .facilitator
        .fault(Fault::once(Operation::Rpc, Effect::Status(503)).times(2));
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::Status(503)));
    assert_eq!(fixture.submit(&payment).await.status, 503);
    fixture.clear().await;
    let asked = fixture.ask().await;
    assert_eq!(asked.status, 200, "{}", asked.text());
    assert_eq!(asked.json()["already_active"], true);
    fixture.close().await;
}

#[tokio::test]
async fn a_purchase_completes_after_the_buyer_disconnects() {
    for effect in [Effect::Hold, Effect::HoldAfter] {
        let fixture = X402Rig::open().await;
        let payment = fixture.payment(1).await;
        fixture
            .facilitator
            .fault(Fault::once(Operation::Settle, effect.clone()));
        let gate = fixture.facilitator.gate();
        let (client, brought) = (fixture.client(), payment.clone());
        let buyer =
            tokio::spawn(
                async move { super::submit(&client, &brought, &serde_json::json!({})).await },
            );
        gate.reached_by(1).await;
        buyer.abort();
        assert!(buyer.await.is_err(), "the buyer is gone");
        assert_eq!(fixture.ask().await.status, 503, "no offer meanwhile");
        gate.open();
        fixture.clear().await;
        // The payment is stored before the end of the attempt: a repeat gets the response of the first request.
        let repeated = fixture.submit(&payment).await;
        assert_eq!(repeated.status, 200, "{effect:?}: {}", repeated.text());
        assert!(repeated.header("payment-response").is_some());
        let again = fixture.submit(&payment).await;
        assert_eq!(again.status, 200, "{effect:?}: {}", again.text());
        assert_eq!(again.json()["already_active"], true);
        assert!(again.header("payment-response").is_some());
        assert_eq!(fixture.facilitator.calls(Operation::Settle), 1);
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_failed_verification_consumes_nothing() {
    for effect in [
        Effect::LoseCall,
        Effect::LoseAnswer,
        Effect::FailAfter,
        Effect::Status(503),
        Effect::Status(429),
        Effect::Status(401),
        Effect::Nonsense,
        Effect::Flood,
        Effect::ElsewhereRedirect,
        Effect::Refuse("unexpected_verify_error".to_owned(), 500),
        Effect::Refuse("rate_limited".to_owned(), 200),
        Effect::Refuse("a_reason_of_tomorrow".to_owned(), 429),
        Effect::Refuse("a_reason_of_tomorrow".to_owned(), 502),
        Effect::Refuse("smart_wallet_deployment_failed".to_owned(), 200),
        Effect::Refuse("asset_not_deployed_contract".to_owned(), 200),
        Effect::Refuse("invalid_exact_evm_failed_to_get_balance".to_owned(), 200),
    ] {
        let fixture = X402Rig::open().await;
        let payment = fixture.payment(1).await;
        fixture
            .facilitator
            .fault(Fault::once(Operation::Verify, effect.clone()));
        let failed = fixture.submit(&payment).await;
        is(
            &failed,
            503,
            "payment_route_unavailable",
            "unavailable",
            "retry_same",
        );
        assert_eq!(failed.header("payment-required"), None, "{effect:?}");
        assert_eq!(
            fixture.facilitator.calls(Operation::Settle),
            0,
            "{effect:?}"
        );
        let paid = fixture.submit(&payment).await;
        assert_eq!(paid.status, 200, "{effect:?}: {}", paid.text());
        fixture.close().await;
    }
}

#[tokio::test]
async fn facilitator_redirects_are_followed_within_the_host() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    for operation in [Operation::Verify, Operation::Settle] {
        fixture
            .facilitator
            .fault(Fault::once(operation, Effect::Redirect));
    }
    assert_eq!(fixture.submit(&payment).await.status, 200);
    fixture.close().await;
}

#[tokio::test]
async fn no_offer_is_made_while_the_facilitator_is_down() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    for operation in [Operation::Verify, Operation::Supported] {
        fixture
            .facilitator
            .fault(Fault::once(operation, Effect::LoseCall).times(1_000));
    }
    let failed = fixture.submit(&payment).await;
    is(
        &failed,
        503,
        "payment_route_unavailable",
        "unavailable",
        "retry_same",
    );
    // The failing call has closed the route at once.
    let asked = fixture.ask().await;
    is(
        &asked,
        503,
        "payment_route_unavailable",
        "unavailable",
        "retry_same",
    );
    assert_eq!(asked.header("payment-required"), None);
    assert!(asked.header("retry-after").is_some());
    // The refusal has no offer to follow.
    let refused = fixture.submit("e30=").await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("payment-required"), None);
    fixture.facilitator.no_faults();
    fixture.wait_until_offered().await;
    assert_eq!(fixture.ask().await.status, 402);
    assert_eq!(fixture.submit(&payment).await.status, 200);
    fixture.close().await;
}

#[tokio::test]
async fn a_facilitator_that_settles_something_else_sells_nothing() {
    let fixture = X402Rig::open().await;
    let other = Fault::once(
        Operation::Supported,
        Effect::Refuse("no such chain".to_owned(), 200),
    );
    fixture.facilitator.fault(other.times(1_000));
    let closed = async {
        while fixture.rig.metric("tollgate_x402_up").await == 1 {
            tokio::task::yield_now().await;
            // A failing call causes an earlier check.
            fixture
                .facilitator
                .fault(Fault::once(Operation::Verify, Effect::LoseCall));
            let payment =
                fixture
                    .wallet
                    .pay(&super::offer(&fixture.facilitator), [9; 32], super::now());
            fixture.submit(&payment).await;
        }
    };
    within("the end of offers", closed).await;
    assert_eq!(fixture.ask().await.status, 503);
    fixture.rig.finish().await;
}
