//! Subscriptions with PayPal: under every fault, the ledger has exactly the payments taken and not refunded by PayPal.

use std::cell::Cell;
use std::time::Duration;

use tollgate::GatewayBuilder;
use tollgate::config::Environment;
use tollgate_clock::{Clock, ManualClock, Timestamp};
use tollgate_money::AccountId;
use tollgate_store::{
    MandateRow, MandateState, PaymentStatus, SubscriptionRow, SubscriptionStatus,
};
use tollgate_testing::paypal::{Delivery, Effect, Event, Fault, Operation, PLAN_ID, PayPal, Purse};
use tollgate_testing::{Answer, within};

use crate::credits::{settings, variables};
use crate::rig::{Browser, PROVIDER_KEY, Rig, Setup, poll};

const PRICE: i64 = 19_900;
const DAY: Duration = Duration::from_secs(86_400);

/// A gateway and a stand-in for PayPal with a common clock, and a signed-in browser of an account without a plan.
pub(crate) struct PayPalRig {
    rig: Rig,
    pub(crate) paypal: PayPal,
    browser: Browser,
    account: AccountId,
    time: ManualClock,
    /// The time passed so far.
    passed: Cell<Duration>,
}

impl PayPalRig {
    pub(crate) async fn open() -> PayPalRig {
        PayPalRig::with("").await
    }

    async fn with(more: &str) -> PayPalRig {
        let paypal = PayPal::start().await;
        PayPalRig::beside(paypal, more).await
    }

    async fn beside(paypal: PayPal, more: &str) -> PayPalRig {
        let folder = tollgate_testing::tempdir().expect("a folder");
        let ca = folder.path().join("paypal-ca.pem");
        std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
        let [id, secret] = variables();
        let (clock, time) = Clock::manual(Clock::system().now());
        let rig = Setup {
            environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY), id, secret]),
            customise: Box::new(move |builder: GatewayBuilder| builder.clock(clock)),
            ..Setup::with(&format!("{}{more}", settings(&paypal, &ca)))
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
            time,
            passed: Cell::new(Duration::ZERO),
        }
    }

    /// Presses a button of the plan's page.
    pub(crate) async fn press(&mut self, path: &str) -> Answer {
        self.browser.get("/plan").await;
        self.browser.submit(path, &[]).await
    }

    /// Starts a purchase through the pages; returns the page with the way to PayPal, the page's path, and PayPal's subscription.
    async fn begin(&mut self) -> (Answer, String, String) {
        let sent = self.press("/plan/begin").await;
        assert_eq!(sent.status, 303);
        let path = sent.header("location").expect("a way on").to_owned();
        let page = self.browser.get(&path).await;
        has(&page, &["You pay 199.00 USD now, and again every month."]);
        let newest = self.paypal.subscriptions().pop().expect("it was made");
        (page, path, newest.id)
    }

    /// An agreed subscription, known to be paid.
    pub(crate) async fn bought(&mut self) -> String {
        let (_, _, id) = self.begin().await;
        assert!(self.paypal.agree(&id).await);
        self.becomes(MandateState::Active).await;
        id
    }

    fn mandates(&self) -> Vec<MandateRow> {
        let rows = self.rig.books.store.mandates_of(self.account, 10);
        rows.expect("readable")
    }

    fn mandate(&self) -> MandateRow {
        self.mandates().remove(0)
    }

    fn subscription(&self) -> Option<SubscriptionRow> {
        let row = self.rig.books.store.subscription(self.account);
        row.expect("readable")
    }

    async fn becomes(&self, state: MandateState) {
        let what = format!("the newest mandate to be {state:?}");
        within(&what, poll(|| self.mandate().state == state)).await;
    }

    /// Cents paid according to the ledger.
    fn paid_cents(&self) -> i64 {
        let rows = self.rig.books.store.payments_of(self.account, 100);
        let rows = rows.expect("readable");
        let paid = rows.iter().filter(|row| row.status == PaymentStatus::Paid);
        paid.map(|row| row.amount.cents()).sum()
    }

    /// Waits until the ledger has the payments charged and not refunded by PayPal.
    async fn wait_until_paid(&self, cents: i64) {
        let agree = || self.paid_cents() == cents && self.paypal.charged_cents() == cents;
        within("the books and PayPal to agree", poll(agree)).await;
    }

    fn now(&self) -> Timestamp {
        Clock::system().now() + self.passed.get()
    }

    /// Waits until PayPal shows a subscription in `status`. Meanwhile the gateway repeats failed requests to PayPal.
    async fn comes_to(&self, id: &str, status: &str) {
        let shown = || {
            self.wait(5);
            self.paypal.subscription(id).status == status
        };
        within(&format!("{id} to be {status}"), poll(shown)).await;
    }

    /// Seconds pass for the gateway: failed reads are due again.
    fn wait(&self, secs: u64) {
        let time = Duration::from_secs(secs);
        self.time.advance(time);
        self.passed.set(self.passed.get() + time);
    }

    /// Advances the clock of gateway and PayPal; the buyer signs in again.
    ///
    /// Gateway and PayPal stop at every charge: an event days old at the send would be refused by the gateway.
    async fn pass(&mut self, time: Duration) {
        let mut left = time;
        while let Some(step) = self.paypal.until_next_charge().filter(|step| *step <= left) {
            self.wait(step.as_secs());
            self.paypal.pass(step).await;
            left -= step;
        }
        self.wait(left.as_secs());
        self.paypal.pass(left).await;
        self.arrive().await;
    }

    /// The buyer signs in again.
    async fn arrive(&mut self) {
        let passed = self.passed.get();
        let address = format!("mara{}@example.com", passed.as_secs());
        let now = Clock::system().now() + passed;
        self.browser = Browser::signed_in_at(&self.rig, self.account, &address, now).await;
    }

    pub(crate) async fn close(self) {
        assert_eq!(self.paid_cents(), self.paypal.charged_cents());
        self.rig.finish().await;
    }
}

