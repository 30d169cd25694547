//! Logs, metrics and traces.
//!
//! A process has a single [`Telemetry`]. The proxy calls [`Telemetry::record`] once for each completed exchange. A record writes a line of
//! the access log and updates a handful of counters. The counters are resolved before the first request. Diagnostics (errors, starts and
//! stops) go through `tracing`, and a healthy request causes no diagnostics. Each log has a separate writer thread. Only this thread waits
//! for the disk or the reader of a pipe (`writer`).

mod access;
mod address;
mod collector;
mod diagnostics;
mod event_limit;
mod json;
mod log_file;
mod metrics;
mod models;
pub(crate) mod names;
mod process;
pub mod sources;
mod traces;
mod writer;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{Ending, Exchange, Forward, UpstreamFault};

pub(crate) use json::hex;

pub use diagnostics::{Diagnostics, DiagnosticsError, diagnostics};
pub(crate) use diagnostics::{print_error, report_suppressed, set_level};
pub use metrics::{ClosedConnection, ConnectionGuard, ConnectionSide, Metrics, ProxyProtocolFault};
#[cfg(test)]
pub(crate) use names::METRICS;
pub(crate) use names::{SETTINGS_RELOADS, SETTINGS_VERSION};
pub(crate) use process::accept_queue_max;
pub(crate) use traces::{AttemptFailure, AttemptSpan, PreparedTraces, Trace};

use crate::config::{AccessLog, Provider, Settings};
use address::LoggedAddress;
use log_file::{LogFile, Output};
use traces::{Ended, Traces};
use writer::{FINAL_FLUSH, LineWriter, LogOptions};

/// The name of the access log in metrics and diagnostics.
const ACCESS: &str = "access";
/// Buffer size of the access log in bytes: some ten thousand lines.
const ACCESS_BYTES_MAX: usize = 4 << 20;
/// How long lines of the access log are batched: a write for each line would cost more than the line.
const ACCESS_LINGER: Duration = Duration::from_millis(50);

/// An error and its causes in a sentence.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The access log and the metrics of one process. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    inner: Arc<TelemetryState>,
}

struct TelemetryState {
    clock: Clock,
    metrics: Metrics,
    log: Option<LineWriter>,
    access_sample: access::AccessSample,
    /// Set once there is a collector, at the start or by a reload.
    traces: Arc<OnceLock<Traces>>,
    addresses: LoggedAddress,
}

impl Telemetry {
    /// Telemetry built from the settings.
    ///
    /// # Errors
    ///
    /// When the file of the access log cannot be opened, the connection to the collector cannot be set up, or the system provides no
    /// thread.
    pub fn new(settings: &Settings, clock: Clock) -> io::Result<Telemetry> {
        let output: Option<Box<dyn Output>> = match &settings.telemetry.access_log {
            AccessLog::None => None,
            AccessLog::Stdout => {
                // A separate handle: a writer with the standard library's handle holds the library's lock while the writer is blocked.
                let own = File::from(io::stdout().as_fd().try_clone_to_owned()?);
                let out: Box<dyn Write + Send> = Box::new(own);
                Some(Box::new(out))
            }
            AccessLog::File(path) => Some(Box::new(LogFile::open(path)?)),
        };
        Telemetry::with_output(settings, clock, output)
    }

    /// Telemetry that writes the access log to `out`.
    ///
    /// # Errors
    ///
    /// When the system provides no writer thread.
    pub fn with_log(
        settings: &Settings,
        clock: Clock,
        out: Option<Box<dyn Write + Send>>,
    ) -> io::Result<Telemetry> {
        let output = out.map(|out| Box::new(out) as Box<dyn Output>);
        Telemetry::with_output(settings, clock, output)
    }

    fn with_output(
        settings: &Settings,
        clock: Clock,
        output: Option<Box<dyn Output>>,
    ) -> io::Result<Telemetry> {
        let metrics = Metrics::new(settings);
        metrics.add_source(process::source(clock.now()));
        let dropped = Arc::<AtomicU64>::default();
        let log = output.map(|output| {
            let options = LogOptions {
                log: ACCESS,
                waiting_bytes_max: ACCESS_BYTES_MAX,
                linger: ACCESS_LINGER,
                dropped: dropped.clone(),
                clock: clock.clone(),
            };
            LineWriter::start(options, output)
        });
        let log = log.transpose()?;
        metrics.add_source(Box::new(move |samples| {
            samples.numbers(
                names::LINES_DROPPED,
                [
                    (ACCESS, dropped.load(Relaxed)),
                    (diagnostics::LOG, diagnostics::dropped()),
                ],
            );
            diagnostics::show(samples);
        }));
        let entropy = Entropy::system();
        let otlp = settings.telemetry.otlp.as_ref();
        let traces = Arc::new(OnceLock::new());
        PreparedTraces::of(otlp, None, &clock)?.apply(&traces);
        let shown = traces.clone();
        metrics.add_source(Box::new(move |samples| match shown.get() {
            Some(traces) => traces.show(samples),
            None => traces::show_none(samples),
        }));
        Ok(Telemetry {
            inner: Arc::new(TelemetryState {
                access_sample: access::AccessSample::of(settings.telemetry.access_sample),
                clock,
                metrics,
                log,
                traces,
                addresses: LoggedAddress::new(settings.telemetry.client_address, &entropy),
            }),
        })
    }

