//! The settings for sessions.

use crate::setup::SetupTerms;
use crate::table::SessionLimits;
use handle_auth::source::SourceList;
use handle_daemon::settings;
use handle_daemon::settings::{NETWORKS, SettingRule, SettingType};
use handle_proto::code::Cipher;
use handle_proto::limit::SESSION_TIMEOUT_DEFAULT_S;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

settings! {
    /// Keys agreed on with clients, so that answers are certified and encrypted without a signature
    /// or challenge for each ([sessions.md](sessions.md)). In `handled`, they need `slow.threads`.
    pub struct SessionsConfig {
        /// Set this when more clients keep sessions, or memory is short: sessions at a time, a 25th
        /// of them for one source; 0 when no client may set one up. One more displaces one without
        /// an authenticated identity; one more of a source, its longest idle.
        restart sessions: usize = 100_000, 0..=1 << 24;
        /// Set this when many clients share an address, as behind a gateway: sources without the
        /// limits of sessions by source.
        restart exempt_sources: Vec<String> = Vec::new(), NETWORKS;
        /// Set this when clients of versions below 2.7 need sessions, whose messages are not
        /// protected against replay and downgrade.
        restart old_versions: bool = false;
        /// Set this when sessions should end earlier, or last longer, without a message. A client
        /// may request less.
        restart timeout_s: u32 = SESSION_TIMEOUT_DEFAULT_S, 1..=366 * 86_400;
        /// Set this when clients need another cipher than AES: the allowed ones, of which the first
        /// is used. Peers below version 2.4 support only DES; if it is not listed, they are
        /// refused.
        restart ciphers: Vec<CipherName> = vec![CipherName::Aes], CIPHERS;
        /// Set this when clients move between `handled` and `handle-admin` within a session: the
        /// UNIX socket over which both share sessions; `handled` answers its own user and the owner
        /// of the directory of `forward.socket`. Without it, each has its own.
        restart socket: Option<PathBuf> = None;
    } constants {
        /// Unproven sessions of one source, in which no message has arrived. One more displaces the
        /// oldest of them. Deployed clients set up one session and use it at once.
        unproven_per_source: usize = 64;
        /// Of these, sessions set up over UDP, at `handled`, where the sender may have forged its
        /// address. One more gets RC 2, which makes deployed clients use TCP.
        unproven_per_source_udp: usize = 16;
        /// Seconds after which an unproven session ends: as long as a challenge can be answered.
        unproven_s: u32 = 60;
        /// Least bits of the modulus of a key exchange, which the client chooses. Deployed clients
        /// use 1024.
        modulus_bits_min: u32 = 1024;
        /// Most bits of that modulus. Twice the bits take seven times as long.
        modulus_bits_max: u32 = 2048;
    }
}

/// One source may have one in this many sessions: 4000 of 100,000.
const SOURCE_SHARE: usize = 25;

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
    /// Whether clients can set up sessions.
    #[must_use]
    pub const fn are_enabled(&self) -> bool {
        self.sessions > 0
    }

    /// The bounds of the table.
    #[must_use]
    pub fn limits(&self) -> SessionLimits {
        SessionLimits {
            sessions_max: self.sessions,
            per_source_max: self.sessions.div_ceil(SOURCE_SHARE),
            unproven_per_source_max: self.unproven_per_source.min(self.sessions),
            datagrams_per_source_max: Some(self.unproven_per_source_udp.min(self.sessions)),
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
            timeout_s_max: self.timeout_s,
            allows_old_versions: self.old_versions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn ciphers_are_named_as_in_the_configuration() {
        let config: SessionsConfig = toml::from_str("ciphers = [\"des3\", \"aes\", \"des\"]").unwrap();
        let codes: Vec<Cipher> = config.ciphers.iter().map(|cipher| cipher.code()).collect();
        assert_eq!(codes, [Cipher::DESEDE, Cipher::AES, Cipher::DES]);
        let unknown = toml::from_str::<SessionsConfig>("ciphers = [\"rot13\"]").unwrap_err().to_string();
        assert!(unknown.contains("rot13"), "{unknown}");
        let none = SessionsConfig { ciphers: Vec::new(), ..SessionsConfig::default() };
        let error = none.check().unwrap_err().to_string();
        assert!(error.contains("ciphers"), "{error}");
    }
}
