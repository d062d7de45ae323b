//! The credential of a message, and which bytes its signature or MAC covers. RFC 3652 section
//! 2.2.4.

use super::cursor::Cursor;
use super::envelope::Envelope;
use super::put;
use crate::code::{DigestAlgorithm, Version};
use crate::error::{DecodeError, Field};
use crate::fold;
use alloc::vec::Vec;
use core::iter;

/// Type of a credential signed with a private key.
pub const SIGNED: &[u8] = b"HS_SIGNED";
/// Type of a credential signed with a private key, as old peers write it.
pub const DSA_SIGNED: &[u8] = b"HS_DSAPUBKEY";
/// Type of a credential made with the key of a session.
pub const MAC: &[u8] = b"HS_MAC";

/// The end of a signed message. The deployed meaning of the fields is not that of the RFC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credential<'a> {
    /// Zero; other values are kept.
    pub version: u8,
    /// Zero; other values are kept.
    pub reserved: u8,
    /// Zero; other values are kept.
    pub options: u16,
    /// Empty in deployed software. RFC: the handle with the key.
    pub signer: &'a [u8],
    /// Counter of the message in its session, 0 outside sessions. RFC: index of the key.
    pub counter: i32,
    /// [`SIGNED`], [`MAC`], or another type, which the receiver will refuse.
    pub kind: &'a [u8],
    /// Name or code of the digest, see [`DigestAlgorithm::from_identifier`].
    pub algorithm: &'a [u8],
    /// Signature or MAC.
    pub signature: &'a [u8],
}

impl<'a> Credential<'a> {
    /// A credential with a public-key signature.
    #[must_use]
    pub const fn signed(counter: i32, algorithm: &'a [u8], signature: &'a [u8]) -> Self {
        Self { version: 0, reserved: 0, options: 0, signer: b"", counter, kind: SIGNED, algorithm, signature }
    }

    /// A credential with a session's MAC, in a message of `version`.
    #[must_use]
    pub fn mac(counter: i32, version: Version, mac: &'a [u8]) -> Self {
        Self { kind: MAC, ..Self::signed(counter, Mac::identifier(version), mac) }
    }

    /// Decodes the bytes of a credential. Bytes after it are ignored.
    ///
    /// # Errors
    /// When a length in it does not fit.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let version = cursor.u8(Field::Credential)?;
        let reserved = cursor.u8(Field::Credential)?;
        let options = cursor.u16(Field::Credential)?;
        let signer = cursor.string(Field::Credential)?;
        let counter = cursor.i32(Field::Credential)?;
        let kind = cursor.string(Field::Credential)?;
        let info = cursor.string(Field::Credential)?;
        let info_at = cursor.at() - info.len();
        let mut info = Cursor::new(info);
        let mut within = || info.string(Field::Credential).map_err(|error| error.moved_by(info_at));
        let (algorithm, signature) = (within()?, within()?);
        Ok(Self { version, reserved, options, signer, counter, kind, algorithm, signature })
    }

    /// Bytes of algorithm and signature with their lengths.
    #[must_use]
    pub const fn signed_info_len(&self) -> usize {
        8 + self.algorithm.len() + self.signature.len()
    }

    /// Bytes of the encoding.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        20 + self.signer.len() + self.kind.len() + self.signed_info_len()
    }

    /// Appends the encoding, without the length that precedes it in a message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.version, self.reserved]);
        put::u16(out, self.options);
        put::string(out, self.signer);
        put::i32(out, self.counter);
        put::string(out, self.kind);
        put::count(out, self.signed_info_len());
        put::string(out, self.algorithm);
        put::string(out, self.signature);
    }

    /// Whether it is signed with a private key.
    #[must_use]
    pub const fn is_signed(&self) -> bool {
        fold::eq(self.kind, SIGNED) || fold::eq(self.kind, DSA_SIGNED)
    }

    /// Whether it is made with the key of a session.
    #[must_use]
    pub const fn is_mac(&self) -> bool {
        fold::eq(self.kind, MAC)
    }

    /// The digest, if it is known.
    #[must_use]
    pub fn digest_algorithm(&self) -> Option<DigestAlgorithm> {
        DigestAlgorithm::from_identifier(self.algorithm)
    }
}

/// The fields of the envelope, and the counter, that are signed before header and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoveredPrefix {
    bytes: [u8; 16],
    len: u8,
}

