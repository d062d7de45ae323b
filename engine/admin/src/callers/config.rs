//! Settings of the socket for callers over HTTP.

use crate::caller_sessions::CallerSessionLimits;
use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;
use std::path::PathBuf;

settings! {
    /// Callers over HTTP ([gateway.md](../gateway.md#sessions)).
    pub struct CallersConfig {
        /// UNIX socket at which `handle-gateway`, running as the same user, verifies callers; none
        /// if not set.
        restart socket: Option<PathBuf> = None;
        /// Maximum number of connections to this socket; others wait. Each request uses one.
        restart connections: usize = 64, 1..=1024;
        /// Sessions of callers. One more displaces the oldest of the identity with most sessions.
        live sessions: usize = 16_384, 1..=1 << 20;
        /// Of these, those of one identity. A new one displaces its oldest.
        live sessions_per_identity <= sessions: usize = 64, 1..=1 << 20;
        /// Time for which a nonce is valid.
        live nonce_ms: u32 = 300_000, 1000..=3_600_000;
        /// Time without use after which a session ends.
        live idle_ms: u32 = 3_600_000, 1000..=DAY_MS;
        /// Time after which a session ends in any case.
        live session_ms: u32 = DAY_MS, 1000..=DAY_MS;
        /// Time after which the key of a session is looked up again if another service has the
        /// identity, for which `remote.cache_s` counts too. A key in the own store is looked up
        /// whenever the session is used.
        live recheck_ms: u32 = 30_000, 1000..=DAY_MS;
    }
}

impl CallersConfig {
    /// Bounds of the table of sessions.
    #[must_use]
    pub const fn limits(&self) -> CallerSessionLimits {
        CallerSessionLimits {
            nonce_ms: self.nonce_ms as u64,
            sessions: self.sessions,
            per_identity: self.sessions_per_identity,
            idle_ms: self.idle_ms as u64,
            age_ms: self.session_ms as u64,
            recheck_ms: self.recheck_ms as u64,
        }
    }
}
