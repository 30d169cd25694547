//! `POST /keys/revoke`: the finder of a leaked key revokes the key, and the owner gets a mail.

use bytes::Bytes;
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_identity::Form;
use tollgate_store::{AuditLogQuery, AuditOutcome};
use tollgate_testing::{Answer, Client, within};
use zeroize::Zeroizing;

use secrecy::ExposeSecret;

use crate::rig::{Rig, SECRETS, Setup, Token, add_login, poll};
use crate::sign_in::{ask, with_mailbox};

const ADA: &str = "ada@example.com";
/// The page about keys; with the suffix `.md`, as Markdown.
const CHAPTER: &str = "/docs/lifecycle";

async fn revoke(rig: &Rig, key: &str) -> Answer {
    let client = Client::new(&rig.url()).with_key(key);
    client
        .send(client.request("POST", "/keys/revoke", Bytes::new()))
        .await
}

async fn works(rig: &Rig, key: &str) -> bool {
    let client = Client::new(&rig.url()).with_key(key);
    match client.get("/v1/models").await.status {
        200 => true,
        401 => false,
        other => panic!("{other}"),
    }
}

/// The subjects of the revocations in the audit log.
fn revocations(rig: &Rig) -> Vec<String> {
    let wanted = AuditLogQuery {
        actor: Some("holder of the key".into()),
        limit: 100,
        ..AuditLogQuery::default()
    };
    let records = rig.books.store.audit_log(&wanted).expect("a read");
    let subjects = records.iter().map(|record| {
        let event = &record.event;
        assert_eq!(&*event.action, "key_revoke");
        assert_eq!(event.outcome, AuditOutcome::Done);
        assert!(event.request.len() > 20, "{}", event.request);
        event.subject.as_deref().expect("a key").to_owned()
    });
    subjects.collect()
}

fn is_quiet_success(answer: &Answer, what: &str) {
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    assert!(answer.body.is_empty(), "{what}");
    assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
}

#[tokio::test]
async fn a_leaked_key_is_revoked_by_who_finds_it_and_its_owner_gets_one_mail() {
    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, ADA).await;
    add_login(&rig, rig.account, "+4930123456").await;
    let (id, key) = rig
        .new_key(rig.account, |key| key.label = "CI of the shop".into())
        .await;
    assert!(works(&rig, &key).await);

    is_quiet_success(&revoke(&rig, &key).await, "the first time");
    assert!(!works(&rig, &key).await, "from the next request on");
    assert!(works(&rig, &rig.key).await, "that key alone");
    assert_eq!(revocations(&rig), [id.to_string()]);
    let notice = mailbox.message(ADA, 1).await;
    let hint = format!("{}...{}", &key[..11], &key[key.len() - 4..]);
    for part in ["CI of the shop", &*hint, "What to do", "localhost"] {
        assert!(notice.text.contains(part), "{part}: {}", notice.text);
    }
    assert!(
        notice.subject.starts_with("Security notice:"),
        "{}",
        notice.subject
    );
    assert!(!notice.text.contains(&*key) && !notice.text.contains("://"));

    is_quiet_success(&revoke(&rig, &key).await, "again");
    assert_eq!(revocations(&rig).len(), 1, "nothing was done");
    // A code sent afterwards is the next message.
    let mut browser = crate::rig::Browser::new(&rig);
    ask(&mut browser, "/sign-in", ADA).await;
    let code = mailbox.message(ADA, 2).await;
    assert!(code.text.starts_with(code.code()), "{}", code.text);
    assert!(mailbox.messages("+4930123456").is_empty(), "by mail alone");
    rig.finish().await;
}

#[tokio::test]
async fn the_answer_says_nothing_of_the_credential() {
    let rig = Rig::start().await;
    let now = Clock::system().now();
    let (_, expired) = rig
        .new_key(rig.account, |key| {
            key.created_at = Timestamp::from_secs(1);
            key.expires_at = Some(Timestamp::from_secs(2));
        })
        .await;
    let (_, suspended) = rig.new_key(rig.account, |_| ()).await;
    let (_, token) = rig.new_token(rig.account, Token::MCP).await;
    let unknown = Form::api_key("svc").make(&Zeroizing::new(Entropy::system().bytes()));
    let unknown = SECRETS.used("an API key", unknown.expose_secret());
    let mut seen = Vec::new();
    for (what, credential) in [
        ("unknown", unknown),
        ("expired", &*expired),
        ("live", &*suspended),
        ("revoked", &*suspended),
        ("malformed", "sk-svc-nonsense"),
        ("a token", &*token),
    ] {
        let answer = revoke(&rig, credential).await;
        is_quiet_success(&answer, what);
        let mut names: Vec<String> = answer.headers.keys().map(ToString::to_string).collect();
        names.sort();
        seen.push(names);
    }
    assert!(seen.iter().all(|names| *names == seen[0]), "{seen:?}");
    assert_eq!(revocations(&rig).len(), 1, "of the live one");
    let read = &rig.books.store;
    let due = read.notices_due(Timestamp::MAX, 10).expect("a read");
    assert!(due.is_empty(), "the account has no address");
    let keys = read.account_credentials(rig.account).expect("a read");
    let revoked = keys.iter().filter(|row| row.revoked_at.is_some());
    let revoked: Vec<_> = revoked.collect();
    assert!(matches!(revoked[..], [one] if one.revoked_at >= Some(now)));
    rig.finish().await;
}

