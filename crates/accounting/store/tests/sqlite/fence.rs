//! Two processes on one file: which names are the same file, which process is refused, and what stops a process that has lost the file.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use tollgate_store::sqlite::{self, Lock, Options};
use tollgate_store::{
    Admission, CommitError, Failure, FailureKind, OpenError, Receipt, Store, UnitOfWork, commit,
};

use super::suite::support::{account, new_account, options, wait};

fn open(path: &Path) -> Result<Arc<dyn Store>, OpenError> {
    sqlite::open(path, options())
}

/// Opens the store as on a file system without locks, where every process can open it.
fn open_unlocked(path: &Path) -> Arc<dyn Store> {
    let options = Options {
        lock: Some(Lock::disabled()),
        ..options()
    };
    sqlite::open(path, options).expect("nothing excludes it")
}

/// Makes an account, which is one commit.
fn make(store: &Arc<dyn Store>, number: u8) -> Result<Receipt, CommitError> {
    let unit = UnitOfWork::of(new_account(number), Admission::Normal);
    wait(commit(&**store, unit))
}

/// The failure that stopped the store.
fn stopped(answer: Result<Receipt, CommitError>) -> Failure {
    match answer {
        Err(CommitError::Stopped(failure)) => failure,
        other => panic!("it is not stopped: {other:?}"),
    }
}

/// A closed store with one account, in a folder.
fn made() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let store = open(&path).expect("the store is made");
    make(&store, 1).expect("an account");
    store.close();
    (folder, path)
}

/// Other names of the same file.
fn soft_names(folder: &Path) -> Vec<PathBuf> {
    let linked = folder.join("linked.db");
    symlink("t.db", &linked).expect("a link to the file");
    let elsewhere = folder.join("elsewhere");
    symlink(folder, &elsewhere).expect("a link to the folder");
    vec![
        linked,
        elsewhere.join("t.db"),
        elsewhere.join("linked.db"),
        folder.join("./t.db"),
    ]
}

#[test]
fn every_path_to_the_file_resolves_to_one_lock() {
    let (folder, path) = made();
    let first = open(&path).expect("the store opens");
    let me = format!("process {}", std::process::id());
    for name in soft_names(folder.path()) {
        let resolved = sqlite::resolve(&path);
        assert_eq!(sqlite::resolve(&name), resolved, "{}", name.display());
        match open(&name).err().expect("it is refused") {
            OpenError::InUse { path, holder, .. } => {
                assert_eq!((path, holder), (resolved, me.clone()), "{}", name.display());
            }
            other => panic!("{}: {other}", name.display()),
        }
        let reader = sqlite::open_read(&name).expect("a concurrent reader");
        assert!(reader.account(account(1)).expect("a read").is_some());
    }
    first.close();
    let store = open(&folder.path().join("linked.db")).expect("the lock is free");
    make(&store, 2).expect("an account");
    assert!(!folder.path().join("linked.db-wal").exists());
}

#[test]
fn a_store_is_created_at_the_target_of_a_link_to_its_folder_and_never_replaces_a_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let elsewhere = folder.path().join("elsewhere");
    symlink(folder.path(), &elsewhere).expect("a link");
    open(&elsewhere.join("t.db")).expect("the store is made");
    assert!(folder.path().join("t.db.lock").exists());
    let dangling = folder.path().join("dangling.db");
    symlink("nowhere.db", &dangling).expect("a link");
    let refused = open(&dangling).err().expect("it is refused").to_string();
    assert!(refused.starts_with("could not open `"), "{refused}");
    assert!(dangling.is_symlink(), "it is unchanged");
}

#[test]
fn the_lock_is_on_the_database_file_itself() {
    let (folder, path) = made();
    let _first = open(&path).expect("the store opens");
    fs::remove_file(folder.path().join("t.db.lock")).expect("it is removed");
    let refused = open(&path).err().expect("it is refused").to_string();
    assert!(
        refused.contains("is in use by another process"),
        "{refused}"
    );
}

