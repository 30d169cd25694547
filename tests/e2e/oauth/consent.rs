//! The consent page, and the list of allowed apps.

use tollgate::config::Environment;

use super::support::{App, BASE, parameter, rig, setup, text, token, works};
use crate::rig::{Browser, PROVIDER_KEY, Rig, SECRETS, Setup};

#[tokio::test]
async fn the_consent_page_names_client_redirect_host_and_scopes() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let path = app.ask(&[("scope", "api:models api:chat")]).await;
    let page = app.browser.get(&path).await;
    let shown = page.text();
    for words in [
        "<h1>Allow this app to use your account?</h1>",
        "“Notebook Copilot”",
        "Access goes to",
        "app.<wbr>example",
        "The name above is not verified",
        "See models and your balance",
        "Send chat requests",
        "at the completions API",
        "Access ends after 90 days, after 30 days without use, or sooner when you remove the app",
        "Allowing costs nothing",
        Browser::ADDRESS,
        ">Allow access</button>",
        ">Cancel</button>",
    ] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    assert!(!shown.contains("asks to buy for you"));
    assert!(
        !shown.contains("autofocus"),
        "neither button is focused by itself"
    );
    assert!(!shown.contains("You have no credits"));
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(
        policy.contains("form-action 'self' https://app.example"),
        "{policy}"
    );
    assert!(policy.contains("frame-ancestors 'none'"));
    assert!(!policy.contains("script-src"), "{policy}");
    rig.finish().await;
}

#[tokio::test]
async fn sign_in_pages_name_the_pending_authorization() {
    let rig = rig("").await;
    let mut app = App::of(&rig, Browser::new(&rig), super::support::REDIRECT).await;
    let path = app.ask(&[("scope", "api:chat")]).await;
    let away = app.browser.get(&path).await;
    assert_eq!(away.status, 303, "{}", away.text());
    let sign_in = app.browser.follow(away).await;
    let words = "Then you decide on access for “Notebook Copilot”.";
    assert!(sign_in.text().contains(words), "{}", sign_in.text());
    // A request bound to a session is not shown to other sessions.
    let mut decider = Browser::signed_in(&rig).await;
    assert_eq!(decider.get(&path).await.status, 200);
    let later = format!("/sign-in?next={path}");
    let page = app.browser.get(&later).await;
    assert!(!page.text().contains("Then you decide"), "{}", page.text());
    rig.finish().await;
}

