//! `hdl init`: creates a directory from which `handled`, `handle-admin` and `handle-gateway` start:
//! keys, site record, certificate, configuration, store, first set, and the archive for a registry.

mod adopt;
mod certificate;
mod config;
mod contact;
mod first_steps;
mod site;

use crate::key;
use crate::secret::{self, PassphraseArgs};
use crate::{ExitOutcome, output};
use anyhow::{Context as _, bail, ensure};
use contact::ContactArgs;
use handle_auth::file::create_secret_file;
use handle_auth::{generate, keyfile};
use handle_daemon::clock::now_unix_ms;
use handle_formats::bundle;
use handle_proto::data::{Admin, AdminPermissions, kind};
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
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

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
const MEMORY: usize = 16 << 20;

/// Create all files that handled, handle-admin and handle-gateway need to start.
///
/// Asks no questions: every choice is an option. The directory must be empty or not exist. The
/// server's key is not encrypted, because the server has to start unattended; --passphrase-file or
/// --plain decides whether the administrator's key is.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  hdl init /srv/handle --prefix 10.1045 --address 192.0.2.10 --passphrase-file passphrase \\
      --secret-file secret
  handle-admin --config /srv/handle/handle-admin.toml &
  handled --config /srv/handle/handled.toml &
  handle-gateway --config /srv/handle/handle-gateway.toml &
  hdl handle create 10.1045/first 1:URL=https://example.org/ --server 192.0.2.10:2642 \\
      --auth 300:10.1045/ADMIN --key /srv/handle/admin-private.bin --passphrase-file passphrase

Send sitebndl.zip to the registry of the prefix. From the directory of a reference server:
  hdl init /srv/handle --adopt /hs/svr_1 --admin-port 2641")]
