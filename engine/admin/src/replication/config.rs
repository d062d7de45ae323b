//! Settings of streams for mirrors.

use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;
use std::path::PathBuf;

settings! {
    /// Streams of transactions and records for mirrors ([mirrors.md](../mirrors.md)). Only the
    /// identities of `administrators.replication` and `administrators.server` may request them.
    pub struct ReplicationConfig {
        /// Send streams to mirrors. A server without a key refuses all requests for them.
        restart enabled: bool = true;
        /// Name of this site for other sites: `INDEX:HANDLE` of its HS_SITE value. `sources` if not
        /// set.
        restart site_name: Option<String> = None;
        /// Maximum number of streams at a time. Further requests get RC 3.
        restart streams: usize = 8, 1..=1024;
        /// Maximum number of these streams to one identity, so that one mirror cannot take all
        /// places.
        restart streams_per_identity: usize = 4, 1..=1024;
        /// Maximum time for a receiver to read 64 KiB of a stream, and for its TLS handshake.
        restart write_ms: u32 = 60_000, 1..=DAY_MS;
        /// Maximum time for a stream. Meanwhile, the file of the store keeps all pages that the
        /// stream reads, and grows with each change.
        restart stream_ms: u32 = 43_200_000, 1..=DAY_MS;
        /// Begin dumps with the times of the last changes of all handles and prefixes. Receivers
        /// need these only if they accept changes from several primary sites.
        restart dates: bool = false;
        /// UNIX socket at which `handle-gateway` relays messages whose answers may be streams; none
        /// if not set.
        restart socket: Option<PathBuf> = None;
        /// File mode of the socket, as a decimal or, in TOML, octal number (`0o660`).
        restart socket_mode: u32 = 0o600, 0..=0o777;
        /// User ids whose processes may connect, besides the user of `handle-admin`.
        restart socket_uids: Vec<u32> = Vec::new();
        /// Connections to this socket at a time. Each message in progress uses one.
        restart socket_connections: usize = 64, 1..=1024;
    }
}
