//! Another name for a file that no gateway uses any more.

use rusqlite::Connection;
use tollgate_store::sqlite::{self, Lock, RenameError};

use super::suite::support::{account, new_account, open, write};

#[test]
fn a_file_is_renamed_with_its_log_and_only_when_no_program_has_it_open() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = (
        folder.path().join("t.db"),
        folder.path().join("t.db.migrated"),
    );
    let store = open(folder.path());
    // An audit or a copy that is under way: commits stay in the log for it.
    let reader = Connection::open(&from).expect("it opens");
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM meta")
        .expect("a view");
    write(&store, [new_account(1)]).expect("an account");
    store.close();
    drop(store);

    let lock = Lock::acquire(&from).expect("no gateway has it");
    let rename = || sqlite::rename(&from, &to, &lock);
    let refused = rename();
    assert!(
        matches!(refused, Err(RenameError::InUse { .. })),
        "{refused:?}"
    );
    reader.execute_batch("COMMIT").expect("the end of the view");
    let refused = rename();
    assert!(
        matches!(refused, Err(RenameError::InUse { .. })),
        "it may write to the log: {refused:?}"
    );
    assert!(from.exists() && !to.exists());
    drop(reader);

    std::fs::write(&to, "of an earlier migration").expect("a file");
    let refused = rename();
    assert!(
        matches!(refused, Err(RenameError::Exists { .. })),
        "{refused:?}"
    );
    std::fs::remove_file(&to).expect("it is moved elsewhere");
    // A log that a process has left that was killed.
    let writer = Connection::open(&from).expect("it opens");
    writer
        .execute_batch("INSERT INTO meta (k, v) VALUES ('late', '1')")
        .expect("a commit");
    let (log, kept) = (
        folder.path().join("t.db-wal"),
        folder.path().join("kept-wal"),
    );
    std::fs::copy(&log, &kept).expect("a log");
    let main = std::fs::read(&from).expect("the file without the commit");
    drop(writer);
    std::fs::write(&from, main).expect("the file");
    std::fs::copy(&kept, &log).expect("the log");

    rename().expect("no program has it open");
    assert!(!from.exists() && !log.exists());
    let renamed = sqlite::open_read(&to).expect("a store");
    let row = renamed.account(account(1)).expect("a read");
    assert!(row.is_some());
    let file = Connection::open(&to).expect("it opens");
    let sql = "SELECT v FROM meta WHERE k = 'late'";
    let late: String = file
        .query_row(sql, [], |row| row.get(0))
        .expect("the commit");
    assert_eq!(late, "1");
}
