//! Upgrades during which commits do not end, or a stop is requested.

use rusqlite::Connection;
use tollgate_testing::within;

use super::installation::{Installation, Serving, ended};
use super::spool::{admitted, begun};
use super::upgrade::{Successor, first_ended, slow_body};
use crate::rig::{PRICE_OF_A_CHAT, audited, micros, poll};

/// Waits until the earlier process, or the new one, which writes to the same place, has logged this.
async fn logged(serving: &Serving, words: &str) {
    let is_logged = || serving.process.output().contains(words);
    within(words, poll(is_logged)).await;
}

/// The new process of an upgrade under way.
fn new_process(serving: &Serving) -> Successor {
    let output = serving.process.output();
    let mut lines = output.lines();
    let started = lines.find(|line| line.contains("started the new process"));
    let id = started.and_then(|line| line.rsplit("process=").next());
    Successor(id.and_then(|id| id.parse().ok()).expect("its number"))
}

/// Another program holds the lock of the database: no commit ends, and everything can be read.
#[tokio::test]
async fn an_upgrade_is_refused_when_commits_do_not_end_before_the_store_is_handed_over() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    let before = available(&installation).await;
    let streams = begun(&client, &installation, "under way", 1).await;
    let slow = slow_body(&serving, &installation).await;
    let mut upgrade = installation.spawn(installation.command(&["upgrade"]));
    logged(&serving, "the new process is ready to take over").await;
    let other = Connection::open(installation.database()).expect("another program");
    other.execute_batch("BEGIN IMMEDIATE").expect("its lock");
    logged(&serving, "upgrade failed").await;
    assert!(new_process(&serving).has_ended());
    drop(slow);
    drop(other);
    assert_eq!(ended(&mut upgrade).await.code(), Some(1));
    let output = upgrade.output();
    assert!(output.contains("the database does not answer"), "{output}");

    installation.provider.gate("under way").open();
    streams.end().await;
    admitted(&client).await;
    assert!(serving.process.has_ended().is_none());
    let charged = before - available(&installation).await;
    assert_eq!(charged, 2 * PRICE_OF_A_CHAT);
    let successor = Successor::of(&installation).await;
    drop(client);
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
    audited(&installation.database());
}

async fn available(installation: &Installation) -> i64 {
    let words = ["credits", "show", "--account", &installation.account];
    micros(&installation.ask(&words).await["available"])
}

#[tokio::test]
async fn a_stop_ends_an_upgrade_that_has_not_handed_over() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let slow = slow_body(&serving, &installation).await;
    let mut upgrade = installation.spawn(installation.command(&["upgrade"]));
    logged(&serving, "the new process is ready to take over").await;
    let new = new_process(&serving);
    serving.process.signal("TERM");
    logged(&serving, "draining: refusing new connections").await;
    drop(slow);
    assert_eq!(first_ended(&mut serving).await, Some(0));
    within("the end of the new process", poll(|| new.has_ended())).await;
    assert_eq!(ended(&mut upgrade).await.code(), Some(1));
    let output = upgrade.output();
    assert!(output.contains("a stop was requested"), "{output}");
    audited(&installation.database());
}

#[tokio::test]
async fn a_stop_after_the_hand_over_ends_the_new_process_too() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let slow = slow_body(&serving, &installation).await;
    let mut upgrade = installation.spawn(installation.command(&["upgrade"]));
    logged(&serving, "the new process is ready to take over").await;
    let new = new_process(&serving);
    // It has the store then, and does not serve.
    new.signal("STOP");
    logged(&serving, "handing the store over").await;
    serving.process.signal("TERM");
    drop(slow);
    new.signal("CONT");
    let status = first_ended(&mut serving).await;
    assert_eq!(status, Some(0), "{}", serving.process.output());
    within("the end of the new process", poll(|| new.has_ended())).await;
    let status = ended(&mut upgrade).await;
    assert_eq!(status.code(), Some(0), "{}", upgrade.output());
    audited(&installation.database());
}