#[tokio::test]
async fn loopback_and_internationalized_redirect_hosts_are_marked() {
    let rig = rig("").await;
    let browser = Browser::signed_in(&rig).await;
    for (redirect, words, source) in [
        (
            "http://127.0.0.1:50999/cb",
            "An application on this computer",
            "http://127.0.0.1:50999",
        ),
        (
            "http://localhost:1/cb",
            "An application on this computer",
            "http://localhost:1",
        ),
        (
            "http://[::1]:1/cb",
            "An application on this computer",
            "http:",
        ),
        (
            "https://app.example:8443/cb",
            "app.<wbr>example:8443",
            "https://app.example:8443",
        ),
        (
            "https://xn--bcher-kva.example/cb",
            "bücher.example",
            "https://xn--bcher-kva.example",
        ),
        (
            "https://xn--bcher-kva.example/cb",
            "written with unusual letters",
            "https://xn--bcher-kva.example",
        ),
    ] {
        let mut app = App::of(&rig, browser.clone(), redirect).await;
        let path = app.ask(&[]).await;
        let page = app.browser.get(&path).await;
        assert!(page.text().contains(words), "{redirect}: {}", page.text());
        let policy = page.header("content-security-policy").expect("a policy");
        let source = format!("form-action 'self' {source}");
        assert!(
            policy.ends_with(&source) || policy.contains(&format!("{source};")),
            "{policy}"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn client_names_are_escaped() {
    let rig = rig("").await;
    let mut browser = Browser::signed_in(&rig).await;
    let metadata = serde_json::json!({
        "client_name": "<script>alert(1)</script>\u{202e}\"&",
        "redirect_uris": ["https://app.example/cb"],
    });
    let id = text(&super::support::register(&rig, &metadata).await.json()["client_id"]);
    let mut app = App::of(&rig, browser.clone(), "https://app.example/cb").await;
    app.id = id;
    let path = app.ask(&[]).await;
    let page = browser.get(&path).await;
    assert!(!page.text().contains("<script"), "{}", page.text());
    assert!(
        page.text()
            .contains("&lt;script&gt;alert(1)&lt;/script&gt;")
    );
    rig.finish().await;
}

#[tokio::test]
async fn the_purchase_scope_is_named_on_the_consent_button() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let path = app.ask(&[("scope", "api:chat commerce:subscribe")]).await;
    let page = app.browser.get(&path).await;
    for words in [
        "It also asks to buy for you",
        "Buy or renew the Pro plan, 199 USD a month",
        ">Allow access and buying</button>",
    ] {
        assert!(page.text().contains(words), "{words}");
    }
    assert!(!page.text().contains("checkbox"));
    let token = app.token(&[("scope", "api:chat commerce:subscribe")]).await;
    assert_eq!(
        token["scope"], "api:chat commerce:subscribe",
        "all or nothing"
    );
    let alone = app.ask(&[("scope", "commerce:subscribe")]).await;
    let page = app.browser.get(&alone).await;
    assert!(
        page.text()
            .contains("Allow this app to buy the Pro plan for you?")
    );
    assert!(
        page.text().contains("<h2>It asks to buy for you</h2>"),
        "it asks for nothing else"
    );
    rig.finish().await;
}

#[tokio::test]
async fn with_tick_to_buy_the_token_has_the_ticked_scope() {
    let rig = rig("[oauth]\ntick_to_buy = true").await;
    let mut app = App::new(&rig).await;
    let asked = [("scope", "api:chat commerce:subscribe")];
    for (tick, scope) in [(false, "api:chat"), (true, "api:chat commerce:subscribe")] {
        let path = app.ask(&asked).await;
        let page = app.browser.get(&path).await;
        assert!(page.text().contains("type=\"checkbox\""));
        assert!(page.text().contains(">Allow access</button>"));
        let mut fields = vec![("decision", "allow")];
        fields.extend(tick.then_some(("buy", "1")));
        let answer = app.browser.submit(&path, &fields).await;
        let code = parameter(answer.header("location").expect("a way on"), "code").expect("a code");
        let token = super::support::token(&rig, &app.exchanging(&code))
            .await
            .json();
        assert_eq!(token["scope"], scope);
    }
    rig.finish().await;
}

#[tokio::test]
async fn consent_covers_only_what_the_page_showed() {
    let rig = rig("[oauth]\ntick_to_buy = true").await;
    let mut app = App::new(&rig).await;
    let path = app.ask(&[("scope", "api:chat")]).await;
    app.browser.get(&path).await;
    // Other members of the form are ignored: the stored request counts.
    let fields = [
        ("decision", "allow"),
        ("buy", "1"),
        ("scope", "api:models commerce:subscribe"),
        ("resource", "https://api.svc.example/mcp"),
        ("redirect_uri", "https://evil.example/cb"),
        ("client_id", "c_other"),
    ];
    let answer = app.browser.submit(&path, &fields).await;
    let address = answer.header("location").expect("a way on").to_owned();
    assert!(
        address.starts_with("https://app.example/cb?x=1&code="),
        "{address}"
    );
    let code = parameter(&address, "code").expect("a code");
    let token = super::support::token(&rig, &app.exchanging(&code))
        .await
        .json();
    assert_eq!(token["scope"], "api:chat");
    rig.finish().await;
}

#[tokio::test]
async fn rfc6749_4_1_2_1_cancelling_returns_access_denied() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let path = app.ask(&[]).await;
    app.browser.get(&path).await;
    let answer = app.browser.submit(&path, &[("decision", "cancel")]).await;
    assert_eq!(answer.status, 303);
    assert_eq!(
        answer.header("location"),
        Some(
            "https://app.example/cb?x=1&error=access_denied&error_description=The+account+owner+has+not+allowed+access.&state=a+b%26c&iss=https%3A%2F%2Fapi.svc.example"
        )
    );
    // The request is decided: no second decision is possible.
    for decision in ["allow", "cancel"] {
        let again = app.browser.submit(&path, &[("decision", decision)]).await;
        assert_eq!(again.status, 410, "{decision}");
        assert_eq!(again.header("location"), None);
    }
    assert_eq!(app.browser.get(&path).await.status, 410);
    rig.finish().await;
}

#[tokio::test]
async fn an_authorization_request_belongs_to_the_first_session() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let other = rig.new_account("free", 0).await;
    let mut other = Browser::signed_in_as(&rig, other, "eve@example.com").await;
    let path = app.ask(&[]).await;
    app.browser.get(&path).await;
    for page in [other.get(&path).await, {
        other.get("/").await;
        other.submit(&path, &[("decision", "allow")]).await
    }] {
        assert_eq!(page.status, 403);
        assert_eq!(page.header("location"), None);
    }
    // A form without the session's token has no effect.
    let forged = app
        .browser
        .post_with(&path, &[], &[("decision", "allow")])
        .await;
    assert_eq!(forged.status, 403);
    let cross = app
        .browser
        .post_with(
            &path,
            &[("sec-fetch-site", "cross-site")],
            &[("decision", "allow")],
        )
        .await;
    assert_eq!(cross.status, 403);
    app.browser.get(&path).await;
    let answer = app.browser.submit(&path, &[("decision", "allow")]).await;
    assert_eq!(answer.status, 303);
    for nonsense in ["/consent/x", "/consent/00000000000000000000000000000000"] {
        let page = app.browser.get(nonsense).await;
        assert!(
            matches!(page.status, 404 | 410),
            "{nonsense}: {}",
            page.status
        );
    }
    rig.finish().await;
}

