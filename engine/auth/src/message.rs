//! The credential of a message. The version of the message decides what is covered and with which
//! digest. RFC 3652 section 2.2.4, with the deployed coverage.

use crate::digest::{Digest, keyed};
use crate::error::{SignError, VerifyError};
use crate::key::{PrivateKey, PublicKey};
use crate::session::SessionKey;
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::wire::credential::{CoveredPrefix, Mac};
use handle_proto::wire::{Credential, Envelope, Message};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::fmt;

/// The name of a digest in the credential of a signature, in every version.
pub(crate) fn identifier(algorithm: DigestAlgorithm) -> &'static [u8] {
    algorithm.name().unwrap_or_default().as_bytes()
}

/// Whether the signature of a message of `version` covers its request id.
///
/// Up to 2.6 it does not: equal `covered` bytes behind an equal [`CoveredPrefix`] get the same
/// signature for every request, so a server may cache it.
#[must_use]
pub fn covers_request_id(version: Version) -> bool {
    version >= Version::new(2, 7)
}

/// Signs a message. Returns the bytes of its credential, without the length that precedes them.
///
/// `envelope` is that of the sent message (its message length does not matter), `counter` the
/// counter of the message in its session or 0, `covered` header and body.
///
/// # Errors
/// When the computation fails.
pub fn sign_message(
    envelope: &Envelope,
    counter: i32,
    covered: &[u8],
    key: &PrivateKey,
) -> Result<Vec<u8>, SignError> {
    let algorithm = key.digest_for(envelope.version);
    let prefix = CoveredPrefix::of_signature(envelope, counter);
    let signature = key.sign(algorithm, &[prefix.as_bytes(), covered])?;
    let credential = Credential::signed(counter, identifier(algorithm), &signature);
    Ok(encoded(&credential))
}

/// Verifies that `message` behind `envelope` is signed with the private half of `key`. Returns its
/// credential.
///
/// The credential names the digest, whatever the version. The signer that the credential names is
/// ignored, as in deployed software.
///
/// # Errors
/// When the message is not signed, not with a private key, or not with this one.
pub fn verify_message<'a>(
    envelope: &Envelope,
    message: &Message<'a>,
    key: &PublicKey,
) -> Result<Credential<'a>, VerifyError> {
    let credential = credential(message)?;
    if !credential.is_signed() {
        return Err(VerifyError::Kind);
    }
    let algorithm = credential.digest_algorithm().ok_or(VerifyError::Digest)?;
    let prefix = CoveredPrefix::of_signature(envelope, credential.counter);
    key.verify(algorithm, &[prefix.as_bytes(), message.covered], credential.signature)?;
    Ok(credential)
}

/// The MAC of a message in a session: the bytes of its credential, without the length that precedes
/// them.
///
/// Like [`sign_message`], with the key of the session and the form of the version. At 2.5 and 2.6
/// that form is defective and does not cover the counter.
#[must_use]
pub fn mac_message(envelope: &Envelope, counter: i32, covered: &[u8], session_key: &[u8]) -> Vec<u8> {
    let algorithm = Mac::algorithm(envelope.version);
    let form = Mac::of(envelope, counter);
    let mac = keyed(algorithm, session_key, form.parts(algorithm, session_key, covered));
    encoded(&Credential::mac(counter, envelope.version, &mac.expect("a supported algorithm")))
}

/// Verifies that `message` behind `envelope` has a MAC made with the key of a session. Returns its
/// credential, whose counter the receiver has to compare with those it has
/// [seen](handle_proto::wire::counter::SeenCounters).
///
/// The credential names the digest, whatever the version.
///
/// # Errors
/// When the message has no credential, one of another kind, or another MAC.
pub fn verify_mac_message<'a>(
    envelope: &Envelope,
    message: &Message<'a>,
    session_key: &[u8],
) -> Result<Credential<'a>, VerifyError> {
    verify_mac(message, |algorithm, counter| {
        let form = Mac::of(envelope, counter);
        keyed(algorithm, session_key, form.parts(algorithm, session_key, message.covered))
    })
}

fn verify_mac<'a>(
    message: &Message<'a>,
    make: impl FnOnce(DigestAlgorithm, i32) -> Option<Digest>,
) -> Result<Credential<'a>, VerifyError> {
    let credential = credential(message)?;
    if !credential.is_mac() {
        return Err(VerifyError::Kind);
    }
    let algorithm = credential.digest_algorithm().ok_or(VerifyError::Digest)?;
    let mac = make(algorithm, credential.counter).ok_or(VerifyError::Digest)?;
    mac.check(credential.signature)?;
    Ok(credential)
}

