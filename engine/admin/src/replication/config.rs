//! Settings of streams for mirrors.

use handle_daemon::settings;
use std::path::PathBuf;

settings! {
    /// Streams of transactions and records for mirrors ([mirrors.md](../mirrors.md)). Only the
    /// identities of `administrators.replication` and `administrators.server` may request them.
    pub struct ReplicationConfig {
        /// Set this when no mirror may copy the records: `false` refuses streams to all. A server
        /// without a key refuses them as well.
        restart enabled: bool = true;
        /// Set this when mirrors accept changes from several primary sites: the name of this site
        /// for the others, `INDEX:HANDLE` of its HS_SITE value. Dumps then begin with the times of
        /// the last changes of all handles and prefixes, which other mirrors do not need. `sources`
        /// if not set.
        restart site_name: Option<String> = None;
        /// Set this when there are more mirrors: streams at a time. Further requests get RC 3. One
        /// identity has at most half of them, so that no mirror takes all permits.
        restart streams: usize = 8, 1..=1024;
        /// Set this when mirrors of the HTTP interface reach this server through `handle-gateway`:
        /// UNIX socket at which the gateway relays messages whose answers may be streams; none if
        /// not set.
        restart socket: Option<PathBuf> = None;
        /// Set this when `handle-gateway` runs as another user: user ids whose processes may
        /// connect, besides the user of `handle-admin`. If there are any, the file of the socket
        /// has the mode 0666, and each connection is checked.
        restart socket_uids: Vec<u32> = Vec::new();
    } constants {
        /// Maximum time for a receiver to read 64 KiB of a stream, and for its TLS handshake: a
        /// mirror commits what it has received within seconds.
        write_ms: u32 = 60_000;
        /// Maximum time for a stream. Meanwhile, the file of the store keeps all pages that the
        /// stream reads, and grows with each change. Ten million records take minutes.
        stream_ms: u32 = 43_200_000;
        /// Connections to the socket. Each message in progress uses one.
        socket_connections: usize = 64;
    }
}

impl ReplicationConfig {
    /// Whether dumps begin with the times of the last changes: receivers need these if they accept
    /// changes from several primary sites.
    #[must_use]
    pub const fn has_dates(&self) -> bool {
        self.site_name.is_some()
    }

    /// Streams at a time to one identity: half of all.
    #[must_use]
    pub const fn streams_per_identity(&self) -> usize {
        self.streams.div_ceil(2)
    }
}