impl CoveredPrefix {
    const EMPTY: Self = Self { bytes: [0; 16], len: 0 };

    /// The prefix that a public-key signature covers before header and body, by the version of the
    /// message.
    ///
    /// It is empty up to 2.5; at 2.6 it has a defective choice of fields; from 2.7 on it has
    /// version, session id, request id and counter; from 2.8 on the suggested version too, without
    /// the flags in its byte.
    #[must_use]
    pub fn of_signature(envelope: &Envelope, counter: i32) -> Self {
        let mut prefix = Self::EMPTY;
        let Version { major, minor } = envelope.version;
        let session_id = envelope.session_id.to_be_bytes();
        let version = envelope.version;
        if version >= Version::new(2, 7) {
            prefix.push(&[major, minor]);
            if version >= Version::new(2, 8) {
                prefix.push(&[envelope.suggested.major, envelope.suggested.minor]);
            }
            prefix.push(&session_id);
            prefix.push(&envelope.request_id.to_be_bytes());
            prefix.push(&counter.to_be_bytes());
        } else if version >= Version::new(2, 6) {
            prefix.push(&[major, minor]);
            prefix.push(&session_id[..2]);
            prefix.push(&counter.to_be_bytes());
            prefix.push(&[0; 6]);
        }
        prefix
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn push(&mut self, field: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + field.len()].copy_from_slice(field);
        self.len += u8::try_from(field.len()).expect("the prefix has at most 16 bytes");
    }
}

/// How the MAC of a session is made, by the version of the message.
///
/// The version decides what is covered, and the algorithm in the credential decides how: a plain
/// digest is that of key, message, key. Shown by `credentials.jsonl`, kind `mac_message`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mac {
    /// The defective form of 2.5 and 2.6: a digest of the first four bytes of the key, header and
    /// body, the key, and ten zero bytes more than the key has. It covers neither envelope nor
    /// counter.
    Defective,
    /// Covers this prefix, then header and body. Up to 2.4 the prefix is empty.
    Covering(CoveredPrefix),
}

impl Mac {
    /// The form for the message behind `envelope`, whose credential has `counter`.
    #[must_use]
    pub fn of(envelope: &Envelope, counter: i32) -> Self {
        match envelope.version {
            version if version >= Version::new(2, 7) => {
                Self::Covering(CoveredPrefix::of_signature(envelope, counter))
            }
            version if version >= Version::new(2, 5) => Self::Defective,
            _ => Self::Covering(CoveredPrefix::EMPTY),
        }
    }

    /// The algorithm to write a message of `version` with. To verify a message, use the one that
    /// its credential names.
    #[must_use]
    pub fn algorithm(version: Version) -> DigestAlgorithm {
        if version >= Version::new(2, 7) { DigestAlgorithm::HMAC_SHA256 } else { DigestAlgorithm::SHA1 }
    }

    /// The name of that algorithm in a message of `version`: a code below 2.6, then a name.
    #[must_use]
    pub fn identifier(version: Version) -> &'static [u8] {
        match version {
            version if version >= Version::new(2, 7) => b"HMAC-SHA256",
            version if version >= Version::new(2, 6) => b"SHA1",
            _ => &[DigestAlgorithm::SHA1.0],
        }
    }

    /// The parts that go into the digest, or into the HMAC with the key.
    ///
    /// `covered` is [`Message::covered`](super::Message::covered).
    pub fn parts<'a>(
        &'a self,
        algorithm: DigestAlgorithm,
        key: &'a [u8],
        covered: &'a [u8],
    ) -> impl Iterator<Item = &'a [u8]> {
        const ZEROS: &[u8] = &[0; 64];
        let outside = if algorithm.is_hmac() { b"" } else { key };
        let (before, prefix, zeros_len): (&[u8], &[u8], usize) = match self {
            Self::Defective => (&outside[..outside.len().min(4)], b"", outside.len() + 10),
            Self::Covering(prefix) => (outside, prefix.as_bytes(), 0),
        };
        let zeros = iter::repeat_n(ZEROS, zeros_len / ZEROS.len());
        let message = [before, prefix, covered, outside].into_iter();
        message.chain(zeros).chain([&ZEROS[..zeros_len % ZEROS.len()]])
    }
}

