//! The plan bought with MPP: over real sockets, with a stand-in for PayPal with monthly charges.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};
use serde_json::{Value, json};
use tollgate::config::Environment;
use tollgate_filter::{Scope, Scopes};
use tollgate_money::AccountId;
use tollgate_testing::paypal::{Effect, Fault, Operation, PayPal, Purse};
use tollgate_testing::{Answer, Client, within};

use crate::credits::{settings, variables};
use crate::rig::{PROVIDER_KEY, Rig, SECRETS, Setup, poll};

pub(crate) const MPP: &str = "/commerce/subscriptions/svc-pro/mpp";

/// The secret for the binding of challenges.
const SECRET: &str = "a-secret-of-the-tests-for-challenges-1";

/// The quota of the class `free`, and the quota of the plan's class.
const FREE: u64 = 60;
const PRO: u64 = 1_000_000;

const BESIDE: HeaderName = HeaderName::from_static("x-svc-authorization");

/// A gateway with the plan for sale, a stand-in for PayPal, and the account of a buyer.
pub(crate) struct MppRig {
    pub(crate) rig: Rig,
    pub(crate) paypal: PayPal,
    pub(crate) account: AccountId,
    pub(crate) key: String,
}

/// Settings for a gateway with the plan for sale by `paypal`; `ca` is the file with the authority of `paypal`.
pub(crate) fn selling(paypal: &PayPal, ca: &std::path::Path) -> String {
    let paypal = settings(paypal, ca);
    format!("{paypal}\n[payments.mpp]\nsecret_env = 'MPP_SECRET'\n")
}

/// The environment variables of the settings.
pub(crate) fn secrets() -> [(&'static str, &'static str); 3] {
    SECRETS.used("what challenges are bound with", SECRET);
    let [id, secret] = variables();
    [id, secret, ("MPP_SECRET", SECRET)]
}

impl MppRig {
    pub(crate) async fn open() -> MppRig {
        MppRig::with("").await
    }

    async fn with(more: &str) -> MppRig {
        let paypal = PayPal::start().await;
        let folder = tollgate_testing::tempdir().expect("a folder");
        let ca = folder.path().join("paypal-ca.pem");
        std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
        let [id, secret, mpp] = secrets();
        let rig = Setup {
            environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY), id, secret, mpp]),
            ..Setup::with(&format!("{}{more}", selling(&paypal, &ca)))
        }
        .start()
        .await;
        paypal.send_notices_to(&format!("{}/webhooks/paypal", rig.url()));
        let account = rig.new_account("free", 0).await;
        let (_, key) = rig.new_key(account, |_| {}).await;
        MppRig {
            rig,
            paypal,
            account,
            key,
        }
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key)
    }

    /// Asks without showing a payment.
    pub(crate) async fn ask(&self) -> Answer {
        ask(&Client::new(&self.rig.url()), &self.key).await
    }

    /// Asks with a proof of payment.
    pub(crate) async fn submit(&self, credential: &str) -> Answer {
        self.submit_with(credential, "").await
    }

    async fn submit_with(&self, credential: &str, body: &str) -> Answer {
        submit(&Client::new(&self.rig.url()), &self.key, credential, body).await
    }

    async fn send(&self, fields: &[(HeaderName, &str)], body: &str) -> Answer {
        send(&Client::new(&self.rig.url()), fields, body).await
    }

    /// The quota of the account's requests.
    async fn quota(&self) -> u64 {
        let client = Client::new(&self.rig.url()).with_key(&self.key);
        let answer = client.get("/v1/models").await;
        let quota = answer.header("ratelimit-limit").expect("a quota");
        quota.parse().expect("a number")
    }

    /// The first answer: a challenge.
    async fn offer(&self) -> Offer {
        let answer = self.ask().await;
        assert_eq!(answer.status, 402, "{}", answer.text());
        Offer::of(&answer)
    }
}

