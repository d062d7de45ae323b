//! The forms of key files: native, PEM and JWK, detected on reading.

use anyhow::{Context as _, bail, ensure};
use handle_auth::file::{FILE_LEN_MAX, open_secret_file};
use handle_auth::{keyfile, pem};
use handle_proto::data::{PrivateKey, PrivateKeyBuf, PublicKey};
use handle_proto::json;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use zeroize::Zeroizing;

/// The form of a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum KeyForm {
    /// The form of handle servers and their tools.
    Native,
    /// The form of other software: SubjectPublicKeyInfo and PKCS #8.
    Pem,
    /// JSON Web Key.
    Jwk,
}

impl KeyForm {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Pem => "PEM",
            Self::Jwk => "JWK",
        }
    }
}

/// The content of a key file.
pub(super) enum KeyFile {
    Public { form: KeyForm, record: Vec<u8> },
    Private { form: KeyForm, key: PrivateKeyBuf, encrypted: bool },
}

impl KeyFile {
    pub(super) const fn form(&self) -> KeyForm {
        match self {
            Self::Public { form, .. } | Self::Private { form, .. } => *form,
        }
    }

    /// Algorithm, and length of the modulus in bits.
    pub(super) fn size(&self) -> anyhow::Result<(&'static str, usize)> {
        match self {
            Self::Public { record, .. } => {
                let key = PublicKey::decode(record)?;
                Ok((key.algorithm(), key.bits()))
            }
            Self::Private { key, .. } => Ok(match key.view() {
                PrivateKey::Dsa { p, .. } => ("DSA", p.bits()),
                PrivateKey::Rsa { n, .. } | PrivateKey::RsaCrt { n, .. } => ("RSA", n.bits()),
            }),
        }
    }
}

/// Reads a key file. A private key is rejected if other users may read the file.
pub(super) fn read(path: &Path, passphrase: Option<&[u8]>) -> anyhow::Result<KeyFile> {
    let shown = path.display();
    let mut bytes = Zeroizing::new(Vec::with_capacity(1 + usize::try_from(FILE_LEN_MAX)?));
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {shown}"))?;
    ensure!(
        bytes.len() as u64 <= FILE_LEN_MAX,
        "{shown} is too long for a key (maximum {FILE_LEN_MAX} bytes)"
    );
    match public(&bytes) {
        Some((form, record)) => {
            let record = record.with_context(|| format!("{shown} is not a public key"))?;
            Ok(KeyFile::Public { form, record })
        }
        // Read again, with a check of the permissions.
        None => private(&open_secret_file(path)?, passphrase).with_context(|| format!("{shown}")),
    }
}

/// Reads a public key; `None` if the file may hold a private key instead.
fn public(bytes: &[u8]) -> Option<(KeyForm, anyhow::Result<Vec<u8>>)> {
    if pem::is_pem(bytes) {
        return match pem::decode_public_key(bytes) {
            Err(pem::PemError::Label) => None,
            key => Some((KeyForm::Pem, key.map_err(Into::into))),
        };
    }
    if is_json(bytes) {
        let jwk: json::Json = serde_json::from_slice(bytes).ok()?;
        let is_private = ["d", "x"].iter().any(|member| jwk.get(member).is_some());
        return (!is_private).then(|| (KeyForm::Jwk, json::public_key_from_jwk(&jwk).map_err(Into::into)));
    }
    // A private key file begins with the number of its encryption instead of a length.
    let is_public = bytes.get(..4).is_some_and(|number| number > &[0, 0, 0, 4][..]);
    let checked = || Ok(PublicKey::decode(bytes)?.to_bytes());
    is_public.then(|| (KeyForm::Native, checked()))
}

