//! Turns of several publishers in one directory.
//!
//! A publisher that has its turn has an epoch, which a lease gives it, and a directory named after
//! that epoch. It replaces the `MANIFEST`, `HEARTBEAT` and other small files by renaming files out
//! of that directory. The next publisher removes the directory before it reads the published set.
//! So whatever a former publisher was doing, also if it was stopped between any two steps and goes
//! on hours later, it replaces nothing any more: its next step fails, because its directory is
//! gone.
//!
//! Layers need no fence: they have names by their content, and are in no set before a `MANIFEST`
//! names them.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{format, fs};

/// Start of the names of the directories; the epoch follows.
const PREFIX: &str = ".publisher-";

/// The turn of this process in a directory.
#[derive(Debug)]
pub(super) struct PublisherFence {
    dir: PathBuf,
    /// The directory of this publisher; `None` before its first turn.
    own: Mutex<Option<PathBuf>>,
}

fn name_of(epoch: u64) -> String {
    format!("{PREFIX}{epoch:020}")
}

/// The epoch of a directory with this name, if it is one of a publisher.
fn epoch_of(name: &str) -> Option<u64> {
    let epoch = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name_of(epoch) == name).then_some(epoch)
}

/// What a publisher is told that has lost its turn.
fn fenced() -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, "another publisher has taken over")
}

impl PublisherFence {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.into(), own: Mutex::new(None) }
    }

    fn own(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the turn with `epoch`, and ends that of all publishers with a lower one. False if
    /// another one has begun with a higher epoch.
    pub(super) fn take_over(&self, epoch: u64) -> io::Result<bool> {
        let own = self.dir.join(name_of(epoch));
        *self.own() = None;
        // Made before others are looked for: of two publishers that begin at the same time, the one
        // with the lower epoch finds the directory of the other, or its own one is found and
        // removed.
        match fs::create_dir(&own) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let mut is_highest = true;
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            match entry.file_name().to_str().and_then(epoch_of) {
                Some(other) if other < epoch => remove(&entry.path())?,
                Some(other) => is_highest &= other == epoch,
                None => {}
            }
        }
        if is_highest {
            *self.own() = Some(own);
        } else {
            remove(&own)?;
        }
        Ok(is_highest)
    }

    /// Where a file is written that will replace another one.
    pub(super) fn path(&self, name: &str) -> io::Result<PathBuf> {
        let own = self.own().clone().ok_or_else(fenced)?;
        // Without the directory, the next step would fail too, with an error that explains less.
        if own.is_dir() { Ok(own.join(name)) } else { Err(fenced()) }
    }

    /// Whether the turn of this process lasts, as far as it can be told.
    pub(super) fn check(&self) -> io::Result<()> {
        self.path("").map(drop)
    }
}

/// Removes a directory of a publisher. Its owner may write there meanwhile.
fn remove(path: &Path) -> io::Result<()> {
    loop {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
            removed => return removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::storage::{DiskStorage, Storage};
    use std::io::Write as _;
    use std::string::ToString as _;

    fn storage(dir: &Path) -> DiskStorage {
        DiskStorage::share(dir).unwrap().expect("a directory that is not locked")
    }

    fn write(storage: &DiskStorage, text: &str) -> io::Result<()> {
        storage.create("MANIFEST.tmp")?.write_all(text.as_bytes())
    }

    fn publish(storage: &DiskStorage) -> io::Result<()> {
        storage.rename("MANIFEST.tmp", "MANIFEST")
    }

    /// Whether a step was refused because another publisher has its turn, and not for another
    /// reason.
    fn is_fenced<T>(outcome: io::Result<T>) -> bool {
        outcome.is_err_and(|error| {
            let is_gone = error.kind() == ErrorKind::NotFound;
            is_gone || error.kind() == ErrorKind::PermissionDenied && error.to_string().contains("taken over")
        })
    }

    fn published(dir: &Path) -> String {
        fs::read_to_string(dir.join("MANIFEST")).unwrap()
    }

    #[test]
    fn a_publisher_replaces_nothing_after_another_one_has_taken_over_at_any_step() {
        for has_written in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (first, second) = (storage(dir.path()), storage(dir.path()));
            assert!(is_fenced(write(&first, "0")), "before its turn");
            assert!(first.take_over(1).unwrap());
            write(&first, "1").unwrap();
            publish(&first).unwrap();
            if has_written {
                write(&first, "late").unwrap();
            }
            assert!(second.take_over(2).unwrap());
            assert!(is_fenced(publish(&first)));
            let late = write(&first, "late").and_then(|()| publish(&first));
            assert_eq!(late.unwrap_err().kind(), ErrorKind::PermissionDenied, "{has_written}");
            assert!(is_fenced(publish(&first)) && is_fenced(first.remove("MANIFEST")));
            assert_eq!(published(dir.path()), "1");
            write(&second, "2").unwrap();
            publish(&second).unwrap();
            assert!(!first.take_over(1).unwrap(), "a turn that is over does not come back");
            assert!(first.take_over(3).unwrap());
            assert!(is_fenced(write(&second, "late")));
            assert_eq!(published(dir.path()), "2");
        }
    }

    #[test]
    fn of_two_publishers_that_begin_at_once_the_higher_epoch_publishes() {
        for epoch in (1..2000).step_by(2) {
            let dir = tempfile::tempdir().unwrap();
            let (low, high) = (storage(dir.path()), storage(dir.path()));
            let barrier = std::sync::Barrier::new(2);
            let turn = |storage: &DiskStorage, epoch| {
                barrier.wait();
                storage.take_over(epoch).unwrap()
            };
            let (_, is_high) = std::thread::scope(|scope| {
                let (low, high) = (&low, &high);
                let other = scope.spawn(move || turn(low, epoch));
                let is_high = turn(high, epoch + 1);
                (other.join().unwrap(), is_high)
            });
            assert!(is_high && write(&high, "high").and_then(|()| publish(&high)).is_ok());
            assert!(is_fenced(write(&low, "low").and_then(|()| publish(&low))), "epoch {epoch}");
            assert_eq!(published(dir.path()), "high");
        }
    }

    #[test]
    fn directories_of_one_publisher_are_not_shared() {
        let dir = tempfile::tempdir().unwrap();
        let one = DiskStorage::lock(dir.path()).unwrap().unwrap();
        assert!(DiskStorage::share(dir.path()).unwrap().is_none());
        drop(one);
        let shared = storage(dir.path());
        let also = storage(dir.path());
        assert!(DiskStorage::lock(dir.path()).unwrap().is_none());
        drop((shared, also));
        assert!(DiskStorage::lock(dir.path()).unwrap().is_some());
    }

    #[test]
    fn names_have_one_form() {
        assert_eq!(epoch_of(&name_of(7)), Some(7));
        assert_eq!(epoch_of(&name_of(u64::MAX)), Some(u64::MAX));
        for name in [".publisher-7", ".publisher-", "MANIFEST", ".publisher--0000000000000000001"] {
            assert_eq!(epoch_of(name), None, "{name}");
        }
    }
}
