//! The connection pool for reads: each read has a connection of its own.

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rusqlite::Connection;

use super::descriptor::Descriptor;
use super::file;
use crate::engine::{Reading as _, RowError};
use crate::error::{OpenError, ReadError};
use crate::opened::{Connections, OpenedStore};

/// Connections kept for the next reader.
const IDLE_MAX: usize = 4;

/// A store in one SQLite file.
pub(crate) type SqliteStore<W = ()> = OpenedStore<Pool, W>;

/// A connection pool: opens connections on demand, and keeps a few.
pub(crate) struct Pool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    /// Released after the connections.
    _file: Descriptor,
}

impl Pool {
    pub(crate) fn new(path: &Path) -> io::Result<Pool> {
        Ok(Pool {
            path: path.to_owned(),
            idle: Mutex::default(),
            _file: Descriptor::open(path)?,
        })
    }

    /// The same once there is a store to read.
    pub(crate) fn open(path: &Path) -> Result<Pool, OpenError> {
        let pool = Pool::new(path).map_err(|error| no_file(path, error))?;
        pool.release(file::connect_read(path)?);
        Ok(pool)
    }
}

impl Connections for Pool {
    type View = Connection;

    fn acquire(&self, what: &'static str) -> Result<Connection, ReadError> {
        let idle = self.idle.lock().pop();
        match idle {
            Some(connection) => Ok(connection),
            None => file::connect_read(&self.path).map_err(|error| ReadError::Engine {
                what,
                source: Box::new(error),
            }),
        }
    }

    fn release(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    type Snapshot<'p> = PoolSnapshot<'p>;

    fn snapshot(&self) -> Result<PoolSnapshot<'_>, ReadError> {
        let connection = self.acquire("a snapshot")?;
        // The snapshot is fixed by the first read, not by the start of the transaction.
        connection
            .execute_batch("BEGIN")
            .and_then(|()| {
                connection.query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0))
            })
            .map_err(|error| RowError::from(error).reading("a snapshot"))?;
        Ok(PoolSnapshot {
            pool: self,
            connection: Some(connection),
        })
    }

    fn in_snapshot<T>(
        connection: &Connection,
        read: impl FnOnce(&Connection) -> Result<T, RowError>,
    ) -> Result<T, RowError> {
        read(&*connection.unchecked_transaction()?)
    }
}

/// Why the file at `path`, which is to be read, could not be opened.
pub(crate) fn no_file(path: &Path, error: io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::NotFound => file::missing(path),
        _ => OpenError::File {
            action: "open",
            path: path.to_owned(),
            source: error,
        },
    }
}

/// A read transaction on its own connection.
pub(crate) struct PoolSnapshot<'p> {
    pool: &'p Pool,
    /// Present until the drop.
    connection: Option<Connection>,
}

impl Deref for PoolSnapshot<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("present until the drop")
    }
}

impl Drop for PoolSnapshot<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && connection.execute_batch("ROLLBACK").is_ok()
        {
            self.pool.release(connection);
        }
    }
}
