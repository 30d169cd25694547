//! Kills at every step of a checkout: repeated requests lead to the plan, and a single subscription is charged.

use serde_json::{Value, json};
use tollgate_money::AccountId;
use tollgate_testing::Client;
use tollgate_testing::paypal::{Effect, Fault, Operation, PayPal};

use super::credits::sign_in;
use super::installation::{Installation, Serving, ended};
use crate::credits::{settings, variables};
use crate::rig::{Browser, Setup, audited};
use crate::ucp::{AGENT, PROTOCOL, Platform, payment, plan};

/// The step before the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begun,
    Led,
    Agreed,
    /// PayPal's response is lost; the process is killed.
    Asked,
    Completed,
}

struct UcpRig {
    installation: Installation,
    paypal: PayPal,
    serving: Serving,
}

impl UcpRig {
    async fn serve(installation: &Installation) -> Serving {
        let mut command = installation.command(&["serve"]);
        command.envs(variables());
        installation.serve_as(command).await
    }

    fn platform(&self) -> Platform {
        Platform::of(Client::new(&self.serving.url).with_key(&self.installation.key))
    }

    async fn begin(&self) -> Value {
        let fields = [AGENT, ("idempotency-key", "begin")];
        let answer = self
            .platform()
            .send("POST", PROTOCOL, Some(&plan()), &fields)
            .await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()
    }

    async fn complete(&self, session: &Value) -> (u16, Value) {
        let id = session["id"].as_str().expect("an id");
        let fields = [AGENT, ("idempotency-key", "complete")];
        let path = format!("{PROTOCOL}/{id}/complete");
        let answer = self
            .platform()
            .send("POST", &path, Some(&payment()), &fields)
            .await;
        (answer.status, answer.json())
    }

    async fn kill(&mut self) {
        self.serving.process.signal("KILL");
        ended(&mut self.serving.process).await;
        self.serving = UcpRig::serve(&self.installation).await;
    }
}

#[tokio::test]
async fn a_checkout_survives_a_kill_at_every_step_and_charges_once() {
    for step in [
        Step::Begun,
        Step::Led,
        Step::Agreed,
        Step::Asked,
        Step::Completed,
    ] {
        let paypal = PayPal::start().await;
        let folder = tollgate_testing::tempdir().expect("a folder");
        let ca = folder.path().join("paypal-ca.pem");
        std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
        // The commands for the account run without the PayPal settings. The PayPal settings are written afterwards.
        let installation = Installation::of(Setup::with("")).await;
        let text = std::fs::read_to_string(&installation.config).expect("settings");
        let with_paypal = format!("{text}\n{}", settings(&paypal, &ca));
        std::fs::write(&installation.config, with_paypal).expect("the folder takes files");
        let account: AccountId = installation.account.parse().expect("an id");
        let signed_in = sign_in(&installation.database(), account).await;
        let serving = UcpRig::serve(&installation).await;
        let mut fixture = UcpRig {
            installation,
            paypal,
            serving,
        };

        let session = fixture.begin().await;
        if step == Step::Begun {
            fixture.kill().await;
            assert_eq!(
                fixture.begin().await,
                session,
                "the same checkout is returned"
            );
        }
        let path = format!(
            "/commerce/continue/{}",
            session["id"].as_str().expect("an id")
        );
        let mut browser = Browser::holding(&fixture.serving.url, &signed_in);
        browser.get(&path).await;
        let sent = browser.submit(&path, &[]).await;
        assert_eq!(sent.status, 303, "{step:?}: {}", sent.text());
        if step == Step::Led {
            fixture.kill().await;
            let mut browser = Browser::holding(&fixture.serving.url, &signed_in);
            let page = browser.get(&path).await;
            assert!(
                page.text().contains("Continue to PayPal"),
                "{}",
                page.text()
            );
        }
        let made = fixture.paypal.subscriptions();
        assert_eq!(made.len(), 1, "{step:?}: one subscription at PayPal");
        assert!(fixture.paypal.agree(&made[0].id).await);
        if step == Step::Agreed {
            fixture.kill().await;
        }
        if step == Step::Asked {
            fixture
                .paypal
                .fault(Fault::once(Operation::Transactions, Effect::LoseAnswer));
            // The request is repeated after every response.
            fixture.complete(&session).await;
            fixture.kill().await;
        }
        let (status, first) = fixture.complete(&session).await;
        assert_eq!(
            (status, &first["status"]),
            (200, &json!("completed")),
            "{step:?}: {first}"
        );
        if step == Step::Completed {
            fixture.kill().await;
        }
        let (status, again) = fixture.complete(&session).await;
        assert_eq!((status, again), (200, first), "{step:?}: the same answer");
        assert_eq!(
            fixture.paypal.charged_cents(),
            19_900,
            "{step:?}: charged once"
        );
        assert_eq!(fixture.paypal.subscriptions().len(), 1, "{step:?}");
        fixture.serving.process.signal("TERM");
        ended(&mut fixture.serving.process).await;
        audited(&fixture.installation.database());
    }
}
