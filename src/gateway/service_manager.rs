//! Messages to the service manager (sd_notify(3)): ready, stopping, and the watchdog. No message is sent to a manager that did not ask for
//! messages.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::admin::Liveness;

/// The gateway serves.
pub(crate) fn ready(listeners: usize) {
    let status = format!("serving on {listeners} listeners");
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// The longest time in which the start of a service may wait without a message, and the time left to the start after the wait:
/// `TimeoutStartSec` of `systemd/tollgate.service`.
const START_MAX: Duration = Duration::from_secs(600);

/// Interval of messages during a waiting start, unless the watchdog expects messages earlier.
const WAIT_INTERVAL: Duration = Duration::from_secs(5);

/// The start waits for an unreachable database.
pub(crate) fn waiting(cause: &str) {
    let status = format!("waiting for the database: {cause}");
    notify(&[NotifyState::Status(&status)]);
}

/// The start goes on.
pub(crate) fn starting() {
    notify(&[NotifyState::Status("starting")]);
}

/// Keeps the service manager from ending a waiting start or a standby.
pub(crate) async fn report_wait() -> ! {
    let interval = watchdog_limit().map_or(WAIT_INTERVAL, |limit| WAIT_INTERVAL.min(limit / 2));
    let start = u32::try_from(START_MAX.as_micros()).unwrap_or(u32::MAX);
    loop {
        tokio::time::sleep(interval).await;
        notify(&[NotifyState::ExtendTimeoutUsec(start), NotifyState::Watchdog]);
    }
}

/// The process waits for the end of another gateway. The start is complete as far as the service manager is concerned.
pub(crate) fn standing_by() {
    notify(&[
        NotifyState::Ready,
        NotifyState::Status("standby: another gateway has the database"),
    ]);
}

/// The gateway takes no new connections, and waits for this many requests.
pub(super) fn stopping(open: usize) {
    let status = format!("draining: {open} requests are open");
    notify(&[NotifyState::Stopping, NotifyState::Status(&status)]);
}

/// Another process serves and is supervised in place of this process. systemd ignored the other process's earlier `WATCHDOG=1`.
pub(super) fn main_process(process: u32) {
    notify(&[NotifyState::MainPid(process), NotifyState::Watchdog]);
}

/// The time within which the service manager expects a message, or restarts the process.
pub(super) fn watchdog_limit() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Reports to the watchdog while every worker answers.
pub(super) async fn report_to_watchdog(limit: Duration, liveness: Liveness) {
    report(limit, liveness, || notify(&[NotifyState::Watchdog])).await;
}

async fn report(limit: Duration, liveness: Liveness, send: impl Fn()) {
    loop {
        let workers = liveness().await;
        if workers.unresponsive.is_empty() {
            send();
        } else {
            tracing::error!(
                workers = ?workers.unresponsive,
                ?limit,
                "not reporting to the watchdog: workers do not answer; the service manager restarts the gateway when the time is over"
            );
        }
        // Half of the limit, so that a late message causes no restart (sd_watchdog_enabled(3)).
        tokio::time::sleep(limit / 2).await;
    }
}

fn notify(messages: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(messages) {
        tracing::warn!(%error, "sending message to service manager failed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::sync::mpsc;

    use super::*;
    use crate::admin::Workers;

    #[tokio::test]
    async fn the_watchdog_hears_nothing_while_a_worker_does_not_answer() {
        let checks = Arc::new(AtomicUsize::new(0));
        let counted = checks.clone();
        let liveness: Liveness = Box::new(move || {
            let unresponsive = match counted.fetch_add(1, SeqCst) {
                0..3 => vec![1],
                _ => Vec::new(),
            };
            Box::pin(async move {
                Workers {
                    all: 2,
                    unresponsive,
                }
            })
        });
        let (sent, mut messages) = mpsc::unbounded_channel();
        let reporting = report(Duration::from_millis(2), liveness, move || {
            let _ = sent.send(checks.load(SeqCst));
        });
        let reporting = tokio::spawn(reporting);
        assert_eq!(messages.recv().await, Some(4), "the fourth check was good");
        assert_eq!(messages.recv().await, Some(5));
        reporting.abort();
    }
}
