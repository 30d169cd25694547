//! Completed and abandoned checkouts: the platform's responses, the charges at PayPal, and the granted plan.

use serde_json::{Value, json};
use tollgate::config::Environment;
use tollgate_money::AccountId;
use tollgate_testing::paypal::{Effect, Fault, Operation, PayPal, Purse};
use tollgate_testing::{Answer, Client, within};

use super::platform::{AGENT, PROTOCOL, Platform, SERVICE, give_plan, one, payment, plan};
use super::schemas::{CHECKOUT, assert_keeps_to};
use crate::credits::{settings, variables};
use crate::rig::{Browser, PROVIDER_KEY, Rig, Setup};

/// A gateway, a stand-in for PayPal, a platform with the credential of an account, and the owner's browser.
struct UcpRig {
    rig: Rig,
    paypal: PayPal,
    platform: Platform,
    browser: Browser,
    account: AccountId,
}

impl UcpRig {
    async fn open() -> UcpRig {
        UcpRig::with("").await
    }

    async fn with(more: &str) -> UcpRig {
        let paypal = PayPal::start().await;
        let folder = tollgate_testing::tempdir().expect("a folder");
        let ca = folder.path().join("paypal-ca.pem");
        std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
        let [id, secret] = variables();
        let rig = Setup {
            environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY), id, secret]),
            ..Setup::with(&format!("{more}\n{}", settings(&paypal, &ca)))
        }
        .start()
        .await;
        let account = rig.new_account("free", 0).await;
        let browser = Browser::signed_in_as(&rig, account, "mara@example.com").await;
        let (_, key) = rig
            .new_key(account, |key| key.label = String::from("notebook"))
            .await;
        let platform = Platform::of(Client::new(&rig.url()).with_key(&key));
        let fixture = UcpRig {
            rig,
            paypal,
            platform,
            browser,
            account,
        };
        fixture.sells().await;
        fixture
    }

    /// Waits until PayPal's plan was checked.
    async fn sells(&self) {
        let looked = || self.paypal.calls(Operation::Plan) > 0;
        within("a look at PayPal's plan", crate::rig::poll(looked)).await;
    }

    async fn begin(&self) -> Value {
        let answer = self.platform.post(PROTOCOL, &plan()).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()
    }

    async fn status(&self, session: &Value) -> Value {
        let answer = self.platform.get(&one(PROTOCOL, session)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_keeps_to(CHECKOUT, &answer.json());
        answer.json()["status"].clone()
    }

    async fn complete(&self, session: &Value, key: &str) -> Answer {
        let path = format!("{}/complete", one(PROTOCOL, session));
        let fields = [AGENT, ("idempotency-key", key)];
        self.platform
            .send("POST", &path, Some(&payment()), &fields)
            .await
    }

    /// The owner opens the page and starts the purchase; returns PayPal's subscription.
    async fn led(&mut self, session: &Value) -> String {
        let path = page_of(session);
        let page = self.browser.get(&path).await;
        has(
            &page,
            &[
                "Finish buying Pro",
                "199.00 USD each month",
                "notebook",
                "platform.example",
                "Continue with PayPal",
            ],
        );
        let sent = self.browser.submit(&path, &[]).await;
        assert_eq!(sent.status, 303, "{}", sent.text());
        let ready = self.browser.follow(sent).await;
        has(&ready, &["Continue to PayPal"]);
        let made = self.paypal.subscriptions();
        made.last().expect("a subscription").id.clone()
    }

    /// The owner returns from PayPal; the page of the final redirect.
    async fn back(&mut self, session: &Value) -> Answer {
        let back = self
            .browser
            .get(&format!("{}?from=paypal", page_of(session)))
            .await;
        assert_eq!(back.status, 303, "{}", back.text());
        self.browser.follow(back).await
    }

    fn is_active(&self) -> bool {
        let row = self
            .rig
            .books
            .store
            .subscription(self.account)
            .expect("readable");
        row.is_some_and(|row| row.is_active(tollgate_clock::Clock::system().now()))
    }

    async fn close(self) {
        let charged = self.paypal.charged_cents();
        let expected = if self.is_active() { 19_900 } else { 0 };
        assert_eq!(
            charged, expected,
            "what PayPal took is one month, or nothing"
        );
        self.rig.finish().await;
    }
}

