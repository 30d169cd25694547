//! The record of the last commit: what a start says of a log that lost commits, and which files a close leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use tollgate_money::{Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::sqlite::{
    self, Durability, Lock, Options, RecordState, record_path, record_state,
};
use tollgate_store::{EntryKind, LostCommits, OpenError, Part, Store};

use super::suite::support::{account, new_account, time, write};

/// Commits that are in the log alone.
const COMMITS: i64 = 20;

fn options() -> Options {
    Options {
        durability: Durability::Power,
        ..super::suite::support::options()
    }
}

fn open(folder: &Path) -> Arc<dyn Store> {
    sqlite::open(&folder.join("t.db"), options()).expect("the store opens")
}

fn grant(number: u64) -> Part {
    Part::Ledger(LedgerPart::Credit {
        operation: OperationId::from_parts(number, [0; 10]),
        account: account(1),
        kind: EntryKind::Grant,
        amount: Micros::new(1),
        reference: Arc::from(number.to_string()),
        at: time(5),
    })
}

/// The files that a run leaves which is killed after these commits. None of them is in the database file.
fn killed(commits: impl Fn(u64) -> Part) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let left = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [new_account(1)]).expect("an account");
    write(&store, [grant(1000)]).expect("a grant");
    let source = folder.path().join("t.db");
    move_log(&source);
    // A reader keeps the log as it is.
    let view = store.snapshot().expect("a view");
    for number in 0..COMMITS as u64 {
        write(&store, [commits(number)]).expect("it is durable");
    }
    for name in ["t.db", "t.db-wal", "t.db.committed"] {
        fs::copy(folder.path().join(name), left.path().join(name)).expect("a copy");
    }
    drop(view);
    store.close();
    let path = left.path().join("t.db");
    (left, path)
}

fn move_log(path: &Path) {
    let connection = Connection::open(path).expect("the file opens");
    let sql = "PRAGMA wal_checkpoint(FULL)";
    let moved = connection.query_row(sql, [], |row| {
        Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
    });
    let (frames, moved) = moved.expect("a checkpoint");
    assert_eq!(frames, moved);
}

fn log_of(path: &Path) -> PathBuf {
    path.with_file_name("t.db-wal")
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Removed,
    Cut,
    Flipped,
}

impl Damage {
    const ALL: [Damage; 3] = [Damage::Removed, Damage::Cut, Damage::Flipped];

    fn apply(self, log: &Path) {
        let mut bytes = fs::read(log).expect("a log");
        let middle = bytes.len() / 2;
        match self {
            Damage::Removed => return fs::remove_file(log).expect("it is removed"),
            Damage::Cut => bytes.truncate(middle),
            Damage::Flipped => bytes[middle] ^= 1,
        }
        fs::write(log, bytes).expect("it is written");
    }
}

fn lost(opened: Result<Arc<dyn Store>, OpenError>) -> LostCommits {
    match opened {
        Err(OpenError::CommitsLost { lost, .. }) => lost,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opens"),
    }
}

#[test]
fn a_log_that_is_removed_cut_or_flipped_is_refused_with_what_is_lost_until_that_is_accepted() {
    let (_folder, path) = killed(grant);
    let state = record_state(&path).expect("both are read");
    assert_eq!(state, RecordState::Whole, "after the kill itself");
    for damage in Damage::ALL {
        let (_folder, path) = killed(grant);
        Damage::apply(damage, &log_of(&path));
        // SQLite makes an empty log where there is none.
        let files = || [&path, &log_of(&path)].map(|path| fs::read(path).unwrap_or_default());
        let before = files();
        let lost = lost(sqlite::open(&path, options()));
        match damage {
            Damage::Removed => assert_eq!((lost.commits, lost.entries), (COMMITS, COMMITS)),
            Damage::Cut | Damage::Flipped => {
                assert!((1..COMMITS).contains(&lost.commits), "{damage:?}: {lost}");
                assert_eq!(lost.entries, lost.commits, "{damage:?}");
            }
        }
        assert_eq!(
            lost.recorded.1,
            lost.last.expect("a grant").1 + lost.commits
        );
        assert_eq!(lost.at, time(5));
        let state = record_state(&path).expect("both are read");
        assert_eq!(state, RecordState::Behind(lost));
        assert!(before == files(), "{damage:?}: the files stay as they are");

        let accepted = Options {
            accepts_loss: true,
            ..options()
        };
        let store = sqlite::open(&path, accepted).expect("the loss is accepted");
        write(&store, [grant(2000)]).expect("it goes on");
        store.close();
        sqlite::open(&path, options()).expect("it opens").close();
        let state = record_state(&path).expect("both are read");
        assert_eq!(state, RecordState::Whole);
    }
}

