//! The thread that reads the file of the cache after the start, and writes it from time to time and
//! at the end.

use crate::saved;
use crate::state::CacheState;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often the thread looks whether it is time to write, so that changed settings take effect.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// After a purge, the file is written when it is older than this, so that a process that is killed
/// does not come back with what was purged.
const PURGE_INTERVAL: Duration = Duration::from_secs(10);

/// Reads `file`, and writes it until the other side of `end` is dropped, and then once more.
pub(crate) fn run(state: &CacheState, file: &Path, end: &Receiver<()>) {
    restore(state, file);
    let (mut saved_at, mut saved_purges) = (Instant::now(), 0);
    while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(LOOK_INTERVAL) {
        let (every, purges) = (Duration::from_secs(state.live().save_every_s.into()), state.open.purges());
        let is_purged = purges != saved_purges && saved_at.elapsed() >= PURGE_INTERVAL;
        if is_purged || !every.is_zero() && saved_at.elapsed() >= every {
            save(state, file);
            (saved_at, saved_purges) = (Instant::now(), purges);
        }
    }
    save(state, file);
}

fn restore(state: &CacheState, file: &Path) {
    let begun = Instant::now();
    let mut count = 0_u64;
    let loaded = saved::load(file, &mut |entry| {
        if state.restore(&entry) {
            state.counters.restored.add();
            count += 1;
        }
    });
    state.open.end_restore();
    let file = file.display();
    match loaded {
        Ok(()) => {
            tracing::info!(%file, entries = count, took_ms = begun.elapsed().as_millis(), "the cache is restored")
        }
        Err(saved::SavedError::Io(error)) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(%file, entries = count, %error, "the file of the cache is not used from here on");
        }
    }
}

fn save(state: &CacheState, file: &Path) {
    match saved::save(&state.table, file) {
        Ok(entries) => {
            state.counters.saves.add();
            tracing::debug!(file = %file.display(), entries, "the cache is saved");
        }
        Err(error) => {
            state.counters.saves_failed.add();
            tracing::warn!(file = %file.display(), %error, "cannot write the file of the cache");
        }
    }
}
