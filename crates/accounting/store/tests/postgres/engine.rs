//! Stores in databases of a PostgreSQL server, one for each test's folder, and their tables past the store.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_store::postgres::{self, DatabaseUrl};
use tollgate_store::{Reader, RootSecret, Store};
use tollgate_testing::Postgres;

/// The table of the marks of nodes, how far their journal is posted.
pub(crate) const MARKS: &str = "node_marks";

/// The options that tests of the suite set.
pub(crate) struct Options {
    pub(crate) post_records: usize,
    pub(crate) queue_max: usize,
}

pub(crate) fn options() -> Options {
    Options {
        post_records: 65_536,
        queue_max: 16_384,
    }
}

/// Opens the store of a folder, or creates it.
pub(crate) fn open(folder: &Path, options: Options) -> Arc<dyn Store> {
    postgres::open(postgres::Options {
        post_records: options.post_records,
        queue_max: options.queue_max,
        ..options_of(folder)
    })
    .expect("the store opens")
}

/// Opens the store of a folder for reading.
pub(crate) fn open_read(folder: &Path) -> Arc<Reader> {
    postgres::open_read(&options_of(folder)).expect("a reader")
}

/// One number that the database of a folder answers.
pub(crate) fn number(folder: &Path, query: &str) -> i64 {
    let number = Postgres::shared().run(&database(folder), query);
    number.parse().expect("a number")
}

/// Changes the database of a folder past the store.
pub(crate) fn execute(folder: &Path, statements: &str) {
    Postgres::shared().run(&database(folder), statements);
}

/// Bytes as a statement has them.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("'\\x{digits}'")
}

/// Options for the database of a folder.
pub(crate) fn options_of(folder: &Path) -> postgres::Options {
    let url = Postgres::shared().url(&database(folder));
    let url = DatabaseUrl::parse(&url).expect("an address");
    postgres::Options::new(url, Timestamp::from_micros(1), RootSecret([7; 32]))
}

/// The name of the folder's database, created at the first use.
pub(crate) fn database(folder: &Path) -> String {
    if let Ok(name) = fs::read_to_string(folder.join("database")) {
        return name;
    }
    let url = Postgres::shared().database();
    let database = url.rsplit('/').next().expect("a name").to_owned();
    name_database(folder, &database);
    database
}

/// Makes a database that of a folder.
pub(crate) fn name_database(folder: &Path, database: &str) {
    fs::write(folder.join("database"), database).expect("a file");
}
