//! Errors of units of work: parts that could not be written, and the meaning of an engine's error for a caller.

use crate::commit_id;
use crate::entries::DecodeError;
use crate::error::{Failure, ReadError, Refusal};
use tollgate_sql::{EngineError, Fault, RowError};

/// A row of the journal that cannot be decoded.
pub(crate) fn damaged_commit(id: i64) -> impl Fn(DecodeError) -> RowError {
    move |decode_error| {
        let (node, epoch, number) = commit_id::numbers(id);
        RowError::Damaged(format!(
            "commit {number} of node {node}, run {epoch} {decode_error}"
        ))
    }
}

/// The error of a read, for its caller.
pub(crate) trait Reading {
    /// Adds the noun of the read rows.
    fn reading(self, what: &'static str) -> ReadError;
}

impl Reading for RowError {
    fn reading(self, what: &'static str) -> ReadError {
        match self {
            RowError::Engine(error) => ReadError::Engine {
                what,
                source: error.source,
            },
            RowError::Unknown { what, value } => ReadError::Unknown { what, value },
            RowError::Damaged(problem) => ReadError::Damaged { what, problem },
        }
    }
}

/// Why a part could not be written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The data does not permit the write.
    Refused(Refusal),
    /// The engine failed.
    Engine(EngineError),
    /// A row that the write depends on could not be read.
    Row(RowError),
    /// A balance differs from the balance that decisions were based on.
    Inconsistent(String),
    /// The run has lost the store.
    Stopped(Failure),
}

impl WriteError {
    /// The fault reported by the engine, if any.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match self {
            WriteError::Engine(error) | WriteError::Row(RowError::Engine(error)) => {
                Some(error.fault)
            }
            _ => None,
        }
    }
}

impl From<EngineError> for WriteError {
    fn from(error: EngineError) -> WriteError {
        match error.fault {
            Fault::Unstorable => WriteError::Refused(Refusal::Invalid(
                "a text contains a NUL character, which the database cannot store",
            )),
            _ => WriteError::Engine(error),
        }
    }
}

impl From<RowError> for WriteError {
    fn from(error: RowError) -> WriteError {
        WriteError::Row(error)
    }
}