fn has(page: &Answer, pieces: &[&str]) {
    for piece in pieces {
        assert!(page.text().contains(piece), "{piece} in {}", page.text());
    }
}

/// Where PayPal sends a buyer back to.
fn back(path: &str, subscription: &str) -> String {
    format!("{path}?subscription_id={subscription}&ba_token=BA-1&token=EC-1")
}

#[tokio::test]
async fn a_subscription_bought_at_paypal_renews_each_month() {
    let mut fixture = PayPalRig::open().await;
    let page = fixture.browser.get("/plan").await;
    has(&page, &["Buy Pro for 199.00 USD a month"]);
    let review = fixture.browser.get("/plan/begin").await;
    has(&review, &["Pay with PayPal", "You can cancel at any time"]);
    let (page, path, id) = fixture.begin().await;
    has(
        &page,
        &[
            "Continue to PayPal",
            "/webapps/billing/subscriptions?ba_token=",
        ],
    );
    // A second press leads to the first subscription.
    let again = fixture.press("/plan/begin").await;
    assert_eq!(again.header("location"), Some(&*path));
    assert_eq!(fixture.paypal.calls(Operation::Subscribe), 1);

    assert!(fixture.paypal.agree(&id).await);
    let returned = fixture.browser.get(&back(&path, &id)).await;
    assert_eq!(returned.status, 303);
    let page = fixture.browser.get(&path).await;
    has(&page, &["You have Pro", &id]);
    fixture.wait_until_paid(PRICE).await;
    let page = fixture.browser.get("/plan").await;
    // Every page shows the date of the next charge, and not the end of grace.
    let row = fixture.subscription().expect("paid");
    let due = fixture.paypal.subscription(&id).next_charge.expect("due");
    let date = |at| tollgate_pages::format::date(at, row.created_at);
    let (due, end) = (date(due), date(row.period_end));
    assert_ne!(due, end, "a day of grace");
    let next = format!("Paid until {due}. PayPal charges 199.00 USD next on {due},");
    has(&page, &["Active", &next, "Cancel plan"]);
    for (path, wanted) in [
        ("/plan", &*next),
        ("/", &*next),
        (&*path, &*due),
        ("/plan/cancel", &*format!("You keep Pro until {due}.")),
    ] {
        let page = fixture.browser.get(path).await;
        has(&page, &[wanted]);
        assert!(!page.text().contains(&end), "{path}: {}", page.text());
    }

    for month in 2..=3 {
        fixture.pass(31 * DAY).await;
        fixture.wait_until_paid(month * PRICE).await;
        let row = fixture.subscription().expect("paid");
        assert!(row.is_active(fixture.rig_now()), "month {month}");
    }
    for event in ["begun", "activated"] {
        let name = format!("tollgate_mandates_total{{event=\"{event}\"}}");
        fixture.rig.metric_becomes(&name, 1).await;
    }
    fixture.close().await;
}

