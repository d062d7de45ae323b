//! Settings of changes of many records at once.

use handle_daemon::bulk::FRAME_CHANGES_MAX;
use handle_daemon::settings;
use std::path::PathBuf;

settings! {
    /// Changes of many records at once, which `handle-gateway` hands over
    /// ([administration.md](../administration.md#many-changes-at-once)).
    pub struct BulkConfig {
        /// UNIX socket for `handle-gateway`; none if not set.
        restart socket: Option<PathBuf> = None;
        /// File mode of the socket, as a decimal or, in TOML, octal number (`0o660`).
        restart mode: u32 = 0o600, 0..=0o777;
        /// User ids whose processes may connect, besides the user of `handle-admin`.
        restart uids: Vec<u32> = Vec::new();
        /// Maximum number of connections to this socket.
        restart connections: usize = 32, 1..=1024;
        /// Maximum number of changes in one commit.
        restart commit_changes: usize = 256, 1..=FRAME_CHANGES_MAX;
        /// Timeout of a connection without requests, and for its peer to read results.
        restart idle_ms: u32 = 120_000, 1..=3_600_000;
        /// Maximum number of keys of repeatable requests. A new key displaces the oldest.
        restart keys: usize = 10_000, 1..=1 << 24;
        /// Of these, for one identity. One more drops its own oldest.
        restart keys_per_identity <= keys: usize = 2500, 1..=1 << 24;
        /// How long a key is kept.
        restart keys_s: u32 = 86_400, 1..=31_536_000;
        /// Maximum number of results that are kept for all keys. Beyond it, the oldest keys are
        /// dropped.
        restart results: usize = 2_000_000, 1..=1 << 40;
        /// Of these, for one identity. More drop its own oldest keys and results.
        restart results_per_identity <= results: usize = 500_000, 1..=1 << 40;
    }
}
