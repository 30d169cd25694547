//! `POST /oauth/revoke` (RFC 7009): responses, and the effect on tokens.

use super::support::{App, encoded, form, is_error, rig, text, works};

#[tokio::test]
async fn rfc7009_2_2_revocation_of_any_token_returns_200() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let granted = app.token(&[]).await;
    let live = text(&granted["access_token"]);
    let key = rig.key.clone();
    for pairs in [
        vec![("token", "nonsense")],
        vec![(
            "token",
            "svc_at_7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M1aEA4s",
        )],
        vec![("token", &*key)],
        vec![("token", &*live), ("client_id", "c_other")],
        vec![("token", "nonsense"), ("token_type_hint", "something")],
    ] {
        let answer = form(&rig, "/oauth/revoke", &encoded(&pairs), &[]).await;
        assert_eq!(answer.status, 200, "{pairs:?}");
        assert!(answer.body.is_empty(), "{pairs:?}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    assert!(
        works(&rig, &granted["access_token"]).await,
        "another client's word"
    );
    assert_eq!(
        rig.client().get("/v1/models").await.status,
        200,
        "keys are revoked elsewhere"
    );

    let pairs = [
        ("token", &*live),
        ("token_type_hint", "refresh_token"),
        ("client_id", &*app.id),
    ];
    for _ in 0..2 {
        let answer = form(&rig, "/oauth/revoke", &encoded(&pairs), &[]).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0));
        assert!(
            !works(&rig, &granted["access_token"]).await,
            "by the next request"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn rfc7009_2_1_revocation_requires_a_token() {
    let rig = rig("").await;
    for (body, headers) in [
        ("", vec![]),
        ("token=", vec![]),
        ("token_type_hint=access_token", vec![]),
        ("token=a&token=b", vec![]),
        ("token=%zz", vec![]),
        (
            "{\"token\":\"a\"}",
            vec![("content-type", "application/json")],
        ),
    ] {
        let answer = form(&rig, "/oauth/revoke", body, &headers).await;
        is_error(&answer, 400, "invalid_request", body);
    }
    rig.finish().await;
}

#[tokio::test]
async fn revocation_requires_no_client_authentication() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let (one, other) = (app.token(&[]).await, app.token(&[]).await);
    let pairs = |token: &serde_json::Value| encoded(&[("token", token.as_str().expect("a text"))]);
    form(&rig, "/oauth/revoke", &pairs(&one["access_token"]), &[]).await;
    assert!(!works(&rig, &one["access_token"]).await);
    assert!(works(&rig, &other["access_token"]).await, "it alone");
    // The revocation of a refresh token revokes the whole family.
    form(&rig, "/oauth/revoke", &pairs(&other["refresh_token"]), &[]).await;
    assert!(!works(&rig, &other["access_token"]).await);
    rig.finish().await;
}
