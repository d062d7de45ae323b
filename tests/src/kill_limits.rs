//! Constants and functions shared by the program `keeper` and the test that kills it.

use handle_admin::publish::PublishConfig;
use std::path::Path;

/// Threads that change records, each with its own records.
pub const WRITERS: usize = 4;
/// Number of records of each thread.
pub const KEYS: usize = 40;

/// The name under which a record is stored.
#[must_use]
pub fn key(writer: usize, at: usize) -> Vec<u8> {
    format!("1/{writer}-{at}").into_bytes()
}

/// Limits so small that all kinds of layers are written continuously.
#[must_use]
pub fn publish_config(directory: &Path) -> PublishConfig {
    PublishConfig {
        directory: Some(directory.to_owned()),
        interval_ms: 1,
        absorb_len: 2048,
        merge_ratio: 1,
        merge_bytes_per_s: 0,
        grace_s: 1,
        keep_every_s: 1,
        keep_count: 2,
        // A process that is killed after some milliseconds would always wait for the lease of the
        // one before.
        lease_ms: 0,
        ..PublishConfig::default()
    }
}
