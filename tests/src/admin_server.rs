//! Runs the servers of the vectors as `handle-admin` in this process.

use crate::postgres_server::PostgresServer;
use crate::test_server::{OmittedHandles, record_of, write_key_file};
use crate::vectors::{self, VectorSource, is_foreign};
use handle_admin::config::{AdministratorsConfig, Config};
use handle_admin::server::Server;
use handle_daemon::server_key::ServerKeyConfig;
use handle_proto::{Handle, Values};
use handle_store::{Store, StoreConfig};
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::path::Path;
use tempfile::TempDir;

/// An administration process within this one, with the directory of its files.
pub struct AdminServer {
    /// The running server; `None` after [`stop`](Self::stop).
    server: Option<Server>,
    /// The configuration that the server was started with.
    pub config: Config,
    /// The directory with the files of the server.
    pub directory: TempDir,
}

impl AdminServer {
    /// The address on which the server answers.
    ///
    /// # Panics
    /// If the server is stopped.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server().addresses()[0]
    }

    /// The running server.
    ///
    /// # Panics
    /// If the server is stopped.
    #[must_use]
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("a running server")
    }

    /// Starts a server with its files in `directory`.
    ///
    /// # Panics
    /// If the server does not start.
    #[must_use]
    pub fn start(config: Config, directory: TempDir) -> Self {
        let mut administered = Self { server: None, config, directory };
        administered.restart();
        administered
    }

    /// Stops the server if it runs.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    /// Stops the server and starts it again on another port.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn restart(&mut self) {
        self.stop();
        self.server = Some(Server::start(&self.config).expect("the server starts"));
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs the server called `name` in `servers.json`, with the records of `records.json` in its
/// store.
///
/// # Panics
/// If the vectors lack the server or are invalid.
#[must_use]
pub fn administer(name: &str) -> AdminServer {
    administer_with(name, |_| ())
}

/// Like [`administer`], with a change of the configuration.
///
/// # Panics
/// If the vectors lack the server or are invalid.
#[must_use]
pub fn administer_with(name: &str, change: impl FnOnce(&mut Config)) -> AdminServer {
    administer_from(VectorSource::Own, name, change).0
}

/// The settings of a new store: a file in `directory`, or a database if
/// `HANDLE_TEST_STORE=postgres` is in the environment.
///
/// # Panics
/// If PostgreSQL is not installed and should be used.
#[must_use]
pub fn new_store_config(directory: &Path) -> StoreConfig {
    if std::env::var("HANDLE_TEST_STORE").is_ok_and(|engine| engine == "postgres") {
        let server = PostgresServer::shared().expect("PostgreSQL is installed");
        // The file is not used, but tests put other files beside it.
        let file = directory.join("store.redb");
        return StoreConfig { file, ..StoreConfig::at(Path::new(&server.new_database())) };
    }
    StoreConfig { cache_bytes: 8 << 20, ..StoreConfig::at(&directory.join("store.redb")) }
}

/// Like [`administer_with`], with the servers and records of `source`. Also returns the records of
/// foreign files that a store cannot have.
///
/// # Panics
/// If the files of `source` lack the server or are invalid.
#[must_use]
pub fn administer_from(
    source: VectorSource,
    name: &str,
    change: impl FnOnce(&mut Config),
) -> (AdminServer, OmittedHandles) {
    let servers = source.document("servers.json");
    let server = &servers["servers"][name];
    assert!(server.is_object(), "servers.json has a server {name}");
    let directory = tempfile::tempdir().expect("a directory for the store");
    let path = directory.path();
    let store = new_store_config(path);
    let left_out = fill(source, &store, server);
    let site = path.join("siteinfo.json");
    vectors::write_site(server, &site);
    let settings = &server["server_config"];
    let identities = |name: &str| -> Vec<String> {
        let listed = settings[name].as_array().into_iter().flatten();
        listed.map(|identity| identity.as_str().expect("an identity").to_owned()).collect()
    };
    let server_key = server["server_key_id"].as_str().map(|id| {
        let file = path.join("privkey.bin");
        write_key_file(&file, &servers["keys"][id]);
        ServerKeyConfig { file, ..ServerKeyConfig::default() }
    });
    let mut config = Config {
        site,
        server_id: server["this_server_id"].as_i64().and_then(|id| i32::try_from(id).ok()),
        listen: vec![([127, 0, 0, 1], 0).into()],
        threads: 2,
        audit: Some(path.join("audit.jsonl")),
        store,
        server_key,
        administrators: AdministratorsConfig {
            server: identities("server_admins"),
            server_full_access: settings["server_admin_full_access"] == "yes",
            home_only: identities("home_only_admins"),
            replication: identities("replication_admins"),
            backup: identities("backup_admins"),
            status: identities("status_handle_admins"),
            prefix_administrators: settings["allow_na_admins"] != "no",
        },
        list_handles: settings["allow_list_hdls"] != "no",
        anonymous_full_access: settings["anonymous_admin_full_access"] == "yes",
        ..Config::default()
    };
    change(&mut config);
    (AdminServer::start(config, directory), left_out)
}

/// Fills a new store with the records of `source`; returns those that a store cannot have.
fn fill(source: VectorSource, config: &StoreConfig, server: &Json) -> OmittedHandles {
    let store = Store::create(config, server["case_sensitive"] != Json::Bool(true)).expect("a new store");
    let temp_dir = config.file.parent().expect("a directory");
    let mut bulk = store.bulk(temp_dir, 1 << 20);
    for prefix in server["homed_prefixes"].as_array().expect("a list of prefixes") {
        bulk.home(Handle(prefix.as_str().expect("a name").as_bytes()).homed_prefix());
    }
    let mut left_out = OmittedHandles::default();
    for record in source.document("records.json").as_array().into_iter().flatten() {
        let (handle, values) = record_of(record);
        match Values::from_encoded(values.len(), &values.concat()) {
            Ok(values) => bulk.add(&handle, values).expect("room for records"),
            Err(_) => left_out.insert(&handle),
        }
    }
    bulk.finish(|_| ()).expect("a store with records");
    assert!(left_out.is_empty() || is_foreign(), "invalid records in the own vectors: {left_out:?}");
    left_out
}
