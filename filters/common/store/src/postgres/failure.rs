//! Errors of the server: what their codes mean for the store, and what they mean for the operator.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use fallible_iterator::FallibleIterator as _;
use postgres_protocol::message::backend::ErrorFields;

use crate::engine::{EngineError, Fault, RowError, WriteError};
use crate::error::{Failure, FailureKind, OpenError};

/// An error response (PostgreSQL, "Error and Notice Message Fields").
#[derive(Debug, Default)]
pub(super) struct ServerError {
    code: String,
    message: String,
    detail: String,
}

impl std::error::Error for ServerError {}

impl fmt::Display for ServerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (SQLSTATE {})", self.message, self.code)?;
        if !self.detail.is_empty() {
            write!(out, ": {}", self.detail)?;
        }
        match self.remedy() {
            Some(remedy) => write!(out, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl ServerError {
    pub(super) fn from_fields(mut fields: ErrorFields<'_>) -> ServerError {
        let mut error = ServerError::default();
        while let Ok(Some(field)) = fields.next() {
            let value = || String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'C' => error.code = value(),
                b'M' => error.message = value(),
                b'D' => error.detail = value(),
                _ => {}
            }
        }
        error
    }

    /// What an operator does about it, where the server does not say.
    fn remedy(&self) -> Option<&'static str> {
        Some(match self.code.as_str() {
            // invalid_password
            "28P01" => "correct the password in `store.password_file` or `store.password_env`",
            // invalid_authorization_specification: no such role, or no line of pg_hba.conf
            "28000" => {
                "create the role (`createuser --pwprompt USER`), or admit it in `pg_hba.conf`"
            }
            // invalid_catalog_name
            "3D000" => {
                "create it as an administrator of the server: `createdb -O USER -T template0 -E UTF8 DATABASE`"
            }
            // insufficient_privilege; invalid_schema_name, where it has no right to any
            "42501" | "3F000" => {
                "make the user the owner of the database: `ALTER DATABASE name OWNER TO user`"
            }
            // duplicate_table: of this program they are made under a lock
            "42P07" => "the database has tables of another program; use one of its own",
            // too_many_connections
            "53300" => "raise `max_connections` of the server, or end what else is connected to it",
            _ => return None,
        })
    }

    /// What a code means (PostgreSQL, appendix A).
    fn fault(&self) -> Fault {
        match self.code.as_str() {
            // unique_violation; duplicate_table and duplicate_object, where two processes create one at once
            "23505" | "42P07" | "42710" => Fault::Key,
            // not_null_violation, of the number of a commit: what fences the transaction
            "23502" if self.message.contains("commits") => Fault::Fenced,
            code if code.starts_with("23") => Fault::Constraint,
            // disk_full
            "53100" => Fault::Full,
            // data_corrupted, index_corrupted
            "XX001" | "XX002" => Fault::Corrupt,
            // serialization_failure, deadlock_detected
            "40001" | "40P01" => Fault::Conflict,
            // The server shuts down, crashed, starts, or has no connection left.
            "57P01" | "57P02" | "57P03" | "53300" => Fault::Lost,
            // It has ended a session that was idle, in a transaction or not, or a transaction that took too long: of a node that was paused.
            "25P03" | "57P05" | "25P04" => Fault::Lost,
            // query_canceled, by an administrator or a limit: as after a lost connection, the store looks up whether it was committed.
            "57014" => Fault::Lost,
            // read_only_sql_transaction: the name leads to a standby, or to a server that is one since a failover.
            "25006" => Fault::Lost,
            code if code.starts_with("08") => Fault::Lost,
            _ => Fault::Other,
        }
    }
}

/// Whether a statement waited for a lock for longer than its limit: `lock_not_available`.
pub(super) fn is_locked(error: &EngineError) -> bool {
    let found = error.source.downcast_ref::<ServerError>();
    found.is_some_and(|server| server.code == "55P03")
}

/// An error of a login by which a lost connection was to be replaced: with a refused password it is tried again, as after the loss of one.
/// The role has another password, and a reload of the settings may bring it.
pub(super) fn retry_login(mut error: EngineError) -> EngineError {
    // invalid_password
    let found = error.source.downcast_ref::<ServerError>();
    if found.is_some_and(|server| server.code == "28P01") {
        error.fault = Fault::Lost;
    }
    error
}

impl From<ServerError> for EngineError {
    fn from(error: ServerError) -> EngineError {
        EngineError {
            fault: error.fault(),
            source: Box::new(error),
        }
    }
}

/// What the messages of a failure name.
pub(super) struct Names {
    pub(super) database: String,
    /// The name of a node that is one of several.
    pub(super) node: Option<String>,
}

/// Why the writer stops for good.
pub(super) fn failure(names: &Names, error: EngineError) -> Failure {
    let EngineError { fault, source } = error;
    let name = &names.database;
    let (kind, message) = match fault {
        Fault::Full => (
            FailureKind::DiskFull,
            format!("the disk of `{name}` is full; free space there and start again ({source})"),
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
                // The others go on, and have what it had.
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

/// Whether a connection that was lost, or could not be made, may be made later. The errors of TLS, of a certificate and of another protocol stay,
/// and so does a socket that this user may not use.
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

/// The same, where a row could not be read.
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

/// The same, where a row could not be written.
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
