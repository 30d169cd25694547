//! The connection pool for reads.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use super::connection::{Connection, Target};
use crate::engine::{RowError, Select as _, values};
use crate::error::ReadError;
use crate::opened::{Connections, OpenedStore};

/// Connections kept for the next reader.
const IDLE_MAX: usize = 8;

/// What a read of several statements sees: one state of the database.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// A store in a PostgreSQL database.
pub(super) type PostgresStore<W = ()> = OpenedStore<Pool, W>;

/// A connection pool: opens connections on demand, and keeps a few.
pub(super) struct Pool {
    target: Arc<Target>,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    pub(super) fn new(target: Arc<Target>) -> Pool {
        Pool {
            target,
            idle: Mutex::default(),
        }
    }

    fn pop(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.pop()
    }
}

impl Connections for Pool {
    type View = Connection;

    fn replace_password(&self, password: Option<&[u8]>) {
        self.target.replace_password(password);
    }

    fn acquire(&self, what: &'static str) -> Result<Connection, ReadError> {
        // The server may have closed those that were idle.
        while let Some(connection) = self.pop() {
            if connection.is_reusable() {
                return Ok(connection);
            }
        }
        Connection::open(&self.target).map_err(|error| RowError::from(error).reading(what))
    }

    fn release(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && connection.is_reusable() {
            idle.push(connection);
        }
    }

    type Snapshot<'p> = PoolSnapshot<'p>;

    fn snapshot(&self) -> Result<PoolSnapshot<'_>, ReadError> {
        let connection = self.acquire("a snapshot")?;
        let begin = || {
            connection.run(BEGIN, &[])?;
            // The snapshot is fixed by the first read, not by the start of the transaction.
            connection.number("SELECT count(*) FROM meta", values![])
        };
        begin().map_err(|error| error.reading("a snapshot"))?;
        Ok(PoolSnapshot {
            pool: self,
            connection: Some(connection),
        })
    }

    fn in_snapshot<T>(
        connection: &Connection,
        read: impl FnOnce(&Connection) -> Result<T, RowError>,
    ) -> Result<T, RowError> {
        connection.run(BEGIN, &[])?;
        let done = read(connection);
        // A connection that stays in the transaction is not used again.
        let ended = connection.run("ROLLBACK", &[]);
        let done = done?;
        ended?;
        Ok(done)
    }
}

/// A read transaction on its own connection.
pub(super) struct PoolSnapshot<'p> {
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
            && connection.run("ROLLBACK", &[]).is_ok()
        {
            self.pool.release(connection);
        }
    }
}
