//! The last commits of an SQLite file: after a stop, the file alone has the last commits. After a kill, the loss of the file's log is
//! noticed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tollgate_testing::{Client, within};

use super::installation::{Installation, Serving, ended};
use super::upgrade::{Successor, first_ended};
use crate::rig::{CHAT, audited_store, chat};

fn beside(installation: &Installation, ending: &str) -> PathBuf {
    let mut name = installation.database().into_os_string();
    name.push(ending);
    PathBuf::from(name)
}

async fn serve_requests(serving: &Serving, installation: &Installation, count: usize) {
    let client = serving.client(installation);
    for _ in 0..count {
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// Runs a command: exit code and output.
async fn ask(installation: &Installation, words: &[&str]) -> (Option<i32>, String) {
    let mut process = installation.spawn(installation.command(words));
    let status = ended(&mut process).await;
    (status.code(), process.output())
}

fn operations(database: &Path) -> u64 {
    let store = tollgate_store::sqlite::open_read(database).expect("it opens");
    audited_store(&store).operations
}

#[tokio::test]
async fn after_a_stop_a_copy_of_the_file_alone_has_every_operation() {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    let mut serving = installation.serve().await;
    serve_requests(&serving, &installation, 20).await;
    // A page of the dashboard and the usage read the database, and their connections stay open.
    installation
        .ask(&["usage", "--account", &installation.account])
        .await;
    serve_requests(&serving, &installation, 5).await;
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let copies = tollgate_testing::tempdir().expect("a folder");
    let copy = copies.path().join("copy.db");
    fs::copy(installation.database(), &copy).expect("a copy");
    let whole = installation.audit().await["operations"].as_u64();
    assert_eq!(whole, Some(operations(&copy)));
    assert!(whole >= Some(25), "{whole:?}");
}

#[tokio::test]
async fn a_start_and_the_audit_refuse_a_database_that_lost_its_log_after_a_kill() {
    const REQUESTS: usize = 12;
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    let mut serving = installation.serve().await;
    let store = installation.store();
    // Later commits stay in the log.
    let view = store.snapshot().expect("a view");
    serve_requests(&serving, &installation, REQUESTS).await;
    serving.process.kill();
    let names = ["", "-wal", ".committed"];
    let killed: BTreeMap<_, _> = names
        .iter()
        .map(|name| {
            (
                *name,
                fs::read(beside(&installation, name)).expect("a file"),
            )
        })
        .collect();
    drop(view);
    drop(store);
    for damage in ["removed", "cut", "flipped"] {
        for (name, bytes) in &killed {
            fs::write(beside(&installation, name), bytes).expect("written");
        }
        let _ = fs::remove_file(beside(&installation, "-shm"));
        let log = beside(&installation, "-wal");
        let mut bytes = killed["-wal"].clone();
        match damage {
            "removed" => fs::remove_file(&log).expect("removed"),
            "cut" => fs::write(&log, &bytes[..bytes.len() / 2]).expect("written"),
            _ => {
                let at = bytes.len() / 3;
                bytes[at] ^= 1;
                fs::write(&log, bytes).expect("written");
            }
        }
        let (code, output) = ask(&installation, &["audit"]).await;
        assert_eq!(code, Some(2), "{damage}: {output}");
        assert!(output.contains("--accept-loss"), "{damage}: {output}");
        let named = output.split("at least ").nth(1).expect("a number");
        let commits: usize = named
            .split(' ')
            .next()
            .expect("a word")
            .parse()
            .expect("a number");
        assert!(commits >= 1, "{damage}: {output}");
        if damage == "removed" {
            let entries = named.split("with ").nth(1).expect("a number");
            let entries = entries.split(' ').next().expect("a word");
            let entries: usize = entries.parse().expect("a number");
            assert!(entries >= REQUESTS, "{output}");
        }
        let (status, started) = installation.fail().await;
        assert_eq!(status.code(), Some(2), "{damage}: {started}");
        assert!(
            started.contains(&format!("at least {commits} commit")),
            "{damage}: {started}"
        );
        // The operator's possible next steps: every step fails without the accepted loss.
        for words in [
            &["audit", "--fix-derived"][..],
            &["repair", "--apply"],
            &[
                "credits",
                "grant",
                "--account",
                &installation.account,
                "--amount",
                "1",
                "--reference",
                "x",
            ],
        ] {
            let (code, output) = ask(&installation, words).await;
            assert_eq!(code, Some(2), "{damage}: {words:?}: {output}");
        }
        let folder = tollgate_testing::tempdir().expect("a folder");
        let folder = folder.path().display().to_string();
        let (code, output) = ask(&installation, &["backup", "--dir", &folder]).await;
        assert_eq!(code, Some(2), "{damage}: {output}");
        let (code, output) = ask(&installation, &["repair"]).await;
        assert_eq!(code, Some(1), "{damage}: {output}");
        assert!(
            output.contains(&format!("at least {commits} commit")),
            "{damage}: {output}"
        );
    }
    let accepted = installation.ask(&["repair", "--accept-loss"]).await;
    assert_eq!(accepted["is_loss_accepted"], true, "{accepted}");
    let acts = installation.ask(&["audit-log"]).await;
    assert_eq!(acts[0]["action"], "accept_loss", "{acts}");
    let again = installation.ask(&["repair", "--accept-loss"]).await;
    assert_eq!(
        (&again["outcome"], &again["lost_commits"]),
        (&Value::from("whole"), &0.into())
    );
    let mut serving = installation.serve().await;
    serve_requests(&serving, &installation, 1).await;
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    assert_eq!(installation.audit().await["clean"], true);
}

#[tokio::test]
async fn a_record_that_is_missing_is_a_warning_and_is_made_by_the_next_start() {
    let installation = Installation::new("").await;
    let record = beside(&installation, ".committed");
    fs::remove_file(&record).expect("it is there");
    let (code, output) = ask(&installation, &["audit"]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("is missing"), "{output}");
    let mut serving = installation.serve().await;
    assert!(serving.process.output().contains("last commit is missing"));
    assert!(record.exists());
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let (_, output) = ask(&installation, &["audit"]).await;
    assert!(!output.contains("is missing"), "{output}");
}

#[tokio::test]
async fn an_upgrade_continues_log_and_record_and_the_lock_file_names_the_new_process() {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    let mut serving = installation.serve().await;
    let store = installation.store();
    let view = store.snapshot().expect("a view");
    serve_requests(&serving, &installation, 5).await;
    let before = fs::read(beside(&installation, "-wal")).expect("a log");
    let successor = Successor::of(&installation).await;
    let after = fs::read(beside(&installation, "-wal")).expect("a log");
    assert!(after.starts_with(&before), "the log goes on");
    drop(view);
    drop(store);
    let holder = fs::read_to_string(beside(&installation, ".lock")).expect("a lock file");
    assert_eq!(holder.trim().parse(), Ok(successor.0));
    let (status, output) = installation.fail().await;
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(
        output.contains(&format!("process {}", successor.0)),
        "{output}"
    );
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
    let copies = tollgate_testing::tempdir().expect("a folder");
    let copy = copies.path().join("copy.db");
    fs::copy(installation.database(), &copy).expect("a copy");
    let whole = installation.audit().await["operations"].as_u64();
    assert_eq!(whole, Some(operations(&copy)));
}

#[tokio::test]
async fn a_journal_that_is_damaged_is_a_warning_of_a_start_and_a_failure_of_doctor() {
    let installation = Installation::new("").await;
    let database = rusqlite::Connection::open(installation.database()).expect("it opens");
    let damaged =
        "UPDATE journal SET body = CAST(substr(body, 1, length(body) - 1) || x'55' AS BLOB)
        WHERE id = (SELECT max(id) FROM journal WHERE entries > 0)";
    assert_eq!(database.execute(damaged, []), Ok(1));
    drop(database);
    let (_, output) = ask(&installation, &["doctor"]).await;
    assert!(output.contains("does not match its seal"), "{output}");
    let mut serving = installation.serve().await;
    let admin = Client::new(&serving.admin_url);
    let shown = async {
        loop {
            let ready = admin.get("/ready").await;
            if ready.text().contains("does not match its seal") {
                return ready.status;
            }
        }
    };
    assert_eq!(within("the warning", shown).await, 200);
    assert!(serving.process.output().contains("database is damaged"));
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
}