/// The key of a session, prepared for many MACs: [`mac_message`] and [`verify_mac_message`] without
/// setting up the HMAC of current versions for each message, and without allocation.
pub struct MacKey {
    key: SessionKey,
    hmac: Hmac<Sha256>,
}

impl MacKey {
    /// Prepares the key.
    #[must_use]
    pub fn new(key: SessionKey) -> Self {
        let hmac = Hmac::new_from_slice(key.as_bytes()).expect("a key of any length");
        Self { key, hmac }
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &SessionKey {
        &self.key
    }

    /// Replaces the credential of `message`, which begins with its envelope, by a MAC with the
    /// counter `counter`. Does not allocate if `message` has capacity for about 100 more bytes.
    ///
    /// # Errors
    /// When `message` is not a message. It is then unchanged.
    pub fn seal(&self, message: &mut Vec<u8>, counter: i32) -> Result<(), SignError> {
        let Ok((envelope, rest)) = Envelope::split(message) else { return Err(SignError::Failed) };
        let Ok(Message { covered, .. }) = Message::decode(rest) else { return Err(SignError::Failed) };
        let (covered_len, algorithm) = (covered.len(), Mac::algorithm(envelope.version));
        let mac = self.compute(algorithm, &envelope, counter, covered).ok_or(SignError::Digest(algorithm))?;
        attach(message, covered_len, |out| Credential::mac(counter, envelope.version, &mac).encode(out));
        Ok(())
    }

    /// Like [`verify_mac_message`].
    ///
    /// # Errors
    /// As for [`verify_mac_message`].
    pub fn verify<'a>(
        &self,
        envelope: &Envelope,
        message: &Message<'a>,
    ) -> Result<Credential<'a>, VerifyError> {
        verify_mac(message, |algorithm, counter| self.compute(algorithm, envelope, counter, message.covered))
    }

    fn compute(
        &self,
        algorithm: DigestAlgorithm,
        envelope: &Envelope,
        counter: i32,
        covered: &[u8],
    ) -> Option<Digest> {
        let (form, key) = (Mac::of(envelope, counter), self.key.as_bytes());
        let parts = form.parts(algorithm, key, covered);
        if algorithm != DigestAlgorithm::HMAC_SHA256 {
            return keyed(algorithm, key, parts);
        }
        let mut hmac = self.hmac.clone();
        parts.for_each(|part| hmac.update(part));
        Some(Digest::from_bytes(&hmac.finalize().into_bytes()))
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

/// Replaces the credential of `message`, whose header and body have `covered_len` bytes, by the
/// bytes that `write` appends.
pub fn attach(message: &mut Vec<u8>, covered_len: usize, write: impl FnOnce(&mut Vec<u8>)) {
    let len_at = Envelope::LEN + covered_len;
    message.truncate(len_at);
    message.extend_from_slice(&[0; 4]);
    write(message);
    let len = len_u32(message.len() - len_at - 4);
    message[len_at..len_at + 4].copy_from_slice(&len.to_be_bytes());
    let message_len = len_u32(message.len() - Envelope::LEN);
    message[MESSAGE_LEN_AT..Envelope::LEN].copy_from_slice(&message_len.to_be_bytes());
}

/// Offset of the message length in an envelope.
const MESSAGE_LEN_AT: usize = 16;

#[expect(clippy::cast_possible_truncation, reason = "parts of a message are below 4 GiB")]
const fn len_u32(len: usize) -> u32 {
    len as u32
}

fn credential<'a>(message: &Message<'a>) -> Result<Credential<'a>, VerifyError> {
    message.decode_credential().map_err(VerifyError::Malformed)?.ok_or(VerifyError::Unsigned)
}

