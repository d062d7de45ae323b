//! The password-based encryption of PKCS #12 with SHA-1 and triple DES, which `hdl-convert-key`
//! writes. RFC 7292 appendices B and C. It is read but never written.

use crate::cipher::{CipherBlock, Mode};
use crate::keyfile::KeyFileError;
use pkcs8::ObjectIdentifier;
use pkcs8::der::asn1::{AnyRef, OctetStringRef};
use pkcs8::der::{self, Decode as _};
use pkcs8::spki::AlgorithmIdentifierRef;
use sha1::{Digest as _, Sha1};
use zeroize::Zeroizing;

/// pbeWithSHAAnd3-KeyTripleDES-CBC.
const SHA1_DES_EDE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.12.1.3");
/// Bytes of a block of SHA-1.
const BLOCK_LEN: usize = 64;
const DIGEST_LEN: usize = 20;
/// The purpose of a derived value; the first byte that is hashed.
const FOR_KEY: u8 = 1;
const FOR_IV: u8 = 2;

/// A PKCS #8 key with this encryption.
pub(crate) struct EncryptedKey<'a> {
    salt: &'a [u8],
    iterations: u32,
    ciphertext: &'a [u8],
}

impl<'a> EncryptedKey<'a> {
    /// Decodes an EncryptedPrivateKeyInfo; `None` if it has another encryption.
    pub(crate) fn decode(der: &'a [u8]) -> Option<Self> {
        let outer = AnyRef::from_der(der).ok()?;
        let (algorithm, ciphertext) = outer
            .sequence(|reader| {
                let algorithm = AlgorithmIdentifierRef::decode(reader)?;
                Ok::<_, der::Error>((algorithm, <&OctetStringRef>::decode(reader)?.as_bytes()))
            })
            .ok()?;
        let parameters = algorithm.parameters.filter(|_| algorithm.oid == SHA1_DES_EDE)?;
        let (salt, iterations) = parameters
            .sequence(|reader| {
                let salt = <&OctetStringRef>::decode(reader)?.as_bytes();
                Ok::<_, der::Error>((salt, u32::decode(reader)?))
            })
            .ok()?;
        Some(Self { salt, iterations, ciphertext })
    }

    /// Decrypts the PKCS #8 key.
    ///
    /// # Errors
    /// When the passphrase is wrong, or the key demands more than `iterations_max` rounds.
    pub(crate) fn decrypt(
        &self,
        passphrase: &[u8],
        iterations_max: u32,
    ) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
        if self.iterations > iterations_max {
            return Err(KeyFileError::Work);
        }
        let passphrase = std::str::from_utf8(passphrase).map_err(|_| KeyFileError::Undecryptable)?;
        // UTF-16, with a zero character at the end.
        let passphrase: Zeroizing<Vec<u8>> =
            Zeroizing::new(passphrase.encode_utf16().chain([0]).flat_map(u16::to_be_bytes).collect());
        let (mut key, mut iv) = (Zeroizing::new([0; 24]), [0; 8]);
        self.derive(FOR_KEY, &passphrase, &mut *key);
        self.derive(FOR_IV, &passphrase, &mut iv);
        let plain = CipherBlock::DesEde.decrypt(Mode::Cbc(&iv), &*key, self.ciphertext);
        plain.ok_or(KeyFileError::Undecryptable)
    }

    /// RFC 7292 appendix B.2.
    fn derive(&self, purpose: u8, passphrase: &[u8], out: &mut [u8]) {
        let filled = |bytes: &[u8]| -> Vec<u8> {
            let len = bytes.len().div_ceil(BLOCK_LEN) * BLOCK_LEN;
            bytes.iter().copied().cycle().take(len).collect()
        };
        let mut input = Zeroizing::new([filled(self.salt), filled(passphrase)].concat());
        for part in out.chunks_mut(DIGEST_LEN) {
            let first = Sha1::new().chain_update([purpose; BLOCK_LEN]).chain_update(&*input);
            let mut digest = Zeroizing::new(<[u8; DIGEST_LEN]>::from(first.finalize()));
            for _ in 1..self.iterations {
                *digest = Sha1::digest(*digest).into();
            }
            part.copy_from_slice(&digest[..part.len()]);
            // The digest, repeated to the length of a block, plus one is added to each block of the
            // input.
            for block in input.chunks_mut(BLOCK_LEN) {
                let mut carry = 1;
                for (at, byte) in block.iter_mut().enumerate().rev() {
                    let sum = u16::from(*byte) + u16::from(digest[at % DIGEST_LEN]) + carry;
                    [_, *byte] = sum.to_be_bytes();
                    carry = sum >> 8;
                }
            }
        }
    }
}
