//! `tollgate serve` and `tollgate demo`: run until a signal requests a stop.

use std::future::Future;
use std::io::Write;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::exit_code::{FAILURE, SUCCESS};
use crate::config::{Environment, Settings};
use crate::gateway::{Reloader, service_manager};
use crate::{Gateway, GatewayBuilder, demo, telemetry};

/// Serves until a stop is requested, or the store fails.
pub(super) fn serve(builder: GatewayBuilder, settings: Settings) -> anyhow::Result<u8> {
    let _diagnostics = telemetry::diagnostics(&settings.telemetry)?;
    let hangup = HangupHandler::default();
    let stop = stop(Some(hangup.clone()))?;
    let gateway = builder.start(settings)?;
    hangup.acts_on(&gateway);
    for address in gateway.addresses() {
        tracing::info!(address = %address.address, tls = address.tls, "listening");
    }
    tracing::info!(address = %gateway.admin_address(), "listening for health and metrics");
    service_manager::ready(gateway.addresses().len());
    match gateway.run(stop) {
        Ok(()) => Ok(SUCCESS),
        // Logged when the store failed.
        Err(_) => Ok(FAILURE),
    }
}

/// Runs the demo until a stop is requested.
pub(super) fn demo(
    builder: GatewayBuilder,
    options: &demo::Options,
    environment: &Environment,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let mut out = out;
    // It belongs to a terminal and ends with it.
    demo::run(builder, options, environment, stop(None)?, &mut out)?;
    Ok(SUCCESS)
}

/// The handler of SIGHUP: log files are reopened, and the settings reloaded. Before the gateway exists it does nothing, since all are new
/// then.
#[derive(Clone, Default)]
struct HangupHandler {
    reloader: Arc<OnceLock<Arc<Reloader>>>,
}

impl HangupHandler {
    fn acts_on(&self, gateway: &Gateway) {
        // There is one gateway.
        let _ = self.reloader.set(gateway.reloader());
    }

    fn received(&self) {
        tracing::info!("received SIGHUP, reopening log files and reloading settings");
        let Some(reloader) = self.reloader.get().cloned() else {
            return;
        };
        // In a thread, as it waits for the disk. The result is logged.
        let reload = std::thread::Builder::new().name("reload".to_owned());
        if let Err(error) = reload.spawn(move || drop(reloader.reload())) {
            tracing::error!(%error, "reloading settings failed: no thread");
        }
    }
}

/// Completes when a terminal or a service manager requests a stop. Signals are handled from the return of this function, so that one that
/// arrives while the gateway starts does not abort it. SIGHUP keeps its default where it has no handler.
fn stop(hangup: Option<HangupHandler>) -> anyhow::Result<impl Future<Output = ()>> {
    let (ready, listening) = std::sync::mpsc::sync_channel(1);
    let (request_stop, stop_requested) = oneshot::channel();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || handle_signals(&ready, request_stop, hangup))
        .context("cannot start a thread")?;
    listening.recv().context("the thread for signals ended")??;
    Ok(async {
        // Without the thread there is no graceful shutdown; the process can still be killed, and recovers.
        if stop_requested.await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// Waits for signals: forwards the first stop request, and runs the handler for each SIGHUP, while the gateway drains as well.
fn handle_signals(
    ready: &SyncSender<anyhow::Result<()>>,
    request_stop: oneshot::Sender<()>,
    hangup: Option<HangupHandler>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let handled = runtime
        .context("cannot wait for signals")
        .and_then(|runtime| {
            runtime.block_on(async {
                let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
                let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
                let mut hangups = match hangup {
                    Some(hangup) => Some((signal(SignalKind::hangup()).context("SIGHUP")?, hangup)),
                    None => None,
                };
                // The parent thread waits for it.
                let _ = ready.send(Ok(()));
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = handle_hangups(hangups.as_mut()) => {}
                }
                // The gateway may have ended by itself.
                let _ = request_stop.send(());
                handle_hangups(hangups.as_mut()).await;
                anyhow::Ok(())
            })
        });
    if let Err(error) = handled {
        // Sent while the parent thread still waits, or without a receiver.
        let _ = ready.send(Err(error));
    }
}

/// Runs the handler for each SIGHUP. Does not end.
async fn handle_hangups(signals: Option<&mut (Signal, HangupHandler)>) {
    if let Some((signals, hangup)) = signals {
        while signals.recv().await.is_some() {
            hangup.received();
        }
    }
    std::future::pending().await
}
