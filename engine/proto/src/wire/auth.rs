//! Challenges, their answers, and requests to another server to verify an answer. RFC 3652 section
//! 3.5.

use super::cursor::Cursor;
use super::digest::RequestDigest;
use super::list::Reference;
use super::put;
use crate::code::{DigestAlgorithm, Version};
use crate::error::{DecodeError, Field};
use alloc::vec::Vec;
use core::net::IpAddr;

/// Type of an answer signed with a private key.
pub const PUBLIC_KEY: &[u8] = b"HS_PUBKEY";
/// Type of an answer made with a secret.
pub const SECRET_KEY: &[u8] = b"HS_SECKEY";

/// Type of an answer made with the secret of a session that `handle-gateway` has for a caller. Only
/// the server that started the session knows it.
pub const GATEWAY_SESSION: &[u8] = b"GATEWAY_SESSION";

/// Body of a challenge, after the request digest: the nonce to sign together with that digest.
///
/// The envelope's session id is the number of the challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// Random bytes; deployed servers send [`NONCE_LEN`](crate::limit::NONCE_LEN).
    pub nonce: &'a [u8],
}

impl<'a> Challenge<'a> {
    /// Decodes the bytes after the request digest.
    ///
    /// # Errors
    /// When the nonce does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self { nonce: Cursor::new(body).string(Field::Nonce)? })
    }

    /// Appends the bytes after the request digest.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.nonce);
    }

    /// Decodes the whole body of versions below 2.1: nonce and MD5, each with its length.
    ///
    /// Shown by `messages.jsonl`, `version/challenge/2.0`.
    ///
    /// # Errors
    /// When nonce or digest do not fit.
    pub fn decode_old(body: &'a [u8]) -> Result<(Self, RequestDigest<'a>), DecodeError> {
        let mut cursor = Cursor::new(body);
        let nonce = cursor.string(Field::Nonce)?;
        let digest = cursor.string(Field::Digest)?;
        Ok((Self { nonce }, RequestDigest { algorithm: DigestAlgorithm::OLD_MD5, digest }))
    }

    /// Appends the whole body of versions below 2.1.
    pub fn encode_old(&self, digest: &[u8], out: &mut Vec<u8>) {
        put::string(out, self.nonce);
        put::string(out, digest);
    }

    /// The bytes that an answer signs or authenticates: the nonce, and the digest without its
    /// algorithm byte.
    #[must_use]
    pub const fn covered(&self, digest: &RequestDigest<'a>) -> [&'a [u8]; 2] {
        [self.nonce, digest.digest]
    }
}

/// Body of the answer to a challenge. RFC 3652 section 3.5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeAnswer<'a> {
    /// Kind of key: [`PUBLIC_KEY`], [`SECRET_KEY`], or another one, which the server will refuse.
    pub auth_type: &'a [u8],
    /// The identity: the value that holds the key; index 0 for any key of the handle.
    pub identity: Reference<'a>,
    /// [`SignedAnswer`] or [`SecretAnswer`], by the kind of key.
    pub signed_response: &'a [u8],
}

impl<'a> ChallengeAnswer<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When a length in it does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        Ok(Self {
            auth_type: cursor.string(Field::Answer)?,
            identity: Reference { handle: cursor.string(Field::Handle)?, index: cursor.i32(Field::Answer)? },
            signed_response: cursor.string(Field::Answer)?,
        })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.auth_type);
        self.identity.encode(out);
        put::string(out, self.signed_response);
    }
}

/// The signed response of a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedAnswer<'a> {
    /// Name or code of the digest, see [`DigestAlgorithm::from_identifier`].
    pub algorithm: &'a [u8],
    /// The signature: PKCS #1 v1.5 for RSA, a DER sequence for DSA.
    pub signature: &'a [u8],
}

impl<'a> SignedAnswer<'a> {
    /// Decodes a signed response.
    ///
    /// # Errors
    /// When a length in it does not fit.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        Ok(Self { algorithm: cursor.string(Field::Answer)?, signature: cursor.string(Field::Answer)? })
    }

    /// Appends the signed response to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put::string(out, self.algorithm);
        put::string(out, self.signature);
    }
}

