//! Files that a store cannot be opened from, and the messages for the operator.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::sqlite::{self, Lock, Options};
use tollgate_store::{
    Admission, CacheScope, EntryKind, NewAccount, OpenError, Part, RootSecret, Store, UnitOfWork,
    commit,
};

use super::suite::support::{account_of, wait};

fn options() -> Options {
    Options {
        busy_timeout: Duration::from_millis(20),
        ..super::suite::support::options()
    }
}

fn open(path: &Path) -> Result<Arc<dyn Store>, OpenError> {
    sqlite::open(path, options())
}

/// A closed store with some accounts.
fn filled() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let store = open(&path).expect("the store is made");
    let parts = (0..200).map(|number| account_of(AccountId::from_parts(number, [0; 10])));
    let unit = UnitOfWork::of_all(parts, Admission::Normal);
    wait(commit(&*store, unit)).expect("the accounts are made");
    store.close();
    (folder, path)
}

fn refused(path: &Path) -> String {
    match open(path) {
        Ok(_) => panic!("`{}` opens", path.display()),
        Err(error) => error.to_string(),
    }
}

/// With the settings from before the migration a gateway would begin with an empty store.
#[test]
fn no_store_is_created_where_one_was_migrated_from() {
    let (_folder, path) = filled();
    let moved = path.with_file_name("t.db.migrated");
    fs::rename(&path, &moved).expect("renamed");
    let message = refused(&path);
    assert!(message.contains("set `store.url`"), "{message}");
    assert!(message.contains(&moved.display().to_string()), "{message}");
    assert!(!path.exists(), "nothing is created");
    fs::rename(&moved, &path).expect("renamed");
    open(&path).expect("the way back").close();
}

#[test]
fn a_new_store_keeps_its_secret_and_increments_its_epoch() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    for run in 1..4 {
        let random = RootSecret([run; 32]);
        let store = sqlite::open(
            &path,
            Options {
                random,
                ..options()
            },
        )
        .expect("the store opens");
        assert_eq!(
            store.root_secret(),
            RootSecret([1; 32]),
            "of the first start"
        );
        assert_eq!(store.epoch(), i64::from(run));
    }
    assert_eq!(
        format!("{:?}", RootSecret([1; 32])),
        "RootSecret([redacted])"
    );
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&path).expect("the file").permissions().mode();
        assert_eq!(
            mode & 0o777,
            0o600,
            "digests of secrets are for the owner only"
        );
    }
}

#[test]
fn a_second_opener_is_refused_with_the_process_that_holds_the_lock() {
    let (_folder, path) = filled();
    let first = open(&path).expect("the store opens");
    let message = refused(&path);
    let me = format!("process {}", std::process::id());
    assert!(
        message.contains("is in use by") && message.contains(&me),
        "{message}"
    );
    // Reading is allowed, and so is opening it once the first has released it.
    sqlite::open_read(&path).expect("a reader beside");
    first.close();
    assert!(open(&path).is_ok());
}

#[test]
fn a_lock_is_held_during_its_handover() {
    let (_folder, path) = filled();
    let lock = Lock::acquire(&path).expect("the lock is free");
    let handed_over = lock.into_files().expect("they stay open");
    let handed_over = handed_over.expect("there is a database");
    assert!(matches!(Lock::acquire(&path), Err(OpenError::InUse { .. })));
    let store = sqlite::open(
        &path,
        Options {
            lock: Some(Lock::from_files(handed_over).expect("both are open")),
            ..options()
        },
    )
    .expect("the store opens under the lock it was given");
    assert!(matches!(open(&path), Err(OpenError::InUse { .. })));
    store.close();
    assert!(open(&path).is_ok());
}

#[test]
fn a_file_locked_by_another_program_is_reported_as_locked() {
    let (_folder, path) = filled();
    let other = Connection::open(&path).expect("another program opens the file");
    other
        .execute_batch("BEGIN IMMEDIATE")
        .expect("and locks it");
    let message = refused(&path);
    assert!(
        message.contains("is locked by another program; close"),
        "{message}"
    );
    other
        .execute_batch("ROLLBACK")
        .expect("it releases the lock");
    assert!(open(&path).is_ok());
}

#[test]
fn a_file_of_a_newer_version_is_not_changed_unless_it_says_that_it_may_be() {
    let (folder, path) = filled();
    edit(&path, "UPDATE meta SET v = '99' WHERE k = 'schema'");
    assert!(
        open(&path).is_ok(),
        "written by a release that changes nothing"
    );
    edit(&path, "UPDATE meta SET v = '99' WHERE k = 'compatible'");
    let before = fs::read(&path).expect("the file");
    let message = refused(&path);
    let wanted = format!("has schema 99, this version knows up to {}", STEPS.len());
    assert!(message.contains(&wanted), "{message}");
    assert!(sqlite::open_read(&path).is_err(), "not even to be read");
    let copied = sqlite::backup(&path, &folder.path().join("copy.db"));
    assert!(copied.is_err(), "nor copied");
    assert_eq!(
        fs::read(&path).expect("the file"),
        before,
        "nothing was written"
    );
}

