//! The schema: verification of the server, and migrations under a lock.

use std::path::PathBuf;
use std::time::Duration;

use tollgate_clock::Clock;

use super::failure::{is_locked, open_error, row_open_error};
use super::own_tables::{OWN_COLUMNS, OWN_TABLES};
use super::writer::engine_error;
use crate::carry;
use crate::engine::{EngineError, Fault, RowError, Select as _, Sql as _, values};
use crate::error::OpenError;
use crate::schema::{COMPATIBLE_FROM, Dialect, SCHEMA};
use crate::threads;
use tollgate_postgres::Connection;

/// PostgreSQL's keywords for the schema.
const DIALECT: Dialect = Dialect {
    int: "BIGINT",
    bin: "BYTEA",
    rows: "",
    keyed: "",
};

/// The oldest supported server.
const SERVER_MIN: i64 = 130_000;

/// [`COMPATIBLE_FROM`] of a store with several nodes: an earlier release does not know shared balances, and cannot read the journals.
const COMPATIBLE_WITH_NODES: i64 = 17;

/// Attempts to create the table of the lock: two processes may create the table at once.
const CREATE_TRIES: usize = 5;

/// Time limit of one statement of a migration: some statements change every row of a table.
pub(super) const MIGRATION_MAX: Duration = Duration::from_secs(3600);

/// For how long a statement of a migration waits for a table. Commits of other gateways queue behind this wait.
const TABLE_LOCK_MAX: &str = "500ms";

/// For how long a start retries while tables are in use, and the pause between two attempts.
const TABLES_MAX: Duration = Duration::from_secs(600);
const TABLES_PAUSE: Duration = Duration::from_secs(2);

/// Verifies that the server keeps confirmed commits.
pub(super) fn check_server(connection: &Connection, name: &str) -> Result<(), OpenError> {
    let setting = |setting: &str| {
        let sql = "SELECT current_setting(?1, true)";
        let found = connection.first(sql, values![setting], |row| row.get::<Option<String>>(0));
        found
            .map(Option::flatten)
            .map_err(|error| row_open_error(name, error))
    };
    let unfit = |problem: String| {
        Err(OpenError::UnfitServer {
            database: name.to_owned(),
            problem,
        })
    };
    if let Some(version) = setting("server_version_num")?
        && version
            .parse::<i64>()
            .is_ok_and(|version| version < SERVER_MIN)
    {
        return unfit(format!(
            "is PostgreSQL {version}; upgrade it to version 13 or later"
        ));
    }
    // Other servers with this protocol have no `fsync` setting, and always sync.
    if setting("fsync")?.is_some_and(|value| value == "off") {
        return unfit(
            "has `fsync = off`: a crash of its machine would lose charges and damage the database; set `fsync = on` in `postgresql.conf`"
                .to_owned(),
        );
    }
    if setting("full_page_writes")?.is_some_and(|value| value == "off") {
        tracing::warn!(
            database = %name,
            "database has `full_page_writes = off`: only a file system that never tears a page keeps it whole in a power failure"
        );
    }
    match setting("server_encoding")? {
        Some(encoding) if encoding != "UTF8" => unfit(format!(
            "has the encoding {encoding}; create the database with `ENCODING 'UTF8'`"
        )),
        _ => Ok(()),
    }
}

/// Begins a transaction, and takes the lock of all changes to the schema and to nodes.
pub(super) fn lock(connection: &Connection) -> Result<(), EngineError> {
    for attempt in 1..=CREATE_TRIES {
        let sql = "CREATE TABLE IF NOT EXISTS schema_lock (id BIGINT PRIMARY KEY)";
        match connection.run_all(sql) {
            Err(error) if error.fault == Fault::Key && attempt < CREATE_TRIES => {}
            other => {
                other?;
                break;
            }
        }
    }
    connection
        .run_all("BEGIN; INSERT INTO schema_lock (id) VALUES (1) ON CONFLICT (id) DO NOTHING")?;
    connection
        .execute(
            "SELECT id FROM schema_lock WHERE id = 1 FOR UPDATE",
            values![],
        )
        .map(|_| ())
}

/// Runs the missing migrations, under the lock. A migration that has to wait for a table is rolled back and retried. Otherwise, while
/// another program, a backup for example, reads the table, commits of every gateway would wait behind the migration.
pub(super) fn migrate(connection: &Connection, name: &str, clock: &Clock) -> Result<(), OpenError> {
    let failed = |error| open_error(name, "migrate", error);
    let give_up = clock.elapsed() + TABLES_MAX;
    loop {
        let found = version(connection, name)?.unwrap_or_default();
        if found >= SCHEMA {
            return Ok(());
        }
        match run_steps(connection, found) {
            Err(error) if is_locked(&error) && clock.elapsed() < give_up => {
                tracing::warn!(database = %name, error = %error.source, "migration waits for a table that another program uses, a backup for example");
                connection.run_all("ROLLBACK").map_err(failed)?;
                threads::sleep(TABLES_PAUSE);
                lock(connection).map_err(failed)?;
            }
            other => return other.map_err(failed),
        }
    }
}

