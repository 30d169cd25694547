//! Optimistic locking: rows with a version, each replaced only by its next version.

use rusqlite::{Connection, ToSql};

/// The statements of a table with a column `version`.
pub(crate) struct VersionedTable {
    /// The columns as a list for `SELECT`.
    pub(crate) columns: String,
    insert: String,
    update: String,
}

impl VersionedTable {
    /// A table with these columns, in the order of the values. `key` columns identify a row and are never updated; `counters` begin at zero,
    /// are updated by other statements, and come last in a `SELECT`.
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
                "INSERT INTO {table} ({columns}) VALUES ({})",
                values.join(", ")
            ),
            update: format!(
                "UPDATE {table} SET {} WHERE {} AND version = ?{version} - 1",
                assigned(others, ", "),
                assigned(keys, " AND ")
            ),
            columns,
        }
    }

    /// Inserts a row.
    pub(crate) fn insert(
        &self,
        connection: &Connection,
        values: &[&dyn ToSql],
    ) -> rusqlite::Result<()> {
        connection.prepare_cached(&self.insert)?.execute(values)?;
        Ok(())
    }

    /// Replaces the previous version of a row; `false` if it is not the stored one.
    pub(crate) fn update(
        &self,
        connection: &Connection,
        values: &[&dyn ToSql],
    ) -> rusqlite::Result<bool> {
        Ok(connection.prepare_cached(&self.update)?.execute(values)? > 0)
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
            "INSERT INTO t (id, owner, version, note, seen) VALUES (?1, ?2, ?3, ?4, 0)"
        );
        assert_eq!(
            table.update,
            "UPDATE t SET owner = ?2, version = ?3, note = ?4 WHERE id = ?1 AND version = ?3 - 1"
        );
    }
}
