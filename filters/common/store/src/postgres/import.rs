//! Import of a store from an SQLite file into an empty PostgreSQL database: every row as it is, in one transaction.
//!
//! The tables have the same names and columns in both engines. The journal is copied byte for byte, so that its seals stay valid.

use std::path::Path;
use std::time::Duration;

use super::connection::Connection;
use super::failure::{open_error, row_open_error};
use super::lease;
use super::open::{enter, target};
use super::options::Options;
use crate::engine::{EngineError, Fault, RowError, Select as _, Sql as _, Value, values};
use crate::error::OpenError;
use crate::sqlite;

/// Time limit of one wait for the server: an index of a large table takes long.
const WAIT: Duration = Duration::from_secs(3600);

/// Rows between two reports of progress.
const REPORT_ROWS: u64 = 100_000;

/// Why a store was not imported. The database is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file or the database does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database has a store already.
    #[error("`{0}` has accounts or a journal already; import into an empty database")]
    NotEmpty(String),
    /// A row could not be read or written.
    #[error("could not copy the table `{table}`; nothing was imported")]
    Row {
        /// The table.
        table: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The copy differs from the original.
    #[error(
        "the copy of the table `{table}` has {found} rows, and the original {expected}; nothing was imported"
    )]
    Incomplete {
        /// The table.
        table: String,
        /// Rows of the copy.
        found: i64,
        /// Rows of the original.
        expected: i64,
    },
}

/// A table that was copied, or is being copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The table.
    pub table: String,
    /// Rows copied so far.
    pub rows: u64,
}

/// Imports the store of the SQLite file at `from`, which no gateway may have. Reports progress after each table and within large ones.
/// Returns what was copied.
pub fn import(
    from: &Path,
    options: &Options,
    report: &mut dyn FnMut(&Progress),
) -> Result<Vec<Progress>, ImportError> {
    let mut source_options = sqlite::Options::new(options.now, options.random.clone());
    let (file, _lock) = sqlite::open_exclusive(from, &mut source_options)?;
    let name = options.url.to_string();
    let opened = enter(&target(options)?, options)?;
    let database = &opened.connection;
    let failed = |error| ImportError::Open(open_error(&name, "write", error));
    database.limit(WAIT).map_err(failed)?;
    let copied = database
        .run_all("BEGIN")
        .map_err(failed)
        .and_then(|()| copy(&file, database, &name, report));
    let end = if copied.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = database.run(end, &[]);
    // The epoch of the lease is that of the empty store.
    let released = lease::release(database, opened.node, opened.epoch);
    let copied = copied?;
    ended.map_err(failed)?;
    released.map_err(failed)?;
    Ok(copied)
}

fn copy(
    file: &rusqlite::Connection,
    database: &Connection,
    name: &str,
    report: &mut dyn FnMut(&Progress),
) -> Result<Vec<Progress>, ImportError> {
    let sql = "SELECT 1 FROM accounts UNION ALL SELECT 1 FROM journal LIMIT 1";
    let is_empty = database.exists(sql, values![]);
    match is_empty {
        Ok(false) => {}
        Ok(true) => return Err(ImportError::NotEmpty(name.to_owned())),
        Err(error) => return Err(ImportError::Open(row_open_error(name, error))),
    }
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name";
    let tables = file.all(tables, values![], |row| row.get::<String>(0));
    let tables = tables.map_err(|error| row_error("sqlite_master", error))?;
    let mut copied = Vec::new();
    for table in tables {
        let failed = |error| row_error(&table, error);
        let sql = format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid");
        let columns = file.all(&sql, values![], |row| row.get::<String>(0));
        let columns = columns.map_err(failed)?;
        // The schema, the root secret and the node of the empty store are replaced.
        let emptied = database.execute(&format!("DELETE FROM {table}"), values![]);
        emptied.map_err(|error| failed(error.into()))?;
        let progress = copy_table(file, database, &table, &columns, report).map_err(failed)?;
        let count = format!("SELECT count(*) FROM {table}");
        let expected = file.number(&count, values![]).map_err(failed)?;
        let found = database.number(&count, values![]).map_err(failed)?;
        if found != expected {
            return Err(ImportError::Incomplete {
                table,
                found,
                expected,
            });
        }
        report(&progress);
        copied.push(progress);
    }
    let own = "DELETE FROM node_marks";
    let marks = "INSERT INTO node_marks (id, posted, days_posted) SELECT id, posted, days_posted FROM nodes";
    for sql in [own, marks] {
        let done = database.execute(sql, values![]);
        done.map_err(|error| row_error("node_marks", error.into()))?;
    }
    super::schema::record_version(database).map_err(|error| row_error("meta", error.into()))?;
    Ok(copied)
}

/// Copies the rows of a table; many are sent before their results are read.
fn copy_table(
    file: &rusqlite::Connection,
    database: &Connection,
    table: &str,
    columns: &[String],
    report: &mut dyn FnMut(&Progress),
) -> Result<Progress, RowError> {
    let names = columns.join(", ");
    let places: Vec<String> = (1..=columns.len())
        .map(|place| format!("?{place}"))
        .collect();
    let insert = format!(
        "INSERT INTO {table} ({names}) VALUES ({})",
        places.join(", ")
    );
    let mut progress = Progress {
        table: table.to_owned(),
        rows: 0,
    };
    let mut unread = Ok(());
    database.execute_each(&insert, &mut |run| {
        let select = format!("SELECT {names} FROM {table}");
        unread = file.query(&select, values![], &mut |row| {
            let values: Vec<Value<'_>> = (0..columns.len())
                .map(|column| row.value(column))
                .collect::<Result<_, _>>()?;
            run(&values)?;
            progress.rows += 1;
            if progress.rows.is_multiple_of(REPORT_ROWS) {
                report(&progress);
            }
            Ok(std::ops::ControlFlow::Continue(()))
        });
        Ok(())
    })?;
    unread?;
    Ok(progress)
}

fn row_error(table: &str, error: RowError) -> ImportError {
    let source = match error {
        RowError::Engine(EngineError {
            fault: Fault::Unstorable,
            ..
        }) => "a text contains a NUL character, which PostgreSQL cannot store".into(),
        RowError::Engine(error) => error.source,
        RowError::Unknown { what, value } => format!("{what} is `{value}`").into(),
        RowError::Damaged(problem) => problem.into(),
    };
    ImportError::Row {
        table: table.to_owned(),
        source,
    }
}
