//! Errors of the server: the meaning of their codes for the store and for the operator.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use tollgate_postgres::{Connected, DatabaseUrl, Profile, ServerError};

use crate::engine::{EngineError, Fault, RowError, WriteError};
use crate::error::{Failure, FailureKind, OpenError};

/// The meaning of a server error by its code or by its class, the first two characters (PostgreSQL, appendix A). The crate's README has
/// the store's action for each.
const FAULTS: [(&[&str], Fault); 7] = [
    (
        &["08", "25006", "25P03", "25P04", "40003", "57"],
        Fault::Lost,
    ),
    (&["53", "58000", "58030"], Fault::Short),
    (
        // 23502: a posting was sent behind a journal row that the server has refused. The row and the posting are repeated, in their
        // order.
        &["0A000", "23502", "26000", "40", "55006", "55P03", "72"],
        Fault::Conflict,
    ),
    (&["22", "54"], Fault::Value),
    (&["23505", "42710", "42P07"], Fault::Key),
    (&["23", "40002", "44"], Fault::Constraint),
    (&["XX001", "XX002"], Fault::Corrupt),
];

/// The fault of a SQLSTATE. A code precedes its class.
fn classify(code: &str) -> Fault {
    let named = |name: &str| FAULTS.iter().find(|(names, _)| names.contains(&name));
    let found = named(code).or_else(|| named(code.get(..2)?));
    found.map_or(Fault::Other, |(_, fault)| *fault)
}

/// The store's profile for its connections.
pub(super) static PROFILE: Profile = Profile {
    application: "tollgate",
    // No table of another schema precedes the store's tables, for any settings of the role or the database.
    search_path: "public",
    fault,
    remedy,
    password_remedy: "set `store.password_file` or `store.password_env`",
    standby_remedy: "`store.url` has to lead to the primary",
    connect,
};

fn connect(_url: &DatabaseUrl) -> Connected {
    #[cfg(feature = "simulation")]
    if let Some(socket) = tollgate_simulation::connect() {
        return Some(socket);
    }
    None
}

/// The remedy for an operator, where the server names no remedy.
fn remedy(error: &ServerError) -> Option<&'static str> {
    Some(match error.code.as_str() {
        // invalid_password
        "28P01" => "correct the password in `store.password_file` or `store.password_env`",
        // invalid_authorization_specification: no such role, or no line of pg_hba.conf
        "28000" => "create the role (`createuser --pwprompt USER`), or admit it in `pg_hba.conf`",
        // invalid_catalog_name
        "3D000" => {
            "create it as an administrator of the server: `createdb -O USER -T template0 -E UTF8 DATABASE`"
        }
        // insufficient_privilege; invalid_schema_name, if the user has no right to any schema
        "42501" | "3F000" => {
            "make the user the owner of the database: `ALTER DATABASE name OWNER TO user`"
        }
        // duplicate_table: this program makes its tables under a lock
        "42P07" => "the database has tables of another program; use one of its own",
        // too_many_connections
        "53300" => "raise `max_connections` of the server, or end what else is connected to it",
        _ => return None,
    })
}

fn fault(error: &ServerError) -> Fault {
    match error.code.as_str() {
        // not_null_violation of a commit's number, which fences the transaction
        "23502" if error.message.contains("commits") => Fault::Fenced,
        code => classify(code),
    }
}

/// The server's error inside an engine error, if any.
fn server_error(error: &EngineError) -> Option<&ServerError> {
    error.source.downcast_ref()
}

/// Whether a statement waited for a lock for longer than its limit: `lock_not_available`.
pub(super) fn is_locked(error: &EngineError) -> bool {
    server_error(error).is_some_and(|server| server.code == "55P03")
}

/// The error of a login that was to replace a lost connection. A refused login is retried like a lost connection. The role may be barred
/// for a while, or a reload of the settings may bring the role's new password.
pub(super) fn retry_login(mut error: EngineError) -> EngineError {
    if server_error(&error).is_some() {
        error.fault = Fault::Lost;
    }
    error
}

