//! Log lines on standard error.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::config::{LogFormat, TelemetrySettings};

/// Why logging could not begin.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error("telemetry.log_filter: {0}")]
    Filter(#[from] ParseError),
    /// The process logs already.
    #[error("logging was begun before: {0}")]
    Twice(#[from] TryInitError),
}

/// Begins logging for the whole process. Standard output stays free for what a command prints.
///
/// # Errors
/// A filter that cannot be read, or a second call.
pub fn init(settings: &TelemetrySettings) -> Result<(), TelemetryError> {
    // The library tells at debug in full why the log store refuses a row, and that quotes the row.
    let filter = EnvFilter::try_new(&settings.log_filter)?.add_directive("clickhouse=info".parse()?);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match settings.log_format {
        LogFormat::Text => builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).finish().try_init()?,
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(true).finish().try_init()?,
    }
    Ok(())
}
