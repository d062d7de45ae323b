//! What a process logs, to its standard error; what that is can change while it serves.

use tracing_subscriber::filter::EnvFilter;

/// Changes what is logged.
pub type SetLog = Box<dyn Fn(&str) -> anyhow::Result<()> + Send + Sync>;

/// Begins to log what `filter` says, and returns the way to change that.
///
/// # Errors
/// When the filter is none.
pub fn start(filter: &str, as_json: bool) -> anyhow::Result<SetLog> {
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter)?)
        .with_writer(std::io::stderr)
        .with_target(false);
    Ok(if as_json {
        let log = log.json().with_filter_reloading();
        let handle = log.reload_handle();
        log.init();
        Box::new(move |filter| Ok(handle.reload(EnvFilter::try_new(filter)?)?))
    } else {
        let log = log.with_filter_reloading();
        let handle = log.reload_handle();
        log.init();
        Box::new(move |filter| Ok(handle.reload(EnvFilter::try_new(filter)?)?))
    })
}
