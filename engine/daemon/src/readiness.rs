//! What the service manager is told about the process (`sd_notify`). Without a service manager
//! there is nobody to tell, and nothing happens.

use sd_notify::NotifyState;
use std::time::Duration;

fn notify(states: &[NotifyState<'_>]) {
    // A service manager that does not listen changes nothing for this process.
    let _ = sd_notify::notify(states);
}

/// The process is up, with one line on what it does.
pub fn ready(status: &str) {
    notify(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready, NotifyState::Status(status)]);
}

/// The process stops.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// The process is alive; to be said again within half of [`watchdog_patience`].
pub fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// Time after which a silent process is restarted; none where there is no watchdog.
#[must_use]
pub fn watchdog_patience() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// From now on the process `pid` is the service.
pub fn hand_over(pid: u32) {
    notify(&[NotifyState::MainPid(pid)]);
}

/// Runs `reload` between the two notes that the service manager expects of a reload. Only one
/// reload may run at a time.
pub fn reloading<T>(reload: impl FnOnce() -> T) -> T {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[NotifyState::Reloading, now]);
    }
    let reloaded = reload();
    notify(&[NotifyState::Ready]);
    reloaded
}
