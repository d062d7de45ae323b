//! `hdl init --adopt`: takes over the service of a reference server, with its keys, site record and
//! settings.

mod config;
mod directory;
mod settings;

use super::accounts::ProcessAccounts;
use super::config::{GATEWAY_PORT, metrics_address};
use super::new_service::{MEMORY, check_empty, make_directory, write_server_key, write_site_record};
use super::{Args, certificate, production};
use crate::secret::{self, SecretArgument};
use crate::{ExitOutcome, key, output};
use anyhow::{Context as _, ensure};
use directory::ServerDirectory;
use handle_auth::file::create_secret_file;
use handle_auth::keyfile;
use handle_formats::bundle::{self, BundleContact};
use handle_formats::dct::DctSettings;
use handle_proto::Handle;
use handle_proto::data::SiteBuf;
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol};
use handle_store::{Store, StoreConfig};
use serde_json::{Value as Json, json};
use settings::TranslatedSettings;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// The options of `--adopt`.
#[derive(clap::Args, Debug)]
pub(super) struct AdoptArgs {
    /// Take over the service of a reference server from its directory, the one with config.dct:
    /// keys, site record, settings and contact. Import the records afterwards with hdl import.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["prefix", "address", "case_sensitive", "bits", "passphrase_file",
        "passphrase_env", "plain", "description"])]
    pub(super) adopt: Option<PathBuf>,
    /// File with the passphrase of its privkey.bin, readable only by its owner (mode 0600). The
    /// copy of that key is not encrypted.
    #[arg(long, value_name = "FILE", requires = "adopt", conflicts_with = "server_passphrase_env")]
    server_passphrase_file: Option<PathBuf>,
    /// Environment variable with that passphrase.
    #[arg(long, value_name = "NAME", requires = "adopt")]
    server_passphrase_env: Option<String>,
    /// Bootstrap file of the global service, as bootstrap_handles in the .handle directory of the
    /// server's user. It lets handle-admin find administrators whose records are at other services,
    /// and handle-gateway resolve handles of other services.
    #[arg(long, value_name = "FILE", requires = "adopt")]
    root: Option<PathBuf>,
}

impl AdoptArgs {
    fn passphrase(&self) -> anyhow::Result<Option<SecretArgument>> {
        secret::read(self.server_passphrase_file.as_ref(), self.server_passphrase_env.as_deref())
    }
}

/// The interfaces, before and after.
struct AdoptLayout {
    listen: Vec<SocketAddr>,
    admin_listen: Vec<SocketAddr>,
    gateway_listen: Vec<SocketAddr>,
    /// One number for both: datagrams go to handled, connections to handle-admin.
    one_port: bool,
    site: SiteBuf,
    /// Whether the site record has changed.
    site_changed: bool,
}

pub(super) fn run(args: &Args, from: &Path) -> anyhow::Result<ExitOutcome> {
    let passphrase = args.adopt.passphrase()?;
    let (owners, accounts) = (args.production.owners()?, args.production.accounts());
    let adopted = ServerDirectory::read(from, passphrase.as_deref().map(Vec::as_slice))?;
    let translated = settings::translate(&adopted.config, &adopted.server);
    ensure!(
        !translated.homed.iter().any(|name| name.contains("YOUR_PREFIX")),
        "config.dct still has YOUR_PREFIX: this directory never served a prefix, so use hdl init --prefix"
    );
    let layout = layout(args, &adopted)?;
    let root = args.adopt.root.as_deref().map(read_root).transpose()?;
    check_empty(&args.directory)?;
    make_directory(&args.directory, accounts)?;
    let path = |name: &str| args.directory.join(name);
    std::fs::create_dir(path("log")).context("cannot create the directory log")?;
    write_server_key(&args.directory, &keyfile::plain(&adopted.server_key.view()), accounts)?;
    let server_public =
        adopted.site.view().servers.iter().nth(adopted.server_at).map(|server| server.public_key.to_vec());
    key::create(&path("server-public.bin"), &server_public.unwrap_or_default())?;
    if let Some(file) = &adopted.admin_key {
        create_secret_file(&path("admin-private.bin"), file)?;
    }
    if let Some(public) = &adopted.admin_public {
        key::create(&path("admin-public.bin"), public)?;
        let contact = args.contact.contact().or(BundleContact::of_settings(&adopted.contact));
        key::create(&path("sitebndl.zip"), &bundle::archive(layout.site.as_bytes(), public, &contact)?)?;
    }
    write_site_record(&args.directory, &layout.site, accounts)?;
    if let Some(root) = &root {
        key::create(&path("bootstrap_handles"), root)?;
    }
    let reached: Vec<IpAddr> = layout.gateway_listen.iter().map(SocketAddr::ip).collect();
    certificate::create(&args.directory, &reached)?;
    let mut config = configuration(&translated, &layout, &adopted, root.is_some());
    config.accounts = accounts;
    if let Some(first) = args.production.metrics_port() {
        config.observe(|process| metrics_address(process, first));
        production::write_monitoring(&args.directory, first)?;
    }
    key::create(&path("service.toml"), config.service().as_bytes())?;
    key::create(&path("handled.toml"), config.handled().as_bytes())?;
    key::create(&path("handle-admin.toml"), config.handle_admin().as_bytes())?;
    key::create(&path("handle-gateway.toml"), config.handle_gateway().as_bytes())?;
    make_store(&path("store.redb"), &args.directory, &translated)?;
    args.production.finish(&args.directory, owners, |process| {
        let listen = match process {
            "handled" => &layout.listen,
            "handle-admin" => &layout.admin_listen,
            _ => &layout.gateway_listen,
        };
        listen.iter().map(SocketAddr::port).collect()
    })?;
    report(args, from, &adopted, &translated, &layout);
    Ok(ExitOutcome::Good)
}

