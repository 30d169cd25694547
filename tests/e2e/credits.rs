//! Top-ups with PayPal: under every fault, the ledger has exactly the payments captured and not refunded by PayPal.

use tollgate::config::Environment;
use tollgate_money::{AccountId, MICROS_PER_CREDIT};
use tollgate_testing::paypal::{
    CLIENT_ID, CLIENT_SECRET, Delivery, Effect, Event, Fault, Operation, PayPal,
};
use tollgate_testing::{Answer, Certificate, Script, within};

use crate::rig::{Browser, CHAT, PRICE_OF_A_CHAT, PROVIDER_KEY, Rig, SECRETS, Setup, chat};

/// A gateway, a stand-in for PayPal, and a signed-in browser of an account without credits.
pub(crate) struct PayPalRig {
    pub(crate) rig: Rig,
    pub(crate) paypal: PayPal,
    pub(crate) browser: Browser,
    account: AccountId,
}

/// Settings for a gateway with `paypal`; `ca` is the file of the certificate authority of `paypal`.
pub(crate) fn settings(paypal: &PayPal, ca: &std::path::Path) -> String {
    format!(
        "[payments.paypal]\nbase_url = '{}'\nclient_id_env = 'PAYPAL_ID'\nclient_secret_env = 'PAYPAL_SECRET'\n\
         plan_id = '{}'\nwebhook_id = '{}'\nca_file = '{}'\n",
        paypal.url(),
        tollgate_testing::paypal::PLAN_ID,
        tollgate_testing::paypal::WEBHOOK_ID,
        ca.display()
    )
}

/// The environment variables of the settings.
pub(crate) fn variables() -> [(&'static str, &'static str); 2] {
    SECRETS.used("the client secret for PayPal", CLIENT_SECRET);
    [("PAYPAL_ID", CLIENT_ID), ("PAYPAL_SECRET", CLIENT_SECRET)]
}

impl PayPalRig {
    async fn open() -> PayPalRig {
        let paypal = PayPal::start().await;
        let folder = tollgate_testing::tempdir().expect("a folder");
        let ca = folder.path().join("paypal-ca.pem");
        std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
        let [id, secret] = variables();
        let rig = Setup {
            environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY), id, secret]),
            ..Setup::with(&settings(&paypal, &ca))
        }
        .start()
        .await;
        paypal.send_notices_to(&format!("{}/webhooks/paypal", rig.url()));
        let account = rig.new_account("free", 0).await;
        let browser = Browser::signed_in_as(&rig, account, "mara@example.com").await;
        PayPalRig {
            rig,
            paypal,
            browser,
            account,
        }
    }

    /// Orders an amount through the pages; returns the page with the way to PayPal, and the page's path.
    async fn order(&mut self, dollars: &str) -> (Answer, String) {
        order(&mut self.browser, dollars).await
    }

    /// Orders an amount through the pages; returns the answer to the form.
    async fn submit_order(&mut self, dollars: &str) -> Answer {
        submit_order(&mut self.browser, dollars).await
    }

    fn available(&self) -> i64 {
        self.rig.available(self.account)
    }

    /// Waits until the ledger has the payments captured by PayPal: a cent is a credit in the test.
    async fn wait_until_credited(&self) {
        let agrees = || self.available() == self.paypal.taken_cents() * MICROS_PER_CREDIT;
        within("the books and PayPal to agree", crate::rig::poll(agrees)).await;
    }

    async fn close(self) {
        assert_eq!(
            self.available(),
            self.paypal.taken_cents() * MICROS_PER_CREDIT,
            "what was taken is what was credited"
        );
        self.rig.finish().await;
    }
}

/// Orders an amount through the pages; returns the page with the way to PayPal, and the page's path.
pub(crate) async fn order(browser: &mut Browser, dollars: &str) -> (Answer, String) {
    let sent = submit_order(browser, dollars).await;
    assert_eq!(sent.status, 303, "{}", sent.text());
    let path = sent.header("location").expect("a way on").to_owned();
    (browser.get(&path).await, path)
}

