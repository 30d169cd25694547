//! Kills while a subscription is created, cancelled and refunded.

use std::path::Path;

use serde_json::{Value, json};
use tollgate_money::AccountId;
use tollgate_store::{MandateState, PaymentStatus, sqlite};
use tollgate_testing::paypal::{Effect, Fault, Operation, PayPal};
use tollgate_testing::within;

use super::credits::sign_in;
use super::installation::{Installation, Serving, ended};
use crate::credits::{settings, variables};
use crate::rig::{Browser, Setup, audited, poll};

async fn serve(installation: &Installation, paypal: &PayPal) -> Serving {
    let mut command = installation.command(&["serve"]);
    command.envs(variables());
    let serving = installation.serve_as(command).await;
    paypal.send_notices_to(&format!("{}/webhooks/paypal", serving.url));
    serving
}

async fn kill(mut serving: Serving) {
    serving.process.signal("KILL");
    ended(&mut serving.process).await;
}

/// The states of an account's mandates, newest first, and the cents of payments with the status paid.
fn stored(database: &Path, account: AccountId) -> (Vec<MandateState>, i64) {
    let store = sqlite::open_read(database).expect("the store opens");
    let rows = store.mandates_of(account, 10).expect("readable");
    let payments = store.payments_of(account, 10).expect("readable");
    let paid = payments
        .iter()
        .filter(|row| row.status == PaymentStatus::Paid);
    (
        rows.iter().map(|row| row.state).collect(),
        paid.map(|row| row.amount.cents()).sum(),
    )
}

/// An installation with `paypal` in the settings, and the folder needed by the settings.
async fn installation(paypal: &PayPal) -> (Installation, tollgate_testing::TempDir) {
    let folder = tollgate_testing::tempdir().expect("a folder");
    let ca = folder.path().join("paypal-ca.pem");
    std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
    // The commands for the account run without the PayPal settings. The PayPal settings are written afterwards.
    let installation = Installation::of(Setup::with("")).await;
    let text = std::fs::read_to_string(&installation.config).expect("settings");
    let with_paypal = format!("{text}\n{}", settings(paypal, &ca));
    std::fs::write(&installation.config, with_paypal).expect("the folder takes files");
    (installation, folder)
}

/// The process is killed during calls to PayPal: creation of the subscription, reconciliation of the first payment, cancellation,
/// resumption. The next run continues, and the buyer has paid once.
#[tokio::test]
async fn purchases_interrupted_by_a_kill_are_completed_at_the_next_start() {
    let paypal = PayPal::start().await;
    let (installation, _folder) = installation(&paypal).await;
    let account: AccountId = installation.account.parse().expect("an id");
    let session = sign_in(&installation.database(), account).await;
    let database = installation.database();

    // Created at PayPal; the response is lost.
    paypal.fault(Fault::once(Operation::Subscribe, Effect::LoseAnswer));
    let serving = serve(&installation, &paypal).await;
    let mut browser = Browser::holding(&serving.url, &session);
    browser.get("/plan").await;
    let lost = browser.submit("/plan/begin", &[]).await;
    assert_eq!(lost.status, 503, "{}", lost.text());
    kill(serving).await;
    assert_eq!(stored(&database, account), (vec![MandateState::Created], 0));

    let serving = serve(&installation, &paypal).await;
    let mut browser = Browser::holding(&serving.url, &session);
    browser.get("/plan").await;
    let begun = browser.submit("/plan/begin", &[]).await;
    assert_eq!(begun.status, 303, "{}", begun.text());
    let [subscription] = &paypal.subscriptions()[..] else {
        panic!("one subscription was made");
    };
    let id = subscription.id.clone();
    assert_eq!(stored(&database, account), (vec![MandateState::Open], 0));

    // Approved and charged, the event is delivered, and PayPal cannot be read before the kill.
    paypal.fault(Fault::once(Operation::Transactions, Effect::Unavailable).times(u32::MAX));
    assert!(paypal.agree(&id).await);
    kill(serving).await;
    assert_eq!(paypal.charged_cents(), 19_900, "the money is taken");
    assert_eq!(stored(&database, account).1, 0, "and not noted");
    paypal.no_faults();
    let serving = serve(&installation, &paypal).await;
    let active = || stored(&database, account) == (vec![MandateState::Active], 19_900);
    within("the payment to be noted", poll(active)).await;

    // The owner cancels and resumes the mandate. PayPal does not act before the end of the process.
    let mut serving = serving;
    for (path, before, state, after) in [
        (
            "/plan/cancel",
            "ACTIVE",
            MandateState::CancelAtEnd,
            "SUSPENDED",
        ),
        (
            "/plan/resume",
            "SUSPENDED",
            MandateState::Resuming,
            "ACTIVE",
        ),
    ] {
        paypal.fault(Fault::once(Operation::End, Effect::Unavailable).times(u32::MAX));
        let mut browser = Browser::holding(&serving.url, &session);
        browser.get(path).await;
        let sent = browser.submit(path, &[]).await;
        assert_eq!(sent.status, 303, "{}", sent.text());
        kill(serving).await;
        assert_eq!(paypal.subscription(&id).status, before);
        assert_eq!(stored(&database, account), (vec![state], 19_900));
        paypal.no_faults();
        serving = serve(&installation, &paypal).await;
        let done = || paypal.subscription(&id).status == after;
        within(path, poll(done)).await;
    }
    let active = || stored(&database, account) == (vec![MandateState::Active], 19_900);
    within("the confirmation to be noted", poll(active)).await;
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
    assert_eq!(paypal.subscriptions().len(), 1, "made once");
    assert_eq!(paypal.charged_cents(), 19_900, "charged once");
    audited(&database);
}

#[tokio::test]
async fn suspending_an_account_names_its_subscription_and_can_cancel_it() {
    let paypal = PayPal::start().await;
    let (installation, _folder) = installation(&paypal).await;
    let account: AccountId = installation.account.parse().expect("an id");
    let session = sign_in(&installation.database(), account).await;
    let database = installation.database();
    let mut serving = serve(&installation, &paypal).await;
    let mut browser = Browser::holding(&serving.url, &session);
    browser.get("/plan").await;
    let begun = browser.submit("/plan/begin", &[]).await;
    assert_eq!(begun.status, 303, "{}", begun.text());
    let id = paypal.subscriptions()[0].id.clone();
    assert!(paypal.agree(&id).await);
    let active = || stored(&database, account) == (vec![MandateState::Active], 19_900);
    within("the payment to be noted", poll(active)).await;
    for (more, is_ending) in [(None, false), (Some("--end-plan"), true)] {
        let words = [
            "account",
            "suspend",
            "--account",
            &installation.account,
            "--json",
        ];
        let mut command = installation.command(&words);
        command.args(more).envs(variables());
        let mut process = installation.spawn(command);
        assert!(ended(&mut process).await.success(), "{}", process.output());
        let output = process.output();
        let line = output.lines().find(|line| line.starts_with('{'));
        let output: Value = serde_json::from_str(line.expect("JSON")).expect("JSON");
        assert_eq!(output["status"], "suspended");
        if let Some(named) = output.get("paypal_subscription") {
            assert_eq!(
                *named,
                json!({"id": id, "is_ending": is_ending}),
                "{more:?}"
            );
        } else {
            assert!(is_ending, "it is named while it is charged");
        }
    }
    let over = || stored(&database, account) == (vec![MandateState::Ended], 19_900);
    within("the end of it", poll(over)).await;
    assert_eq!(paypal.subscription(&id).status, "CANCELLED");
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
    audited(&database);
}
