//! Discovery documents, at every address.

use bytes::Bytes;
use serde_json::{Value, json};
use tollgate_testing::{Answer, Client};

use super::support::{BASE, ROOT, rig};
use crate::rig::{Rig, Setup};

async fn get(rig: &Rig, path: &str, headers: &[(&str, &str)]) -> Answer {
    let client = Client::new(&rig.url());
    let mut request = client.request("GET", path, Bytes::new());
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().expect("a name");
        request
            .headers_mut()
            .insert(name, value.parse().expect("a value"));
    }
    client.send(request).await
}

#[tokio::test]
async fn rfc8414_2_the_metadata_of_the_server_is_exactly_this() {
    let addresses = format!("service.base_url = \"{BASE}\"\nservice.root_url = \"{ROOT}\"");
    let rig = Setup::offering_everything(&addresses).start().await;
    let answer = get(&rig, "/.well-known/oauth-authorization-server", &[]).await;
    assert_eq!(answer.status, 200);
    let expected = json!({
        "issuer": BASE,
        "authorization_endpoint": format!("{BASE}/oauth/authorize"),
        "token_endpoint": format!("{BASE}/oauth/token"),
        "registration_endpoint": format!("{BASE}/oauth/register"),
        "revocation_endpoint": format!("{BASE}/oauth/revoke"),
        "jwks_uri": format!("{BASE}/.well-known/jwks.json"),
        "service_documentation": format!("{BASE}/docs"),
        "scopes_supported": ["api:models", "api:chat", "api:completions", "commerce:subscribe",
                             "mcp:android", "mcp:chat", "mcp:projects", "mcp:devices", "dev.ucp.shopping.checkout:manage"],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true,
        "client_id_metadata_document_supported": true,
        "protected_resources": [format!("{BASE}/v1"), format!("{BASE}/mcp"), format!("{BASE}/mcp/android")],
    });
    assert_eq!(answer.json(), expected);
    rig.finish().await;
}

