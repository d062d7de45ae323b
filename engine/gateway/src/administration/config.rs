//! Settings of the administration service.

use handle_daemon::settings;
use std::net::SocketAddr;
use std::path::PathBuf;

settings! {
    /// The administration service, for changes and for what is not public.
    pub struct AdminConfig {
        /// Set this when records are changed through this gateway: the TCP address of
        /// `handle-admin`. Without it nothing can be changed, and only public values are shown. If
        /// the address is not on this host, the service is proven by the key in the site record,
        /// secrets are sent in encrypted sessions, and the address of this gateway belongs in
        /// `limits.exempt_sources` of `handle-admin`: otherwise all clients of the gateway share
        /// one count of wrong secrets.
        restart address: Option<SocketAddr> = None;
        /// Set this when `handle-admin` is on this host: its UNIX socket, `local.socket` there.
        /// Without it, callers authenticate with secret keys only and have no sessions, there is no
        /// `/api/batch`, and mirrors get no streams over HTTP.
        restart socket: Option<PathBuf> = None;
        /// Set this when clients search for handles by their values, for which `handle-admin` has
        /// an index (`index.types`): answer them at `/hrls/handles`. Needs `socket`.
        restart search: bool = false;
        /// Set this when more callers change records at a time: requests that wait for
        /// `handle-admin` at a time, a quarter of them of one source (an IPv4 address, or a /64 of
        /// IPv6). Further ones get status 503.
        restart requests: usize = 64, 1..=4096;
        /// Set this when clients read a record immediately after changing it, and publishing takes
        /// longer, or when they need not: time for which the answer to a change waits until the
        /// mapped set has it; 0 to answer when the change is durable. At most 16 times `requests`
        /// answers wait, a quarter of them for one source; further changes are answered at once.
        live visible_ms: u32 = 500, 0..=60_000;
    } constants {
        /// Time for each answer of the service, which may need answers of other services to verify
        /// a caller.
        answer_ms: u32 = 30_000;
        /// Maximum length of the answer to a forwarded message, which is held in memory.
        answer_bytes: usize = 64 << 20;
    }
}
