//! A test platform of the protocol: requests, and the token of the platform's authorization.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};
use tollgate_clock::{Clock, Entropy};
use tollgate_money::{AccountId, Micros};
use tollgate_purchase::plan::{DAYS, PRICE, Paid, PayOutcome, Period, Plan, PlanDeps, Plans};
use tollgate_store::Route;
use tollgate_testing::{Answer, Client};

use crate::rig::Rig;

/// The path of checkouts in the form of the service.
pub(crate) const SERVICE: &str = "/ucp/v1/checkout-sessions";

/// The path of checkouts in the form of the protocol.
pub(crate) const PROTOCOL: &str = "/ucp/2026-04-08/checkout-sessions";

/// The field with the platform's name.
pub(crate) const AGENT: (&str, &str) = (
    "ucp-agent",
    "profile=\"https://platform.example/.well-known/ucp\"",
);

/// The request of a platform for the plan.
pub(crate) fn plan() -> Value {
    json!({"line_items": [{"item": {"id": "svc-pro-monthly"}, "quantity": 1}]})
}

/// The body of a completion.
pub(crate) fn payment() -> Value {
    json!({"payment": {"instruments": []}})
}

/// A platform with a credential.
pub(crate) struct Platform {
    client: Client,
}

impl Platform {
    pub(crate) fn of(client: Client) -> Platform {
        Platform { client }
    }

    /// Sends a request like a platform, with additional fields.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        fields: &[(&str, &str)],
    ) -> Answer {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send_bytes(method, path, body.into(), fields).await
    }

    pub(crate) async fn send_bytes(
        &self,
        method: &str,
        path: &str,
        body: Bytes,
        fields: &[(&str, &str)],
    ) -> Answer {
        let mut request = self.client.request(method, path, body);
        let headers = request.headers_mut();
        for (name, value) in fields {
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        self.client.send(request).await
    }

    /// A `POST` at the protocol's address.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, Some(body), &[AGENT]).await
    }

    /// A `GET` at the protocol's address.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None, &[AGENT]).await
    }
}

/// The path of a checkout.
pub(crate) fn one(family: &str, session: &Value) -> String {
    format!("{family}/{}", session["id"].as_str().expect("an id"))
}

/// Gives an account the plan, as a transfer does.
pub(crate) async fn give_plan(rig: &Rig, account: AccountId) {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let now = clock.now();
    let plans = Plans::new(PlanDeps {
        store: rig.books.store.clone(),
        ledger: rig.books.ledger.clone(),
        plan: Plan {
            product: "svc-pro-monthly".into(),
            slug: "svc-pro".into(),
            name: "Pro".into(),
            class: "pro".into(),
            monthly_credits: Micros::ZERO,
            renewal_days: 7,
            device_slots: None,
            computer_use_tasks: None,
            features: [].into(),
        },
        clock,
        draw: Box::new(move |out| entropy.fill(out)),
    });
    let paid = Paid {
        account,
        route: Route::X402,
        payment: format!("test/{}", now.as_micros()).into(),
        reference: "0xabc".into(),
        amount: PRICE,
        period: Period::Days(DAYS),
        renews: false,
        receipt: None,
        at: now,
    };
    let paid = plans.pay(paid, |_| Vec::new()).await.expect("is noted");
    assert!(matches!(paid, PayOutcome::New(_)), "{paid:?}");
}
