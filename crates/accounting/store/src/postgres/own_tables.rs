//! The tables of this engine beside the common schema.

/// Tables that only this engine has. The marks of a node change with each posting, and the row in `nodes` changes with each start. A
/// commit locks the row in `nodes` against changes. `commits` is the number of the node's last transaction of several parts: this number
/// reveals the outcome of a lost `COMMIT`. `feed` is the number of the last change that a node has read, 0 before the node's first
/// report. `pruned` is the number of the last removed change.
pub(crate) const OWN_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS node_marks (
        id BIGINT PRIMARY KEY, posted BIGINT NOT NULL DEFAULT 0, days_posted BIGINT NOT NULL DEFAULT 0, commits BIGINT NOT NULL DEFAULT 0);
    CREATE TABLE IF NOT EXISTS leases (
        node BIGINT PRIMARY KEY, epoch BIGINT NOT NULL, held_until BIGINT NOT NULL, holder TEXT NOT NULL)";

/// Columns added to tables of earlier releases: table, name and type.
pub(crate) const OWN_COLUMNS: [(&str, &str, &str); 2] = [
    ("leases", "feed", "BIGINT NOT NULL DEFAULT 0"),
    ("cluster", "pruned", "BIGINT NOT NULL DEFAULT 0"),
];
