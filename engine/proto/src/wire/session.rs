//! Sessions: set-up, its answer, and the transfer of a key. RFC 3652 section 3.8.
//!
//! The layouts are the deployed ones: fixed fields, where the RFC has a list of attributes.

use super::cursor::Cursor;
use super::list::Reference;
use super::put;
use crate::code::{Cipher, KeyExchangeMode, Version};
use crate::error::{DecodeError, Field};
use alloc::vec::Vec;

/// Follows every set-up and its answer: counted in the body length, and never read.
const PADDING: [u8; 2] = [0; 2];
/// Index of the anonymous identity.
pub const ANONYMOUS_INDEX: i32 = -1;

/// How to agree on the session key, with the data for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyExchange<'a> {
    /// The server encrypts a key with this RSA key record of the client.
    ClientKey(&'a [u8]),
    /// The client will encrypt a key with the server's RSA key.
    ServerKey,
    /// The server encrypts a key with the RSA key in this value.
    HandleKey(Reference<'a>),
    /// Diffie-Hellman, with this key record of the client.
    DiffieHellman(&'a [u8]),
    /// Another mode, which the server will refuse. The format of its data is unknown.
    Other(KeyExchangeMode),
}

impl KeyExchange<'_> {
    /// The mode as on the wire.
    #[must_use]
    pub const fn mode(&self) -> KeyExchangeMode {
        match self {
            Self::ClientKey(_) => KeyExchangeMode::CLIENT_KEY,
            Self::ServerKey => KeyExchangeMode::SERVER_KEY,
            Self::HandleKey(_) => KeyExchangeMode::HANDLE_KEY,
            Self::DiffieHellman(_) => KeyExchangeMode::DIFFIE_HELLMAN,
            Self::Other(mode) => *mode,
        }
    }
}

/// Body of the request to set up a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSetup<'a> {
    /// How to agree on the key.
    pub exchange: KeyExchange<'a>,
    /// Idle seconds after which the session ends; with zero or less the server chooses.
    pub timeout_s: i32,
    /// The identity that the client claims; an empty handle and [`ANONYMOUS_INDEX`] for none.
    pub identity: Reference<'a>,
}

impl<'a> SessionSetup<'a> {
    /// Decodes a body, with or without the padding. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When a length in it does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        let mode = KeyExchangeMode(cursor.u16(Field::Session)?);
        let timeout_s = cursor.i32(Field::Session)?;
        let identity = reference(&mut cursor)?;
        let exchange = match mode {
            KeyExchangeMode::CLIENT_KEY => KeyExchange::ClientKey(cursor.string(Field::Key)?),
            KeyExchangeMode::SERVER_KEY => KeyExchange::ServerKey,
            KeyExchangeMode::HANDLE_KEY => KeyExchange::HandleKey(reference(&mut cursor)?),
            KeyExchangeMode::DIFFIE_HELLMAN => KeyExchange::DiffieHellman(cursor.string(Field::Key)?),
            other => KeyExchange::Other(other),
        };
        Ok(Self { exchange, timeout_s, identity })
    }

    /// Appends the body to `out`, with the padding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::u16(out, self.exchange.mode().0);
        put::i32(out, self.timeout_s);
        self.identity.encode(out);
        match self.exchange {
            KeyExchange::ClientKey(key) | KeyExchange::DiffieHellman(key) => put::string(out, key),
            KeyExchange::HandleKey(key) => key.encode(out),
            KeyExchange::ServerKey | KeyExchange::Other(_) => {}
        }
        out.extend_from_slice(&PADDING);
    }

    /// Whether the session has no identity.
    #[must_use]
    pub const fn is_anonymous(&self) -> bool {
        self.identity.index == ANONYMOUS_INDEX
    }
}

fn reference<'a>(cursor: &mut Cursor<'a>) -> Result<Reference<'a>, DecodeError> {
    Ok(Reference { handle: cursor.string(Field::Handle)?, index: cursor.i32(Field::Session)? })
}

/// Body of the answer to a [`SessionSetup`], after the request digest.
///
/// The envelope's session id names the new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionAnswer<'a> {
    /// The mode of the request.
    pub mode: KeyExchangeMode,
    /// By mode: [`SessionKey`] for Diffie-Hellman, an encrypted key, or the server's key record.
    pub data: &'a [u8],
}

impl<'a> SessionAnswer<'a> {
    /// Decodes a body, with or without the padding. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When the data do not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        Ok(Self { mode: KeyExchangeMode(cursor.u16(Field::Session)?), data: cursor.string(Field::Session)? })
    }

    /// Appends the body to `out`, with the padding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::u16(out, self.mode.0);
        put::string(out, self.data);
        out.extend_from_slice(&PADDING);
    }
}

/// Key material with its cipher: the data of a Diffie-Hellman answer, and the plaintext of an
/// encrypted session key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionKey<'a> {
    /// The cipher of the session.
    pub cipher: Cipher,
    /// The server's key record, or the session key.
    pub key: &'a [u8],
}

