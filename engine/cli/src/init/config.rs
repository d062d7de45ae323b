//! The configuration of the three processes. Settings that it omits have their default (see
//! `--help`).

use super::accounts::{HANDLED_KEY_FILE, ProcessAccounts, SERVER_KEY_FILE};
use super::certificate::{CERTIFICATE_FILE, KEY_FILE};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The customary port for handles over HTTP.
pub(super) const GATEWAY_PORT: u16 = 8000;

/// The processes, in the order of their ports for metrics.
pub(super) const METRICS: [&str; 3] = ["handled", "handle-admin", "handle-gateway"];

/// The address of the metrics of a process, from the first port.
pub(super) fn metrics_address(process: &str, first: u16) -> SocketAddr {
    let at = METRICS.iter().zip(0..).find(|(name, _)| **name == process).map_or(0, |(_, at)| at);
    SocketAddr::from((Ipv4Addr::LOCALHOST, first.saturating_add(at)))
}

/// Facts that several configurations need.
pub(super) struct InitSettings {
    pub(super) bind: IpAddr,
    pub(super) port: u16,
    pub(super) admin_port: u16,
    pub(super) gateway_port: u16,
    /// The first of three ports on loopback for metrics, in the order of `METRICS`.
    pub(super) metrics_port: Option<u16>,
    /// Whether `handle-admin` keeps its audit log in the directory.
    pub(super) writes_audit_log: bool,
    /// The administrator with all rights, as `index:handle`.
    pub(super) administrator: String,
    pub(super) accounts: ProcessAccounts,
}

impl InitSettings {
    /// Whether connections for queries and for administration use one port, that of `handle-admin`.
    fn has_one_port(&self) -> bool {
        self.port == self.admin_port
    }

    /// The section for metrics of a process, if it has any.
    fn observe(&self, process: &str) -> String {
        self.metrics_port.map_or(String::new(), |first| {
            let http = quoted(&metrics_address(process, first).to_string());
            format!("\n# Metrics and health, for this host only.\n[observe]\nhttp = {http}\n")
        })
    }

    /// The settings that both processes read.
    pub(super) fn service(&self) -> String {
        let (administrator, sessions) = (quoted(&self.administrator), quoted(self.accounts.sessions()));
        let key = match self.accounts {
            ProcessAccounts::Shared => server_key(SERVER_KEY_FILE),
            ProcessAccounts::Separate => String::new(),
        };
        format!(
            "# Settings that handled and handle-admin share. Paths are relative to their configuration files.\n\
             site = \"siteinfo.json\"\n\
             {key}\
             \n\
             # Clients set their sessions up with handled, and administer in them with handle-admin.\n\
             [sessions]\n\
             socket = {sessions}\n\
             \n\
             [administrators]\n\
             server = [{administrator}]\n"
        )
    }

    /// The key of a process that signs and has an account of its own.
    fn own_key(&self, file: &str) -> String {
        match self.accounts {
            ProcessAccounts::Shared => String::new(),
            ProcessAccounts::Separate => server_key(file),
        }
    }

    pub(super) fn handled(&self) -> String {
        let listen = quoted(&SocketAddr::new(self.bind, self.port).to_string());
        let tcp = match self.has_one_port() {
            true => {
                "\n# handle-admin accepts the connections to this port, and answers queries too.\n[tcp]\nenabled = false\n"
            }
            false => "",
        };
        format!(
            "# handled: answers queries from the set that handle-admin publishes. Paths are relative to this file.\n\
             shared = \"service.toml\"\n\
             snapshot = \"snapshot\"\n\
             listen = [{listen}]\n\
             control = {control}\n\
             {tcp}{key}\
             \n\
             # handle-admin answers listings, and requests that need another service.\n\
             [forward]\n\
             socket = {local}\n\
             {observe}",
            control = quoted(&self.accounts.control("handled")),
            local = quoted(self.accounts.local()),
            key = self.own_key(HANDLED_KEY_FILE),
            observe = self.observe("handled")
        )
    }

    pub(super) fn handle_admin(&self) -> String {
        let listen = quoted(&SocketAddr::new(self.bind, self.admin_port).to_string());
        let audit = if self.writes_audit_log { "audit = \"log/audit.log\"\n" } else { "" };
        let users = self.accounts.local_users().into_iter().flatten();
        let users: String = users
            .map(|(list, user)| format!("{} = [{}]\n", list.trim_start_matches("local."), quoted(user)))
            .collect();
        format!(
            "# handle-admin: keeps the records and publishes them to handled. Paths are relative to this file.\n\
             shared = \"service.toml\"\n\
             listen = [{listen}]\n\
             control = {control}\n\
             {audit}{key}\
             \n\
             [store]\n\
             file = \"store.redb\"\n\
             \n\
             [publish]\n\
             directory = \"snapshot\"\n\
             \n\
             # handled forwards requests here that it does not answer itself; handle-gateway verifies callers, sends\n\
             # batches of changes, and relays streams for mirrors.\n\
             [local]\n\
             socket = {local}\n\
             {users}{observe}",
            control = quoted(&self.accounts.control("handle-admin")),
            local = quoted(self.accounts.local()),
            key = self.own_key(SERVER_KEY_FILE),
            observe = self.observe("handle-admin")
        )
    }
}

impl InitSettings {
    pub(super) fn handle_gateway(&self) -> String {
        let listen = quoted(&SocketAddr::new(self.bind, self.gateway_port).to_string());
        let admin = quoted(&reached_at(SocketAddr::new(self.bind, self.admin_port)).to_string());
        let (certificate, key) = (quoted(CERTIFICATE_FILE), quoted(KEY_FILE));
        format!(
            "# handle-gateway: answers over HTTP from the same set. Paths are relative to this file.\n\
             snapshot = \"snapshot\"\n\
             site = \"siteinfo.json\"\n\
             listen = [{listen}]\n\
             control = {control}\n\
             \n\
             # handle-admin, which makes the changes.\n\
             [admin]\n\
             address = {admin}\n\
             socket = {local}\n\
             \n\
             # Changes and the pages under /admin/ need TLS, which has the same port as plain HTTP. This certificate\n\
             # is self-signed: replace both files, or both lines by `acme.domains`. docs/gateway.md explains it.\n\
             [tls]\n\
             certificate = {certificate}\n\
             key = {key}\n\
             {observe}",
            control = quoted(&self.accounts.control("handle-gateway")),
            local = quoted(self.accounts.local()),
            observe = self.observe("handle-gateway")
        )
    }
}

/// Where a process of this host reaches one that listens at `address`.
pub(super) const fn reached_at(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The section for the key that signs answers.
fn server_key(file: &str) -> String {
    format!("\n[server_key]\nfile = {}\n", quoted(file))
}

/// Formats a TOML string. For the strings used here, JSON is valid TOML.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}
