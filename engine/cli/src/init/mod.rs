//! `hdl init`: creates a directory from which `handled`, `handle-admin` and `handle-gateway` start:
//! keys, site record, certificate, configuration, store, first set, and the archive for a registry.

pub mod accounts;
mod adopt;
mod certificate;
mod config;
mod contact;
mod first_steps;
pub mod new_service;
mod production;
mod site;

use crate::key;
use crate::secret::{self, PassphraseArgs};
use crate::{ExitOutcome, output};
use anyhow::{bail, ensure};
use contact::ContactArgs;
use handle_auth::generate;
use new_service::{NewService, administrator, secret_identity};
use production::{ProductionArgs, SystemdUnits};
use std::net::IpAddr;
use std::path::PathBuf;

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

For production, as root, with units for systemd:
  hdl init /srv/handle --prefix 10.1045 --address 192.0.2.10 --passphrase-file passphrase \\
      --secret-file secret --systemd

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
    production: ProductionArgs,
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
    let owners = args.production.owners()?;
    let gateway_port = args.gateway_port.unwrap_or(config::GATEWAY_PORT);
    new_service::create(&NewService {
        directory: &args.directory,
        prefix,
        address,
        bind: args.bind,
        port: args.port,
        admin_port: args.admin_port,
        gateway_port,
        metrics_port: args.production.metrics_port(),
        writes_audit_log: args.production.systemd.is_some(),
        accounts: args.production.accounts(),
        description: &args.description,
        case_sensitive: args.case_sensitive,
        bits: args.bits,
        passphrase: passphrase.as_deref().map(Vec::as_slice),
        secret: secret.as_deref().map(Vec::as_slice),
        contact: args.contact.contact(),
    })?;
    let units = args.production.finish(&args.directory, owners, |process| {
        vec![match process {
            "handled" => args.port,
            "handle-admin" => args.admin_port,
            _ => gateway_port,
        }]
    })?;
    print_result(args, prefix, address, &units);
    Ok(ExitOutcome::Good)
}

fn print_result(args: &Args, prefix: &str, address: IpAddr, units: &SystemdUnits) {
    let path = |name: &str| args.directory.join(name);
    if args.json {
        let json = serde_json::json!({
            "directory": args.directory, "administrator": administrator(prefix),
            "service": path("service.toml"), "handled": path("handled.toml"), "handle_admin": path("handle-admin.toml"),
            "handle_gateway": path("handle-gateway.toml"),
            "key": path("admin-private.bin"), "bundle": path("sitebndl.zip"),
            "secret_identity": args.secret_file.as_ref().map(|_| secret_identity(prefix)),
            "certificate": path(certificate::CERTIFICATE_FILE), "certificate_key": path(certificate::KEY_FILE),
            "units": units.files,
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
    first_steps::show(args, prefix, address, units);
}
