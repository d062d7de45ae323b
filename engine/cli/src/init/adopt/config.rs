//! The configuration of the three processes, from settings with dotted names.

use crate::init::accounts::{HANDLED_KEY_FILE, ProcessAccounts, SERVER_KEY_FILE};
use crate::init::certificate::{CERTIFICATE_FILE, KEY_FILE};
use crate::init::config::reached_at;
use serde_json::{Value as Json, json};
use std::fmt::Write as _;
use std::net::SocketAddr;

/// Settings of the processes in addition to those that every service has.
#[derive(Debug, Default)]
pub(super) struct AdoptedSettings {
    /// Addresses of handled.
    pub(super) listen: Vec<SocketAddr>,
    /// Addresses of handle-admin.
    pub(super) admin_listen: Vec<SocketAddr>,
    /// Addresses of handle-gateway.
    pub(super) gateway_listen: Vec<SocketAddr>,
    /// Settings of both processes, and of each.
    pub(super) shared: Vec<(&'static str, Json)>,
    pub(super) handled: Vec<(&'static str, Json)>,
    pub(super) handle_admin: Vec<(&'static str, Json)>,
    pub(super) handle_gateway: Vec<(&'static str, Json)>,
    pub(super) accounts: ProcessAccounts,
}

impl AdoptedSettings {
    /// Serves metrics at these addresses.
    pub(super) fn observe(&mut self, address: impl Fn(&str) -> SocketAddr) {
        let of = |process: &str| ("observe.http", json!(address(process).to_string()));
        self.handled.push(of("handled"));
        self.handle_admin.push(of("handle-admin"));
        self.handle_gateway.push(of("handle-gateway"));
    }

    pub(super) fn service(&self) -> String {
        let mut usual = vec![("site", json!("siteinfo.json"))];
        if self.accounts == ProcessAccounts::Shared {
            usual.push(("server_key.file", json!(SERVER_KEY_FILE)));
        }
        usual.push(("sessions.socket", json!(self.accounts.sessions())));
        let comment = "# Settings that handled and handle-admin share. Paths are relative to their configuration files.";
        format!("{comment}\n{}", toml(usual.iter().chain(&self.shared)))
    }

    pub(super) fn handled(&self) -> String {
        let mut usual = vec![
            ("shared", json!("service.toml")),
            ("snapshot", json!("snapshot")),
            ("listen", addresses(&self.listen)),
            ("control", json!(self.accounts.control("handled"))),
            ("forward.socket", json!(self.accounts.local())),
        ];
        if self.accounts == ProcessAccounts::Separate {
            usual.push(("server_key.file", json!(HANDLED_KEY_FILE)));
        }
        let comment = "# handled: answers queries from the set that handle-admin publishes. Paths are relative to this file.";
        format!("{comment}\n{}", toml(usual.iter().chain(&self.handled)))
    }

    pub(super) fn handle_admin(&self) -> String {
        let mut usual = vec![
            ("shared", json!("service.toml")),
            ("listen", addresses(&self.admin_listen)),
            ("control", json!(self.accounts.control("handle-admin"))),
            ("store.file", json!("store.redb")),
            ("publish.directory", json!("snapshot")),
            ("local.socket", json!(self.accounts.local())),
        ];
        if let Some(users) = self.accounts.local_users() {
            usual.extend(users.map(|(list, user)| (list, json!([user]))));
            usual.push(("server_key.file", json!(SERVER_KEY_FILE)));
        }
        let comment = "# handle-admin: keeps the records and publishes them to handled. Paths are relative to this file.";
        format!("{comment}\n{}", toml(usual.iter().chain(&self.handle_admin)))
    }
}

impl AdoptedSettings {
    pub(super) fn handle_gateway(&self) -> String {
        let mut usual = vec![
            ("snapshot", json!("snapshot")),
            ("site", json!("siteinfo.json")),
            ("listen", addresses(&self.gateway_listen)),
            ("control", json!(self.accounts.control("handle-gateway"))),
        ];
        if let Some(address) = self.admin_listen.first() {
            usual.push(("admin.address", json!(reached_at(*address).to_string())));
            usual.push(("admin.socket", json!(self.accounts.local())));
        }
        usual.push(("tls.certificate", json!(CERTIFICATE_FILE)));
        usual.push(("tls.key", json!(KEY_FILE)));
        let comment =
            "# handle-gateway: answers over HTTP from the same set. Paths are relative to this file.";
        format!("{comment}\n{}", toml(usual.iter().chain(&self.handle_gateway)))
    }
}

fn addresses(addresses: &[SocketAddr]) -> Json {
    addresses.iter().map(SocketAddr::to_string).collect()
}

/// Settings with dotted names as TOML: first those without a table, then table by table in the
/// order in which they appear. For strings, numbers, booleans and lists of them, JSON is valid
/// TOML.
fn toml<'a>(settings: impl Iterator<Item = &'a (&'static str, Json)> + Clone) -> String {
    let split = |name: &'static str| name.rsplit_once('.').unwrap_or(("", name));
    let mut tables: Vec<&str> = vec![""];
    for (name, _) in settings.clone() {
        let (table, _) = split(name);
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    let mut text = String::new();
    for table in tables {
        if !table.is_empty() {
            let _ = writeln!(text, "\n[{table}]");
        }
        for (name, value) in settings.clone() {
            let (its_table, key) = split(name);
            if its_table == table {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_table_stand_together() {
        let settings =
            [("a.b", json!("x")), ("top", json!(["y", "\"z\""])), ("c.d", json!(1)), ("a.e", json!(true))];
        let expected = "top = [\"y\",\"\\\"z\\\"\"]\n\n[a]\nb = \"x\"\ne = true\n\n[c]\nd = 1\n";
        assert_eq!(toml(settings.iter()), expected);
    }
}
