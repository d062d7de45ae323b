//! Keys as PEM, for exchange with other software: SubjectPublicKeyInfo, PKCS #8 plain and
//! encrypted, and for reading the older PKCS #1.

use crate::cipher::{CipherBlock, Mode};
use crate::keyfile::{ITERATIONS, KeyFileError};
use crate::pkcs12;
use crate::random;
use handle_proto::data::key::Number;
use handle_proto::data::{PrivateKey, PrivateKeyBuf, PublicKey};
use pbkdf2::pbkdf2_hmac;
use pkcs8::der::asn1::{AnyRef, OctetStringRef, UintRef};
use pkcs8::der::pem::{self, LineEnding};
use pkcs8::der::{Decode, Encode};
use pkcs8::pkcs5::EncryptionScheme;
use pkcs8::pkcs5::pbes2::{self, Kdf, Pbkdf2Params, Pbkdf2Prf};
use pkcs8::spki::SubjectPublicKeyInfoRef;
use pkcs8::{EncryptedPrivateKeyInfoRef, ObjectIdentifier, PrivateKeyInfoRef};
use sha1::Sha1;
use sha2::Sha256;
use std::fmt;
use zeroize::Zeroizing;

/// Characters in a line of a body. RFC 7468 section 2.
const LINE_LEN: usize = 64;
const BEGIN: &[u8] = b"-----BEGIN ";
const PUBLIC: &str = "PUBLIC KEY";
const PRIVATE: &str = "PRIVATE KEY";
const ENCRYPTED: &str = "ENCRYPTED PRIVATE KEY";
const RSA_PRIVATE: &str = "RSA PRIVATE KEY";
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const DSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10040.4.1");

/// Why PEM is not a usable key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PemError {
    /// The text between the boundary lines is not base64, or not what the label says.
    Malformed,
    /// The label names something else than the wanted key.
    Label,
    /// A key of another algorithm, such as an elliptic curve.
    Algorithm,
    /// Encrypted with an unsupported method.
    Cipher,
    /// The key cannot be written in this form: an RSA key without its primes, or a Diffie-Hellman
    /// key.
    Form,
}

impl fmt::Display for PemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "damaged PEM",
            Self::Label => "the PEM holds something else than the wanted key",
            Self::Algorithm => "the key is neither RSA nor DSA, the only algorithms of the protocol",
            Self::Cipher => {
                "the PEM is encrypted with something else than PBKDF2 and AES-CBC, or triple DES as \
                 hdl-convert-key does; convert it with `openssl pkcs8 -topk8 -v2 aes-256-cbc`"
            }
            Self::Form => "the key cannot be written as PEM",
        })
    }
}

impl std::error::Error for PemError {}

/// Whether a file looks like PEM.
#[must_use]
pub fn is_pem(file: &[u8]) -> bool {
    file.trim_ascii_start().starts_with(BEGIN)
}

/// The label of the first block and its decoded bytes.
///
/// Lines may have any length (`hdl-convert-key` writes 76 characters) and any line ends. The
/// decoder accepts 64 characters only, so the text is wrapped again. RFC 7468 section 3, lax
/// parsing.
fn decode_block(file: &[u8]) -> Result<(&str, Zeroizing<Vec<u8>>), PemError> {
    let text = std::str::from_utf8(file).map_err(|_| PemError::Malformed)?.trim_ascii_start();
    let (label, rest) = text
        .strip_prefix("-----BEGIN ")
        .and_then(|rest| rest.split_once("-----"))
        .ok_or(PemError::Malformed)?;
    let (body, _) = rest.split_once("-----END ").ok_or(PemError::Malformed)?;
    // RFC 1421 headers: how OpenSSL encrypted keys before PKCS #8.
    if body.contains("Proc-Type:") {
        return Err(PemError::Cipher);
    }
    let end = &rest[body.len()..];
    let end = end.lines().next().unwrap_or(end);
    let digits = body.bytes().filter(|byte| !byte.is_ascii_whitespace());
    let mut rewrapped = Zeroizing::new(Vec::with_capacity(2 * text.len() + 256));
    rewrapped.extend_from_slice(format!("-----BEGIN {label}-----").as_bytes());
    for (at, digit) in digits.enumerate() {
        if at % LINE_LEN == 0 {
            rewrapped.push(b'\n');
        }
        rewrapped.push(digit);
    }
    rewrapped.push(b'\n');
    rewrapped.extend_from_slice(end.trim_end().as_bytes());
    rewrapped.push(b'\n');
    let (_, der) = pem::decode_vec(&rewrapped).map_err(|_| PemError::Malformed)?;
    Ok((label, Zeroizing::new(der)))
}

