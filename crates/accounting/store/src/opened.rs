//! A store as this process has it open: connections to read by, and the handle of the writer where it may write.

use std::ops::Deref;

use crate::engine::{Reading as _, RowError, Rows};
use crate::error::ReadError;

/// Connections that reads use, of one engine.
pub(crate) trait Connections: Send + Sync {
    /// A connection.
    type View: Rows;

    /// Authenticates connections from now on with another password, those of the writer too. A file has none.
    fn replace_password(&self, _: Option<&[u8]>) {}

    /// Takes an idle connection, or opens one for a read of `what`.
    fn acquire(&self, what: &'static str) -> Result<Self::View, ReadError>;

    /// Keeps a connection for the next read.
    fn release(&self, view: Self::View);

    /// A connection in a transaction until it is dropped, for reads of one snapshot that take long.
    type Snapshot<'c>: Deref<Target = Self::View>
    where
        Self: 'c;

    /// Begins a snapshot. It shows what is committed now, not at its first read.
    fn snapshot(&self) -> Result<Self::Snapshot<'_>, ReadError>;

    /// Runs `read` on a connection within one transaction: what it reads is of one snapshot.
    fn in_snapshot<T>(
        view: &Self::View,
        read: impl FnOnce(&Self::View) -> Result<T, RowError>,
    ) -> Result<T, RowError>;
}

/// A store that is open. `W` is the handle of its writer, `()` for a store that is only read.
///
/// The reads of all tables are implemented for this type with any engine and any `W`, so that a store that writes needs no second
/// implementation.
pub(crate) struct OpenedStore<C, W = ()> {
    pub(crate) connections: C,
    pub(crate) writing: W,
}

impl<C: Connections, W> OpenedStore<C, W> {
    /// Reads by statements that are independent of each other.
    pub(crate) fn with<T>(
        &self,
        what: &'static str,
        read: impl FnOnce(&C::View) -> Result<T, RowError>,
    ) -> Result<T, ReadError> {
        let view = self.connections.acquire(what)?;
        let result = read(&view).map_err(|error| error.reading(what));
        self.connections.release(view);
        result
    }

    /// The same, for several reads that need one snapshot.
    pub(crate) fn with_view<T>(
        &self,
        what: &'static str,
        read: impl FnOnce(&C::View) -> Result<T, RowError>,
    ) -> Result<T, ReadError> {
        self.with(what, |view| C::in_snapshot(view, read))
    }
}
