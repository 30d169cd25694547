//! Writes made only by a recovery.

use super::marks::on_marks;
use crate::engine::{Dialect, EngineError, Sql, values};
use crate::entries::Seal;

/// Removes everything derived from the journal: balances, holds, pages, usage totals, bookings and marks.
pub(crate) fn remove_derived(connection: &dyn Sql) -> Result<(), EngineError> {
    for sql in [
        "UPDATE accounts SET available = 0, held = 0",
        "UPDATE allotments SET available = 0, held = 0",
        // The next take of a cap makes new rows.
        "DELETE FROM cap_allotments",
        "DELETE FROM cap_recalls",
        "DELETE FROM holds",
        "DELETE FROM postings",
        "DELETE FROM credit_references",
        "DELETE FROM usage_days",
        "DELETE FROM carried_pages",
        on_marks!(connection, "UPDATE ", " SET posted = 0, days_posted = 0"),
    ] {
        connection.execute(sql, values![])?;
    }
    Ok(())
}

/// Inserts a commit, or replaces the commit with its id.
pub(crate) fn put_commit(
    connection: &dyn Sql,
    id: i64,
    seal: &Seal,
    body: &[u8],
) -> Result<(), EngineError> {
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
    connection.execute(sql, values).map(|_| ())
}

/// Removes a commit.
pub(crate) fn remove_commit(connection: &dyn Sql, id: i64) -> Result<(), EngineError> {
    connection
        .execute("DELETE FROM journal WHERE id = ?1", values![id])
        .map(|_| ())
}

/// Inserts a node, or raises the node's epoch to at least `epoch`.
pub(crate) fn put_node(connection: &dyn Sql, node: i64, epoch: i64) -> Result<(), EngineError> {
    let sql = "INSERT INTO nodes (id, epoch, name, lease_until, started_at) VALUES (?1, ?2, 'repair', 0, 0)
         ON CONFLICT (id) DO UPDATE SET epoch = CASE WHEN nodes.epoch > excluded.epoch THEN nodes.epoch ELSE excluded.epoch END";
    connection.execute(sql, values![node, epoch])?;
    if connection.dialect() == Dialect::Postgres {
        let sql = "INSERT INTO node_marks (id, posted, days_posted) VALUES (?1, 0, 0) ON CONFLICT DO NOTHING";
        connection.execute(sql, values![node])?;
    }
    Ok(())
}
