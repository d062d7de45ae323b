//! The registry of the test service: a server that knows the sites of one prefix.

use super::client_lines::TestService;
use crate::registry::{RecordSigner, bootstrap, lossy, value};
use anyhow::Context as _;
use handle_auth::{generate, keyfile};
use handle_daemon::clock::now_unix_ms;
use handle_proto::ValueBuf;
use handle_proto::data::kind;
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteFlags};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::json::{site_from_json, site_to_json};
use handle_proto::name::{ROOT, TRUST_ROOT};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::set::storage::create_directory;
use handle_snapshot::writer::{HomedPrefixes, LayerOptions};
use std::net::{IpAddr, SocketAddr};

/// Writes the directory of the registry, and the file from which clients know it.
pub(super) fn make(service: &TestService, bind: IpAddr, port: u16) -> anyhow::Result<()> {
    let own = service.registry();
    let set = own.join("set");
    create_directory(&set).with_context(|| format!("cannot create {}", set.display()))?;
    let key = generate::rsa(generate::RSA_BITS[0])?;
    let public_key = key.view().public().context("an RSA key has a public half")?.to_bytes();
    let key_file = keyfile::plain(&key.view());
    handle_auth::file::create_secret_file(&own.join("privkey.bin"), &key_file)?;

    let mut site = SiteBuilder::new();
    site.serial = 1;
    site.flags = SiteFlags::PRIMARY;
    site.attribute("desc", "test service: registry");
    let interfaces = [InterfaceProtocol::UDP, InterfaceProtocol::TCP]
        .map(|protocol| Interface::new(InterfaceKind::QUERY, protocol, port));
    site.server(ServerBuilder {
        id: 1,
        address: service.address.into(),
        public_key: public_key.clone(),
        interfaces: interfaces.to_vec(),
    });
    let site = site.build();
    std::fs::write(own.join("siteinfo.json"), format!("{:#}", site_to_json(&site.view())))?;

    let signer = RecordSigner::new(&key_file, &public_key)?;
    let root = vec![value(1, kind::HS_SITE, site.as_bytes())];
    let trust = vec![
        value(300, kind::HS_PUBKEY, &public_key),
        value(400, kind::HS_CERT, signer.certificate()?.as_bytes()),
    ];
    let own_site = std::fs::read(service.path("siteinfo.json")).context("cannot read siteinfo.json")?;
    let own_site = site_from_json(&serde_json::from_slice(&own_site)?).context("in siteinfo.json")?;
    let mut records = vec![
        (format!("0.NA/{}", service.prefix), vec![value(1, kind::HS_SITE, own_site.as_bytes())]),
        (lossy(ROOT), root.clone()),
        (lossy(TRUST_ROOT), trust.clone()),
    ];
    for (handle, values) in &mut records[1..] {
        let signed = signer.signature(handle, values)?;
        values.push(value(900, kind::HS_SIGNATURE, signed.as_bytes()));
    }
    std::fs::write(service.bootstrap(), format!("{:#}", bootstrap(&root, &trust)))?;

    let now = now_unix_ms();
    let options = LayerOptions { seed: rand::random(), folds: true, created_unix_ms: now };
    SetPublisher::open(&set)?.publish_base(now, |file, temp_dir| {
        let mut homed = HomedPrefixes::default();
        for prefix in ["0.NA", "0.0"] {
            homed.add(prefix.as_bytes());
        }
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for (origin, (handle, values)) in (0..).zip(&records) {
            builder.add(origin, handle.as_bytes(), values.iter().map(ValueBuf::view))?;
        }
        builder.finish(file)
    })?;
    let listen = SocketAddr::new(bind, port);
    let text = format!(
        "snapshot = \"set\"\nsite = \"siteinfo.json\"\nserver_id = 1\nlisten = [\"{listen}\"]\nworkers = 1\n\
         pin = false\ncontrol = \"control.sock\"\nlog = \"warn\"\n\n[server_key]\nfile = \"privkey.bin\"\n\n\
         [slow]\nidle = false\n"
    );
    Ok(std::fs::write(service.registry_config(), text)?)
}
