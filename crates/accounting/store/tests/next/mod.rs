//! The acceptance suite on the schema of a later release: what this one does after an upgrade was taken back. Each table has columns more, as
//! a step of the schema may add them, and there are a table and an index that this release does not know.

use std::path::Path;
use std::sync::Arc;

use tollgate_store::Store;

pub(crate) mod postgres;
pub(crate) mod sqlite;

/// Turns a new store into one of the next release: `open` opens it, `execute` runs statements past it, and `tables` are its tables.
fn upgrade(
    folder: &Path,
    open: impl FnOnce() -> Arc<dyn Store>,
    tables: impl FnOnce() -> Vec<String>,
    execute: fn(&Path, &str),
) {
    let mark = folder.join("next");
    if mark.exists() {
        return;
    }
    let store = open();
    store.close();
    drop(store);
    let added: String = tables()
        .iter()
        .map(|table| {
            format!(
                "ALTER TABLE {table} ADD COLUMN next_number INTEGER;
                 ALTER TABLE {table} ADD COLUMN next_word TEXT NOT NULL DEFAULT 'later';"
            )
        })
        .collect();
    execute(
        folder,
        &format!(
            "{added}
            CREATE TABLE next_things (id INTEGER PRIMARY KEY, word TEXT NOT NULL);
            CREATE INDEX next_index ON next_things (word);
            UPDATE meta SET v = '1000' WHERE k = 'schema';"
        ),
    );
    std::fs::write(mark, "").expect("the folder takes files");
}
