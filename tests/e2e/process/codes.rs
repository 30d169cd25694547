//! Delivery of queued sign-in codes: durable, and at most once.

use serde_json::Value;
use tollgate_clock::Timestamp;
use tollgate_testing::mailbox::{self, Behaviour, Mailbox};
use tollgate_testing::{Client, Postgres, within};

use super::installation::{Installation, Serving};
use super::nodes::{Cluster, NAMES};
use crate::rig::SECRETS;

const ADA: &str = "ada@example.com";

/// The program is killed while the mail server accepts no mail. The code was queued durably before the response: the next run sends the
/// code, and the code is valid in the browser of the request.
#[tokio::test]
async fn a_queued_code_is_delivered_after_a_kill() {
    let mailbox = Mailbox::start(mailbox::Settings::default()).expect("free ports");
    mailbox.behave(Behaviour {
        refuse: u32::MAX,
        ..Behaviour::default()
    });
    let installation = Installation::new(&settings(&mailbox)).await;
    let mut serving = installation.serve().await;
    let cookie = request_code(&serving.url, ADA).await;
    // Between two attempts: an attempt under way at a kill is not repeated.
    let store = installation.store();
    let later = Timestamp::from_micros(i64::MAX);
    let waits = || {
        let due = store.messages_due(later, 1).expect("readable");
        let next = store.next_message_at().expect("readable");
        due.first()
            .is_some_and(|row| row.tries >= 2 && next < Some(row.message.expires_at))
    };
    within("the second refusal", crate::rig::poll(waits)).await;
    drop(store);
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

/// The delivering node is paused or killed when the mail server has the message and has not answered. The next delivering node sent the
/// message again, because no record showed the send. Now a claim is durable before the first byte leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_code_whose_node_is_paused_or_killed_while_it_is_sent_is_sent_once() {
    let mailbox = Mailbox::start(mailbox::Settings::default()).expect("free ports");
    let database = Postgres::shared().database();
    let mut cluster = Cluster::with(&database, "", &settings(&mailbox), &[]).await;
    let sql = |statement: &str| {
        let name = database.rsplit('/').next().expect("a name");
        Postgres::shared().run(name, statement)
    };
    let mut running = vec![0, 1, 2];
    for signal in ["STOP", "KILL"] {
        let address = format!("{signal}@example.com").to_lowercase();
        let holder = cluster.leader_of(&running).await;
        mailbox.behave(Behaviour {
            lag_ms: 4_000,
            ..Behaviour::default()
        });
        request_code(&cluster.nodes[running[0]].url, &address).await;
        mailbox.message(&address, 1).await;
        cluster.nodes[holder].process.signal(signal);
        mailbox.behave(Behaviour::default());
        running.retain(|node| *node != holder);
        // As if the holder had not renewed the lease for ten seconds.
        sql("UPDATE leases SET held_until = 0 WHERE node = 0");
        let next = cluster.leader_of(&running).await;
        // Sent after every message due at the time of queueing.
        let other = format!("after-{address}");
        request_code(&cluster.nodes[next].url, &other).await;
        mailbox.message(&other, 1).await;
        if signal == "STOP" {
            cluster.nodes[holder].process.signal("CONT");
            let is_empty = || sql("SELECT count(*) FROM outbox") == "0";
            within("the recorded result", crate::rig::poll(is_empty)).await;
            running.push(holder);
        }
        for address in [address, other] {
            let messages = mailbox.messages(&address);
            assert_eq!((messages.len(), messages[0].copies), (1, 1), "{address}");
        }
    }
    assert_eq!(running.len(), NAMES.len() - 1);
    cluster.audit();
}

impl Cluster {
    /// Waits until one of `nodes` is the leader.
    async fn leader_of(&self, nodes: &[usize]) -> usize {
        let found = async {
            loop {
                for node in nodes {
                    let leader = self.nodes[*node].metric("tollgate_node_duties").await;
                    if leader == 1 {
                        return *node;
                    }
                }
            }
        };
        within("a leader", found).await
    }
}

/// Settings for delivery to a mailbox.
fn settings(mailbox: &Mailbox) -> String {
    format!(
        "[signin.mail]\nsmtp_url = \"smtp://{}\"\nfrom = \"codes@example.net\"",
        mailbox.smtp()
    )
}

/// Asks for a code to sign up; returns the browser's cookie.
async fn request_code(url: &str, address: &str) -> String {
    let (cookie, token) = open_page(url, "/sign-up", "").await;
    let form = format!("csrf={token}&address={address}");
    let (status, _) = send(url, "/sign-up", &cookie, form).await;
    assert_eq!(status, 303);
    cookie
}

/// Opens a page; returns the browser's cookie after the page, and the CSRF token of the page.
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

/// Sends a form; returns the status and the browser's cookie after the form.
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

/// The session's cookie, ahead of the browser's mark.
fn first_cookie(answer: &tollgate_testing::Answer) -> Option<&str> {
    answer.headers.get("set-cookie")?.to_str().ok()
}

/// A leaked key is sent to every node several times at once: one of the requests revokes the key, and every node refuses the key. The owner
/// gets a single mail, also when the mail server takes no mail at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_sent_a_leaked_key_at_once_refuse_it_and_send_one_mail() {
    let mailbox = Mailbox::start(mailbox::Settings::default()).expect("free ports");
    mailbox.behave(Behaviour {
        refuse: 1,
        ..Behaviour::default()
    });
    let database = Postgres::shared().database();
    let cluster = Cluster::with(&database, "", &settings(&mailbox), &[]).await;
    let words = ["account", "create", "--email", ADA];
    let account = cluster.ask("a", &words).await["id"].clone();
    let account = account.as_str().expect("an id");
    let words = ["key", "create", "--account", account, "--name", "CI"];
    let key = cluster.ask("a", &words).await["secret"].clone();
    let key = key.as_str().expect("a secret");
    SECRETS.used("an API key", key);
    let nodes = || cluster.nodes.iter().chain(&cluster.nodes);
    let client = |node: &Serving| Client::new(&node.url).with_key(key);
    for node in nodes() {
        let knows = async { while client(node).get("/v1/models").await.status != 200 {} };
        within("the key at each node", knows).await;
    }
    let revocations = nodes().map(|node| {
        let client = client(node);
        async move { client.post("/keys/revoke", &Value::Null).await.status }
    });
    let answers = futures_util::future::join_all(revocations).await;
    assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    for node in nodes() {
        let refuses = async { while client(node).get("/v1/models").await.status != 401 {} };
        within("a refusal at each node", refuses).await;
    }
    let notice = mailbox.message(ADA, 1).await;
    assert!(notice.text.contains("Name: CI\n"), "{}", notice.text);
    let is_empty = || cluster.sql("SELECT count(*) FROM notices") == "0";
    within("the recorded delivery", crate::rig::poll(is_empty)).await;
    assert_eq!(mailbox.messages(ADA).len(), 1);
    let recorded = "SELECT count(*) FROM audit_log WHERE actor = 'holder of the key' AND action = 'key_revoke'";
    assert_eq!(cluster.sql(recorded), "1");
    cluster.audit();
}
