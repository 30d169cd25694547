//! Public onboarding documents.

use bytes::Bytes;
use serde_json::json;

use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, chat};

const PATHS: [(&str, &str); 6] = [
    ("/developer/onboarding", "application/json"),
    ("/.well-known/mcp/server-card.json", "application/json"),
    (
        "/.well-known/mcp/android/server-card.json",
        "application/json",
    ),
    ("/llms.txt", "text/plain; charset=utf-8"),
    ("/robots.txt", "text/plain; charset=utf-8"),
    ("/openapi.json", "application/json"),
];

#[tokio::test]
async fn onboarding_documents_are_public_and_cacheable() {
    let rig = Rig::with(
        "[service]\nbase_url = \"https://api.example.com\"\n[onboarding]\nservice = \"Example\"",
    )
    .await;
    for (what, client) in rig.both() {
        for (path, media_type) in PATHS {
            let mut request = client.request("GET", path, Bytes::new());
            request.headers_mut().remove("authorization");
            request
                .headers_mut()
                .insert("origin", "https://e.example".parse().expect("a value"));
            let answer = client.send(request).await;
            let what = format!("{what}: {path}");
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            assert_eq!(answer.header("content-type"), Some(media_type), "{what}");
            assert_eq!(
                answer.header("cache-control"),
                Some("public, max-age=300"),
                "{what}"
            );
            assert_eq!(
                answer.header("access-control-allow-origin"),
                Some("*"),
                "{what}"
            );
            assert!(answer.header("ratelimit").is_some(), "{what} is counted");

            let tag = answer.header("etag").expect("a tag").to_owned();
            let mut again = client.request("GET", path, Bytes::new());
            again
                .headers_mut()
                .insert("if-none-match", tag.parse().expect("a value"));
            let kept = client.send(again).await;
            assert_eq!((kept.status, kept.text()), (304, ""), "{what}");

            let head = client
                .send(client.request("HEAD", path, Bytes::new()))
                .await;
            assert_eq!((head.status, head.text()), (200, ""), "{what}");
            assert_eq!(head.header("etag"), Some(&*tag), "{what}");
        }
        let entry = client.get("/developer/onboarding").await.json();
        assert_eq!(entry["service"], "Example");
        assert_eq!(entry["signup_url"], "https://api.example.com/sign-up");
        let models = client.get("/llms.txt").await;
        assert!(models.text().contains("https://api.example.com/v1"));
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_service_without_a_security_contact_has_no_such_document() {
    let rig = Rig::start().await;
    let answer = rig.client().get("/.well-known/security.txt").await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"]["code"], "not_found");
    rig.finish().await;
}

#[tokio::test]
async fn deprecated_routes_send_deprecation_and_sunset_fields() {
    let rig = Rig::with(
        r#"
        [service]
        base_url = "https://api.example.com"

        [[route]]
        path = "/v1/models"
        methods = ["GET"]
        chain = ["address-limit", "auth", "rate-limit", "models"]
        scope = "api:models"
        cors = "api"
        deprecated_at = "2027-01-01T00:00:00Z"
        sunset_at = "2027-07-01T00:00:00Z"
        successor = "/v2/models"

        [[route]]
        path = "/v1/chat/completions"
        methods = ["POST"]
        chain = ["address-limit", "auth", "rate-limit", "completions", "idempotency", "meter", "cache"]
        scope = "api:chat"
        deprecated_at = "2027-01-01T00:00:00Z"

        [[route]]
        path = "/openapi.json"
        methods = ["GET"]
        chain = ["rate-limit", "onboarding"]

        [[route]]
        path = "/docs/{*page}"
        methods = ["GET"]
        chain = ["rate-limit", "portal"]
        errors = "page"
        "#,
    )
    .await;
    const NOTICE: &str = "<https://api.example.com/docs/lifecycle>; rel=";
    for (what, client) in rig.both() {
        let ended = client.get("/v1/models").await;
        let mut request = client.request("GET", "/v1/models", Bytes::new());
        request.headers_mut().remove("authorization");
        let refused = client.send(request).await;
        let mut question = chat(true);
        question["cache"] = json!(false);
        let stream = client.post(CHAT, &question).await;
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        for (answer, status, sunset) in [
            (&ended, 200, true),
            (&refused, 401, true),
            (&stream, 200, false),
        ] {
            let what = format!("{what}: {status}");
            assert_eq!(answer.status, status, "{what}: {}", answer.text());
            assert_eq!(answer.header("deprecation"), Some("@1798761600"), "{what}");
            let date = sunset.then_some("Thu, 01 Jul 2027 00:00:00 GMT");
            assert_eq!(answer.header("sunset"), date, "{what}");
            let links: Vec<&str> = answer
                .headers
                .get_all("link")
                .iter()
                .map(|link| link.to_str().expect("ASCII"))
                .collect();
            let relation = |word: &str| format!("{NOTICE}\"{word}\"; type=\"text/html\"");
            let mut wanted = vec![relation("deprecation")];
            if sunset {
                wanted.push(relation("sunset"));
                wanted.push(String::from(
                    "<https://api.example.com/v2/models>; rel=\"successor-version\"",
                ));
            }
            assert_eq!(links, wanted, "{what}");
        }
        let document = client.get("/openapi.json").await;
        for name in ["deprecation", "sunset", "link"] {
            assert_eq!(document.header(name), None, "{what}");
        }
        let paths = &document.json()["paths"];
        assert_eq!(paths["/v1/models"]["get"]["deprecated"], true);
        assert!(paths["/v1/completions"]["post"]["deprecated"].is_null());
        let page = client.get("/docs/lifecycle").await;
        assert!(page.text().contains("GET /v1/models"), "{}", page.text());
        assert!(page.text().contains("1 July 2027"), "{}", page.text());
    }
    rig.finish().await;
}
