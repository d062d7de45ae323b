//! Waits for the first published set, and reports that the process is waiting.

use handle_daemon::readiness;
use handle_daemon::scrape::{ScrapeEndpoint, ScrapeLimits, ScrapeSource};
use handle_daemon::shutdown::Shutdown;
use handle_snapshot::set::{SetError, SetErrorKind, read_manifest};
use handle_worker::config::Config;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Polling interval for the directory.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Whether no set has been published yet in the configured directory.
pub(crate) fn is_unpublished(config: &Config) -> bool {
    matches!(read_manifest(&config.snapshot), Err(SetError { kind: SetErrorKind::NotPublished, .. }))
}

/// Status message while the process waits.
fn message(config: &Config) -> String {
    format!("waiting for the first set in {}: none has been published there yet", config.snapshot.display())
}

/// Waits until a set is published, if the configuration says so. Returns false when
/// `is_stopping` returns true first.
///
/// The service manager is notified that the process is up and what it waits for; `observe.http`
/// reports that it is alive but not ready. No port is bound for requests, so that clients use
/// another site at once. A process that is to take over from another one does not wait, because the
/// other one has a set.
///
/// # Errors
/// When the address of `observe.http` cannot be bound.
pub fn wait_for_set(config: &Config, is_stopping: impl FnMut() -> bool) -> anyhow::Result<bool> {
    let has_predecessor =
        || config.take_over && config.control.as_ref().is_some_and(|path| UnixStream::connect(path).is_ok());
    if !config.wait_for_set || !is_unpublished(config) || has_predecessor() {
        return Ok(true);
    }
    let message = message(config);
    let directory = config.snapshot.display();
    tracing::warn!("{message}; publish one: hdl snapshot publish {directory} RECORDS, or start handle-admin");
    readiness::ready(&message);
    let Some(address) = config.observe.http else { return Ok(wait_until_published(config, is_stopping)) };
    let endpoint = ScrapeEndpoint::bind(address)?;
    let shutdown = Arc::new(Shutdown::new()?);
    let waiting = Arc::new(WaitingProcess { limits: config.observe.scrape_limits, message });
    std::thread::scope(|scope| {
        scope.spawn(|| endpoint.serve(&shutdown, &waiting));
        let is_published = wait_until_published(config, is_stopping);
        shutdown.stop();
        Ok(is_published)
    })
}

/// Waits until a set is published; false when `is_stopping` returns true first.
fn wait_until_published(config: &Config, mut is_stopping: impl FnMut() -> bool) -> bool {
    while is_unpublished(config) {
        if is_stopping() {
            return false;
        }
        readiness::alive();
        std::thread::sleep(LOOK_INTERVAL);
    }
    true
}

/// Answers scrapers while the process waits.
struct WaitingProcess {
    limits: ScrapeLimits,
    message: String,
}

impl ScrapeSource for WaitingProcess {
    fn limits(&self) -> ScrapeLimits {
        self.limits
    }

    fn metrics(&self) -> Result<String, String> {
        Err(self.message.clone())
    }

    fn liveness(&self) -> Result<String, String> {
        Ok("ok".to_owned())
    }

    fn readiness(&self) -> Result<String, String> {
        Err(self.message.clone())
    }
}
