//! Data of the program that uses a connection: names in messages, the meaning of errors, a transport.

use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

use fallible_iterator::FallibleIterator as _;
use postgres_protocol::message::backend::ErrorFields;
use tollgate_sql::{EngineError, Fault};

use crate::url::DatabaseUrl;

/// A byte stream in place of a socket, for tests with a simulated network.
pub trait Transport: Read + Write + Send {
    /// Sets the time limit of a wait for data.
    fn limit(&self, limit: Duration);

    /// Waits at most `time` for data to read, or an error.
    fn is_readable_within(&self, time: Duration) -> bool;

    /// Whether the server has closed the connection.
    fn is_stale(&self) -> bool;
}

/// The result of [`Profile::connect`].
pub type Connected = Option<io::Result<Box<dyn Transport>>>;

/// The program that uses a connection.
#[derive(Clone, Copy)]
pub struct Profile {
    /// `application_name` of every session.
    pub application: &'static str,
    /// The schema with the tables of every statement.
    pub search_path: &'static str,
    /// The meaning of an error of the server.
    pub fault: fn(&ServerError) -> Fault,
    /// The remedy for an error of the server, appended to the error's text.
    pub remedy: fn(&ServerError) -> Option<&'static str>,
    /// The remedy for a server that asks for a password where no password is set.
    pub password_remedy: &'static str,
    /// The remedy for an address that leads to a standby.
    pub standby_remedy: &'static str,
    /// A transport of the program; `None` for a socket.
    pub connect: fn(&DatabaseUrl) -> Connected,
}

/// An error response (PostgreSQL, "Error and Notice Message Fields").
#[derive(Clone, Debug, Default)]
pub struct ServerError {
    /// The SQLSTATE.
    pub code: String,
    /// The primary message.
    pub message: String,
    /// The detail; empty without a detail.
    pub detail: String,
    remedy: Option<&'static str>,
}

impl std::error::Error for ServerError {}

impl fmt::Display for ServerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (SQLSTATE {})", self.message, self.code)?;
        if !self.detail.is_empty() {
            write!(out, ": {}", self.detail)?;
        }
        match self.remedy {
            Some(remedy) => write!(out, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl Profile {
    /// An error response as the error of an engine.
    pub(crate) fn error(&self, mut fields: ErrorFields<'_>) -> EngineError {
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
        error.remedy = (self.remedy)(&error);
        EngineError {
            fault: (self.fault)(&error),
            source: Box::new(error),
        }
    }
}

/// The profile of the tests of the crate.
#[cfg(test)]
pub(crate) static TESTS: Profile = Profile {
    application: "tests",
    search_path: "public",
    fault: |error| match error.code.as_str() {
        "23505" => Fault::Key,
        "53200" => Fault::Short,
        _ => Fault::Other,
    },
    remedy: |_| None,
    password_remedy: "",
    standby_remedy: "",
    connect: |_| None,
};
