//! Translates the settings of a reference server, and lists those without an equivalent here.

use handle_formats::dct::DctSettings;
use serde_json::{Value as Json, json};
use std::net::{IpAddr, SocketAddr};

/// Settings for both processes, and remarks about them.
#[derive(Debug, Default)]
pub(super) struct TranslatedSettings {
    pub(super) shared: Vec<(&'static str, Json)>,
    pub(super) handled: Vec<(&'static str, Json)>,
    pub(super) handle_admin: Vec<(&'static str, Json)>,
    pub(super) case_sensitive: bool,
    /// Homed prefixes.
    pub(super) homed: Vec<String>,
    /// Administrators whose records may be at other services.
    pub(super) administrators: Vec<String>,
    /// Keys without an equivalent here, with the reason or what to do instead.
    pub(super) left_out: Vec<(String, &'static str)>,
}

/// How a setting is translated.
#[derive(Clone, Copy)]
enum SettingForm {
    /// Identities, for both processes.
    Identities(&'static str),
    /// Yes or no.
    Truth(SettingProcess, &'static str),
    /// Text, for handled.
    Text(&'static str),
    /// Milliseconds that become seconds, for both processes.
    Seconds(&'static str, i64, i64),
    /// Milliseconds, under these names.
    Milliseconds(&'static str, &'static str),
    /// Days, for handle-admin.
    Days(&'static str),
    /// Translated elsewhere in this module.
    Taken,
    /// Has no equivalent here.
    LeftOut(&'static str),
}

/// Which process reads a setting.
#[derive(Clone, Copy)]
enum SettingProcess {
    Both,
    Handled,
    HandleAdmin,
}

/// The keys of `server_config`.
const SERVER: &[(&str, SettingForm)] = &[
    ("server_admins", SettingForm::Identities("administrators.server")),
    ("replication_admins", SettingForm::Identities("administrators.replication")),
    ("status_handle_admins", SettingForm::Identities("administrators.status")),
    ("home_only_admins", SettingForm::Identities("administrators.home_only")),
    ("backup_admins", SettingForm::Identities("administrators.backup")),
    ("server_admin_full_access", SettingForm::Taken),
    ("allow_na_admins", SettingForm::Truth(SettingProcess::Both, "administrators.prefix_administrators")),
    ("allow_list_hdls", SettingForm::Truth(SettingProcess::HandleAdmin, "list_handles")),
    ("require_sessions", SettingForm::Truth(SettingProcess::HandleAdmin, "require_sessions")),
    ("template_ns_override", SettingForm::Truth(SettingProcess::Handled, "templates.override_prefixes")),
    ("namespace", SettingForm::Text("templates.namespace")),
    ("template_delimiter", SettingForm::Text("templates.delimiter")),
    ("max_session_time", SettingForm::Seconds("sessions.timeout_s", 1, 86_400)),
    ("max_auth_time", SettingForm::Milliseconds("slow.challenge_ms", "limits.challenge_ms")),
    ("txnlog_num_days_to_keep", SettingForm::Days("store.log_days")),
    ("case_sensitive", SettingForm::Taken),
    ("auto_homed_prefixes", SettingForm::Taken),
    ("this_server_id", SettingForm::Taken),
    (
        "allow_recursion",
        SettingForm::LeftOut("handled does not resolve handles of other services for clients"),
    ),
    ("encryption_alg", SettingForm::LeftOut("sessions use AES; set sessions.ciphers to allow others")),
    ("storage_type", SettingForm::LeftOut("export and import the records: see \"next\"")),
    (
        "sql_settings",
        SettingForm::LeftOut(
            "export or dump the records and import them, or serve them where they are with a source of kind = \"tables\" (docs/sources.md): see \"next\"",
        ),
    ),
    ("enable_monitor_daemon", SettingForm::LeftOut("observe.http serves metrics")),
    ("enable_txn_queue", SettingForm::LeftOut("the transaction log is always kept")),
    ("http_config", SettingForm::LeftOut("docs/gateway.md has the settings of handle-gateway")),
];

/// The keys outside `server_config`.
const OUTER: &[(&str, SettingForm)] = &[
    ("server_config", SettingForm::Taken),
    ("server_type", SettingForm::Taken),
    ("interfaces", SettingForm::Taken),
    (
        "no_udp_resolution",
        SettingForm::LeftOut("datagrams are always answered; the site record says whether clients use them"),
    ),
    ("log_save_config", SettingForm::LeftOut("logrotate rotates the logs")),
    ("hdl_http_config", SettingForm::Taken),
    ("hdl_http4_config", SettingForm::Taken),
    ("hdl_http6_config", SettingForm::Taken),
];

/// Translates both levels of a `config.dct`.
pub(super) fn translate(config: &DctSettings, server: &DctSettings) -> TranslatedSettings {
    let mut found = TranslatedSettings {
        case_sensitive: server.truth("case_sensitive").unwrap_or(false),
        homed: server.texts("auto_homed_prefixes").into_iter().map(str::to_owned).collect(),
        ..TranslatedSettings::default()
    };
    // The reference server treats a missing setting as no.
    let is_full = json!(server.truth("server_admin_full_access").unwrap_or(false));
    found.shared.push(("administrators.server_full_access", is_full));
    for key in server.keys() {
        found.take(key, server, SERVER);
    }
    for key in config.keys().filter(|key| !is_interface(key)) {
        found.take(key, config, OUTER);
    }
    if config.truth("no_udp_resolution") == Some(true) {
        let why = "datagrams are always answered; the site record keeps clients from sending any";
        found.left_out.push(("no_udp_resolution".to_owned(), why));
    }
    if interfaces(config).any(|interface| interface.truth("log_accesses") == Some(true)) {
        found.handled.push(("query_log.path", json!("log/access.log")));
        found.handle_admin.push(("audit", json!("log/audit.log")));
    }
    found
}

impl TranslatedSettings {
    fn take(&mut self, key: &str, settings: &DctSettings, table: &[(&str, SettingForm)]) {
        let form = table.iter().find(|(name, _)| *name == key).map(|(_, form)| *form);
        let number = || settings.text(key).and_then(|text| text.trim().parse::<i64>().ok());
        match form {
            Some(SettingForm::Taken) => {}
            Some(SettingForm::LeftOut(why)) => self.left_out.push((key.to_owned(), why)),
            None => self.left_out.push((key.to_owned(), "no equivalent")),
            Some(SettingForm::Identities(name)) => {
                let identities = settings.texts(key);
                for identity in identities.iter().copied().map(str::to_owned) {
                    if !self.administrators.contains(&identity) {
                        self.administrators.push(identity);
                    }
                }
                self.shared.push((name, json!(identities)));
            }
            Some(SettingForm::Truth(process, name)) => match settings.truth(key) {
                Some(truth) => self.settings_of(process).push((name, json!(truth))),
                None => self.left_out.push((key.to_owned(), "invalid value: expected yes or no")),
            },
            Some(SettingForm::Text(name)) => match settings.text(key) {
                Some(text) => self.handled.push((name, json!(text))),
                None => self.left_out.push((key.to_owned(), "invalid value: expected text")),
            },
            Some(SettingForm::Seconds(name, from, to)) => match number() {
                Some(ms) => self.shared.push((name, json!((ms / 1000).clamp(from, to)))),
                None => self.left_out.push((key.to_owned(), "invalid value: expected a number")),
            },
            Some(SettingForm::Milliseconds(handled, admin)) => match number() {
                Some(ms) => {
                    let ms = json!(ms.clamp(1, 3_600_000));
                    self.handled.push((handled, ms.clone()));
                    self.handle_admin.push((admin, ms));
                }
                None => self.left_out.push((key.to_owned(), "invalid value: expected a number")),
            },
            Some(SettingForm::Days(name)) => match number() {
                Some(days) => self.handle_admin.push((name, json!(days.clamp(0, 36_500)))),
                None => self.left_out.push((key.to_owned(), "invalid value: expected a number")),
            },
        }
    }
}

impl TranslatedSettings {
    const fn settings_of(&mut self, process: SettingProcess) -> &mut Vec<(&'static str, Json)> {
        match process {
            SettingProcess::Both => &mut self.shared,
            SettingProcess::Handled => &mut self.handled,
            SettingProcess::HandleAdmin => &mut self.handle_admin,
        }
    }
}

fn is_interface(key: &str) -> bool {
    ["hdl_udp", "hdl_tcp"].iter().any(|name| key.starts_with(name)) && key.ends_with("_config")
}

/// The settings of the interfaces for the handle protocol that are in use.
fn interfaces(config: &DctSettings) -> impl Iterator<Item = &DctSettings> {
    interfaces_of(config, &["hdl_udp", "hdl_tcp"])
}

/// The settings of the interfaces that are in use and have names with one of these beginnings.
fn interfaces_of<'a>(
    config: &'a DctSettings,
    beginnings: &[&str],
) -> impl Iterator<Item = &'a DctSettings> + use<'a> {
    let is_wanted = |name: &&str| beginnings.iter().any(|beginning| name.starts_with(beginning));
    let names = config.texts("interfaces").into_iter().filter(is_wanted).collect::<Vec<_>>();
    names.into_iter().filter_map(|name| config.settings_of(&format!("{name}_config")))
}

/// The addresses on which the reference server listens over TCP and UDP, each once.
pub(super) fn listened_on(config: &DctSettings, fallback: u16) -> Vec<SocketAddr> {
    addresses_of(interfaces(config), fallback)
}

/// The same over HTTP.
pub(super) fn http_listened_on(config: &DctSettings, fallback: u16) -> Vec<SocketAddr> {
    addresses_of(interfaces_of(config, &["hdl_http"]), fallback)
}

fn addresses_of<'a>(interfaces: impl Iterator<Item = &'a DctSettings>, fallback: u16) -> Vec<SocketAddr> {
    let mut addresses = vec![];
    for interface in interfaces {
        let ip = interface.text("bind_address").and_then(|text| text.trim().parse::<IpAddr>().ok());
        let port = interface.text("bind_port").and_then(|text| text.trim().parse().ok()).unwrap_or(fallback);
        let address = SocketAddr::new(ip.unwrap_or(IpAddr::from([0, 0, 0, 0])), port);
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str) -> TranslatedSettings {
        let config = DctSettings::parse(text).unwrap();
        let server = config.settings_of("server_config").unwrap().clone();
        translate(&config, &server)
    }

    #[test]
    fn every_key_goes_somewhere_or_is_named() {
        let found = translated(
            r#"{ "interfaces" = ( "hdl_udp" "hdl_http" ) "hdl_udp_config" = { "log_accesses" = "yes" }
                 "hdl_http_config" = { } "strange" = "x"
                 "server_config" = {
                   "server_admins" = ( "300:0.NA/10.1045" ) "server_admin_full_access" = "yes"
                   "case_sensitive" = "yes" "auto_homed_prefixes" = ( "0.NA/10.1045" )
                   "max_session_time" = "99999999999" "max_auth_time" = "5000" "allow_list_hdls" = "no"
                   "allow_na_admins" = "perhaps" "template_delimiter" = "@" "other" = "y" } }"#,
        );
        let value = |settings: &[(&str, Json)], name| {
            settings.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone()).unwrap_or_default()
        };
        assert!(found.case_sensitive && found.homed == ["0.NA/10.1045"]);
        assert_eq!(found.administrators, ["300:0.NA/10.1045"]);
        for (settings, name, expected) in [
            (&found.shared, "administrators.server", json!(["300:0.NA/10.1045"])),
            (&found.shared, "administrators.server_full_access", json!(true)),
            (&found.shared, "administrators.prefix_administrators", Json::Null),
            (&found.shared, "sessions.timeout_s", json!(86_400)),
            (&found.handled, "slow.challenge_ms", json!(5000)),
            (&found.handled, "templates.delimiter", json!("@")),
            (&found.handled, "query_log.path", json!("log/access.log")),
            (&found.handle_admin, "limits.challenge_ms", json!(5000)),
            (&found.handle_admin, "list_handles", json!(false)),
        ] {
            assert_eq!(value(settings, name), expected, "{name}");
        }
        let named: Vec<&str> = found.left_out.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(named, ["allow_na_admins", "other", "strange"]);
    }

    #[test]
    fn addresses_are_those_of_the_interfaces_in_use() {
        let config = DctSettings::parse(
            r#"{ "interfaces" = ( "hdl_udp" "hdl_tcp" "hdl_tcp6" "hdl_http" )
                 "hdl_udp_config" = { "bind_address" = "192.0.2.1" "bind_port" = "2641" }
                 "hdl_tcp_config" = { "bind_address" = "192.0.2.1" "bind_port" = "2641" }
                 "hdl_tcp6_config" = { "bind_address" = "2001:db8::1" }
                 "hdl_tcp4_config" = { "bind_address" = "192.0.2.9" }
                 "hdl_http_config" = { "bind_address" = "192.0.2.1" "bind_port" = "8080" } }"#,
        )
        .unwrap();
        let expected = ["192.0.2.1:2641", "[2001:db8::1]:2642"].map(|text| text.parse().unwrap());
        assert_eq!(listened_on(&config, 2642), expected);
        assert_eq!(http_listened_on(&config, 8000), ["192.0.2.1:8080".parse().unwrap()]);
    }
}