/// The migrations.
const STEPS: [&str; 24] = [
    include_str!("../../src/migrations/001.sql"),
    include_str!("../../src/migrations/002.sql"),
    include_str!("../../src/migrations/003.sql"),
    include_str!("../../src/migrations/004.sql"),
    include_str!("../../src/migrations/005.sql"),
    include_str!("../../src/migrations/006.sql"),
    include_str!("../../src/migrations/007.sql"),
    include_str!("../../src/migrations/008.sql"),
    include_str!("../../src/migrations/009.sql"),
    include_str!("../../src/migrations/010.sql"),
    include_str!("../../src/migrations/011.sql"),
    include_str!("../../src/migrations/012.sql"),
    include_str!("../../src/migrations/013.sql"),
    include_str!("../../src/migrations/014.sql"),
    include_str!("../../src/migrations/015.sql"),
    include_str!("../../src/migrations/016.sql"),
    include_str!("../../src/migrations/017.sql"),
    include_str!("../../src/migrations/018.sql"),
    include_str!("../../src/migrations/019.sql"),
    include_str!("../../src/migrations/020.sql"),
    include_str!("../../src/migrations/021.sql"),
    include_str!("../../src/migrations/022.sql"),
    include_str!("../../src/migrations/023.sql"),
    include_str!("../../src/migrations/024.sql"),
];

/// Reverts all migrations after this schema.
fn as_of_schema(path: &Path, schema: usize) {
    for last in (schema..STEPS.len()).rev() {
        undo(path, STEPS[last], &STEPS[..last]);
    }
    edit(
        path,
        &format!("UPDATE meta SET v = '{schema}' WHERE k = 'schema'"),
    );
}

