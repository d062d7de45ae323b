//! Passphrases, secrets and keys. Operators name files and environment variables that hold them;
//! other users could read arguments.

use crate::{UsageError, key};
use anyhow::{Context as _, bail, ensure};
use handle_auth::open_text_secret;
use handle_auth::{PrivateKey, challenge};
use handle_client::Allowances;
use handle_client::administration::{ClientIdentity, IdentityKey};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Bytes that are cleared when they are dropped.
pub(crate) type SecretArgument = Zeroizing<Vec<u8>>;

/// Where the passphrase of a key file is.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct PassphraseArgs {
    /// File with the passphrase of the key, readable only by its owner (mode 0600). A newline at
    /// its end is ignored.
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_env")]
    passphrase_file: Option<PathBuf>,
    /// Environment variable with the passphrase of the key.
    #[arg(long, value_name = "NAME")]
    passphrase_env: Option<String>,
}

impl PassphraseArgs {
    /// The options as they are typed, with a blank before them; empty without a passphrase.
    pub(crate) fn shown(&self) -> String {
        match (&self.passphrase_file, &self.passphrase_env) {
            (Some(file), _) => format!(" --passphrase-file {}", file.display()),
            (None, Some(name)) => format!(" --passphrase-env {name}"),
            (None, None) => String::new(),
        }
    }

    pub(crate) fn read(&self) -> anyhow::Result<Option<SecretArgument>> {
        read(self.passphrase_file.as_ref(), self.passphrase_env.as_deref())
    }
}

/// Reads a secret from a file or the environment; `None` if neither is named.
pub(crate) fn read(file: Option<&PathBuf>, variable: Option<&str>) -> anyhow::Result<Option<SecretArgument>> {
    if let Some(path) = file {
        return Ok(Some(open_text_secret(path)?));
    }
    let Some(name) = variable else { return Ok(None) };
    let value = std::env::var_os(name)
        .with_context(|| UsageError(format!("the environment variable {name} is not set")))?;
    let value = value
        .into_string()
        .map_err(|_| UsageError(format!("the environment variable {name} is not UTF-8")))?;
    Ok(Some(Zeroizing::new(value.into_bytes())))
}

/// The identity, and its key or secret.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct IdentityArgs {
    /// Identity to authenticate as: the value with the key, as 300:10.1045/ADMIN.
    #[arg(long, value_name = "INDEX:HANDLE", env = "HDL_AUTH")]
    pub(crate) auth: Option<String>,
    /// Private key file (native, PEM or JWK), readable only by its owner (mode 0600).
    #[arg(long, value_name = "FILE", env = "HDL_KEY", requires = "auth")]
    key: Option<PathBuf>,
    #[command(flatten)]
    passphrase: PassphraseArgs,
    /// File with the secret (HS_SECKEY), instead of a key, readable only by its owner (mode 0600).
    #[arg(long, value_name = "FILE", requires = "auth", conflicts_with = "key")]
    secret_file: Option<PathBuf>,
    /// Environment variable with the secret.
    #[arg(long, value_name = "NAME", requires = "auth", conflicts_with_all = ["key", "secret_file"])]
    secret_env: Option<String>,
    /// The value holds the secret in its hashed form (SHA-1 in hexadecimal), as some tools store
    /// it.
    #[arg(long)]
    hashed_secret: bool,
    /// Answer challenges of versions below 2.7, with an MD5 or SHA-1 digest of the secret. Whoever
    /// receives such an answer can guess the secret from it.
    #[arg(long, requires = "auth")]
    allow_old_proofs: bool,
}

impl IdentityArgs {
    /// What is permitted to authenticate to old servers.
    pub(crate) fn allowances(&self) -> Allowances {
        Allowances { old_proofs: self.allow_old_proofs, ..Allowances::default() }
    }

    /// The identity; `None` if none is named.
    pub(crate) fn read(&self) -> anyhow::Result<Option<Arc<ClientIdentity>>> {
        let Some(auth) = &self.auth else { return Ok(None) };
        let (index, handle) = reference(auth)?;
        let key = match (&self.key, read(self.secret_file.as_ref(), self.secret_env.as_deref())?) {
            (Some(path), _) => private_key(path, self.passphrase.read()?.as_deref().map(Vec::as_slice))?,
            (None, Some(secret)) if self.hashed_secret => {
                IdentityKey::Secret(challenge::hashed_secret(&secret))
            }
            (None, Some(secret)) => IdentityKey::Secret(secret),
            (None, None) => bail!(UsageError(
                "--auth needs a key or a secret: add --key FILE, --secret-file FILE or --secret-env NAME"
                    .to_owned()
            )),
        };
        Ok(Some(Arc::new(ClientIdentity { handle: handle.as_bytes().to_vec(), index, key })))
    }
}

/// Reads a private key from a file of any form, ready to sign.
pub(crate) fn private_key(path: &Path, passphrase: Option<&[u8]>) -> anyhow::Result<IdentityKey> {
    let record = key::private_record(path, passphrase)?;
    let key = PrivateKey::new_or_legacy(&record.view()).with_context(|| format!("{}", path.display()))?;
    if key.is_legacy() {
        eprintln!(
            "hdl: warning: {} is an RSA key of only {} bits, which is too weak; replace it (hdl key generate)",
            path.display(),
            key.public().bits()
        );
    }
    Ok(IdentityKey::Private(Box::new(key)))
}

/// Parses `index:handle`; a handle alone has index 0, which means any of its keys.
pub(crate) fn reference(text: &str) -> anyhow::Result<(i32, &str)> {
    let (index, handle) = match text.split_once(':') {
        Some((digits, handle)) if digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty() => {
            let index =
                digits.parse().map_err(|_| UsageError(format!("invalid index {digits}: too large")))?;
            (index, handle)
        }
        _ => (0, text),
    };
    ensure!(
        handle.contains('/'),
        UsageError(format!("invalid identity {text:?}: expected INDEX:HANDLE, as 300:10.1045/ADMIN"))
    );
    Ok((index, handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some tools store the SHA-1 of a password as secret; an operator knows the password.
    #[test]
    fn a_secret_is_hashed_only_if_the_option_says_so() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        std::fs::write(&file, "a password\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let auth = Some("300:10.1045/ADMIN".to_owned());
        for (hashed_secret, expected) in
            [(false, &b"a password"[..]), (true, b"7847eb99571fc7a6728ad27bee9e7447db41d0a2")]
        {
            let secret_file = Some(file.clone());
            let args =
                IdentityArgs { auth: auth.clone(), secret_file, hashed_secret, ..IdentityArgs::default() };
            let identity = args.read().unwrap().unwrap();
            let IdentityKey::Secret(secret) = &identity.key else { panic!("another kind of key") };
            assert_eq!(secret.as_slice(), expected);
        }
    }

    #[test]
    fn identities_are_an_index_and_a_handle() {
        assert_eq!(reference("300:10.1045/ADMIN").unwrap(), (300, "10.1045/ADMIN"));
        assert_eq!(reference("10.1045/a:b").unwrap(), (0, "10.1045/a:b"));
        assert_eq!(reference("x1:10.1045/a").unwrap(), (0, "x1:10.1045/a"));
        for text in ["", "300", "300:", "300:ADMIN", "99999999999:10/a"] {
            assert!(reference(text).is_err(), "{text}");
        }
    }
}
