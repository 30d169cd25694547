//! SQL on a connection to SQLite: prepared statements are cached by rusqlite, values are bound and read without a copy.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, Row, ToSql, params_from_iter};

use crate::error::{EngineError, Fault, RowError};
use crate::statement::{Dialect, EachRow, Feed, Sql};
use crate::value::{SqlRow, Value};

impl From<rusqlite::Error> for EngineError {
    fn from(error: rusqlite::Error) -> EngineError {
        let fault = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Fault::Busy,
            Some(ErrorCode::DiskFull) => Fault::Full,
            Some(ErrorCode::NotADatabase) => Fault::Foreign,
            Some(ErrorCode::DatabaseCorrupt) => Fault::Corrupt,
            Some(ErrorCode::ConstraintViolation) if is_key(&error) => Fault::Key,
            Some(ErrorCode::ConstraintViolation) => Fault::Constraint,
            _ => Fault::Other,
        };
        EngineError {
            fault,
            source: Box::new(error),
        }
    }
}

impl From<rusqlite::Error> for RowError {
    fn from(error: rusqlite::Error) -> RowError {
        RowError::Engine(error.into())
    }
}

/// Whether a violated constraint is a unique or primary key.
fn is_key(error: &rusqlite::Error) -> bool {
    use rusqlite::ffi::{
        SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_ROWID, SQLITE_CONSTRAINT_UNIQUE,
    };
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(
        code,
        Some(SQLITE_CONSTRAINT_PRIMARYKEY | SQLITE_CONSTRAINT_UNIQUE | SQLITE_CONSTRAINT_ROWID)
    )
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Value::Null => ValueRef::Null,
            Value::Integer(number) => ValueRef::Integer(number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl SqlRow for Row<'_> {
    fn value(&self, column: usize) -> Result<Value<'_>, EngineError> {
        let value = self.get_ref(column)?;
        Ok(match value {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => Value::Integer(number),
            ValueRef::Text(_) => Value::Text(value.as_str().map_err(rusqlite::Error::from)?),
            ValueRef::Blob(bytes) => Value::Bytes(bytes),
            ValueRef::Real(_) => {
                let name = String::from("a column");
                let found = value.data_type();
                return Err(rusqlite::Error::InvalidColumnType(column, name, found).into());
            }
        })
    }
}

impl Sql for Connection {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<usize, EngineError> {
        let mut statement = self.prepare_cached(sql)?;
        Ok(statement.execute(params_from_iter(values))?)
    }

    /// The statement is looked up once.
    fn execute_each(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        let mut statement = self.prepare_cached(sql)?;
        feed(&mut |values| {
            statement.execute(params_from_iter(values))?;
            Ok(())
        })
    }

    fn query(
        &self,
        sql: &str,
        values: &[Value<'_>],
        each: &mut EachRow<'_>,
    ) -> Result<(), RowError> {
        let mut statement = self.prepare_cached(sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            if each(row)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Select, values};

    fn table() -> Connection {
        let connection = Connection::open_in_memory().expect("a database");
        let sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT UNIQUE, body BLOB, CHECK (id > 0)) STRICT";
        connection.execute_batch(sql).expect("a table");
        connection
    }

    #[test]
    fn a_value_is_read_as_it_was_bound_and_one_of_another_type_is_named() {
        let connection = table();
        let insert = "INSERT INTO t (id, name, body) VALUES (?1, ?2, ?3)";
        let rows = [(1, Some("one"), Some(&b"1"[..])), (i64::MAX, None, None)];
        connection
            .execute_each(insert, &mut |run| {
                (rows.iter()).try_for_each(|(id, name, body)| run(values![id, name, body]))
            })
            .expect("two rows");
        let found = connection.all("SELECT id, name, body FROM t", values![], |row| {
            let name: Option<String> = row.get(1)?;
            Ok((row.get::<i64>(0)?, name, row.get::<Option<[u8; 1]>>(2)?))
        });
        let one = (1, Some(String::from("one")), Some(*b"1"));
        assert_eq!(found.expect("a read"), [one, (i64::MAX, None, None)]);
        let first = "SELECT name FROM t WHERE id = 1";
        match connection.first(first, values![], |row| row.get::<i64>(0)) {
            Err(RowError::Damaged(problem)) => {
                assert_eq!(problem, "a row has a text in place of a number");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_violated_key_changes_nothing_and_another_constraint_is_an_error() {
        let connection = table();
        let insert = "INSERT INTO t (id, name) VALUES (?1, ?2)";
        let write = |id: i64, name: &str| {
            let done = connection.execute_unique(insert, values![id, name]);
            done.map_err(|error| error.fault)
        };
        assert_eq!(write(1, "a"), Ok(Some(1)));
        assert_eq!(write(1, "b"), Ok(None), "the primary key");
        assert_eq!(write(2, "a"), Ok(None), "the unique name");
        assert_eq!(write(0, "c"), Err(Fault::Constraint));
        let count = connection.number("SELECT count(*) FROM t", values![]);
        assert_eq!(count.expect("a count"), 1);
    }

    #[test]
    fn a_statement_that_returns_rows_has_written_all_of_them_when_the_first_is_read() {
        let connection = table();
        let insert = "INSERT INTO t (id) VALUES (1), (2), (3) RETURNING id";
        let first = connection.first(insert, values![], |row| row.get::<i64>(0));
        assert_eq!(first.expect("a row"), Some(1));
        let count = connection.number("SELECT count(*) FROM t", values![]);
        assert_eq!(count.expect("a count"), 3);
    }
}