/// A copy of the error.
pub(super) fn copy(error: &EngineError) -> EngineError {
    EngineError {
        fault: error.fault,
        source: match server_error(error) {
            Some(server) => Box::new(server.clone()),
            None => error.source.to_string().into(),
        },
    }
}

/// Names for the messages of a failure.
pub(super) struct Names {
    pub(super) database: String,
    /// The name of a node that is one of several.
    pub(super) node: Option<String>,
}

/// Why the writer stops for good.
pub(super) fn failure(names: &Names, error: EngineError) -> Failure {
    // disk_full
    let is_full = server_error(&error).is_some_and(|server| server.code == "53100");
    let EngineError { fault, source } = error;
    let name = &names.database;
    let (kind, message) = match fault {
        Fault::Short if is_full => (
            FailureKind::DiskFull,
            format!(
                "the disk of `{name}` was full for too long; free space there and start again ({source})"
            ),
        ),
        Fault::Short => (
            FailureKind::Io,
            format!(
                "`{name}` was short of memory or another resource for too long, or did not reach its disk; see the log of the database, then start again ({source})"
            ),
        ),
        Fault::Corrupt | Fault::Foreign => (
            FailureKind::Damaged,
            format!("`{name}` is damaged; restore a backup ({source})"),
        ),
        Fault::Constraint | Fault::Key => (
            FailureKind::Inconsistent,
            format!(
                "the balances in `{name}` violate a constraint; run `tollgate audit` ({source})"
            ),
        ),
        Fault::Fenced => (
            FailureKind::Fenced,
            match &names.node {
                // The other nodes go on, and have the node's credit and holds.
                Some(node) => format!(
                    "node `{node}` of `{name}` was recovered by another gateway while it did not answer, or the database lacks commits that it had (a failover, a restore): {source}. It writes nothing more; start it again"
                ),
                None => format!(
                    "`{name}` was opened by a later run, or its journal was changed: {source}. This process writes nothing more. Leave one gateway on this database, run `tollgate audit`, and start again"
                ),
            },
        ),
        Fault::Lost => (
            FailureKind::Io,
            format!(
                "`{name}` could not be reached again in time; check the database and the network, then start again ({source})"
            ),
        ),
        _ => (
            FailureKind::Io,
            format!("could not write to `{name}`; see the log of the database ({source})"),
        ),
    };
    Failure {
        kind,
        message: Arc::from(message),
    }
}

/// Whether a connection that was lost, or could not be made, may be made later. Errors of TLS, of a certificate and of another protocol
/// are permanent, and so is a socket that this user may not use.
fn is_transient(error: &EngineError) -> bool {
    let found = error.source.downcast_ref::<io::Error>();
    !found.is_some_and(|error| {
        matches!(
            error.kind(),
            ErrorKind::InvalidData
                | ErrorKind::InvalidInput
                | ErrorKind::Other
                | ErrorKind::PermissionDenied
        )
    })
}

/// Why the store does not open.
pub(super) fn open_error(name: &str, action: &'static str, error: EngineError) -> OpenError {
    let path = PathBuf::from(name);
    match error.fault {
        Fault::Lost => OpenError::Unreachable {
            database: name.to_owned(),
            is_transient: is_transient(&error),
            source: error.source,
        },
        Fault::Short => OpenError::Short {
            database: name.to_owned(),
            source: error.source,
        },
        Fault::Corrupt => OpenError::Damaged {
            path,
            problem: String::from("is damaged"),
        },
        _ => OpenError::Engine {
            action,
            path,
            source: error.source,
        },
    }
}

