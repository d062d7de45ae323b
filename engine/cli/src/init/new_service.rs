//! A new service in a directory: keys, site record, certificate, configuration, store, first set,
//! and the archive for a registry.

use super::accounts::{HANDLED_KEY_FILE, ProcessAccounts, SERVER_KEY_FILE, SITE_DIRECTORY, SITE_FILE};
use super::{certificate, config, production, site};
use crate::key;
use anyhow::{Context as _, bail};
use handle_auth::file::create_secret_file;
use handle_auth::{generate, keyfile};
use handle_daemon::clock::now_unix_ms;
use handle_formats::bundle::{self, BundleContact};
use handle_proto::data::{Admin, AdminPermissions, SiteBuf, kind};
use handle_proto::json::site_to_json;
use handle_proto::value::Value;
use handle_proto::wire::list::Reference;
use handle_proto::wire::put;
use handle_proto::{Handle, Values};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::set::storage::create_directory;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use handle_store::{Store, StoreConfig};
use std::fs::Permissions;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::Path;

/// The customary indexes of the administrator's key and secret, and of the values that name the
/// administrator.
const KEY_INDEX: i32 = 300;
const SECRET_INDEX: i32 = 301;
const ADMIN_INDEX: i32 = 100;
const SECRET_ADMIN_INDEX: i32 = 101;
/// The group of administrators in the prefix record. Other software, as pyhandle, makes it the
/// administrator of new records unless it is told otherwise.
const GROUP_INDEX: i32 = 200;
const SITE_INDEX: i32 = 1;
/// Memory for building the first set, which has a handful of records.
pub(super) const MEMORY: usize = 16 << 20;

/// The choices for a new service.
#[derive(Clone, Debug)]
pub struct NewService<'a> {
    /// The directory to create, which is empty or does not exist.
    pub directory: &'a Path,
    /// The prefix, as `10.1045`.
    pub prefix: &'a str,
    /// Where clients reach the servers.
    pub address: IpAddr,
    /// Where the servers listen; all addresses if not set.
    pub bind: Option<IpAddr>,
    /// Port for queries.
    pub port: u16,
    /// Port for administration.
    pub admin_port: u16,
    /// Port of the gateway.
    pub gateway_port: u16,
    /// The first of three ports on loopback for metrics.
    pub metrics_port: Option<u16>,
    /// Whether `handle-admin` keeps its audit log in the directory, instead of its own log.
    pub writes_audit_log: bool,
    /// The accounts that run the processes.
    pub accounts: ProcessAccounts,
    /// Description of the site.
    pub description: &'a str,
    /// Whether local names differ by case.
    pub case_sensitive: bool,
    /// Size of the keys.
    pub bits: u32,
    /// With which the administrator's key is encrypted.
    pub passphrase: Option<&'a [u8]>,
    /// The secret of the administrator over HTTP.
    pub secret: Option<&'a [u8]>,
    /// The contact in the archive for the registry.
    pub contact: BundleContact,
}

/// Creates the service.
///
/// # Errors
/// When the directory is not empty, or something cannot be written.
pub fn create(new: &NewService<'_>) -> anyhow::Result<()> {
    let directory = new.directory;
    check_empty(directory)?;
    let server_key = generate::rsa(new.bits)?;
    let admin_key = generate::rsa(new.bits)?;
    // After all arguments are checked, so that a failed attempt leaves no files behind.
    make_directory(directory, new.accounts)?;

    let path = |name: &str| directory.join(name);
    write_server_key(directory, &keyfile::plain(&server_key.view()), new.accounts)?;
    let admin_file = match new.passphrase {
        Some(passphrase) => keyfile::encrypt(&admin_key.view(), passphrase),
        None => keyfile::plain(&admin_key.view()),
    };
    create_secret_file(&path("admin-private.bin"), &admin_file)?;
    let public = |key: &handle_proto::data::PrivateKeyBuf| {
        Ok::<_, anyhow::Error>(key.view().public().context("an RSA key has its public half")?.to_bytes())
    };
    let (server_public, admin_public) = (public(&server_key)?, public(&admin_key)?);
    key::create(&path("server-public.bin"), &server_public)?;
    key::create(&path("admin-public.bin"), &admin_public)?;
    certificate::create(directory, &[new.address])?;
    let site = write_site(new, &server_public, &admin_public)?;
    write_configuration(new)?;
    make_records(new, site.as_bytes(), &admin_public)?;
    Ok(())
}

