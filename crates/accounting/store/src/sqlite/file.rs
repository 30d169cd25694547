//! The database file: atomic creation, migration, connections.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::failure::{open_error, write_open_error};
use super::last_commit;
use super::name;
use super::options::{Durability, Options};
use super::rename::migrated;
use crate::commit_id;
use crate::engine::{Epochs, NewRun, RowError, WriteError};
use crate::error::OpenError;
use crate::schema::{COMPATIBLE_FROM, Dialect, SCHEMA};

/// SQLite's keywords for the schema. WITHOUT ROWID tables store each row once; STRICT refuses a value of another type.
pub(super) const DIALECT: Dialect = Dialect {
    int: "INTEGER",
    bin: "BLOB",
    rows: "STRICT",
    keyed: "STRICT, WITHOUT ROWID",
};

/// `tlgt`: distinguishes a store from a database of another program.
const APPLICATION_ID: i64 = 0x746c_6774;

/// Verifies the file at `path`, or creates a store if the file is missing. The caller has the lock.
pub(crate) fn create_if_missing(path: &Path, options: &Options) -> Result<(), OpenError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() == 0 => Err(OpenError::Damaged {
            path: path.to_owned(),
            problem: String::from("is empty, so it is not a store"),
        }),
        Ok(_) => Ok(()),
        // A store created in place of a broken link would not be at the link's target.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !path.is_symlink() => {
            match missing(path) {
                OpenError::Missing { .. } => {
                    last_commit::verify_absent(path)?;
                    create(path, options)
                }
                migrated => Err(migrated),
            }
        }
        Err(source) => Err(OpenError::File {
            action: "open",
            path: path.to_owned(),
            source,
        }),
    }
}

/// Why the file at `path` is missing.
pub(crate) fn missing(path: &Path) -> OpenError {
    let (path, moved) = (path.to_owned(), migrated(path));
    match moved.exists() {
        true => OpenError::Migrated { path, moved },
        false => OpenError::Missing { path },
    }
}

/// Connects to the store at `path`, and migrates the store if necessary. The caller has the lock.
pub(crate) fn connect(path: &Path, options: &Options) -> Result<Connection, OpenError> {
    let connection = open(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE,
        options.busy_timeout,
    )
    .map_err(|error| open_error(path, "open", error))?;
    let schema = schema(&connection, path)?;
    let closes = |checkpoints: bool| {
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !checkpoints)
            .map_err(|error| open_error(path, "set up", error))
    };
    if !options.accepts_loss {
        // The rest of a damaged log stays unchanged.
        closes(false)?;
        last_commit::verify(path, &connection)?;
        closes(true)?;
    }
    settings(&connection, options).map_err(|error| open_error(path, "set up", error))?;
    if schema < SCHEMA {
        refuse_unreleased(&connection, schema, path)?;
        migrate(&connection, schema).map_err(|error| open_error(path, "migrate", error))?;
    }
    Ok(connection)
}

/// Connects to the store at `path` for reading.
pub(crate) fn connect_read(path: &Path) -> Result<Connection, OpenError> {
    let (connection, found) = connect_source(path)?;
    if found < SCHEMA {
        return Err(OpenError::Older {
            path: path.to_owned(),
            found,
            known: SCHEMA,
        });
    }
    Ok(connection)
}

/// Connects to the store at `path` to copy the store unchanged; the store may be of an earlier release. Also returns the schema version.
pub(crate) fn connect_source(path: &Path) -> Result<(Connection, i64), OpenError> {
    if !path.exists() {
        return Err(missing(path));
    }
    let connection = open(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY,
        Duration::from_secs(5),
    )
    .map_err(|error| open_error(path, "open", error))?;
    let found = schema(&connection, path)?;
    refuse_unreleased(&connection, found, path)?;
    Ok((connection, found))
}

/// The epoch of a new run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEpoch {
    pub(crate) epoch: i64,
    /// The replaced `user_version`, as in the log.
    pub(crate) before: i64,
}

/// Raises the epoch of the node for a new run: earlier runs are fenced off, and their holds are orphans.
pub(crate) fn raise_epoch(
    connection: &Connection,
    path: &Path,
    options: &Options,
) -> Result<NewEpoch, OpenError> {
    in_transaction(connection, path, || {
        raise_epoch_within(connection, &options.run())
            .map_err(|error| write_open_error(path, error))
    })
}

impl Epochs for Connection {
    fn raise_epoch(&self, run: &NewRun<'_>) -> Result<i64, WriteError> {
        raise_epoch_within(self, run).map(|raised| raised.epoch)
    }
}

/// Raises the epoch in the open transaction.
pub(crate) fn raise_epoch_within(
    connection: &Connection,
    run: &NewRun<'_>,
) -> Result<NewEpoch, WriteError> {
    let (first, last) = commit_id::range(run.node);
    // Greater than each epoch in the file, not only the epoch in the node's row. A run through another name of the file may have moved
    // its header or its journal into the file, but not its row.
    let header: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let journal: Option<i64> = connection.query_row(
        "SELECT max(id) FROM journal WHERE id BETWEEN ?1 AND ?2",
        params![first, last],
        |row| row.get(0),
    )?;
    let journal = journal.map_or(0, |id| commit_id::numbers(id).1);
    let epoch: i64 = connection.query_row(
        "INSERT INTO nodes (id, epoch, name, lease_until, started_at) VALUES (?1, ?4 + 1, ?2, 0, ?3)
         ON CONFLICT (id) DO UPDATE SET epoch = max(epoch, ?4) + 1, name = excluded.name, started_at = excluded.started_at
         RETURNING epoch",
        params![run.node, run.name, run.now.as_micros(), header.max(journal)],
        |row| row.get(0),
    )?;
    connection.pragma_update(None, "user_version", epoch)?;
    if epoch > commit_id::EPOCH_MAX {
        return Err(WriteError::Row(RowError::Damaged(format!(
            "its epoch {epoch} is greater than its journal can store"
        ))));
    }
    Ok(NewEpoch {
        epoch,
        before: header,
    })
}

