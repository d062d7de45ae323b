//! The settings in force, and those that a reload can change.
//!
//! - A configuration that cannot be read, is invalid, or names a site record that does not open
//!   changes nothing.
//! - Settings that determine sockets, threads and memory keep their values, and the reload names
//!   them: a restart by takeover changes them.
//! - Workers check [`generation`](LiveSettings::generation) during their periodic work, and then
//!   apply the new settings.

use crate::config::Config;
use crate::server::{ServerState, read_site, templates_of};
use crate::site::OwnSite;
use arc_swap::ArcSwap;
use handle_daemon::log::SetLog;
use handle_daemon::publication::ReloadOutcome;
use handle_daemon::readiness;
use handle_daemon::reload::{self, SettingChanges};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Settings that a reload changes. All others need a new process.
const LIVE: [&str; 57] = [
    "site",
    "server_id",
    "log",
    "verify_new_layers",
    "check_records",
    "verify_bytes_per_s",
    "limits.answer_datagrams",
    "limits.fragmented_request_bytes",
    "limits.fragmented_requests",
    "limits.fragmented_requests_per_sender",
    "limits.fragmented_bytes",
    "limits.fragmented_wait_ms",
    "observe.http_connections",
    "observe.http_header_bytes",
    "observe.http_patience_ms",
    "observe.latency_every",
    "observe.sources_every",
    "observe.sources_ipv4_bits",
    "observe.sources_ipv6_bits",
    "observe.sources_shown",
    "observe.stalled_after_ms",
    "query_log.format",
    "query_log.ipv4_bits",
    "query_log.ipv6_bits",
    "query_log.lines_per_second",
    "query_log.sample_every",
    "query_log.whole_addresses",
    "rate_limit.burst_ms",
    "rate_limit.certified_bytes_per_s",
    "rate_limit.dry_run",
    "rate_limit.enabled",
    "rate_limit.equal_bytes_per_s",
    "rate_limit.exempt",
    "rate_limit.ipv4_24_per_s",
    "rate_limit.ipv4_32_per_s",
    "rate_limit.ipv6_128_per_s",
    "rate_limit.ipv6_48_per_s",
    "rate_limit.ipv6_56_per_s",
    "rate_limit.ipv6_64_per_s",
    "rate_limit.long_bytes_per_s",
    "rate_limit.slip",
    "tcp.connections",
    "tcp.connections_per_source",
    "tcp.idle_ms",
    "tcp.input_bytes",
    "tcp.linger_ms",
    "tcp.output_bytes",
    "tcp.read_ms",
    "tcp.request_bytes",
    "tcp.source_prefix_v4",
    "tcp.source_prefix_v6",
    "tcp.write_ms",
    "templates.delimiter",
    "templates.enabled",
    "templates.namespace",
    "templates.namespaces",
    "templates.override_prefixes",
];

/// A configuration in force, with the site record read for it.
#[derive(Debug)]
pub(crate) struct ActiveSettings {
    pub(crate) config: Config,
    pub(crate) site: OwnSite,
}

/// The settings in force.
#[derive(Debug)]
pub(crate) struct LiveSettings {
    current: ArcSwap<ActiveSettings>,
    generation: AtomicU64,
    /// Held while a new configuration is read and applied, and while the published set is reloaded
    /// after it.
    reloading: Mutex<()>,
}

impl LiveSettings {
    pub(crate) fn new(config: Config, site: OwnSite) -> Self {
        Self {
            current: ArcSwap::from_pointee(ActiveSettings { config, site }),
            generation: AtomicU64::new(0),
            reloading: Mutex::new(()),
        }
    }

    pub(crate) fn current(&self) -> Arc<ActiveSettings> {
        self.current.load_full()
    }

    /// A number that changes whenever other settings come into force.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Applies those settings of `new` that can change while serving. Calls must not run
    /// concurrently.
    ///
    /// # Errors
    /// When the configuration is invalid; then nothing has changed.
    fn take(
        &self,
        new: &Config,
        check_site: impl Fn(&OwnSite) -> anyhow::Result<()>,
        set_log: Option<&SetLog>,
    ) -> anyhow::Result<SettingChanges> {
        new.check()?;
        let old = self.current();
        let (config, changes) = reload::merged(&old.config, new, &LIVE)?;
        // The combination with the settings that keep their values must be valid as well.
        config.check()?;
        // Read even if the path is unchanged, because the contents of the file may have changed.
        let site = read_site(&config)?;
        check_site(&site)?;
        if config.log != old.config.log
            && let Some(set_log) = set_log
        {
            set_log(&config.log)?;
        }
        for difference in site.differences().iter().filter(|one| !old.site.differences().contains(one)) {
            tracing::warn!("{difference}");
        }
        self.current.store(Arc::new(ActiveSettings { config, site }));
        self.generation.fetch_add(1, Ordering::Release);
        Ok(changes)
    }
}