/// The signed response of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretAnswer<'a> {
    /// 16 bytes without an algorithm byte: MD5 of secret, challenge, secret. Written below version
    /// 2.1.
    BareMd5(&'a [u8; 16]),
    /// The algorithm in one byte, then the MAC: a plain digest of secret, challenge, secret, or an
    /// HMAC.
    Mac {
        /// The algorithm; unknown ones are kept.
        algorithm: DigestAlgorithm,
        /// The MAC.
        mac: &'a [u8],
    },
    /// HMAC-SHA1 with a key derived from the secret by PBKDF2,
    /// [`DigestAlgorithm::PBKDF2_HMAC_SHA1`].
    Pbkdf2 {
        /// Salt.
        salt: &'a [u8],
        /// Rounds, chosen by the sender. The caller has to bound them before use.
        iterations: u32,
        /// Bits of the derived key, chosen by the sender. The caller has to bound them before use.
        key_bits: u32,
        /// The MAC.
        mac: &'a [u8],
    },
}

impl<'a> SecretAnswer<'a> {
    /// First version whose servers support more than a plain digest of secret, challenge, secret.
    pub const DERIVED_SINCE: Version = Version::new(2, 7);

    /// Decodes a signed response. No form with an algorithm byte has 16 bytes.
    ///
    /// # Errors
    /// When it is empty, or a length in it does not fit.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        if let Ok(md5) = bytes.try_into() {
            return Ok(Self::BareMd5(md5));
        }
        let mut cursor = Cursor::new(bytes);
        let algorithm = DigestAlgorithm(cursor.u8(Field::Answer)?);
        if algorithm != DigestAlgorithm::PBKDF2_HMAC_SHA1 {
            return Ok(Self::Mac { algorithm, mac: cursor.rest() });
        }
        Ok(Self::Pbkdf2 {
            salt: cursor.string(Field::Answer)?,
            iterations: cursor.u32(Field::Answer)?,
            key_bits: cursor.u32(Field::Answer)?,
            mac: cursor.string(Field::Answer)?,
        })
    }

    /// Appends the signed response to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::BareMd5(md5) => out.extend_from_slice(md5),
            Self::Mac { algorithm, mac } => {
                out.push(algorithm.0);
                out.extend_from_slice(mac);
            }
            Self::Pbkdf2 { salt, iterations, key_bits, mac } => {
                out.push(DigestAlgorithm::PBKDF2_HMAC_SHA1.0);
                put::string(out, salt);
                put::u32(out, iterations);
                put::u32(out, key_bits);
                put::string(out, mac);
            }
        }
    }

    /// The algorithm for an answer to a challenge of `version` that suggests `suggested`; the lower
    /// one decides.
    ///
    /// [`DigestAlgorithm::OLD_MD5`] stands for the bare MD5.
    #[must_use]
    pub fn algorithm_for(version: Version, suggested: Version) -> DigestAlgorithm {
        match version.min(suggested) {
            version if version >= Self::DERIVED_SINCE => DigestAlgorithm::PBKDF2_HMAC_SHA1,
            version if version >= Version::LOWEST => DigestAlgorithm::SHA1,
            _ => DigestAlgorithm::OLD_MD5,
        }
    }

    /// Whether a server of version `verifier` may call this answer wrong because it does not know
    /// its form.
    ///
    /// SHA-256 and the algorithms with higher codes exist since 2.7.
    #[must_use]
    pub fn is_too_new_for(&self, verifier: Version) -> bool {
        let is_plain = match self {
            Self::BareMd5(_) => true,
            Self::Mac { algorithm, .. } => algorithm.0 <= DigestAlgorithm::SHA1.0,
            Self::Pbkdf2 { .. } => false,
        };
        !is_plain && verifier < Self::DERIVED_SINCE
    }
}

/// Body of the request to verify the answer to a challenge. RFC 3652 section 3.5.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationRequest<'a> {
    /// The identity whose key is to be used.
    pub identity: Reference<'a>,
    /// The nonce of the challenge.
    pub nonce: &'a [u8],
    /// The digest of the challenged request. Deployed clients frame it as a counted string, for
    /// every algorithm; the form with an algorithm byte is accepted.
    pub digest: RequestDigest<'a>,
    /// The answer, see [`SecretAnswer`].
    pub signed_response: &'a [u8],
}

