//! Import of a store from an SQLite file into an empty PostgreSQL database: every row unchanged.
//!
//! The tables have equal names and columns in both engines. The journal is copied byte for byte, so its seals stay valid.
//!
//! Rows are copied in transactions of some megabytes. Each transaction records the number of copied rows of its table. An interrupted
//! import continues there, provided that the file is unchanged. Until [`finish_import`] the table with these records is in the database,
//! and no gateway opens the database.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_postgres::Connection;

use sha2::{Digest as _, Sha256};

use super::claim::Claim;
use super::failure::{open_error, row_open_error};
use super::lease::{Holder, Lease};
use super::open::{choose, target};
use super::options::Options;
use super::read::Pool;
use super::schema;
use crate::engine::{EngineError, Fault, RowError, Select as _, Sql as _, SqlRow, Value, values};
use crate::error::{OpenError, STOP_THE_OTHER};
use crate::reader::Reader;
use crate::schema::SCHEMA;
use crate::sqlite;

/// The tables of a file, except for Litestream's tables in each shipped file. Any other table that the database does not have ends the
/// import: a silent omission might lose valuable rows.
const TABLES: &str =
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'
    AND substr(name, 1, 12) <> '_litestream_'";

/// Rows and bytes of one transaction.
const BATCH_ROWS: usize = 10_000;
const BATCH_BYTES: usize = 16 << 20;

/// Why a store was not imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file or the database does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database has a store already.
    #[error("`{0}` has accounts or a journal already; import into an empty database")]
    NotEmpty(String),
    /// The import was begun by another release, from another file, or a gateway has used the file since.
    #[error(
        "`{0}` has a part of another store, or the file has been used since its import was interrupted; empty the database and migrate again"
    )]
    OtherSource(String),
    /// Another process copies into the database.
    #[error("another process is copying the table `{0}`; wait for its end")]
    Overtaken(String),
    /// A row could not be read or written.
    #[error("could not copy the table `{table}`; the next attempt continues there")]
    Row {
        /// The table.
        table: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The copy differs from the original.
    #[error(
        "the copy of the table `{table}` has {found} rows, and the original {expected}; empty the database and migrate again"
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
    /// Rows copied so far, including earlier attempts.
    pub rows: u64,
}

/// A copy that no gateway opens before [`finish_import`].
#[derive(Debug)]
pub struct Imported {
    /// The copied tables.
    pub tables: Vec<Progress>,
    /// The lock of the original: no gateway opens the original before the drop.
    pub lock: sqlite::Lock,
}

/// Imports the store of the SQLite file at `from`. No gateway may have the file open. An interrupted import continues. Reports progress
/// after each transaction.
pub fn import(
    from: &Path,
    options: &Options,
    report: &mut dyn FnMut(&Progress),
) -> Result<Imported, ImportError> {
    let mut source_options = sqlite::Options::new(options.now, options.random.clone());
    let (file, lock) = sqlite::open_exclusive(from, &mut source_options)?;
    let name = options.url.to_string();
    let database = Connection::open(&target(options)?);
    let database = database.map_err(|error| ImportError::Open(open_error(&name, "open", error)))?;
    schema::check_server(&database, &name)?;
    let limited = database.limit(schema::MIGRATION_MAX);
    limited.map_err(|error| ImportError::Open(open_error(&name, "write", error)))?;
    let tables = begin(&file, &database, options, &name)?;
    let mut copied = Vec::new();
    for progress in tables {
        copied.push(copy_table(&file, &database, progress, report)?);
    }
    end(&database).map_err(|error| row_error("node_marks", error.into()))?;
    Ok(Imported {
        tables: copied,
        lock,
    })
}

/// Opens an imported store for gateways, and collects the statistics for the server's planner. The server would collect statistics some
/// time later, and read whole tables until then. Empty tables get no statistics. Without statistics the server assumes ten pages, and
/// uses the indexes when the tables grow. With statistics of an empty table the server plans to read the whole table, and keeps such
/// plans.
pub fn finish_import(options: &Options) -> Result<(), ImportError> {
    let name = options.url.to_string();
    let failed = |error| ImportError::Open(open_error(&name, "write", error));
    let database = Connection::open(&target(options)?).map_err(failed)?;
    database.limit(schema::MIGRATION_MAX).map_err(failed)?;
    let tables = database.all("SELECT name FROM imports", values![], |row| {
        row.get::<String>(0)
    });
    for table in tables.map_err(|error| ImportError::Open(row_open_error(&name, error)))? {
        let is_filled = database.exists(&format!("SELECT 1 FROM {table} LIMIT 1"), values![]);
        if is_filled.map_err(|error| ImportError::Open(row_open_error(&name, error)))? {
            database
                .run_all(&format!("ANALYZE {table}"))
                .map_err(failed)?;
        }
    }
    let finish = || {
        database.run_all("BEGIN; DROP TABLE imports")?;
        schema::record_version(&database)?;
        commit(&database)
    };
    finish().map_err(failed)
}

