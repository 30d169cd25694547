//! Attacks on sessions, redirects and pages: at least a test per class of attack.
//!
//! The pages are read from the text of the portal's table, so a new page is tried too.

use bytes::Bytes;
use tollgate_testing::{Answer, Client};

use crate::oauth::support::{App, CHALLENGE, register, rig, token, way_back};
use crate::rig::{Browser, Rig, SECRETS, add_login};
use crate::sign_in::{ask, type_code, with_mailbox};

/// The source text of the table of pages.
const TABLE: &str = include_str!("../../filters/portal/src/routes.rs");

/// Public addresses beside the pages.
const DOCUMENTS: [&str; 8] = [
    "/developer/onboarding",
    "/llms.txt",
    "/robots.txt",
    "/openapi.json",
    "/.well-known/security.txt",
    "/.well-known/mcp/server-card.json",
    "/mcp",
    "/v1/models",
];

/// Parameter names read by pages of the portal or of foreign services.
const NAMES: [&str; 16] = [
    "next",
    "continue",
    "return_to",
    "redirect",
    "redirect_uri",
    "url",
    "state",
    "client_id",
    "error",
    "days",
    "from",
    "to",
    "key",
    "model",
    "page",
    "name",
];

/// Every page of a method, with values for the parameters of the page's pattern.
fn pages(method: &str, open: &str) -> Vec<String> {
    let rows = TABLE.lines().filter_map(|line| {
        let row = line.trim().strip_prefix(method)?;
        let path = row.strip_prefix(' ')?.trim_start().strip_prefix('"')?;
        path.split_once('"').map(|(path, _)| path)
    });
    let filled = rows.map(|path| {
        let parts: Vec<&str> = path
            .split('/')
            .map(|part| if part.starts_with('{') { open } else { part })
            .collect();
        parts.join("/")
    });
    let pages: Vec<String> = filled.collect();
    assert!(pages.len() > 5, "the table could not be read: {pages:?}");
    pages
}

/// Everything a client sees of an answer but the body.
fn shown(answer: &Answer) -> String {
    format!("{} {:?}", answer.status, answer.headers)
}

fn is_page(answer: &Answer) -> bool {
    answer
        .header("content-type")
        .is_some_and(|kind| kind.starts_with("text/html"))
}

