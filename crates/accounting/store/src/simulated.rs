//! The store's schema for the simulation of several nodes (`tollgate-simulation`).

use tollgate_simulation::Schema;

use crate::commit_id;
use crate::postgres::{OWN_COLUMNS, OWN_TABLES};
use crate::schema::{Dialect, SCHEMA};

const DIALECT: Dialect = Dialect {
    int: "INTEGER",
    bin: "BLOB",
    rows: "",
    keyed: "",
};

/// A database of the current schema, without nodes.
pub fn schema() -> Schema {
    let own = OWN_TABLES.replace("BIGINT PRIMARY KEY", "INTEGER PRIMARY KEY");
    let columns = OWN_COLUMNS.map(|(table, column, of_type)| {
        format!("ALTER TABLE {table} ADD COLUMN {column} {of_type}")
    });
    let version = format!(
        "INSERT OR REPLACE INTO meta (k, v) VALUES ('schema', '{SCHEMA}'), ('compatible', '{SCHEMA}')"
    );
    // The table of the lock that a start takes.
    let lock = String::from("CREATE TABLE schema_lock (id INTEGER PRIMARY KEY)");
    let tables = DIALECT.steps(0).chain([own]).chain(columns);
    Schema {
        tables: tables.chain([lock, version]).collect(),
        numbers: commit_id::numbers,
    }
}
