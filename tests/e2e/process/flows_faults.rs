//! Flows of several requests while a node is killed, or whose secret is used at several nodes at once.

use futures_util::future::join_all;
use serde_json::json;
use tollgate_money::MICROS_PER_CREDIT;
use tollgate_testing::paypal::{Effect, Fault, Operation};
use tollgate_testing::{Answer, Client, Wallet, facilitator, within};

use super::flows::{App, Flows, MONTH_CENTS, form, signed_in, tokens};
use super::installation::ended;
use super::nodes::NAMES;
use crate::credits::{back_from_paypal, order, order_of};
use crate::pay::{mpp, x402};
use crate::ucp::{AGENT, PROTOCOL, Platform, payment, plan};

/// The killed node, and a node that continues afterwards.
const DOOMED: usize = 1;
const OTHER: usize = 2;

impl Flows {
    /// Kills a node, and ends the lease and the grace period.
    async fn kill(&mut self) {
        let node = &mut self.cluster.nodes[DOOMED];
        node.process.kill();
        ended(&mut node.process).await;
        self.cluster.end_lease(NAMES[DOOMED]);
    }

    fn client_of(&self, node: usize) -> Client {
        Client::new(&self.cluster.nodes[node].url)
    }
}

/// Repeats a request, like an agent, until the answer 200.
async fn repeated(request: impl AsyncFn() -> Answer) -> Answer {
    let bought = async {
        loop {
            let answer = request().await;
            if answer.status == 200 {
                return answer;
            }
            // For the remaining nodes, the attempt of the killed node is not over yet.
            assert!(
                [402, 409, 429, 503].contains(&answer.status),
                "{}",
                answer.text()
            );
        }
    };
    within("the plan", bought).await
}

/// The node is killed between the payment and the credit, in wait for the answer to the payment. Another node has only the row of the
/// purchase.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_top_up_whose_node_is_killed_during_the_capture_is_credited_once_by_another_node() {
    let mut flows = Flows::start().await;
    let address = "grace@example.com";
    let (account, _) = flows.account(address).await;
    let doomed = flows.cluster.nodes[DOOMED].url.clone();
    let mut browser = signed_in(&doomed, &flows.mailbox, address).await;
    let (page, path) = order(&mut browser, "20.00").await;
    // Else a notification makes another node reconcile the purchase first.
    flows.paypal.send_no_notices();
    assert!(flows.paypal.approve(&order_of(&page)).await);
    let gate = flows.paypal.gate();
    flows
        .paypal
        .fault(Fault::once(Operation::Capture, Effect::HoldAfter));
    let returned = tokio::spawn(async move { browser.get(&back_from_paypal(&path)).await });
    gate.reached_by(1).await;
    assert_eq!(flows.paypal.taken_cents(), 2_000, "the money is taken");
    flows.kill().await;
    returned.abort();
    gate.open();
    let account = account.to_string();
    let credit = (2_000 * MICROS_PER_CREDIT, 0);
    let credited = async { while flows.cluster.balance(&account).await != credit {} };
    within("the credit", credited).await;
    assert_eq!(flows.paypal.taken_cents(), 2_000, "taken once");
    flows.close(&[address]);
}

/// Killed while the facilitator transfers the payment. Another node leaves the payment alone for the time limit of the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_whose_node_is_killed_during_the_settlement_buys_the_plan_once() {
    let mut flows = Flows::start().await;
    let (account, key) = flows.account("hal@example.com").await;
    let doomed = flows.client_of(DOOMED).with_key(&key);
    let other = flows.client_of(OTHER).with_key(&key);
    let offer = doomed.post(x402::BUY, &json!({})).await;
    let offer = offer.header("payment-required").expect("an offer");
    let payment = Wallet::new(1).pay(offer, [1; 32], x402::now());
    let gate = flows.facilitator.gate();
    flows.facilitator.fault(facilitator::Fault::once(
        facilitator::Operation::Settle,
        facilitator::Effect::HoldAfter,
    ));
    let presented = tokio::spawn({
        let payment = payment.clone();
        async move { x402::submit(&doomed, &payment, &json!({})).await }
    });
    gate.reached_by(1).await;
    assert_eq!(flows.facilitator.transfers().len(), 1, "it is paid");
    flows.kill().await;
    presented.abort();
    gate.open();
    let earlier = "UPDATE authorizations SET updated_at = updated_at - 600000000";
    flows.cluster.sql(earlier);
    let bought = repeated(async || x402::submit(&other, &payment, &json!({})).await).await;
    assert!(bought.header("payment-response").is_some());
    assert_eq!(flows.facilitator.transfers().len(), 1, "paid once");
    assert_eq!(flows.payments(account), 1);
    flows.close(&[]);
}

