//! The directory of a deployed client, `~/.handle`, which is only read.

use super::read;
use anyhow::{Context as _, bail, ensure};
use handle_client::exchange::AnswerTimeouts;
use handle_client::plan::Preferences;
use handle_formats::dct::DctSettings;
use handle_proto::data::site::InterfaceProtocol;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The directory; absent if none is named and none exists.
#[derive(Debug)]
pub(super) struct ClientDirectory(Option<PathBuf>);

impl ClientDirectory {
    /// Finds the named directory, or that of the user if it is `wanted`.
    pub(super) fn find(named: Option<&Path>, wanted: bool) -> anyhow::Result<Self> {
        if let Some(named) = named {
            ensure!(named.is_dir(), "{} is not a directory", named.display());
            return Ok(Self(Some(named.to_owned())));
        }
        // An empty HOME counts as unset; it would mean the working directory.
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        let own = home.map(|home| PathBuf::from(home).join(".handle"));
        Ok(Self(own.filter(|path| wanted && path.is_dir())))
    }

    /// The first of these files that exists.
    pub(super) fn file(&self, names: &[&str]) -> Option<PathBuf> {
        let directory = self.0.as_ref()?;
        names.iter().map(|name| directory.join(name)).find(|path| path.is_file())
    }

    /// The settings of `config.dct`; empty if it does not exist.
    pub(super) fn settings(&self) -> anyhow::Result<DctSettings> {
        let Some(path) = self.file(&["config.dct"]) else { return Ok(DctSettings::default()) };
        DctSettings::parse(&text(&path)?).with_context(|| path.display().to_string())
    }

    /// Applies the settings and `local_addresses` that concern which servers are asked and for how
    /// long. Ignored are invalid values, all other settings, and `trace_resolution` and
    /// `auto_update_root_info`, which --trace and `hdl root --refresh` replace.
    pub(super) fn apply(
        &self,
        settings: &DctSettings,
        preferences: &mut Preferences,
        timeouts: &mut AnswerTimeouts,
    ) -> anyhow::Result<()> {
        apply(settings, preferences, timeouts);
        if let Some(path) = self.file(&["local_addresses"]) {
            let text = text(&path)?;
            preferences.addresses = addresses(&text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

fn apply(settings: &DctSettings, preferences: &mut Preferences, timeouts: &mut AnswerTimeouts) {
    let timeout = settings.text("tcp_timeout").and_then(|timeout| timeout.trim().parse().ok());
    if let Some(ms) = timeout.filter(|&ms| ms > 0) {
        timeouts.tcp_ms = ms;
    }
    if settings.truth("no_udp_resolution") == Some(true) {
        preferences.protocols.retain(|&protocol| protocol != InterfaceProtocol::UDP);
    }
    if settings.truth("ipv6_fast_fallback") == Some(false) {
        preferences.fallback_ms = None;
    }
    let keywords = settings.texts("site_filter_keywords");
    preferences.keywords =
        keywords.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect();
}

/// Parses `local_addresses`: each line has the address in site records and the address at which the
/// server is reached.
fn addresses(text: &str) -> anyhow::Result<HashMap<IpAddr, IpAddr>> {
    let mut found = HashMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let pair: Vec<Option<IpAddr>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        let [Some(record_ip), Some(reached)] = pair.as_slice() else {
            bail!("line {}: expected two addresses separated by a space", at + 1)
        };
        found.insert(*record_ip, *reached);
    }
    Ok(found)
}

/// Reads a file as text.
pub(super) fn text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read(path)?).with_context(|| format!("{} is not UTF-8 text", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn applied(config: &str) -> (Preferences, AnswerTimeouts) {
        let (mut preferences, mut timeouts) = (Preferences::default(), AnswerTimeouts::default());
        apply(&DctSettings::parse(config).unwrap(), &mut preferences, &mut timeouts);
        (preferences, timeouts)
    }

    #[test]
    fn the_settings_of_a_client_say_whom_to_ask_and_how_long_to_wait() {
        let (preferences, timeouts) = applied(
            r#"{ "tcp_timeout" = "5000" "no_udp_resolution" = "yes" "ipv6_fast_fallback" = "no"
                 "site_filter_keywords" = ( "europe" "fast near" ) "server_type" = "server" }"#,
        );
        assert_eq!((timeouts.tcp_ms, preferences.fallback_ms), (5000, None));
        assert_eq!(preferences.protocols[0], InterfaceProtocol::TCP);
        assert!(!preferences.protocols.contains(&InterfaceProtocol::UDP));
        assert_eq!(preferences.keywords, ["europe", "fast", "near"]);
        let (preferences, timeouts) =
            applied(r#"{ "no_udp_resolution" = "no" "ipv6_fast_fallback" = "yes" }"#);
        assert_eq!(timeouts, AnswerTimeouts::default());
        assert_eq!(preferences.protocols, Preferences::default().protocols);
        assert_eq!(preferences.fallback_ms, Preferences::default().fallback_ms);
    }

    #[test]
    fn settings_that_mean_nothing_are_passed_over() {
        let (preferences, timeouts) = applied(
            "{ tcp_timeout = soon, no_udp_resolution = perhaps, ipv6_fast_fallback = (no), site_filter_keywords = {} }",
        );
        assert_eq!(timeouts, AnswerTimeouts::default());
        assert_eq!(preferences.protocols, Preferences::default().protocols);
        assert_eq!(preferences.fallback_ms, Preferences::default().fallback_ms);
        assert!(preferences.keywords.is_empty());
        for timeout in ["0", "-1", "99999999999", "( 5 )"] {
            assert_eq!(
                applied(&format!("{{ tcp_timeout = {timeout} }}")).1,
                AnswerTimeouts::default(),
                "{timeout}"
            );
        }
    }

    #[test]
    fn addresses_stand_in_pairs() {
        let found = addresses("192.0.2.1 10.0.0.1\n\n 2001:db8::1\t::1 \n").unwrap();
        assert_eq!(found[&IpAddr::from([192, 0, 2, 1])], IpAddr::from([10, 0, 0, 1]));
        assert_eq!(found.len(), 2);
        for (text, line) in [("192.0.2.1", 1), ("\n192.0.2.1 x", 2), ("192.0.2.1 10.0.0.1 10.0.0.2", 1)] {
            let error = addresses(text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}")), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_directory_has_what_is_in_it_and_one_that_is_named_is_there() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        let directory = ClientDirectory::find(Some(path), false).unwrap();
        assert_eq!(directory.settings().unwrap(), DctSettings::default());
        assert_eq!(directory.file(&["bootstrap_handles", "root_info"]), None);
        fs::write(path.join("root_info"), "x").unwrap();
        assert_eq!(directory.file(&["bootstrap_handles", "root_info"]), Some(path.join("root_info")));
        fs::write(path.join("config.dct"), "{ \"tcp_timeout\" = \"7\" }").unwrap();
        fs::write(path.join("local_addresses"), "192.0.2.1 127.0.0.1").unwrap();
        let (mut preferences, mut timeouts) = (Preferences::default(), AnswerTimeouts::default());
        directory.apply(&directory.settings().unwrap(), &mut preferences, &mut timeouts).unwrap();
        assert_eq!((timeouts.tcp_ms, preferences.addresses.len()), (7, 1));
        fs::write(path.join("config.dct"), "{").unwrap();
        assert!(format!("{:#}", directory.settings().unwrap_err()).contains("config.dct"));
        let error = ClientDirectory::find(Some(&path.join("none")), true).map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("none"), "{error:#}");
    }
}
