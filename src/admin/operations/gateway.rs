//! The process of the running gateway, and the upgrade to a new process. The admin API has neither operation.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::operation::{Operation, Recorded, Run};
use crate::admin::changes::{ChangeError, panicked};
use crate::admin::running::Upgraded;
use crate::admin::service::not_running;

/// Shows the process behind the socket. After an upgrade, the credentials of the socket's peer still name the earlier process: the process
/// that called listen(2).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Show {}

/// The process behind the socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    /// The process id.
    pub(crate) process: u32,
    /// The release of the program.
    pub(crate) version: String,
    /// The settings file, without symbolic links. Missing while no gateway runs, and in answers of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) settings: Option<PathBuf>,
}

impl Operation for Show {
    type Output = Process;
    const NAME: &'static str = "gateway_show";
    const RESULT: &'static str = "gateway";
    const RECORDED: Recorded = Recorded::Never;

    async fn run(self, run: &Run<'_>) -> Result<Process, ChangeError> {
        let running = run.service.running.as_ref();
        Ok(Process {
            process: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: running.and_then(|running| running.settings().source.real_file()),
        })
    }
}

/// Starts a new process as the successor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upgrade {
    /// The program; by default the program of the running process.
    pub(crate) program: Option<PathBuf>,
}

impl Operation for Upgrade {
    type Output = Upgraded;
    const NAME: &'static str = "upgrade";
    const RESULT: &'static str = "upgraded";
    const RECORDED: Recorded = Recorded::AtBegin;
    /// Every step has a shorter limit.
    const TIMEOUT: Duration = Duration::from_secs(180);

    async fn run(self, run: &Run<'_>) -> Result<Upgraded, ChangeError> {
        let upgrade = run.service.upgrade.clone();
        let upgrade = upgrade.ok_or_else(not_running)?;
        let upgraded =
            tokio::task::spawn_blocking(move || upgrade.upgrade(self.program.as_deref()));
        let upgraded = upgraded.await.map_err(panicked)?;
        upgraded.map_err(ChangeError::conflict)
    }
}