#[tokio::test]
async fn the_key_is_read_from_authorization_alone() {
    let rig = Rig::start().await;
    let key = rig.key.clone();
    let client = Client::new(&rig.url());
    let query = format!("/keys/revoke?key={key}&access_token={key}");
    for (path, body, status, code) in [
        (
            "/keys/revoke",
            format!("token={key}"),
            401,
            "missing_credential",
        ),
        (
            "/keys/revoke",
            format!("{{\"key\":\"{key}\"}}"),
            401,
            "missing_credential",
        ),
        (&*query, String::new(), 401, "missing_credential"),
    ] {
        let answer = client.send(client.request("POST", path, body.into())).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], code);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        assert!(!answer.text().contains(&*key));
    }
    for values in [
        vec![format!("Basic {key}")],
        vec![format!("Bearer {key}"); 2],
    ] {
        let mut request = client.request("POST", "/keys/revoke", Bytes::new());
        for value in &values {
            let fields = request.headers_mut();
            fields.append("authorization", value.parse().expect("a value"));
        }
        let answer = client.send(request).await;
        let wanted = match values.len() {
            1 => (401, "missing_credential"),
            _ => (400, "invalid_header"),
        };
        let code = answer.json()["error"]["code"].clone();
        assert_eq!((answer.status, code.as_str()), (wanted.0, Some(wanted.1)));
    }
    assert!(works(&rig, &key).await, "nothing was revoked");
    assert!(revocations(&rig).is_empty());
    rig.finish().await;
}

#[tokio::test]
async fn revocations_are_counted_by_the_address_of_the_client() {
    let settings = "[limits.classes.anonymous]\nquota = 3\nwindow_secs = 3600";
    let rig = Setup::with(settings).start().await;
    let (_, key) = rig.new_key(rig.account, |_| ()).await;
    for _ in 0..3 {
        assert_eq!(revoke(&rig, "sk-svc-nonsense").await.status, 200);
    }
    let answer = revoke(&rig, &key).await;
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "rate_limit_exceeded");
    assert!(answer.header("retry-after").is_some());
    assert!(works(&rig, &key).await);
    rig.finish().await;
}

/// The first attempts fail for longer than the life of a code.
#[tokio::test]
async fn a_notice_is_kept_until_the_mail_server_takes_it() {
    let (rig, mailbox) = with_mailbox("").await;
    add_login(&rig, rig.account, ADA).await;
    mailbox.behave(tollgate_testing::mailbox::Behaviour {
        refuse: 2,
        ..Default::default()
    });
    let (_, key) = rig.new_key(rig.account, |_| ()).await;
    is_quiet_success(&revoke(&rig, &key).await, "a live key");
    let due = rig.books.store.notices_due(Timestamp::MAX, 10);
    let due = due.expect("a read").pop().expect("a notice");
    let life = due.notice.expires_at.duration_since(due.notice.created_at);
    assert_eq!(life.as_secs(), 3 * 24 * 3600);
    assert_eq!(mailbox.message(ADA, 1).await.copies, 1);
    let is_done = || {
        let left = rig.books.store.notices_due(Timestamp::MAX, 10);
        left.expect("a read").is_empty()
    };
    within("the recorded delivery", poll(is_done)).await;
    rig.finish().await;
}

#[tokio::test]
async fn the_address_is_described_where_keys_are() {
    let rig = Rig::start().await;
    let client = Client::new(&rig.url());
    for path in [
        "/llms.txt",
        &*format!("{CHAPTER}.md"),
        CHAPTER,
        "/openapi.json",
    ] {
        let answer = client.get(path).await;
        assert!(answer.text().contains("/keys/revoke"), "{path}");
    }
    let mut browser = crate::rig::Browser::signed_in(&rig).await;
    let page = browser.get("/keys").await;
    assert!(
        page.text().contains("revoke it without signing in"),
        "{}",
        page.text()
    );
    rig.finish().await;
}