fn run_steps(connection: &Connection, from: i64) -> Result<(), EngineError> {
    connection.run_all(&format!("SET LOCAL lock_timeout = '{TABLE_LOCK_MAX}'"))?;
    for step in DIALECT.steps(from) {
        connection.run_all(&step)?;
    }
    connection.run_all(OWN_TABLES)?;
    for (table, column, of_type) in OWN_COLUMNS {
        // `ADD COLUMN IF NOT EXISTS` waits for the table even if the column exists.
        let sql = "SELECT 1 FROM information_schema.columns
            WHERE table_schema = current_schema() AND CAST(table_name AS TEXT) = ?1 AND CAST(column_name AS TEXT) = ?2";
        let is_there = connection.exists(sql, values![table, column]);
        if !is_there.map_err(engine_error)? {
            connection.run_all(&format!(
                "ALTER TABLE {table} ADD COLUMN {column} {of_type}"
            ))?;
        }
    }
    record_version(connection)?;
    connection.run_all("SET LOCAL lock_timeout = 0")
}

/// Makes the tables of an empty database, and rolls back: a failure here predicts the failure of a first start.
pub(super) fn try_create(connection: &Connection) -> Result<(), EngineError> {
    connection.run_all("BEGIN")?;
    run_steps(connection, 0)?;
    connection.run_all("ROLLBACK")
}

/// Leaves room in each page of `allotments` for new versions of its rows. A posting changes the rows of all its accounts, and a row that
/// moves to another page is inserted into both indexes again. A table with any setting of an operator stays unchanged. Other servers with
/// this protocol may refuse the setting.
pub(super) fn leave_room(connection: &Connection) {
    let sql = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema() AND c.relname = 'allotments' AND c.reloptions IS NULL";
    if !matches!(connection.exists(sql, values![]), Ok(true)) {
        return;
    }
    let set = "BEGIN; SET LOCAL lock_timeout = '1s'; ALTER TABLE allotments SET (fillfactor = 50); COMMIT";
    if let Err(error) = connection.run_all(set) {
        tracing::debug!(error = %error.source, "the table `allotments` keeps its `fillfactor`");
        // If `ROLLBACK` fails, the next statement fails too and reports the error.
        let _ = connection.run_all("ROLLBACK");
    }
}

/// Records the schema of this release.
pub(super) fn record_version(connection: &Connection) -> Result<(), EngineError> {
    let sql =
        "INSERT INTO meta (k, v) VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v";
    let value = SCHEMA.to_string();
    connection.execute(sql, values!["schema", value])?;
    // `carry` exists already in a store that was copied.
    let has_carry = connection.exists("SELECT 1 FROM carry WHERE id = 1", values![]);
    let compatible = match has_carry {
        Ok(true) => carry::KNOWN_FROM,
        Ok(false) => COMPATIBLE_FROM,
        Err(RowError::Engine(error)) => return Err(error),
        Err(_) => COMPATIBLE_FROM,
    };
    record_compatible(connection, compatible)
}

/// Keeps out releases that know only one node.
pub(super) fn record_several_nodes(connection: &Connection) -> Result<(), EngineError> {
    record_compatible(connection, COMPATIBLE_WITH_NODES)
}

/// Records the oldest schema of a release that can use the store, unless a later schema is recorded.
fn record_compatible(connection: &Connection, schema: i64) -> Result<(), EngineError> {
    let sql = "INSERT INTO meta (k, v) VALUES ('compatible', ?1)
        ON CONFLICT (k) DO UPDATE SET v = excluded.v WHERE CAST(meta.v AS BIGINT) < CAST(excluded.v AS BIGINT)";
    let value = schema.to_string();
    connection.execute(sql, values![value]).map(|_| ())
}

/// Verifies that the database has a store that this release can read.
pub(super) fn check_readable(connection: &Connection, name: &str) -> Result<(), OpenError> {
    match version(connection, name)? {
        None => Err(OpenError::Missing {
            path: PathBuf::from(name),
        }),
        Some(found) if found < SCHEMA => Err(OpenError::Older {
            path: PathBuf::from(name),
            found,
            known: SCHEMA,
        }),
        Some(_) => Ok(()),
    }
}

/// Whether an import has begun and is not finished.
pub(super) fn is_importing(connection: &Connection) -> Result<bool, RowError> {
    has_table(connection, "imports")
}

fn has_table(connection: &Connection, table: &str) -> Result<bool, RowError> {
    let sql = "SELECT 1 FROM information_schema.tables WHERE table_schema = current_schema() AND CAST(table_name AS TEXT) = ?1";
    connection.exists(sql, values![table])
}

/// The schema of the store, if any. A newer schema is refused unless the store declares this release compatible.
pub(super) fn version(connection: &Connection, name: &str) -> Result<Option<i64>, OpenError> {
    let failed = |error| row_open_error(name, error);
    if is_importing(connection).map_err(failed)? {
        return Err(OpenError::UnfitServer {
            database: name.to_owned(),
            problem: "has a part of a store, whose import was interrupted; run `tollgate migrate` with the same file again, or empty the database"
                .to_owned(),
        });
    }
    if !has_table(connection, "meta").map_err(failed)? {
        return Ok(None);
    }
    let number = |key: &str| {
        let sql = "SELECT v FROM meta WHERE k = ?1";
        let found = connection.first(sql, values![key], |row| row.get::<String>(0));
        let text = found.map_err(failed)?;
        Ok(text.and_then(|text| text.parse::<i64>().ok()))
    };
    let found = number("schema")?.ok_or_else(|| OpenError::UnfitServer {
        database: name.to_owned(),
        problem: "has tables of another program; give tollgate a database of its own".to_owned(),
    })?;
    let compatible = number("compatible")?.unwrap_or(found);
    if found > SCHEMA && compatible > SCHEMA {
        return Err(OpenError::Newer {
            path: PathBuf::from(name),
            found,
            known: SCHEMA,
        });
    }
    Ok(Some(found))
}
