//! Ships every set that is published in a directory.

use crate::error::ShipError;
use crate::ship::{SetShipper, ShipLimits, ShipOutcome, is_unpublished};
use crate::store::FleetStore;
use handle_daemon::clock::now_unix_ms;
use handle_snapshot::set::manifest::{MANIFEST, Manifest};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often callers that are not told of a new set take a turn.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Least time between two statements that are shipped.
const STATEMENT_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two collections.
const COLLECT_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// From where to where sets are shipped.
#[derive(Clone, Debug)]
pub struct ShipRoute {
    /// Directory in which sets are published.
    pub dir: PathBuf,
    /// The store.
    pub store: Arc<dyn FleetStore>,
    /// Location of the store, by which the record of what was shipped is found.
    pub url: String,
}

impl ShipRoute {
    /// Checks the store, and ships from the directory.
    ///
    /// # Errors
    /// When the store fails or ignores conditions, or the record cannot be read.
    pub fn open(&self, limits: ShipLimits) -> Result<SetShipper, ShipError> {
        SetShipper::open(Arc::clone(&self.store), &self.url, &self.dir, limits)
    }
}

/// What a turn has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShipTurn {
    /// A new set was found, and what was done with it.
    pub outcome: Option<ShipOutcome>,
    /// Whether a statement was shipped.
    pub has_stated: bool,
    /// Number of objects that were removed.
    pub removed: usize,
}

/// A file as it was at one time.
type FileState = (u64, i64, i64, u64);

/// Follows a directory.
#[derive(Debug)]
pub struct ShipFollower {
    route: ShipRoute,
    limits: ShipLimits,
    /// Opened by the first turn for which the store is there.
    shipper: Option<SetShipper>,
    seen: Option<FileState>,
    stated_at: Instant,
    collect_at: Instant,
}

impl ShipFollower {
    /// Follows the directory of a route. No request is made.
    #[must_use]
    pub fn new(route: ShipRoute, limits: ShipLimits) -> Self {
        let now = Instant::now();
        Self { route, limits, shipper: None, seen: None, stated_at: now, collect_at: now }
    }

    /// Puts other limits in force.
    pub const fn set_limits(&mut self, limits: ShipLimits) {
        self.limits = limits;
        if let Some(shipper) = &mut self.shipper {
            shipper.set_limits(limits);
        }
    }

    /// The set of this publisher in the store, as last seen.
    #[must_use]
    pub fn shipped(&self) -> Option<&Manifest> {
        self.shipper.as_ref()?.shipped()
    }

    /// Does what is due.
    ///
    /// # Errors
    /// When something failed; the next turn tries it again.
    pub fn turn(&mut self) -> Result<ShipTurn, ShipError> {
        let shipper = match &mut self.shipper {
            Some(shipper) => shipper,
            none => none.insert(self.route.open(self.limits)?),
        };
        let mut turn = ShipTurn::default();
        let now = state_of(&self.route);
        if now != self.seen {
            match shipper.ship() {
                Ok(shipped) => turn.outcome = Some(shipped),
                Err(error) if is_unpublished(&error) => {}
                Err(error) => return Err(error),
            }
            self.seen = now;
        }
        if self.stated_at.elapsed() >= STATEMENT_INTERVAL {
            self.stated_at = Instant::now();
            turn.has_stated = shipper.ship_statement()?;
        }
        if Instant::now() >= self.collect_at {
            self.collect_at = Instant::now() + (self.limits.grace / 4).max(COLLECT_INTERVAL_MIN);
            turn.removed = shipper.collect(now_unix_ms())?;
        } else {
            turn.removed = shipper.remove_unused()?;
        }
        Ok(turn)
    }
}

/// The MANIFEST in the directory as it is now.
fn state_of(route: &ShipRoute) -> Option<FileState> {
    let file = std::fs::metadata(route.dir.join(MANIFEST)).ok()?;
    Some((file.ino(), file.mtime(), file.mtime_nsec(), file.len()))
}
