//! Diagnostics: errors, and the normal events that an operator needs, on the standard error output.
//!
//! Diagnostics never block their callers ([`LineWriter`]), and each kind has a rate limit ([`EventLimit`]). A panic is a diagnostic too.
//! The hook of the standard library would write to the standard error output directly, and block a worker when the output has no reader.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_counters::Samples;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

use super::event_limit::EventLimit;
use super::names;
use super::writer::{FINAL_FLUSH, LineWriter, LogOptions};
use crate::config::{LogFormat, LogLevel, Telemetry};

/// The name of this log in metrics and in the log's lines.
pub(super) const LOG: &str = "diagnostics";
/// Buffer size for the standard error output in bytes: some thousand lines, as many as the bursts of every kind together.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// How long a panicking thread waits for the write of its line, because a panic may end the process immediately.
const PANIC_FLUSH: Duration = Duration::from_millis(100);

/// The diagnostics of this process, after their setup.
static LIMIT: OnceLock<EventLimit> = OnceLock::new();
static LEVEL: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();
static DROPPED: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);
static SUPPRESSED: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);

/// Why diagnostics could not be initialized.
#[derive(Debug, thiserror::Error)]
pub enum DiagnosticsError {
    /// The diagnostics were initialized before in this process.
    #[error("diagnostics are set up already; do it once in a process")]
    Again(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The system provided no thread, or no second handle of the standard error output.
    #[error("cannot write to the standard error output")]
    Output(#[source] io::Error),
}

/// Initialized diagnostics. The drop at the end of the process writes the buffered lines within a second.
#[must_use = "dropped at once, it ends the diagnostics"]
pub struct Diagnostics {
    writer: Arc<LineWriter>,
    limit: EventLimit,
}

impl Drop for Diagnostics {
    fn drop(&mut self) {
        self.limit.report();
        self.writer.close(FINAL_FLUSH);
    }
}

/// Starts diagnostics for the whole process, including panics and diagnostics of libraries that use the `log` crate.
///
/// # Errors
///
/// When the diagnostics were started before, or the system provides no thread.
pub fn diagnostics(settings: &Telemetry) -> Result<Diagnostics, DiagnosticsError> {
    let (filter, handle) = reload::Layer::new(targets(settings.log_level));
    let clock = Clock::system();
    let writer = stderr(clock.clone()).map_err(DiagnosticsError::Output)?;
    let writer = Arc::new(writer);
    let limit = EventLimit::new(clock, SUPPRESSED.clone());
    let layer = fmt::layer().with_writer(Lines(writer.clone()));
    let registry = Registry::default().with(filter).with(limit.clone());
    let started = match settings.log_format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
        LogFormat::Text => registry
            .with(layer.with_ansi(io::stderr().is_terminal()))
            .try_init(),
    };
    started.map_err(|error| DiagnosticsError::Again(error.into()))?;
    // Set once, as the subscriber is.
    let _ = LIMIT.set(limit.clone());
    let _ = LEVEL.set(handle);
    std::panic::set_hook(Box::new({
        let writer = writer.clone();
        move |panic| report_panic(panic, &writer)
    }));
    Ok(Diagnostics { writer, limit })
}

fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // The server libraries report every disconnected client as an error. The gateway counts these errors, and an operator need not read
    // them. At the lower levels the libraries print whole heads, including credentials.
    Targets::new()
        .with_default(level)
        .with_target("pingora", LevelFilter::OFF)
        .with_target("h2", LevelFilter::OFF)
}

/// Changes the level of the diagnostics of this process, after their setup.
pub(crate) fn set_level(level: LogLevel) {
    if let Some(handle) = LEVEL.get() {
        // The subscriber lives as long as the process.
        let _ = handle.reload(targets(level));
    }
}

/// Writes a line for each kind of diagnostics with lines suppressed since the last call. The caller calls periodically.
pub(crate) fn report_suppressed() {
    if let Some(limit) = LIMIT.get() {
        limit.report();
    }
}

/// The last message of a failed command, written within a second or not at all: a service manager that no longer reads must not block the
/// exit.
pub(crate) fn print_error(line: &str) {
    match stderr(Clock::system()) {
        Ok(writer) => writer.push(line.as_bytes()),
        // Without a thread or a handle the line is written here. When this write fails too, only the exit code remains.
        Err(_) => drop(io::stderr().write_all(line.as_bytes())),
    }
}

/// The number of dropped diagnostic lines in this process.
pub(super) fn dropped() -> u64 {
    DROPPED.load(Relaxed)
}

/// Counters of the diagnostics of this process.
pub(super) fn show(samples: &mut Samples) {
    samples.number(names::LINES_SUPPRESSED, SUPPRESSED.load(Relaxed));
}

/// A writer to the standard error output, with a separate handle. A writer with the standard library's handle holds the library's lock, and
/// a blocked writer would block every other writer.
fn stderr(clock: Clock) -> io::Result<LineWriter> {
    let own = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let options = LogOptions {
        log: LOG,
        waiting_bytes_max: WAITING_BYTES_MAX,
        linger: Duration::ZERO,
        dropped: DROPPED.clone(),
        clock,
    };
    let out: Box<dyn Write + Send> = Box::new(own);
    LineWriter::start(options, Box::new(out))
}

fn report_panic(panic: &PanicHookInfo<'_>, writer: &LineWriter) {
    // A lagging writer may be blocked, and the next panic must not wait for the writer too.
    let is_behind = writer.is_behind();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let cause = panic.payload_as_str().unwrap_or("no message");
    let location = panic.location().map(tracing::field::display);
    // Captured where `RUST_BACKTRACE` requests a backtrace.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured)
        .then(|| tracing::field::display(&backtrace));
    tracing::error!(thread, cause, location, backtrace, "thread panicked");
    if !is_behind {
        writer.flush(PANIC_FLUSH);
    }
}

/// Collects a line from the output of `tracing`. `tracing` passes an event in a single write.
struct Lines(Arc<LineWriter>);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(&self.0)
    }
}

struct Line<'a>(&'a LineWriter);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