/// The path of the page for a session's owner.
fn page_of(session: &Value) -> String {
    let url = session["continue_url"].as_str().expect("a page");
    let at = url.find("/commerce/").expect("a page of ours");
    url[at..].to_owned()
}

fn has(page: &Answer, pieces: &[&str]) {
    for piece in pieces {
        assert!(page.text().contains(piece), "{piece} in {}", page.text());
    }
}

#[tokio::test]
async fn an_owner_agrees_at_paypal_and_the_checkout_is_completed() {
    let mut fixture = UcpRig::open().await;
    let session = fixture.begin().await;
    assert_keeps_to(CHECKOUT, &session);
    assert_eq!(session["status"], "requires_escalation");
    assert_eq!(session["payment_state"], "approval_pending");
    assert_eq!(session["messages"][0]["severity"], "requires_buyer_review");
    let disclosed = session["messages"].as_array().expect("messages");
    assert!(
        disclosed
            .iter()
            .any(|one| one["presentation"] == "disclosure")
    );
    assert_eq!(
        fixture.paypal.calls(Operation::Subscribe),
        0,
        "nothing is asked of PayPal yet"
    );

    let early = fixture.complete(&session, "early").await;
    assert_eq!(
        (early.status, &early.json()["status"]),
        (200, &json!("requires_escalation"))
    );

    let subscription = fixture.led(&session).await;
    assert!(fixture.paypal.agree(&subscription).await);
    let page = fixture.back(&session).await;
    has(&page, &["Pro is active", "199.00 USD each month"]);
    let read = fixture.platform.get(&one(PROTOCOL, &session)).await;
    assert_keeps_to(CHECKOUT, &read.json());
    assert_eq!(read.json()["status"], "completed");
    assert!(
        read.json()["order"]["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("sub_"))
    );
    let permalink = read.json()["order"]["permalink_url"].clone();
    let product = fixture.platform.get("/commerce/products/svc-pro").await;
    assert_eq!(
        permalink,
        product.json()["purchase"]["paypal"],
        "below `base_url`"
    );
    assert_eq!(read.json().get("continue_url"), None);
    assert!(fixture.is_active());
    let again = fixture.begin().await;
    assert_eq!(
        again["order"],
        read.json()["order"],
        "no second subscription"
    );
    assert_eq!(fixture.paypal.calls(Operation::Subscribe), 1);
    fixture.close().await;
}

#[tokio::test]
async fn a_platform_completes_what_its_owner_agreed_to_and_may_ask_again() {
    let mut fixture = UcpRig::open().await;
    let session = fixture.begin().await;
    let subscription = fixture.led(&session).await;
    assert!(fixture.paypal.agree(&subscription).await);
    let first = fixture.complete(&session, "one").await;
    assert_eq!(first.status, 200, "{}", first.text());
    assert_keeps_to(CHECKOUT, &first.json());
    assert_eq!(first.json()["status"], "completed");
    let again = fixture.complete(&session, "one").await;
    assert_eq!(
        (again.status, &again.body),
        (200, &first.body),
        "the same answer"
    );
    let late = fixture.complete(&session, "two").await;
    assert_eq!(
        (late.status, &late.json()["code"]),
        (409, &json!("not_modifiable"))
    );
    fixture.close().await;
}

#[tokio::test]
async fn a_checkout_of_the_service_is_completed_in_its_own_form() {
    let mut fixture = UcpRig::open().await;
    let answer = fixture.platform.send("POST", SERVICE, None, &[]).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let session = answer.json();
    assert_eq!(session["status"], "incomplete");
    assert_eq!(
        session["ucp"]["capabilities"],
        json!(["dev.ucp.shopping.checkout"])
    );
    let path = page_of(&session);
    let page = fixture.browser.get(&path).await;
    has(&page, &["Finish buying Pro"]);
    let sent = fixture.browser.submit(&path, &[]).await;
    assert_eq!(sent.status, 303);
    let subscription = fixture.paypal.subscriptions()[0].id.clone();
    assert!(fixture.paypal.agree(&subscription).await);
    let read = fixture
        .platform
        .send("GET", &one(SERVICE, &session), None, &[])
        .await;
    assert_eq!(
        (read.status, &read.json()["status"]),
        (200, &json!("completed"))
    );
    fixture.close().await;
}

#[tokio::test]
async fn a_paypal_webhook_event_completes_an_unpolled_checkout() {
    let mut fixture = UcpRig::open().await;
    let session = fixture.begin().await;
    let subscription = fixture.led(&session).await;
    fixture
        .paypal
        .send_notices_to(&format!("{}/webhooks/paypal", fixture.rig.url()));
    assert!(fixture.paypal.agree(&subscription).await);
    let active = || fixture.is_active();
    within("the plan", crate::rig::poll(active)).await;
    assert_eq!(fixture.status(&session).await, "completed");
    fixture.close().await;
}

#[tokio::test]
async fn cancelling_one_checkout_leaves_what_another_relies_on() {
    let mut fixture = UcpRig::open().await;
    let (first, second) = (fixture.begin().await, fixture.begin().await);
    let subscription = fixture.led(&first).await;
    assert_eq!(fixture.led(&second).await, subscription, "one is offered");
    let path = format!("{}/cancel", one(PROTOCOL, &first));
    let cancelled = fixture.platform.post(&path, &json!({})).await;
    assert_eq!(
        (cancelled.status, &cancelled.json()["status"]),
        (200, &json!("canceled"))
    );
    let page = fixture.browser.get(&page_of(&first)).await;
    has(&page, &["This checkout has ended", "Nothing was charged"]);
    assert_eq!(fixture.paypal.calls(Operation::End), 0);
    assert!(fixture.paypal.agree(&subscription).await);
    // PayPal leads back to the first checkout. The first checkout has ended; the checkout's page does not deny a charge.
    let back = fixture.paypal.subscription(&subscription).return_url;
    assert!(
        back.contains(first["id"].as_str().expect("an id")),
        "{back}"
    );
    let page = fixture.back(&first).await;
    has(&page, &["Pro is active"]);
    assert!(!page.text().contains("Nothing was charged"));
    has(&fixture.back(&second).await, &["Pro is active"]);
    assert_eq!(fixture.status(&first).await, "canceled");
    assert_eq!(fixture.status(&second).await, "completed");
    fixture.close().await;
}

#[tokio::test]
async fn a_declined_approval_charges_nothing_and_can_be_repeated() {
    let mut fixture = UcpRig::open().await;
    let session = fixture.begin().await;
    let subscription = fixture.led(&session).await;
    let left = fixture
        .browser
        .get(&format!("{}?from=cancel", page_of(&session)))
        .await;
    has(
        &fixture.browser.follow(left).await,
        &[
            "You did not agree. Nothing was charged.",
            "Continue to PayPal",
        ],
    );
    has(
        &fixture.back(&session).await,
        &["Waiting for PayPal", "go back to PayPal"],
    );
    assert_eq!(fixture.status(&session).await, "requires_escalation");
    assert!(fixture.paypal.agree(&subscription).await);
    assert_eq!(
        fixture.complete(&session, "k").await.json()["status"],
        "completed"
    );
    fixture.close().await;
}

#[tokio::test]
async fn a_pending_payment_is_reported_as_pending() {
    let mut fixture = UcpRig::open().await;
    fixture.paypal.purse(Purse::Slow);
    let session = fixture.begin().await;
    let subscription = fixture.led(&session).await;
    assert!(fixture.paypal.agree(&subscription).await);
    let asked = fixture.complete(&session, "one").await;
    assert_eq!(
        asked.json()["status"],
        "complete_in_progress",
        "{}",
        asked.text()
    );
    assert_eq!(asked.json()["payment_state"], "processing");
    assert_keeps_to(CHECKOUT, &asked.json());
    let cancel = fixture
        .platform
        .post(&format!("{}/cancel", one(PROTOCOL, &session)), &json!({}))
        .await;
    assert_eq!(
        (cancel.status, &cancel.json()["code"]),
        (409, &json!("not_modifiable"))
    );
    has(
        &fixture.browser.get(&page_of(&session)).await,
        &["Waiting for PayPal"],
    );
    let second = fixture.begin().await;
    assert_eq!(
        second["status"], "complete_in_progress",
        "no second way to pay"
    );
    assert!(fixture.paypal.resolve_charge(&subscription, true).await);
    assert_eq!(
        fixture.complete(&session, "two").await.json()["status"],
        "completed"
    );
    assert_eq!(fixture.status(&second).await, "completed");
    fixture.close().await;
}

#[tokio::test]
async fn a_paypal_that_does_not_answer_is_not_guessed_about() {
    let mut fixture = UcpRig::open().await;
    let session = fixture.begin().await;
    let down = |operation| Fault {
        operation,
        effect: Effect::Unavailable,
        times: 3,
    };
    fixture.paypal.fault(down(Operation::Subscribe));
    let path = page_of(&session);
    fixture.browser.get(&path).await;
    let sent = fixture.browser.submit(&path, &[]).await;
    assert_eq!(sent.status, 503);
    has(&sent, &["PayPal is not answering", "Nothing was charged"]);
    fixture.paypal.no_faults();
    let subscription = fixture.led(&session).await;
    assert!(fixture.paypal.agree(&subscription).await);
    for _ in 0..4 {
        fixture.paypal.fault(down(Operation::Subscription));
    }
    let asked = fixture.complete(&session, "one").await;
    assert_eq!(asked.status, 503, "{}", asked.text());
    assert_eq!(asked.json()["error"]["code"], "payment_route_unavailable");
    assert_eq!(asked.json()["retry_action"], "retry_same");
    assert!(asked.header("retry-after").is_some());
    has(&fixture.back(&session).await, &["Waiting for PayPal"]);
    fixture.paypal.no_faults();
    let asked = fixture.complete(&session, "one").await;
    assert_eq!(
        (asked.status, &asked.json()["status"]),
        (200, &json!("completed")),
        "the same name is free for another try"
    );
    fixture.close().await;
}

#[tokio::test]
async fn the_checkout_page_requires_the_owners_session() {
    let mut fixture = UcpRig::open().await;
    let session = fixture.begin().await;
    let path = page_of(&session);
    let mut stranger = Browser::new(&fixture.rig);
    let sent = stranger.get(&path).await;
    assert_eq!(sent.status, 303);
    let to = sent.header("location").expect("a way on");
    assert!(
        to.starts_with("/sign-in?next=%2Fcommerce%2Fcontinue%2F"),
        "{to}"
    );
    let other = fixture.rig.new_account("free", 0).await;
    let mut other = Browser::signed_in_as(&fixture.rig, other, "noor@example.com").await;
    let page = other.get(&path).await;
    assert_eq!(page.status, 403);
    has(&page, &["This checkout belongs to another account"]);
    other.get("/plan").await;
    let sent = other.submit(&path, &[]).await;
    assert_eq!(sent.status, 403, "{}", sent.text());
    let unknown = fixture
        .browser
        .get(&format!("/commerce/continue/checkout_{}", "0".repeat(32)))
        .await;
    assert_eq!(unknown.status, 404);
    assert_eq!(fixture.paypal.calls(Operation::Subscribe), 0);
    fixture.close().await;
}

#[tokio::test]
async fn a_plan_bought_in_another_way_completes_the_checkout() {
    let mut fixture = UcpRig::open().await;
    let session = fixture.begin().await;
    give_plan(&fixture.rig, fixture.account).await;
    assert_eq!(fixture.status(&session).await, "completed");
    has(
        &fixture.browser.get(&page_of(&session)).await,
        &["Pro is active"],
    );
    assert_eq!(fixture.paypal.calls(Operation::Subscribe), 0);
    fixture.rig.finish().await;
}

#[tokio::test]
async fn twenty_equal_requests_at_once_begin_one_checkout() {
    let fixture = UcpRig::open().await;
    let fields = [AGENT, ("idempotency-key", "one")];
    let body = plan();
    let all = (0..20).map(|_| {
        fixture
            .platform
            .send("POST", PROTOCOL, Some(&body), &fields)
    });
    let answers = futures_util::future::join_all(all).await;
    let mut ids: Vec<String> = Vec::new();
    for answer in answers {
        match answer.status {
            201 => ids.push(answer.json()["id"].as_str().expect("an id").to_owned()),
            409 => assert_eq!(answer.json()["error"]["code"], "in_progress"),
            status => panic!("{status}: {}", answer.text()),
        }
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let kept = fixture
        .rig
        .books
        .store
        .checkouts_of(fixture.account, 30)
        .expect("readable");
    assert_eq!(kept.len(), 1);
    fixture.close().await;
}
