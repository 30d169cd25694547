//! What a running gateway offers to the admin interface: its health, its settings and its replacement.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use super::changes::ChangeError;
use crate::config::{Difference, Settings};

/// Readiness: whether clients should be routed here, evaluated on each request.
pub type Readiness = Box<dyn Fn() -> Ready + Send + Sync>;

/// Liveness: which workers are stuck, evaluated on each request.
pub type Liveness = Box<dyn Fn() -> LivenessCheck + Send + Sync>;

/// A liveness check in progress.
pub type LivenessCheck = Pin<Box<dyn Future<Output = Workers> + Send>>;

/// The result of a liveness check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers {
    /// The number of workers.
    pub all: usize,
    /// The indices of those that did not answer in time.
    pub unresponsive: Vec<usize>,
}

/// A value shown as JSON, evaluated on each request.
pub type JsonSource = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// The settings of a running gateway.
pub trait RunningSettings: Send + Sync {
    /// Reads the settings file again and puts it in force, all or nothing. Blocks.
    ///
    /// # Errors
    ///
    /// Unavailable while the database does not answer or an upgrade is under way; else a conflict with what the files say.
    fn reload(&self) -> Result<ReloadedSettings, ChangeError>;

    /// What a reload would change; the error is for the operator. Blocks.
    fn differences(&self) -> Result<Vec<Difference>, String>;

    /// The settings in force.
    fn settings(&self) -> Arc<Settings>;
}

/// A gateway that can be replaced by a new process.
pub trait Upgrade: Send + Sync {
    /// Starts a program, by default that of this process, which takes over; the error is for the operator. Blocks.
    fn upgrade(&self, program: Option<&Path>) -> Result<Upgraded, String>;
}

/// The result of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Upgraded {
    /// The process that serves now.
    pub process: u32,
    /// The requests that the earlier process still serves.
    pub open: usize,
}

/// The settings after a reload.
#[derive(
    Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct ReloadedSettings {
    /// Their version: 1 at the start, and one more with each reload.
    pub version: u64,
    /// The first digits of a hash over the file and the variables that override it.
    pub digest: String,
    /// What has changed.
    pub changes: Vec<Difference>,
}

/// The content of `/ready`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Ready {
    /// Reasons why no client should be routed here; empty when ready.
    pub reasons: Vec<String>,
    /// Warnings for the operator that do not affect readiness.
    pub warnings: Vec<String>,
}
