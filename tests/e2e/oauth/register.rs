//! `POST /oauth/register` (RFC 7591).

use bytes::Bytes;
use serde_json::{Value, json};
use tollgate_testing::Client;

use super::support::{encoded, is_error, register, rig, text};
use crate::rig::Browser;

#[tokio::test]
async fn rfc7591_3_2_1_registration_returns_the_metadata_without_a_secret() {
    let rig = rig("").await;
    let metadata = json!({
        "client_name": "Note\u{202e}book\r\n Copilot",
        "redirect_uris": ["https://app.example/cb", "http://localhost/callback", "http://127.0.0.1:47211/cb"],
        "grant_types": ["authorization_code", "refresh_token", "urn:example:other"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
        "logo_uri": "http://127.0.0.1:1/never-fetched",
        "scope": "openid",
    });
    let answer = register(&rig, &metadata).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let client = answer.json();
    let id = text(&client["client_id"]);
    assert!(id.starts_with("c_") && id.len() == 24, "{id}");
    assert!(
        client["client_id_issued_at"]
            .as_i64()
            .is_some_and(|at| at > 1_700_000_000)
    );
    assert_eq!(client["client_name"], "Notebook Copilot");
    assert_eq!(client["redirect_uris"], metadata["redirect_uris"]);
    assert_eq!(
        client["grant_types"],
        json!(["authorization_code", "refresh_token"]),
        "what there is"
    );
    assert_eq!(client["response_types"], json!(["code"]));
    assert_eq!(client["token_endpoint_auth_method"], "none");
    assert_eq!(client.as_object().expect("an object").len(), 7, "{client}");

    let least = register(&rig, &json!({"redirect_uris": ["https://app.example"]})).await;
    assert_eq!(least.status, 201);
    let least = least.json();
    assert_ne!(least["client_id"], client["client_id"]);
    assert_eq!(least["token_endpoint_auth_method"], "none");
    assert_eq!(least.get("client_name"), None);
    rig.finish().await;
}

#[tokio::test]
async fn rfc7591_3_2_2_invalid_metadata_is_refused_with_its_error_code() {
    let rig = rig("").await;
    let sound = json!(["https://app.example/cb"]);
    let redirects = "invalid_redirect_uri";
    let metadata = "invalid_client_metadata";
    let with = |member: &str, value: Value| {
        let mut body = json!({"redirect_uris": sound});
        body[member] = value;
        body
    };
    for (body, word) in [
        (json!({}), redirects),
        (json!({"redirect_uris": []}), redirects),
        (
            json!({"redirect_uris": "https://app.example/cb"}),
            redirects,
        ),
        (json!({"redirect_uris": [1]}), redirects),
        (
            json!({"redirect_uris": vec!["https://app.example/cb"; 11]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["http://app.example/cb"]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["https://app.example/cb#x"]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["https://a@app.example/cb"]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["https://app.example/a/../b"]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["http://127.0.0.1.example.com/cb"]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["http://localhost.evil.example/cb"]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["http://localhost@evil.example/cb"]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["http://[::ffff:10.0.0.1]/cb"]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["http://2130706433/cb"]}),
            redirects,
        ),
        (
            json!({"redirect_uris": ["http://0177.0.0.1/cb"]}),
            redirects,
        ),
        (json!({"redirect_uris": ["http://127.0.0.2/cb"]}), redirects),
        (json!({"redirect_uris": ["com.example.app:/cb"]}), redirects),
        (json!({"redirect_uris": ["javascript:alert(1)"]}), redirects),
        (
            json!({"redirect_uris": [format!("https://app.example/{}", "a".repeat(2000))]}),
            redirects,
        ),
        (with("client_name", json!(["n"])), metadata),
        (with("grant_types", json!(["client_credentials"])), metadata),
        (with("grant_types", json!([])), metadata),
        (with("grant_types", json!("authorization_code")), metadata),
        (with("response_types", json!(["token"])), metadata),
        (
            with("token_endpoint_auth_method", json!("private_key_jwt")),
            metadata,
        ),
        (json!([]), metadata),
        (json!("x"), metadata),
    ] {
        let answer = register(&rig, &body).await;
        is_error(&answer, 400, word, &body.to_string());
    }
    rig.finish().await;
}

#[tokio::test]
async fn rfc7591_3_2_1_a_value_that_cannot_be_used_does_not_refuse_the_registration() {
    let rig = rig("").await;
    let usable = ["https://app.example/cb", "http://127.0.0.1:33418/"];
    let sound = json!({"client_name": "Notebook Copilot", "redirect_uris": usable, "grant_types": ["authorization_code"]});
    type Change = fn(&mut Value);
    let cases: [(Change, &str, Value); 8] = [
        (
            |one| {
                one["redirect_uris"] = json!([
                    "vscode://vscode.github-authentication/did-authenticate",
                    "https://app.example/cb",
                    "com.example.app:/cb",
                    "http://127.0.0.1:33418/",
                    "http://app.example/cb",
                    7,
                ]);
            },
            "redirect_uris",
            json!(usable),
        ),
        (
            |one| one["redirect_uris"] = json!(["cursor://anysphere/cb", "http://localhost/cb"]),
            "redirect_uris",
            json!(["http://localhost/cb"]),
        ),
        (
            |one| one["grant_types"] = json!(["authorization_code", "implicit", null]),
            "grant_types",
            json!(["authorization_code"]),
        ),
        (
            |one| one["response_types"] = json!(["code", "id_token", "code token"]),
            "response_types",
            json!(["code"]),
        ),
        (
            |one| one["token_endpoint_auth_method"] = json!("client_secret_post"),
            "token_endpoint_auth_method",
            json!("none"),
        ),
        (
            |one| one["token_endpoint_auth_method"] = json!("client_secret_basic"),
            "token_endpoint_auth_method",
            json!("none"),
        ),
        (
            |one| one["client_name"] = json!("n".repeat(81)),
            "client_name",
            Value::Null,
        ),
        (
            |one| one["scope"] = json!("openid email profile offline_access"),
            "redirect_uris",
            json!(usable),
        ),
    ];
    for (change, member, registered) in cases {
        let mut metadata = sound.clone();
        change(&mut metadata);
        let answer = register(&rig, &metadata).await;
        assert_eq!(answer.status, 201, "{metadata}: {}", answer.text());
        let client = answer.json();
        assert_eq!(client[member], registered, "{metadata}");
        assert_eq!(client.get("client_secret"), None);
    }
    // An omitted address does not belong to the client.
    let mixed = json!({"redirect_uris": ["cursor://anysphere/cb", "https://app.example/cb"]});
    let id = text(&register(&rig, &mixed).await.json()["client_id"]);
    let asking = encoded(&[
        ("client_id", &id),
        ("redirect_uri", "cursor://anysphere/cb"),
    ]);
    let page = Browser::new(&rig)
        .get(&format!("/oauth/authorize?{asking}"))
        .await;
    assert_eq!((page.status, page.header("location")), (400, None));
    // The reason of the first refused address, if no address is left.
    let none = json!({"redirect_uris": ["cursor://anysphere/cb", "http://app.example/cb"]});
    let refused = register(&rig, &none).await;
    is_error(&refused, 400, "invalid_redirect_uri", "none is left");
    let description = text(&refused.json()["error_description"]);
    assert!(
        description.contains("must start with https://"),
        "{description}"
    );
    rig.finish().await;
}

#[tokio::test]
async fn an_ambiguous_registration_is_refused() {
    let rig = rig("").await;
    let client = Client::new(&rig.url());
    let sound = r#"{"redirect_uris":["https://app.example/cb"]}"#;
    for (kind, coding, body) in [
        (
            "application/json",
            None,
            r#"{"redirect_uris":["https://app.example/cb"],"redirect_uris":["https://evil.example/cb"]}"#,
        ),
        (
            "application/json",
            None,
            r#"{"redirect_uris":["https://app.example/cb"],"x":{"a":1,"a":2}}"#,
        ),
        ("application/json", None, "{"),
        ("application/json", None, ""),
        ("application/x-www-form-urlencoded", None, sound),
        ("text/plain", None, sound),
        ("application/json", Some("gzip"), sound),
    ] {
        let mut request = client.request("POST", "/oauth/register", Bytes::from(body));
        let fields = request.headers_mut();
        fields.insert("content-type", kind.parse().expect("a value"));
        if let Some(coding) = coding {
            fields.insert("content-encoding", coding.parse().expect("a value"));
        }
        let answer = client.send(request).await;
        is_error(
            &answer,
            400,
            "invalid_client_metadata",
            &format!("{kind} {coding:?} {body}"),
        );
    }
    let mut request = client.request("POST", "/oauth/register", Bytes::from(sound));
    let kind = "Application/JSON; charset=utf-8";
    request
        .headers_mut()
        .insert("content-type", kind.parse().expect("a value"));
    assert_eq!(client.send(request).await.status, 201);

    let large = json!({"redirect_uris": ["https://app.example/cb"], "x": "x".repeat(70_000)});
    let answer = register(&rig, &large).await;
    is_error(&answer, 413, "invalid_request", "more than the limit");
    rig.finish().await;
}
