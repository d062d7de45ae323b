//! Free space on the disks that this process writes to, so that a full disk is noticed before
//! changes fail.

use crate::config::Config;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Free space of one file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskSpace {
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
pub fn spaces(config: &Config) -> Vec<DiskSpace> {
    let directory = |file: &Path| match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let directories = [
        ("store", (!config.store.is_in_database()).then(|| directory(&config.store.file))),
        ("publish", config.publish.directory.clone()),
        ("audit", config.audit.as_deref().map(directory)),
    ];
    let space = |(of, directory): (&'static str, Option<PathBuf>)| {
        let directory = directory?;
        let free_bytes =
            rustix::fs::statvfs(&directory).ok().map(|it| it.f_bavail.saturating_mul(it.f_frsize));
        let is_low = free_bytes.is_some_and(|free| free < config.limits.disk_free_bytes as u64);
        Some(DiskSpace { of, directory, free_bytes, is_low })
    };
    directories.into_iter().filter_map(space).collect()
}

/// The result of the last check.
#[derive(Debug, Default)]
pub struct DiskWatch {
    was_low: AtomicBool,
}

impl DiskWatch {
    /// Checks again, and logs differences.
    pub fn look(&self, config: &Config) -> Vec<DiskSpace> {
        let spaces = spaces(config);
        let is_low = spaces.iter().any(|space| space.is_low);
        if self.was_low.swap(is_low, Ordering::Relaxed) != is_low {
            if is_low {
                for DiskSpace { of, directory, free_bytes, .. } in spaces.iter().filter(|space| space.is_low)
                {
                    let directory = directory.display();
                    tracing::warn!(of, %directory, free_bytes, "a disk is nearly full (`limits.disk_free_bytes`)");
                }
            } else {
                tracing::info!("all disks have enough free space again");
            }
        }
        spaces
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
        let of =
            |spaces: &[DiskSpace]| spaces.iter().map(|space| (space.of, space.is_low)).collect::<Vec<_>>();
        assert_eq!(of(&spaces(&config)), [("store", false), ("audit", false)]);
        assert!(spaces(&config)[0].free_bytes.is_some());
        config.limits.disk_free_bytes = usize::MAX;
        config.publish.directory = Some(directory.path().join("none"));
        assert_eq!(of(&spaces(&config)), [("store", true), ("publish", false), ("audit", true)]);
    }
}
