//! Sign-in by one-time code, with a stand-in mail server and webhook.

mod mail;

use tollgate_testing::mailbox::{self, Behaviour, Mailbox};
use tollgate_testing::{Answer, within};

use crate::oauth::support::App;
use crate::rig::{Browser, Rig, Setup, add_login};

const ADA: &str = "ada@example.com";

/// A rig with codes to a mailbox; `more` is laid over the rig's settings.
pub(crate) async fn with_mailbox(more: &str) -> (Rig, Mailbox) {
    let mailbox = Mailbox::start(mailbox::Settings {
        sms_secret: Some("text-messages-of-a-test".into()),
        ..mailbox::Settings::default()
    });
    let mailbox = mailbox.expect("free ports");
    let settings = format!(
        r#"
        [signin.mail]
        smtp_url = "smtp://{}"
        from = "Tolls <codes@example.net>"

        [signin.sms]
        webhook_url = "{}/sms"
        secret_env = "SMS_SECRET"

        [limits.classes.anonymous]
        quota = 100000
        window_secs = 60

        {more}
        "#,
        mailbox.smtp(),
        mailbox.url()
    );
    let mut setup = Setup::with(&settings);
    setup.environment = tollgate::config::Environment::of([
        ("PROVIDER_KEY", crate::rig::PROVIDER_KEY),
        ("SMS_SECRET", "text-messages-of-a-test"),
    ]);
    (setup.start().await, mailbox)
}

/// Asks for a code at `/sign-in` or `/sign-up`.
pub(crate) async fn ask(browser: &mut Browser, page: &str, address: &str) -> Answer {
    browser.get(page).await;
    browser.submit(page, &[("address", address)]).await
}

pub(crate) async fn type_code(browser: &mut Browser, code: &str) -> Answer {
    browser.get("/sign-in/code").await;
    browser.submit("/sign-in/code", &[("code", code)]).await
}

/// A code different from `code`.
fn wrong(code: &str) -> String {
    let number: u32 = code.parse().expect("digits");
    format!("{:08}", (number + 1) % 100_000_000)
}

#[tokio::test]
async fn a_code_by_mail_or_phone_signs_in() {
    for address in [ADA, "+49 30 123456"] {
        let (rig, mailbox) = with_mailbox("").await;
        add_login(&rig, rig.account, address).await;
        let mut browser = Browser::new(&rig);
        let answer = ask(&mut browser, "/sign-in?next=%2Fkeys%3Fa%3Db", address).await;
        assert_eq!(answer.status, 303, "{}", answer.text());
        let to = address.replace(' ', "");
        let message = mailbox.message(&to, 1).await;
        assert!(
            message.text.starts_with(message.code()),
            "the code comes first"
        );
        assert!(!message.text.contains("://"), "no message has a link");
        let before = browser.cookie().to_owned();
        let answer = type_code(&mut browser, message.code()).await;
        assert_eq!(answer.status, 303, "{}", answer.text());
        assert_ne!(browser.cookie(), before, "a new value at sign-in");
        assert_eq!(browser.get("/").await.status, 200);
        rig.metric_becomes("tollgate_messages_total{event=\"sent\"}", 1)
            .await;
        rig.finish().await;
    }
}