/// [`open_error`], for a row that could not be read.
pub(super) fn row_open_error(name: &str, error: RowError) -> OpenError {
    let damaged = |problem: String| OpenError::Damaged {
        path: PathBuf::from(name),
        problem,
    };
    match error {
        RowError::Engine(error) => open_error(name, "read", error),
        RowError::Unknown { what, value } => {
            damaged(format!("has {what} of the unknown value `{value}`"))
        }
        RowError::Damaged(problem) => damaged(format!("is damaged: {problem}")),
    }
}

/// [`open_error`], for a row that could not be written.
pub(super) fn write_open_error(name: &str, error: WriteError) -> OpenError {
    let unbalanced = |problem| OpenError::Unbalanced {
        path: PathBuf::from(name),
        problem,
    };
    match error {
        // A balance that does not follow from the journal.
        WriteError::Engine(error) if matches!(error.fault, Fault::Constraint | Fault::Key) => {
            unbalanced(error.source.to_string())
        }
        WriteError::Engine(error) => open_error(name, "write", error),
        WriteError::Row(error) => row_open_error(name, error),
        WriteError::Inconsistent(problem) => unbalanced(problem),
        WriteError::Refused(refusal) => unbalanced(refusal.to_string()),
        WriteError::Stopped(failure) => OpenError::Stopped(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The classes of appendix A, and the classes of other servers with this protocol.
    const CLASSES: [&str; 44] = [
        "00", "01", "02", "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21",
        "22", "23", "24", "25", "26", "27", "28", "2B", "2D", "2F", "34", "38", "39", "3B", "3D",
        "3F", "40", "42", "44", "53", "54", "55", "57", "58", "72", "F0", "HV", "P0", "XX",
    ];

    /// The rows of the README's table: codes and classes, and the store's action.
    fn documented() -> Vec<(Vec<&'static str>, &'static str)> {
        let readme = include_str!("../../README.md");
        let (_, table) = readme
            .split_once("| SQLSTATE |")
            .expect("the table of the errors");
        let rows = table.lines().skip(2);
        let rows = rows.take_while(|line| line.starts_with('|')).map(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            (cells[1].split(", ").collect(), cells[3])
        });
        rows.collect()
    }

    /// The first words of the table's action for a fault.
    fn word(fault: Fault) -> &'static str {
        match fault {
            Fault::Lost | Fault::Short => "waits",
            Fault::Conflict => "tries again",
            Fault::Value => "refuses the unit",
            Fault::Key => "reads the row",
            _ => "ends the node",
        }
    }

    #[test]
    fn the_readme_has_what_each_sqlstate_means() {
        let rows = documented();
        let named: Vec<_> = rows.iter().flat_map(|(names, _)| names).copied().collect();
        for (names, fault) in FAULTS {
            for name in names {
                let row = rows.iter().find(|(names, _)| names.contains(name));
                let (_, does) = row.unwrap_or_else(|| panic!("{name} is not in the README"));
                assert!(does.starts_with(word(fault)), "{name}: {does}");
            }
        }
        for (names, does) in &rows {
            for name in names.iter().filter(|name| **name != "all others") {
                let code = format!("{name:0<5}");
                assert!(does.starts_with(word(classify(&code))), "{name}: {does}");
            }
        }
        for class in CLASSES.iter().filter(|class| !named.contains(class)) {
            assert_eq!(classify(&format!("{class}999")), Fault::Other, "{class}");
        }
        let (last, does) = rows.last().expect("a row");
        assert_eq!(
            (last.as_slice(), *does),
            (&["all others"][..], "ends the node")
        );
    }

    #[test]
    fn a_code_goes_before_its_class() {
        for (code, fault) in [
            ("40001", Fault::Conflict),
            ("40002", Fault::Constraint),
            ("40003", Fault::Lost),
            ("58030", Fault::Short),
            ("58P01", Fault::Other),
            ("23505", Fault::Key),
            ("23514", Fault::Constraint),
            ("XX000", Fault::Other),
            ("", Fault::Other),
            ("é", Fault::Other),
        ] {
            assert_eq!(classify(code), fault, "{code}");
        }
    }
}