fn encoded(credential: &Credential<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(credential.encoded_len());
    credential.encode(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{envelope, private_key};
    use handle_proto::wire::{Header, MessageBuf};
    use handle_proto::{OpCode, OpFlags, ResponseCode};

    const KEY: &[u8] = b"0123456789abcdef";

    fn covered() -> Vec<u8> {
        let header = Header {
            op_code: OpCode::RESOLUTION,
            response_code: ResponseCode::SUCCESS,
            flags: OpFlags::PLAIN_REQUEST,
            site_serial: 7,
            recursion_count: 0,
            reserved: 0,
            expiration: 0x6700_0000,
            body_len: 0,
        };
        MessageBuf::new(&envelope(11), &header, |out| out.extend_from_slice(b"body")).covered().to_vec()
    }

    fn with_credential<'a>(covered: &'a [u8], credential: &'a [u8]) -> Message<'a> {
        let mut message = Message::decode(covered).unwrap();
        message.credential = credential;
        message
    }

    #[test]
    fn signatures_cover_the_request_id_from_2_7() {
        let (key, covered) = (private_key("admin_rsa"), covered());
        for minor in 1..=11 {
            let (one, two) = (envelope(minor), Envelope { request_id: 9, ..envelope(minor) });
            let credential = sign_message(&one, 3, &covered, &key).unwrap();
            let message = with_credential(&covered, &credential);
            assert_eq!(verify_message(&one, &message, key.public()).unwrap().counter, 3, "2.{minor}");
            let moved = verify_message(&two, &message, key.public()).is_ok();
            assert_eq!(moved, !covers_request_id(one.version), "2.{minor}");
        }
    }

    #[test]
    fn macs_are_made_and_checked_in_every_version() {
        let covered = covered();
        for minor in 1..=11 {
            let envelope = envelope(minor);
            let credential = mac_message(&envelope, 3, &covered, KEY);
            let message = with_credential(&covered, &credential);
            assert_eq!(verify_mac_message(&envelope, &message, KEY).unwrap().counter, 3, "2.{minor}");
            let wrong = Err(VerifyError::Wrong);
            assert_eq!(verify_mac_message(&envelope, &message, b"0123456789abcdeg"), wrong, "2.{minor}");
            assert_eq!(verify_mac_message(&envelope, &message, b""), wrong, "2.{minor}");
            let other = Envelope { session_id: 6, ..envelope };
            let is_covered = minor >= 7;
            assert_eq!(verify_mac_message(&other, &message, KEY).is_err(), is_covered, "2.{minor}");
        }
    }

    #[test]
    fn a_prepared_key_computes_the_same_macs() {
        let covered = covered();
        let key = SessionKey::new(handle_proto::code::Cipher::AES, vec![7; 32]).unwrap();
        let ready = MacKey::new(key.clone());
        for minor in 1..=11 {
            let envelope = envelope(minor);
            let plain = mac_message(&envelope, 3, &covered, key.as_bytes());
            let mut sealed = [&envelope.to_bytes()[..], &covered, &[0; 4]].concat();
            ready.seal(&mut sealed, 3).unwrap();
            let (sealed_envelope, rest) = Envelope::split(&sealed).unwrap();
            assert_eq!(sealed_envelope.message_len as usize, rest.len(), "2.{minor}");
            let message = Message::decode(rest).unwrap();
            assert_eq!((message.covered, message.credential), (&covered[..], &plain[..]), "2.{minor}");
            assert_eq!(ready.verify(&sealed_envelope, &message).unwrap().counter, 3, "2.{minor}");
            let capacity = sealed.capacity();
            ready.seal(&mut sealed, 4).unwrap();
            assert_eq!(sealed.capacity(), capacity, "2.{minor}: without allocation");
            let message = Message::decode(&sealed[Envelope::LEN..]).unwrap();
            assert_eq!(message.decode_credential().unwrap().unwrap().counter, 4, "2.{minor}");
            let mut forged = sealed.clone();
            *forged.last_mut().unwrap() ^= 1;
            let message = Message::decode(&forged[Envelope::LEN..]).unwrap();
            assert_eq!(ready.verify(&sealed_envelope, &message), Err(VerifyError::Wrong), "2.{minor}");
        }
        assert_eq!(format!("{ready:?}"), "AES key of 32 bytes");
        for no_message in [&b""[..], b"short", &[0; Envelope::LEN]] {
            let mut bytes = no_message.to_vec();
            assert_eq!(ready.seal(&mut bytes, 1), Err(SignError::Failed));
            assert_eq!(bytes, no_message);
        }
    }

    #[test]
    fn signatures_and_macs_are_not_confused() {
        let (key, covered, envelope) = (private_key("admin_rsa"), covered(), envelope(11));
        let signature = sign_message(&envelope, 0, &covered, &key).unwrap();
        let mac = mac_message(&envelope, 0, &covered, KEY);
        let (signed, maced) = (with_credential(&covered, &signature), with_credential(&covered, &mac));
        assert_eq!(verify_message(&envelope, &maced, key.public()), Err(VerifyError::Kind));
        assert_eq!(verify_mac_message(&envelope, &signed, KEY), Err(VerifyError::Kind));
        let unsigned = with_credential(&covered, b"");
        assert_eq!(verify_message(&envelope, &unsigned, key.public()), Err(VerifyError::Unsigned));
        assert_eq!(verify_mac_message(&envelope, &unsigned, KEY), Err(VerifyError::Unsigned));
        for len in 1..signature.len() {
            let cut = with_credential(&covered, &signature[..len]);
            let error = verify_message(&envelope, &cut, key.public()).unwrap_err();
            assert!(matches!(error, VerifyError::Malformed(_)), "cut to {len}: {error}");
        }
    }
}
