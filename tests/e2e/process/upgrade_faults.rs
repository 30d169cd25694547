//! Upgrades with a refusal, with unfinished commits, or with a stop request.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use rusqlite::Connection;
use tollgate_testing::{Postgres, RaisedAt, RaisedErrors, within};
use toml::Table;

use super::installation::{Installation, Serving, ended};
use super::spool::{admitted, begun, linked_database};
use super::upgrade::{Successor, first_ended, slow_body};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, audited, audited_store, chat, micros, poll};

/// Waits until the earlier process or the new process has logged `words`. The two processes write to a common output.
pub(super) async fn logged(serving: &Serving, words: &str) {
    let is_logged = || serving.process.output().contains(words);
    within(words, poll(is_logged)).await;
}

/// The new process of an upgrade under way.
pub(super) fn new_process(serving: &Serving) -> Successor {
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

async fn refused_for_the_database(installation: &Installation) {
    let mut upgrade = installation.spawn(installation.command(&["upgrade"]));
    assert_eq!(ended(&mut upgrade).await.code(), Some(1));
    let output = upgrade.output();
    assert!(output.contains("the database does not answer"), "{output}");
}

/// The new process waited for a connection first, and the hand-over for the database, until the node ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_is_refused_at_once_while_the_database_does_not_answer() {
    let (link, linked, _) = linked_database();
    let installation = Installation::on_postgres(&linked, "").await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    for stalls in [false, true] {
        admitted(&client).await;
        match stalls {
            false => link.cut(),
            true => link.stall(),
        }
        refused_for_the_database(&installation).await;
        let output = serving.process.output();
        assert!(!output.contains("started the new process"), "{output}");
        link.restore();
    }
    admitted(&client).await;
    // The connection to the database is lost when the upgrade is ready and no commit is pending.
    let slow = slow_body(&serving, &installation).await;
    let mut upgrade = installation.spawn(installation.command(&["upgrade"]));
    logged(&serving, "the new process is ready to take over").await;
    link.stall();
    logged(&serving, "upgrade failed").await;
    assert_eq!(ended(&mut upgrade).await.code(), Some(1));
    let output = upgrade.output();
    assert!(output.contains("the database does not answer"), "{output}");
    drop(slow);
    link.restore();
    admitted(&client).await;
    assert!(serving.process.has_ended().is_none());
    let successor = Successor::of_recovered(&installation).await;
    drop(client);
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
    audited_store(&installation.store());
}

/// The database can be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_is_refused_while_the_database_has_no_room() {
    let url = Postgres::shared().database();
    let database = url.rsplit('/').next().expect("a name");
    let installation = Installation::on_postgres(&url, "").await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    admitted(&client).await;
    let errors = RaisedErrors::of(database, "leases", RaisedAt::Write);
    errors.raise("53100");
    refused_for_the_database(&installation).await;
    errors.stop();
    admitted(&client).await;
    let successor = Successor::of_recovered(&installation).await;
    drop(client);
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
    audited_store(&installation.store());
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
    // The new process has the store, and does not serve.
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

/// Hands over to a new process, and stops the earlier process during a stream. `before` acts on the new process before the stop.
async fn stop_earlier(
    installation: &Installation,
    serving: &mut Serving,
    before: impl AsyncFnOnce(&Serving, &Successor),
) -> Successor {
    let client = serving.client(installation);
    let streams = begun(&client, installation, "under way", 1).await;
    let successor = Successor::of(installation).await;
    logged(serving, "the new process serves").await;
    before(serving, &successor).await;
    serving.process.signal("TERM");
    logged(serving, "requesting a stop of the new process").await;
    installation.provider.gate("under way").open();
    streams.end().await;
    drop(client);
    assert_eq!(first_ended(serving).await, Some(0));
    successor
}

/// Streams end in the earlier process for minutes, and a supervisor may know only the earlier process.
#[tokio::test]
async fn a_stop_of_the_earlier_process_ends_the_new_one_too() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let successor = stop_earlier(&installation, &mut serving, async |_, _| {}).await;
    within("the end of the new process", poll(|| successor.has_ended())).await;
    let report = audited(&installation.database());
    assert_eq!(report.sums.spent.get(), PRICE_OF_A_CHAT);
}

/// Writes the settings with a replaced value.
fn set(installation: &Installation, section: &str, key: &str, value: &str) {
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let mut table: Table = text.parse().expect("TOML");
    let section = table.entry(section).or_insert_with(|| Table::new().into());
    let section = section.as_table_mut().expect("a table");
    section.insert(key.into(), value.into());
    let text = toml::to_string(&table).expect("tables are TOML");
    std::fs::write(&installation.config, text).expect("the folder takes files");
}

