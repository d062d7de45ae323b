//! Runs the servers of the vectors as `handled` in this process.

pub use crate::server_keys::{server_key, server_key_in, server_key_record};
use crate::vectors::{self, VectorSource};
use handle_proto::{Handle, Value, fold};
use handle_snapshot::builder::Builder;
use handle_snapshot::set::publisher::SetPublisher;
use handle_snapshot::writer::{BuildError, HomedPrefixes, LayerOptions};
use handle_worker::Server;
use handle_worker::config::{Config, Datapath};
use handle_worker::slow::config::ServerKeyConfig;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use tempfile::TempDir;

/// A server and the directory it serves from.
pub struct TestServer {
    /// The running server.
    pub server: Server,
    /// The directory in which the set is published.
    pub directory: TempDir,
    /// The records that the set lacks.
    pub left_out: OmittedHandles,
}

/// Handles of records of foreign vectors that a server cannot have, folded as for a lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmittedHandles(BTreeSet<Vec<u8>>);

impl OmittedHandles {
    /// Adds the handle of a record.
    pub fn insert(&mut self, handle: &[u8]) {
        self.0.insert(fold::folded(&Handle(handle).looked_up()));
    }

    /// Whether no record is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a message with these `fields` names one of the records.
    #[must_use]
    pub fn contains_handle_of(&self, fields: &Json) -> bool {
        self.has(&fields["body"]["handle"])
    }

    /// Whether this handle of a line is that of a record that is left out.
    #[must_use]
    pub fn has(&self, handle: &Json) -> bool {
        let is_name = handle.is_string() || handle["hex"].is_string();
        is_name && self.0.contains(&fold::folded(&Handle(&vectors::bytes(handle)).looked_up()))
    }
}

impl TestServer {
    /// The address that the server answers on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }
}

/// Configuration for a test: one unpinned worker on loopback, on a port assigned by the kernel.
#[must_use]
pub fn config(set: &Path, datapath: Datapath) -> Config {
    Config {
        snapshot: set.to_owned(),
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 1,
        pin: false,
        datapath,
        ..Config::default()
    }
}

/// Writes an unencrypted private key file that only its owner may read.
///
/// # Panics
/// If the file cannot be written.
pub fn write_key_file(path: &Path, key: &Json) {
    let mut bytes = 1_u32.to_be_bytes().to_vec();
    bytes.extend(vectors::hex(&key["handle_private_hex"]));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(&bytes)).expect("the key is written");
}

/// Runs the server called `name` in `servers.json`, with the records of `records.json`.
///
/// # Panics
/// If the vectors lack the server or are invalid.
#[must_use]
pub fn serve(name: &str, datapath: Datapath) -> TestServer {
    serve_with(name, datapath, |_| ())
}

/// Like [`serve`], with a change of the configuration.
///
/// # Panics
/// If the vectors lack the server or are invalid.
#[must_use]
pub fn serve_with(name: &str, datapath: Datapath, change: impl FnOnce(&mut Config)) -> TestServer {
    serve_from(VectorSource::Own, name, datapath, change)
}

/// Like [`serve_with`], with the servers and records of `source`.
///
/// # Panics
/// If the files of `source` lack the server or are invalid. Records of foreign files that a set
/// cannot have are left out.
#[must_use]
pub fn serve_from(
    source: VectorSource,
    name: &str,
    datapath: Datapath,
    change: impl FnOnce(&mut Config),
) -> TestServer {
    let servers = source.document("servers.json");
    let server = &servers["servers"][name];
    assert!(server.is_object(), "servers.json has a server {name}");
    let directory = tempfile::tempdir().expect("a directory for the set");
    let set = directory.path().join("set");
    let left_out = publish(source, server, &set);
    let site = directory.path().join("siteinfo.json");
    vectors::write_site(server, &site);
    let mut config = config(&set, datapath);
    config.site = Some(site);
    config.server_id = server["this_server_id"].as_i64().and_then(|id| i32::try_from(id).ok());
    if let Some(key_id) = server["server_key_id"].as_str() {
        let file = directory.path().join("privkey.bin");
        write_key_file(&file, &servers["keys"][key_id]);
        config.server_key = Some(ServerKeyConfig { file, ..ServerKeyConfig::default() });
    }
    let administrators = server["server_config"]["server_admins"].as_array().into_iter().flatten();
    config.administrators.server =
        administrators.map(|admin| admin.as_str().expect("an identity").to_owned()).collect();
    config.templates.namespace = server["server_config"]["namespace"].as_str().map(str::to_owned);
    config.templates.override_prefixes = server["server_config"]["template_ns_override"] == "yes";
    change(&mut config);
    let server = Server::start(&config).expect("the server starts");
    TestServer { server, directory, left_out }
}

/// Publishes the records of `source`, with the prefixes that `server` homes, as the set in `set`.
pub(crate) fn publish(source: VectorSource, server: &Json, set: &Path) -> OmittedHandles {
    let mut homed = HomedPrefixes::default();
    for prefix in server["homed_prefixes"].as_array().expect("a list of prefixes") {
        let prefix = prefix.as_str().expect("a name");
        homed.add(prefix.strip_prefix("0.NA/").expect("a prefix record").as_bytes());
    }
    let folds = server["case_sensitive"] != Json::Bool(true);
    let options = LayerOptions { seed: 1, folds, created_unix_ms: 1 };
    let (mut left_out, mut taken) = (OmittedHandles::default(), BTreeSet::new());
    std::fs::create_dir(set).expect("a directory for the set");
    let mut publisher = SetPublisher::open(set).expect("a directory to publish to");
    let published = publisher.publish_base(1, |file, temp_dir| {
        let mut builder = Builder::new(temp_dir, options).homed(homed);
        for (at, record) in source.document("records.json").as_array().into_iter().flatten().enumerate() {
            let (handle, values) = record_of(record);
            let views: Result<Vec<_>, _> =
                values.iter().map(|bytes| Value::split(bytes).map(|(value, _)| value)).collect();
            let key = if folds { fold::folded(&handle) } else { handle.clone() };
            let is_added = match views {
                Ok(views) if taken.insert(key) => match builder.add(at as u64, &handle, views) {
                    Err(BuildError::Record { .. }) => false,
                    added => added.map(|()| true)?,
                },
                _ => false,
            };
            if !is_added {
                left_out.insert(&handle);
            }
        }
        builder.finish(file)
    });
    published.expect("records that can be published");
    assert!(left_out.is_empty() || vectors::is_foreign(), "invalid records in the own vectors: {left_out:?}");
    left_out
}

/// The handle and the encoded values of a record.
pub(crate) fn record_of(record: &Json) -> (Vec<u8>, Vec<Vec<u8>>) {
    let values = record["values_hex"].as_array().expect("values").iter().map(vectors::hex).collect();
    (vectors::bytes(&record["handle"]), values)
}
