//! Free space on the disks that this process writes to, so that a full disk is noticed before
//! changes fail.

use crate::config::Config;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Free space of one file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskRoom {
    /// What is written there: `store`, `publish` or `audit`.
    pub of: &'static str,
    /// The directory.
    pub directory: PathBuf,
    /// Bytes that this process may still use; `None` if the kernel does not tell.
    pub free_bytes: Option<u64>,
    /// Whether that is less than `limits.disk_free_bytes`.
    pub is_low: bool,
}

/// Checks the file systems of the store, the published set and the audit log.
#[must_use]
pub fn rooms(config: &Config) -> Vec<DiskRoom> {
    let directory = |file: &Path| match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let directories = [
        ("store", (!config.store.is_in_database()).then(|| directory(&config.store.file))),
        ("publish", config.publish.directory.clone()),
        ("audit", config.audit.as_deref().map(directory)),
    ];
    let room = |(of, directory): (&'static str, Option<PathBuf>)| {
        let directory = directory?;
        let free_bytes =
            rustix::fs::statvfs(&directory).ok().map(|it| it.f_bavail.saturating_mul(it.f_frsize));
        let is_low = free_bytes.is_some_and(|free| free < config.limits.disk_free_bytes as u64);
        Some(DiskRoom { of, directory, free_bytes, is_low })
    };
    directories.into_iter().filter_map(room).collect()
}

/// The result of the last check.
#[derive(Debug, Default)]
pub struct DiskWatch {
    was_low: AtomicBool,
}

impl DiskWatch {
    /// Checks again, and logs differences.
    pub fn look(&self, config: &Config) -> Vec<DiskRoom> {
        let rooms = rooms(config);
        let is_low = rooms.iter().any(|room| room.is_low);
        if self.was_low.swap(is_low, Ordering::Relaxed) != is_low {
            if is_low {
                for DiskRoom { of, directory, free_bytes, .. } in rooms.iter().filter(|room| room.is_low) {
                    let directory = directory.display();
                    tracing::warn!(of, %directory, free_bytes, "a disk is nearly full (`limits.disk_free_bytes`)");
                }
            } else {
                tracing::info!("all disks have enough free space again");
            }
        }
        rooms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_below_the_limit_are_low_and_all_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.store.file = directory.path().join("store");
        config.audit = Some("audit.jsonl".into());
        config.limits.disk_free_bytes = 0;
        let of = |rooms: &[DiskRoom]| rooms.iter().map(|room| (room.of, room.is_low)).collect::<Vec<_>>();
        assert_eq!(of(&rooms(&config)), [("store", false), ("audit", false)]);
        assert!(rooms(&config)[0].free_bytes.is_some());
        config.limits.disk_free_bytes = usize::MAX;
        config.publish.directory = Some(directory.path().join("none"));
        assert_eq!(of(&rooms(&config)), [("store", true), ("publish", false), ("audit", true)]);
    }
}