#[tokio::test]
async fn an_upgrade_to_settings_that_cannot_be_opened_changes_nothing() {
    let database = Postgres::shared().database();
    let installation = Installation::on_postgres(&database, "").await;
    set(&installation, "store", "node", "a");
    let valid = installation.folder.path().join("valid.toml");
    std::fs::copy(&installation.config, &valid).expect("a copy");
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().map(|address| (taken, address));
    let (_taken, address) = taken.expect("it is bound");
    // Of another gateway.
    let other = installation.folder.path().join("other.sock");
    let _other = UnixListener::bind(&other).expect("a socket");
    let other = other.display().to_string();
    for (section, key, value, problem) in [
        (
            "admin",
            "address",
            &*address.to_string(),
            "change `admin.address`",
        ),
        (
            "admin",
            "socket",
            "/proc/tollgate.sock",
            "set `admin.socket`",
        ),
        ("admin", "socket", &other, "another"),
        (
            "store",
            "spool",
            "/proc/spool",
            "could not write to `/proc/spool`",
        ),
        ("store", "node", "b", "that of the running gateway is `a`"),
    ] {
        std::fs::copy(&valid, &installation.config).expect("a copy");
        set(&installation, section, key, value);
        // The command finds the gateway by the earlier settings.
        let upgrade = || installation.command_with(&valid, &["upgrade"]);
        let (status, output) = installation.until_answered(upgrade).await;
        assert_eq!(status.code(), Some(1), "{output}");
        assert!(output.contains(problem), "{output}");
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    std::fs::copy(&valid, &installation.config).expect("a copy");
    let successor = Successor::of(&installation).await;
    drop(client);
    assert_eq!(first_ended(&mut serving).await, Some(0));
    successor.stop().await;
}

/// The new process reads the settings before a reload: the reloaded settings would be missing in the new process.
#[tokio::test]
async fn settings_are_not_reloaded_during_an_upgrade() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    // A program without readiness.
    let program = installation.folder.path().join("program");
    std::fs::write(&program, "#!/bin/sh\nexec sleep 600\n").expect("the folder takes files");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("its permissions");
    let program = program.display().to_string();
    let words = ["upgrade", "--program", &program];
    let mut upgrade = installation.spawn(installation.command(&words));
    logged(&serving, "started the new process").await;
    let mut reload = installation.spawn(installation.command(&["reload"]));
    assert_eq!(ended(&mut reload).await.code(), Some(1));
    let output = reload.output();
    assert!(output.contains("an upgrade is under way"), "{output}");
    new_process(&serving).signal("KILL");
    assert_eq!(ended(&mut upgrade).await.code(), Some(1));
    installation.run(&["reload"]).await;
    let successor = Successor::of(&installation).await;
    assert_eq!(first_ended(&mut serving).await, Some(0));
    installation.run(&["reload"]).await;
    successor.stop().await;
}

/// Statements that lock a table, like a backup, until `released` has a row.
const HOLD: &str = "DO $$ BEGIN
    LOCK TABLE recalls IN ACCESS SHARE MODE;
    WHILE NOT EXISTS (SELECT 1 FROM released) LOOP PERFORM pg_sleep(0.01); END LOOP;
    END $$";

#[tokio::test]
async fn the_schema_is_brought_up_to_date_before_the_store_is_handed_over() {
    let server = Postgres::shared();
    let url = server.database();
    let name = url.rsplit('/').next().expect("a name").to_owned();
    let installation = Installation::on_postgres(&url, "").await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    // The schema of the earlier release, without parts unused by a single node.
    server.run(
        &name,
        "CREATE TABLE released (id BIGINT);
        ALTER TABLE recalls DROP COLUMN need, DROP COLUMN short_at;
        ALTER TABLE cap_recalls DROP COLUMN need, DROP COLUMN short_at;
         ALTER TABLE oauth_clients DROP COLUMN network;
         DROP TABLE signup_grant_addresses;
        DROP TABLE notices;
        DROP TABLE node_settings;
        UPDATE meta SET v = '20' WHERE k = 'schema'",
    );
    let holding = std::thread::spawn({
        let name = name.clone();
        move || server.run(&name, HOLD)
    });
    let is_held = || {
        let sql = "SELECT count(*) FROM pg_locks WHERE relation = 'recalls'::regclass";
        server.run(&name, sql) != "0"
    };
    within("the lock of the table", poll(is_held)).await;
    let mut upgrade = installation.spawn(installation.command(&["upgrade"]));
    logged(&serving, "migration waits for a table").await;
    assert!(!serving.process.output().contains("handing the store over"));
    let answer = client.post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.run(&name, "INSERT INTO released VALUES (1)");
    assert_eq!(
        ended(&mut upgrade).await.code(),
        Some(0),
        "{}",
        upgrade.output()
    );
    holding.join().expect("the lock ends");
    drop(client);
    assert_eq!(first_ended(&mut serving).await, Some(0));
    new_process(&serving).stop().await;
}

/// A terminal and some supervisors signal the two processes, and the earlier process forwards the signal to the new process.
#[tokio::test]
async fn a_stop_of_both_processes_leaves_the_new_one_its_delay() {
    let installation = Installation::new("[server]\ndrain_delay_secs = 600").await;
    let mut serving = installation.serve().await;
    let stop = async |serving: &Serving, successor: &Successor| {
        successor.signal("TERM");
        logged(serving, "draining later").await;
    };
    let successor = stop_earlier(&installation, &mut serving, stop).await;
    let fresh = serving.client(&installation);
    let answer = fresh.post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let ends = || {
        successor.signal("TERM");
        successor.has_ended()
    };
    within("the end of the new process", poll(ends)).await;
}
