//! Purchases under way during a takeover by a new process: a purchase is paid once, and booked once.

use std::path::Path;

use serde_json::json;
use tollgate_money::{AccountId, MICROS_PER_CREDIT};
use tollgate_store::sqlite;
use tollgate_testing::facilitator::{self, Facilitator};
use tollgate_testing::paypal::{Effect, Fault, Operation, PayPal};
use tollgate_testing::{Client, Process, Script, Wallet, within};

use super::credits::sign_in;
use super::installation::{Installation, Serving, ended};
use super::mpp::bought_once;
use super::reload::edit;
use super::upgrade::{Successor, first_ended, spent};
use crate::credits::{back_from_paypal, order, order_of};
use crate::pay::{mpp, x402};
use crate::rig::{Browser, CHAT, PRICE_OF_A_CHAT, Setup, audited, chat, poll};
use crate::ucp::{AGENT, PROTOCOL, Platform, payment, plan};

/// The credit of an order of 20 dollars.
const ADDED: i64 = 2_000 * MICROS_PER_CREDIT;

/// An installation with sales of credits and the plan through `paypal`.
async fn selling(paypal: &PayPal) -> Installation {
    // The account is made without the PayPal settings.
    let mut installation = Installation::of(Setup::with("")).await;
    let ca = installation.folder.path().join("paypal-ca.pem");
    std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let text = format!("{text}\n{}", mpp::selling(paypal, &ca));
    std::fs::write(&installation.config, text).expect("the folder takes files");
    installation.variables = mpp::secrets().to_vec();
    installation
}

fn account(installation: &Installation) -> AccountId {
    installation.account.parse().expect("an id")
}

/// Orders 20 dollars through the pages, approved at PayPal; returns where the buyer comes back to.
async fn approved(browser: &mut Browser, paypal: &PayPal) -> String {
    let (page, path) = order(browser, "20.00").await;
    assert!(paypal.approve(&order_of(&page)).await);
    back_from_paypal(&path)
}

/// Starts an upgrade, and returns when the gateway waits for the purchase under way.
async fn upgrade_that_waits(installation: &Installation, serving: &Serving) -> Process {
    let upgrade = installation.spawn(installation.command(&["upgrade", "--json"]));
    let waits = || {
        let output = serving.process.output();
        output.contains("waiting for purchases under way before the upgrade")
    };
    within("an upgrade that waits for a purchase", poll(waits)).await;
    upgrade
}

/// The process after the takeover.
async fn successor(mut upgrade: Process) -> Successor {
    let status = ended(&mut upgrade).await;
    let output = upgrade.output();
    assert!(status.success(), "{output}");
    let line = output.lines().find(|line| line.starts_with('{'));
    let upgraded: serde_json::Value = serde_json::from_str(line.expect("JSON")).expect("JSON");
    Successor(upgraded["process"].as_u64().expect("a process"))
}

/// The output of a refused upgrade.
async fn refused(upgrade: &mut Process) -> String {
    assert_eq!(ended(upgrade).await.code(), Some(1));
    upgrade.output()
}

/// The payments of the account, read beside the gateway.
fn payments(database: &Path, account: AccountId) -> usize {
    let store = sqlite::open_read(database).expect("the store opens");
    store.payments_of(account, 10).expect("readable").len()
}

#[tokio::test]
async fn an_upgrade_waits_for_a_capture_under_way() {
    let paypal = PayPal::start().await;
    let installation = selling(&paypal).await;
    let session = sign_in(&installation.database(), account(&installation)).await;
    let mut serving = installation.serve().await;
    let mut browser = Browser::holding(&serving.url, &session);
    let page = approved(&mut browser, &paypal).await;
    paypal.fault(Fault::once(Operation::Capture, Effect::HoldAfter));
    let buyer = tokio::spawn(async move { browser.get(&page).await });
    paypal.gate().reached_by(1).await;
    let reads = paypal.calls(Operation::Read);

    let mut upgrade = upgrade_that_waits(&installation, &serving).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "requests are served meanwhile");
    assert_eq!(spent(&installation).await, PRICE_OF_A_CHAT);
    assert!(upgrade.has_ended().is_none(), "it waits for the capture");
    paypal.gate().open();
    let successor = successor(upgrade).await;
    let shown = buyer.await.expect("no panic");
    assert_eq!(shown.status, 303, "{}", shown.text());
    assert_eq!(first_ended(&mut serving).await, Some(0));

    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(spent(&installation).await, 2 * PRICE_OF_A_CHAT - ADDED);
    successor.stop().await;
    assert_eq!(paypal.taken_cents(), 2_000, "taken once");
    assert_eq!(paypal.calls(Operation::Capture), 1);
    assert_eq!(
        paypal.calls(Operation::Read),
        reads + 1,
        "the first process read the payment and booked it: the second had nothing to look for"
    );
    audited(&installation.database());
}

