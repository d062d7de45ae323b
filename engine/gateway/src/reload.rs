//! Reloads the configuration, the files that it names, and the published set.

use crate::config::Config;
use crate::settings::NetworkLists;
use crate::state::GatewayState;
use crate::tls::TlsIdentity;
use handle_daemon::publication::{PublishedDirectory as _, ReloadOutcome};
use handle_daemon::readiness;
use handle_daemon::settings::SettingSection as _;
use handle_daemon::settings::reload::{SettingChanges, merged, report_failed_reload};
use serde_json::{Value, json};
use std::sync::{Arc, PoisonError};

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
    if let Some(read) = &state.settings.hooks().read_config {
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
    if let Some(set) = &state.reading.set {
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
    let (rules, errors) = state.reading.rules.load().reopened(&config);
    if config.log != old.log
        && let Some(set_log) = &settings.hooks().set_log
    {
        set_log(&config.log)?;
    }
    // Certificates are read again even if their paths are unchanged, because they are renewed.
    state.tls.as_ref().map_or(Ok(()), TlsIdentity::reload)?;
    if let Some(set) = &state.reading.set {
        set.set_verify_new(config.verify_new_layers);
        set.freshness().set_limits(config.publishers.age_max_s, config.publishers.refuse_stale);
    }
    settings.networks.store(Arc::new(NetworkLists::of(&config)));
    state.reading.rules.store(Arc::new(rules));
    settings.current.store(Arc::new(config));
    Ok((changes, errors))
}
