//! The payment routes: authorization, and errors where nothing is sold.

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
