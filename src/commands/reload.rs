//! `tollgate reload` and `tollgate settings diff`: the settings file and the running gateway.

use std::io::Write;

use anyhow::{Context as _, bail};

use super::control_client::ControlClient;
use super::exit_code::{FAILURE, SUCCESS};
use super::print;
use crate::admin::control::{Applied, Change};

const UNEXPECTED: &str = "the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway";

/// Has the gateway read its settings again.
pub(super) fn reload(
    json: bool,
    client: &ControlClient,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let Applied::Reloaded(settings) = client.query(&Change::SettingsReload {})? else {
        bail!(UNEXPECTED);
    };
    if json {
        print::json(out, &settings)?;
        return Ok(SUCCESS);
    }
    for change in &settings.changes {
        writeln!(out, "{change}").context("cannot print")?;
    }
    let (version, digest) = (settings.version, settings.digest);
    writeln!(
        out,
        "version {version} of the settings is in force ({digest})"
    )
    .context("cannot print")?;
    Ok(SUCCESS)
}

/// Shows what a reload would change.
pub(super) fn diff(json: bool, client: &ControlClient, out: &mut dyn Write) -> anyhow::Result<u8> {
    let Applied::Differences { differences } = client.query(&Change::SettingsDiff {})? else {
        bail!(UNEXPECTED);
    };
    if json {
        print::json(out, &differences)?;
    } else {
        for difference in &differences {
            writeln!(out, "{difference}").context("cannot print")?;
        }
    }
    let restart = differences.iter().any(|one| one.needs_restart);
    Ok(if restart { FAILURE } else { SUCCESS })
}
