//! Behaviour under attacks and faults: forged, mutated and excessive input, damaged files, crashes.

mod admin;
mod client;
mod cpu;
mod crowd;
mod files;
mod flood;
mod forward;
mod layers;
mod modes;
mod process_kills;
mod random;
mod rate_limit;
mod resources;
mod smuggling;
mod state;
mod text;
mod troubles;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test has thousands of connections. All tests run in one process, whose
/// number of files is bounded.
fn lock_many_files() -> MutexGuard<'static, ()> {
    static MANY_FILES: Mutex<()> = Mutex::new(());
    MANY_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}
