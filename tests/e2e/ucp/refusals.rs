//! Errors for platforms: authorization, malformed requests, unavailable products.

use bytes::Bytes;
use serde_json::json;
use tollgate_filter::{Resource, Scope, Scopes};
use tollgate_testing::Client;

use super::platform::{AGENT, PROTOCOL, Platform, SERVICE, plan};
use super::schemas::{ERROR, assert_keeps_to};
use crate::rig::{Rig, Token};

#[tokio::test]
async fn a_platform_without_a_credential_gets_a_challenge() {
    let rig = Rig::start().await;
    let stranger = Platform::of(Client::new(&rig.url()));
    let answer = stranger.post(PROTOCOL, &plan()).await;
    assert_eq!(answer.status, 401);
    let challenge = answer.header("www-authenticate").expect("a challenge");
    assert!(challenge.contains("resource_metadata="), "{challenge}");
    let body = answer.json();
    assert_eq!(body["error"]["code"], "missing_credential");
    assert_eq!(body["messages"][0]["code"], "identity_required");

    let answer = stranger.send("POST", SERVICE, None, &[]).await;
    assert_eq!(answer.status, 401);
    assert_eq!(answer.json()["error"]["code"], "missing_credential");

    let (_, poor) = rig
        .new_key(rig.account, |key| {
            key.scopes = Scopes::NONE.with(Scope::ApiChat).bits();
        })
        .await;
    let poor = Platform::of(Client::new(&rig.url()).with_key(&poor));
    let answer = poor.post(PROTOCOL, &plan()).await;
    assert_eq!(answer.status, 403);
    assert_eq!(answer.json()["messages"][0]["code"], "insufficient_scope");
    rig.finish().await;
}

#[tokio::test]
async fn the_scope_of_the_protocol_opens_its_address_and_no_other() {
    let rig = Rig::start().await;
    let token = Token {
        resource: Resource::Api,
        scopes: &[Scope::CheckoutManage],
        secs: 3600,
    };
    let (_, token) = rig.new_token(rig.account, token).await;
    let platform = Platform::of(Client::new(&rig.url()).with_key(&token));
    let answer = platform.post(PROTOCOL, &json!({"line_items": []})).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let answer = platform.send("POST", SERVICE, None, &[]).await;
    assert_eq!(answer.status, 403);
    let challenge = answer.header("www-authenticate").expect("a challenge");
    assert!(
        challenge.contains("scope=\"commerce:subscribe\""),
        "{challenge}"
    );
    rig.finish().await;
}