#[tokio::test]
async fn after_sign_in_the_browser_returns_to_a_page_of_the_service_only() {
    for (asked, led) in [
        ("/keys?a=b", "/keys?a=b"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
    ] {
        let (rig, mailbox) = with_mailbox("").await;
        add_login(&rig, rig.account, ADA).await;
        let mut browser = Browser::new(&rig);
        browser.get("/sign-in").await;
        let fields = [("address", ADA), ("next", asked)];
        assert_eq!(browser.submit("/sign-in", &fields).await.status, 303);
        let code = mailbox.message(ADA, 1).await;
        browser.get("/sign-in/code").await;
        let fields = [("code", code.code()), ("next", asked)];
        let answer = browser.submit("/sign-in/code", &fields).await;
        assert_eq!(answer.header("location"), Some(led), "{asked}");
        rig.finish().await;
    }
}

#[tokio::test]
async fn sign_in_responses_do_not_reveal_whether_an_account_exists() {
    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, ADA).await;
    let mut pages = Vec::new();
    for address in [ADA, "bob@example.com"] {
        let mut browser = Browser::new(&rig);
        let mut seen = String::new();
        let mut see = |answer: &Answer| {
            let text = answer.text().replace(address, "ADDRESS");
            // Tokens and times differ between any two browsers.
            let text = without(&without(&text, "value=\"", '"'), "from ", '.');
            seen += &format!("{} {:?} {text}\n", answer.status, answer.header("location"));
        };
        see(&ask(&mut browser, "/sign-in", address).await);
        see(&browser.get("/sign-in/code").await);
        for _ in 0..6 {
            see(&type_code(&mut browser, "00000000").await);
        }
        pages.push(seen);
    }
    assert_eq!(pages[0], pages[1]);
    let known = mailbox.message(ADA, 1).await;
    assert_ne!(known.code(), "00000000", "one in a hundred million");
    assert!(mailbox.messages("bob@example.com").is_empty());
    rig.finish().await;
}

/// `text` without the parts between each `start` and the following `end`.
fn without(text: &str, start: &str, end: char) -> String {
    let mut pieces = text.split(start);
    let mut left = pieces.next().unwrap_or("").to_owned();
    for piece in pieces {
        left += start;
        left += piece.split_once(end).map_or("", |(_, after)| after);
    }
    left
}

#[tokio::test]
async fn a_code_works_once_and_in_the_browser_that_asked() {
    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, ADA).await;
    let mut browser = Browser::new(&rig);
    ask(&mut browser, "/sign-in", ADA).await;
    let message = mailbox.message(ADA, 1).await;
    let mut other = Browser::new(&rig);
    other.get("/sign-in").await;
    let answer = other
        .submit("/sign-in/code", &[("code", message.code())])
        .await;
    assert_eq!(answer.status, 422, "not in another browser");
    let mut twin = browser.clone();
    assert_eq!(type_code(&mut browser, message.code()).await.status, 303);
    let answer = twin
        .submit("/sign-in/code", &[("code", message.code())])
        .await;
    assert_eq!(answer.status, 422, "not twice");
    rig.finish().await;
}

#[tokio::test]
async fn one_code_used_concurrently_opens_one_session() {
    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, ADA).await;
    let mut browser = Browser::new(&rig);
    ask(&mut browser, "/sign-in", ADA).await;
    let message = mailbox.message(ADA, 1).await;
    browser.get("/sign-in/code").await;
    let mut browsers: Vec<Browser> = (0..4).map(|_| browser.clone()).collect();
    let all = browsers.iter_mut().map(|one| {
        let code = message.code().to_owned();
        async move { one.submit("/sign-in/code", &[("code", &code)]).await.status }
    });
    let ends = futures_util::future::join_all(all).await;
    let inside = ends.iter().filter(|status| **status == 303).count();
    assert_eq!(inside, 1, "{ends:?}");
    rig.finish().await;
}

#[tokio::test]
async fn five_wrong_attempts_end_a_code_also_concurrently() {
    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, ADA).await;
    let mut browser = Browser::new(&rig);
    ask(&mut browser, "/sign-in", ADA).await;
    let message = mailbox.message(ADA, 1).await;
    let bad = wrong(message.code());
    browser.get("/sign-in/code").await;
    for left in [
        "4 tries left",
        "3 tries left",
        "2 tries left",
        "1 try left",
        "no tries left",
    ] {
        let answer = type_code(&mut browser, &bad).await;
        assert_eq!(answer.status, 422);
        assert!(answer.text().contains(left), "{}", answer.text());
    }
    for code in [message.code(), &bad] {
        let after = browser.submit("/sign-in/code", &[("code", code)]).await;
        assert_eq!(after.status, 422);
        assert!(after.text().contains("no tries left"), "{}", after.text());
        assert!(!after.text().contains("expired"), "{}", after.text());
    }
    rig.finish().await;

    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, ADA).await;
    let mut browser = Browser::new(&rig);
    ask(&mut browser, "/sign-in", ADA).await;
    let message = mailbox.message(ADA, 1).await;
    let bad = wrong(message.code());
    browser.get("/sign-in/code").await;
    let mut browsers: Vec<Browser> = (0..20).map(|_| browser.clone()).collect();
    let all = browsers
        .iter_mut()
        .map(|one| async { one.submit("/sign-in/code", &[("code", &bad)]).await.status });
    futures_util::future::join_all(all).await;
    let answer = browser
        .submit("/sign-in/code", &[("code", message.code())])
        .await;
    assert_eq!(answer.status, 422, "the right code comes too late");
    assert_eq!(browser.get("/").await.status, 303);
    rig.finish().await;
}

