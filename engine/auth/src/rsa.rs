//! RSA signatures, PKCS #1 v1.5.
//!
//! The backend signs with SHA-256. Neither backend supports SHA-1 signatures, the only ones that
//! peers below version 2.7 understand, or the short keys of old administrators. Both are computed
//! here, in constant time, and discarded unless they verify.

use crate::ValueDigest;
use crate::backend::{rand, rsa, signature};
use crate::digest;
use crate::error::{KeyError, SignError, VerifyError};
use crate::handshake::HandshakeSignature;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, ConcatenatingMul, NonZero, Odd, Resize};
use handle_proto::code::DigestAlgorithm;
use handle_proto::data;
use handle_proto::data::key::Number;
use std::borrow::Cow;
use zeroize::Zeroizing;

/// The sizes of signing keys that both backends accept.
const SIGNING_BITS: [usize; 3] = [2048, 3072, 4096];
/// Sizes of old keys of administrators; no backend signs with them.
const LEGACY_BITS: [usize; 2] = [1024, 1536];
/// The DER bytes before a signed SHA-1 digest. RFC 8017 section 9.2.
const SHA1_DIGEST_INFO: &[u8] =
    &[0x30, 0x21, 0x30, 0x09, 0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00, 0x04, 0x14];
/// The DER bytes before a signed SHA-256 digest.
const SHA256_DIGEST_INFO: &[u8] = &[
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00,
    0x04, 0x20,
];

/// A private key with its primes.
pub(crate) struct PrivateKey {
    /// The backend's key; `None` for a legacy size, whose signatures are computed here.
    pair: Option<rsa::KeyPair>,
    crt: CrtNumbers,
    public: PublicKey,
}

impl PrivateKey {
    /// Creates a key of a signing size, or of a legacy size if `allow_legacy` is set.
    pub(crate) fn new(key: &data::PrivateKey<'_>, allow_legacy: bool) -> Result<Self, KeyError> {
        let data::PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi } = key else {
            return Err(KeyError::NoPrimes);
        };
        let is_legacy = allow_legacy && LEGACY_BITS.contains(&n.bits());
        if !is_legacy && !SIGNING_BITS.contains(&n.bits()) {
            let accepted = "2048, 3072 or 4096 bits";
            return Err(KeyError::Size { algorithm: "RSA", bits: n.bits(), accepted });
        }
        let inconsistent = KeyError::Inconsistent { algorithm: "RSA" };
        let public_key = rsa::PublicKeyComponents { n: n.as_bytes(), e: e.as_bytes() };
        #[expect(non_snake_case, reason = "the letters of the algorithm")]
        let [d, p, q, dP, dQ, qInv] = [d, p, q, dp, dq, qi].map(|number| number.as_bytes());
        // The backend checks that the numbers belong together, and that the exponent is not weak.
        let components = rsa::KeyPairComponents { public_key, d, p, q, dP, dQ, qInv };
        let pair = match is_legacy {
            true => None,
            false => Some(rsa::KeyPair::from_components(&components).map_err(|_| inconsistent)?),
        };
        let crt = CrtNumbers::new(n.bits(), [p, q, dP, dQ, qInv]).ok_or(inconsistent)?;
        let key = Self { pair, crt, public: PublicKey::new(*e, *n)? };
        // The checks so far do not detect every exponent that does not belong to the primes.
        match key.sign(DigestAlgorithm::SHA256, &[]) {
            Ok(signature) if key.public.verify(DigestAlgorithm::SHA256, &[], &signature).is_ok() => Ok(key),
            _ => Err(inconsistent),
        }
    }

    pub(crate) fn sign(&self, algorithm: DigestAlgorithm, parts: &[&[u8]]) -> Result<Vec<u8>, SignError> {
        match (algorithm, &self.pair) {
            (DigestAlgorithm::SHA256, Some(pair)) => {
                let mut signature = vec![0; self.public.n.len()];
                let random = rand::SystemRandom::new();
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, &joined(parts), &mut signature)
                    .map_err(|_| SignError::Failed)?;
                Ok(signature)
            }
            (DigestAlgorithm::SHA1 | DigestAlgorithm::SHA256, _) => {
                let digest = digest::digest(algorithm, parts.iter().copied());
                let info =
                    if algorithm == DigestAlgorithm::SHA1 { SHA1_DIGEST_INFO } else { SHA256_DIGEST_INFO };
                let signature = self.crt.sign(info, &digest.ok_or(SignError::Failed)?);
                // A wrong result, whatever the reason, could reveal the primes.
                let verdict = self.public.verify(algorithm, parts, &signature);
                verdict.map(|()| signature).map_err(|_| SignError::Failed)
            }
            (other, _) => Err(SignError::Digest(other)),
        }
    }
}

/// The primes and the numbers derived from them, for signatures that the backends do not make.
struct CrtNumbers {
    n_len: usize,
    p: BoxedMontyParams,
    q: BoxedMontyParams,
    dp: Zeroizing<BoxedUint>,
    dq: Zeroizing<BoxedUint>,
    qi: BoxedMontyForm,
}

