//! The settings for sessions.

use crate::sessions::setup::SetupTerms;
use crate::sessions::table::SessionLimits;
use anyhow::{Context as _, anyhow, ensure};
use handle_auth::source::SourceList;
use handle_proto::code::Cipher;
use handle_proto::limit::{DH_MODULUS_BITS_MAX, DH_MODULUS_BITS_MIN, SESSION_TIMEOUT_DEFAULT_S};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Sessions: a key agreed on with a client, so that answers can be certified and encrypted without
/// a signature or a challenge for each.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionsConfig {
    /// Whether sessions are enabled. In `handled` they need `slow.threads`.
    pub enabled: bool,
    /// Maximum number of sessions. When it is reached, new sessions displace those without an
    /// authenticated identity.
    pub sessions: usize,
    /// Maximum number of sessions of one source, an IPv4 address or a /64 of IPv6, in which
    /// messages have arrived. One more displaces the session of that source that has been idle the
    /// longest.
    pub sessions_per_source: usize,
    /// Maximum number of sessions of one source in which no message has arrived. One more displaces
    /// the oldest of them.
    pub unproven_per_source: usize,
    /// Maximum number of these that are set up over UDP. A further set-up gets code 2, after which
    /// deployed clients use TCP.
    pub unproven_per_source_udp: usize,
    /// Seconds after which a session ends if no message has arrived in it.
    pub unproven_s: u32,
    /// Addresses and networks that are exempt from the limits per source.
    pub exempt_sources: Vec<String>,
    /// Whether sessions may have versions below 2.7, in which messages are not protected against
    /// replay and downgrade.
    pub old_versions: bool,
    /// Seconds without a message after which a session ends, unless its client asks for another
    /// time.
    pub timeout_s: u32,
    /// Longest timeout that a client may ask for, in seconds.
    pub timeout_s_max: u32,
    /// The allowed ciphers. The first one is used. Peers below version 2.4 only support DES, which
    /// is used with them if it is listed; otherwise they are refused.
    pub ciphers: Vec<CipherName>,
    /// Minimum bits of the modulus of a key exchange; the client chooses the modulus.
    pub modulus_bits_min: u32,
    /// Maximum bits of the modulus; twice the bits take seven times as long.
    pub modulus_bits_max: u32,
    /// The UNIX socket over which `handled` shares its sessions with `handle-admin`, a process of
    /// the same user. When it is not set, each process has its own sessions.
    pub socket: Option<PathBuf>,
}

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

impl Default for SessionsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            sessions: 100_000,
            sessions_per_source: 4096,
            unproven_per_source: 64,
            unproven_per_source_udp: 16,
            unproven_s: 60,
            exempt_sources: Vec::new(),
            old_versions: false,
            timeout_s: SESSION_TIMEOUT_DEFAULT_S,
            timeout_s_max: SESSION_TIMEOUT_DEFAULT_S,
            ciphers: vec![CipherName::Aes],
            modulus_bits_min: 1024,
            modulus_bits_max: 2048,
            socket: None,
        }
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

    /// Resolves a relative `socket` against `directory`.
    #[must_use]
    pub fn relative_to(mut self, directory: &Path) -> Self {
        self.socket = self.socket.map(|socket| directory.join(socket));
        self
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting and its allowed values.
    pub fn check(&self) -> anyhow::Result<()> {
        let (least_bits, most_bits) = (DH_MODULUS_BITS_MIN as usize, DH_MODULUS_BITS_MAX as usize);
        let bounds = [
            ("sessions", self.sessions, 1, 1 << 24),
            ("sessions_per_source", self.sessions_per_source, 1, self.sessions),
            ("unproven_per_source", self.unproven_per_source, 1, self.sessions),
            ("unproven_per_source_udp", self.unproven_per_source_udp, 0, self.unproven_per_source),
            ("unproven_s", self.unproven_s as usize, 1, 3600),
            ("timeout_s_max", self.timeout_s_max as usize, 1, 366 * 86_400),
            ("timeout_s", self.timeout_s as usize, 1, self.timeout_s_max as usize),
            ("modulus_bits_max", self.modulus_bits_max as usize, least_bits, most_bits),
            ("modulus_bits_min", self.modulus_bits_min as usize, least_bits, self.modulus_bits_max as usize),
        ];
        for (name, value, least, most) in bounds {
            ensure!(
                (least..=most).contains(&value),
                "`sessions.{name}` is {value}: it must be from {least} to {most}"
            );
        }
        exempt_sources("sessions.exempt_sources", &self.exempt_sources)?;
        self.ciphers.first().context("`sessions.ciphers` is empty: name at least one, as \"aes\"")?;
        Ok(())
    }
}

