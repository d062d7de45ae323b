//! The settings of the slow path: threads and limits.

use handle_auth::Pbkdf2Limits;
pub use handle_daemon::administrators::AdministratorsConfig;
pub use handle_daemon::identity::{HandleIdentity, identities};
pub use handle_daemon::server_key::ServerKeyConfig;
use handle_daemon::settings;
use handle_daemon::settings::NETWORKS;
use handle_proto::limit::{
    MESSAGE_EXPIRATION_S, PBKDF2_ITERATIONS_MAX, PBKDF2_KEY_BITS_MAX, VLIST_EXPANSION_MAX,
};
use handle_proto::wire::list::Reference;

settings! {
    /// The slow path, which answers requests that need a signature or an identity.
    pub struct SlowConfig {
        /// Threads of the slow path. With 0, nothing is signed, and values that are not public are
        /// refused.
        restart threads: usize = 1, 0..=256;
        /// Cores that these threads run on. If empty, any core.
        restart cores: Vec<usize> = Vec::new();
        /// Run these threads only while their core is otherwise idle (SCHED_IDLE).
        restart idle: bool = true;
        /// If `idle` is false, nice value of these threads; 19 is the lowest priority.
        restart nice: u8 = 10, 0..=19;
        /// Requests on the slow path, waiting or in progress. If 8 or more, one source gets a
        /// quarter, its /24 or /48 a half, and UDP three quarters. One more gets RC 2 over UDP,
        /// which makes deployed clients use TCP, and RC 3 over TCP.
        restart queue_requests: usize = 1024, 1..=1 << 16;
        /// Challenges waiting for an answer. One more displaces the oldest.
        restart challenges: usize = 65_536, 1..=1 << 24;
        /// Bytes of the challenged requests.
        restart challenge_bytes: usize = 16 << 20, 1 << 10..=1 << 32;
        /// Challenges to one IPv4 address or IPv6 /64. One more displaces its oldest.
        restart challenges_per_source <= challenges: usize = 256, 1..=1 << 24;
        /// Of these, over UDP. One more gets RC 2, which makes deployed clients use TCP.
        restart challenges_per_source_udp <= challenges_per_source: usize = 64, 0..=1 << 24;
        /// Sources that are exempt from the limits of challenges, work and wrong secret keys by
        /// source: caching servers that relay, and servers that verify answers here.
        restart exempt_sources: Vec<String> = Vec::new(), NETWORKS;
        /// Time in which a challenge can be answered.
        restart challenge_ms: u32 = 60_000, 1..=3_600_000;
        /// Values of groups (HS_VLIST) looked up for one decision.
        restart group_lookups: usize = VLIST_EXPANSION_MAX, 0..=VLIST_EXPANSION_MAX;
        /// Keys tried for an identity that does not name one.
        restart keys_tried: usize = 16, 1..=1024;
        /// Most PBKDF2 rounds in the answer to a challenge. Four take about a microsecond.
        restart pbkdf2_iterations: u32 = 100_000, 1..=PBKDF2_ITERATIONS_MAX;
        /// Most PBKDF2 work for one answer: rounds, times one for each 160 bits of the derived key,
        /// times the keys that are tried.
        restart pbkdf2_work: u32 = 160_000, 1..=1 << 30;
        /// Least bits of the derived key.
        restart pbkdf2_key_bits_min <= pbkdf2_key_bits_max: u32 = 160, 128..=PBKDF2_KEY_BITS_MAX;
        /// Most bits of the derived key.
        restart pbkdf2_key_bits_max: u32 = 256, 128..=PBKDF2_KEY_BITS_MAX;
        /// Signatures kept for peers below version 2.7, whose signatures do not cover the request
        /// id.
        restart signatures_kept: usize = 4096, 0..=1 << 24;
        /// Time for which a kept signature is reused. The expiry time in the answer is rounded to
        /// multiples of it.
        restart signature_reuse_s: u32 = 600, 1..=MESSAGE_EXPIRATION_S / 2;
    }
}

impl SlowConfig {
    /// The limits on PBKDF2.
    #[must_use]
    pub const fn pbkdf2(&self) -> Pbkdf2Limits {
        Pbkdf2Limits {
            iterations_max: self.pbkdf2_iterations,
            key_bits_min: self.pbkdf2_key_bits_min,
            key_bits_max: self.pbkdf2_key_bits_max,
            work_max: self.pbkdf2_work,
        }
    }
}

/// Identities as references to their keys.
pub(super) fn references(identities: &[HandleIdentity]) -> Vec<Reference<'_>> {
    identities.iter().map(|identity| Reference { handle: &identity.handle, index: identity.index }).collect()
}
