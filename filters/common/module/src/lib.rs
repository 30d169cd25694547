#![doc = include_str!("../README.md")]

mod build;
mod route;
mod section;
mod services;

use std::fmt;

use tollgate_counters::Metric;

pub use build::{BackgroundTask, Build, BuildFilter, Built, Sweep};
pub use route::RouteContext;
pub use section::{CheckedSection, Declarations, Section, SectionType};
pub use services::{GATEWAY, Provided, Service, Services};

/// A part of the gateway that builds itself.
pub trait Module: Send + Sync {
    /// Its name in diagnostics.
    fn name(&self) -> &'static str;

    /// The names of the filters that it adds, for the check of the settings.
    fn filters(&self) -> &[&'static str] {
        &[]
    }

    /// The sections of the settings file that it reads.
    fn sections(&self) -> Vec<SectionType> {
        Vec::new()
    }

    /// The metrics that it adds, for the reference.
    fn metrics(&self) -> &'static [Metric] {
        &[]
    }

    /// Adds its services, filters, metrics and tasks to the gateway that is being built. Called once.
    ///
    /// # Errors
    ///
    /// A missing service, or settings that cannot be served.
    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError>;
}

/// Why a module, or a filter for a route, could not be built.
#[derive(Debug)]
pub struct BuildError(Cause);

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug)]
enum Cause {
    /// A message of ours, with what caused it.
    Message(String, Option<AnyError>),
    /// An error that already says what to do.
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