async fn submit_order(browser: &mut Browser, dollars: &str) -> Answer {
    let path = format!("/credits/add?amount={dollars}");
    let review = browser.get(&path).await;
    assert_eq!(review.status, 200, "{}", review.text());
    let id = field(&review, "id");
    let fields = [("id", id.as_str()), ("amount", dollars)];
    browser.submit("/credits/add", &fields).await
}

/// Where PayPal sends the buyer of an order back to.
pub(crate) fn back_from_paypal(path: &str) -> String {
    format!("{path}?from=paypal")
}

/// The value of a field of a page's form.
pub(crate) fn field(page: &Answer, name: &str) -> String {
    let text = page.text();
    let mark = format!("name=\"{name}\" value=\"");
    let (_, after) = text
        .split_once(&mark)
        .unwrap_or_else(|| panic!("no field `{name}` in {text}"));
    after.split('"').next().unwrap_or_default().to_owned()
}

fn has(page: &Answer, pieces: &[&str]) {
    for piece in pieces {
        assert!(page.text().contains(piece), "{piece} in {}", page.text());
    }
}

/// The order of a page.
pub(crate) fn order_of(page: &Answer) -> String {
    let (_, after) = page
        .text()
        .split_once("/checkoutnow?token=")
        .unwrap_or_else(|| panic!("no link to PayPal in {}", page.text()));
    after.split('"').next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_rotated_secret_for_paypal_is_used_after_a_reload() {
    const TOKEN: &str = "6f0e9d8c7b6a59483726150f4e3d2c1b";
    let paypal = PayPal::start().await;
    let folder = tollgate_testing::tempdir().expect("a folder");
    let (ca, secret) = (folder.path().join("ca.pem"), folder.path().join("secret"));
    std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
    std::fs::write(&secret, "EARevokedSecret0a1b2c").expect("the folder takes files");
    let file = format!("client_secret_file = '{}'", secret.display());
    let settings = settings(&paypal, &ca).replace("client_secret_env = 'PAYPAL_SECRET'", &file);
    let token = "[[admin.token]]\nname = 'ops'\nrole = 'operate'\ntoken_env = 'ADMIN'";
    let [id, _] = variables();
    SECRETS.used("a token of the admin API", TOKEN);
    let admin = ("ADMIN", TOKEN);
    let rig = Setup {
        environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY), id, admin]),
        ..Setup::with(&format!("{settings}{token}"))
    }
    .start()
    .await;
    let account = rig.new_account("free", 0).await;
    let browser = Browser::signed_in_as(&rig, account, "mara@example.com").await;
    let mut fixture = PayPalRig {
        rig,
        paypal,
        browser,
        account,
    };
    let refused = fixture.submit_order("20").await;
    assert_eq!(refused.status, 503, "{}", refused.text());

    std::fs::write(&secret, CLIENT_SECRET).expect("the folder takes files");
    let operator = fixture.rig.operator().with_key(TOKEN);
    let nothing = serde_json::json!({});
    let reload = || operator.post("/admin/v1/settings/reload", &nothing);
    let reloaded = reload().await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    let changed = &reloaded.json()["changes"][0];
    assert_eq!(changed["key"], "payments.paypal.client_secret_file");
    assert_eq!(changed["needs_restart"], false);
    let (page, _) = fixture.order("50").await;
    order_of(&page);
    // A change of a value fixed at the start is still refused, also with a changed secret.
    std::fs::write(&ca, Certificate::for_localhost().ca_pem).expect("the folder takes files");
    std::fs::write(&secret, "EAnotherSecret0a1b2c3").expect("the folder takes files");
    let refused = reload().await;
    assert_eq!(refused.status, 409);
    assert!(
        refused.text().contains("payments.paypal.ca_file"),
        "{}",
        refused.text()
    );
    let (page, _) = fixture.order("100").await;
    order_of(&page);
    fixture.close().await;
}