/// Reads the configuration again and then the published set. Returns a report of the result.
pub(crate) fn reload(shared: &ServerState) -> Value {
    // Taken before the file is read. Of two concurrent reloads, the later one must not be
    // overwritten by what the earlier one has read, and the service manager must not mistake the
    // end of one for the end of the other.
    let _reloading = shared.settings.reloading.lock().unwrap_or_else(PoisonError::into_inner);
    readiness::reloading(|| reload_all(shared))
}

fn reload_all(shared: &ServerState) -> Value {
    let hooks = &shared.hooks;
    let generation = || shared.live.current().generation();
    let mut said = json!({ "ok": true });
    if let Some(read) = &hooks.read_config {
        // The server key does not change, so a new site record must contain the same key.
        let check_site = |site: &OwnSite| shared.slow.as_ref().map_or(Ok(()), |slow| slow.check_site(site));
        match read().and_then(|config| shared.settings.take(&config, check_site, hooks.set_log.as_ref())) {
            Ok(changes) => {
                let in_force = shared.settings.current();
                shared.live.set_verify_new_layers(in_force.config.verify_new_layers);
                shared.live.set_checks(in_force.config.check_records);
                shared.live.ledger.set_rate(in_force.config.verify_bytes_per_s);
                shared.live.set_templates(templates_of(&in_force.config));
                shared.wake_workers();
                tracing::info!(changed = ?changes.changed, "configuration reloaded");
                said["settings_changed"] = changes.changed.into();
                if !changes.need_restart.is_empty() {
                    let hint = format!(
                        "cannot change while serving: {}; take over instead: hdl control restart",
                        changes.need_restart.join(", ")
                    );
                    tracing::warn!("{hint}");
                    said["settings_not_changed"] = changes.need_restart.into();
                    said["hint"] = hint.into();
                }
            }
            Err(error) => {
                let error = format!("{error:#}; nothing has changed");
                tracing::error!(error, "the configuration is not reloaded");
                return json!({ "ok": false, "error": error, "generation": generation() });
            }
        }
    }
    match shared.live.reload_damaged() {
        Ok(reloaded) => {
            said["changed"] = matches!(reloaded, ReloadOutcome::Changed(_)).into();
        }
        Err(error) => {
            tracing::error!(%error, "cannot open the published set; the old set stays live");
            said["ok"] = false.into();
            said["error"] = error.to_string().into();
        }
    }
    said["generation"] = generation().into();
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> LiveSettings {
        LiveSettings::new(Config::default(), OwnSite::alone())
    }

    #[test]
    fn what_can_change_does_and_the_rest_is_named() {
        let settings = settings();
        let mut new = Config::default();
        new.limits.fragmented_requests = 7;
        new.limits.batch_datagrams = 7;
        new.workers = 3;
        new.tcp.backlog = 7;
        new.templates.delimiter = Some("@".to_owned());
        let changes = settings.take(&new, |_| Ok(()), None).unwrap();
        assert_eq!(changes.changed, ["limits.fragmented_requests", "templates.delimiter"]);
        assert_eq!(changes.need_restart, ["limits.batch_datagrams", "tcp.backlog", "workers"]);
        let config = &settings.current().config;
        assert_eq!(config.limits.fragmented_requests, 7);
        assert_eq!(config.limits.batch_datagrams, Config::default().limits.batch_datagrams);
        assert_eq!(settings.generation(), 1);
        // Settings that were not applied are reported again; applied ones are not.
        let changes = settings.take(&new, |_| Ok(()), None).unwrap();
        assert_eq!(changes.changed, [""; 0]);
        assert_eq!(changes.need_restart, ["limits.batch_datagrams", "tcp.backlog", "workers"]);
    }

    #[test]
    fn settings_that_were_not_there_come_and_go() {
        let settings = settings();
        let new = Config { control: Some("control.sock".into()), server_id: Some(3), ..Config::default() };
        let changes = settings.take(&new, |_| Ok(()), None).unwrap();
        assert_eq!(
            (changes.changed, changes.need_restart),
            (vec!["server_id".into()], vec!["control".into()])
        );
        assert_eq!(settings.current().config.server_id, Some(3));
        assert_eq!(settings.take(&Config::default(), |_| Ok(()), None).unwrap().changed, ["server_id"]);
        assert_eq!(settings.current().config.server_id, None);
    }

    #[test]
    fn what_is_wrong_changes_nothing() {
        let settings = settings();
        let mut wrong = Config::default();
        wrong.limits.fragmented_requests = 7;
        wrong.limits.answer_datagrams = 0;
        assert!(
            settings
                .take(&wrong, |_| Ok(()), None)
                .unwrap_err()
                .to_string()
                .contains("limits.answer_datagrams")
        );
        let mut wrong = Config { site: Some("/nonexistent".into()), ..Config::default() };
        wrong.limits.fragmented_requests = 7;
        assert!(settings.take(&wrong, |_| Ok(()), None).unwrap_err().to_string().contains("/nonexistent"));
        let mut wrong = Config { log: "debug".to_owned(), ..Config::default() };
        wrong.limits.fragmented_requests = 7;
        let refuse: SetLog = Box::new(|_| anyhow::bail!("no such filter"));
        assert!(settings.take(&wrong, |_| Ok(()), Some(&refuse)).is_err());
        assert_eq!(settings.current().config.limits.fragmented_requests, 256);
        assert_eq!(settings.generation(), 0);
    }

    /// A row of the documentation page about settings.
    struct Documented<'t> {
        name: &'t str,
        default: &'t str,
        allowed: &'t str,
        takes_effect: &'t str,
    }

    fn documented() -> Vec<Documented<'static>> {
        let text = include_str!("../../../docs/operations/settings.md");
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let [_, name, default, allowed, takes_effect, what, _] = cells[..] else { panic!("{row}") };
            assert!(!what.is_empty(), "{name} says what it is");
            let (name, default) = (name.trim_matches('`'), default.trim_matches('`'));
            Documented { name, default, allowed, takes_effect }
        })
        .collect()
    }

    /// The configuration with a server key, as JSON.
    fn with_key() -> Value {
        let key = crate::slow::config::ServerKeyConfig { file: "key".into(), ..Default::default() };
        serde_json::to_value(Config { server_key: Some(key), ..Config::default() }).unwrap()
    }

    /// The JSON pointer of a setting, by its name.
    fn pointer(name: &str) -> String {
        format!("/{}", name.replace('.', "/"))
    }

    #[test]
    fn the_page_about_settings_has_each_of_them_with_its_default_and_when_it_takes_effect() {
        fn names(value: &Value, prefix: &str, found: &mut Vec<String>) {
            for (name, value) in value.as_object().unwrap() {
                let name = format!("{prefix}{name}");
                match value {
                    Value::Object(_) => names(value, &format!("{name}."), found),
                    _ => found.push(name),
                }
            }
        }
        let (config, mut settings) = (with_key(), Vec::new());
        names(&config, "", &mut settings);
        let mut on_page: Vec<_> = documented().iter().map(|row| row.name.to_owned()).collect();
        settings.sort();
        on_page.sort();
        assert_eq!(on_page, settings);
        for Documented { name, default, takes_effect, .. } in documented() {
            let value = config.pointer(&pointer(name)).unwrap();
            let has_default = !value.is_null() && name != "server_key.file";
            let shown = if has_default { value.to_string() } else { String::new() };
            assert_eq!(default, shown, "{name}");
            let live = if LIVE.contains(&name) { "reload" } else { "restart" };
            assert_eq!(takes_effect, live, "{name}");
        }
    }

    #[test]
    fn numbers_are_allowed_up_to_the_edges_that_the_page_names_and_no_further() {
        let with = |name: &str, number: u64| {
            let mut config = with_key();
            *config.pointer_mut(&pointer(name)).unwrap() = number.into();
            serde_json::from_value::<Config>(config).unwrap().check()
        };
        let mut edges_count = 0;
        for Documented { name, allowed, .. } in documented() {
            let (least, most) = match allowed.split_once(" to ") {
                Some((least, most)) => (least.parse().ok(), most.parse().ok()),
                None => (allowed.strip_prefix("at least ").and_then(|least| least.parse().ok()), None),
            };
            let least: Option<u64> = least;
            let beyond = [least.and_then(|least| least.checked_sub(1)), most.map(|most: u64| most + 1)];
            for edge in [least, most].into_iter().flatten() {
                with(name, edge).unwrap_or_else(|error| panic!("{name} = {edge}: {error}"));
                edges_count += 1;
            }
            for number in beyond.into_iter().flatten() {
                let error = with(name, number).expect_err(name).to_string();
                assert!(error.contains(&format!("`{name}`")), "{name} = {number}: {error}");
            }
        }
        assert!(edges_count > 100, "{edges_count} edges are named");
    }

    #[test]
    fn every_name_that_is_live_is_a_setting() {
        let mut config = Config { site: Some("x".into()), server_id: Some(1), ..Config::default() };
        (config.templates.namespace, config.templates.delimiter) = (Some("x".into()), Some("x".into()));
        for live in LIVE {
            assert!(reload::has(&config, live).unwrap(), "{live}");
        }
    }
}
