//! The dashboard pages: overview, keys, usage, docs.

use serde_json::json;
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_ledger::Charge;
use tollgate_money::{Micros, OperationId};
use tollgate_store::{PageCursor, RequestsQuery};
use tollgate_testing::{Answer, Client};

use crate::rig::{Browser, CHAT, PRICE_OF_A_CHAT, Rig, SECRETS, chat};

/// The value of a field of a page, hidden or visible.
fn field(page: &Answer, name: &str) -> String {
    let text = page.text();
    let mark = format!("name=\"{name}\" value=\"");
    let (_, after) = text
        .split_once(&mark)
        .unwrap_or_else(|| panic!("no field `{name}` in {text}"));
    after.split('"').next().unwrap_or_default().to_owned()
}

/// A key's secret, from the only page with the secret.
fn secret(page: &Answer) -> &str {
    let text = page.text();
    let (_, after) = text.split_once("sk-svc-").expect("a secret");
    let secret = after.split('<').next().expect("its end");
    let start = text.len() - after.len() - "sk-svc-".len();
    SECRETS.used(
        "a key made on the dashboard",
        &text[start..][..secret.len() + 7],
    )
}

/// Sends the usual chat with a key.
async fn send(rig: &Rig, key: &str) {
    let answer = Client::new(&rig.url())
        .with_key(key)
        .post(CHAT, &chat(false))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
}

/// How many keys the rig's account has.
fn keys(rig: &Rig) -> usize {
    let keys = rig.books.store.account_credentials(rig.account);
    keys.expect("a read").len()
}

fn has(page: &Answer, pieces: &[&str]) {
    for piece in pieces {
        assert!(page.text().contains(piece), "{piece} in {}", page.text());
    }
}

#[tokio::test]
async fn the_overview_leads_to_the_first_request_and_shows_what_it_cost_then() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    let page = browser.get("/").await;
    has(
        &page,
        &[
            "Send your first request in three steps",
            "href=\"/keys/create\"",
            "/v1/chat/completions",
            "$SVC_API_KEY",
            "No requests yet",
        ],
    );
    send(&rig, &rig.key).await;
    let page = browser.get("/?days=7").await;
    has(
        &page,
        &[
            "aria-label=\"Account at a glance\"",
            "Spent, last 7 days",
            "aria-label=\"Credits spent per day by model from ",
            "aria-label=\"Show as a table\"",
            "Latest requests",
            "0.0098",
            ">30 days</a>",
        ],
    );
    assert_eq!(PRICE_OF_A_CHAT, 9_750, "what the page rounds down");
    assert!(
        !page.text().contains("At this week"),
        "one day allows no forecast"
    );
    rig.finish().await;
}

#[tokio::test]
async fn an_exhausted_balance_is_shown_first() {
    let rig = Rig::start().await;
    let account = rig.new_account("free", PRICE_OF_A_CHAT * 3).await;
    let (_, key) = rig.new_key(account, |_| {}).await;
    let asked = json!({"max_tokens": 16, "messages": [{"role": "user", "content": "Halt!"}]});
    let answer = Client::new(&rig.url())
        .with_key(&key)
        .post(CHAT, &asked)
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    // A hold is larger than the used part, so the rest is taken without a hold.
    let rest = rig.available(account);
    let operation = OperationId::generate(Clock::system().now(), &Entropy::system());
    let row = rig.books.store.requests(&RequestsQuery {
        account,
        from: Timestamp::UNIX_EPOCH,
        to: Timestamp::MAX,
        model: None,
        credential: None,
        cursor: PageCursor::Newest,
        limit: 1,
    });
    let used = row.expect("a read").remove(0);
    let charge = Charge {
        operation,
        account,
        amount: Micros::new(rest),
        price_version: None,
        usage: used.usage,
        at: used.at,
    };
    rig.books
        .ledger
        .charge(charge)
        .expect("a charge")
        .await
        .expect("it is written");
    rig.add_expected_charge(rest);
    let mut browser = Browser::signed_in_as(&rig, account, "poor@example.com").await;
    let page = browser.get("/").await;
    has(
        &page,
        &["Your balance is used up.", "Credits cannot be bought here"],
    );
    let main = page.text().split("<main").nth(1).expect("the page");
    assert!(main.find("used up") < main.find("<h1"), "first in the page");
    rig.finish().await;
}