#[test]
fn a_file_with_a_hard_link_is_refused_by_each_name() {
    let (folder, path) = made();
    let other = folder.path().join("other.db");
    for is_open in [false, true] {
        let first = is_open.then(|| open(&path).expect("the store opens"));
        fs::hard_link(&path, &other).expect("a hard link");
        for name in [&path, &other] {
            let errors = [
                (!is_open || *name == other).then(|| open(name).err()),
                Some(sqlite::open_read(name).err()),
            ];
            for error in errors.into_iter().flatten() {
                let error = error.expect("it is refused").to_string();
                let wanted = format!("`{}` has 2 names (hard links)", name.display());
                assert!(error.contains(&wanted), "{error}");
                assert!(error.contains("remove the others"), "{error}");
            }
        }
        let rebuilt = sqlite::rebuild_postings(&other, options());
        assert!(matches!(rebuilt, Err(OpenError::HardLinks { .. })));
        if let Some(first) = first {
            make(&first, 2).expect("the lock holder continues");
        }
        fs::remove_file(&other).expect("the other name is removed");
    }
    assert!(open(&path).is_ok(), "it has one name again");
}

/// Two stores on one file, the second through `name`: the first has to stop at its next commit, whatever the second has done.
fn first_stops(name: impl Fn(&Path, &Path) -> PathBuf, works: bool) {
    let (folder, path) = made();
    let (sender, receiver) = mpsc::channel();
    let failing = Options {
        on_failure: Box::new(move |failure| sender.send(failure.clone()).expect("the test waits")),
        ..options()
    };
    let first = sqlite::open(&path, failing).expect("the store opens");
    make(&first, 2).expect("an account");
    let name = name(folder.path(), &path);
    let second = open_unlocked(&name);
    assert!(second.epoch() > first.epoch());
    if works {
        make(&second, 3).expect("an account");
    }
    let failure = stopped(make(&first, 4));
    assert_eq!(failure.kind, FailureKind::Fenced, "{failure}");
    for word in [
        path.to_str().expect("a plain path"),
        &format!("in epoch {}", second.epoch()),
        &format!("this process has epoch {}", first.epoch()),
        "Leave one process on this database",
    ] {
        assert!(failure.to_string().contains(word), "no `{word}`: {failure}");
    }
    assert_eq!(
        receiver.recv().expect("the failure is reported").kind,
        failure.kind
    );
    let late = stopped(make(&first, 5));
    assert_eq!(late.kind, FailureKind::Fenced, "and it stays so");
    first.close();
    make(&second, 6).expect("the second continues");
    second.close();
    let reader = open(&name).expect("the lock is free");
    let there = |number| reader.account(account(number)).expect("a read").is_some();
    assert!(there(1) && there(6) && there(3) == works);
    assert!(!there(4) && !there(5), "nothing was written by the first");
}

#[test]
fn a_process_with_an_old_epoch_stops_at_its_next_commit() {
    for works in [false, true] {
        first_stops(|_, path| path.to_owned(), works);
    }
}

#[test]
fn a_process_with_an_old_epoch_stops_when_the_other_came_through_a_symbolic_link() {
    for works in [false, true] {
        first_stops(|folder, _| soft_names(folder).swap_remove(2), works);
    }
}

/// A process that opened a name with its own log leaves nothing visible to SQLite, except for the header of the file once it has
/// checkpointed its log. Two such logs in one process are not possible; `tests/e2e/process/fencing.rs` has two processes.
#[test]
fn a_process_stops_when_the_header_of_the_file_has_another_epoch() {
    for epoch in [0u32, 1, 3] {
        let (_folder, path) = made();
        let store = open(&path).expect("the store opens");
        make(&store, 2).expect("an account");
        let file = fs::OpenOptions::new().write(true).open(&path);
        let header = file.expect("the file opens");
        header
            .write_all_at(&epoch.to_be_bytes(), 60)
            .expect("the header is written");
        let failure = stopped(make(&store, 3));
        assert_eq!(failure.kind, FailureKind::Fenced, "{failure}");
        let says = format!("through another name of the file in epoch {epoch} of node 1");
        assert!(failure.to_string().contains(&says), "{failure}");
    }
}

/// As long as a reader has a snapshot of the previous state, the log is not checkpointed into the file, and the header is that of the
/// previous run.
#[test]
fn a_store_commits_while_a_reader_has_it_open() {
    let (_folder, path) = made();
    let reader = sqlite::open_read(&path).expect("it opens");
    let view = reader.snapshot().expect("a view");
    let store = open(&path).expect("the store opens");
    make(&store, 2).expect("the header is as it was");
    drop(view);
    make(&store, 3).expect("and may be moved there now");
}

