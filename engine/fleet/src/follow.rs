//! Ships every set that is published in a directory, until it is told to stop.

use crate::error::ShipError;
use crate::ship::{SetShipper, ShipOutcome, is_unpublished};
use handle_daemon::clock::now_unix_ms;
use handle_snapshot::set::manifest::MANIFEST;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the MANIFEST in the directory is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Least time between two collections.
const COLLECT_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// How often what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowIntervals {
    /// Least time between two statements.
    pub statements: Duration,
    /// Time until a failed attempt is repeated.
    pub retry: Duration,
    /// The grace time of collections.
    pub grace: Duration,
}

/// A file as it was at one time.
type FileState = (u64, i64, i64, u64);

/// Follows a directory.
#[derive(Debug)]
pub struct ShipFollower {
    shipper: SetShipper,
    path: PathBuf,
    intervals: FollowIntervals,
    seen: Option<FileState>,
    stated_at: Instant,
    collect_at: Instant,
}

impl ShipFollower {
    /// Follows the directory of the shipper.
    #[must_use]
    pub fn new(shipper: SetShipper, dir: &Path, intervals: FollowIntervals) -> Self {
        let now = Instant::now();
        Self { shipper, path: dir.join(MANIFEST), intervals, seen: None, stated_at: now, collect_at: now }
    }

    /// The shipper.
    pub const fn shipper(&mut self) -> &mut SetShipper {
        &mut self.shipper
    }

    /// Does what is due, and then sleeps for a moment. Returns what was shipped.
    ///
    /// # Errors
    /// When it failed; the next call tries again, after the caller has waited for the retry time.
    pub fn turn(&mut self) -> Result<Option<ShipOutcome>, ShipError> {
        let now = self.state();
        let mut outcome = None;
        if now != self.seen {
            match self.shipper.ship() {
                Ok(shipped) => outcome = Some(shipped),
                Err(error) if is_unpublished(&error) => {}
                Err(error) => return Err(error),
            }
            self.seen = now;
        }
        if self.stated_at.elapsed() >= self.intervals.statements {
            self.stated_at = Instant::now();
            self.shipper.ship_statement()?;
        }
        if Instant::now() >= self.collect_at {
            self.collect_at = Instant::now() + (self.intervals.grace / 4).max(COLLECT_INTERVAL_MIN);
            self.shipper.collect(now_unix_ms())?;
        }
        if outcome.is_none() {
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(outcome)
    }

    /// Ships the set again from scratch at the next turn.
    pub const fn forget(&mut self) {
        self.seen = None;
    }

    /// The time after which a failed turn is repeated.
    #[must_use]
    pub const fn retry(&self) -> Duration {
        self.intervals.retry
    }

    fn state(&self) -> Option<FileState> {
        let file = std::fs::metadata(&self.path).ok()?;
        Some((file.ino(), file.mtime(), file.mtime_nsec(), file.len()))
    }
}
