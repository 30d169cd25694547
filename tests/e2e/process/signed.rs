//! Kills at every step of a purchase with a signed transfer.

use serde_json::json;
use tollgate_clock::Timestamp;
use tollgate_money::AccountId;
use tollgate_store::{AuthorizationState, sqlite};
use tollgate_testing::facilitator::{Effect, Facilitator, Fault, Operation};
use tollgate_testing::{Client, Wallet, within};

use super::installation::{Installation, ended};
use crate::pay::x402::{now, offer, settings, submit};
use crate::rig::{Setup, audited};

/// The point of the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// Before the facilitator has verified the payment.
    BeforeVerify,
    /// After verification, before the gateway has the response.
    AfterVerify,
    /// After the record of the send, before the send of the payment.
    BeforeSettle,
    /// After the transfer, before the gateway has the response.
    AfterSettle,
    /// When the buyer has the answer.
    AfterAnswer,
}

/// The program is killed and restarted, and the buyer repeats the request: the plan is active, and a single transfer settled. Before the
/// repeat the restarted program has reconciled the submitted payment.
#[tokio::test]
async fn an_x402_purchase_survives_a_kill_at_each_step() {
    for point in [
        Point::BeforeVerify,
        Point::AfterVerify,
        Point::BeforeSettle,
        Point::AfterSettle,
        Point::AfterAnswer,
    ] {
        let facilitator = Facilitator::start().await;
        let installation = Installation::of(Setup::with(&settings(&facilitator, true))).await;
        let payment = Wallet::new(1).pay(&offer(&facilitator), [1; 32], now());
        let fault = match point {
            Point::BeforeVerify => Some((Operation::Verify, Effect::Hold)),
            Point::AfterVerify => Some((Operation::Verify, Effect::HoldAfter)),
            Point::BeforeSettle => Some((Operation::Settle, Effect::Hold)),
            Point::AfterSettle => Some((Operation::Settle, Effect::HoldAfter)),
            Point::AfterAnswer => None,
        };
        let held = fault.is_some();
        if let Some((operation, effect)) = fault {
            facilitator.fault(Fault::once(operation, effect));
        }
        let mut serving = installation.serve().await;
        let client = Client::new(&serving.url).with_key(&installation.key);
        let (gate, brought) = (facilitator.gate(), payment.clone());
        let buyer = tokio::spawn(async move {
            // The connection breaks where the program dies first.
            let mut request = client.request("POST", crate::pay::x402::BUY, "{}".into());
            let value = http::HeaderValue::from_str(&brought).expect("a value");
            request.headers_mut().insert("payment-signature", value);
            client.try_send(request).await
        });
        if held {
            gate.reached_by(1).await;
        } else {
            let answer = buyer.await.expect("no panic").expect("an answer");
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        serving.process.signal("KILL");
        ended(&mut serving.process).await;
        // Calls held at the facilitator continue at the facilitator.
        gate.open();
        let mut serving = installation.serve().await;
        let client = Client::new(&serving.url).with_key(&installation.key);
        let mut often = tokio::time::interval(std::time::Duration::from_millis(50));
        let answer = within("the plan", async {
            loop {
                let answer = submit(&client, &payment, &json!({})).await;
                if answer.status != 503 {
                    return answer;
                }
                often.tick().await;
            }
        })
        .await;
        assert_eq!(answer.status, 200, "{point:?}: {}", answer.text());
        assert!(answer.header("payment-response").is_some(), "{point:?}");
        assert_eq!(facilitator.transfers().len(), 1, "{point:?}");
        serving.process.signal("TERM");
        ended(&mut serving.process).await;
        audited(&installation.database());
        let account: AccountId = installation.account.parse().expect("an id");
        let store = sqlite::open_read(&installation.database()).expect("the store opens");
        let payments = store.payments_of(account, 10).expect("readable");
        assert_eq!(payments.len(), 1, "{point:?}: one paid period");
        assert!(
            store
                .authorizations_open(None, 1)
                .expect("readable")
                .is_empty()
        );
        let due = store.authorizations_due(Timestamp::MAX, 10);
        let due = due.expect("readable");
        assert!(
            due.iter()
                .all(|row| row.state == AuthorizationState::Settled),
            "{point:?}: {due:?}"
        );
    }
}

/// The buyer has disconnected, the transfer is pending, and the program is shut down: the payment is stored before the exit.
#[tokio::test]
async fn shutdown_completes_a_transfer_whose_buyer_disconnected() {
    let facilitator = Facilitator::start().await;
    // Without a node: a node would end the purchase before the facilitator's answer.
    let installation = Installation::of(Setup::with(&settings(&facilitator, false))).await;
    let payment = Wallet::new(1).pay(&offer(&facilitator), [1; 32], now());
    facilitator.fault(Fault::once(Operation::Settle, Effect::HoldAfter));
    let mut serving = installation.serve().await;
    let client = Client::new(&serving.url).with_key(&installation.key);
    let buyer = tokio::spawn(async move { submit(&client, &payment, &json!({})).await });
    facilitator.gate().reached_by(1).await;
    buyer.abort();
    serving.process.signal("TERM");
    let waits = || serving.process.output().contains("waiting for purchases");
    within("the log line about open purchases", crate::rig::poll(waits)).await;
    assert!(serving.process.has_ended().is_none());
    facilitator.gate().open();
    let status = ended(&mut serving.process).await;
    assert_eq!(status.code(), Some(0), "{}", serving.process.output());
    audited(&installation.database());
    let account: AccountId = installation.account.parse().expect("an id");
    let store = sqlite::open_read(&installation.database()).expect("the store opens");
    assert_eq!(store.payments_of(account, 10).expect("readable").len(), 1);
    assert!(
        store
            .authorizations_open(None, 1)
            .expect("readable")
            .is_empty()
    );
}

/// The facilitator has submitted and refused the transfer, and the program is killed. The transfer settles before the next start. The next
/// start finds the transfer, and a new payment of the buyer is not charged.
#[tokio::test]
async fn a_refused_payment_that_settles_while_the_program_is_dead_is_the_purchase() {
    let facilitator = Facilitator::start().await;
    let installation = Installation::of(Setup::with(&settings(&facilitator, true))).await;
    let payment = Wallet::new(1).pay(&offer(&facilitator), [1; 32], now());
    let refuse = Effect::SubmitThenRefuse("insufficient_funds".to_owned());
    facilitator.fault(Fault::once(Operation::Settle, refuse));
    let mut serving = installation.serve().await;
    let client = Client::new(&serving.url).with_key(&installation.key);
    let refused = submit(&client, &payment, &json!({})).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.header("payment-required"), None);
    serving.process.signal("KILL");
    ended(&mut serving.process).await;
    assert_eq!(facilitator.mine(true), 1);
    let mut serving = installation.serve().await;
    let client = Client::new(&serving.url).with_key(&installation.key);
    let second = Wallet::new(1).pay(&offer(&facilitator), [2; 32], now());
    let mut often = tokio::time::interval(std::time::Duration::from_millis(50));
    let answer = within("the plan", async {
        loop {
            let answer = submit(&client, &second, &json!({})).await;
            if answer.status != 503 {
                return answer;
            }
            often.tick().await;
        }
    })
    .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["already_active"], true);
    assert_eq!(facilitator.transfers().len(), 1);
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
    audited(&installation.database());
    let account: AccountId = installation.account.parse().expect("an id");
    let store = sqlite::open_read(&installation.database()).expect("the store opens");
    assert_eq!(store.payments_of(account, 10).expect("readable").len(), 1);
}

