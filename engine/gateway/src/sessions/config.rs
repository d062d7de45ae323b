//! Settings of the sessions of callers over HTTP.

use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;

settings! {
    /// Sessions of the JSON API and of the administration pages
    /// ([gateway.md](../gateway.md#sessions)).
    pub struct SessionsConfig {
        /// Maximum number of sessions with an identity. Further ones get status 503.
        live sessions: usize = 16_384, 1..=1 << 20;
        /// Of these, for one identity. One more displaces its oldest.
        live per_identity: usize = 64, 1..=1 << 20;
        /// Time after which such a session ends if it is not used.
        live idle_ms: u32 = 1_800_000, 1000..=DAY_MS;
        /// Time after which such a session ends in any case.
        live session_ms: u32 = DAY_MS, 1000..=DAY_MS;
        /// Maximum number of sessions without an identity. A new one displaces the oldest.
        live unproven: usize = 65_536, 1..=1 << 20;
        /// Of these, those of one source: an IPv4 address, or a /64 of IPv6. A new one displaces
        /// the oldest of its source.
        live unproven_per_source <= unproven: usize = 256, 1..=1 << 20;
        /// Time after which a session without an identity ends.
        live unproven_ms: u32 = 300_000, 1000..=3_600_000;
        /// Accept proofs with MD5, which old clients make with secret keys.
        live md5: bool = false;
        /// Accept proofs with SHA-1 as deployed clients make them: signatures, and digests with
        /// secret keys. MACs and keys that are derived with it are always accepted.
        live sha1: bool = true;
    }
}
