//! The sandbox without JavaScript: the page calls the API in process, with the limits, charges and cache of the API.

use serde_json::Value;
use tollgate_clock::Timestamp;
use tollgate_store::{PageCursor, RequestsQuery};
use tollgate_testing::Client;

use crate::rig::{Browser, PRICE_OF_A_CHAT, Rig, SECRETS, Setup};
use crate::sign_in::{type_code, with_mailbox};

/// The value of a form field of a page.
fn once(page: &tollgate_testing::Answer) -> String {
    let (_, after) = page
        .text()
        .split_once("name=\"once\" value=\"")
        .expect("the field");
    after[..32].to_owned()
}

fn spent(rig: &Rig) -> i64 {
    crate::rig::CREDITS - rig.available(rig.account)
}

#[tokio::test]
async fn a_sandbox_form_sent_repeatedly_is_charged_once() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    let page = browser.get("/sandbox").await;
    let once = once(&page);
    let form = [
        ("once", once.as_str()),
        ("message", "Halt!"),
        ("model", "small"),
        ("temperature", "0.7"),
        ("max_tokens", "256"),
        ("cache", "yes"),
    ];
    for _ in 0..3 {
        let page = browser.submit("/sandbox", &form).await;
        assert_eq!(page.status, 200, "{}", page.text());
        for piece in [
            "<p class=\"said-text\">Halt!</p>",
            "name=\"assistant\"",
            "<b>0.0098</b> credits",
            "1 in, 16 out",
            "<summary>Request sent</summary>",
            "POST /v1/chat/completions",
            "&quot;content&quot;: &quot;Halt!&quot;",
            "&quot;max_tokens&quot;: 256",
            "Not cached",
        ] {
            assert!(page.text().contains(piece), "{piece} in {}", page.text());
        }
        assert!(
            !page.text().contains("svc_at_"),
            "no token stands in a page"
        );
        assert_eq!(spent(&rig), PRICE_OF_A_CHAT);
    }
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    assert_eq!(rig.provider.calls().len(), 1);
    let sent: Value = serde_json::from_slice(&rig.provider.calls()[0].body).expect("JSON");
    assert_eq!(
        (&sent["temperature"], &sent["max_tokens"]),
        (&0.7.into(), &256.into())
    );

    // The request is listed among the ordinary requests.
    let row = rig.books.store.requests(&RequestsQuery {
        account: rig.account,
        from: Timestamp::UNIX_EPOCH,
        to: Timestamp::MAX,
        model: None,
        credential: None,
        cursor: PageCursor::Newest,
        limit: 5,
    });
    assert_eq!(row.expect("a read").len(), 1);
    let usage = browser.get("/usage").await;
    assert!(usage.text().contains("Sandbox</span>"), "{}", usage.text());
    rig.finish().await;
}

#[tokio::test]
async fn the_sandbox_form_contains_the_conversation() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    browser.get("/sandbox").await;
    let form = [
        ("user", "One?"),
        ("assistant", "Two <b>."),
        ("facts", "0.5 3 4 1 12"),
        ("once", "00112233445566778899aabbccddeeff"),
        ("message", "Three?"),
        ("model", "small"),
    ];
    let page = browser.submit("/sandbox", &form).await;
    assert_eq!(page.status, 200, "{}", page.text());
    assert!(
        page.text().contains("Two &lt;b&gt;."),
        "what was said is text"
    );
    assert!(page.text().contains("<b>0.5000</b>"), "{}", page.text());
    let sent: Value = serde_json::from_slice(&rig.provider.calls()[0].body).expect("JSON");
    let said: Vec<&str> = sent["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .map(|message| message["content"].as_str().expect("a text"))
        .collect();
    assert_eq!(said, ["One?", "Two <b>.", "Three?"]);
    rig.add_expected_charge(spent(&rig));
    rig.finish().await;
}

#[tokio::test]
async fn api_errors_are_shown_with_their_code_and_the_input_is_kept() {
    let rig = Setup::default().credits(0).start().await;
    let mut browser = Browser::signed_in(&rig).await;
    browser.get("/sandbox").await;
    //   fields, and the message
    for (fields, says) in [
        (vec![("message", "Hello?")], "insufficient_credits"),
        (vec![("message", "")], "Write a message."),
        (
            vec![("message", "Hello?"), ("temperature", "warm")],
            "Write the temperature as a number",
        ),
        (
            vec![("message", "Hello?"), ("temperature", "-1")],
            "Write the temperature as a number",
        ),
        (
            vec![("message", "Hello?"), ("max_tokens", "0")],
            "Write a whole number of tokens",
        ),
    ] {
        let page = browser.submit("/sandbox", &fields).await;
        assert_eq!(page.status, 422, "{fields:?}");
        assert!(page.text().contains(says), "{says} in {}", page.text());
        if fields[0].1 == "Hello?" {
            assert!(
                page.text().contains(">Hello?</textarea>"),
                "{}",
                page.text()
            );
            let was_sent = says == "insufficient_credits";
            assert_eq!(
                page.text().contains("<summary>Request sent</summary>"),
                was_sent
            );
        }
    }
    assert_eq!(rig.provider.calls().len(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn sandbox_requests_count_against_the_accounts_quota() {
    let rig = Rig::with("[limits.classes.pro]\nquota = 2\nwindow_secs = 3600").await;
    let mut browser = Browser::signed_in(&rig).await;
    browser.get("/sandbox").await;
    let mut statuses = Vec::new();
    for number in 0..3 {
        let once = format!("{number:032x}");
        let page = browser
            .submit("/sandbox", &[("message", "Halt!"), ("once", &once)])
            .await;
        statuses.push((page.status, page.text().contains("rate_limit_exceeded")));
    }
    assert_eq!(statuses, [(200, false), (200, false), (422, true)]);
    rig.add_expected_charge(spent(&rig));
    rig.finish().await;
}

#[tokio::test]
async fn a_sandbox_token_from_before_reauthentication_ends_with_the_session() {
    let (rig, mailbox) = with_mailbox("").await;
    let mut browser = Browser::signed_in_a_while_ago(&rig).await;
    browser.get("/sandbox").await;
    let given = browser.submit("/sandbox/token", &[]).await;
    assert_eq!(given.status, 200, "{}", given.text());
    let body = given.json();
    let token = body["token"].as_str().expect("a token");
    SECRETS.used("a token of the sandbox", token);
    let status = async || {
        let client = Client::new(&rig.url()).with_key(token);
        client.get("/v1/models").await.status
    };

    browser.get("/confirm").await;
    assert_eq!(browser.submit("/confirm", &[]).await.status, 303);
    let message = mailbox.message(Browser::ADDRESS, 1).await;
    assert_eq!(type_code(&mut browser, message.code()).await.status, 303);
    assert_eq!(browser.get("/sandbox").await.status, 200);
    assert_eq!(status().await, 403, "it works, for chats alone");
    assert_eq!(browser.submit("/sign-out", &[]).await.status, 303);
    assert_eq!(status().await, 401, "it ended with the session");
    rig.finish().await;
}
