//! The tables of this engine beside those of the common schema.

/// What this engine alone has. The marks of a node change with each posting and the row in `nodes` with each start: a commit locks the
/// latter against changes. `commits` is the number of the node's last transaction of several parts, by which the outcome of a lost `COMMIT`
/// is found. `feed` is the number of the last change that a node has read, 0 while it has not said so; `pruned` that of the last removed one.
pub(crate) const OWN_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS node_marks (
        id BIGINT PRIMARY KEY, posted BIGINT NOT NULL DEFAULT 0, days_posted BIGINT NOT NULL DEFAULT 0, commits BIGINT NOT NULL DEFAULT 0);
    CREATE TABLE IF NOT EXISTS leases (
        node BIGINT PRIMARY KEY, epoch BIGINT NOT NULL, held_until BIGINT NOT NULL, holder TEXT NOT NULL)";

/// Columns of tables that earlier releases have made: table, name and type.
pub(crate) const OWN_COLUMNS: [(&str, &str, &str); 2] = [
    ("leases", "feed", "BIGINT NOT NULL DEFAULT 0"),
    ("cluster", "pruned", "BIGINT NOT NULL DEFAULT 0"),
];