#[tokio::test]
async fn an_upgrade_waits_for_a_settlement_under_way_and_a_second_one_is_refused() {
    let facilitator = Facilitator::start().await;
    let settings = x402::settings(&facilitator, true);
    let installation = Installation::of(Setup::with(&settings)).await;
    let transfer = Wallet::new(1).pay(&x402::offer(&facilitator), [1; 32], x402::now());
    // Before the transfer: a transfer on the chain would complete the purchase without the response.
    let held = facilitator::Effect::Hold;
    facilitator.fault(facilitator::Fault::once(
        facilitator::Operation::Settle,
        held,
    ));
    let mut serving = installation.serve().await;
    let (client, signed) = (serving.client(&installation), transfer.clone());
    let buyer = tokio::spawn(async move { x402::submit(&client, &signed, &json!({})).await });
    facilitator.gate().reached_by(1).await;

    let mut upgrade = upgrade_that_waits(&installation, &serving).await;
    let mut second = installation.spawn(installation.command(&["upgrade"]));
    let output = refused(&mut second).await;
    assert!(output.contains("an upgrade is under way"), "{output}");
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "requests are served meanwhile");
    assert!(upgrade.has_ended().is_none(), "it waits for the settlement");
    facilitator.gate().open();
    let successor = successor(upgrade).await;
    let bought = buyer.await.expect("no panic");
    assert_eq!(bought.status, 200, "{}", bought.text());
    assert_eq!(bought.json()["already_active"], false);
    assert_eq!(first_ended(&mut serving).await, Some(0));

    let client = serving.client(&installation);
    let again = x402::submit(&client, &transfer, &json!({})).await;
    assert_eq!(again.status, 200, "{}", again.text());
    assert_eq!(again.json()["already_active"], true);
    successor.stop().await;
    assert_eq!(facilitator.transfers().len(), 1, "paid once");
    let database = installation.database();
    assert_eq!(payments(&database, account(&installation)), 1);
    audited(&database);
}

/// The wait of the upgrade is over before PayPal answers. No other test waits for a time limit of the program.
#[tokio::test]
async fn a_purchase_that_does_not_end_refuses_the_upgrade_and_is_completed_by_the_same_process() {
    let paypal = PayPal::start().await;
    let installation = selling(&paypal).await;
    edit(&installation, |table| {
        let paypal = table["payments"]["paypal"].as_table_mut();
        // The call has to last longer than the wait.
        paypal
            .expect("a table")
            .insert("call_secs".into(), 120.into());
    });
    let session = sign_in(&installation.database(), account(&installation)).await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    installation.provider.script(Script::pace("piece").once());
    installation.provider.gate("piece").release(1);
    let mut stream = client.stream(CHAT, &chat(true)).await;
    assert_eq!(stream.status, 200);
    installation.provider.gate("piece").reached_by(1).await;
    let mut browser = Browser::holding(&serving.url, &session);
    let page = approved(&mut browser, &paypal).await;
    paypal.fault(Fault::once(Operation::Capture, Effect::HoldAfter));
    let buyer = tokio::spawn(async move { browser.get(&page).await });
    paypal.gate().reached_by(1).await;

    let mut upgrade = upgrade_that_waits(&installation, &serving).await;
    let answer = client.post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "requests are served meanwhile");
    let output = refused(&mut upgrade).await;
    let reason = "a purchase is under way; try again when it is complete";
    assert!(output.contains(reason), "{output}");
    let log = serving.process.output();
    let started = log
        .lines()
        .find(|line| line.contains("started the new process"));
    let id = started.and_then(|line| line.rsplit("process=").next());
    let id: u32 = id.and_then(|id| id.parse().ok()).expect("its number");
    assert!(
        !Path::new(&format!("/proc/{id}")).exists(),
        "the new process has ended"
    );

    let answer = client.post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "the same process serves");
    installation.provider.gate("piece").open();
    let (events, end) = stream.rest().await;
    assert!(events.last().expect("events").is_done(), "{end:?}");
    let shown = buyer.await.expect("no panic");
    assert_eq!(shown.status, 303, "{}", shown.text());
    paypal.gate().open();
    let charged = 3 * PRICE_OF_A_CHAT;
    let booked = async { while spent(&installation).await != charged - ADDED {} };
    within("the credits", booked).await;
    assert!(serving.process.has_ended().is_none());

    let successor = Successor::of(&installation).await;
    assert_eq!(first_ended(&mut serving).await, Some(0));
    assert_eq!(spent(&installation).await, charged - ADDED);
    successor.stop().await;
    assert_eq!(paypal.calls(Operation::Capture), 1);
    assert_eq!(paypal.taken_cents(), 2_000, "taken once");
    audited(&installation.database());
}