/// A gateway with credits for sale.
async fn selling(settings: &str) -> Rig {
    let paypal = "[payments.paypal]\nbase_url = 'https://127.0.0.1:9'\nclient_id_env = 'PAYPAL_ID'\nclient_secret_env = 'PAYPAL_SECRET'";
    let setup = setup(&format!("{paypal}\n{settings}"));
    let [id, secret] = crate::credits::variables();
    Setup {
        environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY), id, secret]),
        ..setup
    }
    .start()
    .await
}

/// The step would lead to a page without any offer.
#[tokio::test]
async fn no_credits_are_asked_for_where_none_are_sold() {
    let rig = rig("[oauth]\ncredits_step = \"required\"").await;
    let poor = rig.new_account("free", 0).await;
    let browser = Browser::signed_in_as(&rig, poor, "poor@example.com").await;
    let mut app = App::of(&rig, browser, "https://app.example/cb").await;
    let path = app.ask(&[]).await;
    let page = app.browser.get(&path).await;
    assert!(
        page.text().contains(">Allow access</button>"),
        "{}",
        page.text()
    );
    assert!(!page.text().contains("/credits/add"), "{}", page.text());
    for path in ["/", "/keys", "/usage", "/credits", "/plan", "/sandbox"] {
        let page = app.browser.get(path).await;
        assert!(
            !page.text().contains("/credits/add"),
            "{path}: {}",
            page.text()
        );
    }
    let answer = app
        .browser
        .submit("/sandbox", &[("message", "Hello?"), ("model", "small")])
        .await;
    assert!(
        answer.text().contains("insufficient_credits"),
        "{}",
        answer.text()
    );
    let link = "href=\"/credits/add";
    assert!(!answer.text().contains(link), "{}", answer.text());
    rig.finish().await;
}

#[tokio::test]
async fn the_consent_page_warns_of_an_empty_balance() {
    let rig = rig("").await;
    let poor = rig.new_account("free", 0).await;
    let browser = Browser::signed_in_as(&rig, poor, "poor@example.com").await;
    let mut app = App::of(&rig, browser, "https://app.example/cb").await;
    let path = app.ask(&[]).await;
    let page = app.browser.get(&path).await;
    assert!(
        page.text().contains("You have no credits."),
        "{}",
        page.text()
    );
    // Without a payment provider no credits are sold.
    assert!(!page.text().contains("/credits/add"), "{}", page.text());
    // The MCP servers are not paid from the credit.
    let mcp = format!("{BASE}/mcp");
    let path = app.ask(&[("resource", &mcp)]).await;
    let page = app.browser.get(&path).await;
    assert!(!page.text().contains("You have no credits."));
    assert!(page.text().contains("at the MCP server"));
    rig.finish().await;
}

