//! The token of the settings against the contract on the chain: for an unverified token, no offer is shown, and no payment is submitted.

use std::time::Duration;

use tollgate_testing::facilitator::{Contract, Effect, Fault, Operation};
use tollgate_testing::{Facilitator, Wallet, within};

use super::{X402Rig, is, now, offer, settings, submit};
use crate::rig::Rig;

/// A gateway with the node of `facilitator`, before the first successful check of the token.
async fn closed(facilitator: Facilitator) -> X402Rig {
    let rig = Rig::with(&settings(&facilitator, true)).await;
    let account = rig.new_account("free", 0).await;
    let (_, key) = rig.new_key(account, |_| {}).await;
    called(&facilitator, Operation::Supported, 1).await;
    X402Rig {
        rig,
        facilitator,
        wallet: Wallet::new(1),
        account,
        key,
    }
}

/// A request without a payment gets no offer. A request with a payment for the usual offer gets no offer either. No payment is submitted.
async fn sells_nothing(fixture: &X402Rig) {
    let payment = fixture
        .wallet
        .pay(&offer(&fixture.facilitator), [1; 32], now());
    for answer in [
        fixture.ask().await,
        submit(&fixture.client(), &payment, &serde_json::json!({})).await,
        fixture.submit("e30=").await,
    ] {
        is(
            &answer,
            503,
            "payment_route_unavailable",
            "unavailable",
            "retry_same",
        );
        assert_eq!(answer.header("payment-required"), None);
        assert!(answer.header("retry-after").is_some());
    }
    for operation in [Operation::Verify, Operation::Settle] {
        assert_eq!(fixture.facilitator.calls(operation), 0);
    }
    assert_eq!(fixture.rig.metric("tollgate_x402_up").await, 0);
}

/// Waits until an operation was called `calls` times.
async fn called(facilitator: &Facilitator, operation: Operation, calls: u64) {
    let mut often = tokio::time::interval(Duration::from_millis(5));
    let called = async {
        while facilitator.calls(operation) < calls {
            often.tick().await;
        }
    };
    within("a call of the gateway", called).await;
}

#[tokio::test]
async fn a_token_that_is_not_that_of_the_settings_is_not_sold_for() {
    let Contract::Token {
        decimals,
        domain_separator,
    } = Contract::USDC
    else {
        panic!("a token");
    };
    // USDC on Base Sepolia, with a different name in the domain.
    let elsewhere = "0x71f17a3b2ff373b803d70a5a07c046c1a2bc8e89c09ef722fcb047abe94c9818";
    let token = |decimals, domain_separator| Contract::Token {
        decimals,
        domain_separator,
    };
    for (contract, calls) in [
        (Contract::Nothing, 2),
        (token(Some(18), domain_separator), 3),
        (token(Some(0), domain_separator), 3),
        (token(None, domain_separator), 3),
        (token(decimals, Some(elsewhere)), 4),
        (token(decimals, None), 4),
    ] {
        let facilitator = Facilitator::start().await;
        facilitator.deploy(contract);
        let fixture = closed(facilitator).await;
        called(&fixture.facilitator, Operation::Rpc, calls).await;
        sells_nothing(&fixture).await;
        fixture.rig.finish().await;
    }
}

#[tokio::test]
async fn a_node_that_does_not_answer_stops_no_start_and_sells_nothing_until_it_does() {
    let facilitator = Facilitator::start().await;
    let down = Fault::once(Operation::Rpc, Effect::LoseCall);
    facilitator.fault(down.times(1_000));
    let fixture = closed(facilitator).await;
    called(&fixture.facilitator, Operation::Rpc, 1).await;
    sells_nothing(&fixture).await;
    // Requests for models do not need the chain.
    assert_eq!(fixture.client().get("/v1/models").await.status, 200);
    fixture.facilitator.no_faults();
    fixture.wait_until_offered().await;
    let payment = fixture.payment(1).await;
    assert_eq!(fixture.submit(&payment).await.status, 200);
    // A verified token stays verified while the node is down.
    let down = Fault::once(Operation::Rpc, Effect::LoseCall);
    fixture.facilitator.fault(down.times(1_000));
    assert_eq!(fixture.rig.metric("tollgate_x402_up").await, 1);
    fixture.facilitator.no_faults();
    fixture.close().await;
}

#[tokio::test]
async fn a_node_of_another_chain_verifies_no_token() {
    let facilitator = Facilitator::start().await;
    facilitator.be_of_chain(1);
    let fixture = closed(facilitator).await;
    called(&fixture.facilitator, Operation::Rpc, 1).await;
    sells_nothing(&fixture).await;
    fixture.rig.finish().await;
}
