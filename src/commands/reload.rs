//! `tollgate reload` and `tollgate settings diff`: the settings file and the running gateway.

use anyhow::Context as _;

use super::control_client::ControlClient;
use super::exit_code::{FAILURE, SUCCESS};
use super::output::Output;
use crate::admin::operations::settings::{Diff, Reload};

/// Has the gateway read its settings again.
pub(super) fn reload(client: &ControlClient, out: &mut Output<'_>) -> anyhow::Result<u8> {
    let file = client.gateways_file()?;
    let settings = client.query(&Reload {})?;
    out.show(&settings, |out| {
        for change in &settings.changes {
            writeln!(out, "{change}").context("cannot print")?;
        }
        let (version, digest) = (&settings.version, &settings.digest);
        writeln!(
            out,
            "version {version} of the settings is in force ({digest}), from {}",
            file.display()
        )
        .context("cannot print")
    })?;
    Ok(SUCCESS)
}

/// Shows the effect of a reload.
pub(super) fn diff(client: &ControlClient, out: &mut Output<'_>) -> anyhow::Result<u8> {
    let file = client.gateways_file()?;
    let differences = client.query(&Diff {})?.differences;
    out.show(&differences, |out| {
        for difference in &differences {
            writeln!(out, "{difference}").context("cannot print")?;
        }
        match differences.is_empty() {
            true => writeln!(
                out,
                "no differences between {} and the settings in force",
                file.display()
            )
            .context("cannot print"),
            false => Ok(()),
        }
    })?;
    let restart = differences.iter().any(|one| one.needs_restart);
    Ok(if restart { FAILURE } else { SUCCESS })
}