/// Runs `act` in a transaction; an error rolls the transaction back.
pub(crate) fn in_transaction<T>(
    connection: &Connection,
    path: &Path,
    act: impl FnOnce() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    let failed = |error| open_error(path, "write", error);
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .map_err(failed)?;
    let done = act().and_then(|done| {
        connection.execute_batch("COMMIT").map_err(failed)?;
        Ok(done)
    });
    if done.is_err() {
        // The engine may have rolled back already.
        let _ = connection.execute_batch("ROLLBACK");
    }
    done
}

pub(crate) fn open(path: &Path, access: OpenFlags, busy: Duration) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(busy)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

/// Settings of the writing connection.
fn settings(connection: &Connection, options: &Options) -> rusqlite::Result<()> {
    let synchronous = match options.durability {
        Durability::Power => "FULL",
        Durability::Process => "NORMAL",
    };
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    // A checkpoint inside a commit would delay all callers of the commit: a dedicated thread does nearly all of the checkpoint.
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // Kibibytes. Enough for the upper levels and the hot leaves of a store of some million operations; more would only grow with the file.
    connection.pragma_update(None, "cache_size", -16_384)?;
    if let Some(pages) = options.pages_max {
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    Ok(())
}

/// Creates a store under a temporary name, and renames the complete store: `path` is either missing or a whole store.
fn create(path: &Path, options: &Options) -> Result<(), OpenError> {
    let unfinished = name::with_suffix(path, ".new");
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::File {
            action,
            path,
            source,
        }
    };
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed("remove", &unfinished)(error));
        }
        _ => {}
    }
    // Created first, and by the standard library: its error names the problem with the folder.
    private_file(&unfinished).map_err(failed("create", &unfinished))?;
    let fill = || -> rusqlite::Result<()> {
        let connection = Connection::open(&unfinished)?;
        connection.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        migrate(&connection, 0)?;
        connection.execute(
            "INSERT INTO meta (k, v) VALUES ('secret', ?1)",
            [base16ct::lower::encode_string(&options.random.0)],
        )?;
        connection.close().map_err(|(_, error)| error)
    };
    fill().map_err(|error| open_error(path, "create", error))?;
    fs::rename(&unfinished, path).map_err(failed("create", path))?;
    name::sync_folder(path).map_err(failed("sync the folder of", path))
}

/// The schema from which on the ledger is a journal.
const JOURNAL: i64 = 5;

/// Verifies that the file has no bookings from before the journal existed.
fn refuse_unreleased(connection: &Connection, found: i64, path: &Path) -> Result<(), OpenError> {
    let has_entries = || {
        connection
            .prepare("SELECT 1 FROM entries UNION ALL SELECT 1 FROM usage")?
            .exists([])
    };
    if found < JOURNAL && has_entries().map_err(|error| open_error(path, "read", error))? {
        return Err(OpenError::Unreleased {
            path: path.to_owned(),
        });
    }
    Ok(())
}

/// Runs the missing migrations, in one transaction.
fn migrate(connection: &Connection, from: i64) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let steps = || -> rusqlite::Result<()> {
        for step in DIALECT.steps(from) {
            connection.execute_batch(&step)?;
        }
        for (key, value) in [("schema", SCHEMA), ("compatible", COMPATIBLE_FROM)] {
            connection.execute(
                "INSERT INTO meta (k, v) VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v",
                [key, &value.to_string()],
            )?;
        }
        connection.execute_batch("COMMIT")
    };
    steps().inspect_err(|_| {
        let _ = connection.execute_batch("ROLLBACK");
    })
}

/// The schema version of the file. A newer schema is refused unless the file declares this release compatible.
fn schema(connection: &Connection, path: &Path) -> Result<i64, OpenError> {
    let failed = |error| open_error(path, "read", error);
    let application: i64 = connection
        .pragma_query_value(None, "application_id", |row| row.get(0))
        .map_err(failed)?;
    let foreign = || OpenError::Damaged {
        path: path.to_owned(),
        problem: String::from("is a database of another program"),
    };
    if application != APPLICATION_ID {
        return Err(foreign());
    }
    let number = |key: &str| {
        let found = connection.query_row("SELECT v FROM meta WHERE k = ?1", [key], |row| {
            row.get::<_, String>(0)
        });
        let found = found.optional().map_err(failed)?;
        Ok(found.and_then(|text| text.parse::<i64>().ok()))
    };
    let found = number("schema")?.ok_or_else(foreign)?;
    let compatible = number("compatible")?.unwrap_or(found);
    if found > SCHEMA && compatible > SCHEMA {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found,
            known: SCHEMA,
        });
    }
    Ok(found)
}

/// Creates the file at `path`, accessible only by its owner: the file has digests of secrets.
pub(crate) fn private_file(path: &Path) -> std::io::Result<File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