pub(crate) struct Args {
    /// The directory to create.
    directory: PathBuf,
    /// The prefix, as 10.1045.
    #[arg(long, required_unless_present = "adopt")]
    prefix: Option<String>,
    /// The address at which clients reach the servers.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "adopt")]
    address: Option<IpAddr>,
    /// The address on which the servers listen. Default: all addresses.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Port for queries, over UDP and TCP.
    #[arg(long, default_value_t = handle_proto::limit::PORT)]
    port: u16,
    /// Port for administration, over TCP. With the same port as for queries, handled gets the
    /// datagrams and handle-admin the connections.
    #[arg(long, default_value_t = handle_proto::limit::PORT + 1)]
    admin_port: u16,
    /// Port of the gateway, over HTTP. Default: 8000; with --adopt, that of the reference server.
    #[arg(long, value_name = "PORT")]
    gateway_port: Option<u16>,
    /// Description of the site in the site record.
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
    /// Distinguish the case of local names. This cannot be changed later.
    #[arg(long)]
    case_sensitive: bool,
    /// Size of the keys in bits: 2048, 3072 or 4096.
    #[arg(long, default_value_t = generate::RSA_BITS[0])]
    bits: u32,
    #[command(flatten)]
    passphrase: PassphraseArgs,
    /// Do not encrypt the administrator's key.
    #[arg(long)]
    plain: bool,
    /// File with a secret for clients over HTTP that have passwords, as curl and pyhandle: it
    /// becomes the HS_SECKEY value 301 beside the administrator's key, and may do with handles of
    /// the prefix what the key may. Only its owner may read the file (mode 0600); a newline at its
    /// end is ignored.
    #[arg(long, value_name = "FILE", conflicts_with = "adopt")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    contact: ContactArgs,
    #[command(flatten)]
    adopt: adopt::AdoptArgs,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitOutcome> {
    match (&args.adopt.adopt, &args.prefix, args.address) {
        (Some(directory), ..) => adopt::run(args, directory),
        (None, Some(prefix), Some(address)) => begin(args, prefix, address),
        (None, ..) => bail!("missing options: give --prefix and --address, or --adopt"),
    }
}

/// Creates a new service.
fn begin(args: &Args, prefix: &str, address: IpAddr) -> anyhow::Result<ExitOutcome> {
    ensure!(
        !prefix.is_empty() && !prefix.contains(['/', ' ']) && prefix.is_ascii(),
        "invalid prefix {prefix:?}: expected a prefix such as 10.1045"
    );
    ensure!(!address.is_unspecified(), "invalid --address {address}: clients connect to this address");
    let passphrase = args.passphrase.read()?;
    key::decided(passphrase.is_some(), args.plain, "--passphrase-file FILE or --passphrase-env NAME")?;
    let secret = secret::read(args.secret_file.as_ref(), None)?;
    check_empty(&args.directory)?;
    let server_key = generate::rsa(args.bits)?;
    let admin_key = generate::rsa(args.bits)?;
    // After all arguments are checked, so that a failed attempt leaves no files behind.
    make_directory(&args.directory)?;

    let path = |name: &str| args.directory.join(name);
    create_secret_file(&path("server-private.bin"), &keyfile::plain(&server_key.view()))?;
    let admin_file = match &passphrase {
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

    certificate::create(&args.directory, &[address])?;

    let site = site::record(&site::SiteDescription {
        address,
        query_port: args.port,
        admin_port: args.admin_port,
        description: &args.description,
        public_key: &server_public,
    });
    let json = format!("{}\n", serde_json::to_string_pretty(&site_to_json(&site.view()))?);
    key::create(&path("siteinfo.json"), json.as_bytes())?;
    let bundle = bundle::archive(site.as_bytes(), &admin_public, &args.contact.contact())?;
    key::create(&path("sitebndl.zip"), &bundle)?;
    let settings = config::InitSettings {
        bind: args.bind.unwrap_or(match address {
            IpAddr::V4(_) => IpAddr::from([0, 0, 0, 0]),
            IpAddr::V6(_) => IpAddr::from([0_u16; 8]),
        }),
        port: args.port,
        admin_port: args.admin_port,
        gateway_port: args.gateway_port.unwrap_or(config::GATEWAY_PORT),
        administrator: administrator(prefix),
    };
    key::create(&path("service.toml"), settings.service().as_bytes())?;
    key::create(&path("handled.toml"), settings.handled().as_bytes())?;
    key::create(&path("handle-admin.toml"), settings.handle_admin().as_bytes())?;
    key::create(&path("handle-gateway.toml"), settings.handle_gateway().as_bytes())?;
    make_records(
        args,
        prefix,
        site.as_bytes(),
        &FirstKeys { public: &admin_public, secret: secret.as_deref() },
    )?;
    print_result(args, prefix, address);
    Ok(ExitOutcome::Good)
}

/// The handle with the administrator's key.
fn key_handle(prefix: &str) -> String {
    format!("{prefix}/ADMIN")
}

/// The administrator, as `index:handle`.
fn administrator(prefix: &str) -> String {
    format!("{KEY_INDEX}:{}", key_handle(prefix))
}

/// The identity of the administrator's secret.
fn secret_identity(prefix: &str) -> String {
    format!("{SECRET_INDEX}:{}", key_handle(prefix))
}

/// Runs before the keys are generated, which takes a while.
fn check_empty(directory: &Path) -> anyhow::Result<()> {
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
fn make_directory(directory: &Path) -> anyhow::Result<()> {
    for path in [directory.to_owned(), directory.join("run")] {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        // An existing directory may be open to other users.
        let closed = made.and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(0o700)));
        closed.with_context(|| format!("cannot create {}", path.display()))?;
    }
    let set = directory.join("snapshot");
    create_directory(&set).with_context(|| format!("cannot create {}", set.display()))
}

/// Administrators may read and write it, and nobody else.
const SECRET_PERMISSIONS: handle_proto::Permissions = handle_proto::Permissions(0x0c);

/// What the administrator authenticates with.
struct FirstKeys<'a> {
    public: &'a [u8],
    secret: Option<&'a Vec<u8>>,
}

