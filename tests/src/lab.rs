//! The lab of `handle-lab up` as a process, and its servers.

use crate::daemon::free_address;
use crate::process::{RunningProcess, handle_lab, hdl, until};
use crate::records;
use handle_client::bootstrap::{Root, read_site};
use handle_client::lookup::Client;
use handle_proto::data::site::SiteBuf;
use serde_json::Value as Json;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Number of servers of the lab.
const SERVERS: usize = 9;

/// A running lab; dropping it stops the lab.
#[derive(Debug)]
pub struct LabProcess {
    /// The file from which clients know the global service.
    pub root: PathBuf,
    /// The JSON that the lab printed when it was ready.
    pub report: Json,
    // Dropped before the directory; this closes the standard input of the process.
    _process: RunningProcess,
    /// The directory with all files of the lab.
    pub directory: TempDir,
}

impl LabProcess {
    /// Starts a lab.
    ///
    /// # Panics
    /// When the lab does not start.
    #[must_use]
    pub fn up() -> Self {
        match records::file() {
            Some(records) => Self::up_with(&["--records", records.to_str().expect("a path in UTF-8")]),
            None => Self::up_with(&[]),
        }
    }

    /// Starts a lab with these arguments.
    ///
    /// # Panics
    /// When the lab does not start.
    #[must_use]
    pub fn up_with(args: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the lab");
        let mut command = handle_lab(["up", "--json"]);
        command.arg("--dir").arg(directory.path().join("lab"));
        for _ in 0..SERVERS {
            command.args(["--port", &free_address().port().to_string()]);
        }
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = RunningProcess::start(command);
        let mut line = String::new();
        let stdout = process.0.stdout.take().expect("standard output");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let report: Json = serde_json::from_str(&line).expect("the report of the lab");
        let root = PathBuf::from(report["root"].as_str().expect("a path"));
        Self { root, report, _process: process, directory }
    }

    /// The command `hdl` with arguments, configured with the global service of the lab.
    #[must_use]
    pub fn hdl(&self, args: &[&str]) -> Command {
        let mut command = hdl(args);
        command.env("HDL_ROOT", &self.root);
        command
    }

    fn servers(&self, site: &str) -> Vec<&Json> {
        let servers = self.report["servers"].as_array().expect("servers");
        servers.iter().filter(|server| server["site"] == site).collect()
    }

    /// Addresses of the servers of a site.
    ///
    /// # Panics
    /// When the lab did not print addresses.
    #[must_use]
    pub fn addresses(&self, site: &str) -> Vec<SocketAddr> {
        let address =
            |server: &&Json| server["address"].as_str().expect("an address").parse().expect("an address");
        self.servers(site).iter().map(address).collect()
    }

    /// The control socket of the first server of a site.
    ///
    /// # Panics
    /// When the lab did not print it.
    #[must_use]
    pub fn control(&self, site: &str) -> PathBuf {
        self.servers(site)[0]["control"].as_str().expect("a path").into()
    }

    /// Sends a signal to every server of a site.
    ///
    /// # Panics
    /// When a server has already ended.
    pub fn signal(&self, site: &str, name: &str) {
        (0..self.servers(site).len()).for_each(|at| self.signal_one(site, at, name));
    }

    /// Sends a signal to the server at this position of a site.
    ///
    /// # Panics
    /// When the server has already ended.
    pub fn signal_one(&self, site: &str, at: usize, name: &str) {
        let server = self.servers(site)[at];
        let status = Command::new("kill").args([format!("-{name}"), server["pid"].to_string()]).status();
        assert!(status.expect("kill runs").success(), "{site}");
    }

    /// Kills the server at this position of a site, and waits until its port is free, so that the
    /// kernel refuses connections.
    ///
    /// # Panics
    /// When the server has already ended, or does not end.
    pub fn kill(&self, site: &str, at: usize) {
        self.signal_one(site, at, "KILL");
        let address = self.addresses(site)[at];
        until("the server ends", || UdpSocket::bind(address).is_ok());
    }

    /// A client that only knows the global service of the lab.
    ///
    /// # Panics
    /// If its file cannot be read.
    #[must_use]
    pub fn client(&self) -> Client {
        let root = std::fs::read(&self.root).expect("the file of the global service");
        Client::new(Root::read(&root).expect("the global service"))
    }

    /// The record of a site.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn site(&self, site: &str) -> SiteBuf {
        let siteinfo = std::fs::read(self.siteinfo(site)).expect("the record of the site");
        read_site(&siteinfo).expect("a site")
    }

    /// The site record in the directory of the first server of a site.
    ///
    /// # Panics
    /// If the file does not exist.
    #[must_use]
    pub fn siteinfo(&self, site: &str) -> PathBuf {
        self.file(site, "siteinfo.json")
    }

    /// The private key file of the first server of a site.
    ///
    /// # Panics
    /// If the file does not exist.
    #[must_use]
    pub fn key_file(&self, site: &str) -> PathBuf {
        self.file(site, "privkey.bin")
    }

    fn file(&self, site: &str, name: &str) -> PathBuf {
        let path = self.directory.path().join("lab").join(format!("{site}-1")).join(name);
        assert!(path.is_file(), "{}", path.display());
        path
    }
}