/// The site record with the interfaces of both processes, and their addresses.
fn layout(args: &Args, adopted: &ServerDirectory) -> anyhow::Result<AdoptLayout> {
    let server =
        adopted.site.view().servers.iter().nth(adopted.server_at).context("the server is in the record")?;
    let queries = [InterfaceProtocol::TCP, InterfaceProtocol::UDP]
        .into_iter()
        .find_map(|protocol| server.interface(protocol, InterfaceKind::QUERY).and_then(Interface::port))
        .context("the site record names no interface for queries over TCP or UDP")?;
    let admin_port = args.admin_port;
    let one_port = admin_port == queries;
    let has_udp = server.interface(InterfaceProtocol::UDP, InterfaceKind::QUERY).and_then(Interface::port);
    let interface = |kind, protocol, port: u16| Interface::new(kind, protocol, port);
    // Deployed clients take the first interface that fits.
    let mut interfaces = match one_port {
        true => vec![interface(InterfaceKind::BOTH, InterfaceProtocol::TCP, queries)],
        false => vec![
            interface(InterfaceKind::QUERY, InterfaceProtocol::TCP, queries),
            interface(InterfaceKind::ADMIN, InterfaceProtocol::TCP, admin_port),
        ],
    };
    interfaces.extend(has_udp.map(|port| interface(InterfaceKind::QUERY, InterfaceProtocol::UDP, port)));
    let mut site = adopted.site.edit();
    site.servers[adopted.server_at].interfaces = interfaces;
    let site_changed = site.build().as_bytes() != adopted.site.as_bytes();
    if site_changed {
        site.serial = site.serial.wrapping_add(1);
    }
    let mut listen = settings::listened_on(&adopted.config, queries);
    if listen.is_empty() {
        listen.push(SocketAddr::new(server.address.ip(), queries));
    }
    let mut admin_listen: Vec<SocketAddr> = vec![];
    for address in &listen {
        let address = if one_port { *address } else { SocketAddr::new(address.ip(), admin_port) };
        if !admin_listen.contains(&address) {
            admin_listen.push(address);
        }
    }
    let gateway_listen = gateway_listen(args, &adopted.config, &listen);
    Ok(AdoptLayout { listen, admin_listen, gateway_listen, one_port, site: site.build(), site_changed })
}

/// Where the gateway listens: as the HTTP interface did, or on the addresses for queries.
fn gateway_listen(args: &Args, config: &DctSettings, queries: &[SocketAddr]) -> Vec<SocketAddr> {
    let port = args.gateway_port.unwrap_or(GATEWAY_PORT);
    let mut listen: Vec<SocketAddr> = settings::http_listened_on(config, port)
        .into_iter()
        .map(|address| SocketAddr::new(address.ip(), args.gateway_port.unwrap_or_else(|| address.port())))
        .collect();
    if listen.is_empty() {
        for address in queries {
            let address = SocketAddr::new(address.ip(), port);
            if !listen.contains(&address) {
                listen.push(address);
            }
        }
    }
    listen
}

fn configuration(
    translated: &TranslatedSettings,
    layout: &AdoptLayout,
    adopted: &ServerDirectory,
    has_root: bool,
) -> config::AdoptedSettings {
    let mut config = config::AdoptedSettings {
        listen: layout.listen.clone(),
        admin_listen: layout.admin_listen.clone(),
        gateway_listen: layout.gateway_listen.clone(),
        shared: translated.shared.clone(),
        handled: translated.handled.clone(),
        handle_admin: translated.handle_admin.clone(),
        handle_gateway: Vec::new(),
        accounts: ProcessAccounts::Shared,
    };
    let servers = adopted.site.view().servers;
    if let Some(server) = servers.iter().nth(adopted.server_at).filter(|_| servers.len() > 1) {
        config.shared.push(("server_id", json!(server.id)));
        config.handle_gateway.push(("server_id", json!(server.id)));
    }
    if layout.one_port {
        config.handled.push(("tcp.enabled", json!(false)));
    }
    if has_root {
        config.handle_admin.push(("remote.enabled", json!(true)));
        config.handle_admin.push(("remote.root", json!("bootstrap_handles")));
        config.handle_gateway.push(("upstream.root", json!("bootstrap_handles")));
    }
    config
}