/// Parses `texts`, the value of the setting `name`, as networks.
///
/// # Errors
/// Names the text that is not an address or network.
pub fn exempt_sources(name: &str, texts: &[String]) -> anyhow::Result<SourceList> {
    let most = SourceList::LEN_MAX;
    ensure!(texts.len() <= most, "`{name}` has {} entries: it may have {most}", texts.len());
    SourceList::parse(texts)
        .map_err(|text| anyhow!("`{name}` has {text:?}: not a network (write an address, or ADDRESS/BITS)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_their_edges() {
        let with = |change: fn(&mut SessionsConfig)| {
            let mut config = SessionsConfig::default();
            change(&mut config);
            config.check().is_ok()
        };
        assert!(with(|_| ()));
        let few = |it: &mut SessionsConfig, count| {
            (it.sessions, it.sessions_per_source, it.unproven_per_source) = (count, count, count);
            it.unproven_per_source_udp = 0;
        };
        assert!(with(|it| (it.sessions_per_source, it.unproven_per_source) = (1, 16)));
        assert!(!with(|it| it.unproven_per_source = 15), "less than those over UDP");
        assert!(with(|it| it.unproven_per_source_udp = 64) && !with(|it| it.unproven_per_source_udp = 65));
        assert!(with(|it| it.unproven_s = 1) && !with(|it| it.unproven_s = 0));
        assert!(with(|it| it.unproven_s = 3600) && !with(|it| it.unproven_s = 3601));
        assert!(with(|it| it.exempt_sources = vec!["192.0.2.0/24".into()]));
        assert!(!with(|it| it.exempt_sources = vec!["192.0.2.0/33".into()]));
        for (count, is_valid) in [(1, true), (0, false)] {
            let mut config = SessionsConfig::default();
            few(&mut config, count);
            assert_eq!(config.check().is_ok(), is_valid, "{count}");
        }
        assert!(with(|it| it.sessions = 1 << 24) && !with(|it| it.sessions = (1 << 24) + 1));
        assert!(with(|it| it.sessions_per_source = 100_000));
        assert!(!with(|it| it.sessions_per_source = 100_001), "more than there are in all");
        assert!(with(|it| it.timeout_s = 1) && !with(|it| it.timeout_s = 0));
        assert!(!with(|it| it.timeout_s = 86_401), "more than may be asked for");
        assert!(
            with(|it| it.timeout_s_max = 366 * 86_400) && !with(|it| it.timeout_s_max = 366 * 86_400 + 1)
        );
        assert!(with(|it| it.modulus_bits_min = 512) && !with(|it| it.modulus_bits_min = 511));
        assert!(with(|it| it.modulus_bits_max = 8192) && !with(|it| it.modulus_bits_max = 8193));
        assert!(with(|it| it.modulus_bits_min = 2048) && !with(|it| it.modulus_bits_min = 2049));
        assert!(!with(|it| it.ciphers.clear()));
        let config = SessionsConfig { timeout_s: 0, ..SessionsConfig::default() };
        assert!(config.check().unwrap_err().to_string().contains("sessions.timeout_s"));
    }

    #[test]
    fn ciphers_are_named_as_in_the_configuration() {
        let config: SessionsConfig = toml::from_str("ciphers = [\"des3\", \"aes\", \"des\"]").unwrap();
        let codes: Vec<Cipher> = config.ciphers.iter().map(|cipher| cipher.code()).collect();
        assert_eq!(codes, [Cipher::DESEDE, Cipher::AES, Cipher::DES]);
        assert!(toml::from_str::<SessionsConfig>("ciphers = [\"rot13\"]").is_err());
    }
}
