//! Statements of PostgreSQL translated to SQLite, and their locks.

/// A statement, in the words of SQLite.
pub(super) struct Translated {
    pub(super) kind: Kind,
    pub(super) tag: &'static str,
    pub(super) sql: String,
    pub(super) lock: Option<Lock>,
    pub(super) has_clock: bool,
    pub(super) is_savepoint: bool,
}

/// The row that a statement locks.
#[derive(Clone, Copy)]
pub(super) struct Lock {
    pub(super) table: &'static str,
    /// The parameter with the key; without a parameter the key is 1.
    pub(super) parameter: Option<usize>,
    pub(super) is_exclusive: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Begin,
    Commit,
    Rollback,
    /// Changes the session, or creates tables.
    Session,
    Read,
    Write,
}

const CLOCK: &str = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)";
const TABLES: &str =
    "information_schema.tables WHERE table_schema = current_schema() AND CAST(table_name AS TEXT)";

impl Translated {
    pub(super) fn of(sql: &str) -> Translated {
        let is_exclusive = sql.contains("FOR UPDATE");
        let place = match is_exclusive || sql.contains("FOR SHARE") {
            false => None,
            true if sql.contains("FROM nodes WHERE id = ?1") => Some(("nodes", Some(1))),
            true if sql.contains("FROM cluster WHERE id = 1") => Some(("cluster", None)),
            true => Some(("schema_lock", None)),
        };
        let text = sql
            .replace(CLOCK, "(SELECT us FROM server_clock)")
            .replace(TABLES, "sqlite_master WHERE name")
            .replace(
                "SELECT current_setting(?1, true)",
                "SELECT NULL WHERE ?1 <> ''",
            )
            .replace(" FOR SHARE", "")
            .replace(" FOR UPDATE", "")
            .replace("AS BYTEA", "AS BLOB")
            .replace("AS BIGINT", "AS INTEGER")
            .replace("greatest(", "max(")
            .replace("least(", "min(");
        let words: Vec<&str> = text.split_whitespace().take(3).collect();
        let (kind, tag) = match words[..] {
            ["BEGIN", ..] => (Kind::Begin, "BEGIN"),
            ["COMMIT", ..] => (Kind::Commit, "COMMIT"),
            ["ROLLBACK", "TO", ..] => (Kind::Write, "ROLLBACK"),
            ["ROLLBACK", ..] => (Kind::Rollback, "ROLLBACK"),
            ["SET", ..] => (Kind::Session, "SET"),
            ["CREATE", ..] => (Kind::Session, "CREATE TABLE"),
            ["SELECT", ..] => (Kind::Read, "SELECT"),
            ["SAVEPOINT", ..] => (Kind::Write, "SAVEPOINT"),
            ["RELEASE", ..] => (Kind::Write, "RELEASE"),
            ["DELETE", ..] => (Kind::Write, "DELETE"),
            ["INSERT", ..] => (Kind::Write, "INSERT 0"),
            ["WITH", ..] if text.contains("INSERT INTO") => (Kind::Write, "INSERT 0"),
            _ => (Kind::Write, "UPDATE"),
        };
        Translated {
            kind,
            tag,
            has_clock: sql.contains(CLOCK),
            is_savepoint: ["SAVEPOINT", "RELEASE", "ROLLBACK"].contains(&tag),
            lock: place.map(|(table, parameter)| Lock {
                table,
                parameter,
                is_exclusive,
            }),
            sql: text,
        }
    }
}
