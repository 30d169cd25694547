//! Successful purchases, and the same payment presented again.

use serde_json::json;
use tollgate_testing::facilitator::Operation;
use tollgate_testing::wallet::{decoded, encoded};

use super::{X402Rig, is, submit};

#[tokio::test]
async fn an_x402_payment_activates_the_plan() {
    let fixture = X402Rig::open().await;
    let asked = fixture.ask().await;
    is(&asked, 402, "payment-required", "required", "pay");
    assert_eq!(asked.header("content-type"), Some("application/json"));
    assert_eq!(asked.header("cache-control"), Some("no-store"));
    assert!(
        asked.json()["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains("more than 1 USD")),
        "stock clients refuse until their cap is raised"
    );
    let offer = decoded(asked.header("payment-required").expect("an offer"));
    assert_eq!(offer["x402Version"], 2);
    let url = offer["resource"]["url"].as_str().expect("an address");
    assert!(
        url.starts_with("http") && url.ends_with(super::BUY),
        "{url}"
    );
    assert_eq!(
        offer["accepts"],
        json!([{
            "scheme": "exact", "network": "eip155:8453", "amount": "199000000",
            "asset": "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "payTo": "0x90F79bf6EB2c4f870365E785982E1f101E93b906",
            "maxTimeoutSeconds": 300, "extra": {"name": "USD Coin", "version": "2"},
        }])
    );
    let payment = fixture.payment(1).await;
    let paid = fixture.submit(&payment).await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    assert_eq!(paid.header("cache-control"), Some("private, no-store"));
    let body = paid.json();
    assert_eq!(body["success"], true);
    assert_eq!(body["already_active"], false);
    assert_eq!(body["product"]["id"], "svc-pro-monthly");
    assert_eq!(body["subscription"]["status"], "active");
    assert_eq!(body["subscription"]["route"], "x402");
    let receipt = decoded(paid.header("payment-response").expect("a receipt"));
    assert_eq!(receipt["success"], true);
    assert_eq!(receipt["network"], "eip155:8453");
    assert_eq!(
        receipt["transaction"], body["subscription"]["provider_reference"],
        "the transaction"
    );
    assert_eq!(fixture.transfers(), 1);
    // The class is the plan's from the next request on.
    let models = fixture.client().get("/v1/models").await;
    assert!(
        models
            .header("ratelimit-policy")
            .is_some_and(|policy| policy.contains("q=1000000")),
        "{:?}",
        models.header("ratelimit-policy")
    );
    fixture.close().await;
}

#[tokio::test]
async fn responses_name_ways_to_buy_under_the_base_url() {
    let facilitator = tollgate_testing::Facilitator::start().await;
    let settings = format!(
        "{}\n[service]\nbase_url = \"https://api.example.com\"\nroot_url = \"https://example.com\"\n",
        super::settings(&facilitator, true)
    );
    let rig = crate::rig::Rig::with(&settings).await;
    let fixture = X402Rig::of(rig, facilitator).await;
    let paid = fixture.submit(&fixture.payment(1).await).await;
    let purchase = &paid.json()["product"]["purchase"];
    let x402 = "https://api.example.com/commerce/subscriptions/svc-pro/x402";
    assert_eq!(*purchase, json!({"x402": x402}), "PayPal is not configured");
    fixture.close().await;
}

#[tokio::test]
async fn a_repeated_payment_is_one_purchase() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    let first = fixture.submit(&payment).await;
    assert_eq!(first.status, 200, "{}", first.text());
    for _ in 0..3 {
        let again = fixture.submit(&payment).await;
        assert_eq!(again.status, 200, "{}", again.text());
        assert_eq!(again.json()["already_active"], true);
        assert_eq!(again.json()["subscription"], first.json()["subscription"]);
        assert_eq!(
            again.header("payment-response"),
            first.header("payment-response")
        );
    }
    assert_eq!(fixture.facilitator.calls(Operation::Settle), 1);
    fixture.close().await;
}

#[tokio::test]
async fn an_active_plan_gets_no_offer_and_a_new_payment_is_not_submitted() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    let other = fixture.payment(2).await;
    assert_eq!(fixture.submit(&payment).await.status, 200);
    let asked = fixture.ask().await;
    assert_eq!(asked.status, 200, "{}", asked.text());
    assert_eq!(asked.json()["already_active"], true);
    assert_eq!(asked.header("payment-required"), None);
    assert_eq!(asked.header("payment-response"), None);
    let unspent = fixture.submit(&other).await;
    assert_eq!(unspent.status, 200);
    assert_eq!(unspent.json()["already_active"], true);
    assert_eq!(unspent.header("payment-response"), None);
    assert_eq!(fixture.transfers(), 1);
    assert_eq!(fixture.facilitator.calls(Operation::Settle), 1);
    fixture.close().await;
}