/// The scopes of the API, common to every installation, are listed with the scopes for purchases.
#[tokio::test]
async fn scopes_for_buying_are_listed_where_something_is_sold() {
    let transfers = format!(
        "[payments.x402]\nfacilitator_url = 'http://127.0.0.1:9'\npay_to = '{}'",
        tollgate_testing::facilitator::MERCHANT
    );
    for (settings, buying) in [("", None), (&transfers, Some("commerce:subscribe"))] {
        let rig = rig(settings).await;
        let metadata = get(&rig, "/.well-known/oauth-authorization-server", &[]).await;
        let mut expected = vec!["api:models", "api:chat", "api:completions"];
        expected.extend(buying);
        assert_eq!(
            metadata.json()["scopes_supported"],
            json!(expected),
            "{settings}"
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn only_enabled_features_are_advertised() {
    let rig = rig("[oauth]\nrefresh_tokens = false\nclient_documents = false").await;
    let metadata = get(&rig, "/.well-known/oauth-authorization-server", &[])
        .await
        .json();
    assert_eq!(
        metadata["grant_types_supported"],
        json!(["authorization_code"])
    );
    let documents = metadata.get("client_id_metadata_document_supported");
    assert_eq!(documents, None);
    assert_eq!(metadata.get("introspection_endpoint"), None);
    rig.finish().await;
}

#[tokio::test]
async fn rfc9728_3_3_each_address_of_a_resource_names_that_address() {
    let rig = rig("").await;
    let api = ["api:models", "api:chat", "api:completions"].as_slice();
    let mcp = ["mcp:chat", "mcp:projects", "mcp:devices"].as_slice();
    for (host, path, resource, scopes) in [
        ("svc.example", "", ROOT.to_owned(), api),
        ("api.svc.example", "", BASE.to_owned(), api),
        ("client.example", "", ROOT.to_owned(), api),
        ("api.svc.example", "/v1", format!("{BASE}/v1"), api),
        ("client.example", "/v1", format!("{BASE}/v1"), api),
        ("api.svc.example", "/v1/", format!("{BASE}/v1/"), api),
        ("api.svc.example", "/mcp", format!("{BASE}/mcp"), mcp),
        ("api.svc.example", "/mcp/", format!("{BASE}/mcp/"), mcp),
        (
            "api.svc.example",
            "/mcp/android",
            format!("{BASE}/mcp/android"),
            &["mcp:android"],
        ),
    ] {
        let path = format!("/.well-known/oauth-protected-resource{path}");
        let answer = get(&rig, &path, &[("host", host)]).await;
        assert_eq!(answer.status, 200, "{host} {path}");
        let document = answer.json();
        assert_eq!(document["resource"], resource, "{host} {path}");
        assert_eq!(document["authorization_servers"], json!([BASE]));
        assert_eq!(document["scopes_supported"], json!(scopes));
        assert_eq!(document["bearer_methods_supported"], json!(["header"]));
        assert!(
            document["resource_name"]
                .as_str()
                .is_some_and(|name| name.starts_with("svc "))
        );
        assert_eq!(document["resource_documentation"], format!("{BASE}/docs"));
    }
    let page = get(&rig, "/docs", &[]).await;
    assert_eq!(page.status, 200, "the documentation that all name");
    rig.finish().await;
}

#[tokio::test]
async fn the_key_set_is_empty_and_what_is_not_published_is_404_in_json() {
    let rig = rig("").await;
    assert_eq!(
        get(&rig, "/.well-known/jwks.json", &[]).await.json(),
        json!({"keys": []})
    );
    for path in [
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration/mcp",
        "/mcp/.well-known/openid-configuration",
        "/.well-known/oauth-authorization-server/mcp",
        "/.well-known/oauth-protected-resource/v2",
        "/.well-known/oauth-protected-resource/mcp/x",
        "/.well-known/oauth-protected-resource/mcp//",
        "/mcp//",
        "/v1/models/",
        "/oauth/introspect",
        "/oauth/userinfo",
    ] {
        let answer = get(&rig, path, &[("origin", "https://app.example")]).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/json"),
            "{path}"
        );
        let body: Value = answer.json();
        assert!(body.get("error").is_some(), "{path}: {body}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn documents_are_kept_for_five_minutes_and_asked_for_again_by_their_tag() {
    let rig = rig("").await;
    for path in [
        "/.well-known/oauth-authorization-server",
        "/.well-known/oauth-protected-resource/v1",
        "/.well-known/jwks.json",
    ] {
        let answer = get(&rig, path, &[("origin", "https://app.example")]).await;
        assert_eq!(
            answer.header("cache-control"),
            Some("public, max-age=300"),
            "{path}"
        );
        assert_eq!(
            answer.header("access-control-allow-origin"),
            Some("*"),
            "{path}"
        );
        let tag = answer.header("etag").expect("a tag").to_owned();
        let known = get(&rig, path, &[("if-none-match", &tag)]).await;
        assert_eq!((known.status, known.body.len()), (304, 0), "{path}");
        let client = Client::new(&rig.url());
        let head = client
            .send(client.request("HEAD", path, Bytes::new()))
            .await;
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        assert_eq!(head.header("etag"), Some(&*tag), "{path}");
        let post = client
            .send(client.request("POST", path, Bytes::new()))
            .await;
        assert_eq!(
            (post.status, post.header("allow")),
            (405, Some("GET, HEAD, OPTIONS"))
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn pages_of_other_origins_may_discover_register_exchange_and_revoke_but_not_authorize() {
    let rig = rig("").await;
    let client = Client::new(&rig.url());
    for (path, method, allowed) in [
        ("/.well-known/oauth-authorization-server", "GET", true),
        ("/.well-known/oauth-protected-resource/mcp", "GET", true),
        ("/.well-known/openid-configuration", "GET", true),
        ("/oauth/register", "POST", true),
        ("/oauth/token", "POST", true),
        ("/oauth/revoke", "POST", true),
        ("/oauth/authorize", "GET", false),
    ] {
        let mut request = client.request("OPTIONS", path, Bytes::new());
        for (name, value) in [
            ("origin", "https://app.example"),
            ("access-control-request-method", method),
            (
                "access-control-request-headers",
                "authorization, content-type, mcp-protocol-version",
            ),
        ] {
            request
                .headers_mut()
                .insert(name, value.parse().expect("a value"));
        }
        let answer = client.send(request).await;
        assert_eq!(answer.status, 204, "{path}");
        let origin = answer.header("access-control-allow-origin");
        assert_eq!(origin, allowed.then_some("*"), "{path}");
        let headers = answer.header("access-control-allow-headers");
        let all = "authorization, content-type, mcp-protocol-version";
        assert_eq!(headers, allowed.then_some(all), "{path}");
        assert_eq!(
            answer.header("access-control-allow-credentials"),
            None,
            "{path}"
        );
    }
    let answer = super::support::form(
        &rig,
        "/oauth/token",
        "",
        &[("origin", "https://app.example")],
    )
    .await;
    assert_eq!(
        answer.header("access-control-allow-origin"),
        Some("*"),
        "errors too"
    );
    rig.finish().await;
}
