//! Health of the store: whether it can be written and read back.

use handle_store::Store;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The last check and its result.
#[derive(Debug)]
pub struct Health {
    every: Duration,
    last: Mutex<Option<(Instant, Result<Duration, String>)>>,
}

impl Health {
    /// Checks at most once per `every`.
    #[must_use]
    pub const fn new(every: Duration) -> Self {
        Self { every, last: Mutex::new(None) }
    }

    /// Writes a number to `store` and reads it back, unless the last check is recent; returns the
    /// duration.
    ///
    /// # Errors
    /// Why the store cannot be used.
    pub fn look(&self, store: &Store) -> Result<Duration, String> {
        // Concurrent callers wait, and get the same result.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, result)) = &*last
            && when.elapsed() < self.every
        {
            return result.clone();
        }
        let since = Instant::now();
        let result = probe(store).map(|()| since.elapsed());
        *last = Some((Instant::now(), result.clone()));
        result
    }
}

fn probe(store: &Store) -> Result<(), String> {
    let written = store.change(|transaction| transaction.raise_probe());
    let written = written.map_err(|error| error.to_string())?;
    let read = store.snapshot().and_then(|snapshot| snapshot.probe()).map_err(|error| error.to_string())?;
    // Other processes may have raised it since.
    if read.wrapping_sub(written) < u64::MAX / 2 {
        Ok(())
    } else {
        Err("what was written is not what is read".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_store::StoreConfig;

    #[test]
    fn health_is_probed_at_intervals_and_fails_with_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::create(&StoreConfig::at(&directory.path().join("store")), true).unwrap();
        let rarely = Health::new(Duration::from_secs(600));
        let always = Health::new(Duration::ZERO);
        rarely.look(&store).unwrap();
        let commits = store.commits().commits;
        rarely.look(&store).unwrap();
        assert_eq!(store.commits().commits, commits, "the last probe is recent");
        always.look(&store).unwrap();
        assert_eq!(store.commits().commits, commits + 1);
        assert_eq!(store.last_id(), 0, "it is no transaction");
        let _ = store.change(|_| -> Result<(), _> { panic!("a bug, for this test") });
        assert!(always.look(&store).is_err());
        rarely.look(&store).unwrap();
    }
}
