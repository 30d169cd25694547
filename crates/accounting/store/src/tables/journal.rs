//! Statements on the journal, and its rows.

use std::ops::ControlFlow;

use super::carry;
use super::marks::{self, on_marks};
use crate::commit_id;
use crate::engine::{
    EachBody, EachRow, EngineError, JournalRows, RowError, Select, Sql, SqlRow, Value, values,
};
use crate::entries::Seal;
use crate::store::BatchRows;

/// The ids of every commit.
const EVERY_NODE: (i64, i64) = (0, i64::MAX);

/// Maximum number of rows that a statement on the journal returns.
const STEP: usize = 4096;

/// A statement that returns a step of the rows between two ids. For a whole node PostgreSQL would sort the rows on disk before it returns
/// the first row, since rows of several nodes are interleaved. For a few thousand rows PostgreSQL finds the rows by their key, in order.
macro_rules! step {
    ($columns:literal) => {
        step!($columns, "")
    };
    ($columns:literal, $direction:literal) => {
        concat!(
            "SELECT id, ",
            $columns,
            " FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id",
            $direction,
            " LIMIT 4096"
        )
    };
}
pub(crate) use step;

const BODIES: &str = step!("body");

const NEWEST_BODIES: &str = step!("body", " DESC");

const COMMITS: &str = step!("body, entries, sum_avail, sum_held, prev, hash, at");

const AFTER: &str = "SELECT id, body, entries, sum_avail, sum_held, prev, hash, at FROM journal
     WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3";

/// The order in which a `step!` returns rows.
#[derive(Clone, Copy)]
pub(crate) enum StepOrder {
    OldestFirst,
    NewestFirst,
}

/// Visits the rows of the journal between two ids by repeated runs of a `step!`, until `each` breaks.
pub(crate) fn each_step(
    connection: &dyn Sql,
    sql: &str,
    order: StepOrder,
    (mut first, mut last): (i64, i64),
    each: &mut EachRow<'_>,
) -> Result<(), RowError> {
    while first <= last {
        let (mut found, mut is_over) = (0, false);
        let mut reached = 0;
        connection.query(sql, values![first, last], &mut |row| {
            (found, reached) = (found + 1, row.get(0)?);
            let next = each(row)?;
            is_over = next.is_break();
            Ok(next)
        })?;
        if is_over || found < STEP {
            break;
        }
        match order {
            StepOrder::OldestFirst => first = reached + 1,
            StepOrder::NewestFirst => last = reached - 1,
        }
    }
    Ok(())
}

/// Visits bodies of the journal.
pub(crate) fn bodies(
    connection: &dyn Sql,
    which: JournalRows,
    each: &mut EachBody<'_>,
) -> Result<(), RowError> {
    carry::bodies(connection, which, each)?;
    match which {
        JournalRows::Carried => Ok(()),
        JournalRows::All => each_body_between(connection, EVERY_NODE, each),
        JournalRows::Posted => {
            let mut marks = Vec::new();
            marks::posted(connection, &mut |node, mark| {
                marks.push((commit_id::range(node).0, mark))
            })?;
            marks
                .into_iter()
                .try_for_each(|range| each_body_between(connection, range, each))
        }
        JournalRows::Unposted => each_body(connection, unposted_rows(connection), values![], each),
        JournalRows::OfNode(node) => each_body_between(connection, commit_id::range(node), each),
        JournalRows::UnpostedOfNode(node) => {
            let (first, last) = commit_id::range(node);
            let sql = on_marks!(
                connection,
                "SELECT id, body FROM journal WHERE id BETWEEN ?1 AND ?2 AND id > (SELECT posted FROM ",
                " WHERE id = ?3) ORDER BY id"
            );
            each_body(connection, sql, values![first, last, node], each)
        }
    }
}

