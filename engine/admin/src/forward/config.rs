//! Settings of requests that `handled` forwards.

use handle_daemon::settings;

settings! {
    /// Requests that `handled` forwards ([forwarding.md](forwarding.md)).
    pub struct ForwardConfig {
        /// Set this when forwarded requests wait although the machine is idle, or take too much of
        /// it: most in progress; others wait.
        restart requests: usize = 16, 1..=256;
        /// Set this when no client is below version 2.10, or none should cause queries to other
        /// services: `false` refers such clients, which do not understand a referral, instead of
        /// resolving derived prefixes that a record here delegates.
        restart resolve_for_old: bool = true;
    } constants {
        /// Resolutions for old clients at a time, each of which keeps a thread waiting. One more
        /// gets RC 3.
        resolutions: usize = 8;
    }
}