#[tokio::test]
async fn twenty_equal_paid_requests_at_once_are_one_transfer() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (client, payment) = (fixture.client(), payment.clone());
        asking.spawn(async move { submit(&client, &payment, &json!({})).await });
    }
    let answers = asking.join_all().await;
    let receipts: Vec<_> = answers
        .iter()
        .map(|answer| {
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.header("payment-response").map(str::to_owned)
        })
        .collect();
    assert!(receipts[0].is_some());
    assert!(receipts.iter().all(|receipt| *receipt == receipts[0]));
    assert_eq!(fixture.facilitator.calls(Operation::Verify), 1);
    assert_eq!(fixture.facilitator.calls(Operation::Settle), 1);
    fixture.close().await;
}

#[tokio::test]
async fn ten_different_payments_of_one_account_at_once_are_one_transfer() {
    let fixture = X402Rig::open().await;
    let mut payments = Vec::new();
    for nonce in 1..=10 {
        payments.push(fixture.payment(nonce).await);
    }
    let mut asking = tokio::task::JoinSet::new();
    for payment in payments {
        let client = fixture.client();
        asking.spawn(async move { submit(&client, &payment, &json!({})).await });
    }
    for answer in asking.join_all().await {
        assert!(
            matches!(answer.status, 200 | 503),
            "{} {}",
            answer.status,
            answer.text()
        );
        assert_eq!(
            answer.header("payment-required"),
            None,
            "no offer meanwhile"
        );
    }
    fixture.clear().await;
    assert_eq!(fixture.transfers(), 1);
    fixture.close().await;
}

#[tokio::test]
async fn a_request_with_an_identifier_is_replayed_unchanged() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    let named = json!({"idempotency_key": "buy-1", "product_id": "svc-pro-monthly"});
    let first = fixture.submit_with(&payment, &named).await;
    assert_eq!(first.status, 200, "{}", first.text());
    let again = fixture.submit_with(&payment, &named).await;
    assert_eq!(again.status, 200);
    assert_eq!(again.text(), first.text(), "word for word");
    assert_eq!(
        again.header("payment-response"),
        first.header("payment-response")
    );
    let offer = decoded(&super::offer(&fixture.facilitator));
    let other = fixture.wallet.payment(&offer, [2; 32], super::now());
    let other = encoded(&other);
    let conflict = fixture.submit_with(&other, &named).await;
    is(&conflict, 409, "idempotency_conflict", "refused", "none");
    assert_eq!(fixture.transfers(), 1);
    fixture.close().await;
}

#[tokio::test]
async fn payments_with_one_identifier_are_distinguished() {
    let fixture = X402Rig::open().await;
    let asked = fixture.ask().await;
    let offer = decoded(asked.header("payment-required").expect("an offer"));
    let identifier = &offer["extensions"]["payment-identifier"];
    assert_eq!(identifier["info"], json!({"required": false}));
    let signed_at = super::now();
    let named = |nonce: u8, id: &str| {
        let mut payment = fixture.wallet.payment(&offer, [nonce; 32], signed_at);
        payment["extensions"] = offer["extensions"].clone();
        payment["extensions"]["payment-identifier"]["info"]["id"] = json!(id);
        encoded(&payment)
    };
    let bad = fixture.submit(&named(1, "short")).await;
    is(&bad, 402, "invalid-payload", "refused", "fix_request");
    let id = "pay_7d5d747be160e280504c099d984bcfe0";
    let first = fixture.submit(&named(1, id)).await;
    assert_eq!(first.status, 200, "{}", first.text());
    assert_eq!(fixture.submit(&named(1, id)).await.text(), first.text());
    let conflict = fixture.submit(&named(2, id)).await;
    is(&conflict, 409, "idempotency_conflict", "refused", "none");
    fixture.close().await;
}

#[tokio::test]
async fn every_offer_states_the_credits_of_the_plan_and_a_buyer_without_credits_gets_them() {
    for (plan, stated, credits) in [
        (
            "[plan]\nmonthly_credits = \"250\"\n",
            "250 credits with each payment",
            250,
        ),
        ("", "no credits", 0),
    ] {
        let facilitator = tollgate_testing::Facilitator::start().await;
        let settings = format!("{plan}{}", super::settings(&facilitator, true));
        let rig = crate::rig::Rig::with(&settings).await;
        let fixture = X402Rig::of(rig, facilitator).await;
        let left = async || {
            let models = fixture.client().get("/v1/models").await;
            models.json()["x_svc"]["credits_remaining"].clone()
        };
        assert_eq!(left().await, 0);
        let asked = fixture.ask().await;
        let body = asked.json();
        let offer = decoded(asked.header("payment-required").expect("an offer"));
        for text in [
            &body["detail"],
            &body["includes"][0],
            &offer["resource"]["description"],
        ] {
            let text = text.as_str().expect("a text");
            assert!(text.contains(stated), "{text}");
        }
        for path in [
            "/llms.txt",
            concat!("/docs/paying", ".md"),
            "/commerce/products/svc-pro",
        ] {
            let document = fixture.client().get(path).await;
            assert!(document.text().contains(stated), "{path}");
        }
        let payment = fixture.payment(1).await;
        assert_eq!(fixture.submit(&payment).await.status, 200);
        assert_eq!(left().await, credits);
        fixture.close().await;
    }
}
