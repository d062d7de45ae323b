//! Follows a directory in which sets are published.
//!
//! A process implements [`PublishedDirectory`] for what it serves from there; [`follow`] reloads it
//! when a `MANIFEST` is written. inotify wakes it, and it also looks once a second: watches can be
//! lost, and some file systems have none.

use crate::shutdown::Shutdown;
use inotify::{EventMask, Inotify, WatchMask};
use std::fmt;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Name of the file whose replacement publishes a set.
const MANIFEST: &str = "MANIFEST";
/// Polling interval of the watcher.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// A new generation is live.
    Changed(u64),
    /// The published set is already live.
    Unchanged(u64),
}

/// The set that a process serves, from the directory in which it is published.
pub trait PublishedDirectory {
    /// Why a set does not open.
    type Error: fmt::Display;

    /// The directory.
    fn directory(&self) -> &Path;

    /// Loads the published set if it differs from the live one.
    ///
    /// # Errors
    /// When it does not open; the old set stays live.
    fn reload(&self) -> Result<ReloadOutcome, Self::Error>;

    /// Whether the newest published set could not be opened.
    fn is_failing(&self) -> bool;
}

/// Reloads whenever a new set is published, until `shutdown`.
pub fn follow(published: &impl PublishedDirectory, shutdown: &Shutdown) {
    let directory = published.directory();
    let mut inotify = watch_directory(directory);
    if let Err(error) = &inotify {
        tracing::warn!(
            directory = %directory.display(), %error,
            "cannot watch the snapshot directory, checking once a second instead; \
             is fs.inotify.max_user_instances exhausted? (sysctl fs.inotify)"
        );
    }
    let mut events = [0; 4096];
    // The first check is immediate, for sets published before the watch began.
    let mut look_at = Instant::now();
    while !shutdown.is_stopped() {
        let timeout = look_at.saturating_duration_since(Instant::now());
        let seen = match &mut inotify {
            Ok(inotify) => wait_for_events(inotify, &mut events, shutdown, timeout),
            Err(_) => {
                shutdown.poll(&mut [], Some(timeout));
                DirectoryChange::Nothing
            }
        };
        if seen == DirectoryChange::Gone {
            // The directory was replaced by another one of the same name.
            inotify = watch_directory(directory);
        }
        let is_new = seen == DirectoryChange::Published;
        if !is_new && Instant::now() < look_at {
            continue;
        }
        if inotify.is_err() {
            inotify = watch_directory(directory);
        }
        look_at = Instant::now() + LOOK_INTERVAL;
        let was_failing = published.is_failing();
        match published.reload() {
            Ok(ReloadOutcome::Changed(generation)) => tracing::info!(generation, "serving a new set"),
            Ok(ReloadOutcome::Unchanged(generation)) if was_failing => {
                tracing::info!(generation, "the published set is intact again");
            }
            Ok(ReloadOutcome::Unchanged(_)) => {}
            // Logged once for each publication, not once a second.
            Err(error) if is_new || !was_failing => {
                tracing::error!(%error, "cannot open the published set; the old set stays live");
            }
            Err(_) => {}
        }
    }
}

fn watch_directory(directory: &Path) -> std::io::Result<Inotify> {
    let inotify = Inotify::init()?;
    let changes = WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE | WatchMask::MOVE_SELF;
    inotify.watches().add(directory, changes)?;
    Ok(inotify)
}

/// What the watcher observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryChange {
    Nothing,
    /// A manifest was written.
    Published,
    /// The directory no longer exists.
    Gone,
}

/// Waits for an event until `shutdown` or the end of the watcher's timeout.
fn wait_for_events(
    inotify: &mut Inotify,
    events: &mut [u8],
    shutdown: &Shutdown,
    timeout: Duration,
) -> DirectoryChange {
    if !shutdown.wait_for(inotify.as_fd(), Some(timeout)) {
        return DirectoryChange::Nothing;
    }
    let Ok(events) = inotify.read_events(events) else { return DirectoryChange::Published };
    let mut seen = DirectoryChange::Nothing;
    for event in events {
        if event.mask.intersects(EventMask::IGNORED | EventMask::MOVE_SELF) {
            return DirectoryChange::Gone;
        }
        // After a queue overflow, a publication may have been missed.
        if event.name.is_some_and(|name| name == MANIFEST) || event.mask.contains(EventMask::Q_OVERFLOW) {
            seen = DirectoryChange::Published;
        }
    }
    seen
}
