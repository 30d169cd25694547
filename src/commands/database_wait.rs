//! A start that waits: for an unreachable database server, and as a standby for the end of the gateway with the database.

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Context as _;
use tollgate_clock::{Clock, Entropy};
use tollgate_store::OpenError;

use crate::config;
use crate::database::{self, Opener};
use crate::gateway::service_manager;
use crate::telemetry;

/// Interval at which a standby reads the lease of the database.
const LEASE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The pauses before the server is tried again: the first pause, doubled after every attempt, and the longest pause.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Waits until a start may open the database; breaks when a stop is requested meanwhile.
pub(super) fn wait(
    settings: &config::Store,
    stop: &mut (impl Future<Output = ()> + Unpin),
) -> anyhow::Result<ControlFlow<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot wait for the database")?;
    let ended = runtime.block_on(async {
        tokio::select! {
            () = stop => Ok(ControlFlow::Break(())),
            free = until_free(settings) => free.map(ControlFlow::Continue),
            never = service_manager::report_wait() => never,
        }
    });
    // An attempt under way lasts until the server answers.
    runtime.shutdown_background();
    ended
}

/// The reason of the wait.
#[derive(PartialEq, Eq)]
enum Wait {
    Server(String),
    Holder(String),
}

async fn until_free(settings: &config::Store) -> anyhow::Result<()> {
    let mut last = None;
    let mut retry = RETRY_FIRST;
    loop {
        let store = settings.clone();
        let checked = tokio::task::spawn_blocking(move || check(&store)).await;
        let found = match checked.context("checking the database panicked")? {
            Ok(holder) => holder.map(Wait::Holder),
            Err(error) if error.is_transient() => Some(Wait::Server(telemetry::chain(&error))),
            // The start gets an equal error, and reports the error.
            Err(_) => None,
        };
        let is_server = |wait: &Option<Wait>| matches!(wait, Some(Wait::Server(_)));
        if is_server(&last) && !is_server(&found) {
            tracing::info!(database = %database::name(settings), "reached the database");
            service_manager::starting();
        }
        let is_new = found != last;
        let pause = match &found {
            None => return Ok(()),
            Some(Wait::Server(cause)) => {
                if is_new {
                    tracing::warn!(%cause, "database cannot be reached, waiting for it");
                    service_manager::waiting(cause);
                }
                let pause = retry;
                retry = RETRY_MAX.min(2 * retry);
                pause
            }
            Some(Wait::Holder(holder)) => {
                if is_new {
                    tracing::info!(reason = %format_args!("{holder} has the database"), "standing by");
                    service_manager::standing_by();
                }
                retry = RETRY_FIRST;
                LEASE_POLL_INTERVAL
            }
        };
        last = found;
        tokio::time::sleep(pause).await;
    }
}

/// For a standby, the process that has the database. For another start, whether the server can be reached.
fn check(settings: &config::Store) -> Result<Option<String>, OpenError> {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let opener = Opener {
        name: "standby",
        clock: &clock,
        entropy: &entropy,
    };
    match settings.standby {
        true => database::holder(settings, &opener),
        false => database::reach(settings, &opener).map(|()| None),
    }
}