    /// Prepares another export of traces, or its end.
    ///
    /// # Errors
    ///
    /// When the connection to the collector cannot be set up, or the system provides no thread.
    pub(crate) fn prepare_traces(&self, settings: &Settings) -> io::Result<PreparedTraces> {
        let inner = &*self.inner;
        let otlp = settings.telemetry.otlp.as_ref();
        PreparedTraces::of(otlp, inner.traces.get(), &inner.clock)
    }

    /// Puts a prepared export of traces in force.
    pub(crate) fn replace_traces(&self, new: PreparedTraces) {
        new.apply(&self.inner.traces);
    }

    /// Starts the trace of a request, if traces are exported and the request is sampled.
    #[inline]
    pub(crate) fn begin_trace(&self, exchange: &mut Exchange) {
        if let Some(traces) = self.inner.traces.get() {
            traces.begin(exchange);
        }
    }

    /// The span of an attempt at a provider that starts now, if the request is traced. `model` is the model's name at the provider.
    #[inline]
    pub(crate) fn attempt_span(
        &self,
        exchange: &Exchange,
        provider: &Arc<Provider>,
        model: &str,
    ) -> Option<Box<AttemptSpan>> {
        self.inner.traces.get()?;
        let trace = exchange.get::<Arc<Trace>>()?;
        let forward = exchange.get::<Forward>()?;
        let call = (forward.api, forward.stream);
        let span = AttemptSpan::start(trace.clone(), provider.clone(), model, call);
        Some(Box::new(span))
    }

    /// Counts and logs an exchange. The caller calls once for each exchange, after the last byte, with the index of the route
    /// ([`Telemetry::route`]), or `None` when no route matched.
    pub fn record(&self, exchange: &Exchange, route: Option<usize>, ending: Ending) {
        let inner = &*self.inner;
        let now = inner.clock.elapsed();
        let took = now.saturating_sub(exchange.record.started);
        let times = metrics::Times::of(&exchange.record, took);
        let names = inner.metrics.names();
        inner
            .metrics
            .exchange(&names, exchange, route, ending, &times);
        let traces = inner.traces.get();
        let trace = traces.and_then(|_| exchange.get::<Arc<Trace>>());
        let log = inner.log.as_ref();
        if let Some(log) = log.filter(|_| inner.access_sample.takes(exchange, ending)) {
            access::with_line(
                &access::Entry {
                    at: exchange.now_at(now, &inner.clock),
                    route: route.and_then(|at| names.route_label(at)),
                    exchange,
                    ending,
                    times: &times,
                    trace: trace.map(|trace| trace.id()),
                    addresses: &inner.addresses,
                },
                |line| log.push(line),
            );
        }
        if let Some(trace) = trace {
            let ended = Ended {
                route: route.and_then(|at| names.route_label(at)),
                ending,
                at: now,
            };
            trace.report(exchange, &ended);
        }
    }

    /// Counts a call to a provider, named as in the settings, and the result of the call.
    pub fn upstream_call(&self, provider: &str, result: Result<(), UpstreamFault>) {
        self.inner.metrics.upstream_call(provider, result);
    }

    /// Counts a connection as open for the lifetime of the guard.
    pub fn connection(&self) -> ConnectionGuard {
        self.inner.metrics.connection()
    }

    /// Counts a connection that waited because the limit was reached.
    pub fn connection_waited(&self) {
        self.inner.metrics.connection_waited();
    }

    /// Counts a connection that was closed for lack of places.
    pub fn connection_closed(&self, side: ConnectionSide, reason: ClosedConnection) {
        self.inner.metrics.connection_closed(side, reason);
    }

    /// Counts a connection closed because of its PROXY protocol header.
    pub fn proxy_protocol_refused(&self, fault: ProxyProtocolFault) {
        self.inner.metrics.proxy_protocol_refused(fault);
    }

    /// Counts a failure of a filter: the filter could not decide.
    pub fn filter_failed(&self, filter: &str) {
        self.inner.metrics.filter_failed(filter);
    }

    /// The metrics, to read them or to add a source.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Adds the routes of new settings to the metrics, before their requests.
    pub(crate) fn add_routes(&self, settings: &Settings) {
        self.inner.metrics.add_routes(settings);
    }

    /// The index of a route by its path, for [`Telemetry::record`]. The index is constant as long as the process runs.
    pub fn route(&self, path: &str) -> Option<usize> {
        self.inner.metrics.route(path)
    }

    /// Adds the models, providers and rate classes of new settings to the metrics.
    pub(crate) fn add_names(&self, settings: &Settings) {
        self.inner.metrics.add_names(settings);
    }

    /// Reopens the file of the access log, as after a rename of the file. Returns without waiting for the file.
    pub(crate) fn reopen_log(&self) {
        if let Some(log) = &self.inner.log {
            log.reopen();
        }
    }

    /// Exports the last spans, then flushes and closes the access log, within three seconds. For the end of the process; blocks.
    pub fn close(&self) {
        if let Some(traces) = self.inner.traces.get() {
            traces.close();
        }
        let lines = self
            .inner
            .log
            .as_ref()
            .map_or(0, |log| log.close(FINAL_FLUSH));
        if lines > 0 {
            tracing::warn!(log = ACCESS, lines, "log lines not written at shutdown");
        }
    }
}

#[cfg(test)]
mod tests;
