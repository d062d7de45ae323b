//! Reads the directory of a reference server: its service, key and administrators.

use crate::secret::SecretArgument;
use anyhow::{Context as _, bail, ensure};
use handle_auth::file::FILE_LEN_MAX;
use handle_auth::keyfile::{self, KeyFileError};
use handle_auth::{PrivateKey, pem};
use handle_client::bootstrap::read_site;
use handle_formats::dct::DctSettings;
use handle_proto::data::site::SiteFlags;
use handle_proto::data::{PrivateKeyBuf, PublicKey, SiteBuf};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Maximum length of a configuration or site file, in bytes.
const TEXT_LEN_MAX: u64 = 1 << 20;

/// The contents of the directory of a reference server.
pub(super) struct ServerDirectory {
    /// `config.dct`.
    pub(super) config: DctSettings,
    /// `server_config` in it.
    pub(super) server: DctSettings,
    /// The site record, and the position of this server in it.
    pub(super) site: SiteBuf,
    pub(super) server_at: usize,
    /// The key that signs answers.
    pub(super) server_key: PrivateKeyBuf,
    /// The file with the administrator's private key, unchanged.
    pub(super) admin_key: Option<SecretArgument>,
    /// The administrator's public key.
    pub(super) admin_public: Option<Vec<u8>>,
    /// `contactdata.dct`.
    pub(super) contact: DctSettings,
    /// Files with a private key that users other than their owner may read.
    pub(super) exposed: Vec<PathBuf>,
}

impl ServerDirectory {
    /// Reads `directory`. `passphrase` decrypts the key of the server.
    pub(super) fn read(directory: &Path, passphrase: Option<&[u8]>) -> anyhow::Result<Self> {
        let path = |name: &str| directory.join(name);
        let config = settings(&path("config.dct"))?.with_context(|| {
            format!(
                "{} has no config.dct: it is not the directory of a reference server",
                directory.display()
            )
        })?;
        let kind = config.text("server_type").unwrap_or("server");
        ensure!(
            kind == "server",
            "config.dct: server_type is {kind:?}; only the directory of a server can be adopted"
        );
        let server = config.settings_of("server_config").context("config.dct has no server_config")?.clone();
        let site = site(directory)?;
        let server_at = server_of(&site, &server)?;
        let mut exposed = vec![];
        let (key_path, key_file) = first(directory, &["privkey.bin", "privkey.pem"], &mut exposed)?
            .with_context(|| {
                format!("{} has no privkey.bin, the key that signs answers", directory.display())
            })?;
        let server_key = open_key(&key_path, &key_file, passphrase)?;
        check_key(&site, server_at, &server_key, &key_path)?;
        let admin = first(directory, &["admpriv.bin", "admpriv.pem"], &mut exposed)?;
        let admin_public = admin_public(directory, admin.as_ref().map(|(_, file)| &file[..]))?;
        let contact = settings(&path("contactdata.dct"))?.unwrap_or_default();
        let admin_key = admin.map(|(_, file)| file);
        Ok(Self { config, server, site, server_at, server_key, admin_key, admin_public, contact, exposed })
    }
}

/// The bytes of a file; `None` if it does not exist.
fn bytes(path: &Path, len_max: u64) -> anyhow::Result<Option<SecretArgument>> {
    let shown = path.display();
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.with_context(|| format!("cannot open {shown}"))?,
    };
    // A buffer that grows would leave copies of secrets behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(1 + usize::try_from(len_max)?));
    file.take(len_max + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {shown}"))?;
    ensure!(bytes.len() as u64 <= len_max, "{shown} is longer than {len_max} bytes");
    Ok(Some(bytes))
}

fn settings(path: &Path) -> anyhow::Result<Option<DctSettings>> {
    let Some(bytes) = bytes(path, TEXT_LEN_MAX)? else { return Ok(None) };
    let shown = path.display();
    let text = std::str::from_utf8(&bytes).with_context(|| format!("{shown} is not UTF-8"))?;
    Ok(Some(DctSettings::parse(text).with_context(|| format!("{shown}"))?))
}

