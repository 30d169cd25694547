//! Reads of committed data: the connections of an engine, the reader that runs a read on a connection, and the store that has a reader.

use std::ops::Deref;
use std::sync::Arc;

use crate::engine::{Reading as _, RowError, Sql};
use crate::error::ReadError;

/// Connections of an engine, for reads.
pub(crate) trait Connections: Send + Sync {
    /// Authenticates later connections with another password, including the writer's connections. No effect for a file.
    fn replace_password(&self, _: Option<&[u8]>) {}

    /// An idle connection, or a new connection for a read of `what`.
    fn connection(&self, what: &'static str) -> Result<Box<dyn View + '_>, ReadError>;

    /// A connection in a transaction whose reads all see one state of the database. The first read fixes the state.
    fn snapshot(&self, what: &'static str) -> Result<Box<dyn View + '_>, ReadError>;
}

/// A connection for one read. The drop ends the connection's transaction, and keeps the connection for the next read.
pub(crate) trait View {
    /// The connection.
    fn sql(&self) -> &dyn Sql;

    /// Drops the view, and returns the error of an engine that could not end the transaction.
    fn end(self: Box<Self>) -> Result<(), RowError> {
        Ok(())
    }
}

/// Reads of committed data. Every method blocks until the engine has answered: call a method only where blocking is allowed.
///
/// The methods for accounts and the ledger are in `reads/`. The other methods are in `tables/`, beside the statements of their table.
pub struct Reader {
    pub(crate) connections: Arc<dyn Connections>,
}

impl Reader {
    pub(crate) fn new(connections: Arc<dyn Connections>) -> Reader {
        Reader { connections }
    }

    /// Reads by independent statements.
    pub(crate) fn with<T>(
        &self,
        what: &'static str,
        read: impl FnOnce(&dyn Sql) -> Result<T, RowError>,
    ) -> Result<T, ReadError> {
        run(self.connections.connection(what)?, what, read)
    }

    /// Reads by several statements that need a common snapshot.
    pub(crate) fn with_view<T>(
        &self,
        what: &'static str,
        read: impl FnOnce(&dyn Sql) -> Result<T, RowError>,
    ) -> Result<T, ReadError> {
        run(self.connections.snapshot(what)?, what, read)
    }
}

fn run<T>(
    view: Box<dyn View + '_>,
    what: &'static str,
    read: impl FnOnce(&dyn Sql) -> Result<T, RowError>,
) -> Result<T, ReadError> {
    let done = read(view.sql());
    let ended = view.end();
    let done = done.and_then(|done| ended.map(|()| done));
    done.map_err(|error| error.reading(what))
}

/// A store that the process writes to. `W` is the handle of the store's writer.
pub(crate) struct OpenedStore<W> {
    pub(crate) reader: Reader,
    pub(crate) writing: W,
}

impl<W> Deref for OpenedStore<W> {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}
