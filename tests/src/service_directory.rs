//! A new service: the directory created by `hdl init`, and both processes in it.

use crate::daemon::{Daemon, ask, free_address, handled};
use crate::process::{RunningProcess, hdl, program, run, succeed, until};
use serde_json::Value as Json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A directory created by `hdl init` for the prefix 10.1045, and its processes.
#[derive(Debug)]
pub struct InitialisedService {
    directory: TempDir,
    /// Address of `handled`.
    pub queries: SocketAddr,
    /// Address of `handle-admin`.
    pub administration: SocketAddr,
    /// `handle-admin`, if it runs.
    pub admin: Option<RunningProcess>,
    /// `handled`, if it runs.
    pub handled: Option<Daemon>,
}

impl InitialisedService {
    /// Creates the directory `site` with unencrypted keys.
    ///
    /// # Panics
    /// If `hdl init` fails.
    #[must_use]
    pub fn make() -> Self {
        Self::make_at(free_address(), free_address())
    }

    /// The same with one port: `handled` has it for UDP, `handle-admin` for TCP.
    ///
    /// # Panics
    /// If `hdl init` fails.
    #[must_use]
    pub fn make_with_one_port() -> Self {
        let address = free_address();
        Self::make_at(address, address)
    }

    fn make_at(queries: SocketAddr, administration: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let service = Self { directory, queries, administration, admin: None, handled: None };
        let (port, admin_port) = (queries.port().to_string(), administration.port().to_string());
        let init = ["init", "site", "--prefix", "10.1045", "--address", "127.0.0.1", "--bind", "127.0.0.1"];
        let ports = ["--port", &port, "--admin-port", &admin_port, "--plain", "--no-metrics"];
        succeed(service.hdl(init.into_iter().chain(ports)));
        service
    }

    /// Creates the directory and starts both processes.
    ///
    /// # Panics
    /// If a step fails.
    #[must_use]
    pub fn start() -> Self {
        let mut service = Self::make();
        service.start_admin();
        service.start_handled();
        service
    }

    /// Writes an executable file into the directory.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn script(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.path(name), mode).expect("its mode");
    }

    /// `handle-admin` with the configuration of the directory, permitted to run as root.
    #[must_use]
    pub fn admin_command(&self) -> Command {
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.stdin(Stdio::null()).env("HANDLE_ADMIN_ALLOW_ROOT", "true");
        command.arg("--config").arg(self.path("site/handle-admin.toml")).args(["--log", "warn"]);
        command
    }

    /// The command that promotes this mirror while its `handle-admin` is stopped.
    #[must_use]
    pub fn promotion_command(&self) -> Command {
        let mut command = Command::new(program("handle-admin", "handle-admin"));
        command.stdin(Stdio::null()).args(["promote", "--config"]).arg(self.path("site/handle-admin.toml"));
        command
    }

    /// `handled` with the configuration of the directory.
    #[must_use]
    pub fn handled_command(&self) -> Command {
        let mut command = handled();
        command.arg("--config").arg(self.path("site/handled.toml"));
        command.args(["--workers", "1", "--log", "warn"]);
        command
    }

    /// The service for all tests of this process. Statics are never dropped, so a shell kills its
    /// `handle-admin` and removes its directory at the end of the process.
    ///
    /// # Panics
    /// If `sh` does not run.
    #[must_use]
    pub fn for_all_tests(self) -> Self {
        let admin = self.admin.as_ref().map_or_else(String::new, |admin| admin.0.id().to_string());
        let mut end = Command::new("sh");
        end.args(["-c", "cat; kill -9 $1; rm -rf \"$2\"", "sh", &admin]).arg(self.path(""));
        end.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // The shell waits for the end of its input, which the end of this process closes.
        std::mem::forget(end.spawn().expect("sh runs").stdin);
        self
    }

    /// Starts `handle-admin` and waits until it serves.
    pub fn start_admin(&mut self) {
        self.start_admin_as(self.admin_command());
    }

    /// The same with another command for the process.
    ///
    /// # Panics
    /// If the process does not serve in time.
    pub fn start_admin_as(&mut self, command: Command) {
        let process = RunningProcess::start(command);
        let control = self.path("site/run/handle-admin.sock");
        until("handle-admin serves", || {
            let status = ask(&control, "status");
            status["pid"] == process.0.id() && status["health"]["ok"] == true
        });
        self.admin = Some(process);
    }

    /// Starts `handled` and waits until it serves.
    pub fn start_handled(&mut self) {
        self.start_handled_as(self.handled_command());
    }

    /// The same with another command for the process.
    pub fn start_handled_as(&mut self, command: Command) {
        self.handled = Some(Daemon::start(command, &self.path("site/run/handled.sock")));
    }

    /// A path relative to the parent of the directory `site`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `hdl` in the parent of the directory `site`.
    #[must_use]
    pub fn hdl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = hdl(args);
        command.current_dir(self.directory.path());
        command
    }

    /// `hdl` as the administrator, authenticated with the key that `hdl init` created.
    #[must_use]
    pub fn hdl_as_admin<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        self.hdl_as(args, "300:10.1045/ADMIN", "site/admin-private.bin")
    }

    /// `hdl` as an identity with a key.
    #[must_use]
    pub fn hdl_as<'a>(&self, args: impl IntoIterator<Item = &'a str>, identity: &str, key: &str) -> Command {
        let mut command = self.hdl(args);
        command.args(["--server", &self.administration.to_string(), "--auth", identity, "--key", key]);
        command
    }

    /// The answer of `handled` to a query.
    ///
    /// # Panics
    /// If `hdl` does not print JSON.
    #[must_use]
    pub fn resolve(&self, handle: &str) -> Json {
        let output = run(self.hdl(["resolve", handle, "--server", &self.queries.to_string(), "--json"]));
        serde_json::from_slice(&output.stdout).expect("hdl prints JSON")
    }

    /// Waits until `handled` answers with this code and this data of the first value, which is
    /// empty without values.
    pub fn until_resolved(&self, handle: &str, code: i32, data: &str) {
        until(&format!("{handle} becomes {code} {data}"), || {
            let answer = self.resolve(handle);
            let found = answer["values"][0]["data"]["value"].as_str().unwrap_or_default().to_owned();
            answer["responseCode"] == code && found == data
        });
    }

    /// All records of the published set, sorted.
    #[must_use]
    pub fn published(&self) -> Vec<String> {
        sorted_lines(&succeed(self.hdl(["export", "site/snapshot", "-"])))
    }
}

/// The lines of a text, sorted.
#[must_use]
pub fn sorted_lines(lines: &str) -> Vec<String> {
    let mut lines: Vec<_> = lines.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}
