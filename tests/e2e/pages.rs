//! Pages for people in a browser without JavaScript.

use crate::rig::{Browser, Rig};

#[tokio::test]
async fn pages_redirect_to_sign_in_and_back() {
    let rig = Rig::start().await;
    let mut browser = Browser::new(&rig);
    let page = browser.get("/").await;
    assert_eq!(page.status, 303);
    assert_eq!(page.header("location"), Some("/sign-in"));
    let page = browser.follow(page).await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("<h1>Sign in</h1>"), "{}", page.text());
    rig.finish().await;
}

#[tokio::test]
async fn the_overview_shows_the_balance() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    let page = browser.get("/").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("100.00"), "{}", page.text());
    assert!(page.text().contains(Browser::ADDRESS), "{}", page.text());
    rig.finish().await;
}

#[tokio::test]
async fn signing_out_ends_the_session_and_changes_its_value() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    browser.get("/").await;
    let mut thief = browser.clone();
    let before = browser.cookie().to_owned();
    let page = browser.submit("/sign-out", &[]).await;
    assert_eq!(page.status, 303);
    assert_ne!(browser.cookie(), before);
    for who in [&mut browser, &mut thief] {
        assert_eq!(who.get("/").await.status, 303, "the session has ended");
    }
    rig.finish().await;
}

#[tokio::test]
async fn cross_site_forms_are_refused() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    browser.get("/").await;
    let token = browser.token().to_owned();
    let forged: &[(&[(&str, &str)], &str)] = &[
        (&[("sec-fetch-site", "cross-site")], &token),
        (&[("sec-fetch-site", "same-site")], &token),
        (&[("origin", "https://evil.example")], &token),
        (&[("origin", "null")], &token),
        (&[], ""),
        (&[], "00000000000000000000000000000000"),
    ];
    for (fields, token) in forged {
        let page = browser
            .post_with("/sign-out", fields, &[("csrf", token)])
            .await;
        assert_eq!(page.status, 403, "{fields:?} {token}");
        assert_eq!(browser.get("/").await.status, 200, "still signed in");
    }
    rig.finish().await;
}

#[tokio::test]
async fn every_page_has_security_headers() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    let mut stranger = Browser::new(&rig);
    let pages = [
        browser.get("/").await,
        browser.get("/keys/nothing/here").await,
        stranger.get("/sign-in").await,
        stranger.get("/sign-up").await,
    ];
    for page in pages {
        for (name, value) in [
            ("x-frame-options", "DENY"),
            ("referrer-policy", "same-origin"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
            ("cross-origin-opener-policy", "same-origin"),
        ] {
            assert_eq!(page.header(name), Some(value), "{name}");
        }
        let policy = page.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; style-src 'self'; img-src 'self'; "));
        assert!(policy.contains("frame-ancestors 'none'; base-uri 'none'; form-action 'self'"));
        assert_eq!(page.header("access-control-allow-origin"), None);
    }
    rig.finish().await;
}

#[tokio::test]
async fn assets_are_cacheable_for_a_year_and_not_rate_limited() {
    let rig = Rig::with("[limits.classes.anonymous]\nquota = 3\nwindow_secs = 3600").await;
    let mut browser = Browser::new(&rig);
    let page = browser.get("/sign-in").await;
    let sheets: Vec<&str> = page
        .text()
        .split('"')
        .filter(|piece| piece.starts_with("/assets/"))
        .collect();
    assert!(sheets.len() >= 3, "{sheets:?}");
    for _ in 0..5 {
        for sheet in &sheets {
            let file = browser.get(sheet).await;
            assert_eq!(file.status, 200, "{sheet}");
            assert_eq!(
                file.header("cache-control"),
                Some("public, max-age=31536000, immutable")
            );
        }
    }
    assert_eq!(browser.get("/assets/pages.css").await.status, 404);
    rig.finish().await;
}

#[tokio::test]
async fn public_documents_are_compressed_and_pages_of_a_session_are_not() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    let mut stranger = Browser::new(&rig);
    let page = stranger.get("/sign-in").await;
    let sheet = page.text().split('"').find(|piece| piece.ends_with(".css"));
    let sheet = sheet.expect("a style sheet");
    for path in [
        sheet,
        "/docs",
        "/docs/errors",
        concat!("/docs/errors", ".md"),
        "/llms.txt",
        "/openapi.json",
    ] {
        let plain = stranger
            .get_with(path, &[("accept-encoding", "gzip;q=0, br")])
            .await;
        assert_eq!(plain.status, 200, "{path}");
        assert_eq!(plain.header("content-encoding"), None, "{path}");
        let packed = stranger
            .get_with(path, &[("accept-encoding", "br, gzip")])
            .await;
        assert_eq!(packed.header("content-encoding"), Some("gzip"), "{path}");
        assert!(packed.body.len() * 2 < plain.body.len(), "{path}");
        let mut text = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(&packed.body[..]);
        std::io::Read::read_to_end(&mut decoder, &mut text).expect("gzip");
        assert!(text == plain.body, "{path}: the same document");
        let tag =
            |answer: &tollgate_testing::Answer| answer.header("etag").expect("a tag").to_owned();
        assert_ne!(tag(&plain), tag(&packed), "{path}");
        for (answer, coding) in [(&plain, "identity"), (&packed, "gzip")] {
            let vary = answer.headers.get_all("vary").iter();
            let vary: Vec<&str> = vary.map(|value| value.to_str().expect("text")).collect();
            let vary = vary.join(", ").to_ascii_lowercase();
            assert!(vary.contains("accept-encoding"), "{path}: {vary}");
            let kept = answer.header("cache-control").expect("how long it is kept");
            assert!(kept.starts_with("public, max-age="), "{path}: {kept}");
            let again = [("accept-encoding", coding), ("if-none-match", &tag(answer))];
            let current = stranger.get_with(path, &again).await;
            assert_eq!(
                (current.status, current.text()),
                (304, ""),
                "{path} {coding}"
            );
        }
    }
    for path in ["/", "/keys", "/docs", "/docs/errors", "/sandbox"] {
        let page = browser.get_with(path, &[("accept-encoding", "gzip")]).await;
        assert_eq!(page.status, 200, "{path}");
        assert_eq!(page.header("content-encoding"), None, "{path}");
        assert_eq!(page.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(page.header("etag"), None, "{path}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn errors_before_a_page_are_error_pages() {
    let rig = Rig::with("[limits.classes.anonymous]\nquota = 2\nwindow_secs = 3600").await;
    let mut browser = Browser::new(&rig);
    browser.get("/sign-in").await;
    let large = "x".repeat(70_000);
    let too_large = browser.submit("/sign-in", &[("address", &large)]).await;
    let too_many = browser.get("/sign-in").await;
    let lost = browser.get_as("/no/such/page", "text/html,*/*;q=0.8").await;
    for (page, status, words) in [
        (&too_large, 413, "This form is too large"),
        (&too_many, 429, "Too many requests from your network"),
        (&lost, 404, "This page does not exist"),
    ] {
        assert_eq!(page.status, status);
        assert_eq!(
            page.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert!(page.text().contains(words), "{}", page.text());
        let id = page.header("x-request-id").expect("an id");
        assert!(
            page.text().contains(&format!("<code>{id}</code>")),
            "{}",
            page.text()
        );
        assert!(page.header("content-security-policy").is_some());
    }
    assert!(too_many.header("retry-after").is_some());
    let program = browser.get("/no/such/page").await;
    assert_eq!(
        program.json()["error"]["code"],
        "not_found",
        "programs get what they read"
    );
    rig.finish().await;
}
