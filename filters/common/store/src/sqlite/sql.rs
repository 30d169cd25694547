//! SQL on a connection to SQLite: prepared statements are cached by rusqlite, values are bound and read without a copy.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row, ToSql, params_from_iter};

use super::file;
use crate::engine::{
    Dialect, EachRow, EngineError, Epochs, KeySet, NewRun, RowError, Run, Sql, SqlRow, Value,
    WriteError,
};

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
    fn execute_each(
        &self,
        sql: &str,
        feed: &mut dyn FnMut(&mut Run<'_>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
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

/// A temporary table: SQLite keeps it in memory, and in a file when it is large.
impl KeySet for Connection {
    fn begin_set(&self) -> Result<(), RowError> {
        let sql = "CREATE TEMP TABLE key_set (key BLOB PRIMARY KEY) STRICT, WITHOUT ROWID";
        Ok(self.execute_batch(sql)?)
    }

    fn add_to_set(&self, key: &[u8]) -> Result<bool, RowError> {
        let sql = "INSERT OR IGNORE INTO temp.key_set (key) VALUES (?1)";
        Ok(self.prepare_cached(sql)?.execute([key])? == 1)
    }

    fn end_set(&self) -> Result<(), RowError> {
        Ok(self.execute_batch("DROP TABLE temp.key_set")?)
    }
}

impl Epochs for Connection {
    fn raise_epoch(&self, run: &NewRun<'_>) -> Result<i64, WriteError> {
        file::raise_epoch_within(self, run).map(|raised| raised.epoch)
    }
}