impl PayPalRig {
    fn rig_now(&self) -> Timestamp {
        self.mandate().updated_at
    }
}

#[tokio::test]
async fn a_renewal_is_found_without_its_webhook_event() {
    let mut fixture = PayPalRig::open().await;
    fixture.bought().await;
    fixture.paypal.send_no_notices();
    // Past the time of the next reconciliation: at the latest the day after the charge.
    fixture.pass(33 * DAY).await;
    let found = || {
        // After a reconciliation just before the charge, the next reconciliation is within the hour.
        fixture.wait(60);
        fixture.paid_cents() == 2 * PRICE
    };
    within("the renewal to be found", poll(found)).await;
    fixture.close().await;
}

#[tokio::test]
async fn a_first_payment_is_found_when_the_buyer_returns() {
    let mut fixture = PayPalRig::open().await;
    let (_, path, id) = fixture.begin().await;
    fixture.paypal.send_no_notices();
    assert!(fixture.paypal.agree(&id).await);
    fixture.browser.get(&back(&path, &id)).await;
    assert_eq!(fixture.mandate().state, MandateState::Active);
    fixture.close().await;
}

#[tokio::test]
async fn lost_responses_between_approval_and_plan_count_one_payment() {
    for operation in [Operation::Subscription, Operation::Transactions] {
        for effect in [
            Effect::LoseAnswer,
            Effect::LoseCall,
            Effect::FailAfter,
            Effect::Unavailable,
            Effect::TooMany,
        ] {
            let mut fixture = PayPalRig::open().await;
            let (_, path, id) = fixture.begin().await;
            fixture.paypal.fault(Fault::once(operation, effect));
            assert!(fixture.paypal.agree(&id).await);
            fixture.browser.get(&back(&path, &id)).await;
            let agree = || {
                fixture.wait(5);
                fixture.paid_cents() == PRICE
            };
            let what = format!("the payment after {operation:?} {effect:?}");
            within(&what, poll(agree)).await;
            fixture.close().await;
        }
    }
}

