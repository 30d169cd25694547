//! `tollgate serve` and `tollgate demo`.

use std::future::Future;
use std::io::Write;
use std::sync::mpsc::SyncSender;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::{BAD, GOOD};
use crate::config::{Environment, Settings};
use crate::{Gateway, demo, telemetry};

/// Serves until somebody asks for an end, or the store fails.
pub(super) fn serve(settings: Settings) -> anyhow::Result<u8> {
    telemetry::diagnostics(&settings.telemetry)?;
    let stop = stop()?;
    let gateway = Gateway::builder().start(settings)?;
    for address in gateway.addresses() {
        tracing::info!(address = %address.address, tls = address.tls, "listening");
    }
    tracing::info!(address = %gateway.admin_address(), "health and metrics");
    match gateway.run(stop) {
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
    demo::run(options, environment, stop()?, &mut out)?;
    Ok(GOOD)
}

/// Ends when the process is asked to: by a terminal or a service manager. Signals are heard from when this returns, so that one that
/// comes while the gateway starts is no abrupt end.
fn stop() -> anyhow::Result<impl Future<Output = ()>> {
    let (ready, listening) = std::sync::mpsc::sync_channel(1);
    let (ask, asked) = oneshot::channel();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || hear(&ready, ask))
        .context("cannot start a thread")?;
    listening.recv().context("the thread for signals ended")??;
    Ok(async {
        // Without the thread there is no polite end; the process can still be killed, and recovers.
        if asked.await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// Waits for a signal and passes it on.
fn hear(ready: &SyncSender<anyhow::Result<()>>, ask: oneshot::Sender<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let heard = runtime
        .context("cannot wait for signals")
        .and_then(|runtime| {
            runtime.block_on(async {
                let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
                let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
                // Whoever started this thread waits for it.
                let _ = ready.send(Ok(()));
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                anyhow::Ok(())
            })
        });
    match heard {
        // Nobody is there any more when the gateway has ended by itself.
        Ok(()) => drop(ask.send(())),
        Err(error) => drop(ready.send(Err(error))),
    }
}
