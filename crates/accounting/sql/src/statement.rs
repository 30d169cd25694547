//! Statements on one connection, and ways to run a query.

use std::ops::ControlFlow;

use crate::error::{EngineError, Fault, RowError};
use crate::value::{SqlRow, Value};

/// Receives the rows of a query until the callback breaks.
pub type EachRow<'e> = dyn FnMut(&dyn SqlRow) -> Result<ControlFlow<()>, RowError> + 'e;

/// Runs a statement with further values.
pub type Run<'r> = dyn FnMut(&[Value<'_>]) -> Result<(), EngineError> + 'r;

/// Passes on every list of values for a statement.
pub type Feed<'f> = dyn FnMut(&mut Run<'_>) -> Result<(), EngineError> + 'f;

/// The engine of a statement, where engines need different texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    /// PostgreSQL, and every server of its protocol.
    Postgres,
}

/// A connection. A statement is prepared once per text and kept.
pub trait Sql {
    /// The engine's few differences.
    fn dialect(&self) -> Dialect;

    /// Runs a statement without a result; returns the number of changed rows.
    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<usize, EngineError>;

    /// Runs a statement that only must not fail. An engine may send the statement with the next statement whose result is needed, and
    /// reports the failure at the later statement.
    fn write(&self, sql: &str, values: &[Value<'_>]) -> Result<(), EngineError> {
        self.execute_each(sql, &mut |run| run(values))
    }

    /// Runs a statement for every list of values that `feed` passes on. An engine may send the runs together, and with later statements as
    /// in [`write`](Self::write).
    fn execute_each(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        feed(&mut |values| self.execute(sql, values).map(|_| ()))
    }

    /// Runs a statement on one row of `VALUES (?1, ?2, ...)` for every list of values. An engine may write many rows at once: no two rows
    /// may have equal keys.
    fn execute_rows(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        self.execute_each(sql, feed)
    }

    /// Visits the rows of a query as they arrive, until `each` breaks. Rows are not collected: a result may be larger than memory. A
    /// statement that writes and returns rows has written everything before the visit of its first row.
    fn query(
        &self,
        sql: &str,
        values: &[Value<'_>],
        each: &mut EachRow<'_>,
    ) -> Result<(), RowError>;
}

/// Ways to run a query.
pub trait Select: Sql {
    /// Visits the rows of a query, converted.
    fn each<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        mut read: impl FnMut(&dyn SqlRow) -> Result<T, RowError>,
        each: &mut dyn FnMut(T),
    ) -> Result<(), RowError> {
        self.query(sql, values, &mut |row| {
            each(read(row)?);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The rows of a query, converted.
    fn all<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        read: impl FnMut(&dyn SqlRow) -> Result<T, RowError>,
    ) -> Result<Vec<T>, RowError> {
        let mut found = Vec::new();
        self.each(sql, values, read, &mut |row| found.push(row))?;
        Ok(found)
    }

    /// The first row of a query, converted.
    fn first<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        mut read: impl FnMut(&dyn SqlRow) -> Result<T, RowError>,
    ) -> Result<Option<T>, RowError> {
        let mut found = None;
        self.query(sql, values, &mut |row| {
            found = Some(read(row)?);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// The number in a query's only row and column; 0 without a row.
    fn number(&self, sql: &str, values: &[Value<'_>]) -> Result<i64, RowError> {
        let found = self.first(sql, values, |row| row.get(0))?;
        Ok(found.unwrap_or(0))
    }

    /// Whether a query has a row.
    fn exists(&self, sql: &str, values: &[Value<'_>]) -> Result<bool, RowError> {
        let mut found = false;
        self.query(sql, values, &mut |_| {
            found = true;
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// Runs a statement that may violate a unique key; on a violation nothing changes, and the result is `None`. An insert should use `ON
    /// CONFLICT DO NOTHING`, which needs no savepoint.
    fn execute_unique(
        &self,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Option<usize>, EngineError> {
        let has_savepoint = self.dialect() == Dialect::Postgres;
        if has_savepoint {
            self.execute("SAVEPOINT one_statement", &[])?;
        }
        let done = match self.execute(sql, values) {
            Ok(changed) => Some(changed),
            Err(error) if error.fault == Fault::Key => None,
            Err(error) => return Err(error),
        };
        if has_savepoint {
            if done.is_none() {
                self.execute("ROLLBACK TO one_statement", &[])?;
            }
            self.execute("RELEASE one_statement", &[])?;
        }
        Ok(done)
    }
}

impl<C: Sql + ?Sized> Select for C {}
