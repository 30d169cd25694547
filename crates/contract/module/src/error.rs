//! The error of a module, or of a filter, that cannot be built.

use std::fmt;

/// Why a module, or a filter for a route, could not be built.
#[derive(Debug)]
pub struct BuildError(Cause);

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug)]
enum Cause {
    /// A message of the module, with its cause.
    Message(String, Option<AnyError>),
    /// An error that already names the remedy.
    Other(AnyError),
}

impl BuildError {
    /// An error with a message for the operator: the mistake and its remedy.
    pub fn new(message: impl Into<String>) -> BuildError {
        BuildError(Cause::Message(message.into(), None))
    }

    /// An error with a message for the operator, and its cause.
    pub fn caused_by(message: impl Into<String>, cause: impl Into<AnyError>) -> BuildError {
        BuildError(Cause::Message(message.into(), Some(cause.into())))
    }

    /// An error whose own message is for the operator.
    pub fn of(error: impl Into<AnyError>) -> BuildError {
        BuildError(Cause::Other(error.into()))
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Message(message, _) => f.write_str(message),
            Cause::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Cause::Message(_, cause) => cause.as_deref().map(|cause| cause as _),
            Cause::Other(error) => error.source(),
        }
    }
}