/// Reverts a migration.
fn undo(path: &Path, last: &str, earlier: &[&str]) {
    let bare = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with("--"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let statements = |text: &str| -> Vec<String> {
        let text = bare(text);
        let parts = text.split(";\n").map(str::trim);
        parts
            .filter(|part| !part.is_empty())
            .map(|part| part.trim_end_matches(';').to_owned())
            .collect()
    };
    let after = |statement: &str, words: &str| {
        let rest = statement.strip_prefix(words)?;
        Some(rest.split([' ', '(']).next()?.to_owned())
    };
    let last = statements(last);
    let made: Vec<String> = last
        .iter()
        .filter_map(|one| after(one, "CREATE TABLE "))
        .collect();
    for table in &made {
        edit(path, &format!("DROP TABLE {table}"));
    }
    // Backwards: an index goes before its column.
    for statement in last.iter().rev() {
        let on_an_old_table = !made
            .iter()
            .any(|table| statement.contains(&format!(" ON {table} ")));
        let index =
            after(statement, "CREATE INDEX ").or_else(|| after(statement, "CREATE UNIQUE INDEX "));
        if let Some(index) = index.filter(|_| on_an_old_table) {
            edit(path, &format!("DROP INDEX {index}"));
        }
        if let Some(table) = after(statement, "ALTER TABLE ") {
            let column = statement
                .split(" ADD COLUMN ")
                .nth(1)
                .expect("only columns are added");
            let column = column.split(' ').next().expect("a column has a name");
            edit(path, &format!("ALTER TABLE {table} DROP COLUMN {column}"));
        }
    }
    let gone: Vec<String> = last
        .iter()
        .filter_map(|one| after(one, "DROP TABLE "))
        .collect();
    for statement in earlier.iter().flat_map(|text| statements(text)) {
        if after(&statement, "CREATE TABLE ").is_some_and(|name| gone.contains(&name)) {
            let sql = statement
                .replace("$INT", "INTEGER")
                .replace("$BIN", "BLOB")
                .replace("$KEYED", "STRICT, WITHOUT ROWID")
                .replace("$ROWS", "STRICT");
            edit(path, &sql);
        }
    }
}

#[test]
fn a_store_of_the_previous_release_is_migrated_with_all_its_data() {
    for schema in [4, 5, 6] {
        let (_folder, path) = filled();
        as_of_schema(&path, schema);
        let old = sqlite::open_read(&path)
            .err()
            .expect("it is too old to be read");
        let version = STEPS.len();
        let wanted = format!(
            "has schema {schema}, and this version reads {version}; start the gateway once"
        );
        assert!(old.to_string().contains(&wanted), "{old}");
        let store = open(&path).expect("it is brought up to date");
        let all = store.accounts_after(None, 1000).expect("a read");
        assert_eq!(all.len(), 200, "no account is lost");
        assert!(
            store
                .credentials(Timestamp::UNIX_EPOCH, &mut |_| {})
                .is_ok()
        );
        store.close();
        assert!(sqlite::open_read(&path).is_ok());
    }
}

/// The ledgers that a repair is for were written by earlier releases.
#[test]
fn a_damaged_store_of_the_previous_release_is_repaired_on_a_copy_and_in_place() {
    let (folder, path) = filled();
    let payer = AccountId::from_parts(7, [0; 10]);
    let store = open(&path).expect("the store opens");
    for number in 1..=3 {
        let part = Part::Ledger(LedgerPart::Credit {
            operation: super::suite::support::operation(number),
            account: payer,
            kind: EntryKind::Grant,
            amount: Micros::new(100),
            reference: Arc::from(number.to_string()),
            at: Timestamp::from_micros(1),
        });
        wait(commit(&*store, UnitOfWork::of(part, Admission::Always))).expect("it is granted");
    }
    store.close();
    as_of_schema(&path, 5);
    let lose = "DELETE FROM journal WHERE id = (SELECT id FROM journal WHERE entries > 0 ORDER BY id LIMIT 1 OFFSET 1)";
    edit(&path, lose);
    let before = fs::read(&path).expect("the file");
    let copy = folder.path().join("copy.db");
    sqlite::backup(&path, &copy).expect("it is copied as it is");
    let tried = sqlite::repair(&copy, options()).expect("the copy is repaired");
    assert!(!tried.findings.is_empty());
    assert!(fs::read(&path).expect("the file") == before, "unchanged");
    let done = sqlite::repair(&path, options()).expect("it is repaired");
    assert_eq!(done, tried);
    for path in [&copy, &path] {
        let reader = sqlite::open_read(path).expect("it is of this release now");
        let row = reader.account(payer).expect("a read").expect("an account");
        assert_eq!(row.available, Micros::new(200));
    }
}

#[test]
fn a_ledger_without_a_journal_is_not_changed() {
    let (_folder, path) = filled();
    as_of_schema(&path, 4);
    edit(
        &path,
        "INSERT INTO entries (op_id, phase, kind, account_id, d_avail, d_held, contra, node_id, epoch, batch, at)
         VALUES (x'01', 0, 6, x'01', 5, 0, 3, 1, 1, 1, 1)",
    );
    let message = refused(&path);
    assert!(
        message.contains("has a ledger in the format from before the first release"),
        "{message}"
    );
    let reader = sqlite::open_read(&path).err().expect("nor is it read");
    assert_eq!(reader.to_string(), message);
    edit(&path, "DELETE FROM entries");
    assert!(open(&path).is_ok(), "nothing would be lost");
}

#[test]
fn a_damaged_file_is_refused_with_the_cause() {
    let (_folder, whole) = filled();
    let bytes = fs::read(&whole).expect("the file");
    let page = 4096;
    assert!(bytes.len() > 20 * page, "the file has pages to lose");
    let mut garbage = bytes.clone();
    garbage[..100].fill(b'x');
    //   what is in the file                the message
    for (content, problem) in [
        (&bytes[..bytes.len() - 10 * page], "is damaged"),
        (&bytes[..page], "is damaged"),
        (&bytes[..1000], "is damaged"),
        (&bytes[..0], "is empty"),
        (&garbage[..], "is not a database"),
        (&b"short"[..], "is not a database"),
        (&b"just some text that is longer than a header of a database file would be, as it happens to be so"[..], "is not a database"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        fs::write(&path, content).expect("a file");
        let message = refused(&path);
        assert!(message.contains(problem), "{} bytes should be reported as `{problem}`: {message}", content.len());
        assert!(message.contains("put a backup in its place"), "{message}");
        assert_eq!(fs::read(&path).expect("the file").len(), content.len(), "left as it was");
    }
}

#[test]
fn a_database_of_another_program_is_not_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    edit(&path, "CREATE TABLE meta (k TEXT, v TEXT)");
    let message = refused(&path);
    assert!(
        message.contains("is a database of another program"),
        "{message}"
    );
}

#[test]
fn a_reader_creates_no_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    match sqlite::open_read(&path) {
        Err(OpenError::Missing { .. }) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("there is nothing to read"),
    }
    assert!(!path.exists());
}

#[test]
fn a_missing_folder_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let message = refused(&folder.path().join("no").join("t.db"));
    assert!(
        message.starts_with("could not open `") && message.contains("no/t.db"),
        "{message}"
    );
}

/// A process that exits without closing leaves its log; the next start has all of it.
#[test]
fn a_log_left_by_a_killed_process_is_replayed() {
    let (_folder, path) = filled();
    let store = open(&path).expect("the store opens");
    let copy = tempfile::tempdir().expect("a folder");
    let copied = copy.path().join("t.db");
    let account = AccountId::from_parts(5000, [0; 10]);
    let part = Part::CreateAccount(Box::new(NewAccount {
        id: account,
        class: Arc::from("pro"),
        cache_scope: CacheScope::Off,
        credit_limit: Micros::ZERO,
        created_at: Timestamp::from_micros(1),
    }));
    wait(commit(&*store, UnitOfWork::of(part, Admission::Normal))).expect("it is made");
    for suffix in ["", "-wal"] {
        let from = format!("{}{suffix}", path.display());
        fs::copy(from, format!("{}{suffix}", copied.display())).expect("as a crash leaves it");
    }
    let after = open(&copied).expect("the copy opens");
    assert!(after.account(account).expect("a read").is_some());
}

fn edit(path: &Path, sql: &str) {
    let connection = Connection::open(path).expect("the file opens");
    connection.execute_batch(sql).expect("the edit");
}
