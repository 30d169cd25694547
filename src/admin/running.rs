//! The parts of a running gateway for the admin interface: health, settings and replacement.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use super::changes::ChangeError;
use crate::config::{Difference, Settings};

/// Readiness: whether clients should be routed to the gateway. Evaluated on every request.
pub type Readiness = Box<dyn Fn() -> Ready + Send + Sync>;

/// Liveness: the stuck workers. Evaluated on every request.
pub type Liveness = Box<dyn Fn() -> LivenessCheck + Send + Sync>;

/// A liveness check in progress.
pub type LivenessCheck = Pin<Box<dyn Future<Output = Workers> + Send>>;

/// The result of a liveness check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers {
    /// The number of workers.
    pub all: usize,
    /// The indices of the workers without an answer in time.
    pub unresponsive: Vec<usize>,
}

/// A value shown as JSON. Evaluated on every request.
pub type JsonSource = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// The settings of a running gateway.
pub trait RunningSettings: Send + Sync {
    /// Reads the settings file again and puts the whole file in force. After an error the earlier settings stay in force. Blocks.
    ///
    /// # Errors
    ///
    /// Unavailable while the database does not answer, or while an upgrade is under way. Otherwise a conflict: the content of the files is
    /// refused.
    fn reload(&self) -> Result<ReloadedSettings, ChangeError>;

    /// The differences between the settings file and the settings in force. The error is a text for the operator. Blocks.
    fn differences(&self) -> Result<Vec<Difference>, String>;

    /// The settings in force.
    fn settings(&self) -> Arc<Settings>;
}

/// Replacement of the gateway by a new process.
pub trait Upgrade: Send + Sync {
    /// Starts a program as the successor of the process, by default the program of the process. The error is a text for the operator.
    /// Blocks.
    fn upgrade(&self, program: Option<&Path>) -> Result<Upgraded, String>;
}

/// The result of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Upgraded {
    /// The id of the new process.
    pub process: u32,
    /// The number of open requests in the earlier process.
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
    /// Reasons why no client should be routed to the gateway; empty when ready.
    pub reasons: Vec<String>,
    /// Warnings for the operator, without effect on readiness.
    pub warnings: Vec<String>,
}
