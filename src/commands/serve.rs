//! `tollgate serve` and `tollgate demo`.

use std::io::Write;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use super::{BAD, GOOD};
use crate::config::{Environment, Settings};
use crate::{Gateway, demo, telemetry};

/// Serves until somebody asks for an end, or the store fails.
pub(super) fn serve(settings: Settings) -> anyhow::Result<u8> {
    telemetry::diagnostics(&settings.telemetry)?;
    let gateway = Gateway::builder().start(settings)?;
    for address in gateway.addresses() {
        tracing::info!(address = %address.address, tls = address.tls, "listening");
    }
    tracing::info!(address = %gateway.admin_address(), "health and metrics");
    match gateway.run(stop()) {
        Ok(()) => Ok(GOOD),
        Err(failure) => {
            tracing::error!(message = %failure.message, "ended because the store failed");
            Ok(BAD)
        }
    }
}

/// Runs the demo until somebody asks for an end.
pub(super) fn demo(
    options: &demo::Options,
    environment: &Environment,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let mut out = out;
    demo::run(options, environment, stop(), &mut out)?;
    Ok(GOOD)
}

/// Ends when the process is asked to: by a terminal or a service manager.
async fn stop() {
    let asked = async {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        anyhow::Ok(())
    };
    if let Err(error) = asked.await {
        // Without signals there is no polite end; the process can still be killed, and recovers.
        tracing::error!(%error, "signals cannot be received");
        std::future::pending::<()>().await;
    }
}