/// Asks without showing a payment.
pub(crate) async fn ask(client: &Client, key: &str) -> Answer {
    let bearer = format!("Bearer {key}");
    send(client, &[(header::AUTHORIZATION, &bearer)], "").await
}

/// Asks with a proof of payment.
pub(crate) async fn submit(client: &Client, key: &str, credential: &str, body: &str) -> Answer {
    let (payment, bearer) = (format!("Payment {credential}"), format!("Bearer {key}"));
    let fields = [(header::AUTHORIZATION, &*payment), (BESIDE, &*bearer)];
    send(client, &fields, body).await
}

async fn send(client: &Client, fields: &[(HeaderName, &str)], body: &str) -> Answer {
    let mut request = client.request("POST", MPP, Bytes::copy_from_slice(body.as_bytes()));
    for (name, value) in fields {
        let value = HeaderValue::from_str(value).expect("a value");
        request.headers_mut().append(name.clone(), value);
    }
    client.send(request).await
}

/// The offer of a 402.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    challenge: Value,
    pub(crate) subscription: String,
}

impl Offer {
    pub(crate) fn of(answer: &Answer) -> Offer {
        let challenge = answer.header("www-authenticate").expect("a challenge");
        let rest = challenge.strip_prefix("Payment ").expect("the scheme");
        let pairs = rest.split("\", ").map(|pair| {
            let (name, value) = pair.split_once("=\"").expect("a pair");
            (name.to_owned(), json!(value.trim_end_matches('"')))
        });
        let challenge = Value::Object(pairs.collect());
        let request = challenge["request"].as_str().expect("a text");
        let request = URL_SAFE_NO_PAD.decode(request).expect("base64url");
        let request: Value = serde_json::from_slice(&request).expect("JSON");
        let subscription = &request["methodDetails"]["subscriptionId"];
        Offer {
            subscription: subscription.as_str().expect("an id").to_owned(),
            challenge,
        }
    }

    /// The credential for the challenge.
    pub(crate) fn credential(&self) -> String {
        let payload = json!({"type": "subscription", "subscriptionId": self.subscription});
        let whole = json!({"challenge": self.challenge, "payload": payload});
        let text = URL_SAFE_NO_PAD.encode(whole.to_string());
        SECRETS.used("a proof of payment", &text).to_owned()
    }
}

fn check_bought(answer: &Answer, already: bool) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["success"], true);
    assert_eq!(body["already_active"], already);
    assert_eq!(body["subscription"]["status"], "active");
    let cache = answer.header("cache-control").expect("a rule for caches");
    assert!(cache.contains("private"), "{cache}");
    let receipt = answer.header("payment-receipt").expect("a receipt");
    let receipt = URL_SAFE_NO_PAD.decode(receipt).expect("base64url");
    serde_json::from_slice(&receipt).expect("JSON")
}

