//! Mapping of SQLite's error codes to store errors.

use std::path::Path;
use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::error::{Failure, FailureKind, OpenError, ReadError};

/// Why the writer stops for good.
pub(crate) fn failure(path: &Path, error: &rusqlite::Error) -> Failure {
    let path = path.display();
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (
            FailureKind::DiskFull,
            format!(
                "the disk is full: no space is left for `{path}`; free disk space and start again ({error})"
            ),
        ),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (
            FailureKind::Damaged,
            format!("`{path}` is damaged; restore a backup ({error})"),
        ),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            FailureKind::Locked,
            format!(
                "`{path}` stayed locked by another program; close whatever has it open and start again ({error})"
            ),
        ),
        Some(ErrorCode::ConstraintViolation) => (
            FailureKind::Inconsistent,
            format!(
                "the balances in `{path}` violate a constraint; run `tollgate audit` ({error})"
            ),
        ),
        _ => (
            FailureKind::Io,
            format!("could not write `{path}`; check its disk, then start again ({error})"),
        ),
    };
    Failure {
        kind,
        message: Arc::from(message),
    }
}

/// Why the store does not open.
pub(crate) fn open_error(path: &Path, action: &'static str, error: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    let damaged = |problem: &str| OpenError::Damaged {
        path: path.clone(),
        problem: problem.to_owned(),
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Locked { path },
        Some(ErrorCode::NotADatabase) => damaged("is not a database"),
        Some(ErrorCode::DatabaseCorrupt) => damaged("is damaged"),
        _ => OpenError::Engine {
            action,
            path,
            source: Box::new(error),
        },
    }
}

/// Why a row could not be read.
#[derive(Debug)]
pub(crate) enum RowError {
    Sql(rusqlite::Error),
    Unknown {
        what: &'static str,
        value: String,
    },
    /// The cause, as a sentence without its full stop.
    Damaged(String),
}

impl From<rusqlite::Error> for RowError {
    fn from(error: rusqlite::Error) -> RowError {
        RowError::Sql(error)
    }
}

impl From<rusqlite::types::FromSqlError> for RowError {
    fn from(error: rusqlite::types::FromSqlError) -> RowError {
        RowError::Sql(error.into())
    }
}

impl RowError {
    pub(crate) fn reading(self, what: &'static str) -> ReadError {
        match self {
            RowError::Sql(error) => ReadError::Engine {
                what,
                source: Box::new(error),
            },
            RowError::Unknown { what, value } => ReadError::Unknown { what, value },
            RowError::Damaged(problem) => ReadError::Damaged { what, problem },
        }
    }

    /// The same while the store at `path` is opened.
    pub(crate) fn opening(self, path: &Path) -> OpenError {
        let damaged = |problem: String| OpenError::Damaged {
            path: path.to_owned(),
            problem,
        };
        match self {
            RowError::Sql(error) => open_error(path, "read", error),
            RowError::Unknown { what, value } => {
                damaged(format!("has {what} of the unknown value `{value}`"))
            }
            RowError::Damaged(problem) => damaged(format!("is damaged: {problem}")),
        }
    }
}
