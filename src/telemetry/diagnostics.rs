//! Diagnostics: what goes wrong, and what an operator wants to know of a healthy gateway, on the standard error output.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};

use crate::config::{LogFormat, LogLevel, Telemetry};

/// Diagnostics were set up before in this process.
#[derive(Debug, thiserror::Error)]
#[error("diagnostics are set up already; do it once in a process")]
pub struct DiagnosticsError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Starts diagnostics for the whole process, those of libraries that use the `log` crate included.
///
/// # Errors
///
/// When they were started before.
pub fn diagnostics(settings: &Telemetry) -> Result<(), DiagnosticsError> {
    let level = match settings.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // The server libraries report every client that hangs up as an error of their own, which is ours to count and not an operator's to
    // read; and at the lower levels they print whole heads, credentials and all.
    let filter = Targets::new()
        .with_default(level)
        .with_target("pingora", LevelFilter::OFF)
        .with_target("h2", LevelFilter::OFF);
    let layer = fmt::layer().with_writer(std::io::stderr);
    let started = match settings.log_format {
        LogFormat::Json => Registry::default()
            .with(filter)
            .with(layer.json().flatten_event(true))
            .try_init(),
        LogFormat::Text => Registry::default()
            .with(filter)
            .with(layer.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())))
            .try_init(),
    };
    started.map_err(|error| DiagnosticsError(error.into()))
}