/// A process that has lost the file since its last check does not find out at a commit if it has none left to make.
#[test]
fn a_close_does_not_write_a_file_that_the_process_has_lost() {
    let (folder, path) = made();
    let store = open(&path).expect("the store opens");
    make(&store, 2).expect("an account");
    let header = fs::OpenOptions::new().write(true).open(&path);
    let header = header.expect("the file opens");
    header
        .write_all_at(&9u32.to_be_bytes(), 60)
        .expect("the header is written");
    let before = fs::read(&path).expect("the file");
    store.close();
    assert!(
        fs::read(&path).expect("the file") == before,
        "no checkpoint"
    );
    assert!(folder.path().join("t.db-wal").exists());
}

/// A process that has nothing to write still answers from its memory.
#[test]
fn a_process_with_an_old_epoch_stops_though_nothing_is_committed() {
    let (_folder, path) = made();
    let (sender, receiver) = mpsc::channel();
    let failing = Options {
        on_failure: Box::new(move |failure| sender.send(failure.kind).expect("the test waits")),
        ..options()
    };
    let _first = sqlite::open(&path, failing).expect("the store opens");
    let _second = open_unlocked(&path);
    assert_eq!(receiver.recv(), Ok(FailureKind::Fenced));
}

#[test]
fn rebuilding_the_postings_raises_the_epoch() {
    let (_folder, path) = made();
    let first = open_unlocked(&path);
    let unlocked = Options {
        lock: Some(Lock::disabled()),
        ..options()
    };
    sqlite::rebuild_postings(&path, unlocked).expect("nothing excludes it");
    assert_eq!(stopped(make(&first, 2)).kind, FailureKind::Fenced);
}

#[test]
fn a_process_whose_file_was_replaced_or_removed_stops() {
    //   what happens to the file, and the message
    for (replaced, says) in [
        (true, "was replaced by another file"),
        (false, "was moved or removed"),
    ] {
        let (folder, path) = made();
        let copy = folder.path().join("copy.db");
        sqlite::backup(&path, &copy).expect("a backup");
        let store = open(&path).expect("the store opens");
        make(&store, 2).expect("an account");
        match replaced {
            true => fs::rename(&copy, &path).expect("put in its place"),
            false => fs::rename(&path, folder.path().join("away.db")).expect("moved away"),
        }
        let failure = stopped(make(&store, 3));
        assert_eq!(failure.kind, FailureKind::Replaced, "{failure}");
        assert!(failure.to_string().contains(says), "{failure}");
        store.close();
        if replaced {
            // The old log is not used for the new file, and nothing of the new file is removed.
            for suffix in ["-wal", "-shm"] {
                let _ = fs::remove_file(folder.path().join(format!("t.db{suffix}")));
            }
            let restored = open(&path).expect("the backup opens");
            let there = |number| restored.account(account(number)).expect("a read").is_some();
            assert!(there(1) && !there(2) && !there(3));
        }
    }
}

/// POSIX record locks that this process has on the file, as the kernel lists them.
fn record_locks(path: &Path) -> usize {
    let inode = fs::metadata(path).expect("the file").ino();
    let me = std::process::id().to_string();
    let listed = fs::read_to_string("/proc/locks").expect("the kernel lists locks");
    let mine = listed.lines().filter(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        line.contains("POSIX")
            && words.contains(&&*me)
            && words
                .iter()
                .any(|word| word.ends_with(&format!(":{inode}")))
    });
    mine.count()
}

/// Closing any descriptor of the file would drop them all, and the next process to close the file would delete its log.
#[test]
fn locks_of_sqlite_stay_while_this_process_opens_and_closes_the_file() {
    let (folder, path) = made();
    let store = open(&path).expect("the store opens");
    make(&store, 2).expect("an account");
    let before = record_locks(&path);
    assert!(before > 0, "SQLite has its locks");
    assert!(open(&path).is_err(), "a second one is refused");
    assert_eq!(record_locks(&path), before, "after a refusal");
    fs::remove_file(folder.path().join("t.db.lock")).expect("the lock file is removed");
    assert!(open(&path).is_err(), "a second one is refused");
    assert_eq!(record_locks(&path), before, "after a refusal by the file");
    drop(sqlite::open_read(&path).expect("a concurrent reader"));
    sqlite::backup(&path, &folder.path().join("copy.db")).expect("a backup");
    assert!(record_locks(&path) > 0, "after readers");
    let reader = sqlite::open_read(&path).expect("a concurrent reader");
    store.close();
    drop(store);
    assert!(record_locks(&path) > 0, "the reader's, after the store");
    drop(open(&path).expect("the lock is free"));
    assert!(reader.account(account(2)).expect("a read").is_some());
    assert!(record_locks(&path) > 0, "the reader's, after another store");
}
