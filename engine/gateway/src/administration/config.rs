//! Settings of the administration service.

use handle_daemon::settings;
use std::net::SocketAddr;
use std::path::PathBuf;

settings! {
    /// The administration service, for changes and for what is not public.
    pub struct AdminConfig {
        /// Set this when records are changed through this gateway: TCP address of `handle-admin`.
        /// Without it, nothing can be changed, and only public values are shown. On another host,
        /// it is proven by the key in the site record, secrets are sent in encrypted sessions, and
        /// the address of this gateway belongs in its `limits.exempt_sources`; otherwise all
        /// clients of the gateway share one count of wrong secrets.
        restart address: Option<SocketAddr> = None;
        /// Set this when `handle-admin` is on this host: its UNIX socket (`local.socket` there).
        /// Without it, callers have secret keys only and no sessions, there is no `/api/batch`, and
        /// mirrors get no streams over HTTP.
        restart socket: Option<PathBuf> = None;
        /// Set this when clients search for handles by values that `handle-admin` indexes
        /// (`index.types`): answer them at `/hrls/handles`. Needs `socket`.
        restart search: bool = false;
        /// Set this when more callers change records at a time: requests that wait for
        /// `handle-admin`, a quarter of them for one source. Further ones get status 503.
        restart requests: usize = 64, 1..=4096;
        /// Set this when clients read a record right after changing it and publishing takes longer,
        /// or when they need not: time for which the answer to a change waits until the mapped set
        /// has it; 0 to answer when it is durable. At most 16 times `requests` answers wait, a
        /// quarter for one source; further changes are answered at once.
        live visible_ms: u32 = 500, 0..=60_000;
    } constants {
        /// Time for each answer of the service, which may need answers of other services to verify
        /// a caller.
        answer_ms: u32 = 30_000;
        /// Maximum length of the answer to a forwarded message, which is held in memory.
        answer_bytes: usize = 64 << 20;
    }
}
