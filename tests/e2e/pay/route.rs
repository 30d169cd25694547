//! The payment routes: authorization, and errors without sales.

use serde_json::json;
use tollgate_filter::{Resource, Scope};
use tollgate_testing::Client;

use crate::rig::{Rig, Token};

#[tokio::test]
async fn unauthorized_requests_get_no_payment_challenge() {
    let rig = Rig::start().await;
    let (_, no_scope) = rig
        .new_token(
            rig.account,
            Token {
                resource: Resource::Api,
                scopes: &[Scope::ApiChat],
                secs: 60,
            },
        )
        .await;
    for way in ["x402", "mpp"] {
        let path = format!("/commerce/subscriptions/svc-pro/{way}");
        let anonymous = Client::new(&rig.url()).post(&path, &json!({})).await;
        assert_eq!(anonymous.status, 401, "{way}");
        assert_eq!(anonymous.json()["error"]["code"], "missing_credential");
        let other = Client::new(&rig.url()).with_key(&no_scope);
        let other = other.post(&path, &json!({})).await;
        assert_eq!(other.status, 403, "{way}");
        let challenge = other.header("www-authenticate").unwrap_or_default();
        assert!(challenge.contains("commerce:subscribe"), "{challenge}");
        for answer in [anonymous, other] {
            assert_eq!(answer.header("payment-required"), None, "{way}");
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn an_unknown_plan_is_404_and_an_unconfigured_route_503() {
    let rig = Rig::start().await;
    for way in ["x402", "mpp"] {
        for plan in ["svc-plus", "pro", "svc-pro-monthly"] {
            let path = format!("/commerce/subscriptions/{plan}/{way}");
            let answer = rig.client().post(&path, &json!({})).await;
            assert_eq!(answer.status, 404, "{path}");
            assert_eq!(answer.json()["error"]["code"], "not_found");
        }
        let path = format!("/commerce/subscriptions/svc-pro/{way}");
        let answer = rig.client().post(&path, &json!({})).await;
        assert_eq!(answer.status, 503, "{way}");
        assert_eq!(answer.json()["error"]["code"], "payment_route_unavailable");
        assert!(answer.header("retry-after").is_some(), "{way}");
        assert_eq!(answer.header("payment-required"), None, "{way}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_request_that_has_to_be_corrected_is_not_a_reason_to_pay() {
    let rig = Rig::start().await;
    for path in [
        "/commerce/subscriptions/svc-pro/x402",
        "/commerce/subscriptions/svc-pro/mpp",
        "/ucp/v1/checkout-sessions",
    ] {
        // Refused by `auth`, before the filter of the protocol.
        let mut request = rig
            .client()
            .request("POST", path, bytes::Bytes::from_static(b"{}"));
        let second = "Bearer sk-svc-other".parse().expect("a value");
        request.headers_mut().append("authorization", second);
        let answer = rig.client().send(request).await;
        let body = answer.json();
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(body["retry_action"], "fix_request", "{path}");
        assert_eq!(body["payment_state"], "required", "{path}");
        assert_eq!(body["error"]["type"], "invalid_request_error", "{path}");
    }
    // On routes without purchases, the envelope is unchanged.
    let mut request = rig
        .client()
        .request("GET", "/v1/models", bytes::Bytes::new());
    let second = "Bearer sk-svc-other".parse().expect("a value");
    request.headers_mut().append("authorization", second);
    let answer = rig.client().send(request).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json().get("retry_action"), None);
    rig.finish().await;
}
