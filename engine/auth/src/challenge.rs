//! Challenges: making them, answering them with a secret or a private key, and verifying the
//! answers. RFC 3652 section 3.5, with the deployed algorithms.
//!
//! This module works on bytes only. The caller knows the identity, whether the challenge is still
//! open (each may be answered once), and what the identity may do.

use crate::digest::{self, Digest, digest, mac};
use crate::error::{SignError, VerifyError};
use crate::kdf::{Pbkdf2Limits, pbkdf2_sha1};
use crate::key::{PrivateKey, PublicKey};
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::limit;
use handle_proto::wire::auth::{SecretAnswer, SignedAnswer};
use handle_proto::wire::digest::RequestDigest;
use zeroize::Zeroizing;

/// The bytes that an answer covers: the nonce, and the digest of the request without its algorithm.
/// See [`Challenge::covered`](handle_proto::wire::auth::Challenge::covered).
pub type CoveredBytes<'a> = [&'a [u8]; 2];

/// The number of a session that `handle-gateway` has for a caller.
pub type SessionKeyId = [u8; 16];

/// The digest of a request, as a response of `version` repeats it and a challenge covers it.
///
/// `covered` is header and body of the request as received. The algorithm is
/// [`DigestAlgorithm::for_response`].
#[must_use]
pub fn request_digest(version: Version, covered: &[u8]) -> Digest {
    digest(DigestAlgorithm::for_response(version), [covered]).expect("a plain digest")
}

/// Checks that `stated`, from a response, is the digest of the sent request.
///
/// A client must check every challenge before it answers; otherwise it may sign another client's
/// request.
///
/// # Errors
/// When the digest differs, or its algorithm is unknown.
pub fn check_request_digest(stated: &RequestDigest<'_>, covered: &[u8]) -> Result<(), VerifyError> {
    digest(stated.algorithm, [covered]).ok_or(VerifyError::Digest)?.check(stated.digest)
}

/// Checks that an answer to a challenge of `version` was made with `secret`.
///
/// `secret` is the data of an HS_SECKEY value. The work that the sender demands is bounded by
/// `limits`. The form without an algorithm byte is accepted only below version 2.1, which has no
/// other.
///
/// # Errors
/// When it was made with another secret, its algorithm is not for secrets, or it demands work
/// outside the limits.
pub fn verify_secret(
    version: Version,
    covered: &CoveredBytes<'_>,
    answer: &SecretAnswer<'_>,
    secret: &[u8],
    limits: &Pbkdf2Limits,
) -> Result<(), VerifyError> {
    match *answer {
        SecretAnswer::BareMd5(md5) if version < Version::LOWEST => {
            mac(DigestAlgorithm::MD5, secret, covered).ok_or(VerifyError::Digest)?.check(md5)
        }
        SecretAnswer::BareMd5(_) | SecretAnswer::Mac { algorithm: DigestAlgorithm::OLD_MD5, .. } => {
            Err(VerifyError::Digest)
        }
        SecretAnswer::Mac { algorithm, mac: stated } => {
            mac(algorithm, secret, covered).ok_or(VerifyError::Digest)?.check(stated)
        }
        SecretAnswer::Pbkdf2 { salt, iterations, key_bits, mac: stated } => {
            let key_len = limits.key_len(iterations, key_bits).ok_or(VerifyError::Work)?;
            let key = pbkdf2_sha1(secret, salt, iterations, key_len);
            hmac_sha1(&key, covered).check(stated)
        }
    }
}

/// Checks that an answer was made with the private half of `key`. The answer names its digest.
///
/// # Errors
/// When it was made with another key, or its digest is neither SHA-1 nor SHA-256.
pub fn verify_public(
    covered: &CoveredBytes<'_>,
    answer: &SignedAnswer<'_>,
    key: &PublicKey,
) -> Result<(), VerifyError> {
    let algorithm = DigestAlgorithm::from_identifier(answer.algorithm).ok_or(VerifyError::Digest)?;
    key.verify(algorithm, covered, answer.signature)
}

