//! The log of a process, on standard error. The filter can change while the process serves.
//!
//! The log accompanies the work: lines that cannot be written, because the reader has gone, is
//! stuck or the disk is full, are [counted](lines_lost), and the thread that logs goes on.

mod writer;

use std::fmt;
use std::io::{IsTerminal as _, stderr};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use writer::LogWriter;
pub use writer::{lines_lost, say};

/// Changes the filter of the log.
pub type SetLog = Box<dyn Fn(&str) -> Result<(), LogError> + Send + Sync>;

/// Why a filter is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// It cannot be parsed.
    Filter(String),
    /// The log has ended.
    Ended,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter(why) => f.write_str(why),
            Self::Ended => f.write_str("the log has ended"),
        }
    }
}

impl std::error::Error for LogError {}

/// Refuses an invalid filter, and words in it that are not levels: these would count as names of
/// modules, and silently disable the rest of the log.
///
/// # Errors
/// The rest of a sentence that begins with the name of the setting.
pub fn check(filter: &str) -> Result<(), String> {
    let is_level = |text: &str| !text.is_empty() && text.parse::<LevelFilter>().is_ok();
    let is_clear = |part: &str| match part.rsplit_once('=') {
        Some((_, level)) if !part.ends_with(']') => is_level(level),
        _ => part.contains('[') || is_level(part),
    };
    if read(filter).is_ok() && parts(filter).all(is_clear) {
        return Ok(());
    }
    Err(format!("is {filter:?}: write error, warn, info, debug or trace, and module=level for one module"))
}

/// Parses the filter without the blanks between its parts, which would become part of a name.
fn read(filter: &str) -> Result<EnvFilter, LogError> {
    let filter = EnvFilter::try_new(parts(filter).collect::<Vec<_>>().join(","));
    filter.map_err(|error| LogError::Filter(error.to_string()))
}

fn parts(filter: &str) -> impl Iterator<Item = &str> {
    filter.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// Starts the log with `filter`, and returns a function that changes the filter.
///
/// # Errors
/// When the filter is invalid.
pub fn start(filter: &str, as_json: bool) -> Result<SetLog, LogError> {
    let log = tracing_subscriber::fmt()
        .with_env_filter(read(filter)?)
        .with_writer(|| LogWriter)
        // It would be reported with `eprintln!`, which panics where nothing can be written.
        .log_internal_errors(false)
        .with_ansi(is_colored())
        .with_target(false);
    Ok(if as_json {
        let log = log.json().with_filter_reloading();
        let handle = log.reload_handle();
        log.init();
        Box::new(move |filter| handle.reload(read(filter)?).map_err(|_| LogError::Ended))
    } else {
        let log = log.with_filter_reloading();
        let handle = log.reload_handle();
        log.init();
        Box::new(move |filter| handle.reload(read(filter)?).map_err(|_| LogError::Ended))
    })
}

/// Whether to use colours: only on a terminal, and not if `NO_COLOR` is set
/// (<https://no-color.org>).
fn is_colored() -> bool {
    stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_says_levels() {
        for good in ["info", "ERROR", "off", "info,handle_worker=debug", "warn,handle_worker::tcp=trace"] {
            check(good).unwrap();
        }
        for good in [" info", "warn, handle_worker=debug ", "\u{a0}info,"] {
            check(good).unwrap();
            let read = read(good).unwrap();
            assert!(read.max_level_hint() >= Some(LevelFilter::INFO), "{good:?}: {read}");
        }
        for bad in [
            "loud",
            "info,loud",
            "handle_worker",
            "info=loud",
            "handle_worker=debug,verbose",
            "handle_worker=",
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.starts_with(&format!("is {bad:?}: ")), "{error}");
        }
    }
}
