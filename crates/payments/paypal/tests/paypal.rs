//! The client against a stand-in that speaks PayPal's protocol over a real socket.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use http::HeaderMap;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use secrecy::SecretString;
use tollgate_clock::Clock;
use tollgate_money::{MandateId, TopUpId, Usd};
use tollgate_paypal::{
    Client, Environment, ErrorKind, Settings, Timeouts, Verify, WebhookError, WebhookEvent,
};
use tollgate_purchase::mandates::NewSubscription;
use tollgate_purchase::{CaptureStatus, NewOrder, OrderStatus};
use tollgate_testing::paypal::{
    CLIENT_ID, CLIENT_SECRET, Delivery, Effect, Event, Fault, Operation, PLAN_ID, PayPal,
    WEBHOOK_ID,
};

const PRICE: Usd = Usd::from_cents(2_000);

fn settings(paypal: &PayPal) -> Settings {
    let root = CertificateDer::from_pem_slice(paypal.ca_pem().as_bytes()).expect("PEM");
    Settings {
        environment: Environment::at(&paypal.url()).expect("an address"),
        client_id: SecretString::from(CLIENT_ID.to_owned()),
        client_secret: SecretString::from(CLIENT_SECRET.to_owned()),
        webhook_id: Some(WEBHOOK_ID.to_owned()),
        verify: Verify::Locally,
        roots: Some(vec![root]),
        brand: String::from("Example"),
        timeouts: Timeouts {
            connect: Duration::from_secs(5),
            call: Duration::from_secs(20),
        },
    }
}

fn client(paypal: &PayPal) -> Client {
    Client::new(settings(paypal), Clock::system()).expect("a client")
}

fn order(key: &str) -> NewOrder<'_> {
    NewOrder {
        key,
        top_up: TopUpId::from_bytes([1; 16]),
        price: PRICE,
        description: "2,000 credits",
        return_url: "https://gateway.example/credits/add/1?from=paypal",
        cancel_url: "https://gateway.example/credits/add/1?from=cancel",
    }
}

#[tokio::test]
async fn a_rotated_secret_is_used_for_the_next_token() {
    let paypal = PayPal::start().await;
    let with = |secret: &str| Settings {
        client_secret: SecretString::from(secret.to_owned()),
        ..settings(&paypal)
    };
    let client = Client::new(with("revoked"), Clock::system()).expect("a client");
    let used_elsewhere = client.clone();
    let refused = client.create_order(&order("first")).await;
    refused.expect_err("the secret is not valid any more");
    assert!(with("revoked").differs_in_credentials_alone(&with(CLIENT_SECRET)));
    client.replace_credentials(&with(CLIENT_SECRET));
    let created = used_elsewhere.create_order(&order("first")).await;
    created.expect("the new secret is valid");
    let other = Settings {
        webhook_id: None,
        ..with(CLIENT_SECRET)
    };
    assert!(!with(CLIENT_SECRET).differs_in_credentials_alone(&other));
}

#[tokio::test]
async fn an_order_is_created_approved_and_captured_once() {
    let paypal = PayPal::start().await;
    let client = client(&paypal);
    let placed = client.create_order(&order("key")).await.expect("placed");
    let again = client.create_order(&order("key")).await.expect("placed");
    assert_eq!(placed, again, "one key, one order");
    assert!(placed.approve_url.contains("/checkoutnow?token="));
    let seen = client.order(&placed.order).await.expect("readable");
    assert_eq!(seen.status, OrderStatus::Waiting);
    assert_eq!(seen.top_up, Some(TopUpId::from_bytes([1; 16]).to_string()));
    let early = client.capture_order(&placed.order, "early").await;
    assert_eq!(
        early.expect_err("not approved").kind,
        ErrorKind::NotApproved
    );
    assert!(paypal.approve(&placed.order).await);
    for key in ["capture", "capture", "another"] {
        let taken = client.capture_order(&placed.order, key).await;
        match key {
            "another" => assert_eq!(taken.expect_err("paid").kind, ErrorKind::AlreadyDone),
            _ => taken.expect("taken"),
        }
    }
    let paid = client.order(&placed.order).await.expect("readable");
    let capture = paid.capture.expect("a payment");
    assert_eq!(capture.status, CaptureStatus::Completed);
    assert_eq!(capture.amount, Some(PRICE));
    assert_eq!(paypal.taken_cents(), 2_000);
    assert!(paypal.refund(&placed.order, 500).await);
    let refunded = client.order(&placed.order).await.expect("readable");
    assert_eq!(refunded.returned, Usd::from_cents(500));
}

