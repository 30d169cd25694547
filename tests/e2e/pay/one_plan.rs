//! x402 and MPP for one account: every interleaving ends in a single plan with a single payment.

use serde_json::json;
use tollgate::config::Environment;
use tollgate_testing::facilitator::{Effect, Fault, Operation};
use tollgate_testing::paypal::{
    Effect as PayPalEffect, Fault as PayPalFault, Operation as PayPalOperation, PayPal, Purse,
    Subscription,
};
use tollgate_testing::{Answer, Facilitator, within};

use super::mpp::{self, Offer};
use super::x402;
use crate::rig::{PROVIDER_KEY, Setup, poll};

/// A gateway with sales by x402 and MPP, a facilitator and a PayPal.
struct BothRoutes {
    fixture: x402::X402Rig,
    paypal: PayPal,
}

impl BothRoutes {
    async fn open() -> BothRoutes {
        let facilitator = Facilitator::start().await;
        let paypal = PayPal::start().await;
        let folder = tollgate_testing::tempdir().expect("a folder");
        let ca = folder.path().join("paypal-ca.pem");
        std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
        let [id, secret, challenges] = mpp::secrets();
        let settings = format!(
            "{}\n{}",
            mpp::selling(&paypal, &ca),
            // Without a node only the facilitator knows the outcome of a transfer.
            x402::settings(&facilitator, false)
        );
        let rig = Setup {
            environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY), id, secret, challenges]),
            ..Setup::with(&settings)
        }
        .start()
        .await;
        paypal.send_notices_to(&format!("{}/webhooks/paypal", rig.url()));
        let fixture = x402::X402Rig::of(rig, facilitator).await;
        BothRoutes { fixture, paypal }
    }

    async fn ask(&self) -> Answer {
        mpp::ask(&self.fixture.client_without_credential(), &self.fixture.key).await
    }

    async fn submit(&self, offer: &Offer) -> Answer {
        let client = self.fixture.client_without_credential();
        mpp::submit(&client, &self.fixture.key, &offer.credential(), "").await
    }

    async fn offer(&self) -> Offer {
        let answer = self.ask().await;
        assert_eq!(answer.status, 402, "{}", answer.text());
        Offer::of(&answer)
    }

    /// Ends the test: a single payment is recorded, and no further money was taken.
    async fn close(self) {
        let transferred = i64::try_from(self.fixture.transfers()).expect("few") * 19_900;
        assert_eq!(transferred + self.paypal.charged_cents(), 19_900);
        assert_eq!(self.fixture.payments(), 1);
        self.fixture.rig.finish().await;
    }
}

fn is_shut(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["payment_state"], "processing", "{body}");
    assert_eq!(body["retry_action"], "retry_same", "{body}");
    assert!(answer.header("retry-after").is_some());
    for offer in ["www-authenticate", "payment-required", "link"] {
        assert_eq!(answer.header(offer), None, "{offer}");
    }
    assert_eq!(body.get("approval_url"), None);
}

fn has_plan_of(answer: &Answer, route: &str) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["already_active"], true, "{body}");
    assert_eq!(body["subscription"]["route"], route, "{body}");
}

#[tokio::test]
async fn an_unclear_transfer_blocks_mpp_until_it_is_resolved() {
    let both = BothRoutes::open().await;
    let before = both.offer().await;
    let payment = both.fixture.payment(1).await;
    both.fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::LoseAnswer));
    // The transfer settled without the gateway's knowledge.
    is_shut(&both.fixture.submit(&payment).await);
    for _ in 0..3 {
        is_shut(&both.ask().await);
        is_shut(&both.submit(&before).await);
    }
    both.fixture.facilitator.remember();
    let mut often = tokio::time::interval(std::time::Duration::from_millis(50));
    let clear = async {
        while both.fixture.submit(&payment).await.status == 503 {
            often.tick().await;
        }
    };
    within("the facilitator's word", clear).await;
    has_plan_of(&both.ask().await, "x402");
    has_plan_of(&both.submit(&before).await, "x402");
    assert_eq!(
        both.paypal.subscriptions().len(),
        1,
        "nothing more is offered"
    );
    both.close().await;
}