/// Without a node a false refusal is accepted. The operator finds the payment in the list and closes the payment with the transaction.
#[tokio::test]
async fn a_false_refusal_without_a_node_is_found_and_closed_by_the_operator() {
    let facilitator = Facilitator::start().await;
    let installation = Installation::of(Setup::with(&settings(&facilitator, false))).await;
    let payment = Wallet::new(1).pay(&offer(&facilitator), [1; 32], now());
    let refuse = Effect::SettleThenRefuse("insufficient_funds".to_owned());
    facilitator.fault(Fault::once(Operation::Settle, refuse));
    let mut serving = installation.serve().await;
    let client = Client::new(&serving.url).with_key(&installation.key);
    assert_eq!(submit(&client, &payment, &json!({})).await.status, 402);
    let listed = installation.run(&["payment", "list"]).await;
    let name = listed
        .split_whitespace()
        .find(|word| word.starts_with("eip155:8453/"))
        .expect("it is listed");
    assert!(listed.contains("resolve"), "{listed}");
    let moved = facilitator.transfers().remove(0).transaction;
    let hash = moved.to_string();
    installation
        .run(&["payment", "close", name, "--paid", &hash])
        .await;
    let again = submit(&client, &payment, &json!({})).await;
    assert_eq!(again.status, 200, "{}", again.text());
    assert!(again.header("payment-response").is_some());
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
    audited(&installation.database());
    let account: AccountId = installation.account.parse().expect("an id");
    let store = sqlite::open_read(&installation.database()).expect("the store opens");
    assert_eq!(store.payments_of(account, 10).expect("readable").len(), 1);
    assert!(
        store
            .authorizations_open(None, 1)
            .expect("readable")
            .is_empty()
    );
}

/// The response to a transfer is lost, and the settings of the route are removed. The account cannot pay by another route until the
/// operator has resolved the payment. Meanwhile the program logs the payment at every start.
#[tokio::test]
async fn a_transfer_without_settings_is_logged_at_start_and_closed_by_the_operator() {
    let facilitator = Facilitator::start().await;
    let installation = Installation::of(Setup::with(&settings(&facilitator, false))).await;
    let payment = Wallet::new(1).pay(&offer(&facilitator), [1; 32], now());
    facilitator.fault(Fault::once(Operation::Settle, Effect::LoseAnswer));
    let mut serving = installation.serve().await;
    let client = Client::new(&serving.url).with_key(&installation.key);
    assert_eq!(submit(&client, &payment, &json!({})).await.status, 503);
    serving.process.signal("TERM");
    ended(&mut serving.process).await;

    let written = std::fs::read_to_string(&installation.config).expect("the settings");
    let mut written: toml::Table = written.parse().expect("TOML");
    written.remove("payments").expect("it sold");
    std::fs::write(&installation.config, written.to_string()).expect("the folder takes files");
    let mut serving = installation.serve().await;
    let named = || serving.process.output().contains("tollgate payment close");
    within("the word of an open payment", crate::rig::poll(named)).await;
    let listed = installation.run(&["payment", "list"]).await;
    let name = listed
        .split_whitespace()
        .find(|word| word.starts_with("eip155:8453/"))
        .expect("it is listed");
    let moved = facilitator.transfers().remove(0).transaction;
    let hash = moved.to_string();
    installation
        .run(&["payment", "close", name, "--paid", &hash])
        .await;
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
    audited(&installation.database());
    let account: AccountId = installation.account.parse().expect("an id");
    let store = sqlite::open_read(&installation.database()).expect("the store opens");
    assert_eq!(store.payments_of(account, 10).expect("readable").len(), 1);
    assert!(
        store
            .authorizations_open(None, 1)
            .expect("readable")
            .is_empty()
    );
}
