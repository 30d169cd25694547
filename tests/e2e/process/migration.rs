//! `tollgate migrate`: a store moves from a file to a database with every row of the journal unchanged, also after a kill on the way.

use std::path::Path;
use std::sync::Arc;

use rusqlite::types::ValueRef;
use serde_json::Value;
use tollgate_clock::{Clock, Entropy};
use tollgate_money::{Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::sqlite::{self, Durability};
use tollgate_store::{Admission, EntryKind, Part, RootSecret, UnitOfWork, commit};
use tollgate_testing::{Postgres, within};

use super::installation::{Installation, ended};
use super::nodes::{NAMES, settings_of};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, chat, micros};

const QUIET: &str = "[telemetry]\naccess_log = \"none\"";

/// The columns of the journal.
const JOURNAL: [&str; 8] = [
    "id",
    "entries",
    "sum_avail",
    "sum_held",
    "prev",
    "hash",
    "at",
    "body",
];

/// The rows of a file's journal: numbers in decimal, bytes in hexadecimal digits.
fn journal_of_file(path: &Path) -> Vec<String> {
    let file = rusqlite::Connection::open(path).expect("the file opens");
    let sql = format!("SELECT {} FROM journal ORDER BY id", JOURNAL.join(", "));
    let mut statement = file.prepare(&sql).expect("a statement");
    let rows = statement.query_map([], |row| {
        let columns = (0..JOURNAL.len()).map(|column| match row.get_ref(column)? {
            ValueRef::Integer(number) => Ok(number.to_string()),
            ValueRef::Blob(bytes) => Ok(base16(bytes)),
            other => panic!("{}: {other:?}", JOURNAL[column]),
        });
        Ok(columns.collect::<rusqlite::Result<Vec<_>>>()?.join(" "))
    });
    let rows = rows.expect("rows").collect::<rusqlite::Result<Vec<_>>>();
    rows.expect("rows")
}

