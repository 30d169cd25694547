//! Kills at every step of a purchase with MPP.

use serde_json::json;
use tollgate_money::AccountId;
use tollgate_store::sqlite;
use tollgate_testing::Client;
use tollgate_testing::paypal::{Effect, Fault, Operation, PayPal};

use super::installation::{Installation, Serving, ended};
use crate::pay::mpp::{Offer, ask, secrets, selling, submit};
use crate::rig::{Browser, Setup, audited};

const BODY: &str = r#"{"idempotency_key":"one purchase"}"#;

async fn serve(installation: &Installation) -> Serving {
    let mut command = installation.command(&["serve"]);
    command.envs(secrets());
    installation.serve_as(command).await
}

async fn kill(mut serving: Serving) {
    serving.process.signal("KILL");
    ended(&mut serving.process).await;
}

/// An installation with sales by `paypal`.
async fn selling_installation(paypal: &PayPal, folder: &std::path::Path) -> Installation {
    let ca = folder.join("paypal-ca.pem");
    std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
    // The commands for the account run without the PayPal settings. The PayPal settings are written afterwards.
    let installation = Installation::of(Setup::with("")).await;
    let text = std::fs::read_to_string(&installation.config).expect("settings");
    let sells = format!("{text}\n{}", selling(paypal, &ca));
    std::fs::write(&installation.config, sells).expect("the folder takes files");
    installation
}

/// A single subscription, a single charge, and a single payment in balanced books.
pub(super) fn bought_once(paypal: &PayPal, installation: &Installation) {
    assert_eq!(paypal.subscriptions().len(), 1, "made once");
    assert_eq!(paypal.charged_cents(), 19_900, "charged once");
    let account: AccountId = installation.account.parse().expect("an id");
    let store = sqlite::open_read(&installation.database()).expect("the store opens");
    let payments = store.payments_of(account, 10).expect("readable");
    assert_eq!(payments.len(), 1, "and noted once");
    drop(store);
    audited(&installation.database());
}

/// The process is killed after the challenge, after the approval, during reconciliation, with a lost response of PayPal, and after the
/// response. The buyer repeats the request, and has the plan for a single payment of a single subscription.
#[tokio::test]
async fn an_mpp_purchase_survives_a_kill_at_each_step() {
    let paypal = PayPal::start().await;
    let folder = tollgate_testing::tempdir().expect("a folder");
    let installation = selling_installation(&paypal, folder.path()).await;

    // Killed while the subscription is being created; the response is lost.
    paypal.fault(Fault::once(Operation::Subscribe, Effect::LoseAnswer));
    let serving = serve(&installation).await;
    let lost = ask(&Client::new(&serving.url), &installation.key).await;
    assert_eq!(lost.status, 503, "{}", lost.text());
    kill(serving).await;

    let serving = serve(&installation).await;
    let offered = ask(&Client::new(&serving.url), &installation.key).await;
    assert_eq!(offered.status, 402, "{}", offered.text());
    let offer = Offer::of(&offered);
    kill(serving).await;

    let serving = serve(&installation).await;
    let client = Client::new(&serving.url);
    let waits = submit(&client, &installation.key, &offer.credential(), BODY).await;
    assert_eq!(waits.status, 402, "{}", waits.text());
    assert_eq!(waits.json()["payment_state"], "approval_pending");
    assert!(paypal.agree(&offer.subscription).await);
    kill(serving).await;

    // Killed before the read of the request, during the answer, or afterwards.
    for _ in 0..3 {
        let serving = serve(&installation).await;
        let client = Client::new(&serving.url);
        let bearer = format!("Bearer {}", installation.key);
        let mut request = client.request("POST", crate::pay::mpp::MPP, BODY.into());
        let payment = format!("Payment {}", offer.credential());
        for (name, value) in [("authorization", payment), ("x-svc-authorization", bearer)] {
            let value = value.parse().expect("a value");
            request.headers_mut().insert(name, value);
        }
        let asked = tokio::spawn(async move { client.try_send(request).await });
        kill(serving).await;
        // Answered or interrupted: the buyer does not know the outcome.
        let _ = asked.await;
    }

    let serving = serve(&installation).await;
    let client = Client::new(&serving.url);
    let bought = submit(&client, &installation.key, &offer.credential(), BODY).await;
    assert_eq!(bought.status, 200, "{}", bought.text());
    assert_eq!(bought.json()["subscription"]["status"], "active");
    let receipt = bought
        .header("payment-receipt")
        .expect("a receipt")
        .to_owned();
    kill(serving).await;

    let mut serving = serve(&installation).await;
    let client = Client::new(&serving.url);
    let again = submit(&client, &installation.key, &offer.credential(), BODY).await;
    assert_eq!(again.status, 200, "{}", again.text());
    assert_eq!(again.header("payment-receipt"), Some(&*receipt));
    serving.process.signal("TERM");
    ended(&mut serving.process).await;

    bought_once(&paypal, &installation);
}

/// A platform begins a checkout, the checkout's page leads the owner to PayPal, and a program buys with MPP beside the checkout. The
/// process is killed after every step. The purchases end in a single subscription.
#[tokio::test]
async fn a_purchase_begun_as_a_checkout_and_ended_with_mpp_survives_a_kill_at_each_step() {
    let paypal = PayPal::start().await;
    let folder = tollgate_testing::tempdir().expect("a folder");
    let installation = selling_installation(&paypal, folder.path()).await;
    let account: AccountId = installation.account.parse().expect("an id");
    let session = super::credits::sign_in(&installation.database(), account).await;

    let serving = serve(&installation).await;
    let begun = serving
        .client(&installation)
        .post("/ucp/v1/checkout-sessions", &json!({}))
        .await;
    assert_eq!(begun.status, 201, "{}", begun.text());
    let path = |url: &str, from: &str| url[url.find(from).expect("a path of ours")..].to_owned();
    let page = begun.json()["continue_url"]
        .as_str()
        .expect("a page")
        .to_owned();
    let page = path(&page, "/commerce/");
    let checkout = path(begun.header("location").expect("its address"), "/ucp/");
    kill(serving).await;

    let serving = serve(&installation).await;
    let mut browser = Browser::holding(&serving.url, &session);
    let shown = browser.get(&page).await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    let sent = browser.submit(&page, &[]).await;
    assert_eq!(sent.status, 303, "{}", sent.text());
    kill(serving).await;

    let serving = serve(&installation).await;
    let offered = ask(&Client::new(&serving.url), &installation.key).await;
    assert_eq!(offered.status, 402, "{}", offered.text());
    let offer = Offer::of(&offered);
    assert!(paypal.agree(&offer.subscription).await);
    kill(serving).await;

    let serving = serve(&installation).await;
    let client = Client::new(&serving.url);
    let bought = submit(&client, &installation.key, &offer.credential(), "").await;
    assert_eq!(bought.status, 200, "{}", bought.text());
    assert!(bought.header("payment-receipt").is_some());
    kill(serving).await;

    let mut serving = serve(&installation).await;
    let checkout = serving.client(&installation).get(&checkout).await;
    assert_eq!(checkout.status, 200, "{}", checkout.text());
    assert_eq!(checkout.json()["status"], "completed");
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
    bought_once(&paypal, &installation);
}
