//! DSA signatures, as DER sequences of two integers. The nonce is derived from key and message (RFC
//! 6979), so that a weak random number cannot reveal the key.

use crate::ValueDigest;
use crate::digest::{self, Digest};
use crate::error::{KeyError, SignError, VerifyError};
use ::dsa::signature::SignatureEncoding;
use ::dsa::signature::hazmat::PrehashVerifier;
use ::dsa::{Components, Signature, SigningKey, VerifyingKey};
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use handle_proto::code::DigestAlgorithm;
use handle_proto::data::key::Number;
use sha1::Sha1;
use sha2::Sha256;
use zeroize::Zeroizing;

/// Accepted bits of p and q.
const SIZES: [(usize, usize); 4] = [(1024, 160), (2048, 224), (2048, 256), (3072, 256)];
const ACCEPTED: &str = "1024/160, 2048/224, 2048/256 or 3072/256 bits";
const INCONSISTENT: KeyError = KeyError::Inconsistent { algorithm: "DSA" };
/// Most bytes of a signature: two integers of 33 bytes, and capacity for lengths in the long form.
const SIGNATURE_LEN_MAX: usize = 96;

/// A private key.
pub(crate) struct PrivateKey(SigningKey);

impl PrivateKey {
    pub(crate) fn new(
        x: Number<'_>,
        p: Number<'_>,
        q: Number<'_>,
        g: Number<'_>,
    ) -> Result<(Self, PublicKey), KeyError> {
        let components = components(p, q, g)?;
        if x.bits() > q.bits() {
            return Err(INCONSISTENT);
        }
        let modulus = Odd::new(components.p().as_ref().clone()).into_option().ok_or(INCONSISTENT)?;
        let params = BoxedMontyParams::new_vartime(modulus);
        let q_bits = components.q().bits_precision();
        let x = Zeroizing::new(number(x, q_bits)?);
        // DSA private keys lack the public number, so it is computed.
        let y = BoxedMontyForm::new(components.g().as_ref().clone(), &params).pow(&x).retrieve();
        let public = VerifyingKey::from_components(components, y).map_err(|_| INCONSISTENT)?;
        let key = SigningKey::from_components(public.clone(), (*x).clone()).map_err(|_| INCONSISTENT)?;
        Ok((Self(key), PublicKey(public)))
    }

    pub(crate) fn q_bits(&self) -> u32 {
        self.0.verifying_key().components().q().bits()
    }

    pub(crate) fn sign(&self, algorithm: DigestAlgorithm, parts: &[&[u8]]) -> Result<Vec<u8>, SignError> {
        let digest = digest(algorithm, parts).ok_or(SignError::Digest(algorithm))?;
        let signature = if algorithm == DigestAlgorithm::SHA1 {
            self.0.sign_prehashed_rfc6979::<Sha1>(&digest)
        } else {
            self.0.sign_prehashed_rfc6979::<Sha256>(&digest)
        };
        signature.map(|signature| signature.to_vec()).map_err(|_| SignError::Failed)
    }
}

/// A public key whose y was checked to be in the group.
#[derive(Clone)]
pub(crate) struct PublicKey(VerifyingKey);

impl PublicKey {
    pub(crate) fn new(y: Number<'_>, p: Number<'_>, q: Number<'_>, g: Number<'_>) -> Result<Self, KeyError> {
        let components = components(p, q, g)?;
        let y = number(y, components.p().bits_precision())?;
        if y >= **components.p() {
            return Err(INCONSISTENT);
        }
        VerifyingKey::from_components(components, y).map(Self).map_err(|_| INCONSISTENT)
    }

    /// The public number, in big-endian bytes.
    pub(crate) fn y(&self) -> Box<[u8]> {
        self.0.y().to_be_bytes()
    }

    pub(crate) fn bits(&self) -> usize {
        self.0.components().p().bits() as usize
    }

    pub(crate) fn verify(
        &self,
        algorithm: DigestAlgorithm,
        parts: &[&[u8]],
        signature: &[u8],
    ) -> Result<(), VerifyError> {
        self.verify_digest(&digest(algorithm, parts).ok_or(VerifyError::Digest)?, signature)
    }

    pub(crate) fn verify_value(
        &self,
        digest: ValueDigest,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<(), VerifyError> {
        match digest {
            ValueDigest::Md5 => Err(VerifyError::Digest),
            digest => self.verify_digest(&digest.of(&[signed]), signature),
        }
    }

    /// Uses as many bits of the digest as q has.
    fn verify_digest(&self, digest: &[u8], signature: &[u8]) -> Result<(), VerifyError> {
        if signature.len() > SIGNATURE_LEN_MAX {
            return Err(VerifyError::Wrong);
        }
        let signature = Signature::try_from(signature).map_err(|_| VerifyError::Wrong)?;
        self.0.verify_prehash(digest, &signature).map_err(|_| VerifyError::Wrong)
    }
}

/// The digest to sign; MD5 is never signed.
fn digest(algorithm: DigestAlgorithm, parts: &[&[u8]]) -> Option<Digest> {
    match algorithm {
        DigestAlgorithm::SHA1 | DigestAlgorithm::SHA256 => digest::digest(algorithm, parts.iter().copied()),
        _ => None,
    }
}

/// Checks the group: its sizes, and that everything is in range, as the arithmetic requires.
fn components(p: Number<'_>, q: Number<'_>, g: Number<'_>) -> Result<Components, KeyError> {
    if !SIZES.contains(&(p.bits(), q.bits())) {
        return Err(KeyError::Size { algorithm: "DSA", bits: p.bits(), accepted: ACCEPTED });
    }
    let is_odd = |number: Number<'_>| number.as_bytes().last().is_some_and(|last| last % 2 == 1);
    if !is_odd(p) || !is_odd(q) || g.bits() < 2 {
        return Err(INCONSISTENT);
    }
    let bits = |number: Number<'_>| u32::try_from(number.bits()).expect("one of the sizes above");
    let (p_bits, q_bits) = (bits(p), bits(q));
    let (p, q, g) = (number(p, p_bits)?, number(q, q_bits)?, number(g, p_bits)?);
    // This checks that g is below p.
    Components::from_components(p, q, g).map_err(|_| INCONSISTENT)
}

fn number(number: Number<'_>, bits: u32) -> Result<BoxedUint, KeyError> {
    BoxedUint::from_be_slice(number.as_bytes(), bits).map_err(|_| INCONSISTENT)
}