#[tokio::test]
async fn credits_bought_with_paypal_are_in_the_ledger() {
    let mut fixture = PayPalRig::open().await;
    let page = fixture.browser.get("/credits/add").await;
    has(
        &page,
        &[
            "Amount",
            "20.00 USD, 2,000 credits",
            "Other amount",
            "from 5 to 500",
        ],
    );
    let refused = fixture
        .browser
        .get("/credits/add?amount=other&other=4.99")
        .await;
    assert_eq!(refused.status, 422);
    has(
        &refused,
        &["Enter an amount from 5 to 500 USD.", "value=\"4.99\""],
    );
    let review = fixture.browser.get("/credits/add?amount=20.00").await;
    has(
        &review,
        &[
            "You pay 20.00 USD now, once.",
            "2,000 credits",
            "Pay 20.00 USD with PayPal",
        ],
    );
    let (page, path) = fixture.order("20.00").await;
    has(
        &page,
        &["Continue to PayPal", "You pay 20.00 USD now, once."],
    );
    assert_eq!(fixture.available(), 0, "an order is no payment");
    let order = order_of(&page);
    // The return URL alone proves no payment.
    let waiting = fixture.browser.get(&back_from_paypal(&path)).await;
    let waiting = fixture.browser.follow(waiting).await;
    has(
        &waiting,
        &["Waiting for PayPal", "You will not be charged twice."],
    );
    assert_eq!(waiting.header("refresh"), Some("3"));
    assert_eq!(fixture.available(), 0);
    fixture.paypal.approve(&order).await;
    let back = fixture
        .browser
        .get(&format!("{path}?from=paypal&token={order}"))
        .await;
    let added = fixture.browser.follow(back).await;
    has(
        &added,
        &[
            "2,000 credits added",
            "You paid 20.00 USD, once.",
            "Receipt",
        ],
    );
    fixture.wait_until_credited().await;
    for _ in 0..3 {
        fixture.browser.get(&back_from_paypal(&path)).await;
        fixture.browser.get(&path).await;
    }
    let credits = fixture.browser.get("/credits").await;
    has(
        &credits,
        &[
            "Added by PayPal",
            "Available",
            "2,000.000000",
            "Receipts",
            "aria-label=\"Ledger\"",
        ],
    );
    assert_eq!(fixture.paypal.calls(Operation::Capture), 1);
    for event in ["begun", "captured"] {
        let name = format!("tollgate_purchases_total{{event=\"{event}\"}}");
        fixture.rig.metric_becomes(&name, 1).await;
    }
    fixture.close().await;
}

#[tokio::test]
async fn an_amount_typed_beside_the_choice_is_asked_for_or_both_are_named() {
    let mut fixture = PayPalRig::open().await;
    let preselected = "amount=20.00";
    for query in [
        &format!("{preselected}&other=75"),
        "other=75",
        "amount=other&other=75",
    ] {
        let review = fixture.browser.get(&format!("/credits/add?{query}")).await;
        has(&review, &["You pay 75.00 USD now, once."]);
    }
    let same = fixture
        .browser
        .get("/credits/add?amount=50.00&other=50")
        .await;
    has(&same, &["You pay 50.00 USD now, once."]);
    let refused = fixture
        .browser
        .get("/credits/add?amount=50.00&other=75")
        .await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    has(
        &refused,
        &["href=\"#amount\"", "href=\"#other\"", "value=\"75\""],
    );
    let fields = [("amount", "50.00"), ("other", "75")];
    let sent = fixture.browser.submit("/credits/add", &fields).await;
    assert_eq!(sent.status, 422, "nothing is ordered");
    fixture.close().await;
}

#[tokio::test]
async fn a_form_sent_twice_is_one_order_visible_to_its_buyer_only() {
    let mut fixture = PayPalRig::open().await;
    let review = fixture.browser.get("/credits/add?amount=10.00").await;
    let id = field(&review, "id");
    let fields = [("id", id.as_str()), ("amount", "10.00")];
    let one = fixture.browser.submit("/credits/add", &fields).await;
    let two = fixture.browser.submit("/credits/add", &fields).await;
    assert_eq!(one.header("location"), two.header("location"));
    assert_eq!(fixture.paypal.orders().len(), 1);
    let stranger = fixture.rig.new_account("free", 0).await;
    let mut stranger = Browser::signed_in_as(&fixture.rig, stranger, "eve@example.com").await;
    let path = one.header("location").expect("a way on").to_owned();
    assert_eq!(stranger.get(&path).await.status, 404);
    stranger.get("/credits/add?amount=10.00").await;
    let taken = stranger.submit("/credits/add", &fields).await;
    assert_eq!(taken.header("location"), Some("/credits/add"));
    assert_eq!(fixture.paypal.orders().len(), 1);
    fixture.close().await;
}

