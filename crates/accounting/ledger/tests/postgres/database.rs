//! The tables of a ledger in a PostgreSQL database, edited without the store.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tempfile::TempDir;
use tollgate_store::OpenError;
use tollgate_store::postgres;
use tollgate_testing::Postgres;

use super::engine;

/// Runs of the model test; each step waits for the server.
pub(crate) const MODEL_RUNS: u32 = 12;

/// Removes the checks of columns. SQLite can ignore its checks instead.
const DROP_CHECKS: &str = "DO $$ DECLARE c record; BEGIN
    FOR c IN SELECT conrelid::regclass AS t, conname FROM pg_constraint WHERE contype = 'c' AND conrelid <> 0 LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.conname);
    END LOOP; END $$";

/// A folder with a copy of a database that no store has open.
pub(crate) fn copy(folder: &Path) -> TempDir {
    static COPIES: AtomicU32 = AtomicU32::new(0);
    let name = format!("copy_{}", COPIES.fetch_add(1, Relaxed));
    let original = engine::database(folder);
    let server = Postgres::shared();
    // A hold leaked by a test keeps the connections of its store.
    let disconnect = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{original}'"
    );
    server.run("postgres", &disconnect);
    server.run(
        "postgres",
        &format!("CREATE DATABASE {name} TEMPLATE {original}"),
    );
    let copy = tempfile::tempdir().expect("a folder");
    engine::name_database(copy.path(), &name);
    copy
}

/// Edits tables as with a database shell, without the checks of their columns.
pub(crate) fn edit(folder: &Path, statements: &str) {
    if !statements.is_empty() {
        let statements = in_own_dialect(statements);
        engine::execute(folder, &format!("{DROP_CHECKS}; {statements}"));
    }
}

/// The body of each row of the journal.
pub(crate) fn bodies(folder: &Path) -> Vec<(i64, Vec<u8>)> {
    let database = engine::database(folder);
    let rows = Postgres::shared().run(&database, "SELECT id, encode(body, 'hex') FROM journal");
    let decoded = rows.lines().map(|line| {
        let (id, digits) = line.split_once('|').expect("two columns");
        let body = base16ct::mixed::decode_vec(digits).expect("digits");
        (id.parse().expect("a number"), body)
    });
    decoded.collect()
}

pub(crate) fn rebuild_postings(folder: &Path) -> Result<(), OpenError> {
    postgres::rebuild_postings(&engine::options_of(folder))
}

/// Translates statements of the suite, written for SQLite.
fn in_own_dialect(statements: &str) -> String {
    [
        ("UPDATE nodes SET posted", "UPDATE node_marks SET posted"),
        ("DELETE FROM nodes", "DELETE FROM node_marks"),
        ("CAST(", "("),
        (" AS BLOB)", ")"),
        ("zeroblob(32)", r"decode(repeat('00', 32), 'hex')"),
        ("zeroblob(3)", r"decode(repeat('00', 3), 'hex')"),
        ("x'7f'", r"'\x7f'"),
        ("x'0", r"'\x0"),
    ]
    .iter()
    .fold(statements.to_owned(), |text, (from, to)| {
        text.replace(from, to)
    })
}