#[tokio::test]
async fn clickjacking_no_page_can_be_put_into_a_frame() {
    let rig = Rig::start().await;
    let mut all = Vec::new();
    for mut browser in [Browser::new(&rig), Browser::signed_in(&rig).await] {
        for path in pages("GET", "nothing") {
            all.push((path.clone(), browser.get(&path).await));
        }
        browser.get("/sign-in").await;
        // Refusals are pages too: without the token, without a field, of an unknown page, of another method.
        for path in pages("POST", "nothing") {
            all.push((path.clone(), browser.post_with(&path, &[], &[]).await));
            all.push((path.clone(), browser.submit(&path, &[]).await));
        }
        for path in ["/keys/nothing/here", "/assets/nothing.css"] {
            all.push((path.to_owned(), browser.get(path).await));
        }
    }
    let mut seen = 0;
    for (path, answer) in all {
        if !is_page(&answer) {
            continue;
        }
        seen += 1;
        assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{path}");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(
            policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert!(policy.contains("default-src 'none'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
    }
    assert!(seen > 30, "only {seen} pages were looked at");
    rig.finish().await;
}

#[tokio::test]
async fn open_redirect_all_redirects_stay_on_the_own_host() {
    let rig = Rig::start().await;
    let mut ways = 0;
    for mut browser in [Browser::new(&rig), Browser::signed_in(&rig).await] {
        for target in [
            "https://evil.example/",
            "//evil.example/",
            "/%5Cevil.example",
            "/%09/evil.example",
            "%2F%2Fevil.example",
            "javascript:alert(1)",
            "https:evil.example",
            "/..//evil.example",
        ] {
            for path in pages("GET", "evil.example") {
                let query: Vec<String> = NAMES
                    .iter()
                    .map(|name| format!("{name}={target}"))
                    .collect();
                let answer = browser.get(&format!("{path}?{}", query.join("&"))).await;
                let Some(location) = answer.header("location") else {
                    continue;
                };
                ways += 1;
                assert!(
                    location.starts_with('/')
                        && !location.starts_with("//")
                        && !location.contains('\\'),
                    "{path} with {target} leads to {location}"
                );
                // A parameter handed on for later use is a path of the gateway too.
                if let Some(("/sign-in" | "/confirm", handed)) = location.split_once("?next=") {
                    assert!(handed.starts_with("%2F"), "{location}");
                    assert!(
                        !handed.starts_with("%2F%2F") && !handed.starts_with("%2F%5C"),
                        "{location}"
                    );
                }
            }
        }
    }
    // Paths in the form of hosts are no pages.
    let mut browser = Browser::signed_in_as(&rig, rig.account, "eve@example.com").await;
    for path in [
        "//evil.example",
        "//evil.example/sign-in",
        "/%2F%2Fevil.example",
    ] {
        let answer = browser.get(path).await;
        assert_eq!(answer.header("location"), None, "{path}");
    }
    assert!(ways > 20, "only {ways} redirects were looked at");
    rig.finish().await;
}

#[tokio::test]
async fn open_redirect_only_registered_redirect_uris_are_used() {
    let rig = rig("").await;
    let mut app = App::at(&rig, "https://app.example/cb").await;
    for target in [
        "https://evil.example/cb",
        "https://app.example.evil.example/cb",
        "https://app.example@evil.example/cb",
        "https://app.example/cb/../../evil",
        "https://app.example/cb?next=https://evil.example",
        "https://app.example/cb#@evil.example",
        "https://app.example\\.evil.example/cb",
        "HTTPS://app.example/cb",
        "//evil.example/cb",
        "javascript:alert(1)",
        "data:text/html,x",
    ] {
        // Whatever else is wrong with the request: the address is judged first.
        for more in [
            None,
            Some(("scope", "none")),
            Some(("response_type", "token")),
        ] {
            let mut changes = vec![("redirect_uri", target)];
            changes.extend(more);
            let asking = app.asking(&changes);
            let answer = app.browser.get(&asking).await;
            assert_eq!(answer.status, 400, "{target}");
            assert_eq!(answer.header("location"), None, "{target}");
            assert_eq!(answer.header("refresh"), None, "{target}");
            assert!(!answer.text().contains("href=\"https://evil"), "{target}");
        }
    }
    // Errors of the app's own requests go to the app's own URI, by a link for the user.
    let asking = app.asking(&[("scope", "none")]);
    let answer = app.browser.get(&asking).await;
    let location = way_back(answer.text());
    assert!(
        location.starts_with("https://app.example/cb?error=invalid_scope&"),
        "{location}"
    );
    rig.finish().await;
}

#[tokio::test]
async fn header_injection_client_metadata_cannot_inject_fields_or_directives() {
    let rig = rig("").await;
    let mut app = App::at(&rig, "https://app.example/cb").await;
    let state = "x\r\nPlanted: yes\r\n\r\n<script>alert(1)</script>";
    let asking = app.asking(&[("state", state), ("scope", "none")]);
    let answer = app.browser.get(&asking).await;
    assert_eq!(answer.header("planted"), None);
    let location = way_back(answer.text());
    assert!(location.contains("state=x%0D%0APlanted"), "{location}");
    assert!(!answer.text().contains("<script"), "{location}");
    let here = App::of(&rig, Browser::new(&rig), "http://127.0.0.1:5000/cb").await;
    let asking = here.asking(&[("state", state), ("scope", "none")]);
    let answer = app.browser.get(&asking).await;
    assert_eq!(answer.header("planted"), None);
    let location = answer.header("location").expect("a way on");
    assert!(location.contains("state=x%0D%0APlanted"), "{location}");

    // An address that would end a directive of the policy is not registered, or is not in the policy.
    for host in [
        "a;sandbox",
        "a;script-src",
        "a,default-src",
        "a'self'",
        "a*",
        "*",
        "[::1];x",
    ] {
        let redirect = format!("https://{host}.example/cb");
        let metadata = serde_json::json!({"client_name": "x", "redirect_uris": [redirect]});
        let registered = register(&rig, &metadata).await;
        if registered.status != 201 {
            assert_eq!(registered.status, 400, "{redirect}: {}", registered.text());
            continue;
        }
        let mut app = App {
            id: registered.json()["client_id"]
                .as_str()
                .expect("an id")
                .to_owned(),
            redirect,
            ..app_of(&app)
        };
        let path = app.ask(&[]).await;
        let page = app.browser.get(&path).await;
        let policy = page.header("content-security-policy").expect("a policy");
        assert!(policy.ends_with("form-action 'self'"), "{host}: {policy}");
    }
    // Nor does a name or anything else of an app become markup.
    let metadata = serde_json::json!({
        "client_name": "</b><script>alert(1)</script>\r\nPlanted: yes",
        "redirect_uris": ["https://app.example/cb"],
    });
    let registered = register(&rig, &metadata).await;
    assert_eq!(registered.header("planted"), None);
    assert_eq!(registered.status, 201, "{}", registered.text());
    let mut app = App {
        id: registered.json()["client_id"]
            .as_str()
            .expect("an id")
            .to_owned(),
        ..app_of(&app)
    };
    let path = app.ask(&[]).await;
    let page = app.browser.get(&path).await;
    assert_eq!(page.header("planted"), None);
    assert!(!page.text().contains("<script>alert"), "{}", page.text());
    rig.finish().await;
}

/// A copy of the app.
fn app_of<'r>(app: &App<'r>) -> App<'r> {
    App {
        rig: app.rig,
        browser: app.browser.clone(),
        id: app.id.clone(),
        redirect: app.redirect.clone(),
    }
}

