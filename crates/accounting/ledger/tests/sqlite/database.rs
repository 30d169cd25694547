//! The tables of a ledger in an SQLite file, edited without the store.

use std::path::Path;

use rusqlite::Connection;
use tempfile::TempDir;
use tollgate_store::OpenError;
use tollgate_store::sqlite;

use super::suite::options;

/// Runs of the test against a model.
pub(crate) const MODEL_RUNS: u32 = 64;

/// A folder with a copy of a database that no store has open.
pub(crate) fn copy(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("a file");
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("a copy");
    }
    copy
}

/// Edits tables as with a database shell, without the checks of their columns.
pub(crate) fn edit(folder: &Path, statements: &str) {
    let connection = connect(folder);
    connection
        .execute_batch("PRAGMA ignore_check_constraints = ON")
        .and_then(|()| connection.execute_batch(statements))
        .unwrap_or_else(|error| panic!("`{statements}`: {error}"));
}

/// The body of each row of the journal.
pub(crate) fn bodies(folder: &Path) -> Vec<(i64, Vec<u8>)> {
    let connection = connect(folder);
    let mut rows = connection
        .prepare("SELECT id, body FROM journal")
        .expect("a journal");
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .expect("rows")
}

pub(crate) fn rebuild_postings(folder: &Path) -> Result<(), OpenError> {
    sqlite::rebuild_postings(&folder.join("t.db"), options())
}

fn connect(folder: &Path) -> Connection {
    Connection::open(folder.join("t.db")).expect("the file opens")
}