#[tokio::test]
async fn a_subscription_is_created_once_when_the_response_is_lost() {
    for effect in [Effect::LoseAnswer, Effect::LoseCall, Effect::FailAfter] {
        let mut fixture = PayPalRig::open().await;
        fixture
            .paypal
            .fault(Fault::once(Operation::Subscribe, effect));
        let lost = fixture.press("/plan/begin").await;
        assert_eq!(lost.status, 503, "{effect:?}");
        has(
            &lost,
            &["PayPal is not answering at the moment. Nothing was charged."],
        );
        let (_, _, id) = fixture.begin().await;
        assert_eq!(fixture.paypal.subscriptions().len(), 1, "{effect:?}");
        assert!(fixture.paypal.agree(&id).await);
        fixture.wait_until_paid(PRICE).await;
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_refused_approval_token_costs_nothing() {
    let mut fixture = PayPalRig::open().await;
    fixture.paypal.expire_tokens();
    fixture.bought().await;
    fixture.close().await;
}

#[tokio::test]
async fn an_active_subscription_without_a_payment_grants_nothing() {
    let mut fixture = PayPalRig::open().await;
    fixture.paypal.purse(Purse::Slow);
    let (_, path, id) = fixture.begin().await;
    assert!(fixture.paypal.agree(&id).await);
    fixture.becomes(MandateState::Agreed).await;
    assert!(fixture.subscription().is_none());
    let page = fixture.browser.get(&format!("{path}?back=1")).await;
    has(
        &page,
        &[
            "Waiting for PayPal",
            "has not confirmed the first payment yet",
        ],
    );
    // Meanwhile no other payment is offered.
    let again = fixture.press("/plan/begin").await;
    assert_eq!(again.header("location"), Some(&*format!("{path}?back=1")));
    assert!(fixture.paypal.resolve_charge(&id, true).await);
    fixture.becomes(MandateState::Active).await;
    fixture.close().await;
}

#[tokio::test]
async fn a_lagging_subscription_status_is_awaited() {
    let mut fixture = PayPalRig::open().await;
    let (_, path, id) = fixture.begin().await;
    fixture.paypal.lag(2);
    assert!(fixture.paypal.agree(&id).await);
    fixture.browser.get(&back(&path, &id)).await;
    let found = || {
        fixture.wait(30);
        fixture.mandate().state == MandateState::Active
    };
    within("PayPal to catch up with itself", poll(found)).await;
    fixture.close().await;
}

#[tokio::test]
async fn cancellation_keeps_the_paid_period_when_paypals_response_is_lost() {
    for effect in [None, Some(Effect::LoseAnswer), Some(Effect::Unavailable)] {
        let mut fixture = PayPalRig::open().await;
        let id = fixture.bought().await;
        if let Some(effect) = effect {
            fixture.paypal.fault(Fault::once(Operation::End, effect));
        }
        let question = fixture.browser.get("/plan/cancel").await;
        has(
            &question,
            &[
                "Cancel Pro?",
                "You keep Pro until",
                "No more payments.",
                "Keep Pro",
            ],
        );
        let done = fixture.press("/plan/cancel").await;
        assert_eq!(done.header("location"), Some("/plan"));
        fixture.comes_to(&id, "SUSPENDED").await;
        fixture.arrive().await;
        let page = fixture.browser.get("/plan").await;
        let row = fixture.subscription().expect("it was paid");
        let date = |at| tollgate_pages::format::date(at, row.created_at);
        let due = fixture.paypal.subscription(&id).next_charge.expect("kept");
        let until = |end: &str| format!("Canceled: it lasts until {end} and does not renew.");
        has(&page, &[&until(&date(due)), "You can resume Pro until"]);
        let end = date(row.period_end);
        assert_ne!(date(due), end, "a day of grace");
        assert!(!page.text().contains(&end), "one date: {}", page.text());
        // PayPal would have charged within the day of grace. The cancellation is final at PayPal, and no plan is sold twice.
        let left = due.duration_since(fixture.now());
        fixture.pass(left + Duration::from_hours(1)).await;
        fixture.comes_to(&id, "CANCELLED").await;
        fixture.becomes(MandateState::Ended).await;
        fixture.arrive().await;
        let page = fixture.browser.get("/plan").await;
        let again = format!("has ended, after <b>{end}</b>");
        has(&page, &[&until(&end), "cannot be resumed", &again]);
        for path in ["/plan/begin", "/plan/resume"] {
            assert!(!page.text().contains(path), "{path}");
        }
        fixture.pass(40 * DAY).await;
        let row = fixture.subscription().expect("it was paid");
        assert_eq!(fixture.paypal.charged_cents(), PRICE, "{effect:?}");
        assert!(!row.renews);
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_cancelled_plan_is_resumed_and_renews_when_paypals_responses_are_lost() {
    for effect in [None, Some(Effect::LoseAnswer), Some(Effect::Unavailable)] {
        let mut fixture = PayPalRig::open().await;
        let id = fixture.bought().await;
        fixture.press("/plan/cancel").await;
        fixture.comes_to(&id, "SUSPENDED").await;
        fixture.pass(10 * DAY).await;
        let page = fixture.browser.get("/plan").await;
        has(&page, &["You can resume Pro until", "/plan/resume"]);
        let question = fixture.browser.get("/plan/resume").await;
        let due = fixture.paypal.subscription(&id).next_charge.expect("kept");
        let due = tollgate_pages::format::date(due, fixture.now());
        let price = format!("You pay 199.00 USD on {due}, and every month after it.");
        has(&question, &["Resume Pro?", &price, "Do not resume"]);
        if let Some(effect) = effect {
            fixture.paypal.fault(Fault::once(Operation::End, effect));
        }
        // Sent twice, as by an impatient person.
        for _ in 0..2 {
            let done = fixture.browser.submit("/plan/resume", &[]).await;
            assert_eq!(done.header("location"), Some("/plan"));
        }
        fixture.comes_to(&id, "ACTIVE").await;
        fixture.becomes(MandateState::Active).await;
        fixture.arrive().await;
        let page = fixture.browser.get("/plan").await;
        let next = format!("Paid until {due}. PayPal charges 199.00 USD next on {due},");
        has(&page, &[&next, "Cancel plan"]);
        assert_eq!(fixture.paypal.charged_cents(), PRICE, "nothing was due");
        fixture.pass(31 * DAY).await;
        fixture.wait_until_paid(2 * PRICE).await;
        assert_eq!(fixture.paypal.calls(Operation::Subscribe), 1, "{effect:?}");
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_plan_that_was_cancelled_at_paypal_is_not_offered_to_be_resumed() {
    let mut fixture = PayPalRig::open().await;
    let id = fixture.bought().await;
    fixture.press("/plan/cancel").await;
    fixture.comes_to(&id, "SUSPENDED").await;
    fixture.browser.get("/plan/resume").await;
    assert!(fixture.paypal.set_status(&id, "CANCELLED").await);
    fixture.becomes(MandateState::Ended).await;
    // The page was opened before.
    let late = fixture.browser.submit("/plan/resume", &[]).await;
    assert_eq!(late.header("location"), Some("/plan"));
    let page = fixture.browser.get("/plan").await;
    has(&page, &["cannot be resumed", "does not renew"]);
    assert!(!page.text().contains("/plan/resume"));
    let question = fixture.browser.get("/plan/resume").await;
    assert_eq!(question.header("location"), Some("/plan"));
    assert!(!fixture.subscription().expect("paid").renews);
    fixture.close().await;
}

#[tokio::test]
async fn a_subscription_can_be_cancelled_at_paypal() {
    let mut fixture = PayPalRig::open().await;
    let id = fixture.bought().await;
    assert!(fixture.paypal.set_status(&id, "CANCELLED").await);
    fixture.becomes(MandateState::Ended).await;
    let row = fixture.subscription().expect("paid");
    assert!(!row.renews && row.status == SubscriptionStatus::Active);
    fixture.close().await;
}

#[tokio::test]
async fn a_failed_charge_is_shown_until_a_retry_succeeds() {
    let mut fixture = PayPalRig::open().await;
    let id = fixture.bought().await;
    fixture.paypal.change(&id, |one| one.purse = Purse::Empty);
    // To an hour after the charge is due, while the day of grace still runs.
    let due = fixture
        .paypal
        .subscription(&id)
        .next_charge
        .expect("it runs");
    let until = due.duration_since(Clock::system().now()) + Duration::from_hours(1);
    fixture.pass(until).await;
    let past_due = || {
        fixture
            .subscription()
            .is_some_and(|row| row.status == SubscriptionStatus::PastDue)
    };
    within("the failure to be known", poll(past_due)).await;
    for path in ["/", "/plan", "/keys", "/usage", "/credits", "/apps"] {
        let page = fixture.browser.get(path).await;
        has(&page, &["PayPal could not collect the payment for Pro."]);
    }
    has(&fixture.browser.get("/plan").await, &["Payment failed"]);
    fixture.paypal.change(&id, |one| one.purse = Purse::Full);
    fixture.pass(5 * DAY).await;
    fixture.wait_until_paid(2 * PRICE).await;
    fixture.close().await;
}

#[tokio::test]
async fn a_plan_that_is_cancelled_at_paypal_after_a_failed_charge_is_canceled_and_no_more_past_due()
{
    let mut fixture = PayPalRig::open().await;
    let id = fixture.bought().await;
    fixture.paypal.change(&id, |one| one.purse = Purse::Empty);
    let due = fixture
        .paypal
        .subscription(&id)
        .next_charge
        .expect("it runs");
    let until = due.duration_since(Clock::system().now()) + Duration::from_hours(1);
    fixture.pass(until).await;
    let past_due = || {
        fixture
            .subscription()
            .is_some_and(|row| row.status == SubscriptionStatus::PastDue)
    };
    within("the failure to be known", poll(past_due)).await;
    assert!(fixture.paypal.set_status(&id, "CANCELLED").await);
    fixture.becomes(MandateState::Ended).await;
    let page = fixture.browser.get("/plan").await;
    has(&page, &["Canceled, ends", "Nothing more is charged."]);
    for gone in ["could not collect", "Payment failed", "unless it succeeds"] {
        assert!(!page.text().contains(gone), "{gone}");
    }
    fixture.close().await;
}

#[tokio::test]
async fn a_refunded_payment_ends_the_plan() {
    for refunded in [true, false] {
        let mut fixture = PayPalRig::open().await;
        let id = fixture.bought().await;
        let done = match refunded {
            true => fixture.paypal.refund_charge(&id).await,
            false => fixture.paypal.reverse(&id).await,
        };
        assert!(done);
        fixture.becomes(MandateState::Ended).await;
        fixture.wait_until_paid(0).await;
        assert_eq!(fixture.paypal.subscription(&id).status, "CANCELLED");
        let row = fixture.subscription().expect("it was paid");
        assert!(!row.is_active(row.updated_at));
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_duplicate_subscription_is_cancelled_and_refunded() {
    let mut fixture = PayPalRig::open().await;
    let (_, _, old) = fixture.begin().await;
    fixture.pass(4 * Duration::from_secs(3600)).await;
    let (_, _, new) = fixture.begin().await;
    assert_ne!(old, new);
    assert!(fixture.paypal.agree(&new).await);
    fixture.wait_until_paid(PRICE).await;
    // Hours later the buyer finds the first page still open.
    fixture
        .paypal
        .fault(Fault::once(Operation::Refund, Effect::LoseAnswer));
    fixture
        .paypal
        .fault(Fault::once(Operation::End, Effect::FailAfter));
    assert!(fixture.paypal.agree(&old).await);
    let over = || {
        fixture.wait(5);
        fixture.mandates()[1].state == MandateState::Over
    };
    within("the second one to be undone", poll(over)).await;
    assert_eq!(fixture.paypal.subscription(&old).status, "CANCELLED");
    assert_eq!(fixture.paypal.subscription(&old).kept_cents(), 0);
    assert_eq!(fixture.mandate().state, MandateState::Active);
    fixture.wait_until_paid(PRICE).await;
    fixture.close().await;
}

#[tokio::test]
async fn webhook_events_are_accepted_in_any_order_and_modified_ones_refused() {
    let mut fixture = PayPalRig::open().await;
    // Includes the notice of the creation: a late notice would cause a read of the subscription after the agreement.
    fixture.paypal.send_no_notices();
    let (_, _, id) = fixture.begin().await;
    assert!(fixture.paypal.agree(&id).await);
    let url = format!("{}/webhooks/paypal", fixture.rig.url());
    fixture.paypal.send_notices_to(&url);
    let sale = Event {
        id: Some(String::from("WH-SALE")),
        ..Event::new("PAYMENT.SALE.COMPLETED", &id)
    };
    assert_eq!(fixture.paypal.notify(&sale, Delivery::Respaced).await, 400);
    assert_eq!(fixture.mandate().state, MandateState::Open);
    // The event of the payment before the earlier events, and every event twice.
    let begun = Event {
        id: Some(String::from("WH-BEGUN")),
        ..Event::new("BILLING.SUBSCRIPTION.ACTIVATED", &id)
    };
    for event in [&sale, &begun, &sale, &begun] {
        assert_eq!(fixture.paypal.notify(event, Delivery::Good).await, 200);
    }
    fixture.wait_until_paid(PRICE).await;
    fixture.close().await;
}

#[tokio::test]
async fn a_changed_paypal_plan_is_not_sold_until_it_matches_again() {
    let paypal = PayPal::start().await;
    paypal.change_plan(PLAN_ID, |plan| plan.cents = 24_900);
    let mut fixture = PayPalRig::beside(paypal, "").await;
    let sent = fixture.press("/plan/begin").await;
    assert_eq!(sent.status, 503);
    has(
        &fixture.browser.get("/plan").await,
        &["cannot be bought here at the moment"],
    );
    fixture
        .paypal
        .change_plan(PLAN_ID, |plan| plan.cents = PRICE);
    fixture.wait(60);
    fixture.bought().await;
    fixture.close().await;
}

#[tokio::test]
async fn an_approval_url_of_another_host_is_not_used() {
    let mut fixture = PayPalRig::open().await;
    fixture
        .paypal
        .fault(Fault::once(Operation::Subscribe, Effect::StrangeLink));
    let sent = fixture.press("/plan/begin").await;
    assert_eq!(sent.status, 503);
    assert!(!sent.text().contains("example.net"));
    assert_eq!(fixture.mandate().approve_url, None);
    fixture.close().await;
}

#[tokio::test]
async fn mandates_of_other_accounts_are_not_shown() {
    let mut fixture = PayPalRig::open().await;
    let (_, path, _) = fixture.begin().await;
    let other = fixture.rig.new_account("free", 0).await;
    let mut other = Browser::signed_in_as(&fixture.rig, other, "other@example.com").await;
    assert_eq!(other.get(&path).await.status, 404);
    fixture.close().await;
}
