//! What happens under attack and under faults: forged, mutated and excessive input, damaged files, crashes.

mod admin;
mod client;
mod cpu;
mod crowd;
mod files;
mod flood;
mod forward;
mod killed;
mod layers;
mod modes;
mod random;
mod rate_limit;
mod resources;
mod state;
mod text;
mod troubles;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test has thousands of connections: the files of all tests together are bounded, because they run
/// in one process.
fn lock_many_files() -> MutexGuard<'static, ()> {
    static MANY_FILES: Mutex<()> = Mutex::new(());
    MANY_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}
