//! `tollgate doctor`: checks of the machine, and of the other parties that the settings name, beside a running gateway or without one.
//!
//! The checks run at the same time, each with a time limit of its own. They change nothing: no lock of the store is taken, no money moves, and
//! the only data written is a file without a name in the folder of the database.

mod certificates;
mod checks;
mod finding;
mod machine;
mod network;
mod payments;
mod probe;
mod store;

use std::io::Write;
use std::sync::Arc;

use anyhow::Context as _;
use tollgate_clock::Clock;

use super::exit_code::{FAILURE, SUCCESS};
use super::output::Output;
use crate::config::{Report, Settings};
use checks::Checks;
use finding::{Finding, Status};

/// Checks everything and prints the findings. The exit code is 1 if a check has failed.
pub(super) fn run(
    settings: Result<Settings, Report>,
    clock: &Clock,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start; is the limit of processes or files too low?")?;
    let found = runtime.block_on(check(settings, clock));
    // A system call that does not return (a lookup, a disk that is gone) must not keep the command.
    runtime.shutdown_background();
    out.show(&found, |out| print_text(&found, out))?;
    let failed = found.iter().any(|one| one.status == Status::Failed);
    Ok(if failed { FAILURE } else { SUCCESS })
}

async fn check(settings: Result<Settings, Report>, clock: &Clock) -> Vec<Finding> {
    let mut checks = Checks::new(clock);
    match settings {
        Err(report) => {
            let problem = format!("invalid: {report}");
            checks.known(
                Finding::failed("settings", problem)
                    .remedy("correct them; until then what they name cannot be checked"),
            );
            machine::start(&mut checks, None, None);
        }
        Ok(settings) => {
            let settings = Arc::new(settings);
            for finding in self::settings(&settings, clock) {
                checks.known(finding);
            }
            let (process, gateway) = store::gateway(&settings).await;
            checks.known(gateway);
            machine::start(&mut checks, Some(&settings), process);
            store::start(&mut checks, &settings);
            certificates::start(&mut checks, &settings);
            network::start(&mut checks, &settings);
            payments::start(&mut checks, &settings);
        }
    }
    checks.end().await
}

/// The settings, and each of their risks.
fn settings(settings: &Settings, clock: &Clock) -> Vec<Finding> {
    let mut found = vec![Finding::ok("settings", "valid")];
    let expiring = settings.expiring_certificates(clock.now());
    found.extend(settings.warnings().into_iter().chain(expiring).map(|one| {
        let name = format!("settings {}", one.key);
        Finding::warning(name, one.message.to_string())
    }));
    found.extend(certificates::of_files(settings, clock.now()));
    found
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