#[tokio::test]
async fn malformed_codes_do_not_count_as_attempts() {
    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, ADA).await;
    let mut browser = Browser::new(&rig);
    ask(&mut browser, "/sign-in", ADA).await;
    let message = mailbox.message(ADA, 1).await;
    for nothing in ["", "1234", "abcdefgh", "123456789", "0x123456"] {
        let answer = type_code(&mut browser, nothing).await;
        assert_eq!(answer.status, 422);
        assert!(answer.text().contains("Enter the 8 digits"), "{nothing}");
    }
    let spaced = format!(" {} {} ", &message.code()[..4], &message.code()[4..]);
    assert_eq!(type_code(&mut browser, &spaced).await.status, 303);
    rig.finish().await;
}

#[tokio::test]
async fn code_requests_are_rate_limited_with_and_without_an_account() {
    for address in [ADA, "bob@example.com", "+4930123456"] {
        let (rig, _mailbox) = with_mailbox("").await;
        add_login(&rig, rig.account, ADA).await;
        let mut browser = Browser::new(&rig);
        assert_eq!(ask(&mut browser, "/sign-in", address).await.status, 303);
        let mut other = Browser::new(&rig);
        let answer = ask(&mut other, "/sign-in", address).await;
        assert_eq!(answer.status, 429, "one in half a minute");
        assert!(
            answer
                .text()
                .contains("Too many codes were requested. Try again in")
        );
        let wait: u64 = answer
            .header("retry-after")
            .expect("a wait")
            .parse()
            .expect("seconds");
        assert!((1..=30).contains(&wait), "{wait}");
        let answer = browser.get("/sign-in/code").await;
        assert_eq!(answer.status, 200);
        let answer = browser.submit("/sign-in/code/again", &[]).await;
        assert_eq!(answer.status, 429);
        rig.finish().await;
    }
}