#[tokio::test]
async fn clickjacking_consent_pages_cannot_be_framed() {
    let rig = rig("").await;
    let mut app = App::at(&rig, "https://app.example/cb").await;
    let path = app.ask(&[]).await;
    let distrusted = app.asking(&[("redirect_uri", "https://evil.example/cb")]);
    for path in [&path, &distrusted, "/apps", "/consent/none"] {
        let page = app.browser.get(path).await;
        assert!(is_page(&page), "{path}");
        assert_eq!(page.header("x-frame-options"), Some("DENY"), "{path}");
        let policy = page.header("content-security-policy").expect("a policy");
        assert!(
            policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert!(!policy.contains("script-src"), "{path}: {policy}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn parameter_pollution_repeated_authorization_parameters_are_refused() {
    let rig = rig("").await;
    let mut app = App::at(&rig, "https://app.example/cb").await;
    for (name, value, error) in [
        ("client_id", "other", None),
        ("redirect_uri", "https://evil.example/cb", None),
        ("response_type", "token", Some("invalid_request")),
        ("code_challenge", CHALLENGE, Some("invalid_request")),
        ("code_challenge_method", "plain", Some("invalid_request")),
        ("scope", "api:models", Some("invalid_request")),
        ("state", "y", Some("invalid_request")),
    ] {
        for front in [true, false] {
            let asking = app.asking(&[("scope", "api:chat")]);
            let (path, query) = asking.split_once('?').expect("a query");
            let value: String = form_urlencoded::byte_serialize(value.as_bytes()).collect();
            let asking = match front {
                true => format!("{path}?{name}={value}&{query}"),
                false => format!("{path}?{query}&{name}={value}"),
            };
            let answer = app.browser.get(&asking).await;
            assert_eq!(
                (answer.status, answer.header("location")),
                (400, None),
                "{name}"
            );
            match error {
                None => assert!(!answer.text().contains("app.example"), "{name}"),
                Some(word) => {
                    let start = format!("https://app.example/cb?error={word}");
                    let location = way_back(answer.text());
                    assert!(location.starts_with(&start), "{name}: {location}");
                }
            }
        }
    }
    // A token exchange with duplicate parameters has no effect.
    let code = app.code(&[]).await;
    for (name, value) in [
        ("code", "x"),
        ("client_id", "x"),
        ("redirect_uri", "x"),
        ("code_verifier", "x"),
        ("grant_type", "x"),
    ] {
        let mut pairs = app.exchanging(&code);
        pairs.push((name, value));
        let answer = token(&rig, &pairs).await;
        assert_eq!(answer.status, 400, "{name}");
        assert_eq!(answer.json()["error"], "invalid_request", "{name}");
    }
    let answer = token(&rig, &app.exchanging(&code)).await;
    assert_eq!(
        answer.status,
        200,
        "the code is still good: {}",
        answer.text()
    );
    let token = answer.json()["access_token"]
        .as_str()
        .expect("a token")
        .to_owned();
    SECRETS.used("an access token", &token);
    rig.finish().await;
}

#[tokio::test]
async fn host_header_discovery_documents_use_the_settings_alone() {
    let rig = rig("").await;
    let mut app = App::at(&rig, "https://app.example/cb").await;
    let consent = app.ask(&[]).await;
    let asking = app.asking(&[]);
    for path in [
        "/.well-known/oauth-authorization-server",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/v1",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-protected-resource/mcp/android",
        "/.well-known/jwks.json",
        "/mcp",
        "/mcp/android",
        "/v1/models",
        &asking,
        &consent,
    ] {
        let client = Client::new(&rig.url());
        let mut request = client.request("GET", path, Bytes::new());
        let fields = request.headers_mut();
        for (name, value) in [
            ("host", "evil.example"),
            ("x-forwarded-host", "evil.example"),
            ("cookie", app.browser.cookie()),
        ] {
            fields.insert(name, value.parse().expect("a value"));
        }
        let answer = client.send(request).await;
        assert!(
            !shown(&answer).contains("evil"),
            "{path}: {}",
            shown(&answer)
        );
        assert!(
            !answer.text().contains("evil.example"),
            "{path}: {}",
            answer.text()
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn header_injection_request_data_cannot_inject_fields_or_markup() {
    let rig = Rig::start().await;
    let injected = "x%0d%0aPlanted:%20yes%0d%0a%0d%0a%22%3E%3Cscript%3Ealert(1)%3C/script%3E";
    let plain = "x\r\nPlanted: yes\r\n\r\n\"><script>alert(1)</script>";
    for mut browser in [Browser::new(&rig), Browser::signed_in(&rig).await] {
        let mut answers = Vec::new();
        for path in pages("GET", injected)
            .into_iter()
            .chain(DOCUMENTS.map(str::to_owned))
        {
            let query: Vec<String> = NAMES
                .iter()
                .map(|name| format!("{name}={injected}"))
                .collect();
            let asked = format!("{path}?{}", query.join("&"));
            answers.push((asked.clone(), browser.get(&asked).await));
        }
        browser.get("/sign-in").await;
        for path in pages("POST", injected) {
            let mut fields: Vec<(&str, &str)> = NAMES.iter().map(|name| (*name, plain)).collect();
            // The fields of existing forms; other fields get the plain value.
            fields.extend(
                ["address", "code", "label", "secret", "question", "expires"]
                    .map(|name| (name, plain)),
            );
            answers.push((path.clone(), browser.submit(&path, &fields).await));
        }
        for (asked, answer) in answers {
            assert_eq!(answer.header("planted"), None, "{asked}");
            for value in answer.headers.values() {
                let value = String::from_utf8_lossy(value.as_bytes());
                assert!(!value.contains(['\r', '\n', '<']), "{asked}: {value}");
            }
            let body = String::from_utf8_lossy(&answer.body);
            assert!(
                !body.contains("<script>alert"),
                "{asked} shows markup that was sent"
            );
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn host_header_urls_never_contain_the_clients_host() {
    let rig = Rig::start().await;
    let session = Browser::signed_in(&rig).await.cookie().to_owned();
    for path in pages("GET", "nothing")
        .into_iter()
        .chain(DOCUMENTS.map(str::to_owned))
    {
        for cookie in ["", &session] {
            let client = Client::new(&rig.url());
            let mut request = client.request("GET", &path, Bytes::new());
            let fields = request.headers_mut();
            for (name, value) in [
                ("host", "evil.example"),
                ("x-forwarded-host", "evil.example"),
                ("x-forwarded-proto", "evil"),
                ("forwarded", "host=evil.example;proto=evil"),
                ("x-original-url", "//evil.example"),
                ("cookie", cookie),
            ] {
                if !value.is_empty() {
                    fields.insert(name, value.parse().expect("a value"));
                }
            }
            let answer = client.send(request).await;
            assert!(answer.status < 500, "{path}: {}", shown(&answer));
            assert!(
                !shown(&answer).contains("evil"),
                "{path}: {}",
                shown(&answer)
            );
            let body = String::from_utf8_lossy(&answer.body);
            assert!(
                !body.contains("evil.example"),
                "{path} believes the client's `Host`"
            );
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn session_fixation_sign_in_replaces_the_session_value() {
    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, Browser::ADDRESS).await;
    let mut attacker = Browser::new(&rig);
    attacker.get("/sign-in").await;
    let known = attacker.cookie().to_owned();
    assert!(!known.is_empty(), "a form is bound to a value");
    // The attacker's value is put into the victim's browser before the victim's sign-in.
    let mut victim = attacker.clone();
    ask(&mut victim, "/sign-in", Browser::ADDRESS).await;
    assert_eq!(victim.cookie(), known, "nothing has changed yet");
    let message = mailbox.message(Browser::ADDRESS, 1).await;
    type_code(&mut victim, SECRETS.used("a code", message.code())).await;
    assert_ne!(victim.cookie(), known);
    assert_eq!(victim.get("/").await.status, 200);
    assert_eq!(
        attacker.get("/").await.status,
        303,
        "the value opens nothing"
    );
    // An identity check gives more rights, and a new cookie value again.
    const EVE: &str = "eve@example.com";
    let mut confirming = Browser::signed_in_as(&rig, rig.account, EVE).await;
    confirming.get("/confirm").await;
    let mut watcher = confirming.clone();
    let before = confirming.cookie().to_owned();
    confirming.submit("/confirm", &[]).await;
    let message = mailbox.message(EVE, 1).await;
    type_code(&mut confirming, SECRETS.used("a code", message.code())).await;
    assert_ne!(confirming.cookie(), before);
    assert_eq!(confirming.get("/").await.status, 200);
    assert_eq!(
        watcher.get("/").await.status,
        303,
        "the value before it opens nothing any more"
    );
    rig.finish().await;
}

#[tokio::test]
async fn session_fixation_an_invented_session_value_is_not_accepted() {
    let rig = Rig::start().await;
    // An invented value of the right form, and malformed values.
    for made_up in [
        "0".repeat(64),
        "f".repeat(64),
        String::from("x"),
        String::new(),
    ] {
        let client = Client::new(&rig.url());
        let mut request = client.request("GET", "/", Bytes::new());
        let cookie = format!("__Host-svc-session={made_up}");
        request
            .headers_mut()
            .insert("cookie", cookie.parse().expect("a value"));
        let answer = client.send(request).await;
        assert_eq!(answer.status, 303, "{made_up}");
    }
    // A session starts with a new cookie value, and ends with another value.
    let mut browser = Browser::signed_in(&rig).await;
    assert_eq!(browser.get("/").await.status, 200);
    let before = browser.cookie().to_owned();
    browser.submit("/sign-out", &[]).await;
    assert_ne!(browser.cookie(), before, "nothing of the session goes on");
    assert_eq!(browser.get("/").await.status, 303);
    rig.finish().await;
}

#[tokio::test]
async fn parameter_pollution_repeated_form_fields_are_refused_or_ignored() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    browser.get("/").await;
    let token = browser.token().to_owned();
    // A good token behind a bad token does not make the request good.
    let answer = browser
        .post_with("/sign-out", &[], &[("csrf", "bad"), ("csrf", &token)])
        .await;
    assert_eq!(answer.status, 403);
    assert_eq!(browser.get("/").await.status, 200, "still signed in");

    // Two cookies of the name: the first counts, whatever the origin of the second.
    let good = browser.cookie().to_owned();
    let bad = format!("__Host-svc-session={}", "0".repeat(64));
    for (cookies, status) in [
        (format!("{bad}; {good}"), 303),
        (format!("{good}; {bad}"), 200),
    ] {
        let client = Client::new(&rig.url());
        let mut request = client.request("GET", "/", Bytes::new());
        request
            .headers_mut()
            .insert("cookie", cookies.parse().expect("a value"));
        assert_eq!(client.send(request).await.status, status, "{cookies}");
    }

    // Of two addresses to go to afterwards neither leads away.
    let mut stranger = Browser::new(&rig);
    let answer = stranger
        .get("/sign-in?next=/keys&next=https://evil.example/")
        .await;
    assert!(!answer.text().contains("evil.example"), "{}", answer.text());
    rig.finish().await;
}

#[tokio::test]
async fn session_secrets_are_never_in_logs_urls_or_pages() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    let (_, value) = browser.cookie().split_once('=').expect("a value");
    let value = SECRETS.used("a session's value", value).to_owned();
    for path in pages("GET", "nothing") {
        let answer = browser
            .get(&format!("{path}?session={value}&csrf={value}"))
            .await;
        let location = answer.header("location").unwrap_or_default();
        assert!(!location.contains(&value), "{path} leads to {location}");
        if !is_page(&answer) || answer.header("cache-control") != Some("no-store") {
            assert!(!is_page(&answer), "{path} may be stored");
        }
        // No page repeats the session's value, not even from the page's address.
        let body = String::from_utf8_lossy(&answer.body);
        assert!(!body.contains(&value), "{path} shows the session's value");
    }
    SECRETS.used("a form's token", browser.token());
    browser.submit("/sign-out", &[]).await;
    // The log is searched for every secret at the end of a test.
    rig.finish().await;
}