#[tokio::test]
async fn every_failure_says_whether_the_call_may_have_had_an_effect() {
    let paypal = PayPal::start().await;
    let client = client(&paypal);
    for (effect, kind) in [
        (Effect::LoseCall, ErrorKind::OutcomeUnknown),
        (Effect::LoseAnswer, ErrorKind::OutcomeUnknown),
        (Effect::FailAfter, ErrorKind::OutcomeUnknown),
        (Effect::Unavailable, ErrorKind::OutcomeUnknown),
        (Effect::TooMany, ErrorKind::Unavailable),
        (Effect::Refuse, ErrorKind::Refused),
        (Effect::StrangeLink, ErrorKind::OutcomeUnknown),
    ] {
        paypal.fault(Fault::once(Operation::Create, effect));
        let key = format!("{effect:?}");
        let failed = client.create_order(&order(&key)).await;
        assert_eq!(failed.expect_err("fails").kind, kind, "{effect:?}");
        if effect != Effect::StrangeLink {
            client
                .create_order(&order(&key))
                .await
                .expect("works again");
        }
    }
    let gone = client.order("5O404").await.expect_err("there is none");
    assert_eq!(gone.kind, ErrorKind::Gone);
}

#[tokio::test]
async fn a_rejected_token_is_renewed_once_and_the_call_repeated() {
    let paypal = PayPal::start().await;
    let client = client(&paypal);
    let placed = client.create_order(&order("key")).await.expect("placed");
    paypal.expire_tokens();
    client
        .order(&placed.order)
        .await
        .expect("with another token");
    assert_eq!(paypal.calls(Operation::Token), 2);
    paypal.fault(Fault::once(Operation::Read, Effect::Unauthorized).times(2));
    let refused = client
        .order(&placed.order)
        .await
        .expect_err("refused twice");
    assert_eq!(refused.kind, ErrorKind::Misconfigured);
    assert_eq!(paypal.calls(Operation::Token), 3, "and no third attempt");
}

#[tokio::test]
async fn nothing_is_sent_without_a_token() {
    let paypal = PayPal::start().await;
    let mut wrong = settings(&paypal);
    wrong.client_secret = SecretString::from(String::from("wrong"));
    let client = Client::new(wrong, Clock::system()).expect("a client");
    let failed = client.create_order(&order("key")).await.expect_err("401");
    assert_eq!(failed.kind, ErrorKind::Misconfigured);
    assert!(!failed.to_string().contains("wrong"), "{failed}");
    assert_eq!(paypal.calls(Operation::Create), 0);
    let address = tollgate_testing::refusing_address().expect("a free port");
    let mut unreachable = settings(&paypal);
    unreachable.environment = Environment::at(&format!("http://{address}")).expect("an address");
    let client = Client::new(unreachable, Clock::system()).expect("a client");
    let failed = client
        .create_order(&order("key"))
        .await
        .expect_err("unreachable");
    assert_eq!(failed.kind, ErrorKind::Unavailable, "{failed}");
}

/// A webhook event as received.
type Sent = (HeaderMap, Vec<u8>);

/// Receives one event from the stand-in and passes it to the client.
async fn receive(
    paypal: &PayPal,
    client: &Client,
    delivery: Delivery,
) -> Result<WebhookEvent, WebhookError> {
    use tollgate_testing::provider::{Plan, Request, Settings as ProviderSettings};
    let caught: Arc<Mutex<Option<Sent>>> = Arc::default();
    let catch = caught.clone();
    let custom = Arc::new(move |request: &Request| -> Option<Plan> {
        let caught = (request.headers.clone(), request.body.to_vec());
        *catch.lock().expect("no code panics while holding it") = Some(caught);
        None
    });
    let receiver = tollgate_testing::Provider::start_with(ProviderSettings {
        custom: Some(custom),
        ..ProviderSettings::default()
    })
    .await
    .expect("a free port");
    paypal.send_notices_to(&format!("{}/webhooks/paypal", receiver.url()));
    let event = Event::new("CHECKOUT.ORDER.APPROVED", "5O1");
    paypal.notify(&event, delivery).await;
    let (headers, body) = caught
        .lock()
        .expect("no code panics while holding it")
        .take()
        .expect("an event arrived");
    client.verify_webhook(&headers, &body).await
}