#[tokio::test]
async fn codes_are_limited_by_network_and_hour() {
    let (rig, _mailbox) = with_mailbox("[signin]\nnetwork_hourly_max = 3").await;
    for (at, status) in [303, 303, 303, 429, 429].into_iter().enumerate() {
        let mut browser = Browser::new(&rig);
        let address = format!("unknown{at}@example.com");
        let answer = ask(&mut browser, "/sign-in", &address).await;
        assert_eq!(answer.status, status, "number {at}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn text_messages_are_limited_by_country_and_day() {
    let (rig, _mailbox) = with_mailbox("[signin]\ncountry_daily_max = 2").await;
    for (number, status) in [
        ("+4930123451", 303),
        ("+4930123452", 303),
        ("+4930123453", 429),
        ("+33123456789", 303),
        ("eve@example.com", 303),
    ] {
        let mut browser = Browser::new(&rig);
        let answer = ask(&mut browser, "/sign-in", number).await;
        assert_eq!(answer.status, status, "{number}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn an_unconfigured_channel_is_shown_as_unavailable() {
    let rig = Rig::start().await;
    let mut browser = Browser::new(&rig);
    let page = browser.get("/sign-in").await;
    assert!(
        page.text().contains("Signing in is off."),
        "{}",
        page.text()
    );
    browser.get("/").await;
    browser.get("/sign-in/code").await;
    rig.finish().await;

    let mailbox = Mailbox::start(mailbox::Settings::default()).expect("free ports");
    let mail = format!(
        "[signin.mail]\nsmtp_url = \"smtp://{}\"\nfrom = \"codes@example.net\"",
        mailbox.smtp()
    );
    let rig = Rig::with(&mail).await;
    let mut browser = Browser::new(&rig);
    let answer = ask(&mut browser, "/sign-in", "+4930123456").await;
    assert_eq!(answer.status, 422);
    assert!(
        answer
            .text()
            .contains("Codes cannot be sent to phones here.")
    );
    rig.finish().await;
}

#[tokio::test]
async fn signing_up_makes_an_account_with_its_grant_booked_once() {
    let (rig, mailbox) = with_mailbox("[credits]\nsignup_grant = \"5\"").await;
    let mut browser = Browser::new(&rig);
    let page = browser.get("/sign-up").await;
    assert!(
        page.text().contains("starts with 5.00 credits"),
        "{}",
        page.text()
    );
    assert_eq!(
        ask(&mut browser, "/sign-up", "new@example.com")
            .await
            .status,
        303
    );
    let message = mailbox.message("new@example.com", 1).await;
    assert_eq!(type_code(&mut browser, message.code()).await.status, 303);
    let page = browser.get("/").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("5.00"), "{}", page.text());

    // Another spelling of the mailbox makes an account without a grant.
    let mut tagged = Browser::new(&rig);
    let asked = ask(&mut tagged, "/sign-up", "new+1@example.com").await;
    assert_eq!(asked.status, 303);
    let message = mailbox.message("new+1@example.com", 1).await;
    assert_eq!(type_code(&mut tagged, message.code()).await.status, 303);
    let page = tagged.get("/").await;
    assert!(page.text().contains("<b>0.00</b>"), "{}", page.text());

    // Sign-up with the address of an existing account signs in to the account, without a grant of credit.
    add_login(&rig, rig.account, ADA).await;
    let mut known = Browser::new(&rig);
    assert_eq!(ask(&mut known, "/sign-up", ADA).await.status, 303);
    let message = mailbox.message(ADA, 1).await;
    assert_eq!(type_code(&mut known, message.code()).await.status, 303);
    let page = known.get("/").await;
    assert!(page.text().contains("<b>100.00</b>"), "{}", page.text());
    rig.finish().await;
}

#[tokio::test]
async fn signing_up_can_be_switched_off() {
    let (rig, _mailbox) = with_mailbox("[signin]\nsign_up = false").await;
    let mut browser = Browser::new(&rig);
    assert_eq!(browser.get("/sign-up").await.status, 404);
    let page = browser.get("/sign-in").await;
    assert!(!page.text().contains("/sign-up"), "{}", page.text());
    let answer = browser.submit("/sign-up", &[("address", ADA)]).await;
    assert_eq!(answer.status, 404);
    rig.finish().await;
}

#[tokio::test]
async fn mail_is_delivered_once_despite_refusals_delays_and_disconnects() {
    for behaviour in [
        Behaviour {
            refuse: 2,
            ..Behaviour::default()
        },
        Behaviour {
            lag_ms: 300,
            ..Behaviour::default()
        },
        Behaviour {
            drop: 1,
            ..Behaviour::default()
        },
    ] {
        let (rig, mailbox) = with_mailbox("").await;
        add_login(&rig, rig.account, ADA).await;
        mailbox.behave(behaviour);
        let mut browser = Browser::new(&rig);
        assert_eq!(ask(&mut browser, "/sign-in", ADA).await.status, 303);
        let message = mailbox.message(ADA, 1).await;
        // After a disconnect before the acknowledgement, the gateway does not know whether the server has the mail.
        let end = if behaviour.drop > 0 {
            "unknown"
        } else {
            "sent"
        };
        let end = format!("tollgate_messages_total{{event=\"{end}\"}}");
        let ended = async { while rig.metric(&end).await != 1 {} };
        within("the end of the attempt", ended).await;
        let left = || rig.books.store.next_message_at().expect("readable");
        within("an empty queue", crate::rig::poll(|| left().is_none())).await;
        let messages = mailbox.messages(ADA);
        assert_eq!((messages.len(), messages[0].copies), (1, 1));
        assert_eq!(type_code(&mut browser, message.code()).await.status, 303);
        rig.finish().await;
    }
}

#[tokio::test]
async fn suspension_ends_sessions_and_refuses_sign_in() {
    let (rig, mailbox) = with_mailbox("").await;
    let mut inside = Browser::signed_in(&rig).await;
    assert_eq!(inside.get("/").await.status, 200);
    let mut browser = Browser::new(&rig);
    ask(&mut browser, "/sign-in", Browser::ADDRESS).await;
    let message = mailbox.message(Browser::ADDRESS, 1).await;
    let suspended = tollgate_store::AccountStatus::Suspended;
    let now = tollgate_clock::Clock::system().now();
    tollgate_identity::set_status(&*rig.books.store, rig.account, suspended, now)
        .await
        .expect("suspended");
    assert_eq!(inside.get("/").await.status, 303, "no page any more");
    let answer = type_code(&mut browser, message.code()).await;
    assert_eq!(answer.status, 422);
    assert!(
        answer.text().contains("This account is suspended."),
        "{}",
        answer.text()
    );
    rig.finish().await;
}

#[tokio::test]
async fn codes_and_addresses_are_not_in_the_log() {
    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, ADA).await;
    let mut browser = Browser::new(&rig);
    ask(&mut browser, "/sign-in", ADA).await;
    let message = mailbox.message(ADA, 1).await;
    type_code(&mut browser, message.code()).await;
    let value = browser
        .cookie()
        .split_once('=')
        .expect("a value")
        .1
        .to_owned();
    let after = rig.finish().await;
    let log = serde_json::to_string(&after.log).expect("lines");
    for secret in [message.code(), ADA, &value] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}

#[tokio::test]
async fn signing_out_everywhere_ends_the_sessions_of_other_browsers() {
    let rig = Rig::start().await;
    let mut one = Browser::signed_in(&rig).await;
    let mut two = Browser::signed_in_as(&rig, rig.account, "ada@example.org").await;
    let page = one.get("/sign-out/everywhere").await;
    assert!(
        page.text().contains("Sign out everywhere?"),
        "{}",
        page.text()
    );
    assert_eq!(two.get("/").await.status, 200, "looking changes nothing");
    assert_eq!(one.submit("/sign-out/everywhere", &[]).await.status, 303);
    assert_eq!(one.get("/").await.status, 303);
    assert_eq!(two.get("/").await.status, 303);
    rig.finish().await;
}

#[tokio::test]
async fn signing_out_everywhere_ends_sessions_grants_and_tokens() {
    let (rig, mailbox) = with_mailbox("").await;
    let mut evicted = Browser::signed_in_a_while_ago(&rig).await;
    evicted.get("/confirm").await;
    assert_eq!(evicted.submit("/confirm", &[]).await.status, 303);
    let message = mailbox.message(Browser::ADDRESS, 1).await;
    let mut owner = Browser::signed_in_as(&rig, rig.account, "ada@example.org").await;
    let mut app = App::of(&rig, evicted, "https://app.example/cb").await;
    let mut paths = Vec::new();
    for _ in 0..6 {
        let path = app.ask(&[]).await;
        assert_eq!(app.browser.get(&path).await.status, 200);
        paths.push(path);
    }
    owner.get("/sign-out/everywhere").await;

    // The browser allows apps during the sign-out: no grant remains, in any order.
    let under_way = paths.iter().map(|path| {
        let mut browser = app.browser.clone();
        async move { browser.submit(path, &[("decision", "allow")]).await.status }
    });
    let (out, allowed) = tokio::join!(
        owner.submit("/sign-out/everywhere", &[("apps", "yes")]),
        futures_util::future::join_all(under_way),
    );
    assert_eq!(out.status, 303, "{}", out.text());
    assert_eq!(allowed, [303; 6], "to the app, or to sign-in");
    let mut again = Browser::signed_in_as(&rig, rig.account, "ada@example.net").await;
    let apps = again.get("/apps").await;
    assert!(apps.text().contains("No apps."), "{}", apps.text());

    // A code still in the browser is worthless.
    let code = [("code", message.code())];
    let confirmed = app.browser.submit("/sign-in/code", &code).await;
    assert_eq!(confirmed.status, 422, "{}", confirmed.text());
    let key = [("name", "ci-runner"), ("may", "chat")];
    let made = app.browser.submit("/keys/create", &key).await;
    assert_eq!(
        made.header("location"),
        Some("/sign-in?next=%2Fkeys%2Fcreate")
    );
    assert_eq!(app.browser.get("/").await.status, 303);
    let keys = again.get("/keys").await;
    assert!(!keys.text().contains("ci-runner"), "{}", keys.text());
    drop(app);
    rig.finish().await;
}

#[tokio::test]
async fn a_form_that_needs_a_recent_code_waits_for_it() {
    let (rig, mailbox) = with_mailbox("").await;
    let mut browser = Browser::signed_in_a_while_ago(&rig).await;
    browser.get("/keys/create").await;
    let answer = browser
        .submit("/keys/create", &[("name", "staging-worker")])
        .await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    assert_eq!(
        answer.header("location"),
        Some("/confirm?next=%2Fkeys%2Fcreate")
    );
    let before = browser.cookie().to_owned();
    let page = browser.follow(answer).await;
    assert!(
        page.text().contains("<h1>Confirm it is you</h1>"),
        "{}",
        page.text()
    );
    let fields = [("next", "/keys/create")];
    let answer = browser.submit("/confirm", &fields).await;
    let page = browser.follow(answer).await;
    assert!(
        page.text().contains("Enter the code we sent"),
        "{}",
        page.text()
    );
    let message = mailbox.message(Browser::ADDRESS, 1).await;
    let fields = [("code", message.code()), ("next", "/keys/create")];
    let answer = browser.submit("/sign-in/code", &fields).await;
    assert_eq!(answer.header("location"), Some("/keys/create"));
    assert_ne!(browser.cookie(), before, "a new value with more rights");
    let page = browser.follow(answer).await;
    assert!(
        page.text().contains("value=\"staging-worker\""),
        "{}",
        page.text()
    );
    rig.finish().await;
}

#[tokio::test]
async fn a_form_sent_after_the_session_ended_is_filled_after_the_next_sign_in() {
    let (rig, mailbox) = with_mailbox("").await;
    let mut browser = Browser::signed_in(&rig).await;
    let own = [("sec-fetch-site", "same-origin")];
    // The session ended elsewhere, and the browser still has the cookie; or the session ended in another window, and the browser has a
    // newer cookie.
    for (number, is_same_cookie) in [(1, true), (2, false)] {
        browser.get("/keys/create").await;
        let token = browser.token().to_owned();
        match is_same_cookie {
            true => browser.clone().submit("/sign-out", &[]).await,
            false => browser.submit("/sign-out", &[]).await,
        };
        let fields = [
            ("csrf", &*token),
            ("name", "staging-worker"),
            ("may", "chat"),
        ];
        if !is_same_cookie {
            let forged = browser.post_with("/keys/create", &[], &fields).await;
            assert_eq!(
                forged.status, 403,
                "the sender does not say where the form is from"
            );
            let cross = [("sec-fetch-site", "cross-site")];
            let forged = browser.post_with("/keys/create", &cross, &fields).await;
            assert_eq!(forged.status, 403);
        }
        let answer = browser.post_with("/keys/create", &own, &fields).await;
        assert_eq!(answer.status, 303, "{}", answer.text());
        let location = answer.header("location");
        assert_eq!(location, Some("/sign-in?next=%2Fkeys%2Fcreate"));
        browser.follow(answer).await;
        let next = ("next", "/keys/create");
        let answer = browser.submit("/sign-in", &[("address", ADA), next]).await;
        browser.follow(answer).await;
        let message = mailbox.message(ADA, number).await;
        let answer = browser
            .submit("/sign-in/code", &[("code", message.code()), next])
            .await;
        assert_eq!(
            answer.header("location"),
            Some("/keys/create"),
            "{}",
            answer.text()
        );
        let page = browser.follow(answer).await;
        assert!(
            page.text().contains("value=\"staging-worker\""),
            "{}",
            page.text()
        );
        assert!(!page.text().contains(&token), "the old token is not kept");
        let keys = browser.get("/keys").await;
        assert!(!keys.text().contains("staging-worker"), "it was not sent");
        let page = browser.get("/keys/create").await;
        assert!(!page.text().contains("staging-worker"), "it is filled once");
    }
    rig.finish().await;
}