#[tokio::test]
async fn consent_continues_with_another_account() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let poor = rig.new_account("free", 0).await;
    let path = app.ask(&[("scope", "api:models")]).await;
    let page = app.browser.get(&path).await;
    assert!(
        page.text().contains(">Use another account</button>"),
        "{}",
        page.text()
    );
    let change = format!("{path}/account");
    let forged = app.browser.post_with(&change, &[], &[]).await;
    assert_eq!(
        forged.status, 403,
        "a form without a token signs out no one"
    );
    app.browser.get(&path).await;
    let away = app.browser.submit(&change, &[]).await;
    assert_eq!(away.status, 303, "{}", away.text());
    let location = away.header("location").expect("a way on").to_owned();
    let id = location
        .strip_prefix("/sign-in?next=%2Fconsent%2F")
        .expect("sign-in, then back");
    let next = format!("/consent/{id}");
    assert_ne!(next, path, "the request has a new id");
    let sign_in = app.browser.follow(away).await;
    let words = "Then you decide on access for “Notebook Copilot”.";
    assert!(sign_in.text().contains(words), "{}", sign_in.text());
    assert_eq!(app.browser.get("/keys").await.status, 303, "signed out");

    app.browser = Browser::signed_in_as(&rig, poor, "poor@example.com").await;
    assert_eq!(
        app.browser.get(&path).await.status,
        410,
        "the old id has ended"
    );
    let page = app.browser.get(&next).await;
    assert!(page.text().contains("poor@example.com"), "{}", page.text());
    assert!(page.text().contains("See models and your balance"));
    let answer = app.browser.submit(&next, &[("decision", "allow")]).await;
    let address = answer.header("location").expect("a way on").to_owned();
    assert_eq!(parameter(&address, "state").as_deref(), Some("a b&c"));
    let code = parameter(&address, "code").expect("a code");
    let token = super::support::token(&rig, &app.exchanging(&code))
        .await
        .json();
    assert_eq!(
        token["scope"], "api:models",
        "the verifier of the first request is accepted"
    );
    let apps = app.browser.get("/apps").await;
    assert!(
        apps.text().contains("Notebook Copilot"),
        "the second account's"
    );
    rig.finish().await;
}

#[tokio::test]
async fn an_account_without_credits_adds_some_before_consent_where_required() {
    let rig = selling("[oauth]\ncredits_step = \"required\"").await;
    let poor = rig.new_account("free", 0).await;
    let browser = Browser::signed_in_as(&rig, poor, "poor@example.com").await;
    let mut app = App::of(&rig, browser, "https://app.example/cb").await;
    let path = app.ask(&[]).await;
    let page = app.browser.get(&path).await;
    assert!(
        page.text().contains("<h1>Add credits first</h1>"),
        "{}",
        page.text()
    );
    let link = format!("/credits/add?next={}", path.replace('/', "%2F"));
    assert!(page.text().contains(&link), "{}", page.text());
    assert!(!page.text().contains(">Allow access</button>"));
    let answer = app.browser.submit(&path, &[("decision", "allow")]).await;
    assert_eq!(
        answer.header("location"),
        Some(&*path),
        "not granted without the page"
    );
    // The MCP servers are not paid from the balance.
    let mcp = format!("{BASE}/mcp");
    let other = app.ask(&[("resource", &mcp)]).await;
    assert!(
        app.browser
            .get(&other)
            .await
            .text()
            .contains(">Allow access</button>")
    );
    rig.grant(poor, 1_000_000).await;
    assert!(
        app.browser
            .get(&path)
            .await
            .text()
            .contains(">Allow access</button>")
    );
    let answer = app.browser.submit(&path, &[("decision", "cancel")]).await;
    let address = answer.header("location").expect("a way on");
    assert!(address.contains("error=access_denied"), "{address}");
    rig.finish().await;
}

