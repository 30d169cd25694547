//! Statements on the journal and on pages of accounts' histories, and their rows.

use std::ops::ControlFlow;

use crate::commit_id;
use crate::engine::{Dialect, EachBody, EachPage, Page, RowError, Sql, SqlRow, Value};
use crate::entries::Seal;
use crate::store::BatchRows;

pub(super) const ALL: &str =
    "SELECT body, id, entries, sum_avail, sum_held, prev, hash, at FROM journal ORDER BY id";

pub(super) const AFTER: &str =
    "SELECT body, id, entries, sum_avail, sum_held, prev, hash, at FROM journal
     WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3";

/// A statement on the marks of the nodes: how far the journal of each is posted. PostgreSQL has them in a table of their own, since each
/// commit locks the node's row against changes there.
macro_rules! on_marks {
    ($connection:expr, $before:literal, $after:literal) => {
        match $connection.dialect() {
            Dialect::Sqlite => concat!($before, "nodes", $after),
            Dialect::Postgres => concat!($before, "node_marks", $after),
        }
    };
}
pub(super) use on_marks;

/// Every node's rows after its last posted one. They are in the order of the ids; the clause says so to avoid a sort.
pub(super) fn unposted_rows(connection: &dyn Sql) -> &'static str {
    on_marks!(
        connection,
        "SELECT j.body, j.id FROM ",
        " n JOIN journal j ON j.id BETWEEN CASE WHEN n.posted >= (n.id << 56) THEN n.posted + 1 ELSE n.id << 56 END
            AND ((n.id << 56) | 72057594037927935) ORDER BY n.id, j.id"
    )
}

/// Every node's rows up to its last posted one.
pub(super) fn posted_rows(connection: &dyn Sql) -> &'static str {
    on_marks!(
        connection,
        "SELECT j.body, j.id FROM ",
        " n JOIN journal j ON j.id BETWEEN (n.id << 56) AND n.posted ORDER BY n.id, j.id"
    )
}

pub(super) fn batch_rows(row: &dyn SqlRow) -> Result<BatchRows, RowError> {
    let (node, epoch, number) = commit_id::numbers(row.get(1)?);
    Ok(BatchRows {
        seal: Seal {
            node,
            epoch,
            number,
            entries: row.get(2)?,
            sum_available: row.get(3)?,
            sum_held: row.get(4)?,
            previous: row.get(5)?,
            hash: row.get(6)?,
            at: row.get(7)?,
        },
        body: row.get(0)?,
    })
}

pub(super) fn each_body(
    connection: &dyn Sql,
    sql: &str,
    values: &[Value<'_>],
    each: &mut EachBody<'_>,
) -> Result<(), RowError> {
    connection.query(sql, values, &mut |row| {
        each(row.get(1)?, row.get(0)?)?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Visits pages, whose columns are account, row, times and body.
pub(super) fn each_page(
    connection: &dyn Sql,
    sql: &str,
    values: &[Value<'_>],
    each: &mut EachPage<'_>,
) -> Result<(), RowError> {
    connection.query(sql, values, &mut |row| {
        each(Page {
            account: row.get(0)?,
            row: row.get(1)?,
            at_min: row.get(2)?,
            at_max: row.get(3)?,
            body: row.get(4)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Select as _, values};
    use crate::sqlite;

    #[test]
    fn posted_and_unposted_rows_are_read_without_a_sort() {
        let folder = tempfile::tempdir().expect("a folder");
        let (engine, _) = sqlite::new_engine(&folder.path().join("t.db"));
        let connection = &engine.connection;
        //   the query    its query plan
        for (sql, way) in [
            (
                unposted_rows(connection),
                "SEARCH j USING INTEGER PRIMARY KEY",
            ),
            (
                posted_rows(connection),
                "SEARCH j USING INTEGER PRIMARY KEY",
            ),
            (ALL, "SCAN journal"),
        ] {
            let plan: Vec<String> = connection
                .all(&format!("EXPLAIN QUERY PLAN {sql}"), values![], |row| {
                    row.get(3)
                })
                .expect("a plan");
            assert!(plan.iter().any(|step| step.starts_with(way)), "{plan:#?}");
            let sorts = plan.iter().any(|step| step.contains("TEMP B-TREE"));
            assert!(!sorts, "`{sql}`: {plan:#?}");
        }
    }
}
