//! `tollgate serve` and `tollgate demo`: run until a signal requests a stop.

use std::future::Future;
use std::io::Write;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::database_wait;
use super::exit_code::{FAILURE, SUCCESS};
use crate::admin::operations::operation::Operation;
use crate::admin::operations::{gateway, settings};
use crate::admin::{Actor, Changes};
use crate::config::{Environment, Settings};
use crate::gateway::{Predecessor, is_started_by_predecessor, service_manager};
use crate::{Gateway, GatewayBuilder, demo, telemetry};

/// Serves until a stop is requested, or the store fails.
pub(super) fn serve(
    builder: GatewayBuilder,
    environment: &Environment,
    settings: impl FnOnce() -> anyhow::Result<Settings>,
) -> anyhow::Result<u8> {
    let predecessor = Predecessor::of_process(is_started_by_predecessor(environment))?;
    let Some(predecessor) = predecessor else {
        return serve_after(builder, settings()?, None);
    };
    // Two handles of the connection, because the start consumes a handle.
    let report = predecessor.reporter()?;
    settings()
        .and_then(|settings| serve_after(builder, settings, Some(predecessor)))
        .inspect_err(|error| report(format!("{error:#}")))
}

fn serve_after(
    builder: GatewayBuilder,
    settings: Settings,
    predecessor: Option<Predecessor>,
) -> anyhow::Result<u8> {
    let _diagnostics = telemetry::diagnostics(&settings.telemetry)?;
    let signals = SignalHandler::default();
    let requests = stop_requests(Some(signals.clone()))?;
    let mut stop = Box::pin(requests.number(1));
    // A successor has the database with the store, and fails without: the earlier process goes on.
    if predecessor.is_none() && database_wait::wait(&settings.store, &mut stop)?.is_break() {
        return Ok(SUCCESS);
    }
    let gateway = builder.start_after(predecessor, settings)?;
    signals.acts_on(&gateway);
    for address in gateway.addresses() {
        tracing::info!(address = %address.address, tls = address.tls, "listening");
    }
    tracing::info!(address = %gateway.admin_address(), "listening for health and metrics");
    service_manager::ready(gateway.addresses().len());
    match gateway.run_until(stop, requests.number(2)) {
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
    // The demo belongs to a terminal and ends with the terminal.
    let stop = stop_requests(None)?.number(1);
    demo::run(builder, options, environment, stop, &mut out)?;
    Ok(SUCCESS)
}

/// The handler of SIGHUP and SIGUSR2. SIGHUP reopens log files and reloads the settings. SIGUSR2 replaces the process by a new process.
/// Before the gateway exists, a signal has no effect, because log files, settings and program are new.
#[derive(Clone, Default)]
struct SignalHandler {
    gateway: Arc<OnceLock<(Handle, Arc<dyn Changes>)>>,
}

impl SignalHandler {
    fn acts_on(&self, gateway: &Gateway) {
        // The process has a single gateway.
        let _ = self.gateway.set(gateway.changes());
    }

    fn reload(&self) {
        tracing::info!("received SIGHUP, reopening log files and reloading settings");
        self.apply("SIGHUP", settings::Reload {});
    }

    fn upgrade(&self) {
        tracing::info!("received SIGUSR2, starting a new process that takes over");
        self.apply("SIGUSR2", gateway::Upgrade { program: None });
    }

    /// Starts an operator's act. The act logs its result.
    fn apply<O: Operation>(&self, signal: &'static str, operation: O) {
        if let Some((runtime, changes)) = self.gateway.get().cloned() {
            let actor = Actor::Signal(signal);
            runtime.spawn(async move { drop(changes.perform(operation, actor.into()).await) });
        }
    }
}

/// Signals within this time after a counted signal are not counted. A terminal or a supervisor sends a signal to the two processes of an
/// upgrade, and the earlier process forwards its signal to the new process.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// How often a terminal or a service manager has requested a stop.
struct StopRequests(watch::Receiver<u32>);

impl StopRequests {
    /// Completes with the request of this number, from 1.
    fn number(&self, number: u32) -> impl Future<Output = ()> + use<> {
        let mut count = self.0.clone();
        async move {
            // Without the thread there is no graceful shutdown; the process can still be killed, and recovers.
            if count.wait_for(|count| *count >= number).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Handles signals from the return on, so that a signal during the start of the gateway does not abort the start. SIGHUP keeps its default
/// without a handler.
fn stop_requests(handler: Option<SignalHandler>) -> anyhow::Result<StopRequests> {
    let (ready, listening) = std::sync::mpsc::sync_channel(1);
    let (count, requests) = watch::channel(0);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || handle_signals(&ready, &count, handler))
        .context("cannot start a thread")?;
    listening.recv().context("the thread for signals ended")??;
    Ok(StopRequests(requests))
}

/// Waits for signals: counts the stop requests, and runs the handler for any other signal, during the drain of the gateway as well.
fn handle_signals(
    ready: &SyncSender<anyhow::Result<()>>,
    count: &watch::Sender<u32>,
    handler: Option<SignalHandler>,
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
                let mut others = match handler {
                    Some(handler) => Some(OtherSignals {
                        hangup: signal(SignalKind::hangup()).context("SIGHUP")?,
                        upgrade: signal(SignalKind::user_defined2()).context("SIGUSR2")?,
                        handler,
                    }),
                    None => None,
                };
                // The parent thread waits for the message.
                let _ = ready.send(Ok(()));
                let stops = async {
                    loop {
                        tokio::select! {
                            _ = terminate.recv() => {}
                            _ = interrupt.recv() => {}
                        }
                        count.send_modify(|count| *count += 1);
                        tokio::time::sleep(SAME_REQUEST).await;
                        let _ = terminate.recv().now_or_never();
                        let _ = interrupt.recv().now_or_never();
                    }
                };
                tokio::select! {
                    () = stops => {}
                    () = handle_others(others.as_mut()) => {}
                }
                anyhow::Ok(())
            })
        });
    if let Err(error) = handled {
        // Sent while the parent thread still waits, or without a receiver.
        let _ = ready.send(Err(error));
    }
}

/// The signals that do not request a stop.
struct OtherSignals {
    hangup: Signal,
    upgrade: Signal,
    handler: SignalHandler,
}

/// Runs the handler for each of the other signals. Does not end.
async fn handle_others(signals: Option<&mut OtherSignals>) {
    if let Some(signals) = signals {
        loop {
            tokio::select! {
                Some(()) = signals.hangup.recv() => signals.handler.reload(),
                Some(()) = signals.upgrade.recv() => signals.handler.upgrade(),
                else => break,
            }
        }
    }
    std::future::pending().await
}