impl CrtNumbers {
    /// `None` if the numbers are too large. The caller has checked that they belong together.
    fn new(n_bits: usize, numbers: [&[u8]; 5]) -> Option<Self> {
        let half_bits = u32::try_from(n_bits / 2).ok()?;
        let number = |bytes: &[u8]| BoxedUint::from_be_slice(bytes, half_bits).ok();
        let [p, q, dp, dq, qi] = numbers.map(number);
        let p = BoxedMontyParams::new(Odd::new(p?).into_option()?);
        let q = BoxedMontyParams::new(Odd::new(q?).into_option()?);
        let qi = BoxedMontyForm::new(qi?, &p);
        Some(Self { n_len: n_bits / 8, p, q, dp: Zeroizing::new(dp?), dq: Zeroizing::new(dq?), qi })
    }

    /// Signs by RFC 8017 sections 9.2 and 5.2.1, the second form. No branch depends on a secret.
    fn sign(&self, info: &[u8], digest: &[u8]) -> Vec<u8> {
        let mut encoded = vec![0xff; self.n_len];
        let info_at = self.n_len - info.len() - digest.len();
        encoded[..2].copy_from_slice(&[0, 1]);
        encoded[info_at - 1] = 0;
        encoded[info_at..info_at + info.len()].copy_from_slice(info);
        encoded[info_at + info.len()..].copy_from_slice(digest);
        let message = BoxedUint::from_be_slice_vartime(&encoded);

        let power = |prime: &BoxedMontyParams, exponent: &BoxedUint| {
            BoxedMontyForm::new(message.rem(nonzero(prime)), prime).pow(exponent)
        };
        let (m1, m2) = (power(&self.p, &self.dp), power(&self.q, &self.dq));
        let m2 = Zeroizing::new(m2.retrieve());
        let m2_mod_p = BoxedMontyForm::new(m2.rem(nonzero(&self.p)), &self.p);
        let h = Zeroizing::new(m1.sub(&m2_mod_p).mul(&self.qi).retrieve());
        let product = self.q.modulus().as_ref().concatenating_mul(&*h);
        let m2 = (&*m2).resize(product.bits_precision());
        product.wrapping_add(&m2).to_be_bytes().into_vec()
    }
}

fn nonzero(prime: &BoxedMontyParams) -> &NonZero<BoxedUint> {
    prime.modulus().as_nz_ref()
}

/// A public key.
#[derive(Clone)]
pub(crate) struct PublicKey {
    n: Vec<u8>,
    e: Vec<u8>,
}

impl PublicKey {
    pub(crate) fn new(e: Number<'_>, n: Number<'_>) -> Result<Self, KeyError> {
        if !(1024..=8192).contains(&n.bits()) {
            let accepted = "1024 to 8192 bits";
            return Err(KeyError::Size { algorithm: "RSA", bits: n.bits(), accepted });
        }
        // The backends would refuse other keys at every signature; larger exponents cost time and
        // gain nothing.
        let is_odd = |number: Number<'_>| number.as_bytes().last().is_some_and(|last| last % 2 == 1);
        if !is_odd(n) || !is_odd(e) || !(2..=33).contains(&e.bits()) {
            return Err(KeyError::Inconsistent { algorithm: "RSA" });
        }
        Ok(Self { n: n.as_bytes().to_vec(), e: e.as_bytes().to_vec() })
    }

    pub(crate) fn bits(&self) -> usize {
        Number::new(&self.n).bits()
    }

    pub(crate) fn verify(
        &self,
        algorithm: DigestAlgorithm,
        parts: &[&[u8]],
        signature: &[u8],
    ) -> Result<(), VerifyError> {
        let digest = match algorithm {
            DigestAlgorithm::SHA256 => ValueDigest::Sha256,
            DigestAlgorithm::SHA1 => ValueDigest::Sha1,
            _ => return Err(VerifyError::Digest),
        };
        self.verify_value(digest, &joined(parts), signature)
    }

    pub(crate) fn verify_value(
        &self,
        digest: ValueDigest,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<(), VerifyError> {
        let parameters = match digest {
            ValueDigest::Md5 => return Err(VerifyError::Digest),
            ValueDigest::Sha1 => &signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
            ValueDigest::Sha256 => &signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
            ValueDigest::Sha384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            ValueDigest::Sha512 => &signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
        };
        let key = rsa::PublicKeyComponents { n: &self.n, e: &self.e };
        key.verify(parameters, signed, signature).map_err(|_| VerifyError::Wrong)
    }

    pub(crate) fn verify_handshake(
        &self,
        scheme: HandshakeSignature,
        messages: &[u8],
        signature: &[u8],
    ) -> Result<(), VerifyError> {
        let parameters = match scheme {
            HandshakeSignature::Pkcs1Sha256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            HandshakeSignature::Pkcs1Sha384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            HandshakeSignature::Pkcs1Sha512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            HandshakeSignature::PssSha256 => &signature::RSA_PSS_2048_8192_SHA256,
            HandshakeSignature::PssSha384 => &signature::RSA_PSS_2048_8192_SHA384,
            HandshakeSignature::PssSha512 => &signature::RSA_PSS_2048_8192_SHA512,
        };
        let key = rsa::PublicKeyComponents { n: &self.n, e: &self.e };
        key.verify(parameters, messages, signature).map_err(|_| VerifyError::Wrong)
    }
}

/// Concatenates the parts, because the backends take their input in one piece.
fn joined<'a>(parts: &[&'a [u8]]) -> Cow<'a, [u8]> {
    match parts {
        [part] => Cow::Borrowed(part),
        parts => Cow::Owned(parts.concat()),
    }
}
