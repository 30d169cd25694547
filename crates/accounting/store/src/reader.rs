//! Reads of committed data: the connections of an engine, the reader that runs each read on one of them, and the store that has a reader.

use std::ops::Deref;
use std::sync::Arc;

use crate::engine::{Reading as _, RowError, Sql};
use crate::error::ReadError;

/// Connections that reads use, of one engine.
pub(crate) trait Connections: Send + Sync {
    /// Authenticates connections from now on with another password, those of the writer too. A file has none.
    fn replace_password(&self, _: Option<&[u8]>) {}

    /// An idle connection, or a new one for a read of `what`.
    fn connection(&self, what: &'static str) -> Result<Box<dyn View + '_>, ReadError>;

    /// A connection in a transaction, whose reads all see one state of the database. The first of them fixes that state.
    fn snapshot(&self, what: &'static str) -> Result<Box<dyn View + '_>, ReadError>;
}

/// A connection for one read. At the drop its transaction ends, and it is kept for the next read.
pub(crate) trait View {
    /// The connection.
    fn sql(&self) -> &dyn Sql;

    /// Drops it, and returns the error of an engine that could not end the transaction.
    fn end(self: Box<Self>) -> Result<(), RowError> {
        Ok(())
    }
}

/// Reads of committed data. Every method blocks until the engine has answered: call it where blocking is allowed.
///
/// The methods are in `reads/` for accounts and the ledger, and beside the statements of their table in `tables/` for the others.
pub struct Reader {
    pub(crate) connections: Arc<dyn Connections>,
}

impl Reader {
    pub(crate) fn new(connections: Arc<dyn Connections>) -> Reader {
        Reader { connections }
    }

    /// Reads by statements that are independent of each other.
    pub(crate) fn with<T>(
        &self,
        what: &'static str,
        read: impl FnOnce(&dyn Sql) -> Result<T, RowError>,
    ) -> Result<T, ReadError> {
        run(self.connections.connection(what)?, what, read)
    }

    /// Reads by several statements that need one snapshot.
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

/// A store that this process writes to. `W` is the handle of its writer.
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
