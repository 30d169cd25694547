//! `GET /oauth/authorize`: the order of the checks, and the place of a failure's report.

use bytes::Bytes;
use tollgate_testing::Client;

use super::support::{App, BASE, REDIRECT, encoded, parameter, rig, way_back};
use crate::rig::Browser;

#[tokio::test]
async fn untrusted_authorization_requests_are_error_pages_and_never_redirects() {
    let rig = rig("").await;
    let app = App::new(&rig).await;
    let mut stranger = Browser::new(&rig);
    let (id, redirect) = (app.id.as_str(), app.redirect.as_str());
    let other = encoded(&[("redirect_uri", "https://evil.example/cb")]);
    let queries = [
        (
            String::new(),
            "client_id must occur exactly once in the query",
        ),
        (
            app.asking(&[("client_id", "")]),
            "client_id must occur exactly once in the query",
        ),
        (
            app.asking(&[("client_id", id), ("client_id", id)]),
            "client_id must occur exactly once in the query",
        ),
        (
            format!("{}&client_id=", app.asking(&[])),
            "client_id must occur exactly once in the query",
        ),
        (
            app.asking(&[("client_id", "c_unknown")]),
            "No app is registered",
        ),
        (
            app.asking(&[("redirect_uri", "")]),
            "redirect_uri must occur exactly once in the query",
        ),
        (
            app.asking(&[("redirect_uri", redirect), ("redirect_uri", redirect)]),
            "redirect_uri must occur exactly once in the query",
        ),
        (
            format!("{}&{other}", app.asking(&[])),
            "redirect_uri must occur exactly once in the query",
        ),
        (
            app.asking(&[("redirect_uri", "https://app.example/cb")]),
            "not registered for the app",
        ),
        (
            app.asking(&[("redirect_uri", "https://app.example/cb?x=1&y")]),
            "not registered for the app",
        ),
        (
            app.asking(&[("redirect_uri", "https://APP.example/cb?x=1")]),
            "not registered for the app",
        ),
        (
            app.asking(&[("redirect_uri", "//app.example/cb?x=1")]),
            "not registered for the app",
        ),
        (
            app.asking(&[("redirect_uri", "https://app.example/cb?x=1#f")]),
            "not registered for the app",
        ),
        (
            app.asking(&[("redirect_uri", "javascript:alert(1)")]),
            "not registered for the app",
        ),
        (format!("{}&x=%zz", app.asking(&[])), "not validly encoded"),
        (format!("{}&x=%ff", app.asking(&[])), "not validly encoded"),
    ];
    for (query, reason) in queries {
        let path = if query.is_empty() {
            "/oauth/authorize"
        } else {
            &query
        };
        let page = stranger.get(path).await;
        assert_eq!(page.status, 400, "{query}");
        assert_eq!(page.header("location"), None, "{query}");
        assert_eq!(
            page.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert_eq!(page.header("cache-control"), Some("no-store"));
        assert_eq!(page.header("x-frame-options"), Some("DENY"));
        let text = page.text();
        assert!(text.contains("This request cannot be trusted"), "{query}");
        assert!(text.contains(reason), "{query}: {text}");
        assert!(
            !text.contains("evil.example"),
            "nothing of it is repeated: {query}"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn other_failures_are_redirected_to_the_client_in_the_order_of_the_checks() {
    let rig = rig("").await;
    let app = App::new(&rig).await;
    let v1 = format!("{BASE}/v1");
    let mcp = format!("{BASE}/mcp");
    let long = "s".repeat(2049);
    type Changes<'a> = Vec<(&'a str, &'a str)>;
    let cases: Vec<(Changes<'_>, &str)> = vec![
        // A row fails the row's own check, and some later checks.
        (
            vec![("scope", "x"), ("scope", "x"), ("response_type", "token")],
            "invalid_request",
        ),
        (vec![("unknown", "1"), ("unknown", "2")], "invalid_request"),
        (
            vec![("code_challenge", ""), ("response_type", "")],
            "invalid_request",
        ),
        (
            vec![("response_type", ""), ("resource", "x")],
            "invalid_request",
        ),
        (
            vec![("response_type", "token"), ("code_challenge", "")],
            "unsupported_response_type",
        ),
        (
            vec![("response_type", "code token")],
            "unsupported_response_type",
        ),
        (
            vec![("code_challenge", ""), ("resource", "x")],
            "invalid_request",
        ),
        (vec![("code_challenge", "short")], "invalid_request"),
        (
            vec![(
                "code_challenge",
                "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw+cM",
            )],
            "invalid_request",
        ),
        (vec![("code_challenge_method", "")], "invalid_request"),
        (
            vec![("code_challenge_method", "plain"), ("scope", "x")],
            "invalid_request",
        ),
        (vec![("code_challenge_method", "s256")], "invalid_request"),
        (
            vec![("resource", "https://evil.example/v1"), ("scope", "x")],
            "invalid_target",
        ),
        (
            vec![("resource", "https://API.svc.example/v1")],
            "invalid_target",
        ),
        (
            vec![("resource", "https://api.svc.example/v1?x")],
            "invalid_target",
        ),
        (
            vec![("resource", "https://svc.example/mcp")],
            "invalid_target",
        ),
        (
            vec![("resource", &v1), ("resource", &mcp)],
            "invalid_target",
        ),
        (vec![("scope", "openid email profile")], "invalid_scope"),
        (vec![("scope", "offline_access")], "invalid_scope"),
        (vec![("scope", " ")], "invalid_scope"),
        (vec![("scope", "API:chat")], "invalid_scope"),
        (
            vec![("scope", "api:chat openid"), ("resource", &mcp)],
            "invalid_scope",
        ),
        (vec![("scope", "mcp:chat")], "invalid_scope"),
    ];
    let mut stranger = Browser::new(&rig);
    for (changes, error) in cases {
        let answer = stranger.get(&app.asking(&changes)).await;
        assert_eq!(answer.status, 400, "{changes:?}: {}", answer.text());
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("location"), None, "{changes:?}");
        let location = way_back(answer.text());
        // To the byte: the registered query stays, and the rest is appended.
        let description = parameter(&location, "error_description").expect("help");
        assert!(answer.text().contains(&description), "{}", answer.text());
        let description = encoded(&[("error_description", &description)]);
        let expected = format!(
            "{REDIRECT}&error={error}&{description}&state=a+b%26c&iss=https%3A%2F%2Fapi.svc.example"
        );
        assert_eq!(location, expected, "{changes:?}");
    }
    // A repeated or overlong state is not returned.
    for changes in [
        vec![("state", "1"), ("state", "2")],
        vec![("state", &*long)],
    ] {
        let answer = stranger.get(&app.asking(&changes)).await;
        let location = way_back(answer.text());
        assert_eq!(
            parameter(&location, "error").as_deref(),
            Some("invalid_request")
        );
        assert_eq!(parameter(&location, "state"), None);
        assert_eq!(parameter(&location, "iss").as_deref(), Some(BASE));
    }
    rig.finish().await;
}

/// Programs add the scopes of OpenID Connect, or every scope of the server's metadata, to every request.
#[tokio::test]
async fn rfc6749_3_3_scopes_that_the_resource_does_not_have_are_left_out_and_never_added() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let metadata = Client::new(&rig.url())
        .get("/.well-known/oauth-authorization-server")
        .await
        .json();
    let supported: Vec<&str> = metadata["scopes_supported"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|scope| scope.as_str())
        .collect();
    let all = format!(
        "{} mcp:chat mcp:android offline_access",
        supported.join(" ")
    );
    let (mcp, android) = (format!("{BASE}/mcp"), format!("{BASE}/mcp/android"));
    for (scope, resource, granted) in [
        ("api:chat offline_access", "", "api:chat"),
        ("openid email profile api:models", "", "api:models"),
        (&*all, &*mcp, "mcp:chat"),
        (&*all, &*android, "mcp:android"),
        ("mcp:devices api:chat", &*mcp, "mcp:devices"),
    ] {
        let token = app.token(&[("scope", scope), ("resource", resource)]).await;
        assert_eq!(token["scope"], granted, "{scope} at {resource}");
    }
    rig.finish().await;
}

/// Registration is open, and therefore a browser is redirected to a registered address only with consent. A loopback address is exempt.
#[tokio::test]
async fn failures_are_redirected_automatically_only_to_loopback() {
    let rig = rig("").await;
    for (address, by_itself) in [
        ("http://127.0.0.1:5000/cb", true),
        ("http://[::1]:5000/cb", true),
        ("http://localhost:5000/cb", true),
        ("https://app.example/cb", false),
        ("https://127.0.0.1/cb", false),
    ] {
        let mut app = App::of(&rig, Browser::new(&rig), address).await;
        let asking = app.asking(&[("scope", "openid")]);
        let answer = app.browser.get(&asking).await;
        let start = format!("{address}?error=invalid_scope&");
        match by_itself {
            true => {
                let location = answer.header("location").unwrap_or_default();
                assert_eq!(answer.status, 303, "{address}");
                assert!(location.starts_with(&start), "{location}");
            }
            false => {
                let page = answer.text();
                assert_eq!((answer.status, answer.header("location")), (400, None));
                assert!(way_back(page).starts_with(&start), "{page}");
                assert!(page.contains("Go back to "), "{page}");
            }
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_valid_request_leads_through_sign_in_to_the_consent_page() {
    let rig = rig("").await;
    let app = App::new(&rig).await;
    let v1 = format!("{BASE}/v1");
    let most = "s".repeat(2048);
    for changes in [
        vec![],
        vec![("state", "")],
        vec![("state", &*most)],
        vec![("scope", "api:chat  api:chat")],
        vec![("resource", &*v1), ("resource", &*v1)],
        vec![("resource", "https://svc.example/")],
        vec![
            ("resource", "https://api.svc.example/mcp/android"),
            ("scope", "mcp:android"),
        ],
        vec![
            ("prompt", "none"),
            ("nonce", "n"),
            ("login_hint", "ada@example.com"),
            ("request_uri", "https://x.example"),
        ],
    ] {
        let mut stranger = Browser::new(&rig);
        let answer = stranger.get(&app.asking(&changes)).await;
        assert_eq!(answer.status, 303, "{changes:?}");
        let path = answer.header("location").expect("a way on").to_owned();
        assert!(path.starts_with("/consent/"), "{changes:?}: {path}");
        assert!(
            !path.contains('?'),
            "nothing of the request is in the address"
        );
        let answer = stranger.get(&path).await;
        let next = encoded(&[("next", &path)]);
        assert_eq!(
            answer.header("location"),
            Some(&*format!("/sign-in?{next}"))
        );
    }
    // HEAD is redirected like GET, and stores no authorization request.
    let client = Client::new(&rig.url());
    let head = client
        .send(client.request("HEAD", &app.asking(&[]), Bytes::new()))
        .await;
    assert_eq!(
        (head.status, head.header("location")),
        (303, Some("/sign-in"))
    );
    let post = client
        .send(client.request("POST", "/oauth/authorize", Bytes::new()))
        .await;
    assert_eq!(
        (post.status, post.header("allow")),
        (405, Some("GET, HEAD, OPTIONS"))
    );
    rig.finish().await;
}

#[tokio::test]
async fn rfc8252_7_3_loopback_redirects_allow_any_port() {
    let rig = rig("").await;
    let mut app = App::at(&rig, "http://127.0.0.1:47211/cb").await;
    for (asked, accepted) in [
        ("http://127.0.0.1:47211/cb", true),
        ("http://127.0.0.1:50999/cb", true),
        ("http://127.0.0.1/cb", true),
        ("http://localhost:47211/cb", false),
        ("http://[::1]:47211/cb", false),
        ("http://127.0.0.1:47211/cb/", false),
        ("http://127.0.0.1:47211/CB", false),
        ("http://127.0.0.1:47211/cb?x=1", false),
        ("https://127.0.0.1:47211/cb", false),
        ("http://127.0.0.1:47211@evil.example/cb", false),
    ] {
        let answer = app
            .browser
            .get(&app.asking(&[("redirect_uri", asked)]))
            .await;
        assert_eq!(answer.status == 303, accepted, "{asked}");
    }
    // The redirect goes to the requested port, and the token request names the requested port too.
    app.redirect = String::from("http://127.0.0.1:50999/cb");
    let address = app.allowed(&[]).await;
    assert!(
        address.starts_with("http://127.0.0.1:50999/cb?code="),
        "{address}"
    );
    rig.finish().await;
}

#[tokio::test]
async fn an_untrusted_client_document_is_an_error_page() {
    let on = rig("").await;
    let mut browser = Browser::new(&on);
    for id in [
        "https://localhost/client.json",
        "https://127.0.0.1/client.json",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/client.json",
        "https://app.example/../client.json",
        "https://user@app.example/client.json",
        "https://app.example/",
        "http://app.example/client.json",
    ] {
        let query = encoded(&[
            ("client_id", id),
            ("redirect_uri", "https://app.example/cb"),
        ]);
        let page = browser.get(&format!("/oauth/authorize?{query}")).await;
        assert_eq!(page.status, 400, "{id}");
        assert_eq!(page.header("location"), None, "{id}");
        let reason = match id.starts_with("https") {
            true => "the document at client_id cannot be fetched",
            false => "No app is registered",
        };
        assert!(page.text().contains(reason), "{id}: {}", page.text());
    }
    on.finish().await;
    // Without client documents, the URL is an ordinary client id.
    let off = rig("[oauth]\nclient_documents = false").await;
    let query = encoded(&[
        ("client_id", "https://app.example/client.json"),
        ("redirect_uri", "https://app.example/cb"),
    ]);
    let page = Browser::new(&off)
        .get(&format!("/oauth/authorize?{query}"))
        .await;
    assert_eq!(page.status, 400);
    assert!(page.text().contains("No app is registered"));
    off.finish().await;
}
