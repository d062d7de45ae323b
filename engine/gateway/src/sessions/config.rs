//! Settings of the sessions of callers over HTTP.

use handle_daemon::settings;
use handle_daemon::settings::DAY_MS;

settings! {
    /// Sessions of the JSON API and of the administration pages
    /// ([gateway.md](../gateway.md#sessions)).
    pub struct SessionsConfig {
        /// Set this when more callers are signed in at a time: sessions with an identity. Further
        /// ones get status 503.
        live sessions: usize = 16_384, 1..=1 << 20;
        /// Set this when your rules sign callers out sooner or later: time without use after which
        /// a session with an identity ends. Any ends after a day.
        live idle_ms: u32 = 1_800_000, 1000..=DAY_MS;
        /// Set this when old clients prove secret keys with MD5: accept their proofs.
        live md5: bool = false;
        /// Set this when no deployed client signs in any more: `false` refuses their proofs with
        /// SHA-1, both signatures and digests with secret keys. MACs and keys derived with it are
        /// always accepted.
        live sha1: bool = true;
    } constants {
        /// Sessions of one identity: those of a person on several devices and of programs that do
        /// not end theirs. One more displaces the oldest.
        per_identity: usize = 64;
        /// Time after which a session ends in any case: a working day is shorter.
        session_ms: u32 = DAY_MS;
        /// Maximum number of sessions without an identity: four times those with one. A new one
        /// displaces the oldest.
        unproven: usize = 65_536;
        /// Of these, those of one source, an IPv4 address or a /64 of IPv6: a 256th, so that no
        /// source displaces those of others. A new one displaces the oldest of its source.
        unproven_per_source: usize = 256;
        /// Time after which a session without an identity ends: to enter a key into a form.
        unproven_ms: u32 = 300_000;
    }
}
