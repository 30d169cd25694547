//! The size of the database.

use crate::engine::{Dialect, RowError, Select, Sql, values};
use crate::store::StoreSize;

/// The size of the database.
pub(crate) fn size(connection: &dyn Sql) -> Result<StoreSize, RowError> {
    let sql = match connection.dialect() {
        Dialect::Sqlite => {
            "SELECT page_count * page_size, freelist_count * page_size FROM pragma_page_count, pragma_page_size, pragma_freelist_count"
        }
        Dialect::Postgres => "SELECT pg_database_size(current_database()), CAST(0 AS BIGINT)",
    };
    let found = connection.first(sql, values![], |row| {
        Ok(StoreSize {
            bytes: row.get(0)?,
            free_bytes: row.get(1)?,
        })
    })?;
    Ok(found.unwrap_or_default())
}
