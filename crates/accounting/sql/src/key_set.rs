//! A set of keys that may be larger than memory, for audit and repair.

use rusqlite::Connection;

use crate::error::RowError;

/// Keys in a private SQLite file, for any engine of the store: a large set spills to disk, and costs a database server nothing.
pub struct KeySet(Connection);

impl KeySet {
    /// Creates an empty set.
    ///
    /// # Errors
    ///
    /// [`RowError::Engine`] without a folder for temporary files.
    pub fn new() -> Result<KeySet, RowError> {
        // The empty name is a private file, which SQLite removes at the close.
        let file = Connection::open("")?;
        file.execute_batch("CREATE TABLE keys (key BLOB PRIMARY KEY) STRICT, WITHOUT ROWID")?;
        Ok(KeySet(file))
    }

    /// Adds a key; `false` when the set already has the key.
    ///
    /// # Errors
    ///
    /// [`RowError::Engine`] when the set cannot spill to disk.
    pub fn insert(&self, key: &[u8]) -> Result<bool, RowError> {
        let sql = "INSERT OR IGNORE INTO keys (key) VALUES (?1)";
        Ok(self.0.prepare_cached(sql)?.execute([key])? == 1)
    }
}