/// Writes the site record, and the archive for the registry.
fn write_site(new: &NewService<'_>, server_public: &[u8], admin_public: &[u8]) -> anyhow::Result<SiteBuf> {
    let site = site::record(&site::SiteDescription {
        address: new.address,
        query_port: new.port,
        admin_port: new.admin_port,
        description: new.description,
        public_key: server_public,
    });
    write_site_record(new.directory, &site, new.accounts)?;
    let bundle = bundle::archive(site.as_bytes(), admin_public, &new.contact)?;
    key::create(&new.directory.join("sitebndl.zip"), &bundle)?;
    Ok(site)
}

fn write_configuration(new: &NewService<'_>) -> anyhow::Result<()> {
    let settings = config::InitSettings {
        bind: new.bind.unwrap_or(match new.address {
            IpAddr::V4(_) => IpAddr::from([0, 0, 0, 0]),
            IpAddr::V6(_) => IpAddr::from([0_u16; 8]),
        }),
        port: new.port,
        admin_port: new.admin_port,
        gateway_port: new.gateway_port,
        metrics_port: new.metrics_port,
        writes_audit_log: new.writes_audit_log,
        administrator: administrator(new.prefix),
        accounts: new.accounts,
    };
    for (name, text) in [
        ("service.toml", settings.service()),
        ("handled.toml", settings.handled()),
        ("handle-admin.toml", settings.handle_admin()),
        ("handle-gateway.toml", settings.handle_gateway()),
    ] {
        key::create(&new.directory.join(name), text.as_bytes())?;
    }
    new.metrics_port.map_or(Ok(()), |port| production::write_monitoring(new.directory, port))
}

/// The handle with the administrator's key.
pub(super) fn key_handle(prefix: &str) -> String {
    format!("{prefix}/ADMIN")
}

/// The administrator, as `index:handle`.
#[must_use]
pub fn administrator(prefix: &str) -> String {
    format!("{KEY_INDEX}:{}", key_handle(prefix))
}

/// The identity of the administrator's secret.
#[must_use]
pub fn secret_identity(prefix: &str) -> String {
    format!("{SECRET_INDEX}:{}", key_handle(prefix))
}

/// Runs before the keys are generated, which takes a while.
pub(super) fn check_empty(directory: &Path) -> anyhow::Result<()> {
    if directory.is_dir() {
        let mut entries =
            directory.read_dir().with_context(|| format!("cannot read {}", directory.display()))?;
        if entries.next().is_some() {
            bail!("{} is not empty: choose an empty or new directory", directory.display());
        }
    }
    Ok(())
}

/// Creates the directory and its subdirectories, for their owner alone except that of the published
/// set.
pub(super) fn make_directory(directory: &Path, accounts: ProcessAccounts) -> anyhow::Result<()> {
    let run = (accounts == ProcessAccounts::Shared).then(|| directory.join("run"));
    for path in std::iter::once(directory.to_owned()).chain(run) {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        // An existing directory may be open to other users.
        let closed = made.and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(0o700)));
        closed.with_context(|| format!("cannot create {}", path.display()))?;
    }
    let set = directory.join("snapshot");
    create_directory(&set).with_context(|| format!("cannot create {}", set.display()))
}

/// Writes the key that signs answers, for each account that signs.
pub(super) fn write_server_key(
    directory: &Path,
    key: &[u8],
    accounts: ProcessAccounts,
) -> anyhow::Result<()> {
    create_secret_file(&directory.join(SERVER_KEY_FILE), key)?;
    if accounts == ProcessAccounts::Separate {
        create_secret_file(&directory.join(HANDLED_KEY_FILE), key)?;
    }
    Ok(())
}

