//! Two services, each an administration process within this one, which know each other's prefixes
//! and keys.

use crate::admin_server::{AdminServer, new_store_config};
use crate::daemon::free_address;
use crate::test_server::write_key_file;
use crate::vectors;
use handle_admin::config::Config;
use handle_admin::remote::config::RemoteConfig;
use handle_daemon::server_key::ServerKeyConfig;
use handle_proto::data::admin::{Admin, AdminPermissions};
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteBuf};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::data::vlist::Vlist;
use handle_proto::json::site_to_json;
use handle_proto::wire::list::{Reference, References};
use handle_proto::{Permissions, Value, ValueBuf, Values};
use handle_store::{Store, StoreConfig};
use serde_json::json;
use std::net::SocketAddr;

/// Plan of a service.
pub struct ServicesPlan {
    /// Homed prefixes.
    pub prefixes: Vec<&'static str>,
    /// Records of the service.
    pub records: Vec<(&'static str, Vec<ValueBuf>)>,
    /// Id of the key in the vectors that the service signs with.
    pub key_id: &'static str,
    /// Id of the key that other services know for it.
    pub announced_key_id: &'static str,
    /// Address of the service.
    pub address: SocketAddr,
}

impl ServicesPlan {
    /// A service with these prefixes and records, which signs with the key `key_id`.
    #[must_use]
    pub fn new(
        key_id: &'static str,
        prefixes: &[&'static str],
        records: Vec<(&'static str, Vec<ValueBuf>)>,
    ) -> Self {
        let address = free_address();
        Self { prefixes: prefixes.to_vec(), records, key_id, announced_key_id: key_id, address }
    }

    /// The site of the service, with the public key `key_id` and one TCP interface.
    fn site(&self, key_id: &str) -> SiteBuf {
        let mut site = SiteBuilder::new();
        site.flags = handle_proto::data::site::SiteFlags::PRIMARY;
        site.server(ServerBuilder {
            id: 1,
            address: self.address.ip().into(),
            public_key: key(key_id, "handle_public_hex"),
            interfaces: vec![Interface::new(
                InterfaceKind::BOTH,
                InterfaceProtocol::TCP,
                self.address.port(),
            )],
        });
        site.build()
    }

    /// Starts the service with the prefixes and the site of `other`.
    ///
    /// # Panics
    /// If the service does not start.
    #[must_use]
    pub fn start(&self, other: &Self, change: impl FnOnce(&mut Config)) -> AdminServer {
        let directory = tempfile::tempdir().expect("a directory for the service");
        let path = directory.path();
        let store = new_store_config(path);
        self.fill(&store);
        let (site, local_info, file) =
            (path.join("siteinfo.json"), path.join("local_info.json"), path.join("privkey.bin"));
        let text = site_to_json(&self.site(self.key_id).view()).to_string();
        std::fs::write(&site, text).expect("the site record is written");
        let prefixes: Vec<String> = other.prefixes.iter().map(|prefix| format!("0.NA/{prefix}")).collect();
        let site_list =
            json!([{ "nas": prefixes, "site": site_to_json(&other.site(other.announced_key_id).view()) }]);
        std::fs::write(&local_info, site_list.to_string()).expect("the list of sites is written");
        write_key_file(&file, &vectors::fixture("servers.json")["keys"][self.key_id]);
        let mut config = Config {
            site,
            listen: vec![self.address],
            threads: 2,
            audit: Some(path.join("audit.jsonl")),
            store,
            server_key: Some(ServerKeyConfig { file, ..ServerKeyConfig::default() }),
            remote: RemoteConfig { enabled: true, local_info: Some(local_info), ..RemoteConfig::default() },
            ..Config::default()
        };
        change(&mut config);
        AdminServer::start(config, directory)
    }

    fn fill(&self, config: &StoreConfig) {
        let store = Store::create(config, true).expect("a new store");
        let mut bulk = store.bulk(config.file.parent().expect("a directory"), 1 << 20);
        self.prefixes.iter().for_each(|prefix| bulk.home(prefix.as_bytes()));
        for (handle, values) in &self.records {
            let mut buffer = Vec::new();
            let values = Values::build(values.iter().map(ValueBuf::view), &mut buffer);
            bulk.add(handle.as_bytes(), values).expect("room for records");
        }
        bulk.finish(|_| ()).expect("a store with records");
    }
}

/// A key of the vectors in one of its forms.
///
/// # Panics
/// If the vectors lack it.
#[must_use]
pub fn key(id: &str, form: &str) -> Vec<u8> {
    vectors::hex(&vectors::fixture("servers.json")["keys"][id][form])
}

/// A value that gives `index:handle` all rights of an administrator.
#[must_use]
pub fn admin(at: i32, index: i32, handle: &str) -> ValueBuf {
    let mut data = Vec::new();
    Admin::new(AdminPermissions::ALL, handle.as_bytes(), index).encode(&mut data);
    ValueBuf::from(&Value::new(at, b"HS_ADMIN", &data))
}

/// A value with a group.
#[must_use]
pub fn group(at: i32, members: &[(i32, &str)]) -> ValueBuf {
    let mut buffer = Vec::new();
    let members = members.iter().map(|&(index, handle)| Reference { handle: handle.as_bytes(), index });
    let mut data = Vec::new();
    Vlist(References::build(members, &mut buffer)).encode(&mut data);
    ValueBuf::from(&Value::new(at, b"HS_VLIST", &data))
}

/// A value with a public key of the vectors.
#[must_use]
pub fn public_key(at: i32, id: &str) -> ValueBuf {
    ValueBuf::from(&Value::new(at, b"HS_PUBKEY", &key(id, "handle_public_hex")))
}

/// A value with a secret, readable for administrators only.
#[must_use]
pub fn secret(at: i32, secret: &[u8]) -> ValueBuf {
    let value = Value::new(at, b"HS_SECKEY", secret);
    ValueBuf::from(&Value { permissions: Permissions::ADMIN_READ, ..value })
}
