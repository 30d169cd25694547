//! `POST /oauth/token`: the order of the checks, every refusal, and the token issued for a code.

use std::sync::Arc;

use serde_json::json;
use tollgate_testing::Client;

use super::support::{
    App, BASE, VERIFIER, encoded, form, is_error, register, rig, text, token, works,
};

#[tokio::test]
async fn rfc6749_5_1_a_code_becomes_a_token_that_works_at_its_resource() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let v1 = format!("{BASE}/v1");
    let code = app
        .code(&[("resource", &v1), ("scope", "api:models api:chat")])
        .await;
    assert!(
        code.starts_with("svc_ac_") && code.len() == 53,
        "{} characters",
        code.len()
    );
    let mut pairs = app.exchanging(&code);
    pairs.push(("resource", &v1));
    let answer = token(&rig, &pairs).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("pragma"), Some("no-cache"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let granted = answer.json();
    assert_eq!(granted["token_type"], "Bearer");
    assert_eq!(granted["expires_in"], 3600);
    assert_eq!(granted["scope"], "api:models api:chat");
    assert_eq!(
        granted.as_object().expect("an object").len(),
        5,
        "no id token"
    );
    assert!(text(&granted["refresh_token"]).starts_with("svc_rt_"));
    assert!(text(&granted["access_token"]).starts_with("svc_at_"));
    assert!(works(&rig, &granted["access_token"]).await);
    let exchanged = "tollgate_oauth_total{event=\"code_exchanged\"}";
    assert_eq!(rig.metric(exchanged).await, 1);
    rig.finish().await;
}

