//! Durability of queued sign-in codes.

use tollgate_testing::Client;
use tollgate_testing::mailbox::{self, Behaviour, Mailbox};

use super::installation::Installation;

const ADA: &str = "ada@example.com";

/// The program is killed while its mail server is down. The code was queued durably before the response, so the next run sends it, and
/// it is valid in that browser.
#[tokio::test]
async fn a_queued_code_is_delivered_after_a_kill() {
    let mailbox = Mailbox::start(mailbox::Settings::default()).expect("free ports");
    mailbox.behave(Behaviour {
        refuse: u32::MAX,
        ..Behaviour::default()
    });
    let settings = format!(
        "[signin.mail]\nsmtp_url = \"smtp://{}\"\nfrom = \"codes@example.net\"",
        mailbox.smtp()
    );
    let installation = Installation::new(&settings).await;
    let mut serving = installation.serve().await;
    let (cookie, token) = open_page(&serving.url, "/sign-up", "").await;
    let form = format!("csrf={token}&address={ADA}");
    let (status, _) = send(&serving.url, "/sign-up", &cookie, form).await;
    assert_eq!(status, 303);
    serving.process.kill();
    assert!(
        mailbox.messages(ADA).is_empty(),
        "the mail server took nothing"
    );

    mailbox.behave(Behaviour::default());
    let mut serving = installation.serve().await;
    let message = mailbox.message(ADA, 1).await;
    let (cookie, token) = open_page(&serving.url, "/sign-in/code", &cookie).await;
    let form = format!("csrf={token}&code={}", message.code());
    let (status, entered) = send(&serving.url, "/sign-in/code", &cookie, form).await;
    assert_eq!(status, 303);
    assert_ne!(entered, cookie);
    serving.process.kill();
}

/// Opens a page; returns the browser's cookie after it, and the CSRF token of the page.
async fn open_page(url: &str, path: &str, cookie: &str) -> (String, String) {
    let client = Client::new(url);
    let mut request = client.request("GET", path, Default::default());
    if !cookie.is_empty() {
        let fields = request.headers_mut();
        fields.insert("cookie", cookie.parse().expect("a value"));
    }
    let answer = client.send(request).await;
    let given = first_cookie(&answer).expect("a cookie");
    let cookie = given.split(';').next().unwrap_or("").to_owned();
    let (_, after) = answer
        .text()
        .split_once("name=\"csrf\" value=\"")
        .expect("a form");
    (cookie, after.split('"').next().unwrap_or("").to_owned())
}

/// Sends a form; returns the status and the browser's cookie after it.
async fn send(url: &str, path: &str, cookie: &str, form: String) -> (u16, String) {
    let client = Client::new(url);
    let mut request = client.request("POST", path, form.into());
    let fields = request.headers_mut();
    fields.insert("cookie", cookie.parse().expect("a value"));
    let kind = "application/x-www-form-urlencoded";
    fields.insert("content-type", kind.parse().expect("a value"));
    let answer = client.send(request).await;
    let given = first_cookie(&answer).unwrap_or(cookie);
    (
        answer.status,
        given.split(';').next().unwrap_or("").to_owned(),
    )
}

/// The session, which comes before the mark of the browser.
fn first_cookie(answer: &tollgate_testing::Answer) -> Option<&str> {
    answer.headers.get("set-cookie")?.to_str().ok()
}
