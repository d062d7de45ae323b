//! Before there is a set: the process waits for the first one, and says so.

use crate::config::Config;
use crate::observe::Observer;
use crate::observe::http::{HttpResponse, HttpStatus};
use handle_snapshot::set::{SetError, SetErrorKind, read_manifest};
use sd_notify::NotifyState;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How often the directory is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Whether there is nothing to serve yet: no set has been published in the directory of the configuration.
fn is_unpublished(config: &Config) -> bool {
    matches!(read_manifest(&config.snapshot), Err(SetError { kind: SetErrorKind::NotPublished, .. }))
}

/// What is said while it is so.
fn message(config: &Config) -> String {
    format!("waiting for the first set in {}: none has been published there yet", config.snapshot.display())
}

/// Waits until a set is published, where the configuration says so; false when `is_told_to_stop` comes first.
///
/// The service manager is told that the process is up and what it waits for; `observe.http` answers that it is alive
/// and not ready. No port is bound for requests, so that clients go to another site at once. A process that is to take
/// over from another does not wait: that one serves.
///
/// # Errors
/// When the address of `observe.http` cannot be had.
pub fn wait_for_set(config: &Config, mut is_told_to_stop: impl FnMut() -> bool) -> anyhow::Result<bool> {
    let has_predecessor =
        || config.take_over && config.control.as_ref().is_some_and(|path| UnixStream::connect(path).is_ok());
    if !config.wait_for_set || !is_unpublished(config) || has_predecessor() {
        return Ok(true);
    }
    let message = message(config);
    let directory = config.snapshot.display();
    tracing::warn!("{message}; publish one: hdl snapshot publish {directory} RECORDS, or start handle-admin");
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(&[
        NotifyState::MainPid(std::process::id()),
        NotifyState::Ready,
        NotifyState::Status(&message),
    ]);
    let mut is_stopped = false;
    let is_over = || {
        is_stopped = is_told_to_stop();
        let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        is_stopped || !is_unpublished(config)
    };
    match config.observe.http {
        Some(address) => Observer::bind(address)?.serve_until(&config.observe, is_over, |path| match path {
            "/healthz" => HttpResponse::text(HttpStatus::Ok, "ok"),
            "/readyz" | "/metrics" => HttpResponse::text(HttpStatus::Unavailable, message.as_str()),
            _ => HttpResponse::text(HttpStatus::NotFound, "there are /metrics, /healthz and /readyz"),
        }),
        None => wait_until(is_over),
    }
    Ok(!is_stopped)
}

fn wait_until(mut is_over: impl FnMut() -> bool) {
    while !is_over() {
        std::thread::sleep(LOOK_INTERVAL);
    }
}
