//! SQLite.

/// Opens stores of the next release.
mod engine {
    use std::path::Path;
    use std::sync::Arc;

    use rusqlite::Connection;
    use tollgate_store::Store;

    use crate::sqlite::engine as base;
    pub(crate) use crate::sqlite::engine::{
        MARKS, Options, bytes, execute, number, open_read, options,
    };

    pub(crate) fn open(folder: &Path, options: Options) -> Arc<dyn Store> {
        let tables = || {
            let database = Connection::open(folder.join("t.db")).expect("the file");
            let sql =
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
            let mut statement = database.prepare(sql).expect("a statement");
            let names = statement.query_map([], |row| row.get(0)).expect("rows");
            names.collect::<Result<_, _>>().expect("names")
        };
        let first = || base::open(folder, base::options());
        super::super::upgrade(folder, first, tables, base::execute);
        base::open(folder, options)
    }
}

#[path = "../suite/mod.rs"]
mod suite;
