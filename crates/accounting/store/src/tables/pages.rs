//! Statements on the pages of accounts' histories, and their rows.

use crate::engine::{
    EachPage, EngineError, Page, PageFeed, PageOrder, PageRange, RowError, Sql, Value, values,
};

/// Maximum number of pages that a statement returns: a list of the newest requests reads a few pages.
const STEP: usize = 64;

const NO_ORDER: &str = "SELECT account_id, id, at_min, at_max, body FROM postings
     WHERE account_id = ?1 AND at_max >= ?2 AND at_min < ?3";

/// Without the limit PostgreSQL reads and sorts all pages of the range, unaware that the caller stops after a few pages.
const NEWEST_FIRST: &str = "SELECT account_id, id, at_min, at_max, body FROM postings
     WHERE account_id = ?1 AND at_max >= ?2 AND at_min < ?3 AND (at_max, id) < (?4, ?5) ORDER BY at_max DESC, id DESC LIMIT 64";

const OLDEST_FIRST: &str = "SELECT account_id, id, at_min, at_max, body FROM postings
     WHERE account_id = ?1 AND at_max >= ?2 AND at_min < ?3 AND (at_max, id) > (?4, ?5) ORDER BY at_max, id LIMIT 64";

/// Visits pages of an account in an order, until `each` breaks.
pub(crate) fn of_account(
    connection: &dyn Sql,
    which: PageRange,
    each: &mut EachPage<'_>,
) -> Result<(), RowError> {
    let (sql, mut reached) = match which.order {
        PageOrder::None => {
            let range = values![which.account, which.from, which.to];
            return each_where(connection, NO_ORDER, range, each);
        }
        PageOrder::NewestFirst => (NEWEST_FIRST, (i64::MAX, i64::MAX)),
        PageOrder::OldestFirst => (OLDEST_FIRST, (i64::MIN, i64::MIN)),
    };
    loop {
        let (mut found, mut is_over) = (0, false);
        let (at, id) = reached;
        let range = values![which.account, which.from, which.to, at, id];
        each_where(connection, sql, range, &mut |page| {
            (found, reached) = (found + 1, (page.at_max.as_micros(), page.row));
            let next = each(page)?;
            is_over = next.is_break();
            Ok(next)
        })?;
        if is_over || found < STEP {
            return Ok(());
        }
    }
}

/// Visits every page.
pub(crate) fn all(connection: &dyn Sql, each: &mut EachPage<'_>) -> Result<(), RowError> {
    let sql = "SELECT account_id, id, at_min, at_max, body FROM postings";
    each_where(connection, sql, values![], each)
}

/// Inserts pages of postings, passed on by `feed`.
pub(crate) fn insert(connection: &dyn Sql, feed: &mut PageFeed<'_>) -> Result<(), EngineError> {
    let sql =
        "INSERT INTO postings (account_id, at_max, id, at_min, body) VALUES (?1, ?2, ?3, ?4, ?5)";
    connection.execute_rows(sql, &mut |run| {
        feed(&mut |page| {
            run(values![
                page.account,
                page.at_max,
                page.row,
                page.at_min,
                page.body
            ])
        })
    })
}

/// Visits pages, whose columns are account, row, times and body.
fn each_where(
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
    use std::ops::ControlFlow;

    use tollgate_clock::Timestamp;
    use tollgate_money::AccountId;
    use tollgate_testing::Postgres;

    use super::*;
    use crate::sqlite;

    const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);

    #[test]
    fn steps_visit_each_page_once_in_their_order_and_end_where_they_are_broken_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let (engine, _) = sqlite::new_engine(&folder.path().join("t.db"));
        let connection = &engine.connection;
        // Three pages per time, over several steps, and the pages of another account.
        let insert = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 200)
             INSERT INTO postings (account_id, at_max, id, at_min, body)
             SELECT a.id, n.id / 3, n.id, n.id / 3, x'00' FROM n, (SELECT ?1 AS id UNION ALL SELECT x'02') a";
        let rows = connection.execute(insert, [ACCOUNT.as_bytes()]);
        assert_eq!(rows.expect("rows"), 400);
        let visited = |order, max: usize| {
            let range = PageRange {
                account: ACCOUNT,
                from: Timestamp::from_micros(1),
                to: Timestamp::MAX,
                order,
            };
            let mut rows = Vec::new();
            of_account(connection, range, &mut |page| {
                rows.push(page.row);
                Ok(match rows.len() < max {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                })
            })
            .expect("a read");
            rows
        };
        let all: Vec<i64> = (3..=200).collect();
        assert_eq!(visited(PageOrder::OldestFirst, usize::MAX), all);
        let newest = visited(PageOrder::NewestFirst, usize::MAX);
        assert!(newest.iter().rev().eq(&all), "{newest:?}");
        assert_eq!(visited(PageOrder::NewestFirst, 64), newest[..64]);
        assert_eq!(visited(PageOrder::NewestFirst, 65), newest[..65]);
    }

    #[test]
    fn the_newest_pages_of_a_long_history_are_read_without_a_sort() {
        let server = Postgres::shared();
        let url = server.database();
        let name = url.rsplit('/').next().expect("a name");
        server.run(
            name,
            "CREATE TABLE postings (account_id INT, at_max BIGINT, id BIGINT, at_min BIGINT, body BYTEA, PRIMARY KEY (account_id, at_max, id));
             INSERT INTO postings SELECT g % 50, g, g, g, decode(repeat('ab', 400), 'hex') FROM generate_series(1, 50000) g; ANALYZE",
        );
        for sql in [NEWEST_FIRST, OLDEST_FIRST] {
            let mut sql = sql.to_owned();
            for (parameter, value) in [
                ("?1", "7"),
                ("?2", "0"),
                ("?3", "99999"),
                ("?4", "50000"),
                ("?5", "50000"),
            ] {
                sql = sql.replace(parameter, value);
            }
            let sql = sql.replace("> (50000, 50000)", "> (0, 0)");
            let plan = server.run(name, &format!("EXPLAIN {sql}"));
            assert!(!plan.contains("Sort"), "{sql}: {plan}");
            let whole = sql.split(" LIMIT").next().expect("a statement");
            let whole = server.run(name, &format!("EXPLAIN {whole}"));
            assert!(whole.contains("Sort"), "{whole}");
        }
    }
}
