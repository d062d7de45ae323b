//! Several `handle-admin` over one database, which publish to one directory.

use crate::daemon::{ask, free_address};
use crate::mirror_pair::RecordAdministrator;
use crate::postgres_server::PostgresServer;
use crate::process::{RunningProcess, program, succeed, until};
use crate::service_directory::InitialisedService;
use handle_store::{Store, StoreConfig};
use serde_json::{Value as Json, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names of the processes, of their configuration files and of their control sockets.
const NAMES: [&str; 2] = ["a", "b"];

/// Two `handle-admin` over one database.
#[derive(Debug)]
pub struct SeveralAdmins {
    /// The directory of the service, whose own processes are not used.
    pub service: InitialisedService,
    /// Addresses of the processes.
    pub addresses: [SocketAddr; 2],
    /// The processes that run.
    pub processes: [Option<RunningProcess>; 2],
    /// The URL of the database.
    pub url: String,
    server: &'static PostgresServer,
}

impl SeveralAdmins {
    /// Creates the service, without starting a process; `settings` are more lines of `[publish]`,
    /// and of sections after it. `None` if PostgreSQL is not installed.
    ///
    /// # Panics
    /// If a file cannot be written.
    #[must_use]
    pub fn make(settings: &str) -> Option<Self> {
        Some(Self::make_on(PostgresServer::shared()?, settings))
    }

    /// The same over a database server of its own, which keeps what is committed and may be killed.
    /// It runs until the process of the test ends.
    #[must_use]
    pub fn make_alone(settings: &str) -> Option<Self> {
        Some(Self::make_on(Box::leak(Box::new(PostgresServer::start(true)?)), settings))
    }

    fn make_on(server: &'static PostgresServer, settings: &str) -> Self {
        let (service, url) = (InitialisedService::make(), server.new_database());
        succeed(service.hdl(["export", "site/store.redb", "records.jsonl"]));
        succeed(service.hdl(["store", "create", &url]));
        succeed(service.hdl(["import", &url, "records.jsonl"]));
        let addresses = NAMES.map(|name| {
            let address = free_address();
            let text = format!(
                "shared = \"service.toml\"\nlisten = [\"{address}\"]\ncontrol = \"run/{name}.sock\"\n\
                 [store.postgres]\nurl = \"{url}\"\n[publish]\ndirectory = \"snapshot\"\n{settings}\n"
            );
            std::fs::write(service.path(&format!("site/{name}.toml")), text).expect("a file");
            address
        });
        Self { service, addresses, processes: [None, None], url, server }
    }

    /// The directory of the published set.
    #[must_use]
    pub fn set(&self) -> PathBuf {
        self.service.path("site/snapshot")
    }

    fn control(&self, at: usize) -> PathBuf {
        self.service.path(&format!("site/run/{}.sock", NAMES[at]))
    }

    /// Starts a process and waits until it serves.
    ///
    /// # Panics
    /// If it does not serve in time.
    pub fn start(&mut self, at: usize) {
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.stdin(Stdio::null()).env("HANDLE_ADMIN_ALLOW_ROOT", "true").args(["--log", "warn"]);
        command.arg("--config").arg(self.service.path(&format!("site/{}.toml", NAMES[at])));
        let process = RunningProcess::start(command);
        let pid = process.0.id();
        self.processes[at] = Some(process);
        until("handle-admin serves", || {
            let status = self.status(at);
            status["pid"] == pid && status["health"]["ok"] == true
        });
    }

    /// Kills a process, if it runs.
    pub fn kill(&mut self, at: usize) {
        if let Some(process) = &mut self.processes[at] {
            process.signal("KILL");
            process.wait();
        }
        self.processes[at] = None;
    }

    /// Sends a signal to a process.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, at: usize, name: &str) {
        self.processes[at].as_ref().expect("a running process").signal(name);
    }

    /// The status of a process; null if it does not answer.
    #[must_use]
    pub fn status(&self, at: usize) -> Json {
        if self.processes[at].is_none() {
            return json!(null);
        }
        ask(&self.control(at), "status")
    }

    /// Answer of a process to a command on its control socket.
    #[must_use]
    pub fn ask(&self, at: usize, command: &str) -> Json {
        ask(&self.control(at), command)
    }

    /// Whether a process has the lease.
    #[must_use]
    pub fn publishes(&self, at: usize) -> bool {
        self.status(at)["publish"]["lease"]["held"] == true
    }

    /// Waits until one of the processes has the lease, and returns which.
    #[must_use]
    pub fn publisher(&self) -> usize {
        let mut found = None;
        until("one of them publishes", || {
            found = (0..NAMES.len()).find(|&at| self.publishes(at));
            found.is_some()
        });
        found.expect("found above")
    }

    /// A client that changes records at a process.
    #[must_use]
    pub fn administrator(&self, at: usize) -> RecordAdministrator {
        RecordAdministrator::new(&self.service, self.addresses[at])
    }

    /// The store, to read it.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn store(&self) -> Store {
        Store::open_to_read(&StoreConfig::at(Path::new(&self.url))).expect("a store")
    }

    /// The number of the last transaction.
    ///
    /// # Panics
    /// If the store cannot be read.
    #[must_use]
    pub fn last_transaction(&self) -> u64 {
        self.store().last_id()
    }

    /// Runs a statement in the database.
    #[must_use]
    pub fn psql(&self, statement: &str) -> String {
        self.server.psql(self.database(), statement)
    }

    fn database(&self) -> &str {
        self.url.trim_start_matches("postgresql:///").split('?').next().expect("a name")
    }

    /// Kills a process of the server that has a connection, upon which the server ends all of them
    /// and recovers from its log, and waits until it is back.
    ///
    /// # Panics
    /// If it does not come back in time.
    pub fn kill_backend(&self) {
        let others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
                      AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1";
        // It begins anew with the server.
        let checkpointer =
            || self.psql("SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
        let (pid, before) = (self.psql(others), checkpointer());
        let killed = Command::new("kill").args(["-KILL", &pid]).stderr(Stdio::null()).status();
        // Otherwise it has ended since.
        if killed.is_ok_and(|status| status.success()) {
            until("the database is back", || checkpointer() != before);
        }
    }

    /// Ends all connections of the processes to the database.
    pub fn end_connections(&self) {
        let database = self.database();
        let end = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{database}'"
        );
        let _ = self.server.psql("postgres", &end);
    }
}
