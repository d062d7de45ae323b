//! Private keys that sign, and public keys that verify.

use crate::ValueDigest;
use crate::error::{KeyError, SignError, VerifyError};
use crate::handshake::HandshakeSignature;
use crate::{dsa, rsa};
use handle_proto::Version;
use handle_proto::code::DigestAlgorithm;
use handle_proto::data;
use handle_proto::data::key::Number;
use std::fmt;

/// The algorithm of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSA; signatures are PKCS #1 v1.5.
    Rsa,
    /// DSA; signatures are DER sequences of two integers.
    Dsa,
}

/// A private key, ready to sign. Can be shared by threads.
pub struct PrivateKey {
    secret: Secret,
    public: PublicKey,
}

enum Secret {
    Rsa(Box<rsa::PrivateKey>),
    Dsa(Box<dsa::PrivateKey>),
}

impl PrivateKey {
    /// Creates a key from its record, the content of an unencrypted private key file.
    ///
    /// # Errors
    /// When the record does not decode, its numbers do not belong together, or its kind or size is
    /// not supported: RSA keys sign with 2048, 3072 or 4096 bits, DSA keys with 1024, 2048 or 3072.
    pub fn from_record(record: &[u8]) -> Result<Self, KeyError> {
        Self::new(&data::PrivateKey::decode(record)?)
    }

    /// Creates a key from its numbers.
    ///
    /// # Errors
    /// As [`from_record`](Self::from_record).
    pub fn new(key: &data::PrivateKey<'_>) -> Result<Self, KeyError> {
        Self::of(key, false)
    }

    /// Creates a key from its numbers, which may also be those of an RSA key of 1024 or 1536 bits,
    /// as old administrators have them. [`is_legacy`](Self::is_legacy) tells the caller when to
    /// warn.
    ///
    /// # Errors
    /// As [`from_record`](Self::from_record), except for these sizes.
    pub fn new_or_legacy(key: &data::PrivateKey<'_>) -> Result<Self, KeyError> {
        Self::of(key, true)
    }

    /// Whether the key is shorter than generated ones.
    #[must_use]
    pub fn is_legacy(&self) -> bool {
        self.algorithm() == Algorithm::Rsa && self.public.bits() < 2048
    }

    fn of(key: &data::PrivateKey<'_>, allow_legacy: bool) -> Result<Self, KeyError> {
        match *key {
            data::PrivateKey::RsaCrt { n, e, .. } => {
                let secret = Secret::Rsa(Box::new(rsa::PrivateKey::new(key, allow_legacy)?));
                Ok(Self { secret, public: PublicKey::new(&data::PublicKey::Rsa { e, n })? })
            }
            data::PrivateKey::Rsa { .. } => Err(KeyError::NoPrimes),
            data::PrivateKey::Dsa { x, p, q, g } => {
                let (secret, public) = dsa::PrivateKey::new(x, p, q, g)?;
                let public = PublicKey(PublicKeyKind::Dsa(Box::new(public)));
                Ok(Self { secret: Secret::Dsa(Box::new(secret)), public })
            }
        }
    }

    /// The public half.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The algorithm of the key.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.public.algorithm()
    }

    /// The digest with which this key signs messages of `version` and answers their challenges.
    ///
    /// A DSA key with more than 160 bits of q uses SHA-256 in every version. Deployed software,
    /// which should use SHA-1 up to 2.10, cannot sign with such a key there at all; when verifying,
    /// it uses the digest that the signature names. Shown by `credentials.jsonl`,
    /// `signed/2.1/admin_dsa2048/SHA256withDSA`.
    #[must_use]
    pub fn digest_for(&self, version: Version) -> DigestAlgorithm {
        match &self.secret {
            Secret::Rsa(_) => DigestAlgorithm::for_rsa_signature(version),
            Secret::Dsa(key) if key.q_bits() > 160 => DigestAlgorithm::SHA256,
            Secret::Dsa(_) => DigestAlgorithm::for_dsa_signature(version),
        }
    }

    /// Signs the concatenation of `parts`. Equal parts get equal signatures.
    ///
    /// RSA with [`DigestAlgorithm::SHA256`] is fast; SHA-1, which only versions below 2.7 use, and
    /// DSA take several times as long.
    ///
    /// # Errors
    /// When the digest is neither SHA-1 nor SHA-256, or the computation fails.
    pub fn sign(&self, digest: DigestAlgorithm, parts: &[&[u8]]) -> Result<Vec<u8>, SignError> {
        match &self.secret {
            Secret::Rsa(key) => key.sign(digest, parts),
            Secret::Dsa(key) => key.sign(digest, parts),
        }
    }
}