fn check_waits(answer: &Answer, slug: &str, state: &str) {
    assert_eq!(answer.status, 402, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["error"]["code"], slug, "{body}");
    assert_eq!(body["payment_state"], state, "{body}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("payment-receipt"), None);
    assert!(answer.header("www-authenticate").is_some());
    let url = body["approval_url"].as_str().expect("an address");
    assert_eq!(
        answer.header("link"),
        Some(&*format!("<{url}>; rel=\"payment\""))
    );
}

#[tokio::test]
async fn an_mpp_purchase_activates_the_plans_rate_class() {
    let fixture = MppRig::open().await;
    for client in [
        Client::new(&fixture.rig.url()),
        Client::new(&fixture.rig.url()).with_http2(),
    ] {
        let bearer = fixture.bearer();
        let answer = send(&client, &[(header::AUTHORIZATION, &bearer)], "").await;
        check_waits(&answer, "payment-required", "required");
    }
    assert_eq!(fixture.quota().await, FREE);
    let offer = fixture.offer().await;
    assert!(fixture.paypal.agree(&offer.subscription).await);
    let bought = fixture.submit(&offer.credential()).await;
    // Also where a webhook event has arrived before.
    let receipt = check_bought(&bought, false);
    assert_eq!(receipt["reference"], json!(offer.subscription));
    assert_eq!(receipt["status"], "success");
    let again = fixture.ask().await;
    assert_eq!(check_bought(&again, true), receipt);
    assert_eq!(fixture.quota().await, PRO, "of the very next request");
    assert_eq!(fixture.paypal.charged_cents(), 19_900);
    assert_eq!(fixture.paypal.subscriptions().len(), 1);
    fixture.rig.finish().await;
}

/// The first answer after refusals for the quota. Every refusal names a wait of a second.
async fn admitted(ask: impl AsyncFn() -> Answer) -> Answer {
    let repeated = async {
        loop {
            let answer = ask().await;
            if answer.status != 429 {
                return answer;
            }
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
    };
    within("the end of the wait", repeated).await
}

/// Every refusal named a wait of a second, for the rest of the day.
#[tokio::test]
async fn an_account_that_had_used_up_its_quota_can_use_the_plan_at_once() {
    let fixture = MppRig::with("\n[limits.classes.free]\nquota = 3\nwindow_secs = 86400").await;
    let offer = fixture.offer().await;
    assert_eq!(fixture.quota().await, 3);
    assert!(fixture.paypal.agree(&offer.subscription).await);
    // The last request of the quota, where no webhook event has arrived before.
    let credential = offer.credential();
    check_bought(
        &admitted(async || fixture.submit(&credential).await).await,
        false,
    );
    let client = Client::new(&fixture.rig.url()).with_key(&fixture.key);
    assert_eq!(
        admitted(async || client.get("/v1/models").await)
            .await
            .status,
        200
    );
    fixture.rig.finish().await;
}

#[tokio::test]
async fn account_and_payment_credentials_are_distinguished_before_payment() {
    let fixture = MppRig::with("credential_header = 'authorization'\n").await;
    let offer = fixture.offer().await;
    fixture.paypal.agree(&offer.subscription).await;
    let payment = format!("Payment {}", offer.credential());
    let bearer = fixture.bearer();
    let (_, other) = fixture.rig.new_key(fixture.account, |_| {}).await;
    let other = format!("Bearer {other}");
    let (_, narrow) = fixture
        .rig
        .new_key(fixture.account, |key| {
            key.scopes = Scopes::NONE.with(Scope::ApiChat).bits();
        })
        .await;
    let narrow = format!("Bearer {narrow}");
    const HERE: HeaderName = header::AUTHORIZATION;
    const OWN: HeaderName = HeaderName::from_static("payment-authorization");
    for (fields, status) in [
        (&[][..], 401),
        (&[(HERE, &*payment)], 401),
        (&[(BESIDE, &*bearer)], 401),
        (&[(HERE, &payment), (BESIDE, "Basic x")], 401),
        (&[(HERE, &payment), (BESIDE, "Bearer x")], 401),
        (&[(HERE, &payment), (BESIDE, &narrow)], 403),
        (&[(HERE, &narrow)], 403),
        (&[(HERE, &bearer), (BESIDE, &other)], 400),
        (
            &[(HERE, &payment), (HERE, &payment), (BESIDE, &bearer)],
            400,
        ),
        (&[(HERE, &payment), (OWN, &payment), (BESIDE, &bearer)], 400),
        (&[(HERE, &bearer), (HERE, &payment)], 400),
        // The challenge names no field, so the credential has to come in `Authorization`.
        (&[(HERE, &bearer), (OWN, &payment)], 402),
        (&[(HERE, &bearer), (BESIDE, &bearer)], 402),
        (&[(HERE, "Payment"), (BESIDE, &bearer)], 402),
    ] {
        // The notice of the payment must not be faster than the requests.
        let answer = fixture.send(fields, "").await;
        let named: Vec<_> = fields.iter().map(|(name, _)| name).collect();
        if status == 402 && answer.status == 200 {
            assert_eq!(answer.json()["already_active"], true, "{named:?}");
            continue;
        }
        assert_eq!(answer.status, status, "{named:?}: {}", answer.text());
        let challenge = answer.header("www-authenticate").unwrap_or_default();
        assert_eq!(
            challenge.starts_with("Payment"),
            status == 402,
            "{named:?}: {challenge}"
        );
        assert!(answer.json()["error"]["code"].is_string(), "{named:?}");
    }
    check_bought_by_now(&fixture, &offer).await;
    fixture.rig.finish().await;
}

/// The plan is active, by this request or by an earlier webhook event.
async fn check_bought_by_now(fixture: &MppRig, offer: &Offer) {
    let answer = fixture.submit(&offer.credential()).await;
    let already = answer.json()["already_active"] == true;
    check_bought(&answer, already);
    assert_eq!(fixture.paypal.charged_cents(), 19_900);
}

/// Many tools send a POST without a body as a form.
#[tokio::test]
async fn an_empty_body_needs_no_media_type() {
    let fixture = MppRig::open().await;
    let bearer = fixture.bearer();
    for client in [
        Client::new(&fixture.rig.url()),
        Client::new(&fixture.rig.url()).with_http2(),
    ] {
        for (body, status) in [("", 402), ("a=b", 415)] {
            let mut request = client.request("POST", MPP, body.into());
            let headers = request.headers_mut();
            headers.insert(header::AUTHORIZATION, bearer.parse().expect("a value"));
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            headers.insert(header::CONTENT_TYPE, form);
            let answer = client.send(request).await;
            assert_eq!(answer.status, status, "{}", answer.text());
        }
    }
    fixture.rig.finish().await;
}

#[tokio::test]
async fn a_purchase_waits_for_approval_and_for_paypals_status() {
    let fixture = MppRig::open().await;
    let offer = fixture.offer().await;
    let waits = fixture.submit(&offer.credential()).await;
    check_waits(&waits, "payment-action-required", "approval_pending");
    assert_eq!(waits.header("retry-after"), Some("5"));
    let again = Offer::of(&waits);
    assert_eq!(again.subscription, offer.subscription);
    // The e-check of a first payment takes days.
    let slow = |one: &mut tollgate_testing::paypal::Subscription| one.purse = Purse::Slow;
    assert!(fixture.paypal.change(&offer.subscription, slow));
    fixture.paypal.agree(&offer.subscription).await;
    let unpaid = fixture.submit(&offer.credential()).await;
    check_waits(&unpaid, "payment-action-required", "processing");
    assert_eq!(unpaid.json()["retry_action"], "retry_same");
    assert!(
        fixture
            .paypal
            .resolve_charge(&offer.subscription, true)
            .await
    );
    check_bought_by_now(&fixture, &again).await;
    assert_eq!(fixture.paypal.subscriptions().len(), 1);
    fixture.rig.finish().await;
}

#[tokio::test]
async fn a_subscription_cancelled_at_paypal_can_be_replaced() {
    let fixture = MppRig::open().await;
    let offer = fixture.offer().await;
    assert!(
        fixture
            .paypal
            .set_status(&offer.subscription, "CANCELLED")
            .await
    );
    let over = fixture.submit(&offer.credential()).await;
    check_waits(&over, "verification-failed", "failed");
    let next = Offer::of(&over);
    assert_ne!(next.subscription, offer.subscription);
    let used = fixture.submit(&offer.credential()).await;
    check_waits(&used, "invalid-challenge", "refused");
    fixture.paypal.agree(&next.subscription).await;
    check_bought_by_now(&fixture, &next).await;
    fixture.rig.finish().await;
}

#[tokio::test]
async fn while_paypal_is_unreachable_the_route_is_503() {
    let fixture = MppRig::open().await;
    let down = |operation| Fault::once(operation, Effect::Unavailable).times(1_000);
    fixture.paypal.fault(down(Operation::Subscribe));
    let nothing = fixture.ask().await;
    check_unavailable(&nothing, "unavailable");
    fixture.paypal.no_faults();
    let offer = fixture.offer().await;
    fixture.paypal.fault(down(Operation::Subscription));
    fixture.paypal.agree(&offer.subscription).await;
    for _ in 0..3 {
        check_unavailable(&fixture.submit(&offer.credential()).await, "processing");
    }
    fixture.paypal.no_faults();
    check_bought_by_now(&fixture, &offer).await;
    assert_eq!(fixture.paypal.subscriptions().len(), 1);
    fixture.rig.finish().await;
}

fn check_unavailable(answer: &Answer, state: &str) {
    assert_eq!(answer.status, 503, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["error"]["type"], "unavailable_error");
    assert_eq!(body["payment_state"], state, "{body}");
    assert_eq!(body["retry_action"], "retry_same");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.header("www-authenticate"), None);
}

#[tokio::test]
async fn a_webhook_event_activates_the_plan_and_the_buyer_gets_a_receipt() {
    let fixture = MppRig::open().await;
    let offer = fixture.offer().await;
    fixture.paypal.agree(&offer.subscription).await;
    let active = || fixture.rig.books.store.subscription(fixture.account);
    let is_there = || active().expect("readable").is_some();
    within("the webhook event", poll(is_there)).await;
    let receipt = check_bought(&fixture.submit(&offer.credential()).await, false);
    assert_eq!(receipt["reference"], json!(offer.subscription));
    fixture.rig.finish().await;
}

#[tokio::test]
async fn twenty_equal_requests_at_once_are_one_activation() {
    const BODY: &str = r#"{"idempotency_key":"once"}"#;
    for body in ["", BODY] {
        let fixture = MppRig::open().await;
        // No webhook event is delivered.
        fixture
            .paypal
            .send_notices_to("http://127.0.0.1:9/unreachable");
        let offer = fixture.offer().await;
        fixture.paypal.agree(&offer.subscription).await;
        let credential = offer.credential();
        let all = (0..20).map(|_| fixture.submit_with(&credential, body));
        let all = futures_util::future::join_all(all).await;
        for answer in &all {
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(
                answer.header("payment-receipt"),
                all[0].header("payment-receipt")
            );
        }
        let first = |answer: &&Answer| answer.json()["already_active"] == false;
        let firsts = all.iter().filter(first).count();
        match body {
            "" => assert_eq!(firsts, 1),
            // The repeated requests get the first response.
            _ => assert_eq!(firsts, 20),
        }
        assert_eq!(fixture.paypal.charged_cents(), 19_900);
        let payments = fixture.rig.books.store.payments_of(fixture.account, 10);
        assert_eq!(payments.expect("readable").len(), 1);
        fixture.rig.finish().await;
    }
}

#[tokio::test]
async fn malformed_credentials_and_bodies_are_client_errors() {
    let fixture = MppRig::open().await;
    let offer = fixture.offer().await;
    let changed = |pointer: &str, value: Value| {
        let whole = json!({"challenge": offer.challenge.clone(), "payload": {"type": "subscription", "subscriptionId": offer.subscription}});
        let mut whole = whole;
        *whole.pointer_mut(pointer).expect("it is there") = value;
        URL_SAFE_NO_PAD.encode(whole.to_string())
    };
    let large = "A".repeat(20_000);
    let deep = URL_SAFE_NO_PAD.encode("[".repeat(5_000));
    for (credential, slug) in [
        ("", "malformed-credential"),
        ("x", "malformed-credential"),
        ("\"quoted\"", "malformed-credential"),
        ("a b c", "malformed-credential"),
        (&*large, "malformed-credential"),
        (&*deep, "malformed-credential"),
        (&URL_SAFE_NO_PAD.encode("null"), "malformed-credential"),
        (
            &URL_SAFE_NO_PAD.encode([0xff, 0xfe]),
            "malformed-credential",
        ),
        (&changed("/challenge", json!([])), "malformed-credential"),
        (&changed("/challenge/id", json!(7)), "malformed-credential"),
        (&changed("/challenge/id", json!("")), "invalid-challenge"),
        (
            &changed("/challenge/realm", json!("a|b")),
            "invalid-challenge",
        ),
        (
            &changed("/payload/subscriptionId", json!("I-1")),
            "invalid-payload",
        ),
        (&changed("/payload/type", Value::Null), "invalid-payload"),
    ] {
        let answer = fixture.submit(credential).await;
        check_waits(&answer, slug, "refused");
    }
    let other = fixture
        .submit(&changed("/challenge/method", json!("tempo")))
        .await;
    assert_eq!(other.status, 400);
    assert_eq!(other.json()["error"]["code"], "method-unsupported");
    assert_eq!(other.json()["retry_action"], "fix_request");
    for body in [
        "[]",
        "{",
        "nul",
        r#"{"amount":1}"#,
        r#"{"product_id":[]}"#,
        "\u{0}",
    ] {
        let answer = fixture.submit_with(&offer.credential(), body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        assert_eq!(answer.json()["retry_action"], "fix_request", "{body}");
    }
    fixture.rig.finish().await;
}

#[tokio::test]
async fn a_challenge_is_answered_in_its_own_field_or_in_authorization_and_not_in_both() {
    const HERE: HeaderName = header::AUTHORIZATION;
    const OWN: HeaderName = HeaderName::from_static("payment-authorization");
    // The settings, whether the challenge names the field, and whether the credential comes in the named field.
    for (settings, is_named, is_own) in [
        // mppx from 0.9 on, and pympp.
        ("", true, true),
        // Earlier mppx ignores the name, like clients of the service's own form.
        ("", true, false),
        // Challenges of the earlier form: no name.
        ("credential_header = 'authorization'\n", false, false),
    ] {
        let fixture = MppRig::with(settings).await;
        // A notice faster than the request would buy the plan by itself.
        fixture.paypal.send_no_notices();
        let offer = fixture.offer().await;
        let named = &offer.challenge["header"];
        assert_eq!(named == "Payment-Authorization", is_named, "{named}");
        fixture.paypal.agree(&offer.subscription).await;
        let payment = format!("Payment {}", offer.credential());
        let bearer = fixture.bearer();
        let both = [(HERE, &*payment), (OWN, &*payment), (BESIDE, &*bearer)];
        let refused = fixture.send(&both, "").await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        let fields = match is_own {
            true => [(HERE, &*bearer), (OWN, &*payment)],
            false => [(HERE, &*payment), (BESIDE, &*bearer)],
        };
        let bought = fixture.send(&fields, "").await;
        check_bought(&bought, false);
        fixture.rig.finish().await;
    }
}

#[tokio::test]
async fn a_challenge_can_be_answered_from_the_body_and_the_field_alone() {
    let fixture = MppRig::open().await;
    let answer = fixture.ask().await;
    let offer = Offer::of(&answer);
    let credential = &answer.json()["credential"];
    assert_eq!(
        credential["header"],
        "Payment-Authorization: Payment <credential>"
    );
    let whole = json!({"challenge": offer.challenge, "payload": credential["payload"]});
    assert_eq!(
        whole["payload"],
        json!({"type": "subscription", "subscriptionId": offer.subscription})
    );
    // Complete but for the approval.
    let again = fixture
        .submit(&URL_SAFE_NO_PAD.encode(whole.to_string()))
        .await;
    check_waits(&again, "payment-action-required", "approval_pending");
    fixture.rig.finish().await;
}