#[tokio::test]
async fn only_notices_that_paypal_signed_are_believed() {
    let paypal = PayPal::start().await;
    let client = client(&paypal);
    for _ in 0..2 {
        let good = receive(&paypal, &client, Delivery::Good).await;
        assert_eq!(good.expect("verified").kind, "CHECKOUT.ORDER.APPROVED");
    }
    assert_eq!(paypal.calls(Operation::Certificate), 1, "fetched once");
    for delivery in [
        Delivery::Respaced,
        Delivery::StrangeCertificate,
        Delivery::WrongSignature,
        Delivery::Unsigned,
        Delivery::Old,
        Delivery::OtherWebhook,
    ] {
        let refused = receive(&paypal, &client, delivery).await;
        assert!(
            matches!(refused, Err(WebhookError::Refused(_))),
            "{delivery:?}: {refused:?}"
        );
    }
    assert_eq!(paypal.calls(Operation::Verify), 0, "no call to PayPal");
}

#[tokio::test]
async fn an_event_whose_certificate_has_no_path_to_a_root_is_verified_remotely() {
    let paypal = PayPal::start().await;
    let mut public = settings(&paypal);
    public.roots = None;
    let client = Client::new(public, Clock::system()).expect("a client");
    receive(&paypal, &client, Delivery::Good)
        .await
        .expect("PayPal says that it is its own");
    assert_eq!(paypal.calls(Operation::Verify), 1);
    let refused = receive(&paypal, &client, Delivery::Respaced).await;
    assert!(
        matches!(refused, Err(WebhookError::Refused(_))),
        "{refused:?}"
    );
    paypal.fault(Fault::once(Operation::Verify, Effect::Unavailable));
    let undecided = receive(&paypal, &client, Delivery::Good).await;
    assert!(
        matches!(undecided, Err(WebhookError::Undecided(_))),
        "{undecided:?}"
    );
}

#[tokio::test]
async fn a_setting_verifies_every_event_remotely() {
    let paypal = PayPal::start().await;
    let mut ask = settings(&paypal);
    ask.verify = Verify::AskPayPal;
    let client = Client::new(ask, Clock::system()).expect("a client");
    receive(&paypal, &client, Delivery::Good)
        .await
        .expect("verified");
    assert_eq!(paypal.calls(Operation::Verify), 1);
    assert_eq!(paypal.calls(Operation::Certificate), 0);
    let mut without = settings(&paypal);
    without.webhook_id = None;
    let client = Client::new(without, Clock::system()).expect("a client");
    let refused = receive(&paypal, &client, Delivery::Good).await;
    assert!(matches!(refused, Err(WebhookError::Refused(_))));
}

#[tokio::test]
async fn an_event_whose_certificate_cannot_be_fetched_stays_undecided() {
    let paypal = PayPal::start().await;
    let client = client(&paypal);
    paypal.fault(Fault::once(Operation::Certificate, Effect::Unavailable));
    let undecided = receive(&paypal, &client, Delivery::Good).await;
    assert!(
        matches!(undecided, Err(WebhookError::Undecided(_))),
        "{undecided:?}"
    );
    receive(&paypal, &client, Delivery::Good)
        .await
        .expect("later it can");
}

#[tokio::test]
async fn all_charges_are_listed_at_any_page_size() {
    let paypal = PayPal::start().await;
    let client = client(&paypal);
    let made = client
        .create_subscription(&NewSubscription {
            key: "key",
            mandate: MandateId::from_bytes([1; 16]),
            plan_id: PLAN_ID,
            return_url: "https://gateway.example/plan/back/1",
            cancel_url: "https://gateway.example/plan/back/1?from=cancel",
        })
        .await
        .expect("made");
    assert!(paypal.agree(&made.subscription).await);
    paypal.pass(Duration::from_secs(200 * 86_400)).await;
    let day = Duration::from_secs(86_400);
    let now = Clock::system().now();
    let (from, to) = (now - 31 * day, now + 201 * day);
    let all = client
        .transactions(&made.subscription, from, to)
        .await
        .expect("a list");
    assert!(all.len() > 5, "{all:?}");
    for most in [1, 2, 3] {
        paypal.list_at_most(most);
        let mut listed = client
            .transactions(&made.subscription, from, to)
            .await
            .expect("lists");
        listed.sort_by_key(|charge| std::cmp::Reverse(charge.at));
        assert_eq!(listed, all, "{most} a page");
    }
}
