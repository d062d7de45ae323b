//! The settings for sessions.

use crate::sessions::setup::SetupTerms;
use crate::sessions::table::SessionLimits;
use crate::settings;
use crate::settings::{NETWORKS, SettingRule, SettingType};
use handle_auth::source::SourceList;
use handle_proto::code::Cipher;
use handle_proto::limit::{DH_MODULUS_BITS_MAX, DH_MODULUS_BITS_MIN, SESSION_TIMEOUT_DEFAULT_S};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

settings! {
    /// Sessions: a key agreed on with a client, so that answers can be certified and encrypted
    /// without a signature or a challenge for each ([sessions.md](sessions.md)).
    pub struct SessionsConfig {
        /// Enable sessions. In `handled`, they need `slow.threads`.
        restart enabled: bool = true;
        /// Sessions at a time. One more displaces a session without an authenticated identity.
        restart sessions: usize = 100_000, 1..=1 << 24;
        /// Of these, sessions of one source, an IPv4 address or an IPv6 /64, in which messages have
        /// arrived. One more displaces the one that has been idle for longest.
        restart sessions_per_source <= sessions: usize = 4096, 1..=1 << 24;
        /// Unproven sessions of one source, in which no message has arrived. One more displaces the
        /// oldest of them.
        restart unproven_per_source <= sessions: usize = 64, 1..=1 << 24;
        /// Of these, sessions set up over UDP, at `handled`. One more gets RC 2, which makes
        /// deployed clients use TCP.
        restart unproven_per_source_udp <= unproven_per_source: usize = 16, 0..=1 << 24;
        /// Time after which an unproven session ends.
        restart unproven_s: u32 = 60, 1..=3600;
        /// Sources that are exempt from the limits of sessions by source.
        restart exempt_sources: Vec<String> = Vec::new(), NETWORKS;
        /// Allow sessions of versions below 2.7, in which messages are not protected against replay
        /// and downgrade.
        restart old_versions: bool = false;
        /// Time without a message after which a session ends, if its client requests no other
        /// time-out.
        restart timeout_s <= timeout_s_max: u32 = SESSION_TIMEOUT_DEFAULT_S, 1..=366 * 86_400;
        /// Longest time-out that a client may request.
        restart timeout_s_max: u32 = SESSION_TIMEOUT_DEFAULT_S, 1..=366 * 86_400;
        /// Allowed ciphers; the first one is used. Peers below version 2.4 support only DES, which
        /// is used with them if it is listed; otherwise they are refused.
        restart ciphers: Vec<CipherName> = vec![CipherName::Aes], CIPHERS;
        /// Least bits of the modulus of a key exchange, which the client chooses.
        restart modulus_bits_min <= modulus_bits_max: u32 = 1024, DH_MODULUS_BITS_MIN..=DH_MODULUS_BITS_MAX;
        /// Most bits of that modulus. Twice the bits take seven times as long.
        restart modulus_bits_max: u32 = 2048, DH_MODULUS_BITS_MIN..=DH_MODULUS_BITS_MAX;
        /// UNIX socket over which `handled` shares its sessions with `handle-admin`, a process of
        /// the same user. If not set, each process has its own sessions.
        restart socket: Option<PathBuf> = None;
    }
}

const CIPHERS: SettingRule<Vec<CipherName>> = SettingRule {
    words: "at least one",
    check: |ciphers| match ciphers.is_empty() {
        true => Err("is empty: name at least one, as \"aes\"".to_owned()),
        false => Ok(()),
    },
};

/// A cipher as named in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CipherName {
    /// AES with 128 bits.
    Aes,
    /// Triple DES.
    Des3,
    /// DES, which is broken.
    Des,
}

impl CipherName {
    /// The code of the cipher on the wire.
    #[must_use]
    pub const fn code(self) -> Cipher {
        match self {
            Self::Aes => Cipher::AES,
            Self::Des3 => Cipher::DESEDE,
            Self::Des => Cipher::DES,
        }
    }
}

impl SettingType for CipherName {
    fn type_name() -> String {
        "`aes`, `des3`, `des`".to_owned()
    }
}

impl SessionsConfig {
    /// The bounds of the table.
    #[must_use]
    pub fn limits(&self) -> SessionLimits {
        SessionLimits {
            sessions_max: self.sessions,
            per_source_max: self.sessions_per_source,
            unproven_per_source_max: self.unproven_per_source,
            datagrams_per_source_max: Some(self.unproven_per_source_udp),
            unproven_s: self.unproven_s,
            exempt: SourceList::parse(&self.exempt_sources).unwrap_or_default(),
        }
    }

    /// The terms for setting up sessions.
    #[must_use]
    pub fn terms(&self) -> SetupTerms {
        SetupTerms {
            ciphers: self.ciphers.iter().map(|cipher| cipher.code()).collect(),
            modulus_bits: self.modulus_bits_min..=self.modulus_bits_max,
            timeout_s: self.timeout_s,
            timeout_s_max: self.timeout_s_max,
            allows_old_versions: self.old_versions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingSection as _;

    #[test]
    fn ciphers_are_named_as_in_the_configuration() {
        let config: SessionsConfig = toml::from_str("ciphers = [\"des3\", \"aes\", \"des\"]").unwrap();
        let codes: Vec<Cipher> = config.ciphers.iter().map(|cipher| cipher.code()).collect();
        assert_eq!(codes, [Cipher::DESEDE, Cipher::AES, Cipher::DES]);
        assert!(toml::from_str::<SessionsConfig>("ciphers = [\"rot13\"]").is_err());
        assert!(SessionsConfig { ciphers: Vec::new(), ..SessionsConfig::default() }.check().is_err());
    }
}