/// Visits the bodies of a node, newest first, until `each` breaks.
pub(crate) fn newest_bodies(
    connection: &dyn Sql,
    node: i64,
    each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<(), RowError> {
    let (range, order) = (commit_id::range(node), StepOrder::NewestFirst);
    each_step(connection, NEWEST_BODIES, order, range, &mut |row| {
        Ok(each(row.get(1)?))
    })
}

/// Visits every commit: body and seal.
pub(crate) fn commits(
    connection: &dyn Sql,
    each: &mut dyn FnMut(BatchRows),
) -> Result<(), RowError> {
    each_step(
        connection,
        COMMITS,
        StepOrder::OldestFirst,
        EVERY_NODE,
        &mut |row| {
            each(any_batch_rows(row)?);
            Ok(ControlFlow::Continue(()))
        },
    )
}

/// The commits of a node after an id, in order, until `limit`.
pub(crate) fn commits_after(
    connection: &dyn Sql,
    node: i64,
    after: i64,
    limit: usize,
) -> Result<Vec<BatchRows>, RowError> {
    let (first, last) = commit_id::range(node);
    let after = after.max(first);
    connection.all(AFTER, values![after, last, limit], batch_rows)
}

/// The ids of all commits, in order.
pub(crate) fn commit_ids(connection: &dyn Sql) -> Result<Vec<i64>, RowError> {
    connection.all("SELECT id FROM journal ORDER BY id", values![], |row| {
        row.get(0)
    })
}

/// A commit.
pub(crate) fn commit(connection: &dyn Sql, id: i64) -> Result<Option<BatchRows>, RowError> {
    let sql =
        "SELECT id, body, entries, sum_avail, sum_held, prev, hash, at FROM journal WHERE id = ?1";
    connection.first(sql, values![id], batch_rows)
}

/// The hash of a node's last commit.
pub(crate) fn last_hash(connection: &dyn Sql, node: i64) -> Result<Option<[u8; 32]>, RowError> {
    let (first, last) = commit_id::range(node);
    let sql = "SELECT hash FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1";
    connection.first(sql, values![first, last], |row| row.get(0))
}

/// The number of the last commit of a run, 0 before the first.
pub(crate) fn last_number(connection: &dyn Sql, node: i64, epoch: i64) -> Result<i64, RowError> {
    let (first, last) = (
        commit_id::id(node, epoch, 0),
        commit_id::id(node, epoch + 1, 0) - 1,
    );
    let sql = "SELECT id FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1";
    let found = connection.first(sql, values![first, last], |row| row.get(0))?;
    Ok(found.map_or(0, |id| commit_id::numbers(id).2))
}

/// Removes the commits after an id, up to and including a later id of the node.
pub(crate) fn remove_commits(
    connection: &dyn Sql,
    after: i64,
    last: i64,
) -> Result<(), EngineError> {
    let sql = "DELETE FROM journal WHERE id > ?1 AND id <= ?2";
    connection.write(sql, values![after, last])
}

/// Every node's rows after the node's last posted row. The rows are in the order of the ids; the clause says so to avoid a sort.
fn unposted_rows(connection: &dyn Sql) -> &'static str {
    on_marks!(
        connection,
        "SELECT j.id, j.body FROM ",
        " n JOIN journal j ON j.id BETWEEN CASE WHEN n.posted >= (n.id << 56) THEN n.posted + 1 ELSE n.id << 56 END
            AND ((n.id << 56) | 72057594037927935) ORDER BY n.id, j.id"
    )
}

fn batch_rows(row: &dyn SqlRow) -> Result<BatchRows, RowError> {
    let (node, epoch, number) = commit_id::numbers(row.get(0)?);
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
        body: row.get(1)?,
    })
}

/// [`batch_rows`] for the verification of all seals. A damaged column becomes a default value: the commit does not match its seal, and the
/// rest of the journal is read.
fn any_batch_rows(row: &dyn SqlRow) -> Result<BatchRows, RowError> {
    fn or_default<T: Default>(read: Result<T, RowError>) -> Result<T, RowError> {
        match read {
            Err(RowError::Engine(error)) => Err(RowError::Engine(error)),
            read => Ok(read.unwrap_or_default()),
        }
    }
    let (node, epoch, number) = commit_id::numbers(row.get(0)?);
    Ok(BatchRows {
        seal: Seal {
            node,
            epoch,
            number,
            entries: or_default(row.get(2))?,
            sum_available: or_default(row.get(3))?,
            sum_held: or_default(row.get(4))?,
            previous: or_default(row.get(5))?,
            hash: or_default(row.get(6))?,
            at: or_default(row.get(7))?,
        },
        body: or_default(row.get(1))?,
    })
}