/// Answers a challenge of `version` that suggests `suggested` with a secret. Returns the signed
/// response.
///
/// The lower version decides: PBKDF2 from 2.7 on with this fresh `salt`, below that a digest of
/// secret, challenge, secret.
#[must_use]
pub fn answer_with_secret(
    version: Version,
    suggested: Version,
    covered: &CoveredBytes<'_>,
    secret: &[u8],
    salt: &[u8; limit::PBKDF2_SALT_LEN],
) -> Vec<u8> {
    let algorithm = SecretAnswer::algorithm_for(version, suggested);
    let mut out = Vec::new();
    if algorithm == DigestAlgorithm::PBKDF2_HMAC_SHA1 {
        let (iterations, key_bits) = (limit::PBKDF2_ITERATIONS, limit::PBKDF2_KEY_BITS);
        let key = pbkdf2_sha1(secret, salt, iterations, key_bits as usize / 8);
        let mac = hmac_sha1(&key, covered);
        SecretAnswer::Pbkdf2 { salt, iterations, key_bits, mac: &mac }.encode(&mut out);
        return out;
    }
    let digest = mac(algorithm, secret, covered).expect("a plain digest");
    match (*digest).try_into() {
        Ok(md5) if algorithm == DigestAlgorithm::OLD_MD5 => SecretAnswer::BareMd5(md5).encode(&mut out),
        _ => SecretAnswer::Mac { algorithm, mac: &digest }.encode(&mut out),
    }
    out
}

/// Answers a challenge of `version` with a private key. Returns the signed response.
///
/// # Errors
/// When the computation fails.
pub fn answer_with_key(
    version: Version,
    covered: &CoveredBytes<'_>,
    key: &PrivateKey,
) -> Result<Vec<u8>, SignError> {
    let algorithm = key.digest_for(version);
    let signature = key.sign(algorithm, covered)?;
    let mut out = Vec::new();
    SignedAnswer { algorithm: crate::message::identifier(algorithm), signature: &signature }.encode(&mut out);
    Ok(out)
}

/// Answers with an HMAC-SHA256 of `covered`, for servers that are known to understand it. Returns
/// the signed response.
#[must_use]
pub fn answer_with_mac(covered: &CoveredBytes<'_>, secret: &[u8]) -> Vec<u8> {
    let algorithm = DigestAlgorithm::HMAC_SHA256;
    let made = mac(algorithm, secret, covered).expect("an HMAC");
    let mut out = Vec::new();
    SecretAnswer::Mac { algorithm, mac: &made }.encode(&mut out);
    out
}

/// Answers a challenge with the `secret` of the session `id` of a caller of `handle-gateway`.
#[must_use]
pub fn answer_in_session(covered: &CoveredBytes<'_>, id: &SessionKeyId, secret: &[u8]) -> Vec<u8> {
    let made = mac(DigestAlgorithm::HMAC_SHA256, secret, covered).expect("an HMAC");
    [&id[..], &*made].concat()
}

/// Checks that an answer was made by [`answer_in_session`] with `secret`. The caller has found it
/// by the id with which the answer begins.
///
/// # Errors
/// When it was made with another secret.
pub fn verify_in_session(
    covered: &CoveredBytes<'_>,
    answer: &[u8],
    secret: &[u8],
) -> Result<(), VerifyError> {
    let (_, stated) = answer.split_first_chunk::<16>().ok_or(VerifyError::Wrong)?;
    mac(DigestAlgorithm::HMAC_SHA256, secret, covered).ok_or(VerifyError::Digest)?.check(stated)
}

/// The hashed form in which some tools store a password as secret: SHA-1 in hexadecimal, 40
/// characters.
///
/// A client that has such a value answers with it unchanged. A client that has only the password
/// tries both forms.
#[must_use]
pub fn hashed_secret(password: &[u8]) -> Zeroizing<Vec<u8>> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let sha1 = digest(DigestAlgorithm::SHA1, [password]).expect("a plain digest");
    let mut text = Zeroizing::new(Vec::with_capacity(2 * sha1.len()));
    for byte in sha1.iter() {
        text.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    text
}