#[tokio::test]
async fn a_key_is_made_shown_once_and_works() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    let form = browser.get("/keys/create").await;
    let id = field(&form, "id");
    let fields = [
        ("id", id.as_str()),
        ("name", "staging-worker"),
        ("may", "chat"),
        ("may", "models"),
        ("ends", "30"),
        ("models", "small"),
        ("cap", "50"),
        ("cap_period", "month"),
    ];
    let made = browser.submit("/keys/create", &fields).await;
    assert_eq!(made.status, 200, "{}", made.text());
    assert_eq!(made.header("cache-control"), Some("no-store"));
    has(
        &made,
        &[
            "role=\"status\" aria-labelledby=\"ready\"",
            "Key “staging-worker” is ready",
            "Copy it now. This is the only time it is shown.",
            ">New</span>",
            "only small",
            "up to 50.00 credits a month",
            "Chat, models",
            "I have saved the key",
        ],
    );
    let key = secret(&made).to_owned();
    assert_eq!(
        made.text().matches(&key).count(),
        1,
        "it stands in one place"
    );
    send(&rig, &key).await;
    let client = Client::new(&rig.url()).with_key(&key);
    let dear = json!({"model": "dear", "messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(
        client.post(CHAT, &dear).await.status,
        403,
        "not one of its models"
    );

    // A reload sends the form again.
    let again = browser.submit("/keys/create", &fields).await;
    assert_eq!(again.status, 200);
    has(&again, &["This key was already created."]);
    let list = browser.get("/keys").await;
    for page in [&again, &list] {
        assert!(!page.text().contains(&key), "it is not shown again");
        assert_eq!(page.text().matches(">staging-worker</th>").count(), 1);
    }
    has(&list, &["just now", "2 active"]);
    assert_eq!(keys(&rig), 2);
    rig.finish().await;
}

#[tokio::test]
async fn creating_a_key_requires_recent_authentication() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in_a_while_ago(&rig).await;
    let form = browser.get("/keys/create").await;
    let id = field(&form, "id");
    let fields = [
        ("id", id.as_str()),
        ("name", "typed <before>"),
        ("may", "chat"),
    ];
    let page = browser.submit("/keys/create", &fields).await;
    assert_eq!(page.status, 303);
    let way = page.header("location").expect("a way on");
    assert_eq!(way, "/confirm?next=%2Fkeys%2Fcreate");
    assert_eq!(keys(&rig), 1, "nothing was made");
    let form = browser.get("/keys/create").await;
    has(&form, &["value=\"typed &lt;before&gt;\""]);
    let boxes = form.text().matches(" checked").count();
    assert_eq!(boxes, 3, "chat alone, no end, by the month: as it was sent");
    rig.finish().await;
}

#[tokio::test]
async fn a_key_that_cannot_be_made_is_refused_with_what_was_typed() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    browser.get("/keys/create").await;
    let long = "n".repeat(81);
    //   fields, and the message
    for (fields, says) in [
        (
            vec![("name", "  "), ("may", "chat")],
            "Give the key a name, for example ci-runner.",
        ),
        (
            vec![("name", "test"), ("may", "chat")],
            "You already have a key called test.",
        ),
        (
            vec![("name", &long), ("may", "chat")],
            "at most 80 characters",
        ),
        (
            vec![("name", "one\u{202e}two"), ("may", "chat")],
            "printable characters in the name, on one line",
        ),
        (
            vec![("name", "<b>new")],
            "Choose at least one thing that the key may call.",
        ),
        (
            vec![("name", "new"), ("may", "chat"), ("cap", "0")],
            "Write the cap in credits",
        ),
        (
            vec![("name", "new"), ("may", "chat"), ("cap", "lots")],
            "Write the cap in credits",
        ),
        (
            vec![("name", "new"), ("may", "chat"), ("ends", "date")],
            "Write the day like",
        ),
        (
            vec![
                ("name", "new"),
                ("may", "chat"),
                ("ends", "date"),
                ("ends_on", "2020-01-01"),
            ],
            "Choose today or a later day.",
        ),
    ] {
        let page = browser.submit("/keys/create", &fields).await;
        assert_eq!(page.status, 422, "{fields:?}");
        has(
            &page,
            &[
                says,
                "There is a problem",
                "<title>Error: Create a key",
                "aria-invalid",
            ][..3],
        );
        assert!(!page.text().contains("<b>new"), "what was typed is text");
    }
    assert_eq!(keys(&rig), 1);
    rig.finish().await;
}

