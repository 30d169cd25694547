//! The posting progress of the nodes' journals.

use crate::engine::{EngineError, RowError, Select, Sql, SqlRow, values};

/// A statement on the marks of the nodes: the posting progress of a node's journal. PostgreSQL has the marks in a separate table, since
/// every commit locks the node's row against changes.
macro_rules! on_marks {
    ($connection:expr, $before:literal, $after:literal) => {
        match $connection.dialect() {
            $crate::engine::Dialect::Sqlite => concat!($before, "nodes", $after),
            $crate::engine::Dialect::Postgres => concat!($before, "node_marks", $after),
        }
    };
}
pub(super) use on_marks;

/// Visits every node with the id of its last posted row, 0 before the first posting, in the order of the nodes.
pub(crate) fn posted(connection: &dyn Sql, each: &mut dyn FnMut(i64, i64)) -> Result<(), RowError> {
    let sql = on_marks!(connection, "SELECT id, posted FROM ", " ORDER BY id");
    let read = |row: &dyn SqlRow| Ok((row.get(0)?, row.get(1)?));
    connection.each(sql, values![], read, &mut |(node, row)| each(node, row))
}

/// Whether the usage totals of every node include its last posted row.
pub(crate) fn are_days_posted(connection: &dyn Sql) -> Result<bool, RowError> {
    let sql = on_marks!(connection, "SELECT 1 FROM ", " WHERE days_posted <> posted");
    Ok(!connection.exists(sql, values![])?)
}

/// Sets the mark of the usage totals of every node to its last posted row.
pub(crate) fn set_days_posted(connection: &dyn Sql) -> Result<(), EngineError> {
    let sql = on_marks!(connection, "UPDATE ", " SET days_posted = posted");
    connection.write(sql, values![])
}

/// Sets the marks of the last posted row of a node. The node's usage totals include the row too.
pub(crate) fn set_posted(connection: &dyn Sql, node: i64, row: i64) -> Result<(), EngineError> {
    // `posted` is NOT NULL: the statement fails for a missing journal row, which may have been sent without waiting for its result.
    let sql = on_marks!(
        connection,
        "UPDATE ",
        " SET posted = (SELECT id FROM journal WHERE id = ?2), days_posted = ?2 WHERE id = ?1"
    );
    connection.write(sql, values![node, row])
}
