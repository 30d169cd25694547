//! The lifecycle of a checkout without a payment.

use serde_json::{Value, json};
use tollgate_testing::Client;

use super::platform::{AGENT, PROTOCOL, Platform, SERVICE, give_plan, one, payment, plan};
use super::schemas::{CHECKOUT, ERROR, assert_keeps_to};
use crate::rig::Rig;

const ORIGIN: &str = "https://api.example.com";

async fn rig() -> Rig {
    Rig::with(&format!(
        "[service]\nbase_url = \"{ORIGIN}\"\n[brand]\nterms_url = \"https://example.com/terms\"\n\
         privacy_url = \"https://example.com/privacy\"\n[ucp]\nrefund_url = \"https://example.com/refunds\""
    ))
    .await
}

#[tokio::test]
async fn a_checkout_of_an_active_plan_is_refused_in_both_formats() {
    let rig = rig().await;
    give_plan(&rig, rig.account).await;
    for (what, client) in rig.clients() {
        let platform = Platform::of(client);
        let answer = platform.post(PROTOCOL, &plan()).await;
        assert_eq!(answer.status, 201, "{what}: {}", answer.text());
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
        let session = answer.json();
        assert_keeps_to(CHECKOUT, &session);
        let path = one(PROTOCOL, &session);
        let location = format!("{ORIGIN}{path}");
        assert_eq!(answer.header("location"), Some(&*location), "{what}");
        assert_eq!(session["status"], "completed", "{what}");
        assert_eq!(session.get("continue_url"), None, "{what}");
        assert_eq!(
            session["ucp"]["capabilities"]["dev.ucp.shopping.checkout"][0]["version"],
            "2026-04-08"
        );
        assert_eq!(session["totals"][1]["amount"], 19_900, "{what}");
        assert_eq!(session["payment_state"], "paid", "{what}");
        let kinds: Vec<&str> = session["links"]
            .as_array()
            .expect("links")
            .iter()
            .filter_map(|link| link["type"].as_str())
            .collect();
        assert_eq!(
            kinds,
            ["terms_of_service", "privacy_policy", "refund_policy"]
        );

        const CURRENT: &str = "/ucp/2026-08-25/checkout-sessions";
        let current = platform.post(CURRENT, &plan()).await;
        assert_eq!(current.status, 201, "{what}: {}", current.text());
        let checkout = current.json();
        let location = format!("{ORIGIN}{}", one(CURRENT, &checkout));
        assert_eq!(current.header("location"), Some(&*location), "{what}");
        assert_eq!(checkout["ucp"]["version"], "2026-08-25", "{what}");
        assert_eq!(
            checkout["ucp"]["capabilities"]["dev.ucp.shopping.checkout"][0]["version"],
            "2026-08-25"
        );
        assert_eq!(checkout["order"], session["order"], "{what}");

        let other = platform.send("POST", SERVICE, None, &[]).await;
        assert_eq!(other.status, 201, "{what}");
        let checkout = other.json();
        assert_eq!(checkout["status"], "completed", "{what}");
        assert_eq!(checkout["currency"], "USD", "{what}");
        assert_eq!(checkout["ucp"]["version"], "2026-04-08", "{what}");
        assert_eq!(
            checkout["ucp"]["capabilities"],
            json!(["dev.ucp.shopping.checkout"]),
            "{what}"
        );
        assert_eq!(
            checkout["order"], session["order"],
            "{what}: one subscription"
        );
        let location = other.header("location").expect("where it is");
        assert_eq!(
            location,
            format!("{ORIGIN}{}", one(SERVICE, &checkout)),
            "{what}"
        );

        // The checkout is available at the two addresses.
        let read = platform.get(&one(SERVICE, &session)).await;
        assert_eq!(
            (read.status, &read.json()["order"]),
            (200, &session["order"]),
            "{what}"
        );
        let read = platform.get(&path).await;
        assert_eq!((read.status, read.json()), (200, session.clone()), "{what}");
        for (method, end) in [("PUT", ""), ("POST", "/complete"), ("POST", "/cancel")] {
            let mut body = plan();
            body["payment"] = json!({});
            let late = platform
                .send(method, &format!("{path}{end}"), Some(&body), &[AGENT])
                .await;
            assert_eq!(late.status, 409, "{what} {end}: {}", late.text());
            assert_eq!(late.json()["code"], "not_modifiable", "{what} {end}");
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_checkout_is_for_its_owner_only() {
    let rig = rig().await;
    let owner = Platform::of(rig.client());
    let session = owner
        .post(PROTOCOL, &json!({"line_items": []}))
        .await
        .json();
    let other = rig.new_account("free", 0).await;
    let (_, key) = rig.new_key(other, |_| {}).await;
    let other = Platform::of(Client::new(&rig.url()).with_key(&key));
    let path = one(PROTOCOL, &session);
    for (method, end, body) in [
        ("GET", "", None),
        ("PUT", "", Some(plan())),
        ("POST", "/complete", Some(payment())),
        ("POST", "/cancel", Some(json!({}))),
    ] {
        let answer = other
            .send(method, &format!("{path}{end}"), body.as_ref(), &[AGENT])
            .await;
        assert_eq!(answer.status, 404, "{method} {end}: another's is none");
        assert_keeps_to(ERROR, &answer.json());
    }
    let answer = other.get(&one(SERVICE, &session)).await;
    assert_eq!(answer.status, 404);
    assert_eq!(owner.get(&path).await.status, 200);
    rig.finish().await;
}

#[tokio::test]
async fn a_checkout_without_a_plan_in_it_is_filled_emptied_and_cancelled() {
    let rig = rig().await;
    let platform = Platform::of(rig.client());
    let buyer = json!({"email": "mara@example.com", "first_name": "Mara", "more": [1.5]});
    let answer = platform
        .post(PROTOCOL, &json!({"line_items": [], "buyer": buyer}))
        .await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let session = answer.json();
    assert_keeps_to(CHECKOUT, &session);
    assert_eq!(session["status"], "incomplete");
    assert_eq!(session["buyer"], buyer, "the buyer's data is returned");
    assert_eq!(session["messages"][0]["severity"], "recoverable");
    let path = one(PROTOCOL, &session);

    let complete = platform.post(&format!("{path}/complete"), &payment()).await;
    assert_eq!(
        (complete.status, &complete.json()["status"]),
        (200, &json!("incomplete"))
    );
    let without = platform.post(&format!("{path}/complete"), &json!({})).await;
    assert_eq!(
        (without.status, &without.json()["code"]),
        (400, &json!("missing_field"))
    );

    let update = platform
        .send("PUT", &path, Some(&json!({"line_items": []})), &[AGENT])
        .await;
    assert_eq!(update.status, 200);
    assert_eq!(
        update.json().get("buyer"),
        None,
        "what is not said again is gone"
    );

    let cancel = platform.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(cancel.status, 200, "{}", cancel.text());
    assert_keeps_to(CHECKOUT, &cancel.json());
    assert_eq!(cancel.json()["status"], "canceled");
    let again = platform.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(again.status, 409);
    let read = platform.get(&path).await;
    assert_eq!(
        (read.status, &read.json()["status"]),
        (200, &json!("canceled"))
    );
    let gone = platform.get(&one(SERVICE, &session)).await;
    assert_eq!(
        (gone.status, &gone.json()["error"]["code"]),
        (404, &json!("session_gone"))
    );
    rig.finish().await;
}

#[tokio::test]
async fn more_than_one_plan_is_one_plan() {
    let rig = rig().await;
    give_plan(&rig, rig.account).await;
    let platform = Platform::of(rig.client());
    let three = json!({"line_items": [{"item": {"id": "svc-pro-monthly"}, "quantity": 3}]});
    for path in [PROTOCOL, SERVICE] {
        let session = platform.post(path, &three).await.json();
        assert_eq!(session["line_items"][0]["quantity"], 1, "{path}");
        assert_eq!(
            session["messages"][0]["code"], "quantity_adjusted",
            "{path}"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_request_that_is_sent_again_has_the_same_answer_to_the_byte() {
    let rig = rig().await;
    give_plan(&rig, rig.account).await;
    let platform = Platform::of(rig.client());
    for (path, body) in [(PROTOCOL, plan()), (SERVICE, json!({}))] {
        let send = |key: &'static str, body: Value| {
            let platform = &platform;
            async move {
                let fields = [AGENT, ("idempotency-key", key)];
                platform.send("POST", path, Some(&body), &fields).await
            }
        };
        let first = send("one", body.clone()).await;
        assert_eq!(first.status, 201, "{path}: {}", first.text());
        assert_eq!(first.header("idempotent-replayed"), None);
        let again = send("\"one\"", body.clone()).await;
        assert_eq!(again.status, 201, "{path}");
        assert_eq!(again.body, first.body, "{path}");
        assert_eq!(again.header("location"), first.header("location"), "{path}");
        assert_eq!(again.header("idempotent-replayed"), Some("true"), "{path}");
        let other = send(
            "one",
            json!({"line_items": [{"item": {"id": "svc-pro-monthly"}}], "x": 1}),
        )
        .await;
        assert_eq!(other.status, 409, "{path}");
        assert_eq!(
            other.json()["error"]["code"],
            "idempotency_conflict",
            "{path}"
        );
        let new = send("two", body).await;
        assert_ne!(new.json()["id"], first.json()["id"], "{path}");
    }
    // A refused request is not kept: the name is free for another try.
    let fields = [AGENT, ("idempotency-key", "three")];
    let refused = platform
        .send("POST", PROTOCOL, Some(&json!({})), &fields)
        .await;
    assert_eq!(refused.status, 400);
    let tried = platform
        .send("POST", PROTOCOL, Some(&plan()), &fields)
        .await;
    assert_eq!(tried.status, 201, "{}", tried.text());
    rig.finish().await;
}

#[tokio::test]
async fn a_platform_finds_its_own_name_of_a_request_on_the_answer() {
    let rig = rig().await;
    let platform = Platform::of(rig.client());
    let id = "5f6c2a3e-58c1-4c0e-9df1-5ad0d8b0b7a2";
    let fields = [AGENT, ("request-id", id)];
    let answer = platform
        .send("POST", PROTOCOL, Some(&json!({"line_items": []})), &fields)
        .await;
    assert_eq!(answer.header("request-id"), Some(id));
    rig.finish().await;
}