#[tokio::test]
async fn faults_of_paypal_never_charge_or_credit_twice() {
    use Effect::{FailAfter, LoseAnswer, LoseCall, TooMany, Unauthorized, Unavailable};
    for operation in [Operation::Capture, Operation::Read] {
        for effect in [
            LoseAnswer,
            LoseCall,
            FailAfter,
            Unavailable,
            TooMany,
            Unauthorized,
        ] {
            let mut fixture = PayPalRig::open().await;
            let (page, path) = fixture.order("20.00").await;
            fixture.paypal.fault(Fault::once(operation, effect));
            let order = order_of(&page);
            // The notification of the approval and the returning buyer trigger a reconciliation at once.
            tokio::join!(
                fixture.paypal.approve(&order),
                visit(fixture.browser.clone(), format!("{path}?from=paypal"))
            );
            let credited = || fixture.available() == 2_000 * MICROS_PER_CREDIT;
            within("the credits", crate::rig::poll(credited)).await;
            assert_eq!(
                fixture.paypal.taken_cents(),
                2_000,
                "{operation:?} {effect:?}"
            );
            fixture.close().await;
        }
    }
}

#[tokio::test]
async fn an_order_that_paypal_fails_to_create_is_free_and_can_be_repeated() {
    let mut fixture = PayPalRig::open().await;
    for effect in [Effect::LoseAnswer, Effect::Unavailable, Effect::StrangeLink] {
        fixture.paypal.fault(Fault::once(Operation::Create, effect));
        let review = fixture.browser.get("/credits/add?amount=20.00").await;
        let id = field(&review, "id");
        let fields = [("id", id.as_str()), ("amount", "20.00")];
        let failed = fixture.browser.submit("/credits/add", &fields).await;
        assert_eq!(failed.status, 503, "{effect:?}");
        has(
            &failed,
            &["PayPal is not answering at the moment. Nothing was charged."],
        );
        assert_eq!(field(&failed, "id"), id, "the same purchase");
    }
    assert_eq!(fixture.available(), 0);
    fixture.close().await;
}

#[tokio::test]
async fn an_order_refused_by_paypal_ends_and_its_page_shows_that() {
    let mut fixture = PayPalRig::open().await;
    fixture
        .paypal
        .fault(Fault::once(Operation::Create, Effect::Refuse));
    let (page, _) = fixture.order("20.00").await;
    assert_eq!(page.status, 200);
    assert_eq!(fixture.paypal.orders().len(), 0);
    has(&page, &["Nothing was charged."]);
    fixture.close().await;
}

#[tokio::test]
async fn unfinished_purchases_are_limited() {
    let mut fixture = PayPalRig::open().await;
    for _ in 0..10 {
        fixture.order("10.00").await;
    }
    let review = fixture.browser.get("/credits/add?amount=10.00").await;
    let id = field(&review, "id");
    let fields = [("id", id.as_str()), ("amount", "10.00")];
    let refused = fixture.browser.submit("/credits/add", &fields).await;
    assert_eq!(refused.status, 422);
    has(
        &refused,
        &["Too many purchases are unfinished. Nothing was charged."],
    );
    assert_eq!(fixture.paypal.orders().len(), 10);
    fixture.close().await;
}

