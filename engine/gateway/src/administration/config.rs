//! Settings of the administration service.

use handle_daemon::settings;
use std::net::SocketAddr;
use std::path::PathBuf;

settings! {
    /// The administration service, for changes and for what is not public.
    pub struct AdminConfig {
        /// The TCP address of `handle-admin`. Without it nothing can be changed, and only public
        /// values are shown. If the address is not on this host, the service is proven by the key
        /// in the site record, secrets are sent in encrypted sessions, and the address of this
        /// gateway belongs in `limits.exempt_sources` of `handle-admin`: otherwise all clients of
        /// the gateway share one count of wrong secrets.
        restart address: Option<SocketAddr> = None;
        /// The UNIX socket of `handle-admin` for callers, its `callers.socket`. Without it there
        /// are no sessions, and callers authenticate with secret keys only.
        restart callers: Option<PathBuf> = None;
        /// UNIX socket at which `handle-admin` accepts changes of many records: its `bulk.socket`.
        /// Without it there is no `/api/batch`.
        restart bulk_socket: Option<PathBuf> = None;
        /// Answer searches for handles by their values at `/hrls/handles`, for which `handle-admin`
        /// has an index (`index.types`). Needs `bulk_socket`.
        restart search: bool = false;
        /// UNIX socket at which `handle-admin` accepts relayed messages: its `replication.socket`.
        /// Without it, mirrors get no streams over HTTP.
        restart relay_socket: Option<PathBuf> = None;
        /// Time for each answer of it.
        restart answer_ms: u32 = 30_000, 1..=600_000;
        /// Requests that wait for it at a time. Further ones get status 503.
        restart requests: usize = 64, 1..=4096;
        /// Of these, those of one source: an IPv4 address, or a /64 of IPv6.
        restart requests_per_source <= requests: usize = 16, 1..=4096;
        /// Time for which the answer to a change waits until the mapped set has it; 0 to answer
        /// when the change is durable.
        live visible_ms: u32 = 500, 0..=60_000;
        /// Maximum number of answers that wait for this. Further changes are answered at once.
        live visible_waits: usize = 1024, 0..=1 << 16;
        /// Of these, those of one source: an IPv4 address, or a /64 of IPv6.
        live visible_waits_per_source <= visible_waits: usize = 256, 0..=1 << 16;
        /// Maximum length of the answer to a forwarded message.
        restart answer_bytes: usize = 64 << 20, 1 << 20..=1 << 32;
    }
}