#[tokio::test]
async fn a_scope_that_was_not_asked_for_is_the_default_of_the_resource() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let mcp = format!("{BASE}/mcp");
    let android = format!("{BASE}/mcp/android");
    for (changes, scope) in [
        (vec![], "api:models api:chat api:completions"),
        (
            vec![("resource", &*mcp)],
            "mcp:chat mcp:projects mcp:devices",
        ),
        (vec![("resource", &*android)], "mcp:android"),
    ] {
        assert_eq!(app.token(&changes).await["scope"], scope, "{changes:?}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn rfc6749_5_2_every_refusal_has_its_error_code() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let code = app.code(&[]).await;
    let sound = app.exchanging(&code);
    let without = |name: &str| -> Vec<(&str, &str)> {
        sound
            .iter()
            .copied()
            .filter(|(known, _)| *known != name)
            .collect()
    };
    let with = |name: &'static str, value: &'static str| {
        let mut pairs = without(name);
        pairs.push((name, value));
        pairs
    };
    for (pairs, status, word) in [
        (without("grant_type"), 400, "invalid_request"),
        (without("client_id"), 400, "invalid_request"),
        (without("code"), 400, "invalid_request"),
        (without("redirect_uri"), 400, "invalid_request"),
        (without("code_verifier"), 400, "invalid_request"),
        (with("code", ""), 400, "invalid_request"),
        (
            with("grant_type", "password"),
            400,
            "unsupported_grant_type",
        ),
        (
            with("grant_type", "client_credentials"),
            400,
            "unsupported_grant_type",
        ),
        (
            with("grant_type", "implicit"),
            400,
            "unsupported_grant_type",
        ),
        (with("grant_type", "refresh_token"), 400, "invalid_request"),
        (with("client_id", "c_unknown"), 401, "invalid_client"),
        (with("code", "svc_ac_nonsense"), 400, "invalid_grant"),
    ] {
        let answer = token(&rig, &pairs).await;
        is_error(&answer, status, word, &format!("{word} {}", pairs.len()));
        assert_eq!(answer.header("pragma"), Some("no-cache"));
    }
    let body = encoded(&sound);
    for (body, headers, status, word) in [
        (format!("{body}&code=x"), vec![], 400, "invalid_request"),
        (format!("{body}&x=1&x=2"), vec![], 400, "invalid_request"),
        (format!("{body}&x=%zz"), vec![], 400, "invalid_request"),
        (format!("{body}&x=%ff"), vec![], 400, "invalid_request"),
        (
            body.clone(),
            vec![("content-type", "application/json")],
            400,
            "invalid_request",
        ),
        (
            body.clone(),
            vec![("content-type", "multipart/form-data")],
            400,
            "invalid_request",
        ),
        (
            body.clone(),
            vec![("content-encoding", "gzip")],
            400,
            "invalid_request",
        ),
        (
            body.clone(),
            vec![("authorization", "Basic Y186")],
            401,
            "invalid_client",
        ),
        (
            body.clone(),
            vec![("authorization", "Bearer x")],
            401,
            "invalid_client",
        ),
    ] {
        let answer = form(&rig, "/oauth/token", &body, &headers).await;
        is_error(&answer, status, word, &format!("{headers:?}"));
        let challenge = (status == 401).then_some("Basic realm=\"svc\"");
        assert_eq!(answer.header("www-authenticate"), challenge);
    }
    let json = Client::new(&rig.url())
        .post("/oauth/token", &json!({"code": code}))
        .await;
    is_error(&json, 400, "invalid_request", "JSON");
    // No earlier request was a wrong request with the code, so the code still works.
    assert_eq!(token(&rig, &sound).await.status, 200);
    rig.finish().await;
}

#[tokio::test]
async fn a_code_survives_four_wrong_exchanges_and_not_five() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let stranger = App::of(&rig, app.browser.clone(), "https://other.example/cb")
        .await
        .id;
    let mcp = format!("{BASE}/mcp");
    for tries in [4, 5] {
        let code = app.code(&[]).await;
        let sound = app.exchanging(&code);
        let with = |name: &'static str, value: &'static str| {
            let mut pairs: Vec<_> = sound
                .iter()
                .copied()
                .filter(|(known, _)| *known != name)
                .collect();
            pairs.push((name, value));
            pairs
        };
        let mut other_client = with("client_id", "");
        other_client.pop();
        other_client.push(("client_id", &stranger));
        let mut other_resource = sound.clone();
        other_resource.push(("resource", &mcp));
        let wrongs = [
            // The resource is checked before the redirect URI and the verifier.
            (
                {
                    let mut pairs = with("code_verifier", "x");
                    pairs.push(("resource", "https://evil.example"));
                    pairs
                },
                "invalid_target",
            ),
            (other_resource, "invalid_target"),
            (other_client, "invalid_grant"),
            (
                with("redirect_uri", "https://app.example/cb"),
                "invalid_grant",
            ),
            (
                with(
                    "code_verifier",
                    "tollgate-docs-verifier-0123456789-abcdefghijkl",
                ),
                "invalid_grant",
            ),
        ];
        let mut bodies = Vec::new();
        for (pairs, word) in wrongs.into_iter().take(tries) {
            let answer = token(&rig, &pairs).await;
            is_error(&answer, 400, word, &format!("{pairs:?}"));
            if word == "invalid_grant" {
                bodies.push(answer.text().to_owned());
            }
        }
        bodies.dedup();
        assert_eq!(bodies.len(), 1, "the response does not reveal the reason");
        let status = if tries == 4 { 200 } else { 400 };
        assert_eq!(token(&rig, &sound).await.status, status, "after {tries}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn rfc7636_4_6_a_verifier_of_a_wrong_form_meets_no_challenge() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let code = app.code(&[]).await;
    let sound = app.exchanging(&code);
    for verifier in [
        "A".repeat(42),
        "A".repeat(129),
        format!("{}+", "A".repeat(42)),
    ] {
        let pairs: Vec<_> = sound
            .iter()
            .map(|&(name, value)| (name, if value == VERIFIER { &*verifier } else { value }))
            .collect();
        is_error(&token(&rig, &pairs).await, 400, "invalid_grant", &verifier);
    }
    assert_eq!(token(&rig, &sound).await.status, 200);
    rig.finish().await;
}

#[tokio::test]
async fn rfc6749_4_1_2_reuse_of_a_code_revokes_its_token() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let code = app.code(&[]).await;
    let sound = app.exchanging(&code);
    let granted = token(&rig, &sound).await.json();
    assert!(works(&rig, &granted["access_token"]).await);
    is_error(&token(&rig, &sound).await, 400, "invalid_grant", "again");
    assert!(
        !works(&rig, &granted["access_token"]).await,
        "by the next request"
    );
    rig.finish().await;
}

#[tokio::test]
async fn concurrent_exchanges_of_one_code_yield_at_most_one_token() {
    let rig = Arc::new(rig("").await);
    for round in 0..20 {
        let browser = crate::rig::Browser::signed_in_as(
            &rig,
            rig.account,
            &format!("racer{round}@example.com"),
        )
        .await;
        let mut app = App::of(&rig, browser, "https://app.example/cb").await;
        let code = app.code(&[]).await;
        let body = encoded(&app.exchanging(&code));
        let send = || {
            let (rig, body) = (rig.clone(), body.clone());
            tokio::spawn(async move { form(&rig, "/oauth/token", &body, &[]).await })
        };
        let (one, other) = (send(), send());
        let answers = [one.await.expect("no panic"), other.await.expect("no panic")];
        let won: Vec<_> = answers
            .iter()
            .filter(|answer| answer.status == 200)
            .collect();
        assert!(won.len() <= 1, "round {round}");
        for answer in won {
            let token = &answer.json()["access_token"];
            assert!(
                !works(&rig, token).await,
                "round {round}: the loser is taken for a thief"
            );
        }
    }
    let rig = Arc::into_inner(rig).expect("the only reference");
    rig.finish().await;
}

#[tokio::test]
async fn refresh_tokens_rotate_and_reuse_without_grace_revokes_the_family() {
    let rig = rig("[oauth]\nrefresh_grace_secs = 0").await;
    let mut app = App::new(&rig).await;
    let first = app.token(&[("scope", "api:models api:chat")]).await;
    let refresh = text(&first["refresh_token"]);
    assert!(refresh.starts_with("svc_rt_"));
    let id = app.id.clone();
    let ask = |token: &str, more: &[(&str, &str)]| {
        let mut pairs = vec![
            ("grant_type", "refresh_token"),
            ("client_id", &*id),
            ("refresh_token", token),
        ];
        pairs.extend_from_slice(more);
        encoded(&pairs)
    };
    for (more, word) in [
        (vec![("scope", "api:completions")], "invalid_scope"),
        (vec![("scope", "api:chat mcp:chat")], "invalid_scope"),
        (vec![("scope", "mcp:chat")], "invalid_scope"),
        (
            vec![("resource", "https://api.svc.example/mcp")],
            "invalid_target",
        ),
    ] {
        let answer = form(&rig, "/oauth/token", &ask(&refresh, &more), &[]).await;
        is_error(&answer, 400, word, &format!("{more:?}"));
    }
    let less = form(
        &rig,
        "/oauth/token",
        &ask(&refresh, &[("scope", "api:models offline_access")]),
        &[],
    )
    .await;
    assert_eq!(less.status, 200, "{}", less.text());
    let less = less.json();
    assert_eq!(less["scope"], "api:models");
    assert!(works(&rig, &less["access_token"]).await);
    // Strict: a spent token is taken for stolen, and the family of tokens ends.
    let again = form(&rig, "/oauth/token", &ask(&refresh, &[]), &[]).await;
    is_error(&again, 400, "invalid_grant", "spent");
    assert!(!works(&rig, &less["access_token"]).await);
    let next = text(&less["refresh_token"]);
    let dead = form(&rig, "/oauth/token", &ask(&next, &[]), &[]).await;
    is_error(&dead, 400, "invalid_grant", "its successor");
    rig.finish().await;
}

/// A client without the grant type `refresh_token` has no refresh token. With refresh tokens off, no client has a refresh token.
#[tokio::test]
async fn only_a_client_that_registered_for_refresh_tokens_gets_one() {
    for (settings, grant_types) in [
        ("", json!(["authorization_code"])),
        (
            "[oauth]\nrefresh_tokens = false",
            json!(["authorization_code", "refresh_token"]),
        ),
    ] {
        let rig = rig(settings).await;
        let mut app = App::new(&rig).await;
        let metadata = json!({"redirect_uris": [app.redirect], "grant_types": grant_types});
        let registered = register(&rig, &metadata).await.json();
        assert_eq!(registered["grant_types"], json!(["authorization_code"]));
        app.id = text(&registered["client_id"]);
        let path = app.ask(&[]).await;
        let page = app.browser.get(&path).await;
        assert!(page.text().contains("Access ends after 1 hour, or sooner"));
        let token = app.token(&[]).await;
        assert_eq!(token.get("refresh_token"), None);
        rig.finish().await;
    }
}

#[tokio::test]
async fn two_refreshes_at_once_get_the_same_successor() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let first = app.token(&[]).await;
    let refresh = text(&first["refresh_token"]);
    let pairs = [
        ("grant_type", "refresh_token"),
        ("client_id", &*app.id),
        ("refresh_token", &*refresh),
    ];
    let (one, other) = tokio::join!(token(&rig, &pairs), token(&rig, &pairs));
    assert_eq!((one.status, other.status), (200, 200), "{}", other.text());
    let (one, other) = (one.json(), other.json());
    assert_eq!(one["refresh_token"], other["refresh_token"]);
    assert_ne!(one["refresh_token"], first["refresh_token"]);
    for token in [&first, &one, &other] {
        assert!(works(&rig, &token["access_token"]).await);
    }
    rig.finish().await;
}
