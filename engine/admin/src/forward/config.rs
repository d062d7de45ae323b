//! Settings of the socket for requests that `handled` forwards.

use handle_daemon::settings;
use std::path::PathBuf;

settings! {
    /// Requests that `handled` forwards ([forwarding.md](forwarding.md)).
    pub struct ForwardConfig {
        /// UNIX socket at which `handled`, running as the same user, forwards requests; none if not
        /// set.
        restart socket: Option<PathBuf> = None;
        /// Connections to this socket at a time. Each request and each listing in progress uses
        /// one.
        restart connections: usize = 64, 1..=1024;
        /// Forwarded requests in progress at a time; others wait.
        restart requests: usize = 16, 1..=256;
        /// Resolve derived prefixes that a record here delegates for clients below version 2.10,
        /// which do not understand a referral.
        restart resolve_for_old: bool = true;
        /// Such resolutions at a time. One more gets RC 3.
        restart resolutions: usize = 8, 1..=256;
    }
}
