//! Documents that are the same for everybody: how to get in.

use bytes::Bytes;

use crate::rig::Rig;

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
async fn anybody_can_read_how_to_get_in_and_keep_a_copy() {
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
