//! A primary and its mirror, each in a directory of `hdl init`.

use crate::daemon::ask;
use crate::service_directory::InitialisedService;
use handle_auth::{PrivateKey, file};
use handle_client::administration::{Administrator, ClientIdentity, IdentityKey};
use handle_client::allowances::Allowances;
use handle_proto::value::Permissions;
use handle_proto::wire::Request;
use handle_proto::wire::admin::{HandleBody, HandleValues};
use handle_proto::{OpFlags, ResponseCode, Value, Values};
use handle_snapshot::set::read_manifest;
use handle_store::{Store, StoreConfig};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Permissions of a value that only administrators may read.
const PRIVATE: Permissions = Permissions(0x0c);

/// A primary and its mirror.
#[derive(Debug)]
pub struct MirroredService {
    /// The primary.
    pub primary: InitialisedService,
    /// The mirror.
    pub mirror: InitialisedService,
}

impl MirroredService {
    /// Creates both, without starting a process. `settings` are more lines of `[mirror]`, and
    /// `more` of `[[mirror.primary]]`.
    ///
    /// # Panics
    /// If a file cannot be written.
    #[must_use]
    pub fn make(settings: &str, more: &str) -> Self {
        let (primary, mirror) = (InitialisedService::make(), InitialisedService::make());
        let site = mirror.path("site/siteinfo.json");
        let mut json: Json = serde_json::from_slice(&fs::read(&site).expect("a file")).expect("JSON");
        json["primarySite"] = false.into();
        fs::write(&site, json.to_string()).expect("a file");
        let config = mirror.path("site/handle-admin.toml");
        let text = fs::read_to_string(&config).expect("a file");
        let path = |name: &str| primary.path(name).display().to_string();
        let (site, key) = (path("site/siteinfo.json"), path("site/admin-private.bin"));
        let section = format!(
            "\n[mirror]\n{settings}\n[[mirror.primary]]\nname = \"main\"\nsite = \"{site}\"\n\
             identity = \"300:10.1045/ADMIN\"\nkey_file = \"{key}\"\n{more}\n"
        );
        fs::write(&config, text + &section).expect("a file");
        Self { primary, mirror }
    }

    /// Starts both processes for administration.
    pub fn start(&mut self) {
        self.primary.start_admin();
        self.mirror.start_admin();
    }

    /// The progress of the mirror with its primary.
    #[must_use]
    pub fn progress(&self) -> Json {
        ask(&self.mirror.path("site/run/handle-admin.sock"), "status")["mirror"][0].clone()
    }

    /// Whether the primary has published all its changes, and the mirror's set has the same
    /// records, with their private values, and the same homed prefixes. The roots of the sets
    /// differ, because the blinding of private values does.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        // After a start, the set of the primary may lack changes that were acknowledged before.
        let status = ask(&self.primary.path("site/run/handle-admin.sock"), "status");
        if status["publish"]["pending"] != 0 {
            return false;
        }
        let is_published = [&self.primary, &self.mirror].map(published_root).iter().all(Option::is_some);
        is_published && self.primary.published() == self.mirror.published()
    }

    /// Stops both processes, and asserts that their stores have the same records, with their
    /// private values, and the same homed prefixes.
    ///
    /// # Panics
    /// If they have not.
    pub fn stop_and_compare(&mut self) {
        (self.primary.admin, self.mirror.admin) = (None, None);
        StoreContent::of(&self.mirror).assert_is(&StoreContent::of(&self.primary), "the mirror");
    }

    /// A client that changes records of the primary.
    #[must_use]
    pub fn administrator(&self) -> RecordAdministrator {
        RecordAdministrator::new(&self.primary, self.primary.administration)
    }
}

/// What a store has for its clients.
#[derive(Debug, PartialEq, Eq)]
pub struct StoreContent {
    /// The encoded values of each record, private ones included.
    pub records: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    /// The homed prefixes.
    pub homed: BTreeSet<Vec<u8>>,
}

impl StoreContent {
    /// Reads the store of a service whose `handle-admin` does not run.
    ///
    /// # Panics
    /// If the store cannot be read.
    #[must_use]
    pub fn of(service: &InitialisedService) -> Self {
        Self::of_store(&Store::open(&StoreConfig::at(&service.path("site/store.redb"))).expect("a store"))
    }

