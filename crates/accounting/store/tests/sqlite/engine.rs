//! Stores in a SQLite file of a test's folder, and their tables past the store.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use tollgate_clock::Timestamp;
pub(crate) use tollgate_store::sqlite::Options;
use tollgate_store::sqlite::{self, Durability};
use tollgate_store::{Reader, RootSecret, Store};

/// The table of the marks of nodes, how far their journal is posted.
pub(crate) const MARKS: &str = "nodes";

pub(crate) fn options() -> Options {
    Options {
        // The results under test do not depend on the syncs, only the duration does.
        durability: Durability::Process,
        ..Options::new(Timestamp::from_micros(1), RootSecret([7; 32]))
    }
}

/// Opens the store of a folder, or creates it.
pub(crate) fn open(folder: &Path, options: Options) -> Arc<dyn Store> {
    sqlite::open(&folder.join("t.db"), options).expect("the store opens")
}

/// Opens the store of a folder for reading.
pub(crate) fn open_read(folder: &Path) -> Arc<Reader> {
    sqlite::open_read(&folder.join("t.db")).expect("a reader")
}

/// One number that the database of a folder answers.
pub(crate) fn number(folder: &Path, query: &str) -> i64 {
    let number = database(folder).query_row(query, [], |row| row.get(0));
    number.expect("a number")
}

/// Changes the database of a folder past the store.
pub(crate) fn execute(folder: &Path, statements: &str) {
    let done = database(folder).execute_batch(statements);
    done.expect("the statements run");
}

/// Bytes as a statement has them.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("x'{digits}'")
}

fn database(folder: &Path) -> Connection {
    Connection::open(folder.join("t.db")).expect("the file")
}
