//! Writes that a recovery alone makes.

use super::journal::on_marks;
use crate::engine::{Dialect, EngineError, Epochs, RecoverRows, Sql, values};
use crate::entries::Seal;

impl<C: Sql + Epochs> RecoverRows for C {
    fn remove_derived(&self) -> Result<(), EngineError> {
        for sql in [
            "UPDATE accounts SET available = 0, held = 0",
            "UPDATE allotments SET available = 0, held = 0",
            // The next take of a cap makes them again.
            "DELETE FROM cap_allotments",
            "DELETE FROM cap_recalls",
            "DELETE FROM holds",
            "DELETE FROM postings",
            "DELETE FROM credit_references",
            "DELETE FROM usage_days",
            "DELETE FROM carried_pages",
            on_marks!(self, "UPDATE ", " SET posted = 0, days_posted = 0"),
        ] {
            self.execute(sql, values![])?;
        }
        Ok(())
    }

    fn put_commit(&self, id: i64, seal: &Seal, body: &[u8]) -> Result<(), EngineError> {
        let sql = "INSERT INTO journal (id, entries, sum_avail, sum_held, prev, hash, at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (id) DO UPDATE SET entries = excluded.entries, sum_avail = excluded.sum_avail, sum_held = excluded.sum_held,
               prev = excluded.prev, hash = excluded.hash, at = excluded.at, body = excluded.body";
        let values = values![
            id,
            seal.entries,
            seal.sum_available,
            seal.sum_held,
            seal.previous,
            seal.hash,
            seal.at,
            body
        ];
        self.execute(sql, values).map(|_| ())
    }

    fn remove_commit(&self, id: i64) -> Result<(), EngineError> {
        self.execute("DELETE FROM journal WHERE id = ?1", values![id])
            .map(|_| ())
    }

    fn put_node(&self, node: i64, epoch: i64) -> Result<(), EngineError> {
        let sql = "INSERT INTO nodes (id, epoch, name, lease_until, started_at) VALUES (?1, ?2, 'repair', 0, 0)
             ON CONFLICT (id) DO UPDATE SET epoch = CASE WHEN nodes.epoch > excluded.epoch THEN nodes.epoch ELSE excluded.epoch END";
        self.execute(sql, values![node, epoch])?;
        if self.dialect() == Dialect::Postgres {
            let sql = "INSERT INTO node_marks (id, posted, days_posted) VALUES (?1, 0, 0) ON CONFLICT DO NOTHING";
            self.execute(sql, values![node])?;
        }
        Ok(())
    }
}