/// Keys, their ends, payments without credit: no row of the journal has them.
#[test]
fn commits_without_entries_are_missed_too() {
    let (_folder, path) = killed(|number| new_account(number as u8 + 100));
    Damage::Removed.apply(&log_of(&path));
    let lost = lost(sqlite::open(&path, options()));
    assert_eq!((lost.commits, lost.entries), (COMMITS, 0));
}

#[test]
fn a_record_that_is_missing_damaged_or_of_another_database_is_made_anew() {
    let (_other, other) = killed(grant);
    let other = fs::read(record_path(&other)).expect("a record");
    let other_secret = tempfile::tempdir().expect("a folder");
    let store = sqlite::open(
        &other_secret.path().join("t.db"),
        Options {
            random: tollgate_store::RootSecret([9; 32]),
            ..options()
        },
    );
    store.expect("a store").close();
    let foreign = fs::read(other_secret.path().join("t.db.committed")).expect("a record");
    for (record, problem) in [
        (None, "is missing"),
        (Some(vec![0; other.len()]), "is damaged"),
        (Some(other[..100].to_vec()), "is damaged"),
        (Some(foreign), "is of another database"),
    ] {
        let (_folder, path) = killed(grant);
        let named = record_path(&path);
        match record {
            Some(bytes) => fs::write(&named, bytes).expect("written"),
            None => fs::remove_file(&named).expect("removed"),
        }
        let state = record_state(&path).expect("the database is read");
        assert_eq!(state, RecordState::Unknown(problem));
        let store = sqlite::open(&path, options()).expect("it opens");
        assert_eq!(record_state(&path).expect("both"), RecordState::Whole);
        write(&store, [grant(3000)]).expect("it goes on");
        assert_eq!(record_state(&path).expect("both"), RecordState::Whole);
        store.close();
        let bytes = fs::read(&named).expect("a record");
        assert_eq!(bytes.len(), 1024);
    }
}

/// After a loss of power, and after a run of an earlier release, which does not write it.
#[test]
fn a_record_that_lags_is_no_loss() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    open(folder.path()).close();
    let early = fs::read(record_path(&path)).expect("a record");
    let store = open(folder.path());
    write(&store, [new_account(1)]).expect("an account");
    write(&store, [grant(1)]).expect("a grant");
    store.close();
    fs::write(record_path(&path), early).expect("written");
    assert_eq!(record_state(&path).expect("both"), RecordState::Whole);
    let unsynced = Options {
        durability: Durability::Process,
        ..options()
    };
    let store = sqlite::open(&path, unsynced).expect("it opens");
    let before = fs::read(record_path(&path)).expect("a record");
    write(&store, [grant(2)]).expect("a grant");
    store.close();
    let after = fs::read(record_path(&path)).expect("a record");
    assert!(before == after, "without syncs nothing is recorded");
    open(folder.path()).close();
    let after = fs::read(record_path(&path)).expect("a record");
    assert!(before != after, "it has caught up");
    assert_eq!(record_state(&path).expect("both"), RecordState::Whole);
}

