//! The prepared statements that every commit needs.

use rusqlite::{Connection, Statement, params};

use super::fence::Fence;
use super::journal;
use crate::entries::Seal;

/// The statements of every commit. All rarer ones are prepared on use and cached by the connection.
pub(crate) struct Statements<'c> {
    insert_journal: Statement<'c>,
    pub(crate) begin: Statement<'c>,
    pub(crate) commit: Statement<'c>,
    /// What the fence reads.
    pub(crate) epoch: Statement<'c>,
}

impl<'c> Statements<'c> {
    pub(crate) fn prepare(
        connection: &'c Connection,
        fence: &Fence,
    ) -> rusqlite::Result<Statements<'c>> {
        Ok(Statements {
            insert_journal: connection.prepare(journal::INSERT)?,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            epoch: fence.prepare(connection)?,
        })
    }

    /// Writes a commit's row of the journal.
    pub(crate) fn insert_journal(
        &mut self,
        id: i64,
        seal: &Seal,
        body: &[u8],
    ) -> rusqlite::Result<()> {
        self.insert_journal
            .execute(params![
                id,
                seal.entries,
                seal.sum_available.get(),
                seal.sum_held.get(),
                &seal.previous[..],
                &seal.hash[..],
                seal.at.as_micros(),
                body,
            ])
            .map(|_| ())
    }
}