#[tokio::test]
async fn a_revoked_key_is_refused_from_its_next_request() {
    let rig = Rig::start().await;
    let (id, key) = rig
        .new_key(rig.account, |key| key.label = "ci-runner".into())
        .await;
    let mut browser = Browser::signed_in(&rig).await;
    let page = browser.get("/keys").await;
    has(&page, &["<span class=\"unseen\"> key ci-runner</span>"]);
    let path = format!("/keys/{id}/revoke");
    let page = browser.get(&path).await;
    has(
        &page,
        &[
            "Revoke ci-runner?",
            "everywhere within 2 seconds",
            "It was never used.",
            "Revoke key ci-runner",
            "Keep it",
        ],
    );
    send(&rig, &key).await;
    let done = browser.submit(&path, &[]).await;
    assert_eq!(done.status, 303);
    let client = Client::new(&rig.url()).with_key(&key);
    assert_eq!(client.post(CHAT, &chat(false)).await.status, 401);
    let list = browser.follow(done).await;
    has(
        &list,
        &[
            "Key ci-runner is revoked.",
            ">Revoked</span>",
            "1 active, 1 revoked",
        ],
    );
    has(
        &browser.get(&path).await,
        &["Key ci-runner is revoked already."],
    );

    let stranger = rig.new_account("free", 0).await;
    let (theirs, _) = rig.new_key(stranger, |_| {}).await;
    for id in [
        theirs.to_string(),
        "key_00000000000000000000000000000000".into(),
        "x".into(),
    ] {
        let path = format!("/keys/{id}/revoke");
        assert_eq!(browser.get(&path).await.status, 404);
        assert_eq!(
            browser.submit(&path, &[]).await.status,
            404,
            "keys of other accounts are not listed"
        );
    }
    let page = browser.get(&format!("/keys?revoked={theirs}")).await;
    assert!(
        !page.text().contains("is revoked."),
        "an address says nothing of its own"
    );
    rig.finish().await;
}

#[tokio::test]
async fn usage_shows_each_request_and_its_cost() {
    let rig = Rig::start().await;
    let (id, key) = rig
        .new_key(rig.account, |key| key.label = "=2+3".into())
        .await;
    send(&rig, &rig.key).await;
    send(&rig, &key).await;
    let mut browser = Browser::signed_in(&rig).await;
    let page = browser.get("/usage").await;
    has(
        &page,
        &[
            "Requests</p><p class=\"figure\">2</p>",
            "Download CSV",
            "<option value=\"small\">small</option>",
            "req_",
        ],
    );
    let page = browser.get(&format!("/usage?key={id}")).await;
    has(
        &page,
        &["Requests</p><p class=\"figure\">1</p>", "selected"],
    );
    let page = browser.get("/usage?model=dear").await;
    has(&page, &["No requests from"]);
    let page = browser.get("/usage?from=2020-11-01&to=2020-11-07").await;
    has(
        &page,
        &["No requests from 1 to 7 November 2020. Choose a longer period."],
    );
    for (query, says) in [
        (
            "from=2020-11-07&to=2020-11-06",
            "The end is before the start.",
        ),
        ("from=2020-11-07&to=2021-11-06", "Choose 92 days at most."),
        ("from=%3Cscript%3E", "Write the day like"),
    ] {
        let page = browser.get(&format!("/usage?{query}")).await;
        assert_eq!(page.status, 422);
        has(&page, &[says, "There is a problem"]);
        assert!(!page.text().contains("<script>"), "{query}");
    }
    let file = browser.get("/usage.csv").await;
    assert_eq!(file.header("content-type"), Some("text/csv; charset=utf-8"));
    let named = file.header("content-disposition").expect("a name");
    assert!(
        named.starts_with("attachment; filename=\"usage-"),
        "{named}"
    );
    let lines: Vec<&str> = file.text().lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[1].contains(",chat,small,'=2+3,1,16,done,no,no,0.00975"),
        "{}",
        lines[1]
    );
    rig.finish().await;
}

#[tokio::test]
async fn requests_are_paged_in_both_directions() {
    let rig = Rig::start().await;
    for _ in 0..27 {
        send(&rig, &rig.key).await;
    }
    let mut browser = Browser::signed_in(&rig).await;
    let ids = |page: &Answer| {
        let ids = page.text().split("<code>req_").skip(1);
        ids.map(|after| after[..32].to_owned()).collect::<Vec<_>>()
    };
    let way = |page: &Answer, rel: &str| {
        let text = page.text();
        let (before, _) = text.split_once(&format!("\" rel=\"{rel}\""))?;
        let address = before.rsplit('"').next()?.split('#').next()?;
        Some(address.replace("&amp;", "&"))
    };
    let newest = browser.get("/usage").await;
    assert_eq!(ids(&newest).len(), 25);
    assert_eq!(way(&newest, "prev"), None, "there is nothing newer");
    let oldest = browser.get(&way(&newest, "next").expect("more")).await;
    assert_eq!(ids(&oldest).len(), 2);
    assert_eq!(way(&oldest, "next"), None, "there is nothing older");
    let again = browser.get(&way(&oldest, "prev").expect("more")).await;
    assert_eq!(ids(&again), ids(&newest));
    rig.finish().await;
}

