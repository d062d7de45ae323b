//! How two sides agree on the key of a session. RFC 3652 section 3.8, with the deployed forms.
//!
//! Deployed systems interoperate with Diffie-Hellman. Key exchanges encrypted with RSA do not work
//! between them and are refused.

use crate::facts::PROTECTED_SINCE;
use handle_auth::agreement::{AgreementError, PRIVATE_LEN, respond};
use handle_auth::session::SessionKey;
use handle_proto::Version;
use handle_proto::code::{Cipher, KeyExchangeMode};
use handle_proto::wire::session::{self, KeyExchange, SessionSetup};
use std::fmt;
use std::ops::RangeInclusive;

/// The terms on which a server sets up sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupTerms {
    /// The allowed ciphers. The first one is used, except with peers that only support DES.
    pub ciphers: Vec<Cipher>,
    /// Allowed sizes of the modulus, in bits. The client chooses the modulus.
    pub modulus_bits: RangeInclusive<u32>,
    /// Seconds without a message after which a session ends, unless the client asks for another
    /// time.
    pub timeout_s: u32,
    /// Longest timeout that a client may ask for, in seconds.
    pub timeout_s_max: u32,
    /// Whether sessions may have versions in which messages are not protected against replay and
    /// downgrade.
    pub allows_old_versions: bool,
}

/// Reason why no key was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetupError {
    /// The client asks for an unsupported form of key exchange.
    Mode(KeyExchangeMode),
    /// The public key of the client is unusable.
    Key(AgreementError),
    /// Messages of this version are not protected against replay and downgrade.
    Version,
    /// The peer only supports a cipher that is not allowed, or the shared secret is too short for
    /// the cipher.
    Cipher,
}

/// The text that clients receive. Where deployed servers refuse too, this is their wording, as
/// `conversations.jsonl` shows.
impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mode(KeyExchangeMode::CLIENT_KEY) => "Error performing client cipher key exchange.",
            Self::Mode(KeyExchangeMode::HANDLE_KEY) => "Error performing hdl cipher key exchange.",
            Self::Mode(_) => "Session keys are exchanged by Diffie-Hellman only.",
            Self::Key(AgreementError::Undecodable(_) | AgreementError::Kind) => {
                "Error encoding public session key"
            }
            Self::Key(_) => "This server does not accept the Diffie-Hellman group, or the value in it.",
            Self::Version => "This server has sessions of version 2.7 and later only.",
            Self::Cipher => "This server uses no cipher that the client knows.",
        })
    }
}

impl std::error::Error for SetupError {}

/// The result of a key agreement.
#[derive(Debug)]
pub struct AgreedSession {
    /// The session key.
    pub key: SessionKey,
    /// The data of the answer, from which the client derives the same key.
    pub data: Vec<u8>,
    /// Seconds without a message after which the session ends.
    pub timeout_s: u32,
}