#[tokio::test]
async fn an_mpp_purchase_begun_before_an_upgrade_is_approved_and_completed_after_it() {
    let paypal = PayPal::start().await;
    let installation = selling(&paypal).await;
    let mut serving = installation.serve().await;
    let client = Client::new(&serving.url);
    let offered = mpp::ask(&client, &installation.key).await;
    assert_eq!(offered.status, 402, "{}", offered.text());
    let offer = mpp::Offer::of(&offered);
    let credential = offer.credential();
    let submit = || mpp::submit(&client, &installation.key, &credential, "");
    let waits = submit().await;
    assert_eq!(waits.json()["payment_state"], "approval_pending");

    let successor = Successor::of(&installation).await;
    let waits = submit().await;
    assert_eq!(
        waits.json()["payment_state"],
        "approval_pending",
        "the challenge is known to the new process: {}",
        waits.text()
    );
    assert!(paypal.agree(&offer.subscription).await);
    let bought = submit().await;
    assert_eq!(bought.status, 200, "{}", bought.text());
    assert_eq!(bought.json()["subscription"]["status"], "active");
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
    bought_once(&paypal, &installation);
}

#[tokio::test]
async fn a_checkout_approved_before_an_upgrade_is_completed_after_it() {
    let paypal = PayPal::start().await;
    let installation = selling(&paypal).await;
    let session = sign_in(&installation.database(), account(&installation)).await;
    let mut serving = installation.serve().await;
    let platform = Platform::of(serving.client(&installation));
    let fields = |key| [AGENT, ("idempotency-key", key)];
    let begun = platform
        .send("POST", PROTOCOL, Some(&plan()), &fields("begin"))
        .await;
    assert_eq!(begun.status, 201, "{}", begun.text());
    let checkout = begun.json();
    let id = checkout["id"].as_str().expect("an id");
    let path = format!("/commerce/continue/{id}");
    let mut browser = Browser::holding(&serving.url, &session);
    browser.get(&path).await;
    let sent = browser.submit(&path, &[]).await;
    assert_eq!(sent.status, 303, "{}", sent.text());
    assert!(paypal.agree(&paypal.subscriptions()[0].id).await);

    let successor = Successor::of(&installation).await;
    let again = platform
        .send("POST", PROTOCOL, Some(&plan()), &fields("begin"))
        .await;
    assert_eq!(again.json()["id"], checkout["id"], "the same checkout");
    let path = format!("{PROTOCOL}/{id}/complete");
    let completed = platform
        .send("POST", &path, Some(&payment()), &fields("complete"))
        .await;
    assert_eq!(completed.status, 200, "{}", completed.text());
    assert_eq!(completed.json()["status"], "completed");
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
    bought_once(&paypal, &installation);
}
