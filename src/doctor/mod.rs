//! Checks of the machine, and of other parties named in the settings, for `tollgate doctor` and the admin API: beside a running gateway,
//! inside a gateway, or without a gateway.
//!
//! The checks run concurrently, each with a time limit. The checks change nothing: no lock of the store is taken, no money moves, and the
//! only data written is a file without a name in the folder of the database.

mod certificates;
mod checks;
mod finding;
mod listeners;
mod machine;
mod mcp;
mod network;
mod payments;
mod probe;
mod store;

use std::io;
use std::sync::Arc;

use tollgate_clock::Clock;

use crate::config::{Report, Settings};
use checks::Checks;
pub(crate) use finding::{Finding, Status};
use store::Running;

/// Checks everything; blocks for some seconds. The error is of the system: no thread can be started.
pub(crate) fn check(
    settings: Result<Arc<Settings>, Report>,
    clock: &Clock,
) -> io::Result<Vec<Finding>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let found = runtime.block_on(check_all(settings, clock));
    // A system call that does not return (a lookup, a disk that is gone) must not keep the caller.
    runtime.shutdown_background();
    Ok(found)
}

async fn check_all(settings: Result<Arc<Settings>, Report>, clock: &Clock) -> Vec<Finding> {
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
            for finding in self::settings(&settings, clock) {
                checks.known(finding);
            }
            let (running, gateway) = store::gateway(&settings).await;
            checks.known(gateway);
            machine::start(&mut checks, Some(&settings), running.process());
            if running == Running::None {
                listeners::start(&mut checks, &settings);
            }
            store::start(&mut checks, &settings);
            certificates::start(&mut checks, &settings);
            network::start(&mut checks, &settings);
            mcp::start(&mut checks, &settings);
            payments::start(&mut checks, &settings);
        }
    }
    checks.end().await
}

/// The settings, and every risk of the settings.
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