/// Writes the first records to the store and as the first set: the prefix with its site and
/// administrators, and the handle with the administrator's key and secret.
fn make_records(args: &Args, prefix: &str, site: &[u8], keys: &FirstKeys<'_>) -> anyhow::Result<()> {
    let path = |name: &str| args.directory.join(name);
    let key_handle = key_handle(prefix);
    let named = |index| {
        let mut data = Vec::new();
        Admin::new(AdminPermissions::ALL, key_handle.as_bytes(), index).encode(&mut data);
        data
    };
    let (by_key, by_secret) = (named(KEY_INDEX), named(SECRET_INDEX));
    let admin = Value::new(ADMIN_INDEX, kind::HS_ADMIN, &by_key);
    let indexes = [KEY_INDEX].into_iter().chain(keys.secret.map(|_| SECRET_INDEX));
    let members: Vec<_> = indexes.map(|index| Reference { handle: key_handle.as_bytes(), index }).collect();
    let mut group = Vec::new();
    put::count(&mut group, members.len());
    members.iter().for_each(|member| member.encode(&mut group));
    let mut of_prefix = vec![
        Value::new(SITE_INDEX, kind::HS_SITE, site),
        admin,
        Value::new(GROUP_INDEX, kind::HS_VLIST, &group),
    ];
    let mut of_keys = vec![admin, Value::new(KEY_INDEX, kind::HS_PUBKEY, keys.public)];
    if let Some(secret) = keys.secret {
        of_prefix.push(Value::new(SECRET_ADMIN_INDEX, kind::HS_ADMIN, &by_secret));
        let secret = Value::new(SECRET_INDEX, kind::HS_SECKEY, secret);
        of_keys.push(Value { permissions: SECRET_PERMISSIONS, ..secret });
    }
    let prefix_handle = format!("0.NA/{prefix}");
    let records = [(prefix_handle.as_bytes(), of_prefix), (key_handle.as_bytes(), of_keys)];
    let prefix = prefix.as_bytes();
    let store = Store::create(&StoreConfig::at(&path("store.redb")), !args.case_sensitive)?;
    let mut bulk = store.bulk(&args.directory, MEMORY);
    bulk.home(prefix);
    let mut storage = Vec::new();
    for (handle, values) in &records {
        bulk.add(handle, Values::build(values.iter().copied(), &mut storage))?;
    }
    bulk.finish(|_| {})?;
    // Lets handled start with a set, whichever of the two processes starts first.
    let now = now_unix_ms();
    let options = LayerOptions { seed: rand::random(), folds: !args.case_sensitive, created_unix_ms: now };
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

fn print_result(args: &Args, prefix: &str, address: IpAddr) {
    let path = |name: &str| args.directory.join(name);
    if args.json {
        let json = serde_json::json!({
            "directory": args.directory, "administrator": administrator(prefix),
            "service": path("service.toml"), "handled": path("handled.toml"), "handle_admin": path("handle-admin.toml"),
            "handle_gateway": path("handle-gateway.toml"),
            "key": path("admin-private.bin"), "bundle": path("sitebndl.zip"),
            "secret_identity": args.secret_file.as_ref().map(|_| secret_identity(prefix)),
            "certificate": path(certificate::CERTIFICATE_FILE), "certificate_key": path(certificate::KEY_FILE),
        });
        println!("{json}");
        return;
    }
    let mut table = output::table(&["content", "file"]);
    for (what, file) in [
        ("what handled and handle-admin share", "service.toml"),
        ("configuration of handled", "handled.toml"),
        ("configuration of handle-admin", "handle-admin.toml"),
        ("configuration of handle-gateway", "handle-gateway.toml"),
        ("key of the administrator", "admin-private.bin"),
        ("certificate of handle-gateway", certificate::CERTIFICATE_FILE),
        ("its key", certificate::KEY_FILE),
        ("site record", "siteinfo.json"),
        ("for the registry of the prefix", "sitebndl.zip"),
    ] {
        table.add_row([what.to_owned(), path(file).display().to_string()]);
    }
    output::lines(&table);
    println!("{} administers {prefix}", administrator(prefix));
    println!();
    first_steps::show(args, prefix, address);
}