#[tokio::test]
async fn a_removed_app_is_refused() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let empty = app.browser.get("/apps").await;
    assert!(empty.text().contains("No apps."), "{}", empty.text());
    let token = app
        .token(&[("scope", "api:models commerce:subscribe")])
        .await;
    let page = app.browser.get("/apps").await;
    for words in [
        "Notebook Copilot",
        "app.example",
        "See models and your balance",
        "Can buy",
        "Never",
    ] {
        assert!(page.text().contains(words), "{words} in {}", page.text());
    }
    let (_, after) = page.text().split_once("href=\"/apps/").expect("a link");
    let path = format!("/apps/{}", after.split('"').next().expect("its end"));
    let other = rig.new_account("free", 0).await;
    let mut other = Browser::signed_in_as(&rig, other, "eve@example.com").await;
    assert_eq!(
        other.get(&path).await.status,
        404,
        "it is the owner's alone"
    );
    assert_eq!(other.submit(&path, &[]).await.status, 403);

    let page = app.browser.get(&path).await;
    assert!(page.text().contains("Remove access for Notebook Copilot?"));
    assert!(page.text().contains("It was never used."));
    assert!(works(&rig, &token["access_token"]).await);
    let answer = app.browser.submit(&path, &[]).await;
    assert_eq!(answer.status, 303);
    assert!(
        !works(&rig, &token["access_token"]).await,
        "by the next request"
    );
    let page = app.browser.follow(answer).await;
    assert!(page.text().contains("The app is removed."));
    assert!(page.text().contains("No apps."));
    rig.finish().await;
}

#[tokio::test]
async fn an_app_is_removed_although_the_page_names_an_ended_grant() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let code = app.code(&[]).await;
    let first = token(&rig, &app.exchanging(&code)).await.json();
    SECRETS.used("an access token", &text(&first["access_token"]));
    let second = app.token(&[]).await;
    let page = app.browser.get("/apps").await;
    let (_, after) = page.text().split_once("href=\"/apps/").expect("a link");
    let path = format!("/apps/{}", after.split('"').next().expect("its end"));
    assert_eq!(app.browser.get(&path).await.status, 200);

    // Reuse of a code revokes the code's grant (RFC 6749 section 4.1.2), and no other grant.
    let again = token(&rig, &app.exchanging(&code)).await;
    assert_eq!(again.status, 400, "{}", again.text());
    assert!(!works(&rig, &first["access_token"]).await);
    assert!(works(&rig, &second["access_token"]).await);

    let page = app.browser.get(&path).await;
    assert!(page.text().contains("Remove access for Notebook Copilot?"));
    assert_eq!(app.browser.submit(&path, &[]).await.status, 303);
    assert!(!works(&rig, &second["access_token"]).await);
    let nobodys = format!("/apps/{}/remove", "0".repeat(32));
    assert_eq!(app.browser.get(&nobodys).await.status, 404);
    rig.finish().await;
}

#[tokio::test]
async fn the_requests_of_a_removed_app_keep_its_name_and_its_token_is_refused_as_a_token() {
    let rig = rig("").await;
    let mut app = App::new(&rig).await;
    let token = text(&app.token(&[("scope", "api:chat")]).await["access_token"]);
    let client = tollgate_testing::Client::new(&rig.url()).with_key(&token);
    let answer = client
        .post("/v1/chat/completions", &crate::rig::chat(false))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    let page = app.browser.get("/apps").await;
    let (_, after) = page.text().split_once("href=\"/apps/").expect("a link");
    let path = format!("/apps/{}", after.split('"').next().expect("its end"));
    app.browser.get(&path).await;
    assert_eq!(app.browser.submit(&path, &[]).await.status, 303);

    let refused = client.get("/v1/models").await;
    assert_eq!(refused.status, 401);
    let message = text(&refused.json()["error"]["message"]);
    assert!(message.contains("An app gets another token"), "{message}");
    assert!(!message.contains("API key"), "{message}");

    let usage = app.browser.get("/usage").await;
    assert!(
        usage.text().contains("Notebook Copilot"),
        "{}",
        usage.text()
    );
    assert!(!usage.text().contains(&app.id), "{}", usage.text());
    rig.finish().await;
}
