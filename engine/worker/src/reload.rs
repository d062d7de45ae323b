//! Reloads the configuration and the published set.

use crate::inputs::{sources_of, templates_of};
use crate::site::OwnSite;
use crate::state::ServerState;
use handle_daemon::publication::ReloadOutcome;
use handle_daemon::readiness;
use handle_daemon::settings::reload::report_failed_reload;
use serde_json::{Value, json};
use std::sync::PoisonError;

impl ServerState {
    /// Reads the configuration again, if the program can, and then the published set. Returns a
    /// report of the result.
    pub fn reload(&self) -> Value {
        // Taken before the file is read. Of two concurrent reloads, the later one must not be
        // overwritten by what the earlier one has read, and the service manager must not mistake
        // the end of one for the end of the other.
        let _reloading = self.settings.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        readiness::reloading(|| reload_all(self))
    }
}

fn reload_all(shared: &ServerState) -> Value {
    let hooks = &shared.hooks;
    let generation = || shared.live.current().generation();
    let mut report = json!({ "ok": true });
    if let Some(read) = &hooks.read_config {
        // The server key does not change, so a new site record must contain the same key.
        let check_site = |site: &OwnSite| shared.slow.as_ref().map_or(Ok(()), |slow| slow.check_site(site));
        match read().and_then(|config| shared.settings.take(&config, check_site, hooks.set_log.as_ref())) {
            Ok(changes) => {
                let in_force = shared.settings.current();
                shared.live.set_verify_new_layers(in_force.config.verify_new_layers);
                shared.live.set_checks(in_force.config.check_records);
                let publishers = &in_force.config.publishers;
                shared.live.freshness().set_limits(publishers.age_max_s, publishers.refuse_stale);
                shared.live.ledger.set_rate(in_force.config.verify_bytes_per_s);
                shared.live.set_templates(templates_of(&in_force.config));
                shared.live.set_sources(sources_of(&in_force.config));
                shared.wake_workers();
                changes.report(&mut report, "take over instead: hdl control restart");
                if let Some(extension) = &hooks.extension {
                    extension.reload(&mut report);
                }
            }
            Err(error) => {
                let mut report = report_failed_reload(&error);
                report["generation"] = generation().into();
                return report;
            }
        }
    }
    match shared.live.reload_damaged() {
        Ok(reloaded) => {
            report["changed"] = matches!(reloaded, ReloadOutcome::Changed(_)).into();
        }
        Err(error) => {
            tracing::error!(%error, "cannot open the published set; the old set stays live");
            report["ok"] = false.into();
            report["error"] = error.to_string().into();
        }
    }
    report["generation"] = generation().into();
    report
}