fn read_root(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    handle_client::bootstrap::Root::read(&bytes).with_context(|| {
        format!("{} is not a bootstrap file (bootstrap_handles or root_info)", path.display())
    })?;
    Ok(bytes)
}

/// Creates the store, with the homed prefixes and no records. No set is published yet: handled must
/// not report handles as missing that are not imported yet.
fn make_store(path: &Path, directory: &Path, translated: &TranslatedSettings) -> anyhow::Result<()> {
    let store = Store::create(&StoreConfig::at(path), !translated.case_sensitive)?;
    let mut bulk = store.bulk(directory, MEMORY);
    for name in &translated.homed {
        bulk.home(Handle(name.as_bytes()).homed_prefix());
    }
    bulk.finish(|_| {})?;
    Ok(())
}

fn report(
    args: &Args,
    from: &Path,
    adopted: &ServerDirectory,
    translated: &TranslatedSettings,
    layout: &AdoptLayout,
) {
    let next = next_steps(args, from, adopted, translated, layout);
    let exposed: Vec<String> = adopted.exposed.iter().map(|path| path.display().to_string()).collect();
    let listen: Vec<String> = layout.listen.iter().map(SocketAddr::to_string).collect();
    let admin_listen: Vec<String> = layout.admin_listen.iter().map(SocketAddr::to_string).collect();
    let gateway_listen: Vec<String> = layout.gateway_listen.iter().map(SocketAddr::to_string).collect();
    if args.json {
        let left_out: Vec<Json> =
            translated.left_out.iter().map(|(key, why)| json!({ "key": key, "why": why })).collect();
        let json = json!({
            "directory": args.directory, "homed": translated.homed, "administrators": translated.administrators,
            "listen": listen, "admin_listen": admin_listen, "gateway_listen": gateway_listen, "serial": layout.site.view().serial,
            "site_changed": layout.site_changed, "left_out": left_out, "exposed_keys": exposed, "next": next,
        });
        output::print_json(&json);
        return;
    }
    let mut table = output::table(&["what", "is now"]);
    for (what, now) in [
        ("homed prefixes", translated.homed.join(", ")),
        ("administrators", translated.administrators.join(", ")),
        ("queries", listen.join(", ")),
        ("administration", admin_listen.join(", ")),
        ("HTTP", gateway_listen.join(", ")),
        (
            "site record",
            match layout.site_changed {
                true => format!("serial {}, changed: send it to the registry", layout.site.view().serial),
                false => format!("serial {}, unchanged", layout.site.view().serial),
            },
        ),
    ] {
        table.add_row([what.to_owned(), now]);
    }
    output::lines(&table);
    if !translated.left_out.is_empty() {
        let mut table = output::table(&["not taken over", "reason"]);
        for (key, why) in &translated.left_out {
            table.add_row([key.clone(), (*why).to_owned()]);
        }
        println!();
        output::lines(&table);
    }
    for path in exposed {
        eprintln!(
            "hdl: {path}: permissions too open for a private key: mode must be 0600 (chmod 600 {path})"
        );
    }
    println!();
    println!("next:");
    for (at, step) in next.iter().enumerate() {
        println!("{:>2}. {step}", at + 1);
    }
}

/// The remaining steps, in order.
fn next_steps(
    args: &Args,
    from: &Path,
    adopted: &ServerDirectory,
    translated: &TranslatedSettings,
    layout: &AdoptLayout,
) -> Vec<String> {
    let (here, from) = (args.directory.display(), from.display());
    let mut steps = vec![
        format!(
            "export the records: hdl-java net.handle.apps.tools.StorageToJson {from} export.json (bin/ of the distribution)"
        ),
        format!("import them: hdl import {here}/store.redb export.json"),
    ];
    let elsewhere = |identity: &&String| {
        let handle = identity.split_once(':').map_or(identity.as_str(), |(_, handle)| handle);
        handle.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("0.NA/"))
    };
    if args.adopt.root.is_none() {
        for identity in translated.administrators.iter().filter(elsewhere) {
            let handle = identity.split_once(':').map_or(identity.as_str(), |(_, handle)| handle);
            steps.push(format!(
                "the record of {identity} is at the registry: import a copy (hdl resolve {handle} --json > record.json; \
                 hdl import {here}/store.redb record.json), or adopt with --root"
            ));
        }
    }
    steps
        .push(format!("handle-admin --check-config --config {here}/handle-admin.toml, and handled and handle-gateway likewise"));
    steps.push("stop the reference server, then start handle-admin, handled and handle-gateway".to_owned());
    steps.push(certificate::ADVICE.join(" "));
    if layout.site_changed {
        let what = match adopted.admin_public {
            Some(_) => format!("{here}/sitebndl.zip"),
            None => format!("{here}/siteinfo.json"),
        };
        steps.push(format!(
            "send {what} to the registry of the prefix: it contains the site record with its new serial number"
        ));
    }
    if layout.one_port {
        steps.push("on the shared port, connections go to handle-admin and datagrams to handled".to_owned());
    }
    steps
}
