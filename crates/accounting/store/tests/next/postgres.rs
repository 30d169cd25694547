//! PostgreSQL.

/// Opens stores of the next release.
mod engine {
    use std::path::Path;
    use std::sync::Arc;

    use tollgate_store::Store;
    use tollgate_testing::Postgres;

    use crate::postgres::engine as base;
    pub(crate) use crate::postgres::engine::{
        MARKS, Options, bytes, execute, number, open_read, options,
    };

    pub(crate) fn open(folder: &Path, options: Options) -> Arc<dyn Store> {
        let tables = || {
            let sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()";
            let names = Postgres::shared().run(&base::database(folder), sql);
            names.lines().map(str::to_owned).collect()
        };
        let first = || base::open(folder, base::options());
        super::super::upgrade(folder, first, tables, base::execute);
        base::open(folder, options)
    }
}

#[path = "../suite/mod.rs"]
mod suite;
