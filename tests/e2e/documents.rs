//! Public onboarding documents.

use bytes::Bytes;
use serde_json::json;

use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, Setup, chat};

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
    let settings =
        "[service]\nbase_url = \"https://api.example.com\"\n[onboarding]\nservice = \"Example\"";
    let rig = Setup::offering_everything(settings).start().await;
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

/// Documents with a list of the service's offers.
async fn lists(rig: &Rig) -> [(&'static str, String); 5] {
    let mut all = [
        "/llms.txt",
        "/openapi.json",
        "/commerce/products/svc-pro",
        "/.well-known/oauth-authorization-server",
        concat!("/docs/paying", ".md"),
    ]
    .map(|path| (path, String::new()));
    for (path, text) in &mut all {
        let answer = rig.client().get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        *text = answer.text().to_owned();
    }
    all
}

#[tokio::test]
async fn what_is_not_configured_is_not_advertised() {
    const OPTIONAL: [&str; 6] = [
        "/x402",
        "/mpp",
        "/ucp/v1/checkout-sessions",
        "/.well-known/ucp",
        "localhost/mcp",
        "server-card.json",
    ];
    let base = "service.base_url = 'https://localhost'\n\
                onboarding.free_tier.apk_download_url = 'https://localhost/a.apk'";
    let rig = Rig::with(base).await;
    for (path, text) in lists(&rig).await {
        for absent in OPTIONAL.into_iter().chain(["/sign-up", "localhost/plan"]) {
            // The document about onboarding always has every member, and OpenAPI describes the members.
            assert!(!text.contains(absent), "{absent} in {path}: {text}");
        }
    }
    let product = rig.client().get("/commerce/products/svc-pro").await.json();
    assert_eq!(product["purchase"], json!({}));
    assert_eq!(product["purchase_notes"], json!({}));
    let entry = rig.client().get("/developer/onboarding").await.json();
    assert_eq!(entry["free_tier"]["available"], false);
    for path in [
        "/.well-known/ucp",
        "/.well-known/mcp/server-card.json",
        "/.well-known/mcp/android/server-card.json",
    ] {
        let answer = rig.client().get(path).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.json()["error"]["code"], "not_found", "{path}");
    }
    rig.finish().await;

    let rig = Setup::offering_everything(base).start().await;
    let all: String = lists(&rig)
        .await
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    for present in OPTIONAL {
        assert!(all.contains(present), "{present}");
    }
    let entry = rig.client().get("/developer/onboarding").await.json();
    assert_eq!(entry["free_tier"]["available"], true);
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