fn base16(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The rows of a database's journal.
fn journal_of_database(url: &str) -> Vec<String> {
    let columns = JOURNAL.map(|column| match column {
        "prev" | "hash" | "body" => format!("encode({column}, 'hex')"),
        _ => column.to_owned(),
    });
    let sql = format!(
        "SELECT concat_ws(' ', {}) FROM journal ORDER BY id",
        columns.join(", ")
    );
    let rows = Postgres::shared().run(name(url), &sql);
    rows.lines().map(str::to_owned).collect()
}

fn name(url: &str) -> &str {
    url.rsplit('/').next().expect("a name")
}

/// Compares every row of two journals.
fn assert_same(original: &[String], copy: &[String]) {
    for (original, copy) in original.iter().zip(copy) {
        assert_eq!(original, copy);
    }
    assert_eq!(original.len(), copy.len());
}

/// The object printed by a command.
fn json(output: &str) -> &str {
    let line = output.lines().find(|line| line.starts_with('{'));
    line.expect("a line of JSON")
}

/// Checks the members of the command's output: the last seal is the last seal of the two journals.
fn assert_migrated(output: &str, journal: &[String]) {
    let migrated: Value = serde_json::from_str(json(output)).expect("JSON");
    let members: Vec<_> = migrated.as_object().expect("an object").keys().collect();
    assert_eq!(
        members,
        ["accounts", "last_seals", "original", "seals", "tables"]
    );
    assert_eq!(migrated["seals"], journal.len(), "{migrated}");
    let seals = migrated["last_seals"].as_array().expect("a list");
    assert_eq!(seals.len(), 1, "{migrated}");
    let hash = seals[0]["hash"].as_str().expect("a text");
    let last = journal.last().expect("a commit");
    assert_eq!(last.split(' ').nth(5), Some(hash));
}

impl Installation {
    /// The settings in a second file, with a database in place of the file.
    fn moved_to(&self, url: &str) -> std::path::PathBuf {
        let settings = std::fs::read_to_string(&self.config).expect("a text");
        let settings = settings.replace("sqlite:tollgate.db", url);
        let moved = self.folder.path().join("moved.toml");
        std::fs::write(&moved, settings).expect("a file");
        moved
    }

    /// Runs a command with the settings `config`: success and output.
    async fn run_with(&self, config: &Path, words: &[&str]) -> (bool, String) {
        let mut process = self.spawn(self.command_with(config, words));
        let status = ended(&mut process).await;
        (status.success(), process.output())
    }
}

#[tokio::test]
async fn a_store_moves_from_a_file_to_a_database_with_every_row() {
    let installation = Installation::new(QUIET).await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    for stream in [false, true] {
        let answer = client.post(CHAT, &chat(stream)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let keys = ["key", "list", "--account", &installation.account];
    let keys = installation.ask(&keys).await;
    let key = keys[0]["id"].as_str().expect("an id").to_owned();
    let from = format!("sqlite:{}", installation.database().display());
    let url = Postgres::shared().database();
    let moved = installation.moved_to(&url);
    let run = async |words: &[&str]| installation.run_with(&moved, words).await;
    let migrate = ["migrate", "--from", &from, "--json"];
    let (done, output) = run(&migrate).await;
    assert!(!done && output.contains("is in use by process"), "{output}");
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let before = installation.audit().await;
    let journal = journal_of_file(&installation.database());

    let (done, output) = run(&[&migrate[..], &["--progress"]].concat()).await;
    assert!(done, "{output}");
    let is_progress = |line: &str| line.starts_with("auditing the original: 0 commits");
    assert!(output.lines().any(is_progress), "{output}");
    assert_migrated(&output, &journal);
    assert_same(&journal, &journal_of_database(&url));
    assert!(!installation.database().exists(), "the original is renamed");
    let (done, output) = run(&["audit", "--json"]).await;
    assert!(done, "{output}");
    let after: Value = serde_json::from_str(json(&output)).expect("JSON");
    assert_eq!(after, before);

    // The file is a backup of the database: ended credentials would be valid again.
    let again = format!("{from}.migrated");
    let undone = async || {
        let (done, output) = run(&["compare", &again, "--json"]).await;
        assert!(done, "{output}");
        let line = output.lines().find(|line| line.starts_with('['));
        line.expect("a list").to_owned()
    };
    assert_eq!(undone().await, "[]");

    // Two settings and a command lead to a common key at three gateways.
    let node = |name: &str| settings_of(&moved, name);
    let mut nodes = Vec::new();
    for name in NAMES {
        let serve = installation.command_with(&node(name), &["serve"]);
        nodes.push(installation.serve_as(serve).await);
    }
    for serving in &nodes {
        for stream in [false, true] {
            let answer = serving
                .client(&installation)
                .post(CHAT, &chat(stream))
                .await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
    let show = [
        "credits",
        "show",
        "--account",
        &installation.account,
        "--json",
    ];
    let left = 1_000_000_000 - (2 + 2 * NAMES.len() as i64) * PRICE_OF_A_CHAT;
    let settled = async {
        loop {
            let (done, output) = installation.run_with(&node("b"), &show).await;
            assert!(done, "{output}");
            let shown: Value = serde_json::from_str(json(&output)).expect("JSON");
            if (micros(&shown["available"]), micros(&shown["held"])) == (left, 0) {
                return;
            }
        }
    };
    within("the charges of all three", settled).await;
    for serving in &mut nodes {
        serving.process.signal("TERM");
        assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    }
    let (done, output) = run(&["audit"]).await;
    assert!(done, "{output}");
    let (done, output) = run(&["key", "revoke", "--key", &key]).await;
    assert!(done, "{output}");
    let undone = undone().await;
    assert!(undone.contains("key_valid_again"), "{undone}");
    assert!(undone.contains(&key), "{undone}");
    let (done, output) = run(&["migrate", "--from", &again]).await;
    assert!(
        !done && output.contains("into an empty database"),
        "{output}"
    );
}

/// More commits than a single transaction of a migration.
const COMMITS: i64 = 10_200;

/// The commit at which the database waits.
const WAITS_AT: usize = 10_100;

/// Adds commits of a single credit to the file of a stopped installation.
async fn fill(installation: &Installation) {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let options = sqlite::Options {
        durability: Durability::Process,
        ..sqlite::Options::new(clock.now(), RootSecret(entropy.bytes()))
    };
    let store = sqlite::open(&installation.database(), options).expect("the store opens");
    for number in 0..COMMITS {
        let at = clock.now();
        let credit = LedgerPart::Credit {
            operation: OperationId::generate(at, &entropy),
            account: installation.account.parse().expect("an id"),
            kind: EntryKind::Grant,
            amount: Micros::new(number + 1),
            reference: Arc::from(number.to_string()),
            at,
        };
        let unit = UnitOfWork::of(Part::Ledger(credit), Admission::Always);
        commit(&*store, unit).await.expect("it is committed");
    }
    store.close();
}

/// Has a database without tables wait in the middle of the journal, after the creation of the table.
fn wait_in_the_journal(url: &str, id: &str) {
    let sql = format!(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$;
        CREATE FUNCTION arm() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
            IF to_regclass('journal') IS NOT NULL AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'waits') THEN
                CREATE TRIGGER waits BEFORE INSERT ON journal FOR EACH ROW WHEN (NEW.id = {id}) EXECUTE FUNCTION wait();
            END IF;
        END $$;
        CREATE EVENT TRIGGER armed ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION arm();"
    );
    Postgres::shared().run(name(url), &sql);
}

#[tokio::test]
async fn a_migration_that_is_killed_in_the_middle_of_the_journal_continues_and_copies_every_byte() {
    let server = Postgres::shared();
    let installation = Installation::new(QUIET).await;
    fill(&installation).await;
    let journal = journal_of_file(&installation.database());
    let url = server.database();
    let sql = |statement: &str| server.run(name(&url), statement);
    let id = journal[WAITS_AT].split(' ').next().expect("an id");
    wait_in_the_journal(&url, id);
    let from = format!("sqlite:{}", installation.database().display());
    // The settings still name the file.
    let migrate = ["migrate", "--from", &from, "--to", &url, "--json"];
    let mut killed = installation.spawn(installation.command(&migrate));
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = '{}'",
        name(&url)
    );
    let is_waiting = crate::rig::poll(|| sql(&waits) == "1");
    within("the middle of the journal", is_waiting).await;
    killed.kill();
    assert_eq!(
        sql("SELECT copied FROM imports WHERE name = 'journal'"),
        "10000"
    );
    // The act of a server after the loss of the client.
    sql(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()",
    );
    sql("DROP EVENT TRIGGER armed; DROP TRIGGER waits ON journal");
    let moved = installation.moved_to(&url);
    let mut refused = installation.spawn(installation.command_with(&moved, &["serve"]));
    assert!(!ended(&mut refused).await.success());
    let output = refused.output();
    assert!(output.contains("`tollgate migrate`"), "{output}");

    let (done, output) = installation.run_with(&installation.config, &migrate).await;
    assert!(done, "{output}");
    assert_migrated(&output, &journal);
    assert_same(&journal, &journal_of_database(&url));
    let original = installation.database().with_extension("db.migrated");
    assert_same(&journal, &journal_of_file(&original));
    let serve = installation.command_with(&moved, &["serve"]);
    let serving = installation.serve_as(serve).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (done, output) = installation.run_with(&moved, &["audit"]).await;
    assert!(done, "{output}");
}
