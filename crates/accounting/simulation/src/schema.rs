//! The schema that a simulated database starts with.

/// The schema of the simulated database.
pub struct Schema {
    /// Statements that create the tables in an empty SQLite database. A table's integer key is the number of the row: locks are taken by
    /// the number.
    pub tables: Vec<String>,
    /// Node, epoch and number of the commit in a row of the table `journal`, from the id of the row.
    pub numbers: fn(i64) -> (i64, i64, i64),
}