/// The record of the public half of a private key, which is computed for DSA; `None` for an RSA key
/// without its primes, and for numbers that do not belong to a key.
#[must_use]
pub fn public_record_of(key: &data::PrivateKey<'_>) -> Option<Vec<u8>> {
    match *key {
        data::PrivateKey::Dsa { x, p, q, g } => {
            let (_, public) = dsa::PrivateKey::new(x, p, q, g).ok()?;
            let y = public.y();
            Some(data::PublicKey::Dsa { q, p, g, y: Number::new(&y) }.to_bytes())
        }
        _ => Some(key.public()?.to_bytes()),
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "private half of {:?}", self.public)
    }
}

/// A public key, ready to verify.
#[derive(Clone)]
pub struct PublicKey(PublicKeyKind);

#[derive(Clone)]
enum PublicKeyKind {
    Rsa(rsa::PublicKey),
    Dsa(Box<dsa::PublicKey>),
}

impl PublicKey {
    /// Creates a key from its record: the data of an HS_PUBKEY value, or a server's key in a site
    /// record.
    ///
    /// # Errors
    /// When the record does not decode, its numbers do not belong to a key, or its kind or size is
    /// not supported: RSA keys verify with 1024 to 8192 bits, DSA keys with 1024, 2048 or 3072.
    pub fn from_record(record: &[u8]) -> Result<Self, KeyError> {
        Self::new(&data::PublicKey::decode(record)?)
    }

    /// Creates a key from its numbers.
    ///
    /// # Errors
    /// As [`from_record`](Self::from_record).
    pub fn new(key: &data::PublicKey<'_>) -> Result<Self, KeyError> {
        match *key {
            data::PublicKey::Rsa { e, n } => rsa::PublicKey::new(e, n).map(PublicKeyKind::Rsa).map(Self),
            data::PublicKey::Dsa { q, p, g, y } => {
                Ok(Self(PublicKeyKind::Dsa(Box::new(dsa::PublicKey::new(y, p, q, g)?))))
            }
            data::PublicKey::Dh { .. } => Err(KeyError::NotForSigning),
        }
    }