/// Opens an imported store for reading before [`finish_import`].
pub fn open_imported(options: &Options) -> Result<Arc<Reader>, OpenError> {
    Ok(Arc::new(Reader::new(Arc::new(Pool::new(Arc::new(
        target(options)?,
    ))))))
}

/// Makes the tables of an empty database and the records of progress, or finds the records of an earlier attempt. Returns the tables with
/// their numbers of copied rows.
fn begin(
    file: &rusqlite::Connection,
    database: &Connection,
    options: &Options,
    name: &str,
) -> Result<Vec<Progress>, ImportError> {
    let row_failed = |error| ImportError::Open(row_open_error(name, error));
    let failed = |error| ImportError::Open(open_error(name, "write", error));
    let source = identity(file).map_err(|error| row_error("nodes", error))?;
    schema::lock(database).map_err(failed)?;
    if !schema::is_importing(database).map_err(row_failed)? {
        schema::migrate(database, name, &options.clock)?;
        // A gateway that has just made its store has no accounts yet.
        if let (_, Lease::Held(held)) = choose(database, options, &Claim::none())? {
            let (path, holder) = (PathBuf::from(name), Holder::describe(&held.holder));
            let remedy = STOP_THE_OTHER;
            return Err(ImportError::Open(OpenError::InUse {
                path,
                holder,
                remedy,
            }));
        }
        let sql = "SELECT 1 FROM accounts UNION ALL SELECT 1 FROM journal LIMIT 1";
        if database.exists(sql, values![]).map_err(row_failed)? {
            return Err(ImportError::NotEmpty(name.to_owned()));
        }
        let sql = "CREATE TABLE imports (name TEXT PRIMARY KEY, source BYTEA NOT NULL, copied BIGINT NOT NULL)";
        database.run_all(sql).map_err(failed)?;
        let tables = file.all(TABLES, values![], |row| row.get::<String>(0));
        for table in tables.map_err(|error| row_error("sqlite_master", error))? {
            // The import replaces the rows of the empty store: its schema, its root secret and its nodes.
            let emptied = database.execute(&format!("DELETE FROM {table}"), values![]);
            emptied.map_err(failed)?;
            let sql = "INSERT INTO imports (name, source, copied) VALUES (?1, ?2, 0)";
            let recorded = database.execute(sql, values![&*table, &source[..]]);
            recorded.map_err(failed)?;
        }
    }
    let sql = "SELECT name, copied, source FROM imports ORDER BY name";
    let tables = database.all(sql, values![], |row| {
        let table = Progress {
            table: row.get(0)?,
            rows: row.get::<i64>(1)?.unsigned_abs(),
        };
        Ok((table, row.get::<Vec<u8>>(2)?))
    });
    let tables = tables.map_err(row_failed)?;
    if tables.iter().any(|(_, begun)| *begun != source) {
        return Err(ImportError::OtherSource(name.to_owned()));
    }
    commit(database).map_err(failed)?;
    Ok(tables.into_iter().map(|(table, _)| table).collect())
}

/// A digest that changes with each run of a gateway or a command that writes, and with the importing release.
fn identity(file: &rusqlite::Connection) -> Result<[u8; 32], RowError> {
    let mut digest = Sha256::new();
    digest.update(SCHEMA.to_be_bytes());
    let mut add = |row: &dyn SqlRow| {
        digest.update(row.get::<String>(0)?.as_bytes());
        digest.update([0]);
        Ok(ControlFlow::Continue(()))
    };
    let secret = "SELECT v FROM meta WHERE k = 'secret'";
    let nodes = "SELECT id || '/' || epoch FROM nodes ORDER BY id";
    let journal = "SELECT id || '/' || hex(hash) FROM journal ORDER BY id DESC LIMIT 1";
    for sql in [secret, nodes, journal] {
        file.query(sql, values![], &mut add)?;
    }
    Ok(digest.finalize().into())
}

/// Fills the table that only this engine has.
fn end(database: &Connection) -> Result<(), EngineError> {
    database.run_all("BEGIN; DELETE FROM node_marks")?;
    let marks = "INSERT INTO node_marks (id, posted, days_posted) SELECT id, posted, days_posted FROM nodes";
    database.execute(marks, values![])?;
    commit(database)
}

/// A server answers `ROLLBACK` to the `COMMIT` of a transaction with a failed statement.
fn commit(database: &Connection) -> Result<(), EngineError> {
    match &*database.run("COMMIT", &[])? {
        "COMMIT" => Ok(()),
        other => Err(EngineError {
            fault: Fault::Other,
            source: format!("the server answered `{other}` to `COMMIT`").into(),
        }),
    }
}