/// Reads a public key, and returns its record.
///
/// # Errors
/// When `file` is not the PEM of a public RSA or DSA key.
pub fn decode_public_key(file: &[u8]) -> Result<Vec<u8>, PemError> {
    let (label, der) = decode_block(file)?;
    if label != PUBLIC {
        return Err(PemError::Label);
    }
    public_key_from_der(&der)
}

/// Reads a SubjectPublicKeyInfo, as in certificates, and returns the record of the key.
///
/// # Errors
/// When `der` is not that of a public RSA or DSA key.
pub fn public_key_from_der(der: &[u8]) -> Result<Vec<u8>, PemError> {
    public_key_of(&SubjectPublicKeyInfoRef::from_der(der).map_err(|_| PemError::Malformed)?)
}

/// The record of the public key in a SubjectPublicKeyInfo.
pub(crate) fn public_key_of(info: &SubjectPublicKeyInfoRef<'_>) -> Result<Vec<u8>, PemError> {
    let bits = info.subject_public_key.as_bytes().ok_or(PemError::Malformed)?;
    match info.algorithm.oid {
        RSA => {
            let [n, e] = integers(bits)?;
            Ok(PublicKey::Rsa { e, n }.to_bytes())
        }
        DSA => {
            let [p, q, g] = group(info.algorithm.parameters)?;
            Ok(PublicKey::Dsa { q, p, g, y: integer(bits)? }.to_bytes())
        }
        _ => Err(PemError::Algorithm),
    }
}

/// Reads a private key: PKCS #8, encrypted or not, or PKCS #1.
///
/// # Errors
/// When `file` is not the PEM of a private RSA or DSA key, is encrypted and the passphrase is
/// missing or wrong, or demands more than `iterations_max` rounds of PBKDF2.
pub(crate) fn decode_private_key(
    file: &[u8],
    passphrase: Option<&[u8]>,
    iterations_max: u32,
) -> Result<PrivateKeyBuf, KeyFileError> {
    let (label, der) = decode_block(file).map_err(KeyFileError::Pem)?;
    let key = match label {
        PRIVATE => private_key(&der),
        RSA_PRIVATE => rsa_private_key(&der),
        ENCRYPTED => {
            let passphrase = passphrase.ok_or(KeyFileError::PassphraseNeeded)?;
            let plain = decrypt(&der, passphrase, iterations_max)?;
            return private_key(&plain).map_err(|error| match error {
                PemError::Malformed => KeyFileError::Undecryptable,
                other => KeyFileError::Pem(other),
            });
        }
        _ => Err(PemError::Label),
    };
    key.map_err(KeyFileError::Pem)
}

fn private_key(der: &[u8]) -> Result<PrivateKeyBuf, PemError> {
    let info = PrivateKeyInfoRef::from_der(der).map_err(|_| PemError::Malformed)?;
    let bytes = info.private_key.as_bytes();
    match info.algorithm.oid {
        RSA => rsa_private_key(bytes),
        DSA => {
            let [p, q, g] = group(info.algorithm.parameters)?;
            Ok((&PrivateKey::Dsa { x: integer(bytes)?, p, q, g }).into())
        }
        _ => Err(PemError::Algorithm),
    }
}

/// RFC 8017 appendix A.1.2, with two primes.
fn rsa_private_key(der: &[u8]) -> Result<PrivateKeyBuf, PemError> {
    let [version, n, e, d, p, q, dp, dq, qi] = integers(der)?;
    if version.bits() != 0 {
        return Err(PemError::Form);
    }
    Ok((&PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi }).into())
}