impl<'a> VerificationRequest<'a> {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When a length in it does not fit.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(body);
        Ok(Self {
            identity: Reference { handle: cursor.string(Field::Handle)?, index: cursor.i32(Field::Answer)? },
            nonce: cursor.string(Field::Nonce)?,
            digest: RequestDigest::decode(&mut cursor)?,
            signed_response: cursor.string(Field::Answer)?,
        })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.identity.encode(out);
        put::string(out, self.nonce);
        self.digest.encode(out);
        put::string(out, self.signed_response);
    }
}

/// Body of the answer to a [`VerificationRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationAnswer {
    /// Whether the answer is correct: 1 means yes, everything else no.
    pub is_valid: bool,
}

impl VerificationAnswer {
    /// Decodes a body. Bytes after it are ignored, as deployed.
    ///
    /// # Errors
    /// When it is empty.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { is_valid: Cursor::new(body).u8(Field::Answer)? == 1 })
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.is_valid.into());
    }
}

/// What precedes the address of a client behind a proof. 0xff occurs nowhere in UTF-8.
const CLIENT_MAGIC: [u8; 4] = *b"\xffSRC";

/// Appends the address of the client to the body of a proof, an answer to a challenge or a request
/// to verify one. `handle-gateway` passes proofs of its clients on, and the limits on wrong keys
/// are by client. Servers ignore bytes after a body.
pub fn put_client(out: &mut Vec<u8>, client: IpAddr) {
    let client = match client {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend_from_slice(&CLIENT_MAGIC);
    out.extend_from_slice(&client.octets());
}

/// The address of the client at the end of the body of a proof. It is a claim of the sender of the
/// proof.
#[must_use]
pub fn stated_client(body: &[u8]) -> Option<IpAddr> {
    let (rest, octets) = body.split_last_chunk::<16>()?;
    rest.ends_with(&CLIENT_MAGIC).then(|| IpAddr::from(*octets).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{refuses_every_truncation, survives_false_numbers};
    use super::*;
    use alloc::vec;

    const NONCE: &[u8] = &[0x11; 16];
    const IDENTITY: Reference<'_> = Reference { handle: b"10/adm", index: 300 };

    #[test]
    fn both_forms_of_a_challenge_round_trip() {
        let (challenge, mut out) = (Challenge { nonce: NONCE }, vec![]);
        challenge.encode(&mut out);
        assert_eq!(Challenge::decode(&out), Ok(challenge));
        refuses_every_truncation(&out, &[], |bytes| Challenge::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| Challenge::decode(bytes).map(|_| ()));

        let digest = RequestDigest { algorithm: DigestAlgorithm::OLD_MD5, digest: &[0x22; 16] };
        out.clear();
        challenge.encode_old(digest.digest, &mut out);
        assert_eq!(Challenge::decode_old(&out), Ok((challenge, digest)));
        refuses_every_truncation(&out, &[], |bytes| Challenge::decode_old(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| Challenge::decode_old(bytes).map(|_| ()));
        assert_eq!(challenge.covered(&digest).concat(), [NONCE, &[0x22; 16]].concat());
    }

    #[test]
    fn answers_round_trip() {
        let mut out = vec![];
        let answer =
            ChallengeAnswer { auth_type: SECRET_KEY, identity: IDENTITY, signed_response: b"\x02mac" };
        answer.encode(&mut out);
        assert_eq!(ChallengeAnswer::decode(&out), Ok(answer));
        refuses_every_truncation(&out, &[], |bytes| ChallengeAnswer::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| ChallengeAnswer::decode(bytes).map(|_| ()));

        let signed = SignedAnswer { algorithm: b"SHA-256", signature: &[7; 256] };
        out.clear();
        signed.encode(&mut out);
        assert_eq!(SignedAnswer::decode(&out), Ok(signed));
        refuses_every_truncation(&out, &[], |bytes| SignedAnswer::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| SignedAnswer::decode(bytes).map(|_| ()));

        let derived =
            SecretAnswer::Pbkdf2 { salt: &[1; 16], iterations: 10_000, key_bits: 160, mac: &[2; 20] };
        for secret in [
            SecretAnswer::BareMd5(&[9; 16]),
            SecretAnswer::Mac { algorithm: DigestAlgorithm::MD5, mac: &[9; 16] },
            SecretAnswer::Mac { algorithm: DigestAlgorithm::SHA1, mac: &[9; 20] },
            SecretAnswer::Mac { algorithm: DigestAlgorithm(0x7f), mac: b"" },
            derived,
        ] {
            out.clear();
            secret.encode(&mut out);
            assert_eq!(SecretAnswer::decode(&out), Ok(secret));
        }
        // Truncated to 16 bytes, every answer decodes as a bare MD5.
        refuses_every_truncation(&out, &[16], |bytes| SecretAnswer::decode(bytes).map(|_| ()));
        survives_false_numbers(&out, |bytes| SecretAnswer::decode(bytes).map(|_| ()));
        assert!(SecretAnswer::decode(b"").is_err());
    }

    #[test]
    fn the_lower_version_decides_how_a_secret_answers() {
        let of = |a, b| SecretAnswer::algorithm_for(Version::new(2, a), Version::new(2, b));
        assert_eq!(of(11, 11), DigestAlgorithm::PBKDF2_HMAC_SHA1);
        assert_eq!(of(7, 11), DigestAlgorithm::PBKDF2_HMAC_SHA1);
        assert_eq!(of(11, 6), DigestAlgorithm::SHA1);
        assert_eq!(of(1, 11), DigestAlgorithm::SHA1);
        assert_eq!(of(0, 11), DigestAlgorithm::OLD_MD5);
    }

    #[test]
    fn servers_before_2_7_know_plain_digests_only() {
        let answer = |code| SecretAnswer::Mac { algorithm: DigestAlgorithm(code), mac: b"" };
        let derived = SecretAnswer::Pbkdf2 { salt: b"", iterations: 1, key_bits: 128, mac: b"" };
        for minor in 1..=11 {
            let too_new = |answer: SecretAnswer<'_>| answer.is_too_new_for(Version::new(2, minor));
            assert!(![answer(1), answer(2), SecretAnswer::BareMd5(&[0; 16])].into_iter().any(too_new));
            for newer in [answer(3), answer(0x12), answer(0x13), derived] {
                assert_eq!(too_new(newer), minor < 7, "2.{minor} {newer:?}");
            }
        }
    }

    #[test]
    fn a_verification_takes_the_digest_in_both_forms() {
        for (algorithm, len) in [(0, 20), (1, 16), (2, 20), (3, 32)] {
            let digest = vec![3; len];
            let digest = RequestDigest { algorithm: DigestAlgorithm(algorithm), digest: &digest };
            let request =
                VerificationRequest { identity: IDENTITY, nonce: NONCE, digest, signed_response: b"\x02mac" };
            let mut out = vec![];
            request.encode(&mut out);
            assert_eq!(VerificationRequest::decode(&out), Ok(request));
            refuses_every_truncation(&out, &[], |bytes| VerificationRequest::decode(bytes).map(|_| ()));
            survives_false_numbers(&out, |bytes| VerificationRequest::decode(bytes).map(|_| ()));
        }
    }

    #[test]
    fn only_the_number_one_means_correct() {
        for byte in 0..=255 {
            assert_eq!(VerificationAnswer::decode(&[byte]), Ok(VerificationAnswer { is_valid: byte == 1 }));
        }
        assert!(VerificationAnswer::decode(b"").is_err());
    }

    #[test]
    fn the_client_behind_a_proof_is_after_its_body() {
        for client in ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse::<IpAddr>().unwrap()) {
            let mut body = b"a body".to_vec();
            assert_eq!(stated_client(&body), None);
            put_client(&mut body, client);
            assert_eq!(stated_client(&body), Some(client));
            assert_eq!(stated_client(&body[..body.len() - 1]), None);
        }
    }
}
