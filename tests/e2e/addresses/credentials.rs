//! `address-limit`: failed and missing credentials count by address, and never against a valid credential.

use tollgate_clock::Clock;
use tollgate_identity::revoke_key;
use tollgate_testing::{Answer, Client};

use crate::rig::{Rig, SECRETS};

const MODELS: &str = "/v1/models";

/// The text of a nonexistent key.
const UNKNOWN: &str = "sk-svc-0123456789";

fn without_credential(rig: &Rig) -> Client {
    Client::new(&rig.url())
}

async fn statuses(client: &Client, requests: usize) -> Vec<u16> {
    let mut statuses = Vec::with_capacity(requests);
    for _ in 0..requests {
        statuses.push(client.get(MODELS).await.status);
    }
    statuses
}

/// A 429 of the bucket `policy`, with every field of a 429.
fn refused_by(answer: &Answer, policy: &str) {
    assert_eq!(answer.status, 429, "{}", answer.text());
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert_eq!(error["type"], "rate_limit_error");
    let expected = format!("\"{policy}\";q=");
    let found = answer.header("ratelimit-policy").expect("a policy");
    assert!(found.starts_with(&expected), "{found}");
    for name in ["ratelimit", "ratelimit-limit", "retry-after"] {
        assert!(answer.header(name).is_some(), "{name}");
    }
    assert_eq!(answer.header("ratelimit-remaining"), Some("0"));
    let wait = answer.header("retry-after");
    assert_eq!(wait, answer.header("ratelimit-reset"));
    assert_eq!(answer.header("www-authenticate"), None);
}

#[tokio::test]
async fn requests_without_a_credential_do_not_lock_out_a_valid_key_or_an_unknown_one() {
    // A window of a day: no request is admitted again during the test.
    let rig = Rig::with("[limits.missing_credentials]\nquota = 120\nwindow_secs = 86400").await;
    let seen = statuses(&without_credential(&rig), 121).await;
    assert!(seen[..120].iter().all(|status| *status == 401), "{seen:?}");
    assert_eq!(seen[120], 429);
    for (what, client) in rig.both() {
        assert_eq!(client.get(MODELS).await.status, 200, "{what}");
    }
    let unknown = without_credential(&rig).with_key(UNKNOWN);
    assert_eq!(unknown.get(MODELS).await.status, 401);
    refused_by(
        &without_credential(&rig).get(MODELS).await,
        "missing-credentials",
    );
    rig.finish().await;
}

#[tokio::test]
async fn unknown_and_revoked_keys_are_refused_together_and_a_valid_key_never_is() {
    let rig = Rig::with("[limits.failed_credentials]\nquota = 6\nwindow_secs = 3600").await;
    let (id, revoked) = rig.new_key(rig.account, |_| {}).await;
    let now = Clock::system().now();
    let written = revoke_key(&*rig.books.store, id, now).await;
    written.expect("the key is revoked");
    let unknown = without_credential(&rig).with_key(UNKNOWN);
    let revoked = without_credential(&rig).with_key(SECRETS.used("a revoked key", &revoked));
    assert_eq!(statuses(&unknown, 3).await, [401; 3]);
    assert_eq!(statuses(&revoked, 3).await, [401; 3]);
    for client in [&unknown, &revoked] {
        refused_by(&client.get(MODELS).await, "failed-credentials");
    }
    // The valid key is always admitted, and does not use up the quota further.
    for (what, client) in rig.both() {
        assert_eq!(statuses(&client, 10).await, [200; 10], "{what}");
    }
    assert_eq!(without_credential(&rig).get(MODELS).await.status, 401);
    let refused = "tollgate_rate_limit_total{class=\"failed-credentials\",decision=\"refused\"}";
    assert_eq!(rig.metric(refused).await, 2);
    rig.finish().await;
}

#[tokio::test]
async fn a_key_of_another_resource_is_wrong_resource_despite_failed_credentials() {
    let rig = Rig::with("[limits.failed_credentials]\nquota = 1\nwindow_secs = 3600").await;
    let unknown = without_credential(&rig).with_key(UNKNOWN);
    assert_eq!(statuses(&unknown, 2).await, [401, 429]);
    for _ in 0..3 {
        let answer = rig.client().post("/mcp", &serde_json::json!({})).await;
        assert_eq!(answer.status, 401, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "wrong_resource");
    }
    rig.finish().await;
}