impl<'a> SessionKey<'a> {
    /// First version in which a Diffie-Hellman answer names the cipher. The version that the client
    /// suggests decides.
    pub const DIFFIE_HELLMAN_SINCE: Version = Version::new(2, 4);
    /// First version in which an encrypted session key names the cipher.
    pub const ENCRYPTED_KEY_SINCE: Version = Version::new(2, 2);

    /// Splits the cipher from the key. Before version `since` there is none, and the cipher is DES.
    ///
    /// # Errors
    /// When there is no capacity for a cipher.
    pub fn decode(data: &'a [u8], version: Version, since: Version) -> Result<Self, DecodeError> {
        if version < since {
            return Ok(Self { cipher: Cipher::DES, key: data });
        }
        let mut cursor = Cursor::new(data);
        Ok(Self { cipher: Cipher(cursor.i32(Field::Session)?), key: cursor.rest() })
    }

    /// Appends cipher and key; before version `since` only the key.
    pub fn encode(&self, version: Version, since: Version, out: &mut Vec<u8>) {
        if version >= since {
            put::i32(out, self.cipher.0);
        }
        out.extend_from_slice(self.key);
    }
}

/// Body of the request that transfers a key encrypted with the server's RSA key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangedKey<'a> {
    /// The encrypted [`SessionKey`].
    pub encrypted_key: &'a [u8],
}

impl<'a> ExchangedKey<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When the key does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self { encrypted_key: Cursor::new(body).string(Field::Key)? })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.encrypted_key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{refuses_every_truncation, survives_false_numbers};
    use super::*;
    use alloc::vec;

    const IDENTITY: Reference<'_> = Reference { handle: b"10/adm", index: 300 };

    #[test]
    fn every_mode_round_trips_with_and_without_padding() {
        for exchange in [
            KeyExchange::ClientKey(b"rsa"),
            KeyExchange::ServerKey,
            KeyExchange::HandleKey(Reference { handle: b"10/key", index: 5 }),
            KeyExchange::DiffieHellman(b"dh"),
            KeyExchange::Other(KeyExchangeMode(9)),
            KeyExchange::Other(KeyExchangeMode::NONE),
        ] {
            let (setup, mut out) = (SessionSetup { exchange, timeout_s: 86_400, identity: IDENTITY }, vec![]);
            setup.encode(&mut out);
            let unpadded = out.len() - PADDING.len();
            assert_eq!(SessionSetup::decode(&out), Ok(setup));
            assert_eq!(SessionSetup::decode(&out[..unpadded]), Ok(setup));
            let decode = |bytes: &[u8]| SessionSetup::decode(bytes).map(|_| ());
            refuses_every_truncation(&out[..unpadded], &[], decode);
            survives_false_numbers(&out, decode);
        }
    }

    #[test]
    fn the_anonymous_identity_round_trips() {
        let identity = Reference { handle: b"", index: ANONYMOUS_INDEX };
        let setup = SessionSetup { exchange: KeyExchange::ServerKey, timeout_s: 0, identity };
        let mut out = vec![];
        setup.encode(&mut out);
        assert_eq!(out, b"\0\x02\0\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0");
        assert!(SessionSetup::decode(&out).unwrap().is_anonymous());
    }

    #[test]
    fn answers_and_keys_round_trip() {
        let (answer, mut out) =
            (SessionAnswer { mode: KeyExchangeMode::DIFFIE_HELLMAN, data: b"\x09\x09" }, vec![]);
        answer.encode(&mut out);
        assert_eq!(out, b"\0\x04\0\0\0\x02\x09\x09\0\0");
        assert_eq!(SessionAnswer::decode(&out), Ok(answer));
        assert_eq!(SessionAnswer::decode(&out[..8]), Ok(answer));
        refuses_every_truncation(&out[..8], &[], |bytes| SessionAnswer::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| SessionAnswer::decode(bytes).map(|_| ()));

        let key = ExchangedKey { encrypted_key: &[7, 7] };
        out.clear();
        key.encode(&mut out);
        assert_eq!(ExchangedKey::decode(&out), Ok(key));
        refuses_every_truncation(&out, &[], |bytes| ExchangedKey::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| ExchangedKey::decode(bytes).map(|_| ()));
    }

    #[test]
    fn old_peers_do_not_name_the_cipher() {
        let since = SessionKey::DIFFIE_HELLMAN_SINCE;
        let (new, old) = (Version::new(2, 4), Version::new(2, 3));
        let mut out = vec![];
        SessionKey { cipher: Cipher::AES, key: b"record" }.encode(new, since, &mut out);
        assert_eq!(SessionKey::decode(&out, new, since).unwrap().cipher, Cipher::AES);
        out.clear();
        SessionKey { cipher: Cipher::DES, key: b"record" }.encode(old, since, &mut out);
        assert_eq!(out, b"record");
        assert_eq!(SessionKey::decode(&out, old, since).unwrap().cipher, Cipher::DES);
        assert!(SessionKey::decode(b"123", new, since).is_err());
    }
}
