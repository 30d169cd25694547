//! The steps of the schema only add, and change nothing that an earlier release uses.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use super::file::DIALECT;
use crate::schema::COMPATIBLE_FROM;

/// The parts of a schema that a release's statements depend on. For each column: its type, whether an `INSERT` may omit the column, and
/// its place in the primary key. For each table, the restrictions of its rows: checks, unique indexes, triggers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Schema {
    columns: BTreeMap<(String, String), (String, bool, i64)>,
    restrictions: BTreeMap<String, BTreeSet<String>>,
}

impl Schema {
    fn of(connection: &Connection) -> Schema {
        let mut schema = Schema::default();
        let read = |sql: &str, each: &mut dyn FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<()>| {
            let mut statement = connection.prepare(sql).expect("a statement");
            let mut rows = statement.query([]).expect("rows");
            while let Some(row) = rows.next().expect("a row") {
                each(row).expect("its columns");
            }
        };
        let columns =
            "SELECT t.name, c.name, c.type, c.\"notnull\" = 0 OR c.dflt_value IS NOT NULL, c.pk
            FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'";
        read(columns, &mut |row| {
            let column = (row.get(0)?, row.get(1)?);
            let facts = (row.get(2)?, row.get(3)?, row.get(4)?);
            schema.columns.insert(column, facts);
            Ok(())
        });
        let restrictions = "SELECT tbl_name, type || ' ' || name FROM sqlite_master
            WHERE type = 'trigger' OR (type = 'index' AND sql LIKE '%UNIQUE%')
            UNION ALL SELECT name, 'checks ' || (length(sql) - length(replace(sql, 'CHECK', ''))) FROM sqlite_master WHERE type = 'table'";
        read(restrictions, &mut |row| {
            let table = schema.restrictions.entry(row.get(0)?).or_default();
            table.insert(row.get(1)?);
            Ok(())
        });
        schema
    }

    /// The differences for statements that know only the earlier schema.
    fn problems_after(&self, earlier: &Schema) -> Vec<String> {
        let mut problems = Vec::new();
        for (column, facts) in &earlier.columns {
            if self.columns.get(column) != Some(facts) {
                problems.push(format!("{column:?} was {facts:?}"));
            }
        }
        for (column, (_, may_be_left_out, _)) in &self.columns {
            let is_new = !earlier.columns.contains_key(column);
            if is_new && earlier.restrictions.contains_key(&column.0) && !may_be_left_out {
                problems.push(format!("{column:?} has no default"));
            }
        }
        for (table, known) in &earlier.restrictions {
            if self.restrictions.get(table) != Some(known) {
                problems.push(format!("the rows of `{table}` are restricted otherwise"));
            }
        }
        problems
    }
}

fn steps(
    connection: &Connection,
    statements: impl IntoIterator<Item = String>,
    from: usize,
) -> Vec<String> {
    let mut earlier = Schema::of(connection);
    let mut problems = Vec::new();
    for (at, step) in statements.into_iter().enumerate() {
        connection.execute_batch(&step).expect("the step runs");
        let next = Schema::of(connection);
        if at >= from {
            let found = next.problems_after(&earlier).into_iter();
            problems.extend(found.map(|problem| format!("step {}: {problem}", at + 1)));
        }
        earlier = next;
    }
    problems
}

/// A release runs on the schema of the next release: during an upgrade, and after a way back.
#[test]
fn no_step_changes_what_an_earlier_release_uses() {
    let connection = Connection::open_in_memory().expect("a database");
    let from = usize::try_from(COMPATIBLE_FROM).expect("a small number");
    let problems = steps(&connection, DIALECT.steps(0), from);
    assert_eq!(problems, Vec::<String>::new());
    for (step, problem) in [
        (
            "ALTER TABLE accounts DROP COLUMN rate_class",
            "\"rate_class\") was",
        ),
        (
            "ALTER TABLE accounts RENAME COLUMN rate_class TO kind",
            "\"rate_class\") was",
        ),
        ("DROP TABLE changes", "\"changes\""),
        ("ALTER TABLE holds RENAME TO reserved", "\"holds\""),
        (
            "CREATE UNIQUE INDEX other ON holds (amount)",
            "`holds` are restricted",
        ),
        (
            "CREATE TRIGGER other BEFORE INSERT ON holds BEGIN SELECT RAISE(ABORT, 'no'); END",
            "`holds` are restricted",
        ),
        (
            "CREATE TABLE other (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT, WITHOUT ROWID;
             ALTER TABLE holds ADD COLUMN other INTEGER CHECK (other > 0)",
            "`holds` are restricted",
        ),
    ] {
        connection
            .execute_batch("SAVEPOINT step")
            .expect("a savepoint");
        let found = steps(&connection, [step.to_owned()], 0).join("\n");
        assert!(found.contains(problem), "{step}: {found}");
        let undo = "ROLLBACK TO step; RELEASE step";
        connection.execute_batch(undo).expect("as before");
    }
}