/// Reads the site record. If both files exist, `siteinfo.bin` is used, as in the reference server.
fn site(directory: &Path) -> anyhow::Result<SiteBuf> {
    for name in ["siteinfo.bin", "siteinfo.json"] {
        let path = directory.join(name);
        let Some(bytes) = bytes(&path, TEXT_LEN_MAX)? else { continue };
        let site = read_site(&bytes).with_context(|| format!("{} is not a site record", path.display()))?;
        ensure!(
            site.view().flags.has(SiteFlags::PRIMARY),
            "{}: the site is a mirror; adopt the directory of its primary",
            path.display()
        );
        return Ok(site);
    }
    bail!("{} has neither siteinfo.json nor siteinfo.bin", directory.display())
}

/// The position of the server that the configuration describes.
fn server_of(site: &SiteBuf, server: &DctSettings) -> anyhow::Result<usize> {
    let text = server.text("this_server_id").unwrap_or("1").trim();
    let id: i32 = text.parse().with_context(|| format!("config.dct: invalid this_server_id {text:?}"))?;
    let at = site.view().servers.iter().position(|server| server.id == id);
    at.with_context(|| format!("config.dct: this_server_id is {id}, but the site record has no such server"))
}

/// The first of the private key files that exists.
fn first(
    directory: &Path,
    names: &[&str],
    exposed: &mut Vec<PathBuf>,
) -> anyhow::Result<Option<(PathBuf, SecretArgument)>> {
    for name in names {
        let path = directory.join(name);
        let Some(file) = bytes(&path, FILE_LEN_MAX)? else { continue };
        // The reference server leaves its keys readable for everybody, so this is not an error.
        if path.metadata().is_ok_and(|about| about.mode() & 0o077 != 0) {
            exposed.push(path.clone());
        }
        return Ok(Some((path, file)));
    }
    Ok(None)
}

fn open_key(path: &Path, file: &[u8], passphrase: Option<&[u8]>) -> anyhow::Result<PrivateKeyBuf> {
    let shown = path.display();
    let key = match keyfile::decode(file, passphrase) {
        Err(KeyFileError::PassphraseNeeded) => {
            bail!("{shown} is encrypted: add --server-passphrase-file FILE or --server-passphrase-env NAME")
        }
        key => key.with_context(|| format!("{shown}"))?,
    };
    PrivateKey::new(&key.view()).with_context(|| format!("{shown}"))?;
    Ok(key)
}

/// Checks that clients verify signatures with this key.
fn check_key(site: &SiteBuf, at: usize, key: &PrivateKeyBuf, path: &Path) -> anyhow::Result<()> {
    let Some(server) = site.view().servers.iter().nth(at) else { return Ok(()) };
    let Some(public) = key.view().public() else { return Ok(()) };
    let is_same =
        PublicKey::decode(server.public_key).is_ok_and(|named| named.to_bytes() == public.to_bytes());
    ensure!(
        is_same,
        "{} is not the key of server {} in the site record: clients would reject its signatures",
        path.display(),
        server.id
    );
    Ok(())
}

/// The administrator's public key: from its own file, otherwise from the private one if that is not
/// encrypted.
fn admin_public(directory: &Path, private: Option<&[u8]>) -> anyhow::Result<Option<Vec<u8>>> {
    for name in ["admpub.bin", "admpub.pem"] {
        let path = directory.join(name);
        let Some(file) = bytes(&path, FILE_LEN_MAX)? else { continue };
        let record = match pem::is_pem(&file) {
            true => pem::decode_public_key(&file).with_context(|| format!("{}", path.display()))?,
            false => PublicKey::decode(&file).with_context(|| format!("{}", path.display()))?.to_bytes(),
        };
        return Ok(Some(record));
    }
    let opened = private.and_then(|file| keyfile::decode(file, None).ok());
    Ok(opened.and_then(|key| key.view().public().map(|public| public.to_bytes())))
}
