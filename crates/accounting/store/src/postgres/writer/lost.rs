//! Transactions whose connection was lost, or that the server has refused: their outcome, and their repetition.

use super::{Transaction, Writer, Written, engine_error};
use crate::engine::{EngineError, Fault, Select as _, Sql as _, values};
use tollgate_postgres::Connection;

impl Writer {
    /// In a cluster, the rows read by a lost transaction may have changed since: the transaction is not repeated here.
    pub(super) fn begin_again_after(&self, error: EngineError) -> EngineError {
        if error.fault.passes() {
            if let Ok(mut link) = self.link.try_borrow_mut() {
                *link = None;
            }
            *self.transaction.borrow_mut() = Transaction::default();
        }
        self.begin_again(error)
    }

    /// Begins the transaction, or runs the transaction again up to the point of the loss, under a new number.
    pub(super) fn run_again(&self, link: &Connection) -> Result<(), EngineError> {
        self.begin_on(link, self.next_number())?;
        for Written { sent, rows, queue } in &self.transaction.borrow().written {
            let Some(rows) = rows else {
                queue(link, &sent.sql, &mut |run| sent.each(run))?;
                continue;
            };
            let mut found = 0;
            sent.each(&mut |values| {
                found += link.execute(&sent.sql, values)?;
                Ok(())
            })?;
            if found != *rows {
                return Err(EngineError {
                    fault: Fault::Fenced,
                    source: "a repeated transaction changed other rows than the lost one".into(),
                });
            }
        }
        Ok(())
    }

    /// Whether the transaction that was lost at its `COMMIT` took effect. Waits until the server has ended the transaction. If the server
    /// has not received the transaction yet, a later number is recorded, so that the transaction never takes effect.
    pub(super) fn is_committed(&self, link: &Connection, number: i64) -> Result<bool, EngineError> {
        link.run("BEGIN", &[])?;
        let sql = "SELECT epoch FROM nodes WHERE id = ?1 FOR UPDATE";
        link.run(sql, values![self.node])?;
        let sql = "SELECT commits FROM node_marks WHERE id = ?1";
        let found = link.number(sql, values![self.node]).map_err(engine_error)?;
        if found == number {
            link.run("ROLLBACK", &[])?;
            return Ok(true);
        }
        self.commits.set(self.commits.get().max(number + 1));
        let sql = "UPDATE node_marks SET commits = ?3
            WHERE id = ?1 AND commits < ?3 AND EXISTS (SELECT 1 FROM nodes WHERE id = ?1 AND epoch = ?2)";
        link.run(sql, values![self.node, self.epoch, number + 1])?;
        link.run("COMMIT", &[])?;
        Ok(false)
    }

    /// The number of the next transaction.
    pub(super) fn next_number(&self) -> i64 {
        self.commits.set(self.commits.get() + 1);
        self.commits.get()
    }
}
