//! Logs and metrics.
//!
//! One [`Telemetry`] for the process. The proxy calls [`Telemetry::record`] once for each exchange, when it has ended: one line for the
//! access log and a handful of counters, all of them found before the first request. Diagnostics (what went wrong, what was started)
//! go through `tracing` and are no part of a healthy request.

mod access;
mod diagnostics;
mod json;
mod metrics;
mod names;
mod process;
pub mod sources;
mod time;
mod writer;

use std::io::Write;
use std::sync::Arc;

use tollgate_filter::{Clock, Ending, Exchange, UpstreamFault};

pub(crate) use json::hex;

pub use diagnostics::{DiagnosticsError, diagnostics};
pub use metrics::{ConnectionGuard, Metrics, Page, Source};
pub use names::{Kind, METRICS, Metric};

use crate::config::{AccessLog, Settings};
use writer::LineWriter;

/// The access log and the metrics of one process. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    metrics: Metrics,
    log: Option<LineWriter>,
}

impl Telemetry {
    /// Telemetry as the settings want it.
    ///
    /// # Errors
    ///
    /// When the file of the access log cannot be opened.
    pub fn new(settings: &Settings, clock: Clock) -> std::io::Result<Telemetry> {
        let out: Option<Box<dyn Write + Send>> = match &settings.telemetry.access_log {
            AccessLog::None => None,
            AccessLog::Stdout => Some(Box::new(std::io::stdout())),
            AccessLog::File(path) => Some(Box::new(
                std::fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)?,
            )),
        };
        Ok(Telemetry::with_log(settings, clock, out))
    }

    /// Telemetry that writes its access log to `out`.
    pub fn with_log(
        settings: &Settings,
        clock: Clock,
        out: Option<Box<dyn Write + Send>>,
    ) -> Telemetry {
        let metrics = Metrics::new(settings);
        let log = out.map(|out| LineWriter::start(out, metrics.lines_dropped()));
        Telemetry {
            inner: Arc::new(Inner {
                clock,
                metrics,
                log,
            }),
        }
    }

    /// Counts and logs one exchange. To be called once for each, after its last byte, with the number of its route in
    /// [`Settings::routes`], or `None` when no route matched.
    pub fn record(&self, exchange: &Exchange, route: Option<usize>, ending: Ending) {
        let inner = &*self.inner;
        let now = inner.clock.elapsed();
        let took = now.saturating_sub(exchange.record.started);
        let times = metrics::Times::of(&exchange.record, took);
        inner.metrics.exchange(exchange, route, ending, &times);
        if let Some(log) = &inner.log {
            access::with_line(
                &access::Entry {
                    unix_micros: exchange.unix_micros_at(now, &inner.clock),
                    route: route.and_then(|at| inner.metrics.route_label(at)),
                    exchange,
                    ending,
                    times: &times,
                },
                |line| log.push(line),
            );
        }
    }

    /// Counts one call to a provider, named as in the settings, and how it ended.
    pub fn upstream_call(&self, provider: &str, result: Result<(), UpstreamFault>) {
        self.inner.metrics.upstream_call(provider, result);
    }

    /// Counts a connection for as long as the guard lives.
    pub fn connection(&self) -> ConnectionGuard {
        self.inner.metrics.connection()
    }

    /// Counts a connection that had to wait because there were too many.
    pub fn connection_waited(&self) {
        self.inner.metrics.connection_waited();
    }

    /// Counts a failure of a filter: it could not decide.
    pub fn filter_failed(&self, filter: &str) {
        self.inner.metrics.filter_failed(filter);
    }

    /// The metrics, to read them or to add a source.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Waits until everything logged so far is written. For the end of the process; blocks.
    pub fn flush(&self) {
        if let Some(log) = &self.inner.log {
            log.flush();
        }
    }
}

#[cfg(test)]
mod tests;