#[tokio::test]
async fn a_declined_payment_method_leads_back_to_paypal() {
    let mut fixture = PayPalRig::open().await;
    let (page, path) = fixture.order("20.00").await;
    let order = order_of(&page);
    fixture.paypal.send_no_notices();
    fixture
        .paypal
        .fault(Fault::once(Operation::Capture, Effect::Decline));
    fixture.paypal.approve(&order).await;
    let back = fixture.browser.get(&back_from_paypal(&path)).await;
    let declined = fixture.browser.follow(back).await;
    has(
        &declined,
        &[
            "PayPal could not collect the payment. Nothing was charged.",
            "Continue to PayPal",
        ],
    );
    fixture.paypal.approve(&order).await;
    let back = fixture.browser.get(&back_from_paypal(&path)).await;
    has(
        &fixture.browser.follow(back).await,
        &["2,000 credits added"],
    );
    fixture.close().await;
}

#[tokio::test]
async fn a_pending_capture_is_awaited_and_its_refusal_is_shown() {
    for (arrives, says) in [
        (true, "2,000 credits added"),
        (
            false,
            "PayPal did not complete the payment. Nothing was charged.",
        ),
    ] {
        let mut fixture = PayPalRig::open().await;
        let (page, path) = fixture.order("20.00").await;
        let order = order_of(&page);
        fixture
            .paypal
            .fault(Fault::once(Operation::Capture, Effect::Pending));
        fixture.paypal.lag(0);
        fixture.paypal.approve(&order).await;
        let back = fixture.browser.get(&back_from_paypal(&path)).await;
        has(
            &fixture.browser.follow(back).await,
            &["Waiting for PayPal", "can take days"],
        );
        assert_eq!(fixture.available(), 0);
        assert!(fixture.paypal.resolve(&order, arrives).await);
        let over = || {
            let state = fixture.rig.books.store.top_ups_open();
            state.expect("readable") == 0
        };
        within("the end of the purchase", crate::rig::poll(over)).await;
        has(&fixture.browser.get(&path).await, &[says]);
        fixture.close().await;
    }
}

#[tokio::test]
async fn repeated_webhook_events_count_once_and_forged_ones_are_refused() {
    let mut fixture = PayPalRig::open().await;
    let (page, _) = fixture.order("20.00").await;
    let order = order_of(&page);
    fixture.paypal.send_no_notices();
    fixture.paypal.approve(&order).await;
    fixture
        .paypal
        .send_notices_to(&format!("{}/webhooks/paypal", fixture.rig.url()));
    let event = Event {
        id: Some(String::from("WH-ONE")),
        ..Event::new("CHECKOUT.ORDER.APPROVED", &order)
    };
    for delivery in [
        Delivery::Unsigned,
        Delivery::WrongSignature,
        Delivery::Respaced,
        Delivery::StrangeCertificate,
        Delivery::OtherWebhook,
        Delivery::Old,
    ] {
        assert_eq!(
            fixture.paypal.notify(&event, delivery).await,
            400,
            "{delivery:?}"
        );
    }
    assert_eq!(fixture.paypal.calls(Operation::Certificate), 1);
    // Later events first, and every event twice.
    let early = Event::new("PAYMENT.CAPTURE.COMPLETED", &order);
    for event in [&early, &event, &event, &early] {
        assert_eq!(fixture.paypal.notify(event, Delivery::Good).await, 200);
    }
    fixture.wait_until_credited().await;
    let credited = || fixture.available() == 2_000 * MICROS_PER_CREDIT;
    within("the credits", crate::rig::poll(credited)).await;
    assert!(
        fixture
            .rig
            .metric("tollgate_payment_notices_total{result=\"known\"}")
            .await
            >= 1
    );
    assert_eq!(
        fixture
            .rig
            .metric("tollgate_payment_notices_total{result=\"refused\"}")
            .await,
        6
    );
    let unknown = Event::new("CHECKOUT.ORDER.APPROVED", "5O404");
    assert_eq!(fixture.paypal.notify(&unknown, Delivery::Good).await, 200);
    fixture.close().await;
}

