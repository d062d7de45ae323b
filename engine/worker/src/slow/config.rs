//! The settings of the slow path: threads and limits.

use handle_auth::Pbkdf2Limits;
pub use handle_daemon::administrators::AdministratorsConfig;
pub use handle_daemon::identity::{HandleIdentity, identities};
pub use handle_daemon::server_key::ServerKeyConfig;
use handle_daemon::settings;
use handle_daemon::settings::NETWORKS;
use handle_proto::limit::{PBKDF2_ITERATIONS_MAX, VLIST_EXPANSION_MAX};
use handle_proto::wire::list::Reference;

settings! {
    /// The slow path, which answers requests that need a signature or an identity.
    pub struct SlowConfig {
        /// Set this when one thread cannot make all signatures and check all identities; 0 when
        /// none is to: then nothing is signed, and values that are not public are refused.
        restart threads: usize = 1, 0..=256;
        /// Set this when these threads must stay off the cores of the workers: cores that they run
        /// on; any if empty.
        restart cores: Vec<usize> = Vec::new();
        /// Set this when all cores are always busy, so that these threads never run: `false` runs
        /// them at a low priority instead of only while their core is idle (SCHED_IDLE).
        restart idle: bool = true;
        /// Set this when gateways, relaying caching servers, or servers that verify answers here
        /// ask for many clients: sources without the limits of challenges, work, signatures and
        /// wrong secret keys by source.
        restart exempt_sources: Vec<String> = Vec::new(), NETWORKS;
        /// Set this when clients need longer to answer a challenge, as those that ask for a
        /// passphrase.
        restart challenge_ms: u32 = 60_000, 1..=3_600_000;
        /// Set this when clients derive keys with more rounds of PBKDF2: most in the answer to a
        /// challenge. Four take about a microsecond. All keys that are tried for an answer may take
        /// 1.6 times as many, each once for each 160 bits.
        restart pbkdf2_iterations: u32 = 100_000, 1..=PBKDF2_ITERATIONS_MAX;
    } constants {
        /// If `idle` is false, nice value of these threads: they yield to the workers, and not to
        /// everything else.
        nice: u8 = 10;
        /// Requests on the slow path, waiting or in progress: less than a second of signatures.
        /// If 8 or more, one source gets a quarter, its /24 or /48 a half, and UDP three quarters.
        /// One more gets RC 2 over UDP, which makes deployed clients use TCP, and RC 3 over TCP.
        queue_requests: usize = 1024;
        /// Challenges waiting for an answer: a thousand clients a second who take a minute. One
        /// more displaces the oldest.
        challenges: usize = 65_536;
        /// Bytes of the challenged requests: 256 for each.
        challenge_bytes: usize = 16 << 20;
        /// Challenges to one IPv4 address or IPv6 /64. One more displaces its oldest.
        challenges_per_source: usize = 256;
        /// Of these, over UDP, where the sender may have forged its address. One more gets RC 2,
        /// which makes deployed clients use TCP.
        challenges_per_source_udp: usize = 64;
        /// Values of groups (HS_VLIST) looked up for one decision.
        group_lookups: usize = VLIST_EXPANSION_MAX;
        /// Keys tried for an identity that does not name one: as many as deployed clients try.
        keys_tried: usize = 16;
        /// Least bits of a key derived by PBKDF2: what deployed clients derive.
        pbkdf2_key_bits_min: u32 = 160;
        /// Most bits of it. Each 160 bits cost as much again.
        pbkdf2_key_bits_max: u32 = 256;
        /// Signatures kept for peers below version 2.7, whose signatures do not cover the request
        /// id: about a megabyte of them.
        signatures_kept: usize = 4096;
        /// Seconds for which a kept signature is reused. The expiry time in the answer is rounded
        /// to multiples of it: a small part of the 12 hours for which answers are valid.
        signature_reuse_s: u32 = 600;
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
            work_max: self.pbkdf2_iterations.saturating_add(self.pbkdf2_iterations / 5 * 3),
        }
    }
}

/// Identities as references to their keys.
pub(super) fn references(identities: &[HandleIdentity]) -> Vec<Reference<'_>> {
    identities.iter().map(|identity| Reference { handle: &identity.handle, index: identity.index }).collect()
}
