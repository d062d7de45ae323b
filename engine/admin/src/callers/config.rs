//! Settings of the sessions of callers over HTTP.

use crate::caller_sessions::CallerSessionLimits;
use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;

settings! {
    /// Callers over HTTP ([gateway.md](../gateway.md#sessions)).
    pub struct CallersConfig {
        /// Set this when more callers are logged in at a time: their sessions. One more displaces
        /// the oldest of the identity with most sessions. One identity has at most a 256th, and
        /// then displaces its own oldest.
        live sessions: usize = 16_384, 1..=1 << 20;
        /// Set this when callers should authenticate again sooner or later after a break: time
        /// without use after which a session ends.
        live idle_ms: u32 = 3_600_000, 1000..=DAY_MS;
    } constants {
        /// Time for which a nonce is valid: a person with a device has time to sign it.
        nonce_ms: u32 = 300_000;
        /// Time after which a session ends in any case, so that a stolen one does not last.
        session_ms: u32 = DAY_MS;
        /// Time after which the key of a session is looked up again if another service has the
        /// identity, for which `remote.cache_s` counts too. A key in the own store is looked up
        /// whenever the session is used.
        recheck_ms: u32 = 30_000;
    }
}

impl CallersConfig {
    /// Bounds of the table of sessions.
    #[must_use]
    pub const fn limits(&self) -> CallerSessionLimits {
        CallerSessionLimits {
            nonce_ms: self.nonce_ms as u64,
            sessions: self.sessions,
            per_identity: self.sessions.div_ceil(256),
            idle_ms: self.idle_ms as u64,
            age_ms: self.session_ms as u64,
            recheck_ms: self.recheck_ms as u64,
        }
    }
}