#[test]
fn an_older_copy_in_the_place_of_the_database_is_refused_until_it_is_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let store = open(folder.path());
    write(&store, [new_account(1)]).expect("an account");
    write(&store, [grant(1)]).expect("a grant");
    let backup = folder.path().join("backup.db");
    sqlite::backup(&path, &backup).expect("a backup");
    write(&store, [grant(2), grant(3)]).expect("grants");
    store.close();
    let store = open(folder.path());
    write(&store, [grant(4)]).expect("a grant");
    store.close();
    fs::copy(&backup, &path).expect("restored");
    let found = lost(sqlite::open(&path, options()));
    assert_eq!((found.commits, found.entries), (2, 3), "of both runs");
    let text = found.to_string();
    assert!(text.contains("at least 2 commits with 3 entries"), "{text}");
    // A history of its own since: the same numbers, and other commits.
    let accepted = Options {
        accepts_loss: true,
        ..options()
    };
    let record = fs::read(record_path(&path)).expect("a record");
    let store = sqlite::open(&path, accepted).expect("it opens");
    for number in 10..20 {
        write(&store, [grant(number)]).expect("a grant");
    }
    store.close();
    assert_eq!(record_state(&path).expect("both"), RecordState::Whole);
    fs::write(record_path(&path), record).expect("written");
    let found = lost(sqlite::open(&path, options()));
    assert!(found.commits >= 1, "{found}");
}

#[test]
fn a_database_that_is_gone_is_not_replaced_by_an_empty_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    open(folder.path()).close();
    fs::remove_file(&path).expect("it is removed");
    let refused = sqlite::open(&path, options()).err().expect("it is refused");
    assert!(refused.is_loss(), "{refused}");
    assert!(!path.exists());
    fs::remove_file(record_path(&path)).expect("it is removed");
    open(folder.path()).close();
}

/// A backup over an older one, which was looked at as a database, does not keep the record of that.
#[test]
fn a_backup_has_no_record_and_removes_that_of_the_file_that_it_replaces() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let store = open(folder.path());
    write(&store, [new_account(1)]).expect("an account");
    let backup = folder.path().join("backup.db");
    sqlite::backup(&path, &backup).expect("a backup");
    assert!(!record_path(&backup).exists());
    let opened = sqlite::open(&backup, options()).expect("it opens");
    write(&opened, [grant(1)]).expect("a grant");
    opened.close();
    sqlite::backup_replacing(&path, &backup).expect("a backup");
    sqlite::open(&backup, options()).expect("it opens").close();
}

#[test]
fn after_a_final_close_the_file_alone_is_the_store_and_a_handover_leaves_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let copy = folder.path().join("copy.db");
    let store = open(folder.path());
    write(&store, [new_account(1)]).expect("an account");
    let balance = |path: &Path| {
        let reader = sqlite::open_read(path).expect("it opens");
        let row = reader.account(account(1)).expect("a read");
        row.expect("an account").available
    };
    // A pool of readers, as of every gateway: they are no reason to keep the log.
    assert_eq!(balance(&path), Micros::ZERO);
    store.account(account(1)).expect("a read");
    for number in 0..10 {
        write(&store, [grant(number)]).expect("a grant");
    }
    let handover = store.hand_over().expect("it is open");
    let log = fs::read(log_of(&path)).expect("a log");
    assert!(!log.is_empty(), "the successor continues the log");
    fs::copy(&path, &copy).expect("a copy");
    let next = Options {
        lock: Some(Lock::received(&path, handover.files).expect("a lock")),
        predecessor: Some(store.epoch()),
        ..options()
    };
    let next = sqlite::open(&path, next).expect("it is handed over");
    write(&next, [grant(10)]).expect("a grant");
    next.account(account(1)).expect("a read");
    next.close();
    let left = fs::metadata(log_of(&path)).map_or(0, |log| log.len());
    assert_eq!(left, 0);
    fs::copy(&path, &copy).expect("a copy");
    assert_eq!(balance(&copy), Micros::new(11));
}

/// A reader of earlier commits, such as Litestream, keeps what it has not read; nothing is lost with it.
#[test]
fn a_final_close_beside_a_reader_moves_what_it_can_and_waits_no_longer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let store = open(folder.path());
    write(&store, [new_account(1)]).expect("an account");
    let reader = Connection::open(&path).expect("it opens");
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM accounts")
        .expect("a view");
    write(&store, [grant(1)]).expect("a grant");
    store.close();
    let log = fs::metadata(log_of(&path)).expect("a log");
    assert!(log.len() > 0, "the reader has not read all of it");
    assert_eq!(record_state(&path).expect("both"), RecordState::Whole);
    reader.execute_batch("COMMIT").expect("its end");
    open(folder.path()).close();
}
