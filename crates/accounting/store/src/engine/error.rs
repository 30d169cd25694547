//! Errors at the boundary to an engine: what it reported, rows that could not be read, parts that could not be written.

use std::error::Error;
use std::fmt;

use crate::commit_id;
use crate::entries::DecodeError;
use crate::error::{Failure, ReadError, Refusal};

/// What an engine's error code means for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another program has a lock.
    Busy,
    /// No space is left.
    Full,
    /// The data is not of this engine.
    Foreign,
    /// The engine cannot read its own data.
    Corrupt,
    /// A unique or primary key of the schema is violated.
    Key,
    /// Another constraint of the schema is violated.
    Constraint,
    /// A value that the engine cannot store; nothing was sent to it.
    Unstorable,
    /// The connection was lost: whether the statement took effect is unknown.
    Lost,
    /// The engine has refused the statement for want of room, memory or another resource, or has not reached its disk. It may accept it later.
    Short,
    /// The engine has undone the transaction, which can be run again: a deadlock, or a conflict with another transaction.
    Conflict,
    /// The engine does not store a value that it was sent, and has undone the transaction.
    Value,
    /// A later run of the node has begun.
    Fenced,
    /// Anything else: the disk, the connection.
    Other,
}

impl Fault {
    /// Whether another attempt may succeed, now or later.
    pub(crate) fn passes(self) -> bool {
        matches!(self, Fault::Lost | Fault::Short | Fault::Conflict)
    }
}

/// An error that an engine reported.
#[derive(Debug)]
pub(crate) struct EngineError {
    pub(crate) fault: Fault,
    pub(crate) source: Box<dyn Error + Send + Sync>,
}

/// Why a row could not be read.
#[derive(Debug)]
pub(crate) enum RowError {
    Engine(EngineError),
    Unknown {
        what: &'static str,
        value: String,
    },
    /// The cause, as a sentence without its full stop.
    Damaged(String),
}

impl fmt::Display for RowError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowError::Engine(error) => write!(out, "{}", error.source),
            RowError::Unknown { what, value } => {
                write!(out, "{what} has the unknown value `{value}`")
            }
            RowError::Damaged(problem) => write!(out, "the database is damaged: {problem}"),
        }
    }
}

impl From<EngineError> for RowError {
    fn from(error: EngineError) -> RowError {
        RowError::Engine(error)
    }
}

impl RowError {
    /// A row of the journal that cannot be decoded.
    pub(crate) fn of_commit(id: i64) -> impl Fn(DecodeError) -> RowError {
        move |decode_error| {
            let (node, epoch, number) = commit_id::numbers(id);
            RowError::Damaged(format!(
                "commit {number} of node {node}, run {epoch} {decode_error}"
            ))
        }
    }

    /// The same for the caller of a read.
    pub(crate) fn reading(self, what: &'static str) -> ReadError {
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
    /// The data does not permit it.
    Refused(Refusal),
    /// The engine failed.
    Engine(EngineError),
    /// A row that the write depends on could not be read.
    Row(RowError),
    /// A balance differs from the one that decisions were based on.
    Inconsistent(String),
    /// This run has lost the store.
    Stopped(Failure),
}

impl WriteError {
    /// What the engine has reported, if it has.
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