#[tokio::test]
async fn pages_show_only_the_own_account() {
    let rig = Rig::start().await;
    send(&rig, &rig.key).await;
    let stranger = rig.new_account("free", 0).await;
    let mut browser = Browser::signed_in_as(&rig, stranger, "other@example.com").await;
    has(
        &browser.get("/").await,
        &["Send your first request in three steps"],
    );
    has(&browser.get("/keys").await, &["No keys yet."]);
    has(&browser.get("/usage").await, &["No requests"]);
    assert_eq!(browser.get("/usage.csv").await.text().lines().count(), 1);
    let mut signed_out = Browser::new(&rig);
    for path in [
        "/",
        "/keys",
        "/keys/create",
        "/usage",
        "/usage.csv",
        "/sandbox",
    ] {
        let page = signed_out.get(path).await;
        assert_eq!(page.status, 303, "{path}");
        assert!(
            page.header("location")
                .expect("a way on")
                .starts_with("/sign-in"),
            "{path}"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn docs_are_read_signed_out_and_name_this_installation() {
    let rig = Rig::with("[service]\nname = \"tolls\"\n").await;
    let mut reader = Browser::new(&rig);
    for (path, pieces) in [
        (
            "/docs",
            &[
                "sk-tolls-",
                "$TOLLS_API_KEY",
                "/v1/chat/completions",
                "id=\"first-request\"",
                "small",
            ][..],
        ),
        (
            "/docs/errors",
            &[
                "id=\"insufficient_credits\"",
                ">402<",
                "The account cannot pay for the request.",
            ],
        ),
        (
            "/docs/limits",
            &["1,000,000", "RateLimit-Policy", "anonymous"],
        ),
        ("/docs/paying", &["insufficient_credits"]),
        ("/docs/lifecycle", &["RFC 8594"]),
    ] {
        let page = reader.get(path).await;
        assert_eq!(page.status, 200, "{path}");
        has(&page, pieces);
        has(
            &page,
            &["aria-current=\"page\"", "<nav class=\"docs-contents\""],
        );
    }
    assert_eq!(reader.get("/docs/nothing").await.status, 404);
    rig.finish().await;
}

#[tokio::test]
async fn the_token_of_a_sandbox_chats_and_nothing_else_and_ends_with_the_session() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    let page = browser.get("/sandbox").await;
    has(
        &page,
        &[
            "Real requests, paid from your balance.",
            "credits for this request",
            "data-api=\"/v1/chat/completions\"",
        ],
    );
    assert!(
        !page.text().contains("svc_at_"),
        "no secret stands in a page"
    );
    let csrf = [("csrf", browser.token().to_owned())];
    let csrf = csrf.each_ref().map(|(name, value)| (*name, value.as_str()));
    let mut tokens = Vec::new();
    for _ in 0..5 {
        let given = browser.post_with("/sandbox/token", &[], &csrf).await;
        assert_eq!(given.status, 200, "{}", given.text());
        assert_eq!(given.header("cache-control"), Some("no-store"));
        let body = given.json();
        assert_eq!(body["expires_in"], 600);
        let token = body["token"].as_str().expect("a token").to_owned();
        SECRETS.used("a token of the sandbox", &token);
        tokens.push(token);
    }
    let client = |token: &String| Client::new(&rig.url()).with_key(token);
    let statuses = async |token: &String| {
        let chatted = client(token).post(CHAT, &chat(false)).await;
        if chatted.status == 200 {
            rig.record_charge(&chatted.json());
        }
        (chatted.status, client(token).get("/v1/models").await.status)
    };
    assert_eq!(
        statuses(&tokens[0]).await,
        (401, 401),
        "the oldest of five is over"
    );
    assert_eq!(statuses(&tokens[4]).await, (200, 403));
    let forged = browser
        .post_with(
            "/sandbox/token",
            &[("origin", "https://evil.example")],
            &csrf,
        )
        .await;
    assert_eq!(forged.status, 403);
    browser.submit("/sign-out", &[]).await;
    assert_eq!(
        statuses(&tokens[4]).await,
        (401, 401),
        "it ended with the session"
    );
    let late = browser.post_with("/sandbox/token", &[], &csrf).await;
    assert_ne!(late.status, 200);
    rig.finish().await;
}