fn each_body(
    connection: &dyn Sql,
    sql: &str,
    values: &[Value<'_>],
    each: &mut EachBody<'_>,
) -> Result<(), RowError> {
    connection.query(sql, values, &mut |row| {
        each(row.get(0)?, row.get(1)?)?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Visits the bodies of the rows between two ids, in order.
fn each_body_between(
    connection: &dyn Sql,
    range: (i64, i64),
    each: &mut EachBody<'_>,
) -> Result<(), RowError> {
    each_step(
        connection,
        BODIES,
        StepOrder::OldestFirst,
        range,
        &mut |row| {
            each(row.get(0)?, row.get(1)?)?;
            Ok(ControlFlow::Continue(()))
        },
    )
}

#[cfg(test)]
mod tests {
    use tollgate_testing::Postgres;

    use super::*;
    use crate::sqlite;

    fn between(sql: &str, (first, last): (i64, i64)) -> String {
        let sql = sql.replace("?1", &first.to_string());
        sql.replace("?2", &last.to_string())
    }

    #[test]
    fn rows_are_read_without_a_sort_from_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (engine, _) = sqlite::new_engine(&folder.path().join("t.db"));
        let connection = &engine.connection;
        //   the query    its query plan
        for (sql, way) in [
            (
                unposted_rows(connection),
                "SEARCH j USING INTEGER PRIMARY KEY",
            ),
            (BODIES, "SEARCH journal USING INTEGER PRIMARY KEY"),
            (NEWEST_BODIES, "SEARCH journal USING INTEGER PRIMARY KEY"),
            (COMMITS, "SEARCH journal USING INTEGER PRIMARY KEY"),
        ] {
            let plan: Vec<String> = connection
                .all(
                    &format!("EXPLAIN QUERY PLAN {}", between(sql, (0, 9))),
                    values![],
                    |row| row.get(3),
                )
                .expect("a plan");
            assert!(plan.iter().any(|step| step.starts_with(way)), "{plan:#?}");
            let sorts = plan.iter().any(|step| step.contains("TEMP B-TREE"));
            assert!(!sorts, "`{sql}`: {plan:#?}");
        }
    }

    #[test]
    fn a_step_of_a_journal_whose_rows_lie_between_those_of_other_nodes_is_read_without_a_sort() {
        let server = Postgres::shared();
        let url = server.database();
        let name = url.rsplit('/').next().expect("a name");
        server.run(
            name,
            "CREATE TABLE journal (id BIGINT PRIMARY KEY, body BYTEA, entries INT, sum_avail INT, sum_held INT, prev INT, hash INT, at INT);
             INSERT INTO journal SELECT ((g % 3 + 16) << 56) + g, decode(repeat('ab', 200), 'hex') FROM generate_series(1::BIGINT, 100000) g;
             ANALYZE journal",
        );
        for sql in [BODIES, NEWEST_BODIES, COMMITS] {
            let explain = |sql: &str| {
                let sql = between(sql, commit_id::range(16));
                server.run(name, &format!("EXPLAIN {sql}"))
            };
            let plan = explain(sql);
            assert!(!plan.contains("Sort"), "{sql}: {plan}");
            let whole = explain(sql.split(" LIMIT").next().expect("a statement"));
            assert!(whole.contains("Sort"), "{sql}: {whole}");
        }
    }

    #[test]
    fn steps_visit_each_row_once_in_their_order_and_end_where_they_are_broken_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let (engine, _) = sqlite::new_engine(&folder.path().join("t.db"));
        let connection = &engine.connection;
        let rows = 2 * STEP + 1;
        let insert = format!(
            "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < {rows})
             INSERT INTO journal (id, body, entries, sum_avail, sum_held, prev, hash, at)
             SELECT id, zeroblob(1), 0, 0, 0, zeroblob(32), zeroblob(32), 0 FROM n"
        );
        connection.execute(&insert, ()).expect("rows");
        let visited = |sql: &str, order, range, max: usize| {
            let mut ids = Vec::new();
            let visit = &mut |row: &dyn SqlRow| {
                ids.push(row.get::<i64>(0)?);
                Ok(match ids.len() < max {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                })
            };
            each_step(connection, sql, order, range, visit).expect("a read");
            ids
        };
        let all: Vec<i64> = (1..).take(rows).collect();
        let (oldest, newest) = (StepOrder::OldestFirst, StepOrder::NewestFirst);
        let every = (0, i64::MAX);
        assert_eq!(visited(BODIES, oldest, every, usize::MAX), all);
        assert_eq!(visited(BODIES, oldest, (2, 3), usize::MAX), [2, 3]);
        let descending = visited(NEWEST_BODIES, newest, every, usize::MAX);
        assert!(descending.iter().rev().eq(&all));
        assert_eq!(visited(NEWEST_BODIES, newest, every, STEP).len(), STEP);
    }
}