#[tokio::test]
async fn an_inconsistent_paypal_response_is_never_credited() {
    let mut fixture = PayPalRig::open().await;
    let (page, path) = fixture.order("20.00").await;
    let order = order_of(&page);
    fixture.paypal.send_no_notices();
    fixture
        .paypal
        .fault(Fault::once(Operation::Read, Effect::StrangeAmount).times(1));
    fixture.paypal.approve(&order).await;
    let back = fixture.browser.get(&back_from_paypal(&path)).await;
    has(
        &fixture.browser.follow(back).await,
        &["PayPal did not complete the payment. Nothing was charged."],
    );
    assert_eq!(
        fixture.paypal.calls(Operation::Capture),
        0,
        "nothing is taken"
    );
    fixture.close().await;
}

#[tokio::test]
async fn a_refunded_capture_removes_its_credits() {
    let mut fixture = PayPalRig::open().await;
    let (page, _) = fixture.order("20.00").await;
    let order = order_of(&page);
    fixture.paypal.approve(&order).await;
    let credited = || fixture.available() == 2_000 * MICROS_PER_CREDIT;
    within("the credits", crate::rig::poll(credited)).await;
    // The buyer does not return and no reconciliation is due for a day: the webhook event alone triggers the reconciliation.
    for (cents, left) in [(500, 1_500), (1_500, 0)] {
        assert!(fixture.paypal.refund(&order, cents).await);
        let taken = || fixture.available() == left * MICROS_PER_CREDIT;
        within("the credits go back", crate::rig::poll(taken)).await;
    }
    fixture.wait_until_credited().await;
    has(
        &fixture.browser.get("/credits").await,
        &["Taken back: PayPal returned the payment"],
    );
    fixture.close().await;
}

/// The credits were spendable until the worker took the credits back: up to a second after the end of a stream.
#[tokio::test]
async fn credits_held_at_a_refund_are_spent_by_no_request() {
    const STREAMS: usize = 6;
    let mut fixture = PayPalRig::open().await;
    let (page, _) = fixture.order("20.00").await;
    let order = order_of(&page);
    fixture.paypal.approve(&order).await;
    let credited = || fixture.available() == 2_000 * MICROS_PER_CREDIT;
    within("the credits", crate::rig::poll(credited)).await;
    let key = fixture.rig.new_key(fixture.account, |_| {}).await.1;
    let client = fixture.rig.client().with_key(&key);
    fixture.rig.provider.script(Script::hold(2, "streams"));
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let stream = client.stream(CHAT, &chat(true)).await;
        assert_eq!(stream.status, 200);
        streams.push(stream);
    }
    // Credit without a hold goes back at once.
    assert!(fixture.paypal.refund(&order, 2_000).await);
    within("the refund", crate::rig::poll(|| fixture.available() == 0)).await;
    fixture.rig.provider.gate("streams").open();
    for mut stream in streams {
        let (events, _) = stream.rest().await;
        assert!(!events.is_empty());
        fixture.rig.add_expected_charge(PRICE_OF_A_CHAT);
        // The stream has freed more credit than the charge.
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 402, "{}", answer.text());
    }
    // Taken back by a task, after the holds have ended.
    fixture.wait_until_credited().await;
    fixture.close().await;
}

#[tokio::test]
async fn without_paypal_pages_show_grants_and_no_purchase() {
    let rig = Rig::start().await;
    let account = rig.new_account("free", 100 * MICROS_PER_CREDIT).await;
    let mut browser = Browser::signed_in_as(&rig, account, "mara@example.com").await;
    has(
        &browser.get("/credits/add").await,
        &["Credits cannot be bought here at the moment."],
    );
    has(
        &browser.get("/credits").await,
        &[
            "Granted by the operator",
            "100.000000",
            "aria-label=\"Ledger\"",
        ],
    );
    has(
        &browser.get("/plan").await,
        &[
            "Pro cannot be bought here at the moment.",
            "199.00 USD",
            "What Pro adds",
        ],
    );
    let body = serde_json::json!({});
    let answer = tollgate_testing::Client::new(&rig.url());
    assert_eq!(answer.post("/webhooks/paypal", &body).await.status, 404);
    rig.finish().await;
}

/// Opens a page with a separate browser.
async fn visit(mut browser: Browser, path: String) -> Answer {
    browser.get(&path).await
}