#[tokio::test]
async fn an_approved_mandate_blocks_x402_until_it_is_paid() {
    let both = BothRoutes::open().await;
    let payment = both.fixture.payment(1).await;
    let offer = both.offer().await;
    let slow = |one: &mut Subscription| one.purse = Purse::Slow;
    assert!(both.paypal.change(&offer.subscription, slow));
    assert!(both.paypal.agree(&offer.subscription).await);
    let waits = both.submit(&offer).await;
    assert_eq!(waits.status, 402, "{}", waits.text());
    assert_eq!(waits.json()["payment_state"], "processing");
    is_shut(&both.fixture.ask().await);
    is_shut(&both.fixture.submit(&payment).await);
    assert_eq!(both.fixture.transfers(), 0, "the payment was not sent");
    assert!(both.paypal.resolve_charge(&offer.subscription, true).await);
    let bought = both.submit(&offer).await;
    assert_eq!(bought.status, 200, "{}", bought.text());
    has_plan_of(&both.fixture.ask().await, "paypal");
    has_plan_of(&both.fixture.submit(&payment).await, "paypal");
    assert_eq!(both.fixture.transfers(), 0, "it stays unspent");
    both.close().await;
}

/// Every notification of PayPal is lost. A transfer was taken beside a charge of PayPal. The charge was refunded only at the scheduled
/// reconciliation of the mandate: the buyer had paid twice for 16 seconds. Now the mandate is read at PayPal before a transfer is offered
/// or sent.
#[tokio::test]
async fn a_charge_whose_notifications_are_lost_prevents_a_transfer() {
    let both = BothRoutes::open().await;
    let payment = both.fixture.payment(1).await;
    let offer = both.offer().await;
    // The notification of the mandate's creation. A read a moment ago does not count before a transfer.
    let is_read = || both.paypal.calls(PayPalOperation::Subscription) > 0;
    within("the mandate to be read", poll(is_read)).await;
    both.paypal.send_no_notices();
    assert!(both.paypal.agree(&offer.subscription).await);
    has_plan_of(&both.fixture.submit(&payment).await, "paypal");
    has_plan_of(&both.fixture.ask().await, "paypal");
    assert_eq!(both.fixture.transfers(), 0, "it stays unspent");
    both.close().await;
}

/// PayPal cannot be read and may have charged: no offer is shown, and no transfer is sent.
#[tokio::test]
async fn an_offered_mandate_that_cannot_be_read_blocks_x402() {
    let both = BothRoutes::open().await;
    let payment = both.fixture.payment(1).await;
    let offer = both.offer().await;
    both.paypal.send_no_notices();
    let lost = PayPalFault::once(PayPalOperation::Subscription, PayPalEffect::Unavailable);
    both.paypal.fault(lost.times(u32::MAX));
    assert!(both.paypal.agree(&offer.subscription).await);
    is_shut(&both.fixture.submit(&payment).await);
    is_shut(&both.fixture.ask().await);
    both.paypal.no_faults();
    has_plan_of(&both.fixture.submit(&payment).await, "paypal");
    assert_eq!(both.fixture.transfers(), 0, "it stays unspent");
    both.close().await;
}

#[tokio::test]
async fn a_late_approval_is_cancelled_and_refunded() {
    let both = BothRoutes::open().await;
    let offer = both.offer().await;
    let payment = both.fixture.payment(1).await;
    let paid = both.fixture.submit(&payment).await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    // The page at PayPal is open still.
    assert!(both.paypal.agree(&offer.subscription).await);
    has_plan_of(&both.submit(&offer).await, "x402");
    let given_back = || {
        let one = both.paypal.subscription(&offer.subscription);
        one.status == "CANCELLED" && one.kept_cents() == 0
    };
    within("the mandate to be ended", poll(given_back)).await;
    has_plan_of(&both.ask().await, "x402");
    both.close().await;
}

#[tokio::test]
async fn mpp_and_ucp_share_one_mandate() {
    let both = BothRoutes::open().await;
    let offer = both.offer().await;
    let session = both
        .fixture
        .client()
        .post("/ucp/v1/checkout-sessions", &json!({}))
        .await;
    assert_eq!(session.status, 201, "{}", session.text());
    assert!(both.paypal.agree(&offer.subscription).await);
    let bought = both.submit(&offer).await;
    assert_eq!(bought.status, 200, "{}", bought.text());
    let path = session.header("location").expect("its address");
    let at = path.find("/ucp/").expect("a path of ours");
    let session = both.fixture.client().get(&path[at..]).await;
    assert_eq!(session.status, 200, "{}", session.text());
    assert_eq!(
        session.json()["status"],
        "completed",
        "what was bought on one way is bought on the other"
    );
    assert_eq!(both.paypal.subscriptions().len(), 1);
    both.close().await;
}
