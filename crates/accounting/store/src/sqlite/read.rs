//! The connection pool for reads: each read has a separate connection.

use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rusqlite::Connection;

use super::descriptor::Descriptor;
use super::file;
use crate::engine::{Reading as _, RowError, Sql};
use crate::error::{OpenError, ReadError};
use crate::reader::{Connections, View};

/// Connections kept for the next reader.
const IDLE_MAX: usize = 4;

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

    /// A pool with a first connection to an existing store.
    pub(crate) fn open(path: &Path) -> Result<Pool, OpenError> {
        let pool = Pool::new(path).map_err(|error| no_file(path, error))?;
        pool.release(file::connect_read(path)?);
        Ok(pool)
    }

    /// Takes an idle connection, or opens one.
    pub(crate) fn acquire(&self, what: &'static str) -> Result<Connection, ReadError> {
        let idle = self.idle.lock().pop();
        match idle {
            Some(connection) => Ok(connection),
            None => file::connect_read(&self.path).map_err(|error| ReadError::Engine {
                what,
                source: Box::new(error),
            }),
        }
    }

    /// Keeps a connection for the next read.
    pub(crate) fn release(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    fn view(&self, connection: Connection, in_transaction: bool) -> Box<dyn View + '_> {
        Box::new(PoolView {
            pool: self,
            connection: Some(connection),
            in_transaction,
        })
    }
}

impl Connections for Pool {
    fn connection(&self, what: &'static str) -> Result<Box<dyn View + '_>, ReadError> {
        Ok(self.view(self.acquire(what)?, false))
    }

    fn snapshot(&self, what: &'static str) -> Result<Box<dyn View + '_>, ReadError> {
        let connection = self.acquire(what)?;
        let begun = connection.execute_batch("BEGIN");
        begun.map_err(|error| RowError::from(error).reading(what))?;
        Ok(self.view(connection, true))
    }
}

/// Why the file at `path` could not be opened for reading.
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

/// A connection of the pool during a read.
struct PoolView<'p> {
    pool: &'p Pool,
    /// Present until the drop.
    connection: Option<Connection>,
    in_transaction: bool,
}

impl View for PoolView<'_> {
    fn sql(&self) -> &dyn Sql {
        self.connection.as_ref().expect("present until the drop")
    }
}

impl Drop for PoolView<'_> {
    fn drop(&mut self) {
        // After a panic the state of the connection is unknown.
        if !std::thread::panicking()
            && let Some(connection) = self.connection.take()
            && (!self.in_transaction || connection.execute_batch("ROLLBACK").is_ok())
        {
            self.pool.release(connection);
        }
    }
}
