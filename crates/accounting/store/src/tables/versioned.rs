//! Optimistic locking: rows with a version; a row is replaced only by its next version.

use super::changed;
use crate::engine::{Select, Sql, Value, WriteError};
use crate::error::Refusal;

/// The statements of a table with a column `version`.
pub(crate) struct VersionedTable {
    /// The columns as a list for `SELECT`.
    pub(crate) columns: String,
    insert: String,
    replace: String,
}

impl VersionedTable {
    /// A table with columns in the order of the values. `key` columns identify a row and are never updated. `counters` begin at zero, are
    /// updated by other statements, and come last in a `SELECT`.
    pub(crate) fn new(table: &str, columns: &str, key: &str, counters: &[&str]) -> VersionedTable {
        let columns: Vec<_> = columns.split(", ").collect();
        let key: Vec<_> = key.split(", ").collect();
        let numbered = || columns.iter().zip(1..);
        let (keys, others): (Vec<_>, Vec<_>) = numbered().partition(|(name, _)| key.contains(name));
        let assigned = |list: Vec<(&&str, usize)>, between: &str| {
            let each: Vec<_> = list
                .iter()
                .map(|(name, at)| format!("{name} = ?{at}"))
                .collect();
            each.join(between)
        };
        let version = numbered()
            .find(|(name, _)| **name == "version")
            .map_or(0, |(_, at)| at);
        let values: Vec<_> = numbered()
            .map(|(_, at)| format!("?{at}"))
            .chain(counters.iter().map(|_| "0".to_owned()))
            .collect();
        let columns = [&columns, counters].concat().join(", ");
        VersionedTable {
            insert: format!(
                "INSERT INTO {table} ({columns}) VALUES ({}) ON CONFLICT DO NOTHING",
                values.join(", ")
            ),
            replace: format!(
                "UPDATE {table} SET {} WHERE {} AND version + 1 = ?{version}",
                assigned(others, ", "),
                assigned(keys, " AND ")
            ),
            columns,
        }
    }

    /// Inserts a row; refused with `taken` if a stored row has a key of the row.
    pub(crate) fn insert(
        &self,
        connection: &dyn Sql,
        values: &[Value<'_>],
        taken: Refusal,
    ) -> Result<(), WriteError> {
        changed(connection.execute(&self.insert, values)?, || taken)
    }

    /// Replaces the previous version of a row; refused with `moved` if another version is stored, and with `taken` if another row has a key
    /// of the row.
    pub(crate) fn replace(
        &self,
        connection: &dyn Sql,
        values: &[Value<'_>],
        moved: Refusal,
        taken: Refusal,
    ) -> Result<(), WriteError> {
        match connection.execute_unique(&self.replace, values)? {
            None => Err(WriteError::Refused(taken)),
            Some(rows) => changed(rows, || moved),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_name_each_column_once_and_check_the_version() {
        let table = VersionedTable::new("t", "id, owner, version, note", "id", &["seen"]);
        assert_eq!(table.columns, "id, owner, version, note, seen");
        assert_eq!(
            table.insert,
            "INSERT INTO t (id, owner, version, note, seen) VALUES (?1, ?2, ?3, ?4, 0) ON CONFLICT DO NOTHING"
        );
        assert_eq!(
            table.replace,
            "UPDATE t SET owner = ?2, version = ?3, note = ?4 WHERE id = ?1 AND version + 1 = ?3"
        );
    }
}
