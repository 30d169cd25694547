//! Conditions outside of the program that an operator has to see in time: a locked database, and an expiring certificate.

use rusqlite::Connection;
use serde_json::Value;
use tollgate_testing::{Answer, Certificate, Client, within};

use super::installation::{Installation, Serving, ended};
use crate::rig::{CHAT, audited, chat};

async fn ready(serving: &Serving) -> Answer {
    Client::new(&serving.admin_url).get("/ready").await
}

fn texts(list: &Value) -> String {
    list.to_string()
}

/// Another program with SQLite's write lock stops every commit. The only visible effect was requests without an answer, and only after five
/// seconds.
#[tokio::test]
async fn a_database_locked_by_another_program_is_a_reason_not_to_be_ready() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    assert_eq!(ready(&serving).await.status, 200);
    assert_eq!(serving.metric("tollgate_store_locked").await, 0);
    let other = Connection::open(installation.database()).expect("another program");
    other.execute_batch("BEGIN IMMEDIATE").expect("its lock");
    let (unlock, seen) = std::sync::mpsc::channel::<()>();
    let lock = std::thread::spawn(move || {
        let _ = seen.recv();
        other.execute_batch("ROLLBACK").expect("it ends");
    });
    let client = serving.client(&installation);
    let waiting = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    let shown = async {
        loop {
            let answer = ready(&serving).await;
            let body = answer.json();
            if texts(&body["reasons"]).contains("locked by another program") {
                return answer.status;
            }
            assert_eq!(answer.status, 200, "{body}");
            assert!(!waiting.is_finished(), "the lock ended before it was shown");
        }
    };
    assert_eq!(within("the lock in /ready", shown).await, 503);
    assert_eq!(serving.metric("tollgate_store_locked").await, 1);
    unlock.send(()).expect("the lock is there");
    lock.join().expect("no panic");
    let answer = within("the answer after the lock", waiting).await;
    assert_eq!(answer.expect("no panic").status, 200);
    assert_eq!(ready(&serving).await.status, 200);
    assert_eq!(serving.metric("tollgate_store_locked").await, 0);
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let output = serving.process.output();
    assert!(output.contains("waiting for the database lock"), "{output}");
    audited(&installation.database());
}

/// The free space of the real file system decides: with less than a terabyte the request is refused, otherwise answered.
#[tokio::test]
async fn a_disk_with_less_space_than_is_set_refuses_new_work_and_says_so() {
    let least = 1_u64 << 40;
    let installation = Installation::new(&format!("[store]\nfree_bytes_min = {least}")).await;
    let mut serving = installation.serve().await;
    let read = rustix::fs::statvfs(installation.folder.path()).expect("a file system");
    let is_low = read.f_bavail * read.f_frsize < least;
    let shown = async {
        loop {
            let body = ready(&serving).await.json();
            if !is_low || texts(&body["reasons"]).contains("store.free_bytes_min") {
                return;
            }
        }
    };
    within("the disk in /ready", shown).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    let expected = if is_low { 503 } else { 200 };
    assert_eq!(answer.status, expected, "{}", answer.text());
    assert_eq!(answer.header("retry-after").is_some(), is_low);
    let free = serving.metric("tollgate_disk_free_bytes").await;
    assert_eq!(free > 0 && free < least, is_low, "{free}");
    assert_eq!(serving.metric("tollgate_open_holds").await, 0);
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    audited(&installation.database());
}

#[tokio::test]
async fn an_expired_certificate_is_shown_where_operators_look() {
    let installation = Installation::new("").await;
    let old = Certificate::until(&["localhost"], (2020, 1, 1));
    let folder = installation.folder.path();
    std::fs::write(folder.join("certificate.pem"), old.cert_pem).expect("written");
    std::fs::write(folder.join("key.pem"), old.key_pem).expect("written");
    let mut serving = installation.serve().await;
    let answer = ready(&serving).await;
    assert_eq!(answer.status, 200, "plain listeners serve");
    let warnings = texts(&answer.json()["warnings"]);
    assert!(warnings.contains("certificate.pem"), "{warnings}");
    assert!(warnings.contains("has expired at 2020-01-01"), "{warnings}");
    let page = Client::new(&serving.admin_url).get("/metrics").await;
    let line = page
        .text()
        .lines()
        .find(|line| line.starts_with("tollgate_certificate_expiry_timestamp_seconds{"));
    assert!(
        line.is_some_and(|line| line.ends_with(" 1577836800")),
        "{line:?}"
    );
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let output = serving.process.output();
    assert!(output.contains("health condition began"), "{output}");
}