/// Writes the site record. `handle-admin` replaces it when a mirror is promoted: if its account may
/// not write to the directory, the record is in one of its own, and a link has the usual name.
pub(super) fn write_site_record(
    directory: &Path,
    site: &SiteBuf,
    accounts: ProcessAccounts,
) -> anyhow::Result<()> {
    let json = format!("{}\n", serde_json::to_string_pretty(&site_to_json(&site.view()))?);
    let path = directory.join(SITE_FILE);
    if accounts == ProcessAccounts::Shared {
        return key::create(&path, json.as_bytes());
    }
    let own = directory.join(SITE_DIRECTORY);
    let made = std::fs::DirBuilder::new().mode(0o700).create(&own);
    made.with_context(|| format!("cannot create {}", own.display()))?;
    key::create(&own.join(SITE_FILE), json.as_bytes())?;
    symlink(Path::new(SITE_DIRECTORY).join(SITE_FILE), &path)
        .with_context(|| format!("cannot create {}", path.display()))
}

/// Administrators may read and write it, and nobody else.
const SECRET_PERMISSIONS: handle_proto::Permissions = handle_proto::Permissions(0x0c);

/// Writes the first records to the store and as the first set: the prefix with its site and
/// administrators, and the handle with the administrator's key and secret.
fn make_records(new: &NewService<'_>, site: &[u8], public_key: &[u8]) -> anyhow::Result<()> {
    let path = |name: &str| new.directory.join(name);
    let prefix = new.prefix;
    let key_handle = key_handle(prefix);
    let named = |index| {
        let mut data = Vec::new();
        Admin::new(AdminPermissions::ALL, key_handle.as_bytes(), index).encode(&mut data);
        data
    };
    let (by_key, by_secret) = (named(KEY_INDEX), named(SECRET_INDEX));
    let admin = Value::new(ADMIN_INDEX, kind::HS_ADMIN, &by_key);
    let indexes = [KEY_INDEX].into_iter().chain(new.secret.map(|_| SECRET_INDEX));
    let members: Vec<_> = indexes.map(|index| Reference { handle: key_handle.as_bytes(), index }).collect();
    let mut group = Vec::new();
    put::count(&mut group, members.len());
    members.iter().for_each(|member| member.encode(&mut group));
    let mut of_prefix = vec![
        Value::new(SITE_INDEX, kind::HS_SITE, site),
        admin,
        Value::new(GROUP_INDEX, kind::HS_VLIST, &group),
    ];
    let mut of_keys = vec![admin, Value::new(KEY_INDEX, kind::HS_PUBKEY, public_key)];
    if let Some(secret) = new.secret {
        of_prefix.push(Value::new(SECRET_ADMIN_INDEX, kind::HS_ADMIN, &by_secret));
        let secret = Value::new(SECRET_INDEX, kind::HS_SECKEY, secret);
        of_keys.push(Value { permissions: SECRET_PERMISSIONS, ..secret });
    }
    let prefix_handle = format!("0.NA/{prefix}");
    let records = [(prefix_handle.as_bytes(), of_prefix), (key_handle.as_bytes(), of_keys)];
    let prefix = prefix.as_bytes();
    let store = Store::create(&StoreConfig::at(&path("store.redb")), !new.case_sensitive)?;
    let mut bulk = store.bulk(new.directory, MEMORY);
    bulk.home(prefix);
    let mut storage = Vec::new();
    for (handle, values) in &records {
        bulk.add(handle, Values::build(values.iter().copied(), &mut storage))?;
    }
    bulk.finish(|_| {})?;
    // Lets handled start with a set, whichever of the two processes starts first.
    let now = now_unix_ms();
    let options = LayerOptions { seed: rand::random(), folds: !new.case_sensitive, created_unix_ms: now };
    SetPublisher::open(&path("snapshot"))?.publish_base(now, |file, temp_dir| {
        let mut homed = HomedPrefixes::default();
        homed.add(prefix);
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for (handle, values) in &records {
            builder.add(0, &Handle(handle).looked_up(), values.iter().copied())?;
        }
        builder.finish(file)
    })?;
    Ok(())
}
