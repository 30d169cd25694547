//! Rate limits of the OAuth endpoints: by network, with errors in the format of OAuth.

use serde_json::json;
use tollgate_testing::Answer;

use super::support::{form, is_error, register};
use crate::rig::{Browser, Rig};

fn is_too_many(answer: &Answer, limit: &str, what: &str) {
    is_error(answer, 429, "temporarily_unavailable", what);
    for name in [
        "ratelimit-policy",
        "ratelimit",
        "ratelimit-reset",
        "retry-after",
    ] {
        assert!(answer.header(name).is_some(), "{what}: {name}");
    }
    assert_eq!(answer.header("ratelimit-limit"), Some(limit), "{what}");
    assert_eq!(answer.header("ratelimit-remaining"), Some("0"), "{what}");
}

#[tokio::test]
async fn registrations_are_limited_by_network() {
    let rig = Rig::start().await;
    let metadata = json!({"redirect_uris": ["https://app.example/cb"]});
    for _ in 0..5 {
        let answer = register(&rig, &metadata).await;
        assert_eq!(answer.status, 201);
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some("\"requests\";q=20;w=3600")
        );
    }
    is_too_many(&register(&rig, &metadata).await, "20", "the sixth");
    // The request is not counted with other requests.
    assert_eq!(
        form(&rig, "/oauth/revoke", "token=x", &[]).await.status,
        200
    );
    rig.finish().await;
}

#[tokio::test]
async fn tokens_revocations_and_authorizations_are_limited_by_network() {
    let rig = Rig::with(
        "[limits.classes.oauth]\nquota = 3\nwindow_secs = 3600\n[limits.classes.authorize]\nquota = 2\nwindow_secs = 3600",
    )
    .await;
    is_error(
        &form(&rig, "/oauth/token", "", &[]).await,
        400,
        "invalid_request",
        "one",
    );
    for _ in 0..2 {
        assert_eq!(
            form(&rig, "/oauth/revoke", "token=x", &[]).await.status,
            200
        );
    }
    is_too_many(&form(&rig, "/oauth/token", "", &[]).await, "3", "a token");
    is_too_many(
        &form(&rig, "/oauth/revoke", "token=x", &[]).await,
        "3",
        "a revocation",
    );
    let mut browser = Browser::new(&rig);
    for _ in 0..2 {
        assert_eq!(browser.get("/oauth/authorize").await.status, 400);
    }
    let page = browser.get("/oauth/authorize").await;
    assert_eq!(page.status, 429);
    let media_type = page.header("content-type");
    assert_eq!(
        media_type,
        Some("text/html; charset=utf-8"),
        "{}",
        page.text()
    );
    assert!(
        page.text()
            .contains("<h1>Too many requests from your network</h1>")
    );
    assert!(page.text().contains("Try again in "), "{}", page.text());
    assert_eq!(page.header("ratelimit-limit"), Some("2"));
    assert_eq!(page.header("ratelimit-remaining"), Some("0"));
    assert!(page.header("retry-after").is_some());
    rig.finish().await;
}
