//! Errors of an engine, and of rows that cannot be read.

use std::error::Error;
use std::fmt;

/// The meaning of an engine's error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another program has a lock.
    Busy,
    /// No space is left.
    Full,
    /// The data belongs to another engine.
    Foreign,
    /// The engine cannot read its own data.
    Corrupt,
    /// A unique or primary key of the schema is violated.
    Key,
    /// Another constraint of the schema is violated.
    Constraint,
    /// A value that the engine cannot store; nothing was sent to the engine.
    Unstorable,
    /// The connection was lost: whether the statement took effect is unknown.
    Lost,
    /// The engine has refused the statement for want of space, memory or another resource, or has not reached its disk. A later attempt may
    /// succeed.
    Short,
    /// The engine has undone the transaction, which can be run again: a deadlock, or a conflict with another transaction.
    Conflict,
    /// The engine does not store a sent value, and has undone the transaction.
    Value,
    /// A later run of the node has begun.
    Fenced,
    /// Anything else: the disk, the connection.
    Other,
}

impl Fault {
    /// Whether another attempt may succeed, now or later.
    pub fn passes(self) -> bool {
        matches!(self, Fault::Lost | Fault::Short | Fault::Conflict)
    }
}

/// An error reported by an engine.
#[derive(Debug)]
pub struct EngineError {
    pub fault: Fault,
    pub source: Box<dyn Error + Send + Sync>,
}

/// Why a row could not be read.
#[derive(Debug)]
pub enum RowError {
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