fn hmac_sha1(key: &[u8], covered: &CoveredBytes<'_>) -> Digest {
    digest::mac(DigestAlgorithm::HMAC_SHA1, key, covered).expect("an HMAC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{private_key, public_key};
    use proptest::prelude::*;

    const NONCE: &[u8] = &[0x11; 16];
    const DIGEST: &[u8] = &[0x22; 32];
    const COVERED: CoveredBytes<'_> = [NONCE, DIGEST];
    const LIMITS: Pbkdf2Limits = Pbkdf2Limits::DEFAULT;
    const CURRENT: Version = Version::CURRENT;

    fn verify(version: Version, answer: &[u8], secret: &[u8]) -> Result<(), VerifyError> {
        let answer = SecretAnswer::decode(answer).map_err(VerifyError::Malformed)?;
        verify_secret(version, &COVERED, &answer, secret, &LIMITS)
    }

    #[test]
    fn answers_of_clients_are_accepted_in_every_version() {
        for (minor, code, len) in
            [(0, None, 16), (1, Some(2), 21), (6, Some(2), 21), (7, Some(0x22), 53), (11, Some(0x22), 53)]
        {
            let version = Version::new(2, minor);
            for secret in [&b"secret"[..], b"", b"\xff\x80\x00", &[7; 300]] {
                let answer = answer_with_secret(version, CURRENT, &COVERED, secret, &[9; 16]);
                assert_eq!(answer.len(), len, "2.{minor}");
                assert!(code.is_none_or(|code| answer[0] == code), "2.{minor}");
                assert_eq!(verify(version, &answer, secret), Ok(()), "2.{minor}");
                assert_eq!(verify(version, &answer, b"secreT"), Err(VerifyError::Wrong), "2.{minor}");
            }
        }
        let lower = answer_with_secret(CURRENT, Version::new(2, 6), &COVERED, b"secret", &[9; 16]);
        assert_eq!(lower[0], 2, "the suggested version is lower");
    }

    #[test]
    fn supported_codes_verify_and_others_are_refused() {
        for code in 0..=255 {
            let algorithm = DigestAlgorithm(code);
            let computed = mac(algorithm, b"secret", &COVERED);
            let stated = computed.as_deref().unwrap_or(&[0; 20]);
            let answer = SecretAnswer::Mac { algorithm, mac: stated };
            let verdict = verify_secret(CURRENT, &COVERED, &answer, b"secret", &LIMITS);
            let is_supported = [1, 2, 3, 0x12, 0x13].contains(&code);
            assert_eq!(verdict, if is_supported { Ok(()) } else { Err(VerifyError::Digest) }, "{code}");
        }
    }

    #[test]
    fn the_form_without_a_code_is_for_old_versions() {
        let answer = answer_with_secret(Version::new(2, 0), CURRENT, &COVERED, b"secret", &[9; 16]);
        assert_eq!(verify(Version::new(2, 0), &answer, b"secret"), Ok(()));
        assert_eq!(verify(Version::new(5, 11), &answer, b"secret"), Ok(()));
        for minor in 1..=11 {
            assert_eq!(verify(Version::new(2, minor), &answer, b"secret"), Err(VerifyError::Digest));
        }
    }

    /// An answer that any client can make, because the derived key is known or easily guessed.
    #[test]
    fn a_derived_key_that_can_be_guessed_is_refused() {
        for key_bits in [0, 1, 8, 64, 127] {
            let computed = mac(DigestAlgorithm::HMAC_SHA1, b"", &COVERED).unwrap();
            let answer = SecretAnswer::Pbkdf2 { salt: b"salt", iterations: 1, key_bits, mac: &computed };
            let verdict = verify_secret(CURRENT, &COVERED, &answer, b"secret", &LIMITS);
            assert_eq!(verdict, Err(VerifyError::Work), "{key_bits} bits");
        }
    }

    #[test]
    fn an_answer_without_derivation_is_verified_too() {
        let answer = answer_with_mac(&COVERED, b"secret");
        assert_eq!(verify(CURRENT, &answer, b"secret"), Ok(()));
        assert_eq!(verify(CURRENT, &answer, b"secreT"), Err(VerifyError::Wrong));
    }

    #[test]
    fn sessions_of_callers_answer_with_their_secret() {
        let answer = answer_in_session(&COVERED, &[7; 16], &[8; 32]);
        assert!(answer.starts_with(&[7; 16]) && answer.len() == 48);
        assert_eq!(verify_in_session(&COVERED, &answer, &[8; 32]), Ok(()));
        assert_eq!(verify_in_session(&COVERED, &answer, &[9; 32]), Err(VerifyError::Wrong));
        assert_eq!(verify_in_session(&[NONCE, NONCE], &answer, &[8; 32]), Err(VerifyError::Wrong));
        for len in 0..answer.len() {
            let cut = verify_in_session(&COVERED, &answer[..len], &[8; 32]);
            assert!(
                matches!(cut, Err(VerifyError::Wrong | VerifyError::Malformed(_))),
                "cut to {len}: {cut:?}"
            );
        }
    }

    #[test]
    fn work_is_bounded_by_the_limits_given() {
        let limits = Pbkdf2Limits { iterations_max: 10, ..LIMITS };
        for (iterations, verdict) in
            [(0, Err(VerifyError::Work)), (1, Ok(())), (10, Ok(())), (11, Err(VerifyError::Work))]
        {
            let key = pbkdf2_sha1(b"secret", b"salt", iterations, 20);
            let computed = hmac_sha1(&key, &COVERED);
            let answer = SecretAnswer::Pbkdf2 { salt: b"salt", iterations, key_bits: 160, mac: &computed };
            assert_eq!(
                verify_secret(CURRENT, &COVERED, &answer, b"secret", &limits),
                verdict,
                "{iterations}"
            );
        }
    }

    #[test]
    fn answers_cut_short_or_to_another_challenge_are_wrong() {
        for version in [Version::new(2, 1), CURRENT] {
            let answer = answer_with_secret(version, CURRENT, &COVERED, b"secret", &[9; 16]);
            for len in 0..answer.len() {
                assert!(verify(version, &answer[..len], b"secret").is_err(), "{version} cut to {len}");
            }
            let decoded = SecretAnswer::decode(&answer).unwrap();
            for other in [[NONCE, NONCE], [DIGEST, DIGEST], [NONCE, &DIGEST[..20]], [&NONCE[..15], DIGEST]] {
                let verdict = verify_secret(version, &other, &decoded, b"secret", &LIMITS);
                assert_eq!(verdict, Err(VerifyError::Wrong), "{version}");
            }
        }
    }

    #[test]
    fn keys_answer_with_the_digest_of_the_version() {
        for id in ["admin_rsa", "admin_dsa", "admin_dsa2048"] {
            let (key, public) = (private_key(id), public_key(id));
            for minor in [1, 6, 7, 10, 11] {
                let version = Version::new(2, minor);
                let bytes = answer_with_key(version, &COVERED, &key).unwrap();
                let answer = SignedAnswer::decode(&bytes).unwrap();
                let named = DigestAlgorithm::from_identifier(answer.algorithm);
                assert_eq!(named, Some(key.digest_for(version)), "{id} 2.{minor}");
                assert_eq!(verify_public(&COVERED, &answer, &public), Ok(()), "{id} 2.{minor}");
                let by_code = SignedAnswer { algorithm: &[named.unwrap().0], ..answer };
                assert_eq!(verify_public(&COVERED, &by_code, &public), Ok(()), "{id} 2.{minor}");
                let other = [NONCE, NONCE];
                assert_eq!(verify_public(&other, &answer, &public), Err(VerifyError::Wrong), "{id}");
                for algorithm in [&b"MD5"[..], b"\x01", b"", b"SHA-512", b"HMAC-SHA256"] {
                    let answer = SignedAnswer { algorithm, ..answer };
                    assert_eq!(verify_public(&COVERED, &answer, &public), Err(VerifyError::Digest), "{id}");
                }
            }
        }
    }

    #[test]
    fn the_digest_of_another_request_is_refused() {
        for version in [Version::new(2, 0), Version::new(2, 1), CURRENT] {
            let digest = request_digest(version, b"request");
            let stated = RequestDigest { algorithm: DigestAlgorithm::for_response(version), digest: &digest };
            assert_eq!(check_request_digest(&stated, b"request"), Ok(()), "{version}");
            assert_eq!(check_request_digest(&stated, b"requesT"), Err(VerifyError::Wrong), "{version}");
            let cut = RequestDigest { digest: &digest[1..], ..stated };
            assert_eq!(check_request_digest(&cut, b"request"), Err(VerifyError::Wrong), "{version}");
            let unknown = RequestDigest { algorithm: DigestAlgorithm(9), ..stated };
            assert_eq!(check_request_digest(&unknown, b"request"), Err(VerifyError::Digest), "{version}");
        }
    }

    proptest! {
        #[test]
        fn only_the_secret_verifies(secret: Vec<u8>, other: Vec<u8>, nonce: [u8; 16], digest: [u8; 20]) {
            let covered: CoveredBytes<'_> = [&nonce, &digest];
            let version = Version::new(2, 6);
            let bytes = answer_with_secret(version, version, &covered, &secret, &[0; 16]);
            let answer = SecretAnswer::decode(&bytes).unwrap();
            prop_assert_eq!(verify_secret(version, &covered, &answer, &secret, &LIMITS), Ok(()));
            let verdict = verify_secret(version, &covered, &answer, &other, &LIMITS);
            prop_assert_eq!(verdict.is_ok(), secret == other);
        }

        #[test]
        fn arbitrary_bytes_are_refused(bytes: Vec<u8>) {
            let limits = Pbkdf2Limits { iterations_max: 100, ..LIMITS };
            if let Ok(answer) = SecretAnswer::decode(&bytes) {
                prop_assert!(verify_secret(CURRENT, &COVERED, &answer, b"secret", &limits).is_err());
            }
        }
    }
}