    /// The algorithm of the key.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        match self.0 {
            PublicKeyKind::Rsa(_) => Algorithm::Rsa,
            PublicKeyKind::Dsa(_) => Algorithm::Dsa,
        }
    }

    /// Size of the modulus in bits.
    #[must_use]
    pub fn bits(&self) -> usize {
        match &self.0 {
            PublicKeyKind::Rsa(key) => key.bits(),
            PublicKeyKind::Dsa(key) => key.bits(),
        }
    }

    /// Verifies that `signature` was made over the concatenation of `parts`, with `digest`.
    ///
    /// # Errors
    /// When it was not, or the digest is neither SHA-1 nor SHA-256.
    pub fn verify(
        &self,
        digest: DigestAlgorithm,
        parts: &[&[u8]],
        signature: &[u8],
    ) -> Result<(), VerifyError> {
        match &self.0 {
            PublicKeyKind::Rsa(key) => key.verify(digest, parts, signature),
            PublicKeyKind::Dsa(key) => key.verify(digest, parts, signature),
        }
    }

    /// Verifies that `signature` was made over `signed` with `digest`, in the form of signed
    /// values. RSA keys with SHA-384 need at least 2048 bits.
    ///
    /// # Errors
    /// When it was not, or the digest is MD5.
    pub fn verify_value(
        &self,
        digest: ValueDigest,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<(), VerifyError> {
        match &self.0 {
            PublicKeyKind::Rsa(key) => key.verify_value(digest, signed, signature),
            PublicKeyKind::Dsa(key) => key.verify_value(digest, signed, signature),
        }
    }

    /// Verifies that `signature` was made over the messages of a TLS handshake.
    ///
    /// # Errors
    /// When it was not, or this is a DSA key, or an RSA key of less than 2048 bits.
    pub fn verify_handshake(
        &self,
        scheme: HandshakeSignature,
        messages: &[u8],
        signature: &[u8],
    ) -> Result<(), VerifyError> {
        match &self.0 {
            PublicKeyKind::Rsa(key) => key.verify_handshake(scheme, messages, signature),
            PublicKeyKind::Dsa(_) => Err(VerifyError::Kind),
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} key of {} bits", self.algorithm(), self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{private_key, private_record, public_key, public_record};
    use proptest::prelude::*;

    const IDS: [&str; 3] = ["admin_rsa", "admin_dsa", "admin_dsa2048"];
    const SIGNED: [DigestAlgorithm; 2] = [DigestAlgorithm::SHA1, DigestAlgorithm::SHA256];

    #[test]
    fn signatures_verify_with_the_public_half_and_no_other_key() {
        for id in IDS {
            let (key, public) = (private_key(id), public_key(id));
            for digest in SIGNED {
                let signature = key.sign(digest, &[b"ab", b"", b"c"]).unwrap();
                assert_eq!(public.verify(digest, &[b"abc"], &signature), Ok(()), "{id} {digest}");
                assert_eq!(key.sign(digest, &[b"abc"]).unwrap(), signature, "{id}: signatures differ");
                let wrong = Err(VerifyError::Wrong);
                assert_eq!(public.verify(digest, &[b"abd"], &signature), wrong, "{id} {digest}");
                assert_eq!(public.verify(digest, &[b"abc", b"c"], &signature), wrong, "{id} {digest}");
                for other in IDS.iter().filter(|&&other| other != id).chain(&["server", "rsa1024"]) {
                    assert_eq!(
                        public_key(other).verify(digest, &[b"abc"], &signature),
                        wrong,
                        "{id} {other}"
                    );
                }
                let other_digest = SIGNED.into_iter().find(|&other| other != digest).unwrap();
                assert_eq!(public.verify(other_digest, &[b"abc"], &signature), wrong, "{id} {digest}");
            }
        }
    }

    #[test]
    fn signatures_with_a_changed_bit_or_length_are_wrong() {
        for id in IDS {
            let (key, public) = (private_key(id), public_key(id));
            let signature = key.sign(DigestAlgorithm::SHA256, &[b"abc"]).unwrap();
            let verify = |signature: &[u8]| public.verify(DigestAlgorithm::SHA256, &[b"abc"], signature);
            for bit in (0..signature.len() * 8).step_by(23) {
                let mut wrong = signature.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(verify(&wrong), Err(VerifyError::Wrong), "{id} bit {bit}");
            }
            for len in 0..signature.len() {
                assert_eq!(verify(&signature[..len]), Err(VerifyError::Wrong), "{id} cut to {len}");
            }
            for more in [1, 100, 100_000] {
                let longer = [&signature[..], &vec![0; more]].concat();
                assert_eq!(verify(&longer), Err(VerifyError::Wrong), "{id} {more} more");
            }
        }
    }

    #[test]
    fn only_sha_is_signed() {
        for id in IDS {
            let (key, public) = (private_key(id), public_key(id));
            for code in (0..=255).filter(|code| ![2, 3].contains(code)) {
                let digest = DigestAlgorithm(code);
                assert_eq!(key.sign(digest, &[b"abc"]), Err(SignError::Digest(digest)), "{id}");
                assert_eq!(public.verify(digest, &[b"abc"], &[0; 256]), Err(VerifyError::Digest), "{id}");
            }
        }
    }

    #[test]
    fn the_version_and_the_key_decide_the_digest() {
        let digests = |id| {
            let key = private_key(id);
            [1, 6, 7, 10, 11].map(|minor| key.digest_for(Version::new(2, minor)).0)
        };
        assert_eq!(digests("admin_rsa"), [2, 2, 3, 3, 3]);
        assert_eq!(digests("admin_dsa"), [2, 2, 2, 2, 3]);
        assert_eq!(digests("admin_dsa2048"), [3; 5]);
    }

    #[test]
    fn records_cut_short_are_no_keys() {
        for id in IDS {
            let private = private_record(id);
            for len in 0..private.len() {
                let error = PrivateKey::from_record(&private[..len]).unwrap_err();
                assert!(matches!(error, KeyError::Undecodable(_)), "{id} cut to {len}: {error}");
            }
            let public = public_record(id);
            // Four zero bytes follow the numbers of an RSA key and are not read.
            for len in 0..public.len() - 4 {
                let error = PublicKey::from_record(&public[..len]).unwrap_err();
                assert!(matches!(error, KeyError::Undecodable(_)), "{id} cut to {len}: {error}");
            }
        }
    }

    /// A key with one number changed in its second-lowest bit, so that p, q and n stay odd.
    fn changed(number: Number<'_>) -> Vec<u8> {
        let mut bytes = number.as_bytes().to_vec();
        *bytes.last_mut().unwrap() ^= 2;
        bytes
    }

    #[test]
    fn rsa_numbers_that_do_not_belong_together_are_refused() {
        let record = private_record("admin_rsa");
        let data::PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi } =
            data::PrivateKey::decode(&record).unwrap()
        else {
            panic!("not a full RSA key");
        };
        for at in 0..8 {
            let mut numbers = [n, e, d, p, q, dp, dq, qi];
            let bytes = changed(numbers[at]);
            numbers[at] = Number::new(&bytes);
            let [n, e, d, p, q, dp, dq, qi] = numbers;
            let key = PrivateKey::new(&data::PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi });
            // A wrong d is not used, because both ways of signing use the primes.
            if at != 2 {
                let error = key.err();
                assert_eq!(error, Some(KeyError::Inconsistent { algorithm: "RSA" }), "number {at}");
            }
        }
        let error = PrivateKey::new(&data::PrivateKey::Rsa { n, d }).unwrap_err();
        assert_eq!(error, KeyError::NoPrimes);
        let error = PublicKey::new(&data::PublicKey::Dh { y: n, p: n, g: e }).unwrap_err();
        assert_eq!(error, KeyError::NotForSigning);
    }

    #[test]
    fn a_legacy_key_signs_where_it_is_allowed() {
        let record = private_record("rsa1024");
        let key = PrivateKey::new_or_legacy(&data::PrivateKey::decode(&record).unwrap()).unwrap();
        assert!(key.is_legacy() && !private_key("admin_rsa").is_legacy());
        let public = public_key("rsa1024");
        for digest in SIGNED {
            let signature = key.sign(digest, &[b"ab", b"c"]).unwrap();
            assert_eq!(signature.len(), 128);
            assert_eq!(public.verify(digest, &[b"abc"], &signature), Ok(()), "{digest}");
            assert_eq!(public.verify(digest, &[b"abd"], &signature), Err(VerifyError::Wrong), "{digest}");
        }
        // A key whose numbers do not belong together signs nothing.
        let data::PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi } =
            data::PrivateKey::decode(&record).unwrap()
        else {
            panic!("not a full RSA key");
        };
        for at in [0, 3, 4, 5, 6, 7] {
            let mut numbers = [n, e, d, p, q, dp, dq, qi];
            let bytes = changed(numbers[at]);
            numbers[at] = Number::new(&bytes);
            let [n, e, d, p, q, dp, dq, qi] = numbers;
            let key = PrivateKey::new_or_legacy(&data::PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi });
            assert_eq!(key.err(), Some(KeyError::Inconsistent { algorithm: "RSA" }), "number {at}");
        }
    }

    #[test]
    fn the_public_half_of_a_private_key_is_that_of_its_file() {
        for id in ["admin_rsa", "rsa1024", "admin_dsa", "admin_dsa2048"] {
            let record = private_record(id);
            let public = public_record_of(&data::PrivateKey::decode(&record).unwrap());
            assert_eq!(public, Some(public_record(id)), "{id}");
        }
    }

    #[test]
    fn unsupported_sizes_are_refused_with_the_supported_ones() {
        let error = PrivateKey::from_record(&private_record("rsa1024")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "RSA keys of 1024 bits are not supported, only those of 2048, 3072 or 4096 bits"
        );
        let odd = |bits: usize| {
            let mut bytes = vec![0xff; bits / 8];
            bytes[0] = 0x80;
            bytes
        };
        for (bits, is_supported) in [(1016, false), (1024, true), (8192, true), (8200, false)] {
            let n = odd(bits);
            let key =
                PublicKey::new(&data::PublicKey::Rsa { e: Number::new(&[1, 0, 1]), n: Number::new(&n) });
            assert_eq!(key.is_ok(), is_supported, "{bits} bits");
        }
        for (e, is_supported) in [(&[1][..], false), (&[3], true), (&[4], false), (&[1, 0, 0, 0, 1], true)] {
            let n = odd(2048);
            let key = PublicKey::new(&data::PublicKey::Rsa { e: Number::new(e), n: Number::new(&n) });
            assert_eq!(key.is_ok(), is_supported, "exponent {e:?}");
        }
    }

    #[test]
    fn dsa_numbers_outside_their_ranges_are_refused() {
        let record = public_record("admin_dsa");
        let data::PublicKey::Dsa { q, p, g, y } = data::PublicKey::decode(&record).unwrap() else {
            panic!("not a DSA key");
        };
        let (zero, one) = (Number::new(&[]), Number::new(&[1]));
        let (other_q, other_p, other_y) = (changed(q), changed(p), changed(y));
        let even = |number: Number<'_>| {
            let mut bytes = number.as_bytes().to_vec();
            *bytes.last_mut().unwrap() &= 0xfe;
            bytes
        };
        let (even_p, even_q) = (even(p), even(q));
        let group = |q, p, g, y| PublicKey::new(&data::PublicKey::Dsa { q, p, g, y });
        assert!(group(q, p, g, y).is_ok());
        for (case, key) in [
            ("q", group(Number::new(&other_q), p, g, y)),
            ("p", group(q, Number::new(&other_p), g, y)),
            ("even q", group(Number::new(&even_q), p, g, y)),
            ("even p", group(q, Number::new(&even_p), g, y)),
            ("g zero", group(q, p, zero, y)),
            ("g one", group(q, p, one, y)),
            ("g is p", group(q, p, p, y)),
            ("y", group(q, p, g, Number::new(&other_y))),
            ("y zero", group(q, p, g, zero)),
            ("y one", group(q, p, g, one)),
            ("y is p", group(q, p, g, p)),
        ] {
            assert_eq!(key.err(), Some(KeyError::Inconsistent { algorithm: "DSA" }), "{case}");
        }
        for (case, key) in [("no p", group(q, zero, g, y)), ("q as long as p", group(p, p, g, y))] {
            assert!(matches!(key.err(), Some(KeyError::Size { algorithm: "DSA", .. })), "{case}");
        }
        let private = |x| PrivateKey::new(&data::PrivateKey::Dsa { x, p, q, g });
        for (case, x) in [("zero", zero), ("q", q), ("p", p)] {
            assert_eq!(private(x).err(), Some(KeyError::Inconsistent { algorithm: "DSA" }), "{case}");
        }
        assert_eq!(private(one).unwrap().public().bits(), 1024, "x = 1 is weak, but a key");
    }

    #[test]
    fn dsa_signatures_of_zeros_and_of_whole_groups_are_wrong() {
        let public = public_key("admin_dsa");
        let record = public_record("admin_dsa");
        let data::PublicKey::Dsa { q, .. } = data::PublicKey::decode(&record).unwrap() else {
            panic!("not a DSA key");
        };
        let integer = |number: &[u8]| [&[2, u8::try_from(number.len() + 1).unwrap(), 0], number].concat();
        for (r, s) in
            [(&[0][..], &[0][..]), (&[1], &[0]), (&[0], &[1]), (q.as_bytes(), &[1]), (&[1], q.as_bytes())]
        {
            let body = [integer(r), integer(s)].concat();
            let signature = [&[0x30, u8::try_from(body.len()).unwrap()], &body[..]].concat();
            let verdict = public.verify(DigestAlgorithm::SHA1, &[b"abc"], &signature);
            assert_eq!(verdict, Err(VerifyError::Wrong), "{r:?} {s:?}");
        }
    }

    #[test]
    fn debug_output_has_no_private_key() {
        let shown = format!("{:?}", private_key("admin_dsa"));
        assert_eq!(shown, "private half of Dsa key of 1024 bits");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn arbitrary_signatures_and_keys_do_not_panic(bytes: Vec<u8>, cut in 0usize..400, byte: u8) {
            for id in IDS {
                prop_assert!(public_key(id).verify(DigestAlgorithm::SHA1, &[b"abc"], &bytes).is_err());
                let mut record = public_record(id);
                let at = cut % record.len();
                record[at] = byte;
                let _ = PublicKey::from_record(&record);
                let mut record = private_record(id);
                let at = cut % record.len();
                record[at] = byte;
                let _ = PrivateKey::from_record(&record);
            }
        }
    }
}
