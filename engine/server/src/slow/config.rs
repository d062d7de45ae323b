//! The settings of the slow path: administrators, threads and limits.

use anyhow::ensure;
use handle_auth::Pbkdf2Limits;
pub use handle_daemon::administrators::AdministratorsConfig;
pub use handle_daemon::identity::{HandleIdentity, identities};
pub use handle_daemon::server_key::ServerKeyConfig;
use handle_daemon::sessions::config::exempt_sources;
use handle_proto::limit::{
    MESSAGE_EXPIRATION_S, PBKDF2_ITERATIONS_MAX, PBKDF2_KEY_BITS_MAX, VLIST_EXPANSION_MAX,
};
use serde::{Deserialize, Serialize};

/// The settings of the slow path, which answers requests that need a signature or an identity.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlowConfig {
    /// Number of slow threads; 0 for none. Then nothing is signed, and values that are not public
    /// are refused.
    pub threads: usize,
    /// Cores that the slow threads may run on. Empty: any core.
    pub cores: Vec<usize>,
    /// Whether the slow threads run only on cores that are otherwise idle (SCHED_IDLE).
    pub idle: bool,
    /// Nice value of the slow threads if `idle` is false: from 0 to 19, the lowest priority.
    pub nice: u8,
    /// Requests that wait for the slow path or are in it. A request beyond that is answered that
    /// the server is busy.
    pub queue_requests: usize,
    /// Challenges that wait for an answer; a new one displaces the oldest.
    pub challenges: usize,
    /// Bytes of the challenged requests that are kept.
    pub challenge_bytes: usize,
    /// Challenges to one source that wait for an answer: an IPv4 address, or a /64 of IPv6. A new
    /// one beyond that displaces the oldest of the source.
    pub challenges_per_source: usize,
    /// Of these, challenges to requests over UDP. A request beyond that gets code 2, after which
    /// deployed clients use TCP.
    pub challenges_per_source_udp: usize,
    /// Addresses and networks that are exempt from limits by source.
    pub exempt_sources: Vec<String>,
    /// How long a challenge can be answered, in milliseconds.
    pub challenge_ms: u32,
    /// Most values of groups (HS_VLIST) that are looked up to decide whether an identity is an
    /// administrator.
    pub group_lookups: usize,
    /// Most keys of one identity that are tried when its answer does not name the key.
    pub keys_tried: usize,
    /// Most PBKDF2 rounds that the answer to a challenge may ask for; four take about a
    /// microsecond.
    pub pbkdf2_iterations: u32,
    /// Most rounds, times one for each 160 bits of the derived key, times the keys that are tried.
    pub pbkdf2_work: u32,
    /// Least bits of a derived key.
    pub pbkdf2_key_bits_min: u32,
    /// Most bits of a derived key.
    pub pbkdf2_key_bits_max: u32,
    /// Signatures kept for peers below version 2.7, whose signatures do not cover the request id.
    pub signatures_kept: usize,
    /// How long such a signature is reused, in seconds. The expiry time in the answer is rounded to
    /// multiples of it.
    pub signature_reuse_s: u32,
}

