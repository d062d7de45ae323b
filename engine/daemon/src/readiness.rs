//! Notifications to the service manager (`sd_notify`). Without a service manager they do nothing.

use sd_notify::NotifyState;
use std::time::Duration;

fn notify(states: &[NotifyState<'_>]) {
    // A failed notification does not affect this process.
    let _ = sd_notify::notify(states);
}

/// Reports that the process is ready, with a one-line status.
pub fn ready(status: &str) {
    notify(&[NotifyState::MainPid(std::process::id()), NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the process is stopping.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Reports that the process is alive. Call this again within half of [`watchdog_timeout`].
pub fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// Time after which a silent process is restarted; `None` without a watchdog.
#[must_use]
pub fn watchdog_timeout() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Reports that the process `pid` is the service from now on.
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
