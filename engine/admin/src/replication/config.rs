//! Settings of streams for mirrors.

use handle_daemon::settings;

settings! {
    /// Streams of transactions and records for mirrors ([mirrors.md](../mirrors.md)). Only
    /// identities of `administrators.replication` and `administrators.server` may request them.
    pub struct ReplicationConfig {
        /// Set this when no mirror may copy the records: `false` refuses all streams, as does a
        /// server without a key.
        restart enabled: bool = true;
        /// Set this when mirrors accept changes from several primary sites: the name of this one,
        /// `INDEX:HANDLE` of its HS_SITE value; `sources` if not set. Dumps then begin with the
        /// times of the last changes of all handles and prefixes, which other mirrors do not need.
        restart site_name: Option<String> = None;
        /// Set this when there are more mirrors: streams at a time; one more gets RC 3. One
        /// identity has at most half.
        restart streams: usize = 8, 1..=1024;
    } constants {
        /// Maximum time for a receiver to read 64 KiB of a stream, and for its TLS handshake: a
        /// mirror commits what it has received within seconds.
        write_ms: u32 = 60_000;
        /// Maximum time for a stream. Meanwhile, the file of the store keeps all pages that the
        /// stream reads, and grows with each change. Ten million records take minutes.
        stream_ms: u32 = 43_200_000;
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