impl Default for SlowConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            cores: Vec::new(),
            idle: true,
            nice: 10,
            queue_requests: 1024,
            challenges: 65_536,
            challenge_bytes: 16 << 20,
            challenges_per_source: 256,
            challenges_per_source_udp: 64,
            exempt_sources: Vec::new(),
            challenge_ms: 60_000,
            group_lookups: VLIST_EXPANSION_MAX,
            keys_tried: 16,
            pbkdf2_iterations: 100_000,
            pbkdf2_work: 160_000,
            pbkdf2_key_bits_min: 160,
            pbkdf2_key_bits_max: 256,
            signatures_kept: 4096,
            signature_reuse_s: 600,
        }
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

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting and its valid values.
    pub fn check(&self) -> anyhow::Result<()> {
        let (bits_min, bits_max) = (self.pbkdf2_key_bits_min, self.pbkdf2_key_bits_max);
        let bounds = [
            ("threads", self.threads, 0, 256),
            ("nice", self.nice.into(), 0, 19),
            ("queue_requests", self.queue_requests, 1, 1 << 16),
            ("challenges", self.challenges, 1, 1 << 24),
            ("challenge_bytes", self.challenge_bytes, 1 << 10, 1 << 32),
            ("challenges_per_source", self.challenges_per_source, 1, self.challenges),
            ("challenges_per_source_udp", self.challenges_per_source_udp, 0, self.challenges_per_source),
            ("challenge_ms", self.challenge_ms as usize, 1, 3_600_000),
            ("group_lookups", self.group_lookups, 0, VLIST_EXPANSION_MAX),
            ("keys_tried", self.keys_tried, 1, 1024),
            ("pbkdf2_iterations", self.pbkdf2_iterations as usize, 1, PBKDF2_ITERATIONS_MAX as usize),
            ("pbkdf2_work", self.pbkdf2_work as usize, 1, 1 << 30),
            ("pbkdf2_key_bits_min", bits_min as usize, 128, bits_max as usize),
            ("pbkdf2_key_bits_max", bits_max as usize, 128, PBKDF2_KEY_BITS_MAX as usize),
            ("signatures_kept", self.signatures_kept, 0, 1 << 24),
            ("signature_reuse_s", self.signature_reuse_s as usize, 1, MESSAGE_EXPIRATION_S as usize / 2),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`slow.{name}` is {value}: it must be from {least} to {most}"
            );
        }
        exempt_sources("slow.exempt_sources", &self.exempt_sources)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_their_edges() {
        let with = |change: fn(&mut SlowConfig)| {
            let mut config = SlowConfig::default();
            change(&mut config);
            config.check().is_ok()
        };
        assert!(with(|_| ()));
        assert!(with(|slow| slow.threads = 0) && with(|slow| slow.threads = 256));
        assert!(!with(|slow| slow.threads = 257));
        assert!(with(|slow| slow.nice = 19) && !with(|slow| slow.nice = 20));
        assert!(with(|slow| slow.queue_requests = 1) && !with(|slow| slow.queue_requests = 0));
        assert!(with(|slow| slow.challenges_per_source_udp = 256));
        assert!(!with(|slow| slow.challenges_per_source_udp = 257), "more than over UDP and TCP together");
        assert!(with(|slow| slow.exempt_sources = vec!["2001:db8::/32".into()]));
        assert!(!with(|slow| slow.exempt_sources = vec!["2001:db8::/129".into()]));
        assert!(with(|slow| slow.challenges_per_source = 65_536));
        assert!(!with(|slow| slow.challenges_per_source = 65_537), "more than there are in all");
        assert!(with(|slow| slow.group_lookups = 0) && with(|slow| slow.group_lookups = 1000));
        assert!(!with(|slow| slow.group_lookups = 1001));
        assert!(with(|slow| slow.pbkdf2_key_bits_max = 512) && !with(|slow| slow.pbkdf2_key_bits_max = 513));
        assert!(with(|slow| slow.pbkdf2_key_bits_min = 128) && !with(|slow| slow.pbkdf2_key_bits_min = 127));
        assert!(with(|slow| slow.pbkdf2_key_bits_min = 256) && !with(|slow| slow.pbkdf2_key_bits_min = 257));
        assert!(with(|slow| slow.pbkdf2_work = 1) && !with(|slow| slow.pbkdf2_work = 0));
        assert!(with(|slow| slow.pbkdf2_iterations = 1_000_000));
        assert!(!with(|slow| slow.pbkdf2_iterations = 1_000_001));
        assert!(with(|slow| slow.signature_reuse_s = 21_600));
        assert!(!with(|slow| slow.signature_reuse_s = 21_601) && !with(|slow| slow.signature_reuse_s = 0));
        let mut config = SlowConfig { nice: 20, ..SlowConfig::default() };
        assert!(config.check().unwrap_err().to_string().contains("slow.nice"));
        config = SlowConfig { challenge_ms: 0, ..SlowConfig::default() };
        assert!(config.check().unwrap_err().to_string().contains("slow.challenge_ms"));
    }
}