/// Copies the missing rows of a table, and compares the counts.
fn copy_table(
    file: &rusqlite::Connection,
    database: &Connection,
    mut progress: Progress,
    report: &mut dyn FnMut(&Progress),
) -> Result<Progress, ImportError> {
    let table = progress.table.clone();
    let failed = |error| row_error(&table, error);
    let sql = format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid");
    let columns = file.all(&sql, values![], |row| row.get::<String>(0));
    let columns = columns.map_err(failed)?;
    let sql = format!("SELECT name FROM pragma_table_info('{table}') WHERE pk > 0 ORDER BY pk");
    let key = file.all(&sql, values![], |row| row.get::<String>(0));
    let mut key = key.map_err(failed)?;
    if key.is_empty() {
        key.clone_from(&columns);
    }
    let names = columns.join(", ");
    let places: Vec<String> = (1..=columns.len())
        .map(|place| format!("?{place}"))
        .collect();
    let insert = format!(
        "INSERT INTO {table} ({names}) VALUES ({})",
        places.join(", ")
    );
    // In key order, so that the rows of an earlier attempt come first.
    let select = format!(
        "SELECT {names} FROM {table} ORDER BY {} LIMIT {} OFFSET {}",
        key.join(", "),
        i64::MAX,
        progress.rows
    );
    let mut batch = Batch::default();
    let mut unwritten = Ok(());
    let read = file.query(&select, values![], &mut |row| {
        batch.push(row, columns.len())?;
        if batch.rows.len() >= BATCH_ROWS || batch.bytes >= BATCH_BYTES {
            unwritten = batch.write(database, &insert, &mut progress);
            if unwritten.is_err() {
                return Ok(ControlFlow::Break(()));
            }
            report(&progress);
        }
        Ok(ControlFlow::Continue(()))
    });
    read.map_err(failed)?;
    unwritten?;
    batch.write(database, &insert, &mut progress)?;
    report(&progress);
    let count = format!("SELECT count(*) FROM {table}");
    let expected = file.number(&count, values![]).map_err(failed)?;
    let found = database.number(&count, values![]).map_err(failed)?;
    match found == expected {
        true => Ok(progress),
        false => Err(ImportError::Incomplete {
            table,
            found,
            expected,
        }),
    }
}

/// Rows that are written in one transaction.
#[derive(Default)]
struct Batch {
    rows: Vec<Vec<OwnedValue>>,
    bytes: usize,
}

enum OwnedValue {
    Null,
    Integer(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl OwnedValue {
    fn borrowed(&self) -> Value<'_> {
        match self {
            OwnedValue::Null => Value::Null,
            OwnedValue::Integer(number) => Value::Integer(*number),
            OwnedValue::Text(text) => Value::Text(text),
            OwnedValue::Bytes(bytes) => Value::Bytes(bytes),
        }
    }
}

impl Batch {
    fn push(&mut self, row: &dyn SqlRow, columns: usize) -> Result<(), EngineError> {
        let mut values = Vec::with_capacity(columns);
        for column in 0..columns {
            values.push(match row.value(column)? {
                Value::Null => OwnedValue::Null,
                Value::Integer(number) => OwnedValue::Integer(number),
                Value::Text(text) => {
                    self.bytes += text.len();
                    OwnedValue::Text(text.to_owned())
                }
                Value::Bytes(bytes) => {
                    self.bytes += bytes.len();
                    OwnedValue::Bytes(bytes.to_owned())
                }
            });
        }
        self.rows.push(values);
        Ok(())
    }

    /// Writes the rows and the record of progress, and forgets the rows.
    fn write(
        &mut self,
        database: &Connection,
        insert: &str,
        progress: &mut Progress,
    ) -> Result<(), ImportError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let table = &*progress.table;
        let (before, count) = (progress.rows, self.rows.len() as u64);
        let written = database.run_all("BEGIN").and_then(|()| {
            // First, so that another process waits here, and then finds another number.
            let sql = "UPDATE imports SET copied = copied + ?3 WHERE name = ?1 AND copied = ?2";
            if database.execute(sql, values![table, before, count])? == 0 {
                return Ok(false);
            }
            database.execute_rows(insert, &mut |run| {
                for row in self.rows.drain(..) {
                    let values: Vec<Value<'_>> = row.iter().map(OwnedValue::borrowed).collect();
                    run(&values)?;
                }
                Ok(())
            })?;
            commit(database)?;
            Ok(true)
        });
        match written {
            Ok(true) => {}
            Ok(false) => return Err(ImportError::Overtaken(table.to_owned())),
            Err(error) => return Err(row_error(table, error.into())),
        }
        progress.rows += count;
        self.bytes = 0;
        Ok(())
    }
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