/// p, q and g of a DSA key, the parameters of its algorithm. RFC 3279 section 2.3.2.
fn group(parameters: Option<AnyRef<'_>>) -> Result<[Number<'_>; 3], PemError> {
    sequence(parameters.ok_or(PemError::Malformed)?)
}

fn integers<const COUNT: usize>(der: &[u8]) -> Result<[Number<'_>; COUNT], PemError> {
    sequence(AnyRef::from_der(der).map_err(|_| PemError::Malformed)?)
}

fn sequence<const COUNT: usize>(any: AnyRef<'_>) -> Result<[Number<'_>; COUNT], PemError> {
    let numbers = any.sequence(|reader| {
        let mut numbers = [Number::new(&[]); COUNT];
        for number in &mut numbers {
            *number = Number::new(UintRef::decode(reader)?.as_bytes());
        }
        Ok::<_, pkcs8::der::Error>(numbers)
    });
    numbers.map_err(|_| PemError::Malformed)
}

fn integer(der: &[u8]) -> Result<Number<'_>, PemError> {
    let number = UintRef::from_der(der).map_err(|_| PemError::Malformed)?;
    Ok(Number::new(number.as_bytes()))
}

/// Decrypts PKCS #8.
fn decrypt(der: &[u8], passphrase: &[u8], iterations_max: u32) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    let cipher = KeyFileError::Pem(PemError::Cipher);
    if let Some(encrypted) = pkcs12::EncryptedKey::decode(der) {
        return encrypted.decrypt(passphrase, iterations_max);
    }
    let info = EncryptedPrivateKeyInfoRef::from_der(der).map_err(|_| cipher)?;
    let EncryptionScheme::Pbes2(parameters) = &info.encryption_algorithm else {
        return Err(cipher);
    };
    let Kdf::Pbkdf2(kdf) = &parameters.kdf else { return Err(cipher) };
    let (iv, key_len) = match &parameters.encryption {
        pbes2::EncryptionScheme::Aes128Cbc { iv } => (iv, 16),
        pbes2::EncryptionScheme::Aes192Cbc { iv } => (iv, 24),
        pbes2::EncryptionScheme::Aes256Cbc { iv } => (iv, 32),
        _ => return Err(cipher),
    };
    let is_length = kdf.key_length.is_none_or(|len| usize::from(len) == key_len);
    if !is_length || kdf.iteration_count == 0 {
        return Err(cipher);
    }
    if kdf.iteration_count > iterations_max {
        return Err(KeyFileError::Work);
    }
    let mut key = Zeroizing::new(vec![0; key_len]);
    match kdf.prf {
        Pbkdf2Prf::HmacWithSha1 => {
            pbkdf2_hmac::<Sha1>(passphrase, kdf.salt.as_ref(), kdf.iteration_count, &mut key);
        }
        Pbkdf2Prf::HmacWithSha256 => {
            pbkdf2_hmac::<Sha256>(passphrase, kdf.salt.as_ref(), kdf.iteration_count, &mut key);
        }
        _ => return Err(cipher),
    }
    let plain = CipherBlock::Aes.decrypt(Mode::Cbc(iv), &key, info.encrypted_data.as_bytes());
    plain.ok_or(KeyFileError::Undecryptable)
}

/// Writes a public key.
///
/// # Errors
/// For a Diffie-Hellman key.
pub fn encode_public_key(key: &PublicKey<'_>) -> Result<String, PemError> {
    let (algorithm, key) = match key {
        PublicKey::Rsa { e, n } => (rsa_algorithm(), tlv(0x30, &[&uint(*n), &uint(*e)])),
        PublicKey::Dsa { q, p, g, y } => (dsa_algorithm(*p, *q, *g), uint(*y)),
        PublicKey::Dh { .. } => return Err(PemError::Form),
    };
    // A bit string begins with its number of unused bits.
    let der = tlv(0x30, &[&algorithm, &tlv(0x03, &[&[0], &key])]);
    Ok(encode_block(PUBLIC, &der).to_string())
}