#[tokio::test]
async fn a_request_that_cannot_be_understood_is_refused_with_what_is_wrong() {
    let rig = Rig::start().await;
    let platform = Platform::of(rig.client());
    let long = "k".repeat(256);
    let version = "profile=\"https://platform.example/p\"; version=\"2099-01-01\"";
    //  address, fields, status, code
    for (path, fields, status, code) in [
        (PROTOCOL, vec![], 400, "invalid_profile_url"),
        (
            PROTOCOL,
            vec![("ucp-agent", "")],
            400,
            "invalid_profile_url",
        ),
        (
            PROTOCOL,
            vec![("ucp-agent", "profile=\"...\"")],
            400,
            "invalid_profile_url",
        ),
        (
            PROTOCOL,
            vec![("ucp-agent", "profile=\"http://platform.example/p\"")],
            400,
            "invalid_profile_url",
        ),
        (
            PROTOCOL,
            vec![("ucp-agent", "profile=\"http://localhost:1/p\"")],
            400,
            "invalid_profile_url",
        ),
        (
            PROTOCOL,
            vec![("ucp-agent", version)],
            422,
            "version_unsupported",
        ),
        (
            SERVICE,
            vec![("ucp-agent", "nonsense")],
            400,
            "invalid_header",
        ),
        (SERVICE, vec![("ucp-agent", version)], 400, "invalid_header"),
        (
            PROTOCOL,
            vec![AGENT, ("idempotency-key", &long)],
            400,
            "invalid_header",
        ),
        (
            PROTOCOL,
            vec![AGENT, ("idempotency-key", "")],
            400,
            "invalid_header",
        ),
        (
            SERVICE,
            vec![("idempotency-key", &long)],
            400,
            "invalid_header",
        ),
        (
            SERVICE,
            vec![("idempotency-key", "a"), ("idempotency-key", "b")],
            400,
            "invalid_header",
        ),
        (
            PROTOCOL,
            vec![
                AGENT,
                ("signature", "sig1=:AAAA:"),
                ("signature-input", "sig1=();keyid=\"k\""),
            ],
            401,
            "key_not_found",
        ),
        (
            SERVICE,
            vec![("signature", "sig1=:AAAA:")],
            401,
            "key_not_found",
        ),
    ] {
        let answer = platform.send("POST", path, Some(&plan()), &fields).await;
        let what = format!("{path} {fields:?}: {}", answer.text());
        assert_eq!(answer.status, status, "{what}");
        let body = answer.json();
        assert_eq!(body["error"]["code"], code, "{what}");
        if status == 400 {
            assert_eq!(body["retry_action"], "fix_request", "{what}");
            assert_eq!(body["payment_state"], "required", "{what}");
        }
        if path == PROTOCOL {
            assert_eq!(body["code"], code, "{what}");
            assert_eq!(body["content"], body["error"]["message"], "{what}");
        }
    }
    for (body, code) in [
        ("", "invalid_json"),
        ("[]", "invalid_type"),
        ("{}", "missing_field"),
        (r#"{"line_items":[{}]}"#, "missing_field"),
        (r#"{"line_items":[],"line_items":[]}"#, "invalid_json"),
    ] {
        let sent = platform.send_bytes(
            "POST",
            PROTOCOL,
            Bytes::from_static(body.as_bytes()),
            &[AGENT],
        );
        let answer = sent.await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert_eq!(answer.json()["code"], code, "{body}");
        assert_eq!(answer.json()["retry_action"], "fix_request", "{body}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn what_is_not_sold_is_an_outcome_to_platforms_and_missing_to_others() {
    let rig = Rig::start().await;
    let platform = Platform::of(rig.client());
    let other = json!({"line_items": [{"item": {"id": "other"}, "quantity": 1}]});
    let answer = platform.post(PROTOCOL, &other).await;
    assert_eq!(answer.status, 200);
    assert_keeps_to(ERROR, &answer.json());
    assert_eq!(answer.json()["messages"][0]["code"], "not_found");
    for body in [&other, &json!({"product_id": "other"})] {
        let answer = platform.send("POST", SERVICE, Some(body), &[]).await;
        assert_eq!(answer.status, 404, "{body}");
        assert_eq!(answer.json()["error"]["code"], "not_found", "{body}");
    }
    let unknown = format!("/checkout_{}", "0".repeat(32));
    for id in [&*unknown, "/nonsense", "/%00"] {
        let answer = platform.get(&format!("{PROTOCOL}{id}")).await;
        assert_eq!(answer.status, 404, "{id}");
        assert_keeps_to(ERROR, &answer.json());
        let answer = platform.get(&format!("{SERVICE}{id}")).await;
        assert_eq!(answer.status, 404, "{id}");
        assert_eq!(answer.json()["error"]["code"], "not_found", "{id}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn without_a_payment_provider_checkouts_are_refused() {
    let rig = Rig::start().await;
    let platform = Platform::of(rig.client());
    for (path, body) in [(PROTOCOL, Some(plan())), (SERVICE, None)] {
        let answer = platform.send("POST", path, body.as_ref(), &[AGENT]).await;
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.header("retry-after").is_some(), "{path}");
        let body = answer.json();
        assert_eq!(body["error"]["code"], "payment_route_unavailable", "{path}");
        assert_eq!(body["payment_state"], "unavailable", "{path}");
        assert_eq!(body["retry_action"], "retry_same", "{path}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn only_listed_platforms_are_served() {
    let settings = "[ucp]\nprofile_hosts = [\"friend.example\"]";
    let rig = Rig::with(settings).await;
    let platform = Platform::of(rig.client());
    let body = json!({"line_items": []});
    let answer = platform.post(PROTOCOL, &body).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert_eq!(answer.json()["code"], "profile_not_trusted");
    rig.finish().await;
}

#[tokio::test]
async fn unfetchable_profiles_are_refused_only_at_the_protocols_address() {
    let settings = "[ucp]\nprofile_fetch = \"always\"\nprofile_loopback = true";
    let rig = Rig::with(settings).await;
    let platform = Platform::of(rig.client());
    let body = json!({"line_items": []});
    //  URL of the profile, status, code; no name here is looked up
    for (profile, status, code) in [
        ("http://localhost:1/p", 400, "invalid_profile_url"),
        ("https://192.0.2.1/p", 400, "invalid_profile_url"),
    ] {
        let field = format!("profile=\"{profile}\"");
        let agent = ("ucp-agent", field.as_str());
        let answer = platform.send("POST", PROTOCOL, Some(&body), &[agent]).await;
        assert_eq!(answer.status, status, "{profile}: {}", answer.text());
        assert_eq!(answer.json()["code"], code, "{profile}");
        // At the service's address the answer is the same as without a profile.
        let answer = platform.send("POST", SERVICE, None, &[agent]).await;
        assert_eq!(answer.status, 503, "{profile}: {}", answer.text());
        assert_eq!(
            answer.json()["error"]["code"],
            "payment_route_unavailable",
            "{profile}"
        );
    }
    rig.finish().await;
}