fn private(bytes: &[u8], passphrase: Option<&[u8]>) -> anyhow::Result<KeyFile> {
    if is_json(bytes) {
        let jwk = serde_json::from_slice(bytes).context("not JSON")?;
        return Ok(KeyFile::Private {
            form: KeyForm::Jwk,
            key: json::private_key_from_jwk(&jwk)?,
            encrypted: false,
        });
    }
    let form = if pem::is_pem(bytes) { KeyForm::Pem } else { KeyForm::Native };
    // A file that can be read without a passphrase is not encrypted.
    let (key, encrypted) = match keyfile::decode(bytes, None) {
        Err(keyfile::KeyFileError::PassphraseNeeded) => (keyfile::decode(bytes, passphrase), true),
        key => (key, false),
    };
    let hint = "the key is encrypted: add --passphrase-file FILE or --passphrase-env NAME";
    match key {
        Err(keyfile::KeyFileError::PassphraseNeeded) => bail!(hint),
        key => Ok(KeyFile::Private { form, key: key?, encrypted }),
    }
}

fn is_json(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"{")
}

/// Encodes a public key as a file.
pub(super) fn encode_public(key: &PublicKey<'_>, form: KeyForm) -> anyhow::Result<Vec<u8>> {
    Ok(match form {
        KeyForm::Native => key.to_bytes(),
        KeyForm::Pem => pem::encode_public_key(key)?.into_bytes(),
        KeyForm::Jwk => {
            let jwk =
                json::public_key_to_jwk(key).context("a Diffie-Hellman key cannot be written as JWK")?;
            format!("{jwk}\n").into_bytes()
        }
    })
}

/// Encodes a private key as a file, encrypted if there is a passphrase.
pub(super) fn encode_private(
    key: &PrivateKey<'_>,
    form: KeyForm,
    passphrase: Option<&[u8]>,
) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    Ok(match (form, passphrase) {
        (KeyForm::Native, None) => keyfile::plain(key),
        (KeyForm::Native, Some(passphrase)) => keyfile::encrypt(key, passphrase),
        (KeyForm::Pem, None) => Zeroizing::new(pem::encode_private_key(key)?.as_bytes().to_vec()),
        (KeyForm::Pem, Some(passphrase)) => {
            Zeroizing::new(pem::encode_encrypted_private_key(key, passphrase)?.into_bytes())
        }
        (KeyForm::Jwk, None) => Zeroizing::new([json::private_key_to_jwk(key).as_bytes(), b"\n"].concat()),
        (KeyForm::Jwk, Some(_)) => bail!("a JWK cannot be encrypted: choose another form, or pass --plain"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    const FORMS: [KeyForm; 3] = [KeyForm::Native, KeyForm::Pem, KeyForm::Jwk];

    #[test]
    fn every_form_reads_back_as_the_same_key() {
        let key = handle_auth::generate::rsa(2048).unwrap();
        let public = key.view().public().unwrap();
        let directory = tempfile::tempdir().unwrap();
        for (form, passphrase) in
            FORMS.into_iter().flat_map(|form| [(form, None), (form, Some(&b"phrase"[..]))])
        {
            let path = directory.path().join(format!("{}-{}", form.name(), passphrase.is_some()));
            let Ok(bytes) = encode_private(&key.view(), form, passphrase) else {
                assert!(form == KeyForm::Jwk && passphrase.is_some(), "only a JWK is never encrypted");
                continue;
            };
            handle_auth::file::create_secret_file(&path, &bytes).unwrap();
            let Ok(KeyFile::Private { form: found, key: again, encrypted }) = read(&path, Some(b"phrase"))
            else {
                panic!("{} is private", path.display());
            };
            assert_eq!((found, again.as_bytes(), encrypted), (form, key.as_bytes(), passphrase.is_some()));
            if passphrase.is_some() {
                assert!(read(&path, None).is_err() && read(&path, Some(b"phrasE")).is_err());
            }
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
            let error = read(&path, passphrase).err().unwrap();
            assert!(format!("{error:#}").contains("chmod 600"), "{error:#}");
        }
        for form in FORMS {
            let path = directory.path().join(form.name());
            fs::write(&path, encode_public(&public, form).unwrap()).unwrap();
            let Ok(KeyFile::Public { form: found, record }) = read(&path, None) else { panic!("public") };
            assert_eq!((found, record), (form, public.to_bytes()));
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for bytes in
            [&b""[..], b"{", b"{}", b"\0\0\0\x0bRSA_PUB_KEY", b"\0\0\0\x01", b"-----BEGIN CERTIFICATE-----\n"]
        {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            assert!(read(&path, None).is_err(), "{bytes:?}");
        }
    }
}