/// Writes a private key as PKCS #8, not encrypted.
///
/// # Errors
/// For an RSA key without its primes.
pub fn encode_private_key(key: &PrivateKey<'_>) -> Result<Zeroizing<String>, PemError> {
    Ok(encode_block(PRIVATE, &pkcs8(key)?))
}

/// Writes a private key as PKCS #8, encrypted with AES-256 under a key that PBKDF2 with HMAC-SHA256
/// derives from `passphrase`.
///
/// # Errors
/// For an RSA key without its primes.
///
/// # Panics
/// When the operating system has no random numbers.
pub fn encode_encrypted_private_key(key: &PrivateKey<'_>, passphrase: &[u8]) -> Result<String, PemError> {
    encrypted(key, passphrase, ITERATIONS, &random(), random())
}

/// [`encode_encrypted_private_key`] with explicit rounds, salt and initial vector.
pub(crate) fn encrypted(
    key: &PrivateKey<'_>,
    passphrase: &[u8],
    iterations: u32,
    salt: &[u8; 16],
    iv: [u8; 16],
) -> Result<String, PemError> {
    let mut aes_key = Zeroizing::new([0; 32]);
    pbkdf2_hmac::<Sha256>(passphrase, salt, iterations, &mut *aes_key);
    let text = CipherBlock::Aes.encrypt(Mode::Cbc(&iv), &*aes_key, &pkcs8(key)?).expect("lengths of AES-256");
    let kdf = Pbkdf2Params::hmac_sha256(iterations, salt).map_err(|_| PemError::Cipher)?;
    let encryption = pbes2::EncryptionScheme::Aes256Cbc { iv };
    let parameters = pbes2::Parameters { kdf: Kdf::Pbkdf2(kdf), encryption };
    let encrypted_data = OctetStringRef::new(&text).map_err(|_| PemError::Form)?;
    let encryption_algorithm = EncryptionScheme::Pbes2(parameters);
    let info = EncryptedPrivateKeyInfoRef { encryption_algorithm, encrypted_data };
    Ok(encode_block(ENCRYPTED, &info.to_der().map_err(|_| PemError::Form)?).to_string())
}

fn pkcs8(key: &PrivateKey<'_>) -> Result<Zeroizing<Vec<u8>>, PemError> {
    let zero = uint(Number::new(&[]));
    let (algorithm, key) = match key {
        PrivateKey::RsaCrt { n, e, d, p, q, dp, dq, qi } => {
            let numbers = [n, e, d, p, q, dp, dq, qi].map(|number| uint(*number));
            let parts: Vec<&[u8]> = [&zero].into_iter().chain(&numbers).map(|number| &***number).collect();
            (rsa_algorithm(), tlv(0x30, &parts))
        }
        PrivateKey::Dsa { x, p, q, g } => (dsa_algorithm(*p, *q, *g), uint(*x)),
        PrivateKey::Rsa { .. } => return Err(PemError::Form),
    };
    Ok(tlv(0x30, &[&zero, &algorithm, &tlv(0x04, &[&key])]))
}

fn rsa_algorithm() -> Zeroizing<Vec<u8>> {
    tlv(0x30, &[&tlv(0x06, &[RSA.as_bytes()]), &tlv(0x05, &[])])
}

fn dsa_algorithm(p: Number<'_>, q: Number<'_>, g: Number<'_>) -> Zeroizing<Vec<u8>> {
    let group = tlv(0x30, &[&uint(p), &uint(q), &uint(g)]);
    tlv(0x30, &[&tlv(0x06, &[DSA.as_bytes()]), &group])
}

fn uint(number: Number<'_>) -> Zeroizing<Vec<u8>> {
    let bytes = number.as_bytes();
    let sign: &[u8] = if bytes.first().is_none_or(|&first| first >= 0x80) { &[0] } else { &[] };
    tlv(0x02, &[sign, bytes])
}

