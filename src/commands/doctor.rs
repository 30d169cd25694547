//! `tollgate doctor`: the findings of the checks of the machine and of other parties.

use std::io::Write;

use anyhow::Context as _;
use tollgate_clock::Clock;

use super::exit_code::{FAILURE, SUCCESS};
use super::output::Output;
use crate::config::{Report, Settings};
use crate::doctor::{self, Finding, Status};

/// Checks everything and prints the findings. The exit code is 1 if a check has failed.
pub(super) fn run(
    settings: Result<Settings, Report>,
    clock: &Clock,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let found = doctor::check(settings.map(Into::into), clock)
        .context("cannot start; is the limit of processes or files too low?")?;
    out.show(&found, |out| print_text(&found, out))?;
    let failed = found.iter().any(|one| one.status == Status::Failed);
    Ok(if failed { FAILURE } else { SUCCESS })
}

fn print_text(found: &[Finding], out: &mut dyn Write) -> anyhow::Result<()> {
    for finding in found {
        writeln!(out, "{finding}").context("cannot print")?;
    }
    let of = |status| found.iter().filter(|one| one.status == status).count();
    writeln!(
        out,
        "{} ok, {} warnings, {} failed, {} skipped",
        of(Status::Ok),
        of(Status::Warning),
        of(Status::Failed),
        of(Status::Skipped)
    )
    .context("cannot print")
}
