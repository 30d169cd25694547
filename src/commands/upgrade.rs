//! `tollgate upgrade`: a new process in place of the running gateway.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::print;
use crate::admin::control::{Applied, Change};

/// Has the gateway start a new process that takes over.
pub(super) fn upgrade(
    program: Option<PathBuf>,
    json: bool,
    client: &ControlClient,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    // The gateway has another working directory.
    let program = program
        .map(std::path::absolute)
        .transpose()
        .context("cannot find the current folder")?;
    let Applied::Upgraded(upgraded) = client.query(&Change::Upgrade { program })? else {
        bail!(
            "the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway"
        );
    };
    if json {
        print::json(out, &upgraded)?;
        return Ok(SUCCESS);
    }
    writeln!(
        out,
        "process {} serves; the earlier one ends {} open requests",
        upgraded.process, upgraded.open
    )
    .context("cannot print")?;
    Ok(SUCCESS)
}
