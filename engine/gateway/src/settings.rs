//! The settings in force, and which settings of a new configuration can take effect while serving.
//!
//! A configuration that is unreadable or invalid changes nothing. Ports, threads, files and caches
//! stay as they were opened; changed settings that affect them are named, and take effect after a
//! restart.

use crate::config::Config;
use crate::server::GatewayState;
use crate::tls::TlsIdentity;
use arc_swap::{ArcSwap, Guard};
use handle_auth::source::SourceList;
use handle_daemon::log::SetLog;
use handle_daemon::program::ReadConfig;
use handle_daemon::publication::{PublishedDirectory as _, ReloadOutcome};
use handle_daemon::readiness;
use handle_daemon::settings::SettingSection as _;
use handle_daemon::settings::reload::{SettingChanges, merged, report_failed_reload};
use handle_daemon::takeover::SuccessorProgram;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Functions that only the program can provide.
#[derive(Default)]
pub struct GatewayHooks {
    /// The command line of this program, for a restart by takeover.
    pub program: Option<SuccessorProgram>,
    /// Reads the configuration for a reload; without it only the published set is reloaded.
    pub read_config: Option<ReadConfig<Config>>,
    /// Changes the log settings at a reload.
    pub set_log: Option<SetLog>,
}

impl fmt::Debug for GatewayHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// The lists of networks in the settings, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkLists {
    /// Trusted proxies.
    pub trusted: SourceList,
    /// Sources whose requests are not limited.
    pub exempt: SourceList,
}

impl NetworkLists {
    fn of(config: &Config) -> Self {
        // A configuration is checked before it gets here.
        let parse = |texts: &[String]| SourceList::parse(texts).unwrap_or_default();
        Self { trusted: parse(&config.proxies.trusted), exempt: parse(&config.request_rate.exempt) }
    }
}

/// The settings in force.
#[derive(Debug)]
pub struct GatewaySettings {
    current: ArcSwap<Config>,
    networks: ArcSwap<NetworkLists>,
    hooks: GatewayHooks,
    /// Held while a new configuration is read and applied.
    taking: Mutex<()>,
}

impl GatewaySettings {
    /// Starts with the configuration of the start.
    #[must_use]
    pub fn new(config: Config, hooks: GatewayHooks) -> Self {
        let networks = ArcSwap::from_pointee(NetworkLists::of(&config));
        Self { current: ArcSwap::from_pointee(config), networks, hooks, taking: Mutex::new(()) }
    }

    /// The lists of networks, for a moment.
    #[must_use]
    pub fn networks(&self) -> Guard<Arc<NetworkLists>> {
        self.networks.load()
    }

    /// The configuration, for a moment.
    #[must_use]
    pub fn current(&self) -> Guard<Arc<Config>> {
        self.current.load()
    }

    /// What the program provides.
    #[must_use]
    pub const fn hooks(&self) -> &GatewayHooks {
        &self.hooks
    }

    /// The configuration, for as long as a request or connection takes.
    #[must_use]
    pub fn current_shared(&self) -> Arc<Config> {
        self.current.load_full()
    }
}

/// Reads the configuration again and then the published set, and reports the result.
pub fn reload(state: &GatewayState) -> Value {
    // Locked before the file is read: of two reloads at once, the later one must not be overtaken
    // by what the other has read.
    let _taking = state.settings.taking.lock().unwrap_or_else(PoisonError::into_inner);
    readiness::reloading(|| reload_all(state))
}

fn reload_all(state: &GatewayState) -> Value {
    let mut report = json!({ "ok": true });
    state.request_log.reopen();
    if let Some(read) = &state.settings.hooks.read_config {
        match read().and_then(|new| apply(state, &new)) {
            Ok((changes, errors)) => {
                if !errors.is_empty() {
                    let error = errors.join("; ");
                    tracing::error!(
                        error,
                        "a file cannot be read again; what was read before stays in force"
                    );
                    report["ok"] = false.into();
                    report["error"] = error.into();
                }
                changes.report(&mut report, "take over instead: hdl control restart");
            }
            Err(error) => return report_failed_reload(&error),
        }
    }
    if let Some(set) = &state.set {
        match set.reload() {
            Ok(reloaded) => report["changed"] = matches!(reloaded, ReloadOutcome::Changed(_)).into(),
            Err(error) => {
                tracing::error!(%error, "cannot open the published set; the old set stays live");
                report["ok"] = false.into();
                report["error"] = error.to_string().into();
            }
        }
        report["generation"] = set.current().generation().into();
    }
    report
}

/// Applies the settings that can change while serving.
///
/// Files that could not be read again are returned as errors beside the changes.
fn apply(state: &GatewayState, new: &Config) -> anyhow::Result<(SettingChanges, Vec<String>)> {
    new.check()?;
    let settings = &state.settings;
    let old = settings.current_shared();
    let (config, changes) = merged(&*old, new)?;
    // The new settings must also be valid together with those that stay.
    config.check()?;
    let (rules, errors) = state.rules.load().reopened(&config);
    if config.log != old.log
        && let Some(set_log) = &settings.hooks.set_log
    {
        set_log(&config.log)?;
    }
    // Certificates are read again even if their paths are unchanged, because they are renewed.
    state.tls.as_ref().map_or(Ok(()), TlsIdentity::reload)?;
    if let Some(set) = &state.set {
        set.set_verify_new(config.verify_new_layers);
        set.freshness().set_limits(config.publishers.age_max_s, config.publishers.refuse_stale);
    }
    settings.networks.store(Arc::new(NetworkLists::of(&config)));
    state.rules.store(Arc::new(rules));
    settings.current.store(Arc::new(config));
    Ok((changes, errors))
}
