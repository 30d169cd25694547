//! `tollgate upgrade`: a new process in place of the running gateway.

use std::path::PathBuf;

use anyhow::Context as _;

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::Output;
use crate::admin::operations::gateway::Upgrade;

/// Has the gateway start a new process that takes over.
pub(super) fn upgrade(
    program: Option<PathBuf>,
    client: &ControlClient,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    // The gateway has another working directory.
    let program = program
        .map(std::path::absolute)
        .transpose()
        .context("cannot find the current folder")?;
    let upgraded = client.query(&Upgrade { program })?;
    let line = format_args!(
        "process {} serves; the earlier one ends {} open requests",
        upgraded.process, upgraded.open
    );
    out.line(&upgraded, line)?;
    Ok(SUCCESS)
}