/// Killed during the read of the buyer's charge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monthly_payment_whose_node_is_killed_is_charged_once_and_buys_the_plan() {
    const BODY: &str = r#"{"idempotency_key":"one purchase"}"#;
    let mut flows = Flows::start().await;
    let (account, key) = flows.account("radia@example.com").await;
    let (doomed, other) = (flows.client_of(DOOMED), flows.client_of(OTHER));
    flows.paypal.send_no_notices();
    let offer = mpp::Offer::of(&mpp::ask(&doomed, &key).await);
    let credential = offer.credential();
    assert!(flows.paypal.agree(&offer.subscription).await);
    let gate = flows.paypal.gate();
    let held = Fault::once(Operation::Transactions, Effect::HoldAfter);
    flows.paypal.fault(held);
    let submitted = tokio::spawn({
        let (key, credential) = (key.clone(), credential.clone());
        async move { mpp::submit(&doomed, &key, &credential, BODY).await }
    });
    gate.reached_by(1).await;
    flows.kill().await;
    submitted.abort();
    gate.open();
    let bought = repeated(async || mpp::submit(&other, &key, &credential, BODY).await).await;
    let receipt = bought.header("payment-receipt").expect("a receipt");
    let again = mpp::submit(&flows.client_of(0), &key, &credential, BODY).await;
    assert_eq!(
        again.header("payment-receipt"),
        Some(receipt),
        "one receipt"
    );
    assert_eq!(flows.paypal.charged_cents(), MONTH_CENTS, "charged once");
    assert_eq!(flows.payments(account), 1);
    flows.close(&[]);
}

/// A kill in a checkout of a platform. The platform repeats the request with an equal key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkout_whose_node_is_killed_during_its_completion_is_completed_by_another_node() {
    let mut flows = Flows::start().await;
    let address = "barbara@example.com";
    let (account, key) = flows.account(address).await;
    let platform = |node: usize| Platform::of(flows.client_of(node).with_key(&key));
    let (doomed, other) = (platform(DOOMED), platform(OTHER));
    flows.paypal.send_no_notices();
    let fields = [AGENT, ("idempotency-key", "begin")];
    let begun = doomed.send("POST", PROTOCOL, Some(&plan()), &fields).await;
    assert_eq!(begun.status, 201, "{}", begun.text());
    let session = begun.json();
    let id = session["id"].as_str().expect("an id");
    let page = format!("/commerce/continue/{id}");
    let mut browser = flows.signed_in(address).await;
    browser.get(&page).await;
    let sent = browser.submit(&page, &[]).await;
    assert_eq!(sent.status, 303, "{}", sent.text());
    let made = flows.paypal.subscriptions().pop().expect("a subscription");
    assert!(flows.paypal.agree(&made.id).await);
    let gate = flows.paypal.gate();
    let held = Fault::once(Operation::Transactions, Effect::HoldAfter);
    flows.paypal.fault(held);
    let path = format!("{PROTOCOL}/{id}/complete");
    let fields = [AGENT, ("idempotency-key", "complete")];
    let completing = tokio::spawn({
        let path = path.clone();
        async move { doomed.send("POST", &path, Some(&payment()), &fields).await }
    });
    gate.reached_by(1).await;
    flows.kill().await;
    completing.abort();
    gate.open();
    let instruments = payment();
    let complete = async || other.send("POST", &path, Some(&instruments), &fields).await;
    let completed = repeated(complete).await;
    assert_eq!(completed.json()["status"], "completed");
    assert_eq!(flows.paypal.charged_cents(), MONTH_CENTS, "charged once");
    assert_eq!(flows.payments(account), 1);
    flows.close(&[address]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_code_at_several_nodes_at_once_is_used_once_and_a_refresh_token_has_one_successor() {
    let flows = Flows::start().await;
    let address = "edsger@example.com";
    flows.account(address).await;
    let mut browser = flows.signed_in(address).await;
    let client = flows.client();
    let app = App::allowed(&client, &mut browser).await;
    let exchange = app.exchange();
    let sent = (0..6).map(|_| form(&client, "/oauth/token", &exchange));
    let (given, refused): (Vec<Answer>, _) = join_all(sent)
        .await
        .into_iter()
        .partition(|answer| answer.status == 200);
    assert_eq!(given.len(), 1, "one code, one pair of tokens");
    for answer in refused {
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.json()["error"], "invalid_grant");
    }
    let app = App::allowed(&client, &mut browser).await;
    let [_, refresh] = tokens(&form(&client, "/oauth/token", &app.exchange()).await);
    let request = app.refresh(&refresh);
    let sent = (0..6).map(|_| form(&client, "/oauth/token", &request));
    let mut successors = Vec::new();
    for answer in join_all(sent).await {
        assert_eq!(answer.status, 200, "{}", answer.text());
        successors.push(tokens(&answer)[1].clone());
    }
    successors.dedup();
    assert_eq!(
        successors.len(),
        1,
        "concurrent requests get the same successor"
    );
    let next = app.refresh(&successors[0]);
    let next = form(&client, "/oauth/token", &next).await;
    assert_eq!(next.status, 200, "{}", next.text());
    flows.close(&[address]);
}