/// The server side of a key agreement with a client that supports versions up to `suggested`.
/// `random` must not be used for anything else.
///
/// # Errors
/// When the request does not meet `terms`.
pub fn agree(
    terms: &SetupTerms,
    setup: &SessionSetup<'_>,
    suggested: Version,
    random: &[u8; PRIVATE_LEN],
) -> Result<AgreedSession, SetupError> {
    let KeyExchange::DiffieHellman(record) = setup.exchange else {
        return Err(SetupError::Mode(setup.exchange.mode()));
    };
    // The suggested version is not authenticated: an attacker on the path may have changed it.
    if suggested < PROTECTED_SINCE && !terms.allows_old_versions {
        return Err(SetupError::Version);
    }
    let since = session::SessionKey::DIFFIE_HELLMAN_SINCE;
    let cipher = if suggested < since {
        terms.ciphers.contains(&Cipher::DES).then_some(Cipher::DES)
    } else {
        terms.ciphers.first().copied()
    };
    let cipher = cipher.ok_or(SetupError::Cipher)?;
    let (record, secret) = respond(record, &terms.modulus_bits, random).map_err(SetupError::Key)?;
    let key = SessionKey::derive(cipher, &secret).ok_or(SetupError::Cipher)?;
    let mut data = Vec::with_capacity(4 + record.len());
    session::SessionKey { cipher, key: &record }.encode(suggested, since, &mut data);
    let timeout_s = match u32::try_from(setup.timeout_s) {
        Ok(requested_s @ 1..) => requested_s.min(terms.timeout_s_max),
        _ => terms.timeout_s,
    };
    Ok(AgreedSession { key, data, timeout_s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_auth::agreement::{Group, KeyPair};
    use handle_proto::wire::list::Reference;

    fn terms() -> SetupTerms {
        let (ciphers, modulus_bits) = (vec![Cipher::AES], 1024..=2048);
        SetupTerms { ciphers, modulus_bits, timeout_s: 100, timeout_s_max: 1000, allows_old_versions: false }
    }

    fn setup(record: &[u8]) -> SessionSetup<'_> {
        let identity = Reference { handle: b"", index: session::ANONYMOUS_INDEX };
        SessionSetup { exchange: KeyExchange::DiffieHellman(record), timeout_s: 0, identity }
    }

    #[test]
    fn both_sides_reach_the_same_key_with_the_cipher_of_the_server() {
        let client = KeyPair::new(Group::oakley_2(), &[1; PRIVATE_LEN]);
        let record = client.public_record();
        let since = session::SessionKey::DIFFIE_HELLMAN_SINCE;
        for (ciphers, suggested, expected) in [
            (vec![Cipher::AES], Version::CURRENT, Some(Cipher::AES)),
            (vec![Cipher::AES, Cipher::DES], Version::CURRENT, Some(Cipher::AES)),
            (vec![Cipher::DESEDE, Cipher::AES], since, Some(Cipher::DESEDE)),
            (vec![Cipher::AES, Cipher::DES], Version::new(2, 3), Some(Cipher::DES)),
            (vec![Cipher::AES], Version::new(2, 3), None),
            (vec![], Version::CURRENT, None),
        ] {
            let case = format!("{ciphers:?} {suggested}");
            let terms = SetupTerms { ciphers, allows_old_versions: true, ..terms() };
            let agreed = agree(&terms, &setup(&record), suggested, &[2; PRIVATE_LEN]);
            let Some(cipher) = expected else {
                assert_eq!(agreed.unwrap_err(), SetupError::Cipher, "{case}");
                continue;
            };
            let agreed = agreed.unwrap();
            let agreement = session::SessionKey::decode(&agreed.data, suggested, since).unwrap();
            assert_eq!(agreement.cipher, cipher, "{case}");
            let secret = client.agree(agreement.key).unwrap();
            assert_eq!(SessionKey::derive(cipher, &secret), Some(agreed.key), "{case}");
        }
    }

    #[test]
    fn versions_without_protection_are_refused_unless_allowed() {
        let record = KeyPair::new(Group::oakley_2(), &[1; PRIVATE_LEN]).public_record();
        for minor in 1..=11 {
            let suggested = Version::new(2, minor);
            for allows_old_versions in [false, true] {
                let terms =
                    SetupTerms { allows_old_versions, ciphers: vec![Cipher::AES, Cipher::DES], ..terms() };
                let agreed = agree(&terms, &setup(&record), suggested, &[2; PRIVATE_LEN]);
                let refused = (minor < 7 && !allows_old_versions).then_some(SetupError::Version);
                assert_eq!(agreed.err(), refused, "2.{minor} {allows_old_versions}");
            }
        }
    }

    #[test]
    fn groups_outside_the_bounds_and_other_modes_are_refused() {
        let record = KeyPair::new(Group::modp_14(), &[1; PRIVATE_LEN]).public_record();
        let narrow = SetupTerms { modulus_bits: 1024..=2047, ..terms() };
        let refused = |terms: &SetupTerms, setup: &SessionSetup<'_>| {
            agree(terms, setup, Version::CURRENT, &[2; PRIVATE_LEN]).unwrap_err()
        };
        let size = SetupError::Key(AgreementError::Size { bits: 2048 });
        assert_eq!(refused(&narrow, &setup(&record)), size);
        let narrow = SetupTerms { modulus_bits: 2049..=4096, ..terms() };
        assert_eq!(refused(&narrow, &setup(&record)), size);
        assert!(matches!(refused(&terms(), &setup(b"")), SetupError::Key(AgreementError::Undecodable(_))));
        let key = Reference { handle: b"0.NA/TST", index: 300 };
        for exchange in [
            KeyExchange::ClientKey(b""),
            KeyExchange::ServerKey,
            KeyExchange::HandleKey(key),
            KeyExchange::Other(KeyExchangeMode(9)),
        ] {
            let setup = SessionSetup { exchange, ..setup(b"") };
            assert_eq!(refused(&terms(), &setup), SetupError::Mode(exchange.mode()));
        }
    }

    #[test]
    fn the_client_chooses_how_long_within_bounds() {
        let record = KeyPair::new(Group::oakley_2(), &[1; PRIVATE_LEN]).public_record();
        for (requested_s, granted) in
            [(0, 100), (-1, 100), (1, 1), (1000, 1000), (1001, 1000), (i32::MAX, 1000)]
        {
            let setup = SessionSetup { timeout_s: requested_s, ..setup(&record) };
            let agreed = agree(&terms(), &setup, Version::CURRENT, &[2; PRIVATE_LEN]).unwrap();
            assert_eq!(agreed.timeout_s, granted, "{requested_s}");
        }
    }
}