    /// Reads an open store.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn of_store(store: &Store) -> Self {
        let snapshot = store.snapshot().expect("a snapshot");
        let records = snapshot.records().expect("records").map(|stored| {
            let stored = stored.expect("a readable record");
            let values = stored.record().expect("an intact record").values.iter().map(|value| {
                let mut encoded = Vec::new();
                value.encode(&mut encoded);
                encoded
            });
            (stored.handle().to_vec(), values.collect())
        });
        Self { records: records.collect(), homed: snapshot.homed().expect("prefixes").into_iter().collect() }
    }

    /// Asserts that both are equal.
    ///
    /// # Panics
    /// If they are not; the message names a difference.
    pub fn assert_is(&self, other: &Self, what: &str) {
        let differs = |name: &&Vec<u8>| self.records.get(*name) != other.records.get(*name);
        let different = self.records.keys().chain(other.records.keys()).find(differs);
        let different = different.map(|name| String::from_utf8_lossy(name));
        assert!(different.is_none(), "{what}: the records of {different:?} differ");
        assert_eq!(self.homed, other.homed, "{what}: homed prefixes");
    }
}

/// The root of the published set.
#[must_use]
pub fn published_root(service: &InitialisedService) -> Option<String> {
    read_manifest(&service.path("site/snapshot")).ok().map(|manifest| manifest.root.to_string())
}

/// Changes records of a service as its administrator.
#[derive(Debug)]
pub struct RecordAdministrator {
    server: SocketAddr,
    identity: Arc<ClientIdentity>,
    client: Administrator,
}

/// The key in a file.
///
/// # Panics
/// If the file has no key.
#[must_use]
pub fn private_key(path: &Path) -> PrivateKey {
    let key = file::open_key_file(path, None).expect("a key file");
    PrivateKey::from_record(key.as_bytes()).expect("a key")
}

impl RecordAdministrator {
    /// The administrator of `service`, whose server is reached at `server`.
    #[must_use]
    pub fn new(service: &InitialisedService, server: SocketAddr) -> Self {
        let key = IdentityKey::Private(Box::new(private_key(&service.path("site/admin-private.bin"))));
        let identity = Arc::new(ClientIdentity { handle: b"10.1045/ADMIN".to_vec(), index: 300, key });
        let client = Self::connect(server, &identity);
        Self { server, identity, client }
    }

    fn connect(server: SocketAddr, identity: &Arc<ClientIdentity>) -> Administrator {
        let mut client = Administrator::new(server, Duration::from_secs(10));
        client.identify(Some(Arc::clone(identity)));
        client.allow(Allowances { cleartext_secrets: true, ..Allowances::NONE });
        client
    }

    fn ask(&mut self, request: &Request<'_>) -> Option<(ResponseCode, String)> {
        let flags = OpFlags::PLAIN_REQUEST.with(OpFlags::OVERWRITE);
        match self.client.ask(request, flags) {
            Ok(answer) => Some((answer.code(), answer.text())),
            Err(_) => {
                self.client = Self::connect(self.server, &self.identity);
                None
            }
        }
    }

    /// Creates or replaces a record with one public and one private value; `None` without an
    /// answer.
    pub fn put(&mut self, handle: &str, data: &str) -> Option<(ResponseCode, String)> {
        self.put_values(handle, data, PRIVATE)
    }

    /// The same with two public values.
    pub fn put_public(&mut self, handle: &str, data: &str) -> Option<(ResponseCode, String)> {
        self.put_values(handle, data, Permissions::DEFAULT)
    }

    fn put_values(
        &mut self,
        handle: &str,
        data: &str,
        permissions: Permissions,
    ) -> Option<(ResponseCode, String)> {
        let mut buffer = Vec::new();
        let first = Value::new(1, b"URL", data.as_bytes());
        let second = Value { permissions, ..Value::new(2, b"EMAIL", data.as_bytes()) };
        let values = Values::build([first, second], &mut buffer);
        self.ask(&Request::CreateHandle(HandleValues { handle: handle.as_bytes(), values }))
    }

    /// Deletes a record; `None` without an answer.
    pub fn delete(&mut self, handle: &str) -> Option<(ResponseCode, String)> {
        self.ask(&Request::DeleteHandle(HandleBody { handle: handle.as_bytes() }))
    }

    /// Homes a prefix; `None` without an answer.
    pub fn home(&mut self, prefix: &str) -> Option<(ResponseCode, String)> {
        self.ask(&Request::HomeNa(HandleBody { handle: prefix.as_bytes() }))
    }

    /// Releases a prefix; `None` without an answer.
    pub fn unhome(&mut self, prefix: &str) -> Option<(ResponseCode, String)> {
        self.ask(&Request::UnhomeNa(HandleBody { handle: prefix.as_bytes() }))
    }
}