#[cfg(test)]
mod tests {
    use super::super::envelope::EnvelopeFlags;
    use super::super::testing::{refuses_every_truncation, survives_false_numbers};
    use super::*;
    use alloc::vec;

    fn envelope(minor: u8) -> Envelope {
        Envelope {
            version: Version::new(2, minor),
            flags: EnvelopeFlags::ENCRYPTED,
            suggested: Version::new(2, 11),
            session_id: 5,
            request_id: 0x0102_0304,
            sequence: 3,
            message_len: 99,
        }
    }

    #[test]
    fn round_trips_and_stands_truncation_and_lies() {
        let credential = Credential {
            version: 1,
            reserved: 2,
            options: 3,
            signer: b"10/adm",
            counter: -4,
            kind: MAC,
            algorithm: b"\x02",
            signature: &[5; 20],
        };
        let mut out = vec![];
        credential.encode(&mut out);
        assert_eq!(out.len(), credential.encoded_len());
        assert_eq!(Credential::decode(&out), Ok(credential));
        refuses_every_truncation(&out, &[], |bytes| Credential::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| Credential::decode(bytes).map(|_| ()));
    }

    #[test]
    fn what_is_signed_stays_within_its_length() {
        let mut out = vec![];
        Credential::signed(0, b"SHA1", b"signature").encode(&mut out);
        let len_at = 4 + 4 + 4 + 4 + SIGNED.len();
        out[len_at + 3] -= 1;
        assert!(Credential::decode(&out).is_err());
    }

    #[test]
    fn kinds_have_aliases() {
        assert!(Credential::signed(0, b"SHA1", b"").is_signed());
        assert!(Credential { kind: DSA_SIGNED, ..Credential::signed(0, b"SHA1", b"") }.is_signed());
        let mac = Credential::mac(9, Version::new(2, 5), b"");
        assert!(mac.is_mac() && !mac.is_signed());
        assert_eq!(mac.digest_algorithm(), Some(DigestAlgorithm::SHA1));
        assert_eq!(Credential::mac(9, Version::new(2, 6), b"").algorithm, b"SHA1");
        assert_eq!(Credential::mac(9, Version::CURRENT, b"").algorithm, b"HMAC-SHA256");
    }

    #[test]
    fn signatures_cover_by_version() {
        let prefix = |minor| CoveredPrefix::of_signature(&envelope(minor), 9).as_bytes().to_vec();
        for minor in 0..=5 {
            assert_eq!(prefix(minor), b"");
        }
        assert_eq!(prefix(6), b"\x02\x06\0\0\0\0\0\x09\0\0\0\0\0\0");
        assert_eq!(prefix(7), b"\x02\x07\0\0\0\x05\x01\x02\x03\x04\0\0\0\x09");
        assert_eq!(prefix(8), b"\x02\x08\x02\x0b\0\0\0\x05\x01\x02\x03\x04\0\0\0\x09");
        assert_eq!(prefix(11), b"\x02\x0b\x02\x0b\0\0\0\x05\x01\x02\x03\x04\0\0\0\x09");
        let oldest = Envelope { version: Version::new(5, 11), ..envelope(11) };
        assert_eq!(CoveredPrefix::of_signature(&oldest, 9).as_bytes(), b"");
    }

    #[test]
    fn macs_cover_by_version() {
        let parts = |minor| {
            let algorithm = Mac::algorithm(Version::new(2, minor));
            Mac::of(&envelope(minor), 9).parts(algorithm, b"0123456", b"HB").collect::<Vec<_>>().concat()
        };
        for minor in [1, 4] {
            assert_eq!(parts(minor), b"0123456HB0123456");
        }
        for minor in [5, 6] {
            assert_eq!(parts(minor), [&b"0123HB0123456"[..], &[0; 17]].concat());
        }
        assert_eq!(parts(7), b"\x02\x07\0\0\0\x05\x01\x02\x03\x04\0\0\0\x09HB");
        assert_eq!(parts(11), b"\x02\x0b\x02\x0b\0\0\0\x05\x01\x02\x03\x04\0\0\0\x09HB");
        let (long, short) = (vec![1; 200], vec![1; 2]);
        for key in [long, short] {
            let input = Mac::Defective.parts(DigestAlgorithm::SHA1, &key, b"HB").collect::<Vec<_>>().concat();
            assert_eq!(input.len(), key.len().min(4) + 2 + key.len() + key.len() + 10);
        }
    }
}
