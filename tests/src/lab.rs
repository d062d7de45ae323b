//! The lab of `hdl lab up` as a process, and its servers.

use crate::daemon::free_address;
use crate::process::{Running, hdl};
use serde_json::Value as Json;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Servers of the lab.
const SERVERS: usize = 9;

/// A lab that is up; it ends with this.
#[derive(Debug)]
pub struct Lab {
    /// The file that clients find the global service by.
    pub root: PathBuf,
    /// What it said when it came up.
    pub said: Json,
    // Its standard input stays open until it is dropped, before its directory.
    _process: Running,
    /// Where everything of it is.
    pub directory: TempDir,
}

impl Lab {
    /// Brings a lab up.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn up() -> Self {
        let directory = tempfile::tempdir().expect("a directory for the lab");
        let mut command = hdl(["lab", "up", "--json"]);
        command.arg("--dir").arg(directory.path().join("lab"));
        for _ in 0..SERVERS {
            command.args(["--port", &free_address().port().to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running::start(command);
        let mut line = String::new();
        let stdout = process.0.stdout.take().expect("its output");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let said: Json = serde_json::from_str(&line).expect("the lab says what it has started");
        let root = PathBuf::from(said["root"].as_str().expect("a path"));
        Self { root, said, _process: process, directory }
    }

    /// `hdl` with arguments, which knows the global service of the lab.
    #[must_use]
    pub fn hdl(&self, args: &[&str]) -> Command {
        let mut command = hdl(args);
        command.env("HDL_ROOT", &self.root);
        command
    }

    fn servers(&self, site: &str) -> Vec<&Json> {
        let servers = self.said["servers"].as_array().expect("servers");
        servers.iter().filter(|server| server["site"] == site).collect()
    }

    /// Where the servers of a site answer.
    ///
    /// # Panics
    /// When the lab said something else than addresses.
    #[must_use]
    pub fn addresses(&self, site: &str) -> Vec<SocketAddr> {
        let address =
            |server: &&Json| server["address"].as_str().expect("an address").parse().expect("an address");
        self.servers(site).iter().map(address).collect()
    }

    /// Sends a signal to every server of a site.
    ///
    /// # Panics
    /// When one is gone already.
    pub fn signal(&self, site: &str, name: &str) {
        for server in self.servers(site) {
            let status = Command::new("kill").args([format!("-{name}"), server["pid"].to_string()]).status();
            assert!(status.expect("kill runs").success(), "{site}");
        }
    }

    /// The record of a site, as the server of that number has it in its directory.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn siteinfo(&self, site: &str) -> PathBuf {
        let path = self.directory.path().join("lab").join(format!("{site}-1")).join("siteinfo.json");
        assert!(path.is_file(), "{}", path.display());
        path
    }
}
