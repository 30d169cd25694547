//! Conformance of the stand-in for PayPal: its responses and the gateway's requests match PayPal's published schemas.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tollgate_testing::paypal::{
    CLIENT_ID, CLIENT_SECRET, Operation, PLAN_ID, PRODUCT_ID, PayPal, Purse,
};
use tollgate_testing::{Answer, Client};

use crate::mandates::PayPalRig;

/// Excerpts, under the Apache License 2.0; see `source` in the file.
const PUBLISHED: &str = include_str!("paypal/openapi.json");

/// Whether a value has the shape of a published schema.
fn fits(document: &str, schema: &str, value: &Value) {
    let published: Value = serde_json::from_str(PUBLISHED).expect("JSON");
    let components = &published[document]["components"];
    assert!(
        components["schemas"][schema].is_object(),
        "no schema `{schema}`"
    );
    let schema_of = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": format!("#/components/schemas/{schema}"),
        "components": components,
    });
    let validator = jsonschema::validator_for(&schema_of).expect("a schema");
    let problems: Vec<String> = validator
        .iter_errors(value)
        .map(|problem| format!("{}: {problem}", problem.instance_path()))
        .collect();
    assert!(problems.is_empty(), "{schema}: {problems:?} in {value}");
}

/// The stand-in, and a token for it.
struct Api {
    paypal: PayPal,
    token: String,
    requests: u32,
}

impl Api {
    async fn open() -> Api {
        let paypal = PayPal::start().await;
        let client = Client::new(&paypal.url());
        let mut request = client.request(
            "POST",
            "/v1/oauth2/token",
            "grant_type=client_credentials".into(),
        );
        let pair = format!("{CLIENT_ID}:{CLIENT_SECRET}");
        let basic = format!("Basic {}", BASE64.encode(pair));
        request
            .headers_mut()
            .insert("authorization", basic.parse().expect("visible"));
        let granted = client.send(request).await.json();
        let token = granted["access_token"]
            .as_str()
            .expect("a token")
            .to_owned();
        Api {
            paypal,
            token,
            requests: 0,
        }
    }

    async fn call(&mut self, method: &str, path: &str, body: Value) -> Answer {
        self.requests += 1;
        let client = Client::new(&self.paypal.url());
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let mut request = client.request(method, path, body.into());
        let fields = request.headers_mut();
        let bearer = format!("Bearer {}", self.token);
        fields.insert("authorization", bearer.parse().expect("visible"));
        fields.insert("content-type", "application/json".parse().expect("visible"));
        let key = format!("key-{}", self.requests);
        fields.insert("paypal-request-id", key.parse().expect("visible"));
        client.send(request).await
    }

    async fn read(&mut self, path: &str) -> Value {
        let answer = self.call("GET", path, Value::Null).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }
}

const SUBSCRIPTIONS: &str = "billing_subscriptions_v1";

#[tokio::test]
async fn products_and_plans_have_the_published_shape() {
    let mut api = Api::open().await;
    let made = api
        .call(
            "POST",
            "/v1/catalogs/products",
            json!({"id": "svc-other", "name": "Other", "type": "SERVICE"}),
        )
        .await;
    assert_eq!(made.status, 201);
    fits("catalogs_products_v1", "product", &made.json());
    let product = api.read("/v1/catalogs/products/svc-other").await;
    fits("catalogs_products_v1", "product", &product);
    let plan = api.read(&format!("/v1/billing/plans/{PLAN_ID}")).await;
    fits(SUBSCRIPTIONS, "plan", &plan);
    let list = api
        .read(&format!("/v1/billing/plans?product_id={PRODUCT_ID}"))
        .await;
    fits(SUBSCRIPTIONS, "plan_collection", &list);
}

#[tokio::test]
async fn subscriptions_and_charges_have_the_published_shape_in_every_state() {
    let mut api = Api::open().await;
    let day = Duration::from_hours(24);
    let now = tollgate_clock::Clock::system().now();
    let times = [now - day, now + 400 * day].map(tollgate_clock::Timestamp::rfc3339);
    for purse in [Purse::Full, Purse::Slow, Purse::Empty, Purse::Late] {
        api.paypal.purse(purse);
        let asked = json!({"plan_id": PLAN_ID, "custom_id": "mandate_1",
            "application_context": {"return_url": "https://example.com/back", "cancel_url": "https://example.com/left"}});
        let made = api.call("POST", "/v1/billing/subscriptions", asked).await;
        assert_eq!(made.status, 201);
        fits(SUBSCRIPTIONS, "subscription", &made.json());
        let id = made.json()["id"].as_str().expect("an id").to_owned();
        let own = format!("/v1/billing/subscriptions/{id}");
        let list = format!(
            "{own}/transactions?start_time={}&end_time={}",
            times[0], times[1]
        );
        fits(SUBSCRIPTIONS, "subscription", &api.read(&own).await);
        assert!(api.paypal.agree(&id).await);
        for days in [0, 31, 31, 31] {
            api.paypal.pass(days * day).await;
            fits(SUBSCRIPTIONS, "subscription", &api.read(&own).await);
            fits(SUBSCRIPTIONS, "transactions_list", &api.read(&list).await);
        }
        for status in ["SUSPENDED", "EXPIRED", "CANCELLED"] {
            api.paypal.set_status(&id, status).await;
            fits(SUBSCRIPTIONS, "subscription", &api.read(&own).await);
        }
        if purse == Purse::Full {
            let charge = api.paypal.subscription(&id).charges[0].id.clone();
            let path = format!("/v2/payments/captures/{charge}/refund");
            let back = api.call("POST", &path, json!({})).await;
            assert_eq!(back.status, 201);
            fits("payments_payment_v2", "refund", &back.json());
            fits(SUBSCRIPTIONS, "transactions_list", &api.read(&list).await);
        }
    }
}

#[tokio::test]
async fn requests_of_the_gateway_match_the_published_schema() {
    let mut rig = PayPalRig::open().await;
    rig.bought().await;
    let body = |rig: &PayPalRig, operation| {
        let asked = rig.paypal.asked(operation);
        asked.unwrap_or_else(|| panic!("{operation:?} was not asked for"))
    };
    let asked = body(&rig, Operation::Subscribe);
    fits(SUBSCRIPTIONS, "subscription_request_post", &asked);
    assert_eq!(asked["application_context"]["user_action"], "SUBSCRIBE_NOW");
    assert_eq!(
        asked["application_context"]["shipping_preference"],
        "NO_SHIPPING"
    );
    for never in ["quantity", "plan", "start_time", "subscriber"] {
        assert_eq!(asked.get(never), None, "{never}");
    }
    for (path, schema) in [
        ("/plan/cancel", "subscription_suspend_request"),
        ("/plan/resume", "subscription_activate_request"),
    ] {
        rig.press(path).await;
        let asked = body(&rig, Operation::End);
        assert!(asked["reason"].is_string(), "required of {schema}: {asked}");
        fits(SUBSCRIPTIONS, schema, &asked);
    }
    rig.close().await;
}
