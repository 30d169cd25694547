//! The product document.

use bytes::Bytes;
use serde_json::json;

use crate::rig::Setup;

#[tokio::test]
async fn the_product_document_is_public() {
    let rig = Setup::offering_everything(
        "[service]\nbase_url = \"https://api.example.com\"\nroot_url = \"https://example.com\"\n\
         [plan]\nincluded_device_slots = 3\nfeatures = [\"More requests\"]\nmonthly_credits = \"20000\"",
    )
    .start()
    .await;
    for (what, client) in rig.both() {
        let ask = |path: &str| {
            let mut request = client.request("GET", path, Bytes::new());
            request.headers_mut().remove("authorization");
            client.send(request)
        };
        let answer = ask("/commerce/products/svc-pro").await;
        assert_eq!(answer.status, 200, "{what}");
        assert_eq!(answer.header("cache-control"), Some("public, max-age=300"));
        let product = answer.json();
        for (member, expected) in [
            ("id", json!("svc-pro-monthly")),
            ("price_usd", json!(199)),
            ("billing_interval", json!("month")),
            ("included_device_slots", json!(3)),
            ("features", json!(["More requests"])),
            ("included_credits_per_month", json!("20000")),
            (
                "includes",
                json!([
                    "20000 credits with each payment",
                    "1,000,000 requests a minute"
                ]),
            ),
            (
                "purchase",
                json!({
                    "ucp": "https://api.example.com/ucp/v1/checkout-sessions",
                    "mpp": "https://api.example.com/commerce/subscriptions/svc-pro/mpp",
                    "x402": "https://api.example.com/commerce/subscriptions/svc-pro/x402",
                    "paypal": "https://api.example.com/plan",
                }),
            ),
        ] {
            assert_eq!(product[member], expected, "{what}: {member}");
        }
        assert_eq!(
            product.get("computer_use_tasks_per_month"),
            None,
            "what was not set is not claimed"
        );
        let x402 = product["purchase_notes"]["x402"].as_str().expect("a note");
        assert!(x402.contains("1 USD"), "{x402}");

        let other = ask("/commerce/products/other").await;
        assert_eq!(other.status, 404, "{what}");
        assert_eq!(other.json()["error"]["code"], "not_found", "{what}");
    }
    rig.finish().await;
}