/// Tag, length and content of one element in DER, cleared when it is dropped.
fn tlv(tag: u8, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let digits = len.to_be_bytes();
    let digits = &digits[digits.iter().take_while(|&&digit| digit == 0).count()..];
    // Allocated at once, because growing would leave copies behind that are not cleared.
    let mut out = Zeroizing::new(Vec::with_capacity(2 + digits.len() + len));
    out.push(tag);
    match u8::try_from(len) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            out.push(0x80 | u8::try_from(digits.len()).expect("at most eight digits"));
            out.extend_from_slice(digits);
        }
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out
}

fn encode_block(label: &str, der: &[u8]) -> Zeroizing<String> {
    let text = pem::encode_string(label, LineEnding::LF, der);
    Zeroizing::new(text.expect("a key below the limit of PEM"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyfile::decode;
    use crate::testing::{private_record, public_record, text};

    const IDS: [&str; 4] = ["admin_rsa", "rsa1024", "admin_dsa", "admin_dsa2048"];

    #[test]
    fn keys_are_the_same_in_both_forms() {
        for id in IDS {
            let (public, private) = (public_record(id), private_record(id));
            let (spki, pkcs8) = (text(id, "spki_pem"), text(id, "pkcs8_pem"));
            assert_eq!(decode_public_key(spki.as_bytes()), Ok(public.clone()), "{id}");
            let key = PublicKey::decode(&public).unwrap();
            assert_eq!(encode_public_key(&key).unwrap().trim_end(), spki.trim_end(), "{id}");
            assert!(is_pem(pkcs8.as_bytes()), "{id}");
            assert_eq!(decode(pkcs8.as_bytes(), None).unwrap().as_bytes(), private, "{id}");
            let key = PrivateKey::decode(&private).unwrap();
            assert_eq!(encode_private_key(&key).unwrap().trim_end(), pkcs8.trim_end(), "{id}");
        }
    }

    #[test]
    fn encrypted_keys_read_back() {
        let record = private_record("admin_dsa");
        let key = PrivateKey::decode(&record).unwrap();
        let pem = encrypted(&key, b"pass phrase", 3, &[1; 16], [2; 16]).unwrap();
        let read = |passphrase| decode(pem.as_bytes(), passphrase);
        assert_eq!(read(Some(b"pass phrase")).unwrap().as_bytes(), record);
        assert_eq!(read(None).unwrap_err(), KeyFileError::PassphraseNeeded);
        assert_eq!(read(Some(b"pass phrasf")).unwrap_err(), KeyFileError::Undecryptable);
        let fresh = encode_encrypted_private_key(&key, b"pass phrase").unwrap();
        assert_eq!(decode(fresh.as_bytes(), Some(b"pass phrase")).unwrap().as_bytes(), record);
    }

    #[test]
    fn keys_encrypted_by_openssl_are_read() {
        // openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:512 | openssl pkcs8 -topk8 -v2
        // aes-256-cbc -passout pass:secret, with PBKDF2 and HMAC-SHA256, 2048 rounds; and with
        // -v2prf hmacWithSHA1 and aes-128-cbc.
        for pem in [
            include_str!("../testdata/openssl-aes256.pem"),
            include_str!("../testdata/openssl-aes128-sha1.pem"),
        ] {
            let key = decode(pem.as_bytes(), Some(b"secret")).unwrap();
            assert_eq!(key.view().public().unwrap().bits(), 512);
            let error = decode(pem.as_bytes(), Some(b"secreT")).unwrap_err();
            assert_eq!(error, KeyFileError::Undecryptable);
        }
        let scrypt = include_str!("../testdata/openssl-scrypt.pem");
        let error = decode(scrypt.as_bytes(), Some(b"secret")).unwrap_err();
        assert_eq!(error, KeyFileError::Pem(PemError::Cipher));
        let older = include_str!("../testdata/openssl-pkcs1.pem");
        let key = decode(older.as_bytes(), None).unwrap();
        assert_eq!(key.view().public().unwrap().bits(), 512);
        let curve = include_str!("../testdata/openssl-ec.pem");
        let error = decode(curve.as_bytes(), None).unwrap_err();
        assert_eq!(error, KeyFileError::Pem(PemError::Algorithm));
    }

    #[test]
    fn keys_written_by_the_reference_tools_are_read() {
        // hdl-keygen and hdl-convert-key of Handle.Net 9.3.1: lines of 76 characters that end with
        // CR LF, encrypted with SHA-1 and triple DES, 10,000 rounds, under "secret".
        let plain = include_str!("../testdata/handle-net-rsa1024.pem");
        let key = decode(plain.as_bytes(), None).unwrap();
        assert_eq!(key.view().public().unwrap().bits(), 1024);
        let encrypted = include_str!("../testdata/handle-net-rsa1024-encrypted.pem").as_bytes();
        assert_eq!(decode(encrypted, Some(b"secret")).unwrap().as_bytes(), key.as_bytes());
        assert_eq!(decode(encrypted, None).unwrap_err(), KeyFileError::PassphraseNeeded);
        assert_eq!(decode(encrypted, Some(b"secreT")).unwrap_err(), KeyFileError::Undecryptable);
        assert_eq!(decode(encrypted, Some(b"\xff")).unwrap_err(), KeyFileError::Undecryptable);
        for (rounds, error) in [(10_000, None), (9_999, Some(KeyFileError::Work))] {
            let read = crate::keyfile::decode_within(encrypted, Some(b"secret"), rounds);
            assert_eq!(read.err(), error, "{rounds}");
        }
        let public = include_str!("../testdata/handle-net-rsa1024-public.pem");
        let public = decode_public_key(public.as_bytes()).unwrap();
        assert_eq!(public, key.view().public().unwrap().to_bytes());
    }

    #[test]
    fn lines_have_any_length() {
        let (pem, record) = (text("admin_rsa", "pkcs8_pem"), private_record("admin_rsa"));
        let (begin, end) = ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----");
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        for (width, end_of_line) in [(1, "\n"), (63, "\r\n"), (64, "\n"), (76, "\r\n"), (body.len(), "\n")] {
            let lines: Vec<&str> =
                body.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).unwrap()).collect();
            let lines = [&[begin], &lines[..], &[end, ""]].concat().join(end_of_line);
            assert_eq!(decode(lines.as_bytes(), None).unwrap().as_bytes(), record, "{width}");
        }
        let older = format!(
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{body}\n-----END RSA PRIVATE KEY-----\n"
        );
        assert_eq!(decode(older.as_bytes(), None).unwrap_err(), KeyFileError::Pem(PemError::Cipher));
    }

    #[test]
    fn truncated_keys_and_those_of_another_kind_are_refused() {
        let (spki, pkcs8) = (text("admin_dsa", "spki_pem"), text("admin_dsa", "pkcs8_pem"));
        for len in 0..pkcs8.trim_end().len() - 1 {
            assert!(decode(&pkcs8.as_bytes()[..len], None).is_err(), "cut to {len}");
        }
        for len in 0..spki.trim_end().len() - 1 {
            assert!(decode_public_key(&spki.as_bytes()[..len]).is_err(), "cut to {len}");
        }
        assert_eq!(decode_public_key(pkcs8.as_bytes()), Err(PemError::Label));
        let error = decode(spki.as_bytes(), None).unwrap_err();
        assert_eq!(error, KeyFileError::Pem(PemError::Label));
        let dh = PublicKey::Dh { y: Number::new(&[5]), p: Number::new(&[23]), g: Number::new(&[2]) };
        assert_eq!(encode_public_key(&dh), Err(PemError::Form));
        let rsa = PrivateKey::Rsa { n: Number::new(&[5]), d: Number::new(&[5]) };
        assert_eq!(encode_private_key(&rsa), Err(PemError::Form));
    }

    #[test]
    fn lengths_are_written_in_the_shortest_way() {
        for (len, head) in
            [(0, &[4, 0][..]), (127, &[4, 127]), (128, &[4, 0x81, 128]), (256, &[4, 0x82, 1, 0])]
        {
            assert_eq!(tlv(4, &[&vec![0; len]])[..head.len()], *head, "{len}");
        }
    }
}
