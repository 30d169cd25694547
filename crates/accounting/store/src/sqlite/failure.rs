//! Mapping of faults to the errors that name the file.

use std::path::Path;
use std::sync::Arc;

use crate::engine::{EngineError, Fault, RowError, WriteError};
use crate::error::{Failure, FailureKind, OpenError};

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> WriteError {
        WriteError::Engine(error.into())
    }
}

/// Why the writer stops for good.
pub(crate) fn failure(path: &Path, error: impl Into<EngineError>) -> Failure {
    let EngineError { fault, source } = error.into();
    let path = path.display();
    let (kind, message) = match fault {
        Fault::Full => (
            FailureKind::DiskFull,
            format!(
                "the disk is full: no space is left for `{path}`; free disk space and start again ({source})"
            ),
        ),
        Fault::Corrupt | Fault::Foreign => (
            FailureKind::Damaged,
            format!("`{path}` is damaged; restore a backup ({source})"),
        ),
        Fault::Busy => (
            FailureKind::Locked,
            format!(
                "`{path}` stayed locked by another program; close whatever has it open and start again ({source})"
            ),
        ),
        Fault::Constraint | Fault::Key => (
            FailureKind::Inconsistent,
            format!(
                "the balances in `{path}` violate a constraint; run `tollgate audit` ({source})"
            ),
        ),
        _ => (
            FailureKind::Io,
            format!("could not write `{path}`; check its disk, then start again ({source})"),
        ),
    };
    Failure {
        kind,
        message: Arc::from(message),
    }
}

/// Why the store does not open.
pub(crate) fn open_error(
    path: &Path,
    action: &'static str,
    error: impl Into<EngineError>,
) -> OpenError {
    let EngineError { fault, source } = error.into();
    let path = path.to_owned();
    let damaged = |problem: &str| OpenError::Damaged {
        path: path.clone(),
        problem: problem.to_owned(),
    };
    match fault {
        Fault::Busy => OpenError::Locked { path },
        Fault::Foreign => damaged("is not a database"),
        Fault::Corrupt => damaged("is damaged"),
        _ => OpenError::Engine {
            action,
            path,
            source,
        },
    }
}

/// Why the store at `path` does not open, where a row could not be read.
pub(crate) fn row_open_error(path: &Path, error: RowError) -> OpenError {
    let damaged = |problem: String| OpenError::Damaged {
        path: path.to_owned(),
        problem,
    };
    match error {
        RowError::Engine(error) => open_error(path, "read", error),
        RowError::Unknown { what, value } => {
            damaged(format!("has {what} of the unknown value `{value}`"))
        }
        RowError::Damaged(problem) => damaged(format!("is damaged: {problem}")),
    }
}

/// Why the store at `path` does not open, where a row could not be written.
pub(crate) fn write_open_error(path: &Path, error: WriteError) -> OpenError {
    let unbalanced = |problem| OpenError::Unbalanced {
        path: path.to_owned(),
        problem,
    };
    match error {
        // A balance that does not follow from the journal.
        WriteError::Engine(error) if matches!(error.fault, Fault::Constraint | Fault::Key) => {
            unbalanced(error.source.to_string())
        }
        WriteError::Engine(error) => open_error(path, "write", error),
        WriteError::Row(error) => row_open_error(path, error),
        WriteError::Inconsistent(problem) => unbalanced(problem),
        WriteError::Refused(refusal) => unbalanced(refusal.to_string()),
        WriteError::Stopped(failure) => OpenError::Stopped(failure),
    }
}
